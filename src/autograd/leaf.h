/* SPDX-License-Identifier: MIT */
/* The history of a leaf: a tensor that no recorded operation made and whose gradient is wanted. */
#ifndef AUTOGRAD_LEAF_H
#define AUTOGRAD_LEAF_H

#include <stdint.h>

#include "autograd/node.h"

struct leaf_visit; /* backward.c: what a running backward knows of a leaf */

struct leaf {
    struct history history;          /* first: found from the tensor's pointer */
    shoal_tensor *gradient;          /* one reference; a view without history; NULL: none */
    struct hook_list gradient_hooks; /* see the sum of one backward before it is added */
    struct hook_list accumulated_hooks;
    struct leaf_visit *visits; /* one per running backward that leads to it */
    uint64_t n_failures;       /* backwards that led to it and failed before they got there */
};

/* NULL when the tensor is no leaf that wants a gradient. */
static inline struct leaf *leaf_of(const shoal_tensor *tensor)
{
    return history_is_leaf(tensor) ? (struct leaf *)history_of(tensor) : NULL;
}

/* Makes a tensor without history a leaf. */
shoal_status leaf_create(shoal_tensor *tensor);

/* Keeps `gradient` (its storage, not the tensor) as the gradient; NULL removes it. */
shoal_status leaf_keep_gradient(struct leaf *leaf, shoal_tensor *gradient);

/* Puts back what leaf->gradient was before, the same tensor, whose reference is taken over; NULL: none. Not for a
   leaf that is no leaf any more: then the reference is given up. */
void leaf_put_back_gradient(shoal_tensor *tensor, shoal_tensor *gradient);

/* A tensor over the same storage that is outside the record; one reference, the caller's. */
shoal_status leaf_detach(shoal_tensor *tensor, shoal_tensor **detached_out);

#endif
