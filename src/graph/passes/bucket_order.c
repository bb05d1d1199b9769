/* SPDX-License-Identifier: MIT */
/*
 * Sorts the graph when the nodes of all buckets have been made and the old nodes are still there: a node that packs an
 * input stays behind the old start that read it, and an old wait stays behind the result that will replace it. So the
 * users of the wait, and nodes that overwrite the input, end up behind the new nodes as well.
 */
#include "base/mem.h"
#include "base/try.h"
#include "graph/ir/sort.h"
#include "graph/passes/bucket.h"

/* The nodes that each node must stay behind, besides its inputs. */
struct order {
    const struct buckets *buckets;
    struct shoal_node **nodes;
    size_t n_nodes;
    size_t capacity;
    size_t *first; /* by id: index in `nodes` */
    size_t *count;
    struct shoal_node **last_starts; /* by group: the last start so far that is not joined */
    /* By id of a new node: the first member whose `packed` it is. */
    const struct bucket_member **packs;
};

static size_t get_predecessors(void *context, const struct shoal_node *node,
                               struct shoal_node *const **nodes_out)
{
    const struct order *order = context;
    *nodes_out = order->count[node->id] > 0 ? order->nodes + order->first[node->id] : NULL;
    return order->count[node->id];
}

static shoal_status add_predecessor(struct order *order, const struct shoal_node *node,
                                    struct shoal_node *before)
{
    TRY(mem_grow((void **)&order->nodes, &order->capacity, order->n_nodes + 1, sizeof(order->nodes[0])));
    order->nodes[order->n_nodes++] = before;
    order->count[node->id]++;
    return SHOAL_OK;
}

static const struct bucket_member *find_joined(const struct buckets *buckets, const struct shoal_node *node)
{
    uint32_t index = node->id < buckets->n_ids ? buckets->member_of[node->id] : 0;
    return index > 0 && buckets->members[index - 1].result ? &buckets->members[index - 1] : NULL;
}

static shoal_status order_effects(struct order *order, const struct shoal_node *node)
{
    struct shoal_node *const *before;
    size_t n_before;
    effects_before_strict(order->buckets->accesses.effects, node, &before, &n_before);
    for (size_t i = 0; i < n_before; i++) {
        TRY(add_predecessor(order, node, before[i]));
    }
    return SHOAL_OK;
}

/* A new node stays behind each old reader whose input it reads. If it is a coalesced start, these are those of all
   members of its bucket. */
static shoal_status order_packed(struct order *order, const struct shoal_node *node)
{
    const struct bucket_member *members = order->buckets->members;
    const struct bucket_member *member = order->packs[node->id];
    while (member && member->packed == node) {
        TRY(add_predecessor(order, node, member->reader));
        member = member->next > 0 ? &members[member->next - 1] : NULL;
    }
    return SHOAL_OK;
}

static shoal_status order_node(struct order *order, struct shoal_node *node)
{
    const struct buckets *buckets = order->buckets;
    const struct bucket_member *joined = find_joined(buckets, node);
    order->first[node->id] = order->n_nodes;
    if (node->id >= buckets->n_ids) {
        return order_packed(order, node);
    }
    TRY(order_effects(order, node));
    if (joined && node == joined->wait) {
        return add_predecessor(order, node, joined->result);
    }
    if (!joined && bucket_is_start(node)) {
        struct shoal_node **last = &order->last_starts[buckets_group_of(buckets, node)];
        if (*last) {
            TRY(add_predecessor(order, node, *last));
        }
        *last = node;
    }
    return SHOAL_OK;
}

static shoal_status order_all(struct order *order, struct shoal_graph *graph)
{
    const struct buckets *buckets = order->buckets;
    for (size_t i = 0; i < buckets->n_members; i++) {
        const struct bucket_member *member = &buckets->members[i];
        if (member->result && !order->packs[member->packed->id]) {
            order->packs[member->packed->id] = member;
        }
    }
    for (struct shoal_node *node = graph->first; node; node = node->next) {
        TRY(order_node(order, node));
    }
    return graph_sort_with(graph, get_predecessors, order);
}

shoal_status buckets_bring_into_order(const struct buckets *buckets)
{
    struct shoal_graph *graph = buckets->graph;
    struct order order = {.buckets = buckets};
    size_t n_ids = (size_t)graph->n_ids + 1;
    order.first = mem_alloc_zeroed(n_ids, sizeof(order.first[0]));
    order.count = mem_alloc_zeroed(n_ids, sizeof(order.count[0]));
    order.packs = mem_alloc_zeroed(n_ids, sizeof(order.packs[0]));
    order.last_starts = mem_alloc_zeroed(buckets->n_groups + 1, sizeof(order.last_starts[0]));
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    if (order.first && order.count && order.packs && order.last_starts) {
        status = order_all(&order, graph);
    }
    mem_free(order.nodes);
    mem_free(order.first);
    mem_free(order.count);
    mem_free(order.packs);
    mem_free(order.last_starts);
    return status;
}
