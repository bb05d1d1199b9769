/* SPDX-License-Identifier: MIT */
/*
 * Modules: trees of named parameters, buffers and child modules, each with a forward function and with hooks around
 * it. Use them to hold the parameters of a model, to call its layers, and as what shoal_fully_shard, shoal_ddp and
 * checkpoints work on. A module computes nothing itself: its forward function calls operations and other modules.
 *
 *     static shoal_status forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
 *                                 shoal_tensor **outputs, size_t n_outputs)
 *     {
 *         outputs[0] = shoal_mul(inputs[0], shoal_module_parameter(module, "weight"));
 *         return SHOAL_OK;
 *     }
 *
 *     shoal_module_definition definition = SHOAL_MODULE_DEFINITION_INIT;
 *     definition.type = "scale";
 *     definition.forward = forward;
 *     definition.n_inputs = 1;
 *     status = shoal_module_create(&definition, &scale);
 *     status = shoal_module_add_parameter(scale, "weight", weight);
 *     shoal_tensor *y = shoal_module_call_one(scale, x);
 *     ...
 *     shoal_module_unref(scale);
 *
 * A name has 1 to 255 letters, digits and '_'. Within a module no two parameters, buffers or children have the same
 * name. Each kind keeps the order in which it was added. A path joins names with dots, from some module down:
 * "layers.0.weight". The same tensor may be in several places (tied parameters), and a module may have several parents
 * (shared modules). A module cannot contain itself.
 *
 * Ownership: shoal_module_create gives the caller a reference, which shoal_module_unref releases. A module takes its
 * own references to what is added to it; the caller keeps and releases its own. Getters return borrowed pointers,
 * which are valid as long as the module holds them in that place.
 * Threads: any thread may reference, release, read, walk and call a module, also several at once. While one thread
 * changes a module (adds, replaces, sets hooks or extras), no other thread may use it. What autograd records belongs
 * to one thread at a time (shoal/autograd.h).
 * Errors: status and text. shoal_module_call and shoal_module_call_function also leave their error in the innermost
 * scope, as operations do; other calls that return a status leave the scope alone. How getters fail is said with each
 * of them.
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

/* The most characters of a name. */
#define SHOAL_MAX_MODULE_NAME 255

/* Making modules --------------------------------------------------------------------------------------- */

/*
 * Computes the outputs of a call. It must set each of outputs[0..n_outputs-1]; they are NULL before. inputs[i] is NULL
 * if the caller gave none.
 *
 * It runs in the scope of the call: tensors that it makes and does not return are released when the call ends. If an
 * operation fails, the scope holds the error, and the call fails even if the function returns SHOAL_OK; so a chain of
 * operations needs no checks. A gradient mode that it sets ends with it.
 */
typedef shoal_status (*shoal_module_forward)(shoal_module *module, shoal_tensor *const *inputs,
                                             size_t n_inputs, shoal_tensor **outputs, size_t n_outputs);

typedef struct shoal_module_definition {
    size_t struct_size;             /* sizeof(shoal_module_definition) */
    const char *type;               /* its kind, for error texts: "linear"; at least one character; copied */
    shoal_module_forward forward;   /* NULL makes a container, which shoal_module_call cannot call */
    size_t n_inputs;                /* how many inputs a call must give; 0 allows any number */
    size_t n_outputs;               /* how many outputs a call gives; 0 means one */
    void *context;                  /* what shoal_module_context returns */
    void (*destroy)(void *context); /* frees `context` when the module is freed; NULL if that needs nothing */
} shoal_module_definition;
#define SHOAL_MODULE_DEFINITION_INIT SHOAL_SIZED(shoal_module_definition)

/* Makes a module without parameters, buffers or children. The definition is copied. On failure `destroy` is not
   called. SHOAL_ERR_INVALID: the type is NULL or empty. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_create(const shoal_module_definition *definition,
                                                            SHOAL_GIVES shoal_module **module_out);

/* Adds a reference, and returns the module. NULL is allowed. */
SHOAL_API SHOAL_GIVES shoal_module *shoal_module_ref(shoal_module *module);
/* Releases a reference. The last one frees the module; if it is being called, that happens when the call returns. NULL
   is allowed. */
