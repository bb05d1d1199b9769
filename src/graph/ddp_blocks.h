/* SPDX-License-Identifier: MIT */
/*
 * Gradients that ranks average one by one, and the buckets in which they can go together.
 *
 *     gradient -> division by a number -> all_reduce -> wait -> output | copy_ into a gradient that is there
 *     gradient -> all_reduce of avg    -> wait -> output | copy_
 *
 * What a bucket joins has one key: start op, reduce op, factor, group, dtype, device and divisor. Each key fills buckets of its
 * own, closed by size. A bucket is closed early where joining would change what is computed: before a block that needs a result
 * of a block since the bucket's first, so that no bucket waits for itself, nor two for each other; and before one that would make
 * the bucket read a gradient after somebody has overwritten it; and before an op with side effects. No gradient is overwritten before its start. So whoever overwrites
 * one of a bucket stands behind the readers of all buckets whose last block comes no later, and these can be joined in that order
 * without a look at it: a reader that one of them moves stays before.
 */
#ifndef GRAPH_DDP_BLOCKS_H
#define GRAPH_DDP_BLOCKS_H

#include "graph/accesses.h"
#include "graph/graph.h"

struct ddp_block {
    struct shoal_node *start;
    struct shoal_node *wait;
    struct shoal_node *user;     /* the output, or a copy_ */
    struct shoal_node *division; /* NULL: none */
    struct shoal_node *gradient; /* what is divided, or reduced */
    struct shoal_node *reader;   /* of the gradient: the division or the start */
    size_t bytes;
    uint32_t limit;       /* from this position on the gradient is another one */
    uint32_t next;        /* in its bucket: index + 1; 0: the last */
    uint32_t first;       /* of its bucket */
    uint32_t same_reader; /* another block with that reader: index + 1; 0: none */
    uint32_t
        bucket_need; /* of a bucket's first block: the newest block that the bucket depends on, index + 1 */
    /* What a pass has put in their place; NULL: nothing. */
    struct shoal_node *result;
    struct shoal_node *new_reader;
};

struct ddp_bucket {
    uint32_t first; /* index of a block */
    uint32_t last;
    uint32_t n_blocks;
};

struct ddp_blocks {
    struct accesses accesses;
    struct ddp_block *blocks; /* in program order of their starts */
    size_t n_blocks;
    size_t block_capacity;
    struct ddp_bucket *buckets; /* in program order of their last blocks */
    size_t n_buckets;
    size_t bucket_capacity;
    uint32_t
        *readers; /* by id, of nodes that were there: the newest block with that reader, index + 1; 0: none */
};

/* Without candidates there is nothing in it, and nothing to free. */
shoal_status ddp_blocks_find(const struct shoal_graph *graph, double bucket_size_mb,
                             struct ddp_blocks *blocks_out);
void ddp_blocks_free(struct ddp_blocks *blocks);

#endif
