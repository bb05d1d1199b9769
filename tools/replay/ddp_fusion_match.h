/* SPDX-License-Identifier: MIT */
/*
 * Finds which node of one graph is which node of another: those that make the same call on the same values.
 *
 * The identity of a node consists of what it calls, its arguments, the identities of the nodes among them, the last
 * write to the memory that it reads, and the shapes of its results. Placeholders are distinguished by name, and equal
 * nodes of one graph by their order. The names of other nodes do not count. The order of nodes counts only where a
 * write stands between them.
 */
#ifndef REPLAY_DDP_FUSION_MATCH_H
#define REPLAY_DDP_FUSION_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ddp_fusion_say.h"
#include "shoal/graph.h"

enum fusion_role {
    FUSION_ROLE_NONE, /* a placeholder, a view, the output */
    FUSION_ROLE_START,
    FUSION_ROLE_WAIT,
    FUSION_ROLE_COMPUTE /* everything else that is called: it moves data, or works with it */
};

struct fusion_entry {
    shoal_node *node;
    enum fusion_role role;
    size_t identity;
    size_t *memory; /* for each value, which memory it is in; counted from 0 in each graph */
    size_t partner; /* the node's place in the other graph */
};

/* A graph's nodes in order. */
struct fusion_side {
    const shoal_graph *graph;
    struct fusion_entry *entries;
    size_t n_entries;
    size_t *by_node; /* places, sorted by the node's address: for finding, never for an order */
};

struct fusion_match {
    struct fusion_side ours;
    struct fusion_side theirs;
};

/* FUSION_WRONG, naming the first nodes that have no partner, when there are some. */
enum fusion_verdict fusion_match(struct fusion_case *self, const shoal_graph *ours, const shoal_graph *theirs,
                                 struct fusion_match *match_out);

/* The place of a node. */
size_t fusion_side_find(const struct fusion_side *side, const shoal_node *node);

#endif
