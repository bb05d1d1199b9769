/* SPDX-License-Identifier: MIT */
/*
 * Gradients that ranks average one by one, and the buckets in which they can go together.
 *
 *     gradient -> division by a number -> all_reduce -> wait -> output | copy_ into a gradient that is there
 *     gradient -> all_reduce of avg    -> wait -> output | copy_
 *
 * All blocks of a bucket have the same key: start op, reduce op, factor, group, dtype and divisor. A bucket is closed
 * when it is large enough. It is closed early where a larger bucket would be wrong:
 *   - before a block that depends on the result of the bucket's first block or of a later one. A bucket with both would
 *     wait for itself, or two buckets would wait for each other.
 *   - before a block that comes when a gradient of the bucket has been overwritten already: the joined start reads all
 *     gradients where the last one is read.
 *   - before an op with side effects, because no bucket may reach over one.
 *
 * Buckets are joined in program order of their last blocks. That order needs no further check: a gradient is never
 * overwritten before its own start, so a node that overwrites a gradient of one bucket stands behind the last reader of
 * this bucket and of every bucket that is joined earlier.
 */
#ifndef GRAPH_PASSES_DDP_BLOCKS_H
#define GRAPH_PASSES_DDP_BLOCKS_H

#include "graph/analysis/accesses.h"
#include "graph/ir/graph.h"

struct ddp_block {
    struct shoal_node *start;
    struct shoal_node *wait;
    struct shoal_node *user;     /* the output, or a copy_ */
    struct shoal_node *division; /* NULL: none */
    struct shoal_node *gradient; /* what is divided, or reduced */
    const shoal_tensor *value;   /* of the gradient; all values of the block have its dtype and shape */
    struct shoal_node *reader;   /* the node that reads the gradient: the division or the start */
    size_t bytes;
    uint32_t limit;       /* the position at which the gradient is overwritten */
    uint32_t next;        /* the next block of its bucket: index + 1; 0: it is the last */
    uint32_t first;       /* the first block of its bucket: index */
    uint32_t same_reader; /* another block with the same reader: index + 1; 0: none */
    uint32_t bucket_need; /* of the first block of a bucket: the newest block that it depends on, index + 1 */
    /* The new nodes that a pass has made for wait and reader; NULL: the block is not joined. */
    struct shoal_node *result;
    struct shoal_node *new_reader;
};

struct ddp_bucket {
    uint32_t first; /* index of its first block */
    uint32_t last;  /* index of its last block */
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
    uint32_t *readers; /* by id of a reader: its newest block, index + 1; 0: none */
};

/* Finds blocks and buckets. Without an all_reduce in the graph the result is all zero. */
shoal_status ddp_blocks_find(const struct shoal_graph *graph, double bucket_size_mb,
                             struct ddp_blocks *blocks_out);
void ddp_blocks_free(struct ddp_blocks *blocks);

#endif
