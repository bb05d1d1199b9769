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
 *     collect     which parameters are wrapped, and whether the tree still has these
 *     reached     looks for parameters that get gradients and are not wrapped
 *     reduction   the reduction of buckets, and the end of a module's backward pass
 *     pass        the end of a backward pass that has reached several modules
 *     backward    the beginning of a backward pass, and the hooks on leaves
 *     buffers     buffers become those of the first rank before a forward pass
 *     capture     all of these in a capture, as functional collectives
 *     agree, values   whether ranks have the same parameters, and their first values
 *     follow      wraps a tree again that has other parameters now
 *     forward     the hooks on the module
 *     wrap        the wrapping
 *     calls       the other public calls
 */
#ifndef PARALLEL_DDP_DDP_H
#define PARALLEL_DDP_DDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/address.h"
#include "comm/group/owned.h"
#include "parallel/ddp/gradient.h"
#include "parallel/ddp/plan.h"
#include "parallel/forwards.h"
#include "shoal/autograd.h"
#include "shoal/ddp.h"
#include "shoal/window.h"

struct ddp_capture;  /* capture.c */
struct module_guard; /* module/module.h */
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
    double factor; /* for SHOAL_PREMUL_SUM, otherwise 0 */
    bool reduce_unused;
    size_t first_bytes;
    size_t bucket_bytes;
    /* As they were given; `ignored` is a list of our own, with one reference each. */
    shoal_ddp_options options;
};

/* Modules in the tree, but not the root. */
struct ddp_inner {
    shoal_module **modules; /* one reference each */
    size_t n_modules;
    size_t capacity;
};

/* The lane that buckets are reduced on. */
struct ddp_lane {
    int number;     /* of the lane among those of wrapped modules of the group; the same on all ranks */
    int generation; /* how many lanes with this number have failed before; the same on all ranks */
    shoal_group *group;
    bool is_broken;   /* after a failed backward pass or a reset: the lane cannot be used any more */
    bool is_given_up; /* the other ranks were told that it is broken */
};

/* Where the module stands in the order of passes (order.h). */
struct ddp_turn {
    struct ddp_order *shared; /* by all modules of the group; the world owns it */
    uint32_t generation;      /* of the order, when a forward or backward pass of the module last began */
};

/* The memory of gradients, and which of them are reduced together. */
struct ddp_buckets {
    /* The block; none if no eager backward pass needed it yet, or it cannot be made (block.h). */
    struct address memory;
    shoal_symmetric *block; /* to which the memory belongs; NULL if it is that of a device that has none */
    bool is_shared;         /* all ranks have it: collectives can reduce in it */
    uint32_t block_number;  /* by which ranks find the block; the same on all ranks and in all generations */
    struct ddp_item *items; /* one for each parameter */
    struct ddp_plan plan;
    bool is_learning; /* the plan is a guess: the next backward pass will tell the order */
};

struct ddp_buffers {
    bool are_sent;
    uint64_t places; /* where they are (collect.h) */
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
    _Atomic uint64_t pass; /* `number`, if gradients are reduced and the end has not begun; otherwise 0 */
    size_t n_arrivals;     /* how many gradients have arrived, of all parameters together */
    size_t n_started;      /* how many buckets were started, in the order of the plan */
    size_t *n_ready;       /* for each bucket: how many of its gradients are complete */
    shoal_work **works;    /* for each bucket its reduction; NULL if it is not started, or over */
    struct fence **fences; /* scratch, one for each parameter */
    int64_t *frozen_set;   /* which parameters are frozen: details of its purposes */
    size_t n_frozen_set;   /* 0 if none is frozen */
    char *words;           /* memory for the words of its purposes */
};

struct ddp {
    struct owned owned;   /* first: an entry of the world's list, by which it tells of its end */
    shoal_world *world;   /* on whose list it is; NULL if it is on none yet, or that world is closed */
    shoal_group *group;   /* NULL if the world is closed */
    shoal_module *module; /* NULL if it was freed, and recorded forward passes keep this struct */
    size_t n_records;     /* hooks of recorded forward passes, and of a running backward pass */
    shoal_module_hook *forward_hook;
    struct module_guard *guard; /* of the tree; NULL before it is made, and once the module was freed */
    bool wants_sync;            /* whether the next backward pass reduces */
    /* wants_sync at the last forward pass; false if that is recorded neither now nor when it runs again. */
    bool wanted_sync;
    struct ddp_param *params;
    size_t n_params;
    size_t params_capacity;
    struct ddp_frozen *frozen;
    size_t n_frozen;
    size_t frozen_capacity;

    shoal_device device; /* of all parameters that are reduced */
    uint64_t places;     /* where parameters are (collect.h) */
    uint64_t looked;     /* the latest change (base/changes.h) when the tree had these parameters */
    struct ddp_config config;
    struct ddp_inner inner;
    struct ddp_lane lane;
    struct ddp_turn order;
    struct ddp_buckets buckets;
    struct ddp_buffers buffers;
    struct ddp_forwards forwards;
    struct ddp_backward backward;
    /* The running capture that has called the module; NULL if there is none. */
    struct ddp_capture *capture;
    struct op_dependence *dependence; /* by which graphs depend on the module; NULL if none was captured */
};

/* The state of a wrapped module; NULL if it is not wrapped. */
struct ddp *ddp_of(const shoal_module *module);

/* Whether there is a block, of whatever size. */
static inline bool ddp_has_block(const struct ddp_buckets *buckets)
{
    return buckets->block || !address_is_none(buckets->memory);
}

/* The parameter that is reduced and is this tensor; NULL if there is none. */
struct ddp_param *ddp_find_param(const struct ddp *ddp, const shoal_tensor *tensor);
/* Frees the lists that ddp_collect has made, and what was made from them. */
void ddp_free_lists(struct ddp *ddp);
/* Whether the options leave a parameter out. */
bool ddp_is_ignored(const shoal_ddp_options *options, const shoal_tensor *tensor);
/* Frees everything. May be called at any point of wrapping. */
void ddp_free(struct ddp *ddp);
/* Called when the module's claim ends (claim.h). Recorded forward passes keep the struct: their backward pass
   needs it. */
void ddp_release_claim(void *value);

/* Counts a hook in n_records. */
void ddp_keep(void *context);
/* Call when such a hook cannot run any more. If the module was freed, the last hook frees the struct. The thread's
   error text stays. */
void ddp_let_go(void *context);

#endif
