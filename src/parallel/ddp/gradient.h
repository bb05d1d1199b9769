/* SPDX-License-Identifier: MIT */
/*
 * One gradient on its way into the block, as its leaf holds it:
 *
 *     not ours --take in--> local --all-reduce--> reduced --more arrives: set aside--> local ...
 *
 * A gradient is "ours" if it is the tensor that DDP made: over its place in the block, or over other memory while
 * there is no block (block.h). It has a storage of its own, whose version tells whether the program wrote to it.
 *
 * The leaf adds each new gradient to the one it has. A gradient that is reduced already must not be reduced again,
 * so it is moved out of the way first: it is set aside, its place is filled with -0, and it is added to the result
 * of the next reduction. -0 plus any number is that number, bit by bit.
 */
#ifndef PARALLEL_DDP_GRADIENT_H
#define PARALLEL_DDP_GRADIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/address.h"
#include "shoal/autograd.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

struct ddp;

struct ddp_param {
    struct ddp *ddp;
    shoal_tensor *tensor; /* one reference */
    char *path;
    shoal_tensor *gradient;     /* ours, one reference; NULL if no eager backward pass has begun yet */
    shoal_hook *on_gradient;    /* runs before a gradient is added to the leaf's */
    shoal_hook *on_accumulated; /* runs after it was added */
    uint64_t leaf;              /* number of the leaf that has the hooks; 0 if there is none */
    uint64_t n_failures;        /* the leaf's n_failures when we last looked */

    bool is_reduced;      /* ours, and the same on all ranks */
    bool is_local;        /* ours, and never sent */
    bool is_left;         /* a backward pass that failed has left it */
    struct address aside; /* memory for a gradient that is set aside; none if it was never needed */
    bool has_aside;       /* a gradient is set aside */
    uint64_t version;     /* of the gradient's storage, when we last wrote to it */

    size_t n_expected; /* how many gradients it gets in a backward pass: more than one if it is recomputed */
    /* In the running backward pass: */
    size_t n_arrived; /* how many gradients it got */
    size_t stamp;     /* n_arrivals of the module when the last one arrived; 0 if none has */
    bool has_part;    /* this rank has a gradient to send; if not, its place holds zeros */
};

/* Whether the leaf's gradient is ours. */
bool ddp_is_ours(const struct ddp_param *param);

/* Call before a gradient is added: sets aside a gradient that is reduced already. If the program removed or zeroed
   the gradient, drops what was set aside before. */
shoal_status ddp_make_room(struct ddp_param *param);
/* Copies `kept`, the leaf's gradient, to its place in the block, and makes our tensor over it the leaf's gradient. */
shoal_status ddp_take_in(struct ddp_param *param, shoal_tensor *kept);

/* Call at the end of a backward pass in which the parameter got no gradient: puts into its place what is to be
   reduced. */
shoal_status ddp_fill_in(struct ddp_param *param);
/* Call when the parameter leaves the module: adds what was set aside to the gradient that the leaf has. */
shoal_status ddp_add_aside(struct ddp_param *param);
/* Call when the reduction has ended. `is_used`: some rank had a gradient; if none had, the gradient is restored. */
shoal_status ddp_land(struct ddp_param *param, bool is_used);

void ddp_remove_hooks(struct ddp_param *param);
/* Frees what the struct holds. */
void ddp_param_free(struct ddp_param *param);

/* SHOAL_ERR_STATE if a parameter still has the gradient of a failed backward pass: the program must remove it
   or write zeros. */
shoal_status ddp_check_left(struct ddp *ddp);

#endif
