/* SPDX-License-Identifier: MIT */
/*
 * A module: three lists of named slots, hooks, extras, and a forward function. Slots are never removed, so the index
 * and name of a slot stay valid as long as its module.
 *
 *   life.c    making and ending one     module.c  slots, paths          walk.c   every slot of a tree, in order
 *   call.c    one call in its scope     hooks.c   hooks around calls    apply.c  replacing tensors
 *   extra.c   values of others          hook_list.c  when hooks may go
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

    shoal_module *next_dying; /* life.c */
};

/* The index, for shoal_module_parameter_at and module_put_parameter, of the module's own parameter of that name, which
   must exist. It stays valid, because slots are never removed. */
size_t module_parameter_index(const shoal_module *module, const char *name);
/* shoal_module_set_parameter without looking for the name: cannot fail. */
void module_put_parameter(shoal_module *module, size_t index, shoal_tensor *parameter);

/* Hooks (hooks.c) -------------------------------------------------------------------------------------- */

enum hook_time {
    PRE_FORWARD,
    POST_FORWARD
};

/* Runs the hooks with a number below `n_ever`, in the innermost scope, which also keeps the error. */
shoal_status module_run_hooks(shoal_module *module, enum hook_time time, uint64_t n_ever,
                              const shoal_forward_call *call);
/* Call after a call has failed; the innermost scope has the error already. */
void module_run_failure_hooks(shoal_module *module, uint64_t n_ever, const shoal_forward_call *call);

/* Extras (extra.c) ------------------------------------------------------------------------------------- */

void module_clear_extras(shoal_module *module);

#endif
