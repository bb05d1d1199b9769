/* SPDX-License-Identifier: MIT */
/*
 * Moves nodes that joining a bucket leaves in the wrong place, if its nodes are placed together. The results of a
 * bucket stand where its last input is read, but users of the result of an earlier member may stand before that. Such
 * users are moved behind the results, with everything that depends on them by arguments or through memory, as one block
 * in their old order. A sort (bucket_order.c) would move the same nodes, but spread them: each behind the node that it
 * waited for last.
 */
#ifndef GRAPH_PASSES_BUCKET_LATE_H
#define GRAPH_PASSES_BUCKET_LATE_H

#include "graph/passes/bucket.h"

/* Which entries of a storage (graph/analysis/accesses.h) a walk has visited already. */
struct late_memory {
    uint32_t stamp;       /* of that walk */
    uint32_t all_from;    /* all entries from this one on have been visited */
    uint32_t writes_from; /* all entries from this one on that write have been visited */
};

struct late {
    const struct buckets *buckets;
    uint32_t *stamps;    /* by id: the last walk that visited the node */
    uint32_t *places;    /* by id: the position behind which a node now is; if it was not moved, its own */
    uint32_t *bucket_of; /* by id of a new node: the first member of its bucket, index + 1 */
    uint32_t *bucket_stamps;    /* by first member */
    struct late_memory *memory; /* by storage */
    uint32_t stamp;
    struct shoal_node **nodes;
    size_t n_nodes;
    size_t capacity;
    struct shoal_node *barrier; /* nodes that must be moved behind this one are late */
    uint32_t bound;             /* nodes behind this position are behind the barrier already */
};

/* Makes room for nodes with ids below n_ids. */
shoal_status late_begin(struct late *late, const struct buckets *buckets, uint32_t n_ids);
void late_end(struct late *late);

/* Notes that all nodes with ids from `first` on belong to this bucket and were put behind `anchor`. */
void late_place_new(struct late *late, const struct shoal_graph *graph, uint32_t first,
                    const struct shoal_node *anchor, uint32_t bucket);

/* Moves the users of these members' results, and nodes that depend on them, behind `barrier`. That is a new node, and
   not the last of the list. */
shoal_status late_move(struct late *late, struct bucket_member *const *members, size_t n_members,
                       struct shoal_node *barrier);

#endif
