/* SPDX-License-Identifier: MIT */
/*
 * Lists of user functions. A hook is counted: its list holds one reference and the handle given to the user
 * another, so either may go first. Removing only marks the hook, because its list may be running; marked
 * hooks leave the list when the next one is added.
 */
#ifndef AUTOGRAD_HOOK_LIST_H
#define AUTOGRAD_HOOK_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/autograd.h"

/* Called once, when the function that has the context cannot run any more. */
typedef void (*hook_release)(void *context);

struct hook_function {
    shoal_gradient_hook on_gradient; /* one of the two is set */
    shoal_leaf_hook on_accumulated;
    void *context;
    hook_release release; /* NULL: nobody asks */
};

/* Zeroed is empty. */
struct hook_list {
    shoal_hook *first;
    shoal_hook *last;
    size_t n_running; /* walks in progress: hooks may call what walks the list again */
};

/* hook_out may be NULL. On failure the context stays the caller's. */
shoal_status hook_list_add(struct hook_list *list, const struct hook_function *function,
                           shoal_hook **hook_out);

void hook_list_clear(struct hook_list *list);

/* In order of registration, each with what the one before gave back. *gradient belongs to the scope. */
shoal_status hook_list_run_gradient(struct hook_list *list, shoal_tensor **gradient);

/* SHOAL_ERR_STATE when a hook wrote into a gradient, of that version before, that it was only shown. */
shoal_status hook_check_unchanged(const shoal_tensor *gradient, uint64_t version);

/* In order of registration, up to the first that fails. */
shoal_status hook_list_run_leaf(struct hook_list *list, shoal_tensor *leaf);

#endif
