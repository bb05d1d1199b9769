/* SPDX-License-Identifier: MIT */
/*
 * A sequence of values. It can add an amount to a range, find the largest value, and move one item to another place,
 * each in log n time on average. Items are numbered from 0, and keep their numbers when they move.
 *
 * It is a treap. The priorities are hashes of the item numbers, so the same calls give the same tree.
 */
#ifndef GRAPH_ANALYSIS_RANGE_TREE_H
#define GRAPH_ANALYSIS_RANGE_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/status.h"

#define RANGE_TREE_NONE UINT32_MAX

struct range_item {
    uint32_t parent;
    uint32_t left;
    uint32_t right;
    uint32_t count; /* items in this subtree */
    uint64_t priority;
    int64_t value;   /* without what is pending in nodes above */
    int64_t largest; /* of this subtree, without what is pending in nodes above */
    int64_t pending; /* to be added to the two subtrees */
};

struct range_tree {
    struct range_item *items;
    uint32_t root;
};

/* Makes a tree of n_items zeros, in the order of their numbers. */
shoal_status range_tree_create(struct range_tree *tree, uint32_t n_items);
void range_tree_free(struct range_tree *tree);

/* Returns how many items are before the item. */
uint32_t range_tree_rank(const struct range_tree *tree, uint32_t item);
int64_t range_tree_value(const struct range_tree *tree, uint32_t item);
int64_t range_tree_largest(const struct range_tree *tree);

/* Returns the first item, or the last one, whose value is larger than the limit; RANGE_TREE_NONE if there is none. */
uint32_t range_tree_find_larger(struct range_tree *tree, int64_t limit, bool is_first);

/* Adds an amount to all items from `from` to `to`, both included. `to` must not be before `from`. */
void range_tree_add(struct range_tree *tree, uint32_t from, uint32_t to, int64_t amount);

/* Moves an item directly before `where`, and sets its value. */
void range_tree_move(struct range_tree *tree, uint32_t item, uint32_t where, int64_t value);

#endif
