/* SPDX-License-Identifier: MIT */
/*
 * Finds out which starts a wait ends, and which memory is in flight between the two. Effects, lint and lowering use it,
 * so they agree.
 *
 * As in tensor/storage.h, memory is a span of bytes of a storage. A wait for a tensor ends all starts that write or
 * give a byte of it, whichever node gave the tensor. A tensor without elements waits for starts on tensors without
 * elements of its storage. A start is one work, so its first wait ends all its reads. Its writes end value by value:
 * lint demands a wait for each.
 *
 * Where a view lies may depend on the rank. A caller that knows the rank tells where (`here`). Others either assume
 * that it lies where the meta tensor is, or are told of all starts that a wait may end on some rank (`is_any_rank`).
 *
 * flight_begin walks over the graph and collects what starts use. Then the caller walks along the list, and calls one
 * of the functions below for each node. Together this takes n log n time in the number of spans of a storage, if none
 * depends on the rank.
 */
#ifndef GRAPH_ANALYSIS_FLIGHT_H
#define GRAPH_ANALYSIS_FLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/map.h"
#include "graph/ir/graph.h"
#include "graph/analysis/span_tree.h"
#include "graph/analysis/touches.h"

/* A span that a start reads or writes. */
struct flight_use {
    const struct shoal_node *start;
    struct span span;
    uint32_t storage;
    /* Neighbours in the list flight_storage.placed or .loose: index + 1; 0 if there is none. */
    uint32_t prev;
    uint32_t next;
    bool is_write;
    bool is_open;     /* it is in flight */
    bool is_anywhere; /* its place depends on the rank */
};

struct flight_storage {
    struct span_tree tree;
    uint32_t placed; /* list of the open writes that are in the tree: index + 1 of the first */
    uint32_t loose;  /* list of the others, which have no bytes or is_anywhere */
};

struct flight_state {
    /* The start whose result, or a view of it, the node gives; NULL if there is none. */
    const struct shoal_node *giver;
    uint32_t first_use; /* of a start: its uses follow each other */
    bool has_ended;     /* of a start: a result of it has been waited for */
    bool is_anywhere;
};

struct flight {
    const struct shoal_graph *graph;
    bool has_reads;   /* reads of starts are in the trees, too */
    bool is_any_rank; /* the caller wants all starts that a wait may end on some rank */
    /* Returns a value of a node on this rank. It is NULL if values are those of the graph. */
    const shoal_tensor *(*here)(void *context, const struct shoal_node *node, size_t value);
    void *context;

    /* All zero at first. */
    const struct shoal_node *first_start; /* NULL if there is none */
    struct map numbers;                   /* of storages that starts use */
    struct flight_use *uses;              /* in the order of starts */
    size_t n_uses;
    size_t capacity;
    struct flight_storage *storages;
    uint64_t *points;
    struct span_node *nodes;
    struct flight_state *states;   /* by id */
    const struct shoal_node *node; /* the start whose uses are being collected */
    size_t n_open;
};

/* Begins a walk. The caller fills in the fields up to `context` before. Call flight_free also after a failure. */
shoal_status flight_begin(struct flight *flight);
void flight_free(struct flight *flight);

/* The walk: call one of these for every node from the first start on, in program order. */
void flight_start(struct flight *flight, const struct shoal_node *start);
void flight_pass(struct flight *flight, const struct shoal_node *node); /* neither a start nor a wait */
/* Calls `end` for each start that ends with this wait. If is_certain is false, it ends only on some ranks. */
typedef shoal_status (*flight_end)(void *context, const struct shoal_node *start, bool is_certain);
shoal_status flight_wait(struct flight *flight, const struct shoal_node *wait, flight_end end, void *context);

/* Returns the storage that a value of the node lies in; NULL if no start uses it. */
const struct flight_storage *flight_storage_of(const struct flight *flight, const struct shoal_node *node,
                                               const shoal_tensor *tensor);

static inline bool flight_is_start(const struct shoal_node *node)
{
    return (node_flags(node) & SHOAL_OP_COLLECTIVE) != 0;
}

#endif
