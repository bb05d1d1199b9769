/* SPDX-License-Identifier: MIT */
/*
 * Modules: a tree of named parameters, buffers and children, functions to run, and hooks around them. A module
 * computes nothing itself; its forward function calls operations and other modules.
 *
 * Names are letters, digits and '_', unique within a module whatever they name, and keep the order in which they were
 * added. Paths join them with dots: "layers.0.weight". A tensor may have several places (tied parameters), and a
 * module several parents (shared modules); a module inside itself is an error.
 *
 * Ownership: shoal_module_create gives the caller a reference. A module keeps its own references on what is added to
 * it, so callers drop theirs. Getters return borrowed pointers, which live as long as their place holds them.
 * Threads: any thread may reference, release, read, walk and call a module; changing one (adding, replacing, hooks,
 * extras) is for one thread at a time, with no calls or walks on others. A record of gradients belongs to one
 * thread at a time, as always.
 * Errors: calls that return a status leave the scope alone, except shoal_module_call. Getters of what must be there
 * tell the scope.
 *
 *     static shoal_status forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
 *                                 shoal_tensor **outputs, size_t n_outputs)
 *     {
 *         outputs[0] = shoal_mul(inputs[0], shoal_module_parameter(module, "weight"));
 *         return SHOAL_OK;
 *     }
 *
 *     shoal_module_definition definition = {
 *         .struct_size = sizeof(definition), .type = "scale", .forward = forward, .n_inputs = 1};
 *     status = shoal_module_create(&definition, &scale);
 *     status = shoal_module_add_parameter(scale, "weight", weight);
 *     shoal_tensor *y = shoal_module_call_one(scale, x);
 */
#ifndef SHOAL_MODULE_H
#define SHOAL_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_module shoal_module;

/* Longest name of a parameter, buffer or child. */
#define SHOAL_MAX_MODULE_NAME 255

/* Making modules --------------------------------------------------------------------------------------- */

/*
 * Computes outputs[0..n_outputs-1], each of which must be set. Runs in the scope of the call: what it makes and does
 * not hand out dies with the call. An error in that scope ends the call even if the function returns SHOAL_OK, so
 * that a chain of operations needs no check. inputs[i] is NULL where the caller gave none.
 */
typedef shoal_status (*shoal_module_forward)(shoal_module *module, shoal_tensor *const *inputs,
                                             size_t n_inputs, shoal_tensor **outputs, size_t n_outputs);

typedef struct shoal_module_definition {
    size_t struct_size;             /* sizeof(shoal_module_definition) */
    const char *type;               /* "linear": for error texts; copied */
    shoal_module_forward forward;   /* NULL: a container of others, which cannot be called */
    size_t n_inputs;                /* how many a call must give; 0: any number */
    size_t n_outputs;               /* how many a call gives; 0: one */
    void *context;                  /* for shoal_module_context */
    void (*destroy)(void *context); /* NULL: none; called when the module dies, not when making it fails */
} shoal_module_definition;
#define SHOAL_MODULE_DEFINITION_INIT SHOAL_SIZED(shoal_module_definition)

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_create(const shoal_module_definition *definition,
                                                            shoal_module **module_out);

/* Adds a reference, and returns its argument. */
SHOAL_API shoal_module *shoal_module_ref(shoal_module *module);
/* Releases a reference. The last one frees the module; if it is being called, when that call returns. NULL is allowed
   in both calls. */
SHOAL_API void shoal_module_unref(shoal_module *module);

/* What the definition said, with n_outputs filled in. It lives as long as the module. NULL for a NULL module. */
SHOAL_API const shoal_module_definition *shoal_module_get_definition(const shoal_module *module);
/* Its type and context, which are needed most. For a NULL module: "" and NULL. */
SHOAL_API const char *shoal_module_type(const shoal_module *module);
SHOAL_API void *shoal_module_context(const shoal_module *module);

/* Parameters, buffers, children ------------------------------------------------------------------------ */

/* Parameters are leaves: what a recorded operation made is refused. They need not require a gradient. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_add_parameter(shoal_module *module, const char *name,
                                                                   shoal_tensor *parameter);

/* State that is not trained. Any tensor. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_add_buffer(shoal_module *module, const char *name,
                                                                shoal_tensor *buffer);

/* SHOAL_ERR_INVALID when `child` is the module, or has it somewhere inside. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_add_child(shoal_module *module, const char *name,
                                                               shoal_module *child);

/* Puts another tensor in the place that `path` names; the order stays. Other places of a tied one keep theirs.
   SHOAL_ERR_STATE in a step that is captured (shoal/compile.h): a graph cannot do it. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_set_parameter(shoal_module *module, const char *path,
                                                                   shoal_tensor *parameter);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_set_buffer(shoal_module *module, const char *path,
                                                                shoal_tensor *buffer);

/*
 * By name, or by path ("layers.0.weight"). If there is none, they return NULL and leave an error that names the module
 * and the path, in shoal_error_text and in the innermost scope, if one is open; so the result can be handed to an
 * operation unchecked. The child of the path "" is the module itself.
 */
