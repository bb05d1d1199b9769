/* SPDX-License-Identifier: MIT */
/* The history of a leaf: a tensor that requires a gradient and was not made by a recorded op. */
#ifndef AUTOGRAD_LEAF_H
#define AUTOGRAD_LEAF_H

#include <stdint.h>

#include "autograd/node.h"

struct leaf_visit; /* walk.c: what a running backward pass knows of a leaf */

struct leaf {
    struct history history;          /* first: found from the tensor's pointer */
    shoal_tensor *gradient;          /* one reference; a view without history; NULL if there is none */
    struct hook_list gradient_hooks; /* get the sum of one backward pass before it is added */
    struct hook_list accumulated_hooks;
    struct leaf_visit *visits; /* one per running backward pass that leads to it */
    uint64_t number;           /* no other leaf has it: a tensor that is frozen and thawed has a new leaf */
    uint64_t n_failures;       /* backward passes that led to it and failed before they reached it */
    /* The number of the last backward pass that added to its gradient; 0 if there is none. */
    uint64_t last_backward;
};

/* NULL if the tensor is not a leaf that requires a gradient. */
static inline struct leaf *leaf_of(const shoal_tensor *tensor)
{
    return history_is_leaf(tensor) ? (struct leaf *)history_of(tensor) : NULL;
}

/* For the library's own bookkeeping: what shoal_requires_grad and shoal_grad say of a tensor that is alive, or NULL.
   Those two tell a capture, besides, that the program has asked and may decide by the answer. */
static inline bool leaf_requires_grad(const shoal_tensor *tensor)
{
    return tensor && tensor->history;
}

static inline shoal_tensor *leaf_gradient(const shoal_tensor *tensor)
{
    const struct leaf *leaf = tensor ? leaf_of(tensor) : NULL;
    return leaf ? leaf->gradient : NULL;
}

/* Makes a tensor without history a leaf. */
shoal_status leaf_create(shoal_tensor *tensor);

/* Keeps `gradient` (its storage, not the tensor) as the gradient; NULL removes it. */
shoal_status leaf_keep_gradient(struct leaf *leaf, shoal_tensor *gradient);

/* Restores an earlier value of leaf->gradient, the tensor itself (NULL if there was none), and takes over the
   reference. If the tensor is no longer a leaf, only drops the reference. */
void leaf_put_back_gradient(shoal_tensor *tensor, shoal_tensor *gradient);

/* Makes a tensor over the same storage that is not recorded; gives the caller one reference. */
shoal_status leaf_detach(shoal_tensor *tensor, shoal_tensor **detached_out);

#endif