SHOAL_API void shoal_module_unref(SHOAL_TAKES shoal_module *module);

/* Returns the definition with which the module was made, n_outputs filled in. It belongs to the module. NULL for a
   NULL module. */
SHOAL_API const shoal_module_definition *shoal_module_get_definition(const shoal_module *module);
/* Return type and context of the definition. For a NULL module they are "" and NULL. */
SHOAL_API const char *shoal_module_type(const shoal_module *module);
SHOAL_API void *shoal_module_context(const shoal_module *module);

/* Parameters, buffers, children ------------------------------------------------------------------------ */

/* Adds a parameter: a tensor that is trained, or one that could be (it need not require a gradient).
   SHOAL_ERR_INVALID: it is the result of a recorded operation, or the name is not allowed or taken. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_add_parameter(shoal_module *module, const char *name,
                                                                   shoal_tensor *parameter);

/* Adds a buffer: state that is not trained, such as a running average. It may be any tensor. SHOAL_ERR_INVALID: the
   name is not allowed or taken. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_add_buffer(shoal_module *module, const char *name,
                                                                shoal_tensor *buffer);

/* Adds a module as a child. SHOAL_ERR_INVALID: `child` is the module itself or contains it, or the name is not allowed
   or taken. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_add_child(shoal_module *module, const char *name,
                                                               shoal_module *child);

/*
 * Put another tensor, of any shape and dtype, in the place that `path` names; the order stays. If the old tensor is in
 * several places (tied), the other places keep it. SHOAL_ERR_INVALID: there is no such place, or a parameter is the
 * result of a recorded operation. SHOAL_ERR_STATE: inside a step that is being captured (shoal/compile.h), since a
 * graph cannot repeat it; copy the values with shoal_copy_ instead.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_set_parameter(shoal_module *module, const char *path,
                                                                   shoal_tensor *parameter);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_set_buffer(shoal_module *module, const char *path,
                                                                shoal_tensor *buffer);

/* Find by name or path what must exist. If there is none, they return NULL and leave an error that names the module
   and the path, in shoal_error_text and in the innermost scope, if one is open. So the result can be handed on
   unchecked: the call that gets the NULL reports that reason. shoal_module_child with the path "" returns the module
   itself. */
SHOAL_API shoal_tensor *shoal_module_parameter(const shoal_module *module, const char *path);
SHOAL_API shoal_tensor *shoal_module_buffer(const shoal_module *module, const char *path);
SHOAL_API shoal_module *shoal_module_child(shoal_module *module, const char *path);

/* Find by name or path what need not exist, such as a bias: NULL, without an error, if there is none. */
SHOAL_API shoal_tensor *shoal_module_find_parameter(const shoal_module *module, const char *path);
SHOAL_API shoal_tensor *shoal_module_find_buffer(const shoal_module *module, const char *path);
SHOAL_API shoal_module *shoal_module_find_child(shoal_module *module, const char *path);

/*
 * Return a parameter, buffer or child of this module (not of modules inside it) by its number: 0, 1, 2, ... in the
 * order of adding. Past the last they return NULL, without an error. name_out may be NULL; the name belongs to the
 * module.
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
    SHOAL_WALK_MODULES = 1u << 2,   /* also the module where the walk begins */
    SHOAL_WALK_DUPLICATES = 1u << 3 /* tied tensors and shared modules under each of their paths */
};

/* What a walk visits: a parameter, a buffer or a module. The struct and its strings are valid during the visit. */
typedef struct shoal_module_entry {
    size_t struct_size;   /* how much of it the library has filled in: the size it has there */
    uint32_t kind;        /* SHOAL_WALK_PARAMETERS, _BUFFERS or _MODULES */
    const char *path;     /* from the module where the walk begins; "" for that module */
    const char *name;     /* the last part of the path */
    shoal_module *module; /* for a module: itself; for a tensor: the module that it was added to */
    shoal_tensor *tensor; /* NULL for a module */
} shoal_module_entry;
#define SHOAL_MODULE_ENTRY_INIT SHOAL_SIZED(shoal_module_entry)

