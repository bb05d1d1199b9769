/* SPDX-License-Identifier: MIT */
/*
 * Lists of hooks. A hook has a reference count: its list holds one reference and the program's handle another, so
 * either may end first. Removing a hook only marks it, because its list may be running; marked hooks leave the list
 * when the next one is added.
 */
#ifndef AUTOGRAD_HOOK_LIST_H
#define AUTOGRAD_HOOK_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/autograd.h"

/* Called once, when the hook with this context cannot run any more. */
typedef void (*hook_release)(void *context);

struct hook_function {
    shoal_gradient_hook on_gradient; /* one of the two is set */
    shoal_leaf_hook on_accumulated;
    void *context;
    hook_release release; /* NULL if there is none */
    /* The library's own, which emits ops when a step is captured. A captured step cannot run other hooks that are called
       after a gradient was added, because what they do is no part of the graph. */
    bool runs_in_captures;
    bool runs_last;  /* on a gradient: runs after all other hooks of its tensor, whenever those were added */
    uint64_t number; /* of the change that adds it to a leaf (base/changes.h); 0 if it is on a result */
};

/* Zeroed is empty. */
struct hook_list {
    shoal_hook *first;
    shoal_hook *last;
    size_t n_running; /* runs in progress: a hook may cause the list to run again */
};

/* hook_out may be NULL. On failure the context stays the caller's. */
shoal_status hook_list_add(struct hook_list *list, const struct hook_function *function,
                           shoal_hook **hook_out);

void hook_list_clear(struct hook_list *list);

/* Runs hooks in order of registration, those with runs_last after the others; each gets what the previous one
   returned. *gradient belongs to the scope. */
shoal_status hook_list_run_gradient(struct hook_list *list, shoal_tensor **gradient);

/* SHOAL_ERR_STATE if the gradient no longer has this version: a hook wrote to it, which it must not. */
shoal_status hook_check_unchanged(const shoal_tensor *gradient, uint64_t version);

/* What tells whether a leaf's hooks are the same as before: equal structs mean equal hooks, because every hook has a
   number of its own, and newer hooks have larger ones. */
struct hook_set {
    size_t n_hooks;
    uint64_t newest; /* the largest number; 0 if there is none */
};
/* Adds the hooks of a list to a set. */
void hook_list_add_to_set(const struct hook_list *list, struct hook_set *set);

/* Whether there is a hook that a captured step cannot run. */
bool hook_list_has_program_hook(const struct hook_list *list);
/* Runs hooks in order of registration, up to the first that fails. SHOAL_ERR_STATE: a step is being captured, and there
   is a hook that it cannot run. */
shoal_status hook_list_run_leaf(struct hook_list *list, shoal_tensor *leaf);

#endif
