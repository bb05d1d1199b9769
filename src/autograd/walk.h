/* SPDX-License-Identifier: MIT */
/* One walk over the record, from roots to leaves: the steps of a backward pass, in this order. */
#ifndef AUTOGRAD_WALK_H
#define AUTOGRAD_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "autograd/backward.h"

struct node_visit;
struct leaf_visit;

/* Begins with zeros, except for the request, which must outlive the walk. */
struct walk {
    const struct backward_request *request;
    uint64_t number;           /* backward_number() */
    struct node_visit **order; /* newest first; NULL once visited */
    size_t n_order;
    size_t order_capacity;
    struct node_visit **heap; /* found and not yet in order: the newest is on top */
    size_t n_heap;
    size_t heap_capacity;
    struct leaf_visit *leaves; /* not yet complete */
    uint64_t oldest_captured;  /* while a step is captured: no node before this one is walked */
};

/* Finds all nodes and leaves. On failure nothing has changed; walk_end is still needed. */
shoal_status walk_collect(struct walk *walk);

/* Sets the gradient of a root. Call it in a scope. */
shoal_status walk_seed(struct walk *walk, size_t root, shoal_tensor *gradient);

shoal_status walk_visit(struct walk *walk);

/* Frees the walk. `consumes`: nodes that were not visited also count as used. */
void walk_end(struct walk *walk, bool consumes);

#endif