SHOAL_API shoal_tensor *shoal_module_parameter(const shoal_module *module, const char *path);
SHOAL_API shoal_tensor *shoal_module_buffer(const shoal_module *module, const char *path);
SHOAL_API shoal_module *shoal_module_child(shoal_module *module, const char *path);

/* Find by name or path what need not exist, such as a bias: NULL, without an error, when there is none. */
SHOAL_API shoal_tensor *shoal_module_find_parameter(const shoal_module *module, const char *path);
SHOAL_API shoal_tensor *shoal_module_find_buffer(const shoal_module *module, const char *path);
SHOAL_API shoal_module *shoal_module_find_child(shoal_module *module, const char *path);

/*
 * The module's own, not its children's, in the order of adding, counted from 0; NULL past the last. name_out may be
 * NULL; the name lives as long as the module.
 *
 *     for (size_t i = 0; (child = shoal_module_child_at(module, i, NULL)) != NULL; i++) { ... }
 */
SHOAL_API shoal_tensor *shoal_module_parameter_at(const shoal_module *module, size_t index,
                                                  const char **name_out);
SHOAL_API shoal_tensor *shoal_module_buffer_at(const shoal_module *module, size_t index,
                                               const char **name_out);
SHOAL_API shoal_module *shoal_module_child_at(const shoal_module *module, size_t index,
                                              const char **name_out);

/* Walking the tree ------------------------------------------------------------------------------------- */

enum {
    SHOAL_WALK_PARAMETERS = 1u << 0,
    SHOAL_WALK_BUFFERS = 1u << 1,
    SHOAL_WALK_MODULES = 1u << 2,   /* the root of the walk too */
    SHOAL_WALK_DUPLICATES = 1u << 3 /* tied tensors and shared modules under each of their names */
};

/* What a walk has come to. Valid during the visit. */
typedef struct shoal_module_entry {
    size_t struct_size;   /* how much of it the library has filled in: the size it has there */
    uint32_t kind;        /* one of the first three above */
    const char *path;     /* from the root of the walk; "" for that root */
    const char *name;     /* the last part of the path */
    shoal_module *module; /* a module: itself; a tensor: the module whose own it is */
    shoal_tensor *tensor; /* NULL for a module */
} shoal_module_entry;
#define SHOAL_MODULE_ENTRY_INIT SHOAL_SIZED(shoal_module_entry)

typedef enum shoal_walk_next {
    SHOAL_WALK_ON = 0,
    SHOAL_WALK_SKIP = 1, /* a module: not into it; a tensor: the same as on */
    SHOAL_WALK_STOP = 2  /* end the walk, with SHOAL_OK */
} shoal_walk_next;

/* *next is SHOAL_WALK_ON before. A status other than SHOAL_OK ends the walk, which returns it. */
typedef shoal_status (*shoal_module_visitor)(void *context, const shoal_module_entry *entry,
                                             shoal_walk_next *next);

/*
 * Depth first: a module, its parameters, its buffers, then its children, each in the order of adding. `flags` say
 * which kinds are visited; every tensor and every module once, under its first path, unless duplicates are asked
 * for. The visitor may replace tensors and add to modules; what it adds where the walk has not been is visited.
 * Tensors that were visited live until the walk ends.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_walk(shoal_module *module, uint32_t flags,
                                                          shoal_module_visitor visitor, void *context);

/* How many entries such a walk has. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_count(shoal_module *module, uint32_t flags,
                                                           size_t *count_out);

/*
 * All parameters of the tree, each once, in the order of a walk, for optimizers and norms. Needs an open scope, which
 * owns the list but not the tensors. NULL, with the error in the scope, on failure; not NULL for an empty list.
 */
SHOAL_API shoal_tensor *const *shoal_module_parameters(shoal_module *module, size_t *n_out);

/*
 * Shown a tensor of the tree; may set *tensor to another one for all its places. Runs in a scope of its own with
 * gradients off: "*tensor = shoal_to_dtype(entry->tensor, SHOAL_BF16)".
 */
typedef shoal_status (*shoal_module_function)(void *context, const shoal_module_entry *entry,
                                              shoal_tensor **tensor);

/*
 * Applies a function to every parameter and buffer that `flags` (SHOAL_WALK_PARAMETERS, _BUFFERS, or both) choose,
 * once each, and puts what it gives in all places of that tensor: tied ones stay tied. A parameter that required a
 * gradient does so again; hooks and gradients stay with the old tensor. Nothing is replaced when anything fails.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_apply(shoal_module *module, uint32_t flags,
                                                           shoal_module_function function, void *context);

/* Calling ---------------------------------------------------------------------------------------------- */

