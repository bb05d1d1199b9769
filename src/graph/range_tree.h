/* SPDX-License-Identifier: MIT */
/*
 * A sequence of numbers of which a range can be raised, the largest can be asked for, and one can be moved to another
 * place, each in log n on average. Items are numbered from 0 and keep their numbers when they move.
 *
 * It is a tree with random priorities, which come from the numbers of items: the same calls give the same tree.
 */
#ifndef GRAPH_RANGE_TREE_H
#define GRAPH_RANGE_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/status.h"

#define RANGE_TREE_NONE UINT32_MAX

struct range_item {
    uint32_t parent;
    uint32_t left;
    uint32_t right;
    uint32_t count; /* of the items from here down */
    uint64_t priority;
    int64_t value;   /* without what is pending above */
    int64_t largest; /* of the items from here down, likewise */
    int64_t pending; /* for the items below */
};

struct range_tree {
    struct range_item *items;
    uint32_t root;
};

/* `n_items` zeros in the order of their numbers. */
shoal_status range_tree_create(struct range_tree *tree, uint32_t n_items);
void range_tree_free(struct range_tree *tree);

/* How many items stand before it. */
uint32_t range_tree_rank(const struct range_tree *tree, uint32_t item);
int64_t range_tree_value(const struct range_tree *tree, uint32_t item);
int64_t range_tree_largest(const struct range_tree *tree);

/* The first item, or the last one, that is larger than the limit; RANGE_TREE_NONE: none is. */
uint32_t range_tree_find_larger(struct range_tree *tree, int64_t limit, bool is_first);

/* From one item to another one that does not stand before it. */
void range_tree_add(struct range_tree *tree, uint32_t from, uint32_t to, int64_t amount);

/* Puts the item directly before another one, with that value. */
void range_tree_move(struct range_tree *tree, uint32_t item, uint32_t where, int64_t value);

#endif
