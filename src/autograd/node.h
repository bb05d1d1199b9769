/* SPDX-License-Identifier: MIT */
/*
 * The record of operations. A node is one recorded step: what came in (and where gradients flow on to), what
 * came out, and what the gradient function needs. Tensors point at the node that made them through their
 * history; nodes never point at result tensors, only at older nodes, at leaves and at storages, so there are
 * no cycles whatever is later done in place.
 *
 *     tensor --history--> node --edge--> older node ... --edge--> leaf tensor --history--> leaf (leaf.h)
 *
 * A node is one block of memory and is counted: each result tensor's history, each edge and a running
 * backward hold one reference.
 */
#ifndef AUTOGRAD_NODE_H
#define AUTOGRAD_NODE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "autograd/hook_list.h"
#include "autograd/saved.h"
#include "tensor/tensor.h"

struct node;
struct op_tape;    /* op/tape.h */
struct node_visit; /* backward.c: what a running backward knows of a node */

/* First member of both kinds of history: a leaf's (leaf.h) and a result's (below). */
struct history {
    struct tensor_history base;
    bool is_leaf;
};

/* One tensor that came in. At most one of `node` and `leaf` is set; neither: no gradient is wanted. */
struct node_input {
    struct saved_tensor saved;
    bool is_present;    /* false: an absent "tensor?" */
    struct node *node;  /* one reference: the step that made the tensor, */
    size_t output;      /* and which of its outputs it was */
    shoal_tensor *leaf; /* one reference */
};

/* One tensor that came out. The history is what a result tensor points at. */
struct node_output {
    struct history history; /* first: found from the tensor's pointer */
    struct node *node;      /* the node this is part of; not counted here but by the tensor */
    struct hook_list hooks; /* on the gradient of this output */
    struct saved_tensor saved;
    uint64_t version; /* of the storage, when the result was recorded */
    bool is_recorded; /* a tensor points here: it is floating, and not an argument handed through */
};

struct node_kind {
    const struct op_tape *tape; /* records calls with the results */
    const char *(*name)(const struct node *node);
    /* Fills input_gradients, one per input and NULL before; runs in a scope with gradients off. */
    shoal_status (*backward)(struct node *node, const bool *needs_gradient, shoal_tensor **gradients,
                             shoal_tensor **input_gradients);
    /* Gives back what only `backward` needs, beyond saved tensors. Called once. NULL: nothing. */
    void (*release)(struct node *node);
};

struct node {
    const struct node_kind *kind;
    _Atomic uint32_t references;
    bool is_consumed;          /* a backward used it up */
    uint64_t sequence;         /* place in the record: newer is larger */
    struct node_visit *visits; /* one per running backward that has it in its list */
    struct node *next_dying;   /* node.c */
    size_t n_inputs;
    size_t n_outputs;
    struct node_input *inputs;
    struct node_output *outputs;
};

/*
 * A zeroed node with one reference; `node_bytes` is the size of the kind's own struct, whose first member is
 * the node, and *extra_out points at `extra_bytes` more in the same block. NULL without memory.
 */
struct node *node_create(const struct node_kind *kind, size_t node_bytes, size_t n_inputs, size_t n_outputs,
                         size_t extra_bytes, void **extra_out);
struct node *node_ref(struct node *node);

/* Destroys as many nodes as become unreachable, without recursion: records are deep. */
void node_unref(struct node *node);

/* Frees what was saved, the edges and the hooks: no backward can go through the node any more. */
void node_consume(struct node *node);

/* The tensor that comes in: how it looks, and who gets its gradient if it has a history. */
void node_set_input(struct node *node, size_t index, shoal_tensor *tensor);

/* Nobody gets the gradient of that input. */
void node_drop_edge(struct node *node, size_t index);

/* How an output looks. */
void node_set_output(struct node *node, size_t index, const shoal_tensor *tensor);

/* Gives the node its place in the record, newer than all before. */
void node_number(struct node *node);

/* All nodes numbered from now on have at least this number. */
uint64_t node_next_number(void);

/* Makes `tensor` output `index` of the node: replaces its history. Numbered nodes only. Cannot fail. */
void node_attach(struct node *node, size_t index, shoal_tensor *tensor);

/* Histories -------------------------------------------------------------------------------------------- */

static inline struct history *history_of(const shoal_tensor *tensor)
{
    return (struct history *)tensor->history;
}

static inline bool history_is_leaf(const shoal_tensor *tensor)
{
    struct history *history = history_of(tensor);
    return history && history->is_leaf;
}

/* The output that a tensor is of some node; NULL for leaves and for tensors outside the record. */
static inline struct node_output *history_output(const shoal_tensor *tensor)
{
    struct history *history = history_of(tensor);
    return history && !history->is_leaf ? (struct node_output *)history : NULL;
}

/*
 * SHOAL_ERR_STATE when the tensor has a history that an in-place change of its storage has overtaken: the
 * change was recorded for another tensor over the same storage. Callers name the tensor.
 */
shoal_status history_check_current(const shoal_tensor *tensor);

#endif