/*
 * Runs pre-forward hooks, the forward function and post-forward hooks in a scope of their own inside the innermost
 * one, which must exist. Outputs belong to the caller's scope; what else was made is gone after the call. The lists
 * may be the same. Inputs may be NULL (absent). Gradient mode and tracer are the caller's; a mode that a hook or the
 * function sets ends with it.
 *
 * On failure all outputs are NULL and the caller's scope holds the error, with the path or type of the module in
 * front, like that of an operation: a chain of calls needs one check. A module may be called inside itself.
 */
SHOAL_API shoal_status shoal_module_call(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                         shoal_tensor **outputs_out, size_t n_outputs);

/*
 * Calls `function` instead of the definition's forward function: encode, or generate. Hooks run around it as around
 * the forward function, so that a module that is fully sharded has its parameters meanwhile. Any number of inputs, and
 * as many outputs as there is room for, at least one. Containers may be called so too.
 */
SHOAL_API shoal_status shoal_module_call_function(shoal_module *module, shoal_module_forward function,
                                                  shoal_tensor *const *inputs, size_t n_inputs,
                                                  shoal_tensor **outputs_out, size_t n_outputs);

/* One input, one output. */
SHOAL_API shoal_tensor *shoal_module_call_one(shoal_module *module, shoal_tensor *input);

/* Hooks ------------------------------------------------------------------------------------------------ */

/* A call, as hooks see it. They run in the scope of the call: what they make lives until its end. */
typedef struct shoal_forward_call {
    size_t struct_size; /* how much of it the library has filled in: the size it has there */
    shoal_module *module;
    shoal_tensor **inputs; /* pre-forward hooks may replace entries */
    size_t n_inputs;
    shoal_tensor **outputs; /* post-forward hooks may replace entries; NULL entries before */
    size_t n_outputs;
    bool is_recompute; /* made inside a backward, as the second run of shoal_recompute is */
} shoal_forward_call;
#define SHOAL_FORWARD_CALL_INIT SHOAL_SIZED(shoal_forward_call)

/* A status other than SHOAL_OK, or an error in the scope, ends the call with that error. */
typedef shoal_status (*shoal_module_hook_function)(void *context, const shoal_forward_call *call);

/* Hooks of one place run in order of registration. */
typedef enum shoal_hook_place {
    SHOAL_HOOK_IN_ORDER = 0,
    SHOAL_HOOK_FIRST = 1, /* before those in order */
    SHOAL_HOOK_LAST = 2   /* after them */
} shoal_hook_place;

typedef struct shoal_module_hook_definition {
    size_t struct_size;                     /* sizeof(shoal_module_hook_definition) */
    shoal_module_hook_function pre_forward; /* of the three functions at least one is not NULL */
    shoal_hook_place pre_place;
    shoal_module_hook_function post_forward; /* not run when what comes before it failed */
    shoal_hook_place post_place;
    void *context;                  /* of all three */
    void (*destroy)(void *context); /* NULL: none; called once, when no call can use the hook any more */
    /*
     * Cleans up after a call that failed, at whatever point after the first pre-forward hook was about to run: also
     * when the pre_forward of this hook has not run. The newest hook comes first. The call's scope has failed already,
     * so that operations do nothing, and what goes wrong here changes nothing about the error of the call.
     */
    void (*failed_forward)(void *context, const shoal_forward_call *call);
} shoal_module_hook_definition;
#define SHOAL_MODULE_HOOK_DEFINITION_INIT SHOAL_SIZED(shoal_module_hook_definition)

typedef struct shoal_module_hook shoal_module_hook;

/*
 * Hooks that are added during a call run from the next one on. hook_out may be NULL when it is never to be removed.
 * On failure `destroy` is not called.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_add_hook(shoal_module *module,
                                                              const shoal_module_hook_definition *definition,
                                                              shoal_module_hook **hook_out);

/*
 * Takes a hook off again, also from inside a call and after the module is gone. A handle that was asked for is freed by
 * this call and by nothing else. NULL is allowed.
 */
SHOAL_API void shoal_module_hook_remove(shoal_module_hook *hook);

/* Extras ----------------------------------------------------------------------------------------------- */

/*
 * Something of somebody else's that lives with the module, found by the address `key`: of a static variable, say. An
 * older value of that key is destroyed; a NULL value removes it. `destroy` may be NULL, and is not called on failure.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_set_extra(shoal_module *module, const void *key,
                                                               void *value, void (*destroy)(void *value));

/* NULL when there is none. */
SHOAL_API void *shoal_module_extra(const shoal_module *module, const void *key);

SHOAL_END_DECLS

#endif
