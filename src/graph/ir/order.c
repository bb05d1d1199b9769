/* SPDX-License-Identifier: MIT */
/*
 * Gives nodes numbers, 0 < order < 2^63, which grow along the list. A new node gets the middle between the numbers of
 * its neighbours; at the ends of the list, a number at some distance from the last one. If there is no number between
 * the neighbours, the nodes in a range of numbers around them are spread evenly over it. It is the smallest range of
 * 2^i numbers, aligned to 2^i, with fewer than (2 / 1.4)^i nodes. With this limit an insertion changes O(log n) numbers
 * on average, wherever nodes are inserted ("Two simplified algorithms for maintaining order in a list", Bender and
 * others, 2002), and 2^32 nodes fit.
 *
 * Nodes are often inserted one after the other at one place. A node directly after, or before, the one that was
 * inserted last therefore gets a number close to it and not the middle, so that more nodes fit.
 */
#include "graph/ir/order.h"

#define ORDER_BITS 63
#define ORDER_END (UINT64_C(1) << ORDER_BITS)
#define ORDER_MIDDLE (UINT64_C(1) << (ORDER_BITS - 1))
#define ORDER_GAP (UINT64_C(1) << 31)
#define ORDER_STEPS 512 /* a node next to the one inserted last takes this fraction of the gap */

/* A run of neighbours. */
struct run {
    struct shoal_node *first;
    struct shoal_node *last;
    uint64_t n_nodes;
};

/* Takes in the neighbours whose numbers are in [begin, end). */
static void extend(struct run *run, uint64_t begin, uint64_t end)
{
    while (run->first->prev && run->first->prev->order >= begin) {
        run->first = run->first->prev;
        run->n_nodes++;
    }
    while (run->last->next && run->last->next->order < end) {
        run->last = run->last->next;
        run->n_nodes++;
    }
}

/* Spreads the nodes around `node`, so that there is at least one free number between any two of them. */
static void spread_around(struct shoal_node *node)
{
    struct run run = {.first = node, .last = node, .n_nodes = 1};
    double limit = 1;
    for (int i = 1; i <= ORDER_BITS; i++) {
        uint64_t width = UINT64_C(1) << i;
        uint64_t begin = node->order & ~(width - 1);
        limit *= 2 / 1.4;
        extend(&run, begin, begin + width);
        uint64_t distance = width / run.n_nodes;
        if ((distance >= 4 && (double)run.n_nodes < limit) || i == ORDER_BITS) {
            uint64_t order = begin + distance / 2;
            for (struct shoal_node *member = run.first; run.n_nodes > 0; member = member->next) {
                member->order = order;
                order += distance;
                run.n_nodes--;
            }
            return;
        }
    }
}

/* Finds a number between those of the neighbours. Returns false if there is none. */
static bool find_number(const struct shoal_graph *graph, const struct shoal_node *prev,
                        const struct shoal_node *next, uint64_t *order_out)
{
    uint64_t low = prev ? prev->order : 0;
    uint64_t high = next ? next->order : ORDER_END;
    if (high - low < 2) {
        return false;
    }
    uint64_t step = (high - low) / ORDER_STEPS;
    *order_out = low + (high - low) / 2;
    if (prev && prev == graph->last_placed && step > 0) {
        *order_out = low + step;
    } else if (next && next == graph->last_placed && step > 0) {
        *order_out = high - step;
    }
    if (!prev && !next) {
        *order_out = ORDER_MIDDLE;
    } else if (!next && high - low > 2 * ORDER_GAP) {
        *order_out = low + ORDER_GAP;
    } else if (!prev && high - low > 2 * ORDER_GAP) {
        *order_out = high - ORDER_GAP;
    }
    return true;
}

void order_insert_after(struct shoal_graph *graph, struct shoal_node *node, struct shoal_node *prev)
{
    struct shoal_node *next = prev ? prev->next : graph->first;
    while (!find_number(graph, prev, next, &node->order)) {
        spread_around(prev ? prev : next);
    }
    node->prev = prev;
    node->next = next;
    *(prev ? &prev->next : &graph->first) = node;
    *(next ? &next->prev : &graph->last) = node;
    graph->last_placed = node;
    graph->n_nodes++;
}

void order_remove(struct shoal_node *node)
{
    struct shoal_graph *graph = node->graph;
    *(node->prev ? &node->prev->next : &graph->first) = node->next;
    *(node->next ? &node->next->prev : &graph->last) = node->prev;
    graph->n_nodes--;
}
