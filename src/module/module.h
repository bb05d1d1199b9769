/* SPDX-License-Identifier: MIT */
/*
 * A module: three lists of named slots, hooks, extras, and a forward function. Slots are never removed, so the index
 * and name of a slot stay valid as long as its module.
 *
 *   life.c    making and ending one     module.c  slots, paths          walk.c   every slot of a tree, in order
 *   call.c    one call in its scope     hooks.c   hooks around calls    apply.c  replacing tensors
 *   extra.c   values of others          hook_list.c  when hooks may go
 *   guard.c, guard_tree.c  who is asked before calls of a tree, also of modules that come later
 *   version.c how wrappers and captured steps notice that a module has changed
 *   naming.c  what the tensors of a captured step are called
 */
#ifndef MODULE_MODULE_H
#define MODULE_MODULE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/module.h"

struct op_dependence; /* op/dependence.h */
struct op_tracer;     /* op/tracer.h */

enum slot_kind {
    SLOT_PARAMETER,
    SLOT_BUFFER,
    SLOT_CHILD,
    SLOT_KINDS
};

struct slot {
    char *name;
    shoal_tensor *tensor; /* one reference; NULL if this is a child */
    shoal_module *child;  /* one reference; NULL if this is a tensor */
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

    /* Of the trees that it is in or was in, the oldest first; one reference each. */
    struct module_guard **guards;
    size_t n_guards;
    size_t guards_capacity;

    struct module_extra *extras;
    size_t n_extras;
    size_t extras_capacity;

    /* version.c */
    uint64_t created; /* the number of the change that made it */
    uint64_t version; /* the number of its last change (base/changes.h); 0 if there is none */
    struct {
        const char *what; /* "parameter", "a hook": a literal; NULL if there was none */
        const char *name; /* of a slot; NULL if it has none */
        const char *verb; /* "was added": a literal */
    } change;             /* the last one */
    /* By which graphs depend on the module; NULL if no capture has read it. */
    struct op_dependence *dependence;
    uint64_t named_in; /* naming.c: the capture that knows the names of its tensors; 0 if none does */

    shoal_module *next_dying; /* life.c */
};

/* The index, for shoal_module_parameter_at and module_put_parameter, of the module's own parameter of that name, which
   must exist. It stays valid, because slots are never removed. */
size_t module_parameter_index(const shoal_module *module, const char *name);
/* Puts another tensor in the place of a parameter: cannot fail, and does not count as a change (version.c). */
void module_put_parameter(shoal_module *module, size_t index, shoal_tensor *parameter);

/* Puts another tensor in a slot, as a change that the program makes. */
void module_replace_tensor(shoal_module *module, enum slot_kind kind, size_t index, shoal_tensor *tensor);

/* Versions (version.c) --------------------------------------------------------------------------------- */

/* Call after a change of the module's own slots or hooks: "parameter", the name of a slot or NULL, "was added". */
void module_note_change(shoal_module *module, const char *what, const char *name, const char *verb);
/* SHOAL_ERR_STATE if a step is being captured and the module was there before: each run of the step would change it again,
   and a graph cannot. */
shoal_status module_check_change(const shoal_module *module, const char *what);

/* Notes that something was removed. In a captured step it is a failure of the capture, as in module_check_change. */
void module_note_removal(shoal_module *module, const char *what);

/* Call when a program reads the slots of a module, or calls it. If this happens in a captured step, the graph depends on
   the module from now on. A failure is noted in the capture and in the innermost scope. */
void module_note_read(const shoal_module *module);
/* Tells a capture how the tensors of a tree are called, from the module on that the step reads or calls first (naming.c).
   Does nothing for modules that the capture knows. */
shoal_status module_name_tensors(shoal_module *module, struct op_tracer *tracer);
/* For a module that is being freed: its last version holds. */
void module_end_version(shoal_module *module);

/* Guards (guard.c, guard_tree.c) ----------------------------------------------------------------------- */

struct module_guard;

/* From now on `function` is called before the hooks of each call of a module of the tree, also of modules that are added
   to the tree later. If it fails, the call fails. For a module that is in several trees, only the oldest guard that has
   not ended is asked. */
shoal_status module_guard_tree(shoal_module *root, shoal_module_hook_function function, void *context,
                               struct module_guard **guard_out);
/* Frees the guard: the function is not called any more. NULL is allowed. */
void module_guard_end(struct module_guard *guard);

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
