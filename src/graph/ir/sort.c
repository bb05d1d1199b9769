/* SPDX-License-Identifier: MIT */
/*
 * graph/ir/sort.h describes the method. The nodes that are sorted are items, numbered in the order of the list. Every item
 * that is not placed is in one chain: that of items to be visited, or that of items parked at another item. Placing an
 * item puts the chain that is parked at it before the rest.
 *
 * Predecessors are checked from the last to the first, each once, because a placed one stays placed. So a sort takes
 * time proportional to nodes and edges, times the logarithm that it takes to find an item by its node.
 *
 * At the end the order numbers (graph/ir/order.c) of these nodes are given to the nodes in their new order.
 */
#include "graph/ir/sort.h"

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/mem.h"

#define NO_ITEM SIZE_MAX

struct item {
    struct shoal_node *node;
    uint64_t order;  /* of this place in the list */
    size_t n_unseen; /* the first so many predecessors have not been found placed yet */
    size_t next;     /* in the chain that it is in */
    size_t first_parked;
    size_t last_parked;
    size_t waits_for; /* the item at which it is, or was last, parked */
    bool is_placed;
};

struct sorting {
    struct item *items;
    size_t n_items;
    size_t *placed; /* items in their new order */
    size_t n_placed;
    size_t output; /* NO_ITEM: none */
    graph_predecessors extra;
    void *context;
};

static size_t n_predecessors(const struct sorting *sorting, const struct shoal_node *node,
                             struct shoal_node *const **extra_out)
{
    *extra_out = NULL;
    size_t n_extra = sorting->extra ? sorting->extra(sorting->context, node, extra_out) : 0;
    return node->n_inputs + n_extra;
}

/* Finds the item of a node by its order, which grows along the items. NO_ITEM: the node is not sorted. */
static size_t find_item(const struct sorting *sorting, const struct shoal_node *node)
{
    size_t low = 0;
    size_t high = sorting->n_items;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (sorting->items[middle].order < node->order) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < sorting->n_items && sorting->items[low].node == node ? low : NO_ITEM;
}

/* Returns the last predecessor of an item that is sorted and not placed yet; NO_ITEM: the item can be placed. */
static size_t find_missing(const struct sorting *sorting, struct item *item)
{
    struct shoal_node *const *extra;
    size_t n_all = n_predecessors(sorting, item->node, &extra);
    size_t n_inputs = item->node->n_inputs;
    if (item->n_unseen > n_all) {
        item->n_unseen = n_all;
    }
    for (; item->n_unseen > 0; item->n_unseen--) {
        size_t index = item->n_unseen - 1;
        bool is_input = !extra || index < n_inputs;
        const struct shoal_node *node = is_input ? item->node->inputs[index] : extra[index - n_inputs];
        size_t found = find_item(sorting, node);
        if (found != NO_ITEM && !sorting->items[found].is_placed) {
            return found;
        }
    }
    return NO_ITEM;
}

static void park(struct sorting *sorting, size_t index, size_t where)
{
    struct item *item = &sorting->items[index];
    struct item *host = &sorting->items[where];
    item->next = NO_ITEM;
    item->waits_for = where;
    if (host->first_parked == NO_ITEM) {
        host->first_parked = index;
    } else {
        sorting->items[host->last_parked].next = index;
    }
    host->last_parked = index;
}

/* Places an item. Returns the chain of items to be visited, which was `pending` before. */
static size_t place(struct sorting *sorting, size_t index, size_t pending)
{
    struct item *item = &sorting->items[index];
    item->is_placed = true;
    sorting->placed[sorting->n_placed++] = index;
    if (item->first_parked == NO_ITEM) {
        return pending;
    }
    sorting->items[item->last_parked].next = pending;
    return item->first_parked;
}

static void place_all(struct sorting *sorting)
{
    size_t pending = sorting->n_items > 0 ? 0 : NO_ITEM;
    while (pending != NO_ITEM) {
        size_t index = pending;
        struct item *item = &sorting->items[index];
        pending = item->next;
        if (item->node->kind == SHOAL_NODE_OUTPUT && sorting->output == NO_ITEM) {
            sorting->output = index;
            continue;
        }
        size_t missing = find_missing(sorting, item);
        if (missing != NO_ITEM) {
            park(sorting, index, missing);
        } else {
            pending = place(sorting, index, pending);
        }
    }
    if (sorting->output != NO_ITEM) {
        struct item *item = &sorting->items[sorting->output];
        size_t missing = find_missing(sorting, item);
        if (missing != NO_ITEM) {
            item->waits_for = missing;
        } else {
            (void)place(sorting, sorting->output, NO_ITEM);
        }
    }
}

