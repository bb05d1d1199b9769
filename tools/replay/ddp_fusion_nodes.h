/* SPDX-License-Identifier: MIT */
/*
 * A graph as the file has it: a list of nodes, whose form was checked. Whether the nodes are valid calls is checked
 * when they are built (ddp_fusion_build.h).
 */
#ifndef REPLAY_DDP_FUSION_NODES_H
#define REPLAY_DDP_FUSION_NODES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "ddp_fusion_say.h"

enum fusion_kind {
    FUSION_PLACEHOLDER,
    FUSION_CALL,
    FUSION_OTHER, /* get_attr, call_method, call_module: never ours, always opaque */
    FUSION_OUTPUT
};

struct fusion_node {
    const char *name;
    enum fusion_kind kind;
    const char *op; /* the file's word for the kind */
    const char *target;
    const json_t *args;
    const json_t *kwargs;
    const json_t *meta;
    size_t *inputs; /* numbers of nodes, repeated where they are named repeatedly */
    size_t n_inputs;
};

struct fusion_nodes {
    const char *what; /* "before" or "after" */
    struct fusion_node *nodes;
    size_t n_nodes;
    json_t *numbers; /* by name; freed by fusion_nodes_free */
};

/* Strings and JSON stay the file's. fusion_nodes_free also after a failure. */
enum fusion_verdict fusion_nodes_read(struct fusion_case *self, const char *what, const json_t *list,
                                      struct fusion_nodes *nodes_out);
void fusion_nodes_free(struct fusion_nodes *nodes);

/* {"node": name}: the name, otherwise NULL. */
const char *fusion_node_reference(const json_t *value);
/* Its number, which fusion_nodes_read has found to exist. */
size_t fusion_node_number(const struct fusion_nodes *nodes, const char *name);

/*
 * Checks that each node stands after its inputs. With `may_reverse_blocks`, nodes that only look at the result of a
 * wait (`split`, `getitem`, `reshape` in the file) may stand before it; they are moved behind it.
 *
 * PyTorch's schedule_comm_wait moves a wait, and the nodes that look at its result, one node at a time, each before the
 * one moved last. They end in reverse order, which a later pass sorts. Ours keeps their order. Nothing else may be out
 * of order.
 */
enum fusion_verdict fusion_nodes_order(struct fusion_case *self, struct fusion_nodes *nodes,
                                       bool may_reverse_blocks, enum fusion_verdict verdict_if_not);

#endif
