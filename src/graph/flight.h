/* SPDX-License-Identifier: MIT */
/*
 * Which communication is in flight where, between starts and waits. The one answer to "which starts does this wait end", for
 * effects, lint and lowering.
 *
 * As in tensor/storage.h, memory is a span of bytes of a storage. A wait ends the starts that write or give a byte of what it waits
 * for, whoever gave that; a tensor without elements waits for what was started on tensors without elements of its storage. One work
 * carries all that a start does: the first wait ends what it reads. What it writes is given free value by value, each by a wait
 * of its own, as lint demands.
 *
 * Where a view lies may depend on the rank. Who knows the rank says where (`here`). Others either take it to lie where meta
 * tensors have it, or are told of all starts that the wait may end (`is_any_rank`).
 *
 * One walk collects what starts use, the caller's own follows it along the list: n log n in the number of spans of a storage, if
 * none depends on the rank.
 */
#ifndef GRAPH_FLIGHT_H
#define GRAPH_FLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graph/graph.h"
#include "graph/span_tree.h"
#include "graph/storage_map.h"
#include "graph/touches.h"

/* What a start uses. */
struct flight_use {
    const struct shoal_node *start;
    struct span span;
    uint32_t storage;
    uint32_t
        prev; /* among the open writes of the storage that are in its tree, or those that are not: index plus 1 */
    uint32_t next;
    bool is_write;
    bool is_open;
    bool is_anywhere; /* its place depends on the rank */
};

struct flight_storage {
    struct span_tree tree;
    uint32_t placed; /* open writes in the tree: index plus 1 of the first */
    uint32_t loose;  /* open writes that are not: without bytes, or anywhere */
};

struct flight_state {
    const struct shoal_node
        *giver; /* the start whose result the node gives, itself or as a view; NULL: none, or several */
    uint32_t first_use; /* of a start; its uses follow each other */
    bool has_ended;     /* of a start: something it gives has been waited for */
    bool is_anywhere;
};

struct flight {
    const struct shoal_graph *graph;
    bool has_reads; /* what starts read is in the trees */
    bool is_any_rank;
    /* What a node gives on this rank; NULL: what the graph says. */
    const shoal_tensor *(*here)(void *context, const struct shoal_node *node, size_t value);
    void *context;

    /* All zero at first. */
    const struct shoal_node *first_start; /* NULL: none */
    struct storage_map numbers;           /* of storages that starts use */
    struct flight_use *uses;              /* in the order of starts */
    size_t n_uses;
    size_t capacity;
    struct flight_storage *storages;
    uint64_t *points;
    struct span_node *nodes;
    struct flight_state *states;   /* by id */
    const struct shoal_node *node; /* while uses are collected: whose turn it is */
    size_t n_open;
};

/* The fields in front are the caller's. On failure there is something to free as well. */
shoal_status flight_begin(struct flight *flight);
void flight_free(struct flight *flight);

/* The walk: for every node from the first start on, in program order, one of these. */
void flight_start(struct flight *flight, const struct shoal_node *start);
void flight_pass(struct flight *flight, const struct shoal_node *node); /* neither a start nor a wait */
/* `end` is told of each start that ends with this wait; or, if it is not certain, may end with it. */
typedef shoal_status (*flight_end)(void *context, const struct shoal_node *start, bool is_certain);
shoal_status flight_wait(struct flight *flight, const struct shoal_node *wait, flight_end end, void *context);

/* The storage that the tensor, a value of the node, lies in; NULL: no start uses it. */
const struct flight_storage *flight_storage_of(const struct flight *flight, const struct shoal_node *node,
                                               const shoal_tensor *tensor);

static inline bool flight_is_start(const struct shoal_node *node)
{
    return (node_flags(node) & SHOAL_OP_COLLECTIVE) != 0;
}

#endif
