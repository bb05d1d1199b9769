/* SPDX-License-Identifier: MIT */
/*
 * Lists of user functions. A hook is counted: its list holds one reference and the handle given to the user
 * another, so either may go first. Removing only marks the hook, because its list may be running; marked
 * hooks leave the list when the next one is added.
 */
#ifndef AUTOGRAD_HOOKS_H
#define AUTOGRAD_HOOKS_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/autograd.h"

/* Zeroed is empty. */
struct hook_list {
    shoal_hook *first;
    shoal_hook *last;
    size_t n_running; /* walks in progress: hooks may call what walks the list again */
};

void hook_list_clear(struct hook_list *list);

/* In order of registration, each with what the one before gave back. *gradient belongs to the scope. */
shoal_status hook_list_run_gradient(struct hook_list *list, shoal_tensor **gradient);

/* SHOAL_ERR_STATE when a hook wrote into a gradient, of that version before, that it was only shown. */
shoal_status hook_check_unchanged(const shoal_tensor *gradient, uint64_t version);

/* In order of registration, up to the first that fails. */
shoal_status hook_list_run_leaf(struct hook_list *list, shoal_tensor *leaf);

#endif
