/* SPDX-License-Identifier: MIT */
/*
 * What hangs on a module that is wrapped.
 *
 *   wrap.c      which parameters, whether the ranks have the same ones, hooks; the end of it all
 *   block.c     the lane and the memory that gradients live in, and replacing both after a failure
 *   buffers.c   buffers become those of the first rank before a forward
 *   arrive.c    one gradient: hooks on a leaf, and what is set aside
 *   backward.c  one backward: its beginning, buckets that leave, its end
 *   plan.c      which gradients travel together
 *
 * The gradient of a parameter, as its leaf keeps it:
 *
 *     not ours --take in--> local --all-reduce--> reduced --more comes: set aside--> local ...
 *
 * "ours" is a tensor over a place in the block, with a storage of its own, so that versions tell whether somebody wrote
 * to it. What was set aside is added to the result of the next reduction.
 */
#ifndef PARALLEL_DDP_DDP_H
#define PARALLEL_DDP_DDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/owned.h"
#include "parallel/ddp/plan.h"
#include "shoal/autograd.h"
#include "shoal/ddp.h"
#include "shoal/window.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

struct ddp;
struct leaf; /* autograd/leaf.h */

struct ddp_param {
    struct ddp *ddp;
    shoal_tensor *tensor; /* one reference */
    char *path;
    shoal_tensor *gradient;     /* over its place; one reference */
    shoal_hook *on_gradient;    /* before it is added to what the leaf has */
    shoal_hook *on_accumulated; /* after */
    struct leaf *leaf;          /* that has the hooks: freezing a tensor loses them */
    uint64_t n_failures;        /* of the leaf, as far as noticed */

    bool is_reduced;  /* ours, and the same on all ranks */
    bool is_local;    /* ours, and never sent */
    bool is_left;     /* by a backward that failed */
    void *aside;      /* as large as the gradient; NULL: never needed */
    bool has_aside;   /* something is set aside */
    uint64_t version; /* of the gradient's storage, when we last wrote to it */

    size_t n_expected; /* times that it comes in a backward: more than once where recomputing is involved */
    /* Of the running backward. */
    size_t n_arrived;
    size_t stamp;  /* the last time, among all; 0: not yet */
    bool has_part; /* in what is sent: otherwise it holds nothing */
};

/* A parameter that did not require a gradient. */
struct ddp_frozen {
    shoal_tensor *tensor; /* one reference */
    char *path;
};

struct ddp {
    struct owned owned; /* first: the world's list. It tells of the world's end */
    shoal_world *world; /* on whose list it is; NULL: not yet, or that world is closed */
    shoal_module *module;
    shoal_module_hook *forward_hook;
    shoal_module **inner; /* modules in the tree, but not the root; one reference each */
    size_t n_inner;
    size_t inner_capacity;

    shoal_group *group;
    shoal_reduce reduce;
    bool finds_unused;
    size_t first_bytes;
    size_t bucket_bytes;
    struct ddp_param *params;
    size_t n_params;
    size_t params_capacity;
    struct ddp_frozen *frozen;
    size_t n_frozen;
    size_t frozen_capacity;

    /* Memory and lane. */
    int number;     /* of the lane, agreed upon */
    int generation; /* likewise: counts failures */
    shoal_group *lane;
    shoal_symmetric *block;
    struct ddp_item *items; /* by parameter */
    struct ddp_plan plan;
    bool is_learning; /* the plan is a guess: this backward will tell the order */
    bool is_broken;   /* the lane is of no use any more */

    /* Buffers. */
    bool has_buffers; /* that are sent */
    shoal_group *buffer_lane;
    char *scratch;
    size_t scratch_bytes;

    bool wants_sync;  /* of the next backward */
    bool wanted_sync; /* when the module was last called: of a backward that never came here */
    /* Of the running backward. */
    bool is_running;
    bool syncs;
    uint64_t backward;     /* its number */
    size_t n_arrivals;     /* of all parameters */
    size_t n_started;      /* buckets, from the first on */
    size_t *n_ready;       /* by bucket */
    shoal_work **works;    /* by bucket; NULL: not started, or over */
    struct fence **fences; /* scratch, one for each parameter */
};

/* NULL: not wrapped. */
struct ddp *ddp_of(const shoal_module *module);
/* Whether a module around it is. */
bool ddp_is_inside(const shoal_module *module);

/* arrive.c: hooks on a leaf; their context is the parameter. */
shoal_tensor *ddp_before_adding(void *context, shoal_tensor *gradient);
shoal_status ddp_after_adding(void *context, shoal_tensor *leaf);
/* The end of a backward in which a parameter has not come: whatever is in its place is right afterwards. */
shoal_status ddp_fill_in(struct ddp_param *param);
/* The result of a reduction is there. `is_used`: by some rank; otherwise things are as they were. */
shoal_status ddp_land(struct ddp_param *param, bool is_used);
/* Whether the leaf's gradient is the one in the block. */
bool ddp_is_ours(const struct ddp_param *param);

/* backward.c */
shoal_status ddp_begin(struct ddp *ddp); /* nothing, if it has begun */
shoal_status ddp_mark_ready(struct ddp_param *param);
/* A backward that began and has not ended has failed: its number is not that of the running one. So has one that led to a
   parameter and never got there. */
void ddp_notice_failure(struct ddp *ddp);

/* buffers.c. Collective: buffers become those of the first rank. */
shoal_status ddp_send_buffers(struct ddp *ddp);

/* block.c. Collective: a lane and a block, in the first plan. Gradients that are ours move along. */
shoal_status ddp_open(struct ddp *ddp);
/* Ends what is in flight, here and on the other ranks if something is. */
void ddp_close(struct ddp *ddp);
/* Puts the block in the order of another plan, which is taken over. */
shoal_status ddp_move(struct ddp *ddp, struct ddp_plan *plan);
/* Gradients get memory of their own; lane and block are given up. */
void ddp_leave_world(struct ddp *ddp);
/* The lowest number for a lane on the group that no other wrapped module of this rank has, and its first generation that
   has not failed. */
void ddp_propose_lane(const struct ddp *ddp, int *number_out, int *generation_out);
shoal_status ddp_open_lane(shoal_group *group, const char *word, shoal_group **lane_out);
/* Another lane of the same number, for buffers. */
shoal_status ddp_open_buffer_lane(struct ddp *ddp);
/* For the world's list. */
void ddp_world_ends(struct owned *owned);

#endif
