/* SPDX-License-Identifier: MIT */
/*
 * A module: three lists of named slots, hooks, extras, and what to run. Slots are never taken out, so a slot's index
 * and name stay valid as long as its module.
 *
 *   module.c  life, slots, paths        walk.c   every slot of a tree, in order        apply.c  replacing tensors
 *   call.c    one call in its scope     hooks.c  hooks and when they may go            extra.c  values of others
 */
#ifndef MODULE_MODULE_H
#define MODULE_MODULE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/module.h"

enum slot_kind {
    SLOT_PARAMETER,
    SLOT_BUFFER,
    SLOT_CHILD,
    SLOT_KINDS
};

struct slot {
    char *name;
    shoal_tensor *tensor; /* one reference; NULL: this is a child */
    shoal_module *child;  /* one reference; NULL: this is a tensor */
};

struct slot_list {
    struct slot *slots;
    size_t n_slots;
    size_t capacity;
};

struct module_extra {
    const void *key;
    void *value;
    void (*destroy)(void *value);
};

struct shoal_module {
    _Atomic uint32_t references;
    _Atomic uint32_t n_running; /* calls in progress: hooks stay in their list meanwhile */
    char *type;
    shoal_module_definition definition; /* its `type` is not used */
    struct slot_list lists[SLOT_KINDS];

    shoal_module_hook **hooks; /* in order of registration; one reference each */
    size_t n_hooks;
    size_t hooks_capacity;
    uint64_t n_hooks_ever;  /* numbers hooks: a call runs only those that were there when it began */
    bool has_removed_hooks; /* some in the list are marked and wait for calls to end */

    struct module_extra *extras;
    size_t n_extras;
    size_t extras_capacity;

    shoal_module *next_dying; /* module.c */
};

/* The slot of that kind that a path names, from `module` on; NULL: none. */
struct slot *module_find_slot(const shoal_module *module, enum slot_kind kind, const char *path);

/* Hooks (hooks.c) -------------------------------------------------------------------------------------- */

enum hook_time {
    PRE_FORWARD,
    POST_FORWARD
};

/* Runs those with a number below `n_ever`, in the innermost scope. The error is in that scope too. */
shoal_status module_run_hooks(shoal_module *module, enum hook_time time, uint64_t n_ever,
                              const shoal_forward_call *call);

/* Ends the hooks that were removed during calls; none is in progress now. The caller holds a reference. */
void module_drop_removed_hooks(shoal_module *module);

/* For a dying module. */
void module_clear_hooks(shoal_module *module);

/* Extras (extra.c) ------------------------------------------------------------------------------------- */

void module_clear_extras(shoal_module *module);

/* Callbacks (call.c) ----------------------------------------------------------------------------------- */

/*
 * After a user function in a scope of ours: `status` is what it returned. The scope's first error, if it holds one,
 * is the cause and wins; either way the error has `what` in front and is in the scope.
 */
shoal_status module_settle(shoal_status status, const char *what);

#endif
