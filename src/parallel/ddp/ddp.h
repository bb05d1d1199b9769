/* SPDX-License-Identifier: MIT */
/*
 * The state of a wrapped module. The files, from the bottom up:
 *
 *     plan        which gradients are reduced together, as a bucket
 *     order       checks that ranks do the same things with the modules of a group, in the same order
 *     gradient    one gradient on its way into the block
 *     block       the lane and the memory that gradients live in, and replacing both after a failure
 *     ddp         the struct, and how long it lives
 *     purpose     what ranks compare of all these calls
 *     reduction   the reduction of buckets, and the end of a module's backward pass
 *     pass        the end of a backward pass that has reached several modules
 *     backward    the beginning of a backward pass, and the hooks on leaves
 *     buffers     buffers become those of the first rank before a forward pass
 *     capture     all of these in a capture, as functional collectives
 *     forward     the hooks on the module
 *     collect, agree, wrap   which parameters are wrapped, whether ranks have the same ones, and the wrapping
 *     calls       the other public calls
 */
#ifndef PARALLEL_DDP_DDP_H
#define PARALLEL_DDP_DDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/owned.h"
#include "parallel/ddp/gradient.h"
#include "parallel/ddp/plan.h"
#include "parallel/forwards.h"
#include "shoal/autograd.h"
#include "shoal/ddp.h"
#include "shoal/window.h"

struct ddp_capture; /* capture.c */
struct op_dependence;
struct ddp_order; /* order.h */
struct fence;     /* tensor/storage.h */

/* A parameter that did not require a gradient. */
struct ddp_frozen {
    shoal_tensor *tensor; /* one reference */
    char *path;
};

/* What the options say. */
struct ddp_config {
    shoal_reduce_op reduce;
    double factor; /* of SHOAL_PREMUL_SUM, otherwise 0 */
    bool reduce_unused;
    size_t first_bytes;
    size_t bucket_bytes;
};

/* Modules in the tree, but not the root. */
struct ddp_inner {
    shoal_module **modules; /* one reference each */
    size_t n_modules;
    size_t capacity;
};

/* The lane that buckets are reduced on. */
struct ddp_lane {
    int number;     /* among those of the group, agreed upon */
    int generation; /* likewise: counts failures */
    shoal_group *group;
    bool is_broken;   /* it is of no use any more */
    bool is_given_up; /* and the others were told */
};

/* Where the module stands in the order of passes (order.h). */
struct ddp_turn {
    struct ddp_order *shared; /* by all modules of the group; the world keeps it */
    uint32_t generation;      /* when the module was last called, or its backward pass last began */
};

/* The memory of gradients, and which of them travel together. */
struct ddp_buckets {
    shoal_symmetric *block; /* NULL: no eager backward pass needed it yet, or it cannot be made (block.h) */
    bool is_shared;         /* all ranks have it: collectives can reduce in it */
    uint32_t block_number;  /* of the blocks of all generations, agreed upon */
    struct ddp_item *items; /* by parameter */
    struct ddp_plan plan;
    bool is_learning; /* the plan is a guess: the next backward pass will tell the order */
};

struct ddp_buffers {
    bool are_sent;
    shoal_group *lane;
    char *scratch;
    size_t scratch_bytes;
};

struct ddp_forwards {
    struct forward_list list;
    uint64_t backward; /* the number of the last backward pass that reached one of them */
    size_t n_newer;    /* how many newer forward passes were pending then */
};

/* The running backward pass, or the last one. */
struct ddp_backward {
    bool is_running;
    bool syncs;
    uint64_t number;
    _Atomic uint64_t
        pass;           /* the number, if gradients are reduced and that has not begun to end; otherwise 0 */
    size_t n_arrivals;  /* of all parameters */
    size_t n_started;   /* buckets, from the first on */
    size_t *n_ready;    /* by bucket */
    shoal_work **works; /* by bucket; NULL: not started, or over */
    struct fence **fences; /* scratch, one for each parameter */
    int64_t *frozen_set;   /* which parameters are frozen: details of its purposes */
    size_t n_frozen_set;   /* 0: none is frozen */
    char *words;           /* of its purposes */
};

struct ddp {
    struct owned owned;   /* first: the world's list. It tells of the world's end */
    shoal_world *world;   /* on whose list it is; NULL: not yet, or that world is closed */
    shoal_group *group;   /* NULL: the world is closed */
    shoal_module *module; /* NULL: it is gone, and what was recorded keeps the rest */
    size_t n_records;     /* hooks of recorded forward passes, and of a running backward pass */
    shoal_module_hook *forward_hook;
    bool wants_sync;  /* whether the next backward pass reduces */
    bool wanted_sync; /* the same of the backward pass after the last call, even if that never got here */
    struct ddp_param *params;
    size_t n_params;
    size_t params_capacity;
    struct ddp_frozen *frozen;
    size_t n_frozen;
    size_t frozen_capacity;

    struct ddp_config config;
    struct ddp_inner inner;
    struct ddp_lane lane;
    struct ddp_turn order;
    struct ddp_buckets buckets;
    struct ddp_buffers buffers;
    struct ddp_forwards forwards;
    struct ddp_backward backward;
    struct ddp_capture *capture;      /* that runs and has come to the module; NULL: none */
    struct op_dependence *dependence; /* of graphs on it; NULL: none was captured */
};

/* NULL: not wrapped. */
struct ddp *ddp_of(const shoal_module *module);

/* Frees everything. May be called at any point of wrapping. */
void ddp_free(struct ddp *ddp);
/* Called when the module's claim ends (claim.h). Recorded forward passes keep the struct: their backward pass
   needs it. */
void ddp_release_claim(void *value);

/* Counts a hook in n_records. */
void ddp_keep(void *context);
/* Such a hook cannot run any more. If the module is gone, the last hook frees the struct. The thread's error
   text stays. */
void ddp_let_go(void *context);

#endif