typedef enum shoal_walk_next {
    SHOAL_WALK_ON = 0, /* go on */
    /* Leave out what is inside this module; for a tensor the same as SHOAL_WALK_ON. */
    SHOAL_WALK_SKIP = 1,
    SHOAL_WALK_STOP = 2 /* end the walk, which returns SHOAL_OK */
} shoal_walk_next;

/* Called for each entry of a walk. *next is SHOAL_WALK_ON before. A status that is not SHOAL_OK ends the walk, which
   returns it. */
typedef shoal_status (*shoal_module_visitor)(void *context, const shoal_module_entry *entry,
                                             shoal_walk_next *next);

/*
 * Calls `visitor` for the module and everything inside it that `flags` choose (SHOAL_WALK_* joined by |). The walk
 * goes depth first: a module, its parameters, its buffers, then its children, each in the order of adding. Each tensor
 * and each module is visited once, under its first path, unless SHOAL_WALK_DUPLICATES is set.
 *
 * The visitor may replace tensors and add to modules; what it adds where the walk has not been yet is visited. Without
 * SHOAL_WALK_DUPLICATES tensors that were visited live at least until the walk ends. SHOAL_ERR_INVALID: flags choose
 * nothing, or have other bits.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_walk(shoal_module *module, uint32_t flags,
                                                          shoal_module_visitor visitor, void *context);

/* Counts the entries of a walk with these flags. *count_out is 0 if it fails. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_count(shoal_module *module, uint32_t flags,
                                                           size_t *count_out);

/* Lists all parameters of the module and of the modules inside it, each once, in the order of a walk: for optimizers
   and norms. Needs an open scope, which owns the list; the tensors are borrowed. On failure it returns NULL, *n_out is
   0, and the error is in the scope; an empty list is not NULL. */
SHOAL_API shoal_tensor *const *shoal_module_parameters(shoal_module *module, size_t *n_out);

/* Gets a parameter or buffer as entry->tensor, and may set *tensor to one that takes its place. It runs in a scope of
   its own with gradients off: "*tensor = shoal_to_dtype(entry->tensor, SHOAL_BF16)". */
typedef shoal_status (*shoal_module_function)(void *context, const shoal_module_entry *entry,
                                              shoal_tensor **tensor);

/*
 * Calls `function` once for each tensor of the tree that `flags` choose (SHOAL_WALK_PARAMETERS, SHOAL_WALK_BUFFERS, or
 * both), and then puts the tensors that it gave in all places of the old ones, so that tied ones stay tied. Where the
 * old tensor required a gradient, the new one does, too; gradients and hooks are not carried over. If anything fails,
 * no tensor is replaced.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_apply(shoal_module *module, uint32_t flags,
                                                           shoal_module_function function, void *context);

/* Calling ---------------------------------------------------------------------------------------------- */

/*
 * Calls the module: runs its pre-forward hooks, its forward function and its post-forward hooks, in a scope of their
 * own inside the innermost scope, which must be open. The outputs belong to the caller's scope; everything else that
 * was made is released when the call ends. Inputs may be NULL where the module allows it. `inputs` and `outputs_out`
 * may be the same list. Gradient mode and tracer are the caller's. A module may be called inside a call of itself.
 *
 * On failure all outputs are NULL, and the caller's scope holds the error, with the path or type of the module in
 * front; so a chain of calls needs one check at its end. SHOAL_ERR_STATE: the module has no forward function.
 * SHOAL_ERR_INVALID: another number of inputs or outputs than the definition says, or an output that was not set.
 */
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE shoal_status shoal_module_call(shoal_module *module,
                                                                    shoal_tensor *const *inputs,
                                                                    size_t n_inputs,
                                                                    shoal_tensor **outputs_out,
                                                                    size_t n_outputs);

/* Calls `function` instead of the definition's forward function: to encode, say, or to generate. Hooks run as around
   the forward function, so a module that is fully sharded has its whole parameters during the call. It takes any
   number of inputs, and gives n_outputs outputs, at least one. Containers can be called so, too. */
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE shoal_status
shoal_module_call_function(shoal_module *module, shoal_module_forward function, shoal_tensor *const *inputs,
                           size_t n_inputs, shoal_tensor **outputs_out, size_t n_outputs);

