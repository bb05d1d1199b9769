/* SPDX-License-Identifier: MIT */
/*
 * One gradient on its way into the block, as its leaf keeps it:
 *
 *     not ours --take in--> local --all-reduce--> reduced --more comes: set aside--> local ...
 *
 * "ours" is a tensor over a place in the block, or in memory of its own while there is no block (block.h), with a storage of
 * its own, so that versions tell whether somebody wrote to it. The leaf adds what a backward pass brings to the gradient it
 * has, so what has been reduced already must be out of the way by then: it is set aside, "nothing" is left in its place, and
 * it is added to the result of the next reduction. Nothing is -0: added to any number it gives that number, bit by bit.
 */
#ifndef PARALLEL_DDP_GRADIENT_H
#define PARALLEL_DDP_GRADIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/autograd.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

struct ddp;
struct leaf; /* autograd/leaf.h */

struct ddp_param {
    struct ddp *ddp;
    shoal_tensor *tensor; /* one reference */
    char *path;
    shoal_tensor *gradient;     /* over its place; one reference. NULL: no eager backward has begun yet */
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

/* Whether the leaf's gradient is ours. */
bool ddp_is_ours(const struct ddp_param *param);

/* Before more is added. A gradient that was removed or zeroed takes with it what was set aside. */
shoal_status ddp_make_room(struct ddp_param *param);
/* What the leaf has is copied to its place in the block, which becomes the gradient. */
shoal_status ddp_take_in(struct ddp_param *param, shoal_tensor *kept);

/* The end of a backward pass in which a parameter has not come: whatever is in its place is right afterwards. */
shoal_status ddp_fill_in(struct ddp_param *param);
/* The result of a reduction is there. `is_used`: by some rank; otherwise things are as they were. */
shoal_status ddp_land(struct ddp_param *param, bool is_used);

void ddp_remove_hooks(struct ddp_param *param);
/* Frees what it has. */
void ddp_param_free(struct ddp_param *param);

/* Gradients of a backward that failed: somebody must have removed them or written to them. */
shoal_status ddp_check_left(struct ddp *ddp);

#endif
