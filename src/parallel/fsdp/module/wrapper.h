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
#include "parallel/fsdp/engine/context.h"
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
    bool is_reached; /* while it is looked for */
};

/* What a module holds that belongs to a wrapper. */
struct fsdp_seat {
    struct fsdp_wrapper *wrapper;
    shoal_module *module;
    shoal_fsdp_unit *deep; /* stands for the units of the module and of those inside */
};

/* The tensors of one parameter; the k-th of these belongs to the k-th parameter of the unit. */
struct fsdp_tensors {
    shoal_tensor *original; /* until the second forward pass, if it has other owners: tied to another unit? */
    shoal_tensor *sharded;
    shoal_tensor *full;       /* made at the first forward pass */
    shoal_tensor *shard_grad; /* over the gradient of the shard; made when that is */
    const struct storage
        *lent; /* of the full tensor's gradient, while that lies in the unit's buffer; NULL: it does not */
    bool needs_values; /* it was on the meta device, and nobody has written it yet */
    uint64_t version;  /* of the sharded tensor, when that was found */
    uint64_t gathered; /* of the sharded tensor: the one whose values were gathered last */
    uint64_t counted;  /* of the sharded tensor: the last one that the version of the full tensor counts */
    struct fsdp_place *places;
    size_t n_places;
    size_t capacity;
};

/* What all wrappers under one root share. */
struct fsdp_root {
    struct fsdp_context *context;
    shoal_fsdp *handle;             /* what programs hold of the context; NULL: nobody has asked */
    struct fsdp_wrapper **wrappers; /* in the order of a walk */
    size_t n_wrappers;
    size_t capacity;
    bool is_end_awaited;               /* a backward pass is running, or has failed */
    bool is_walking;                   /* a backward pass is running, and its end has not begun */
    struct fsdp_wrapper *forward_root; /* the outermost that is being called; NULL: none */
    size_t forward_depth;              /* of scopes, in that call */
    size_t n_order;                    /* of the context, when that call began */
    bool has_originals;                /* of parameters: until the first call */
    size_t n_records; /* hooks of forward passes and of a running backward pass: they keep the wrappers */
    bool is_gone;     /* its module is: what was recorded can be walked back, and that is all */
    struct fsdp_capture *capture;     /* that runs and has come here (capture.h); NULL: none */
    struct op_dependence *dependence; /* of graphs on it; NULL: none was captured */
};

struct fsdp_wrapper {
    struct owned owned; /* first: the world's list, which tells of its end */
    bool is_closed;     /* the world is: shards can be read, and that is all */
    size_t n_owners;    /* the modules that have it; 0: what was recorded keeps it */
    struct fsdp_seat *seats;
    shoal_module **modules;
    shoal_module_hook **hooks; /* one on each; NULL: not yet */
    size_t n_modules;
    bool *has_run; /* which of them, in this forward pass */
    size_t n_run;
    struct fsdp_unit *unit;
    uint32_t number; /* which of those made on the group this is: part of what ranks compare */
    struct fsdp_mesh mesh;
    struct fsdp_tensors *tensors;
    size_t n_tensors;
    size_t tensors_capacity;
    shoal_dtype output_dtype;
    bool casts_inputs;
    int forward_prefetch;
    int max_reduces;
    bool shows_full;        /* the full tensors are in the places */
    bool is_named;          /* by its path from the root */
    struct fsdp_root *root; /* NULL before the first forward pass */
    bool is_root;           /* and owns it */
    struct forward_list forwards;
    struct fsdp_captured *captured; /* its part of root->capture; NULL: none runs */
};

/* The module's seat, and its wrapper, or NULL. */
const struct fsdp_seat *fsdp_seat_of(const shoal_module *module);
struct fsdp_wrapper *fsdp_wrapper_of(const shoal_module *module);

/* The deleter of memory that full tensors show. It frees nothing: the memory is not theirs. Such memory is
   recognized by it. */
void fsdp_keep_gathered(void *context, void *data);

/* Finds what was made of a whole parameter; NULL: it does not belong to the wrapper. */
struct fsdp_tensors *fsdp_find_tensors(const struct fsdp_wrapper *wrapper, const shoal_tensor *original);

/* Forgets which of its modules have run. */
void fsdp_wrapper_clear_run(struct fsdp_wrapper *wrapper);

/* SHOAL_ERR_STATE once the world is closed. */
shoal_status fsdp_wrapper_check(const struct fsdp_wrapper *wrapper);

/* For errors and events. */
const char *fsdp_wrapper_name(const struct fsdp_wrapper *wrapper);

#endif
