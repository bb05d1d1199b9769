/* SPDX-License-Identifier: MIT */
/*
 * The record of ops. A node is one recorded call: its inputs (and where their gradients go), its outputs, and what the
 * gradient function needs. A tensor points through its history to the node that made it. Nodes never point to result
 * tensors, only to older nodes, leaves and storages, so there are no cycles, whatever is changed in place later.
 *
 *     tensor --history--> node --edge--> older node ... --edge--> leaf tensor --history--> leaf (leaf.h)
 *
 * A node is one block of memory with a reference count: the history of each result, each edge, and a running backward
 * pass hold one reference.
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
struct node_visit; /* walk.c: what a running backward pass knows of a node */

/* First member of both kinds of history: a leaf's (leaf.h) and a result's (below). */
struct history {
    struct tensor_history base;
    bool is_leaf;
};

/* An input. At most one of `node` and `leaf` is set; neither: it needs no gradient. */
struct node_input {
    struct saved_tensor saved;
    bool is_present;    /* false for an absent "tensor?" */
    struct node *node;  /* one reference: the node that made the tensor, */
    size_t output;      /* and which of its outputs the tensor is */
    shoal_tensor *leaf; /* one reference */
};

/* An output. The result tensor points to the history. */
struct node_output {
    struct history history; /* first: found from the tensor's pointer */
    struct node *node;      /* the node this is part of; not counted here but by the tensor */
    struct hook_list hooks; /* on the gradient of this output */
    struct saved_tensor saved;
    uint64_t version; /* of the storage, when the result was recorded */
    bool is_recorded; /* a tensor points here: it is floating, and not one of the arguments */
};

struct node_kind {
    const struct op_tape *tape; /* records calls with the results */
    const char *(*name)(const struct node *node);
    /* Fills in input_gradients, which has one entry per input, all NULL. Runs in a scope with gradients off. */
    shoal_status (*backward)(struct node *node, const bool *needs_gradient, shoal_tensor **gradients,
                             shoal_tensor **input_gradients);
    /* Frees what only `backward` needs, besides saved tensors. Called once. It is NULL if there is nothing to free. */
    void (*release)(struct node *node);
};

struct node {
    const struct node_kind *kind;
    _Atomic uint32_t references;
    bool is_consumed;          /* a backward pass has used and freed it */
    uint64_t sequence;         /* place in the record: newer is larger */
    struct node_visit *visits; /* one per running backward pass that has it in its list */
    struct node *next_dying;   /* node.c */
    size_t n_inputs;
    size_t n_outputs;
    struct node_input *inputs;
    struct node_output *outputs;
};

/*
 * Makes a zeroed node with one reference. `node_bytes` is the size of the kind's own struct, whose first member is the
 * node; *extra_out points to `extra_bytes` more in the same block. Returns NULL if memory runs out.
 */
struct node *node_create(const struct node_kind *kind, size_t node_bytes, size_t n_inputs, size_t n_outputs,
                         size_t extra_bytes, void **extra_out);
struct node *node_ref(struct node *node);

/* Frees all nodes that become unreachable, without recursion. */
void node_unref(struct node *node);

/* Frees what was saved, the edges and the hooks: no backward pass can go through the node any more. */
void node_consume(struct node *node);

/* Notes shape and dtype of an input, and where its gradient goes if it has a history. */
void node_set_input(struct node *node, size_t index, shoal_tensor *tensor);

/* The gradient of that input is not needed after all. */
void node_drop_edge(struct node *node, size_t index);

/* Notes shape and dtype of an output. */
void node_set_output(struct node *node, size_t index, const shoal_tensor *tensor);

/* Gives the node its place in the record, newer than all before. */
void node_number(struct node *node);

/* All nodes numbered from now on have at least this number. */
uint64_t node_next_number(void);

/* Makes `tensor` output `index` of a node that has a number: replaces its history. Cannot fail. */
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

/* The output of a node that the tensor is; NULL for leaves and for tensors that are not recorded. */
static inline struct node_output *history_output(const shoal_tensor *tensor)
{
    struct history *history = history_of(tensor);
    return history && !history->is_leaf ? (struct node_output *)history : NULL;
}

/*
 * SHOAL_ERR_STATE if the history of the tensor is out of date: its storage was changed in place, and the change was
 * recorded for another tensor over the same storage. The caller adds the name of the tensor to the text.
 */
shoal_status history_check_current(const shoal_tensor *tensor);

#endif
