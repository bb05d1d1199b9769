/* SPDX-License-Identifier: MIT */
/*
 * Which gradients are reduced together, as one bucket. Pure arithmetic: all ranks plan from the same numbers and get
 * the same plan.
 *
 *     items in order   a:f32 b:bf16 c:f32 d:f32 e:bf16          limits 2 items, then 3
 *     buckets          [a c] f32   [b e] bf16   [d] f32         sorted by where their last item comes
 *
 * A bucket has one dtype and is one range of the block; each item starts at a multiple of DDP_ALIGNMENT. The size of
 * the block does not depend on the order.
 */
#ifndef PARALLEL_DDP_PLAN_H
#define PARALLEL_DDP_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/dtype.h"
#include "shoal/status.h"

#define DDP_ALIGNMENT 64

struct ddp_item {
    shoal_dtype dtype;
    size_t bytes;
};

/* Where an item lies. */
struct ddp_place {
    size_t bucket;
    size_t offset; /* in the block */
};

struct ddp_range {
    shoal_dtype dtype;
    size_t offset; /* in the block */
    size_t bytes;  /* with the padding after each item */
    size_t first;  /* its items are members[first ...], in order */
    size_t n_items;
};

struct ddp_plan {
    size_t n_items;
    size_t n_buckets;
    size_t bytes;              /* of the block */
    struct ddp_place *places;  /* one for each item; the memory of all three lists begins here */
    struct ddp_range *buckets; /* in the order in which they are sent; room for n_items */
    size_t *members;           /* the items of the first bucket, of the second, and so on */
};

/* Closes a bucket when it has `bytes`, the first one of each dtype at `first_bytes`. The sum of sizes must
   fit size_t. */
shoal_status ddp_plan_create(const struct ddp_item *items, const size_t *order, size_t n_items,
                             size_t first_bytes, size_t bytes, struct ddp_plan *plan_out);
void ddp_plan_free(struct ddp_plan *plan);
bool ddp_plan_is_same(const struct ddp_plan *a, const struct ddp_plan *b);

size_t ddp_round_up(size_t bytes);

#endif