/* shoal_module_call with one input and one output. NULL on failure, with the error in the scope. */
SHOAL_API SHOAL_SOMETIMES_COLLECTIVE shoal_tensor *shoal_module_call_one(shoal_module *module,
                                                                         shoal_tensor *input);

/* Hooks ------------------------------------------------------------------------------------------------ */

/* A call, as its hooks see it. Hooks run in the scope of the call: what they make lives until the call ends. */
typedef struct shoal_forward_call {
    size_t struct_size; /* how much of it the library has filled in: the size it has there */
    shoal_module *module;
    shoal_tensor **inputs; /* pre-forward hooks may replace entries */
    size_t n_inputs;
    /* NULL entries before the forward function; post-forward hooks may replace entries. */
    shoal_tensor **outputs;
    size_t n_outputs;
    /* The call is made during a backward pass, as the second run of shoal_recompute is. */
    bool is_recompute;
} shoal_forward_call;
#define SHOAL_FORWARD_CALL_INIT SHOAL_SIZED(shoal_forward_call)

/* Called before or after the forward function. If it returns another status than SHOAL_OK, or leaves an error in the
   scope, the call fails with that error. */
typedef shoal_status (*shoal_module_hook_function)(void *context, const shoal_forward_call *call);

/* Which hooks of a module run first. Hooks of one place run in the order in which they were added. */
typedef enum shoal_hook_place {
    SHOAL_HOOK_IN_ORDER = 0,
    SHOAL_HOOK_FIRST = 1, /* before those with SHOAL_HOOK_IN_ORDER */
    SHOAL_HOOK_LAST = 2   /* after those with SHOAL_HOOK_IN_ORDER */
} shoal_hook_place;

typedef struct shoal_module_hook_definition {
    size_t struct_size;                     /* sizeof(shoal_module_hook_definition) */
    shoal_module_hook_function pre_forward; /* at least one of the three functions is not NULL */
    shoal_hook_place pre_place;
    shoal_module_hook_function post_forward; /* does not run if something before it failed */
    shoal_hook_place post_place;
    void *context; /* given to all three functions */
    /* Frees `context`, once no call can use the hook any more; NULL if that needs nothing. */
    void (*destroy)(void *context);
    /* Cleans up after a call that failed at any point, even if pre_forward of this hook has not run. The newest hook
       comes first. The scope of the call holds the error already, so operations do nothing, and errors in this
       function change nothing about the error of the call. */
    void (*failed_forward)(void *context, const shoal_forward_call *call);
} shoal_module_hook_definition;
#define SHOAL_MODULE_HOOK_DEFINITION_INIT SHOAL_SIZED(shoal_module_hook_definition)

typedef struct shoal_module_hook shoal_module_hook;

/* Adds a hook to the module. The definition is copied. A hook that is added during a call runs from the next call on.
   hook_out may be NULL if the hook will never be removed. On failure `destroy` is not called. SHOAL_ERR_INVALID: all
   functions are NULL, or a place is not one of the three. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_add_hook(shoal_module *module,
                                                              const shoal_module_hook_definition *definition,
                                                              SHOAL_GIVES shoal_module_hook **hook_out);

/* Removes a hook and frees its handle. May be called during a call, and after the module was freed. Every handle that
   was asked for must be freed by this call, and by nothing else. NULL is allowed. */
SHOAL_API void shoal_module_hook_remove(SHOAL_TAKES shoal_module_hook *hook);

/* Extras ----------------------------------------------------------------------------------------------- */

/*
 * Attaches a value of another library to the module, to be found again by `key`, an address that is unique to that
 * library (of a static variable, say). If the key has a value already, that one is destroyed and replaced; a NULL
 * value only removes it. `destroy` frees the value when it is replaced or removed, or when the module is freed; it may
 * be NULL, and is not called on failure.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_module_set_extra(shoal_module *module, const void *key,
                                                               void *value, void (*destroy)(void *value));

/* Returns the value of that key; NULL if there is none. */
SHOAL_API void *shoal_module_extra(const shoal_module *module, const void *key);

SHOAL_END_DECLS

#endif
