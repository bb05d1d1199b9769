/* SPDX-License-Identifier: MIT */
/*
 * Modules on top of units: a wrapper for each call of shoal_fully_shard, hung on its modules. A parameter has two
 * tensors, which take turns in the places of the module tree:
 *
 *   sharded   over this rank's shard, for ever: what optimizers and walks see
 *   full      over the gathered memory, re-bound with every gather: what forward functions see, and what the record of
 *             gradients keeps; its storage is released while there is nothing gathered
 */
#ifndef PARALLEL_FSDP_WRAPPER_H
#define PARALLEL_FSDP_WRAPPER_H

#include <stdbool.h>
#include <stddef.h>

#include "parallel/fsdp/unit.h"
#include "shoal/fully_shard.h"
#include "shoal/module.h"

/* A place in the tree where a parameter is. */
struct fsdp_place {
    shoal_module *module; /* borrowed: it holds the wrapper, or is inside one that does */
    char *name;
};

/* One parameter; the k-th of these is the k-th of the unit. */
struct fsdp_tensors {
    shoal_tensor *original; /* until the second forward, if somebody else has it too: tied to another unit? */
    shoal_tensor *sharded;
    shoal_tensor *full;       /* made at the first forward */
    shoal_tensor *shard_grad; /* over the gradient of the shard; made when that is */
    bool needs_values;        /* it was on the meta device, and nobody has written it yet */
    uint64_t version;         /* of the sharded tensor, when that was found */
    struct fsdp_place *places;
    size_t n_places;
    size_t capacity;
};

/* What all wrappers under one root share. */
struct fsdp_root {
    struct fsdp_context *context;
    struct fsdp_wrapper **wrappers; /* in the order of a walk */
    size_t n_wrappers;
    size_t capacity;
    bool is_end_awaited;               /* by the backward that is running */
    struct fsdp_wrapper *forward_root; /* the outermost that is being called; NULL: none */
    size_t forward_depth;              /* of scopes, in that call */
    size_t n_order;                    /* of the context, when that call began */
    bool has_originals;                /* of parameters: until the first call */
};

struct fsdp_wrapper {
    struct owned owned; /* first: the world's list, which tells of its end */
    bool is_closed;     /* the world is: shards can be read, and that is all */
    size_t n_owners;    /* the modules that have it */
    shoal_module **modules;
    shoal_module_hook **hooks; /* one on each; NULL: not yet */
    size_t n_modules;
    bool *has_run; /* which of them, in this forward */
    size_t n_run;
    struct fsdp_unit *unit;
    struct fsdp_mesh mesh;
    struct fsdp_tensors *tensors;
    size_t n_tensors;
    size_t tensors_capacity;
    shoal_reshard reshard; /* as wanted: the root has another default */
    shoal_dtype output_dtype;
    bool casts_inputs;
    int forward_prefetch;
    int max_reduces;
    bool shows_full;        /* the full tensors are in the places */
    bool is_named;          /* by its path from the root */
    struct fsdp_root *root; /* NULL before the first forward */
    bool is_root;           /* and owns it */
};

/* The wrapper of a module, or NULL. */
struct fsdp_wrapper *fsdp_wrapper_of(const shoal_module *module);

/* Whether modules can be one unit. Of those, the ones that are in no other; there is room for all. */
shoal_status fsdp_check_modules(shoal_module *const *modules, size_t n_modules);
shoal_status fsdp_keep_outermost(shoal_module *const *modules, size_t n_modules, shoal_module **kept_out,
                                 size_t *n_kept_out);

/*
 * Takes the parameters of the modules that no inner one has. Two steps, so that the hooks can be put on between them:
 * after the first, the whole parameters can still be put back (undo, which frees); after the second, they go.
 */
shoal_status fsdp_wrapper_create(shoal_module *const *modules, size_t n_modules,
                                 const shoal_fully_shard_options *options, struct fsdp_wrapper **wrapper_out);
void fsdp_wrapper_undo(struct fsdp_wrapper *wrapper);
void fsdp_wrapper_settle(struct fsdp_wrapper *wrapper);
/* One of its modules has died. */
void fsdp_wrapper_release(struct fsdp_wrapper *wrapper);

/* The deleter of memory that full tensors show, by which it is known: it is not theirs. */
void fsdp_keep_gathered(void *context, void *data);

/* Forgets which of its modules have run. */
void fsdp_wrapper_clear_run(struct fsdp_wrapper *wrapper);

/* Names the units of a root, and their parameters, by their paths in the root's module. */
shoal_status fsdp_name_units(struct fsdp_root *root, shoal_module *module);

/* At the first forward: makes the wrapper a root, unless it has one. */
shoal_status fsdp_wrapper_prepare(struct fsdp_wrapper *wrapper);

/* SHOAL_ERR_STATE once the world is closed. */
shoal_status fsdp_wrapper_check(const struct fsdp_wrapper *wrapper);

/* For public calls, whose name begins the error text; both clear the error of the thread first. */
shoal_status fsdp_find_wrapper(const char *call, const shoal_module *module,
                               struct fsdp_wrapper **wrapper_out);
/* Of a root; one that has not been called yet becomes one. */
shoal_status fsdp_find_root(const char *call, shoal_module *module, struct fsdp_wrapper **wrapper_out);

/* A parameter by the path of its shard: the unit that has it, and its number there. */
shoal_status fsdp_find_path(const char *call, shoal_module *root, const char *path,
                            struct fsdp_unit **unit_out, size_t *index_out);

/* For errors and events. */
const char *fsdp_wrapper_name(const struct fsdp_wrapper *wrapper);

#endif