/* Sets the error when some items could not be placed. Each of them waits for another one of them, so following that
   often enough leads into a cycle. */
static shoal_status refuse_cycle(const struct sorting *sorting)
{
    size_t index = 0;
    while (sorting->items[index].is_placed) {
        index++;
    }
    for (size_t i = 0; i < sorting->n_items; i++) {
        size_t next = sorting->items[index].waits_for;
        if (sorting->items[next].is_placed) {
            break;
        }
        index = next;
    }
    const struct item *item = &sorting->items[index];
    const struct shoal_node *other = sorting->items[item->waits_for].node;
    if (sorting->items[item->waits_for].is_placed) {
        return error_set(SHOAL_ERR_INVALID, "graph_sort: node %s must come after %s, the output",
                         item->node->name, other->name);
    }
    if (other == item->node) {
        return error_set(SHOAL_ERR_INVALID, "graph_sort: node %s is in a cycle: it needs itself",
                         other->name);
    }
    return error_set(SHOAL_ERR_INVALID,
                     "graph_sort: node %s is in a cycle: it needs %s, which in the end needs it",
                     item->node->name, other->name);
}

/* Links the nodes in their new order. */
static void apply(struct sorting *sorting)
{
    struct shoal_graph *graph = sorting->items[0].node->graph;
    struct shoal_node *before = sorting->items[0].node->prev;
    struct shoal_node *behind = sorting->items[sorting->n_items - 1].node->next;
    struct shoal_node *prev = before;
    for (size_t i = 0; i < sorting->n_items; i++) {
        struct shoal_node *node = sorting->items[sorting->placed[i]].node;
        node->order = sorting->items[i].order;
        node->prev = prev;
        *(prev ? &prev->next : &graph->first) = node;
        prev = node;
    }
    prev->next = behind;
    *(behind ? &behind->prev : &graph->last) = prev;
}

static shoal_status sort_items(struct sorting *sorting)
{
    place_all(sorting);
    if (sorting->n_placed < sorting->n_items) {
        return refuse_cycle(sorting);
    }
    apply(sorting);
    return SHOAL_OK;
}

/* Sorts n_nodes nodes from `first` on. */
static shoal_status sort_nodes(struct shoal_node *first, size_t n_nodes, graph_predecessors extra,
                               void *context)
{
    struct sorting sorting = {.n_items = n_nodes, .output = NO_ITEM, .extra = extra, .context = context};
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    sorting.items = mem_alloc_zeroed(n_nodes, sizeof *sorting.items);
    sorting.placed = sorting.items ? mem_alloc_zeroed(n_nodes, sizeof *sorting.placed) : NULL;
    if (sorting.placed) {
        struct shoal_node *node = first;
        for (size_t i = 0; i < n_nodes; i++, node = node->next) {
            sorting.items[i] = (struct item){.node = node,
                                             .order = node->order,
                                             .n_unseen = SIZE_MAX,
                                             .next = i + 1 < n_nodes ? i + 1 : NO_ITEM,
                                             .first_parked = NO_ITEM,
                                             .last_parked = NO_ITEM,
                                             .waits_for = NO_ITEM};
        }
        status = sort_items(&sorting);
    }
    mem_free(sorting.placed);
    mem_free(sorting.items);
    return status;
}

shoal_status graph_sort_with(struct shoal_graph *graph, graph_predecessors extra, void *context)
{
    return graph->n_nodes > 0 ? sort_nodes(graph->first, graph->n_nodes, extra, context) : SHOAL_OK;
}

shoal_status graph_sort_region(struct shoal_node *first, struct shoal_node *last, graph_predecessors extra,
                               void *context)
{
    size_t n_nodes = 1;
    for (const struct shoal_node *node = first; node != last; n_nodes++) {
        node = node->next;
        if (!node) {
            return error_set(SHOAL_ERR_INVALID, "graph_sort: node %s is not after node %s", last->name,
                             first->name);
        }
    }
    return sort_nodes(first, n_nodes, extra, context);
}

shoal_status shoal_graph_sort(shoal_graph *graph)
{
    error_clear();
    if (!graph) {
        return error_set(SHOAL_ERR_INVALID, "graph_sort: graph is NULL");
    }
    return graph_sort_with(graph, NULL, NULL);
}
