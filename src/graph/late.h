/* SPDX-License-Identifier: MIT */
/*
 * Moves nodes that joining a bucket leaves in the wrong place. The results of a bucket stand where its last gradient
 * is read, but users of the result of an earlier block may stand before that. Such users are moved behind the
 * results, with everything that depends on them by arguments or through memory, in their old order.
 */
#ifndef GRAPH_LATE_H
#define GRAPH_LATE_H

#include "graph/ddp_blocks.h"

/* How far the late nodes that touch a storage have been followed, in the walk of that stamp. */
struct late_memory {
    uint32_t stamp;
    uint32_t all_from;    /* all entries from here on */
    uint32_t writes_from; /* all entries from here on that write */
};

struct late {
    const struct ddp_blocks *blocks;
    uint32_t *stamps; /* by id: of the walk that came here last */
    uint32_t
        *places; /* by id: the position behind which a node stands; of nodes that did not move, their own */
    uint32_t *buckets;          /* by id of a new node: the first block of its bucket, index + 1 */
    uint32_t *bucket_stamps;    /* by first block */
    struct late_memory *memory; /* by storage */
    uint32_t stamp;
    struct shoal_node **nodes;
    size_t n_nodes;
    size_t capacity;
    struct shoal_node *barrier; /* what stands before this is late */
    uint32_t bound;             /* nodes behind this position stand behind the barrier */
};

/* Room for nodes with ids below n_ids. */
shoal_status late_begin(struct late *late, const struct ddp_blocks *blocks, uint32_t n_ids);
void late_end(struct late *late);

/* New nodes from id `first` to the graph's newest are of this bucket, and stand where their anchor does. */
void late_place_new(struct late *late, const struct shoal_graph *graph, uint32_t first,
                    const struct shoal_node *anchor, uint32_t bucket);

/* Moves the users of these blocks, and what depends on them, behind `barrier`, a new node that has a node behind it. */
shoal_status late_move(struct late *late, struct ddp_block *const *blocks, size_t n_blocks,
                       struct shoal_node *barrier);

#endif
