/* SPDX-License-Identifier: MIT */
/*
 * Connects modules to units: each call of shoal_fully_shard makes a wrapper, which its modules hold. A parameter has
 * two tensors, which are swapped in the places of the module tree:
 *
 *     sharded   over this rank's shard, always: what optimizers and walks see
 *     full      over the gathered memory, bound again with every gather: what forward functions see, and what
 *               autograd records; its storage is released while nothing is gathered
 */
#ifndef PARALLEL_FSDP_MODULE_WRAPPER_H
#define PARALLEL_FSDP_MODULE_WRAPPER_H

#include <stdbool.h>
#include <stddef.h>

#include "parallel/forwards.h"
#include "parallel/fsdp/engine/state/context.h"
#include "shoal/autograd.h"
#include "shoal/fully_shard.h"
#include "shoal/module.h"

struct fsdp_capture;  /* capture.c */
struct fsdp_captured; /* captured.h */

/* A place in the module tree where a parameter is. */
struct fsdp_place {
    shoal_module *module; /* borrowed: it holds the wrapper, or is inside one that does */
    char *name;
    size_t index;    /* among the parameters of the module */
    bool is_reached; /* used while places are pruned (lifetime.c) */
};

/* What a module holds that belongs to a wrapper. */
struct fsdp_seat {
    struct fsdp_wrapper *wrapper;
    shoal_module *module;
    shoal_fsdp_unit *deep; /* stands for the units of the module and of those inside */
};

/* The tensors of one parameter; the k-th of these belongs to the k-th parameter of the unit. */
struct fsdp_tensors {
    shoal_tensor *original; /* NULL once it was dropped, because ties were checked, or nobody else held it */
    shoal_tensor *sharded;
    shoal_tensor *full; /* made at the first forward pass */
    shoal_tensor
        *partial; /* its gradient was reduced over the shards only (partial.h); NULL until that happens */
    shoal_tensor *shard_grad; /* over the gradient of the shard; made when the first one lands */
    /* The storage of the full tensor's gradient, while that lies in the unit's buffer; NULL if it does not. */
    const struct storage *lent;
    bool needs_values; /* the original was on the meta device: see fsdp_needs_values */
    /* Versions of the sharded tensor: */
    uint64_t version;  /* when it was made or adopted: a later one means that somebody has written it */
    uint64_t gathered; /* whose values were gathered last */
    uint64_t counted;  /* the last one that was counted as a change of the full tensor */
    struct fsdp_place *places;
    size_t n_places;
    size_t capacity;
};

/* The calls of modules under a root. A capture exchanges them for its own (capture.c). */
struct fsdp_calls {
    struct fsdp_wrapper *forward_root; /* the outermost wrapper that is being called; NULL if there is none */
    size_t forward_depth;              /* the depth of scopes when that call began */
    size_t n_order;                    /* passes.order.n of the context when that call began */
    bool is_end_awaited;               /* a backward pass is running, or has failed */
    bool is_walking;                   /* a backward pass is running, and its end has not begun */
};

/* What all wrappers under one root share. */
struct fsdp_root {
    struct fsdp_context *context;
    shoal_fsdp *handle;             /* what programs use the context by; NULL if nobody has asked for it */
    struct fsdp_wrapper **wrappers; /* in the order of a walk */
    size_t n_wrappers;
    size_t capacity;
    struct fsdp_calls calls;
    bool has_originals; /* of parameters: until the second call of a module under the root */
    size_t n_records;   /* hooks of forward passes and of a running backward pass: they keep the wrappers */
    bool is_gone;       /* its module was freed: only recorded backward passes can still run */
    /* The capture that runs modules under the root (capture.h); NULL if there is none. */
    struct fsdp_capture *capture;
    struct op_dependence *dependence; /* by which graphs depend on the root; NULL if none was captured */
};

struct fsdp_wrapper {
    struct owned owned; /* first: an entry of the world's list, by which it tells of its end */
    bool is_closed;     /* the world was closed: only shards can be read */
    size_t n_owners;    /* how many modules hold it; 0 if only recorded forward passes keep it */
    struct fsdp_seat *seats;
    shoal_module **modules;
    shoal_module_hook **hooks; /* one on each; NULL until they are set */
    size_t n_modules;
    bool *has_run; /* which of the modules have run in this forward pass */
    size_t n_run;
    struct fsdp_unit *unit;
    uint32_t number; /* its number among wrappers and contexts made on the group; ranks compare it */
    struct fsdp_mesh mesh;
    struct fsdp_tensors *tensors;
    size_t n_tensors;
    size_t tensors_capacity;
    shoal_tensor **ignored; /* parameters that the options leave out; one reference each */
    size_t n_ignored;
    uint64_t looked; /* the latest change (base/changes.h) when the tree had the right parameters (tree.h) */
    shoal_dtype output_dtype;
    bool casts_inputs;
    int forward_prefetch;
    int max_reduces;
    shoal_group *all_ranks; /* of the options; it is held */
    bool shows_full;        /* the full tensors are in the places */
    bool is_named;          /* the unit is named by its path from the root */
    struct fsdp_root *root; /* NULL before the first forward pass */
    bool is_root;           /* this wrapper owns the root */
    struct forward_list forwards;
    struct fsdp_captured *captured; /* its part of root->capture; NULL if none runs */
};

/* The module's seat, and its wrapper, or NULL. */
const struct fsdp_seat *fsdp_seat_of(const shoal_module *module);
struct fsdp_wrapper *fsdp_wrapper_of(const shoal_module *module);

/* The deleter of the memory of full tensors. It frees nothing, because the unit owns that memory. fsdp_is_of_unit
   recognizes full tensors by it. */
void fsdp_keep_gathered(void *context, void *data);

/* Finds the tensors that were made of a whole parameter; NULL if it does not belong to the wrapper. */
struct fsdp_tensors *fsdp_find_tensors(const struct fsdp_wrapper *wrapper, const shoal_tensor *original);

/* Forgets which of its modules have run. */
void fsdp_wrapper_clear_run(struct fsdp_wrapper *wrapper);

/* SHOAL_ERR_STATE once the world is closed. */
shoal_status fsdp_wrapper_check(const struct fsdp_wrapper *wrapper);

/* The name of the unit, for error texts. */
const char *fsdp_wrapper_name(const struct fsdp_wrapper *wrapper);

#endif
