/* SPDX-License-Identifier: MIT */
/*
 * Joins buckets. The new start is put after the last start of its bucket, and the new wait before the first wait, or
 * after the new start if that comes later. Then the graph is sorted while the old nodes are still there: a node that
 * packs an input stays behind the old start that read it, and an old wait stays behind the result that will replace it.
 * So the users of the wait, and nodes that overwrite the input, end up behind the new nodes as well. Then all users get
 * their new arguments, each user once, and the old starts and waits are erased.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "collective/rows.h"
#include "graph/passes/bucket.h"
#include "graph/ir/replace_many.h"
#include "graph/ir/sort.h"

/* Nodes -------------------------------------------------------------------------------------------------- */

static shoal_status make_nodes(struct bucket_join *join, const struct bucket_kind *kind)
{
    struct shoal_graph *graph = join->graph;
    struct shoal_node *last = join->members[0].start;
    struct shoal_node *first_wait = join->members[0].wait;
    struct shoal_node *start;
    struct shoal_node *wait;
    for (size_t i = 1; i < join->n_members; i++) {
        last = join->members[i].start->order > last->order ? join->members[i].start : last;
    }
    TRY(shoal_graph_set_insert_point(graph, (shoal_insert_point){.node = last->next}));
    TRY(kind->pack(join, &start));
    if (first_wait->order > start->order) {
        TRY(shoal_graph_set_insert_point(graph, (shoal_insert_point){.node = first_wait}));
    }
    if (kind->is_coalesced) {
        return kind->unpack(join, start);
    }
    shoal_arg arg = bucket_node_arg(start);
    TRY(bucket_call(join, OP_wait_tensor, &arg, 1, &wait));
    return kind->unpack(join, wait);
}

/* Returns the FSDP unit that all members belong to; NULL: none. */
static const char *find_unit(const struct bucket_join *join)
{
    const char *unit = join->members[0].start->unit;
    for (size_t i = 1; unit && i < join->n_members; i++) {
        const char *other = join->members[i].start->unit;
        unit = other && strcmp(unit, other) == 0 ? unit : NULL;
    }
    return unit;
}

static shoal_status make_all_nodes(struct buckets *buckets, const struct bucket_kind *kind)
{
    struct bucket_join join = {.graph = buckets->graph};
    join.args = mem_alloc_zeroed(buckets->n_members, sizeof(join.args[0]));
    shoal_status status = join.args ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    for (size_t i = 0; i < buckets->n_buckets && status == SHOAL_OK; i++) {
        join.members = &buckets->members[buckets->buckets[i].first];
        join.n_members = buckets->buckets[i].n_members;
        join.group_size = graph_find_group(join.graph, join.members[0].key.group)->size;
        join.graph->unit = find_unit(&join);
        status = make_nodes(&join, kind);
        join.graph->unit = NULL;
    }
    mem_free(join.args);
    return status;
}

/* Order -------------------------------------------------------------------------------------------------- */

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
    return index > 0 && buckets->members[index - 1].bucket > 0 ? &buckets->members[index - 1] : NULL;
}

static shoal_status order_effects(struct order *order, const struct shoal_node *node)
{
    struct shoal_node *const *before;
    size_t n_before;
    effects_before_strict(order->buckets->effects, node, &before, &n_before);
    for (size_t i = 0; i < n_before; i++) {
        TRY(add_predecessor(order, node, before[i]));
    }
    return SHOAL_OK;
}

/* A new node stays behind each old start whose input it reads. If it is a coalesced start, these are all members of its
   bucket, which follow each other. */
static shoal_status order_packed(struct order *order, const struct shoal_node *node)
{
    const struct buckets *buckets = order->buckets;
    const struct bucket_member *end = buckets->members + buckets->n_members;
    const struct bucket_member *member = order->packs[node->id];
    while (member && member < end && member->packed == node) {
        TRY(add_predecessor(order, node, member->start));
        member++;
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
        if (member->bucket > 0 && !order->packs[member->packed->id]) {
            order->packs[member->packed->id] = member;
        }
    }
    for (struct shoal_node *node = graph->first; node; node = node->next) {
        TRY(order_node(order, node));
    }
    return graph_sort_with(graph, get_predecessors, order);
}

static shoal_status bring_into_order(const struct buckets *buckets)
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

/* Users -------------------------------------------------------------------------------------------------- */

static shoal_status replace_waits(const struct buckets *buckets)
{
    struct replace_pair *pairs = mem_alloc_zeroed(buckets->n_members, sizeof(pairs[0]));
    size_t n_pairs = 0;
    if (!pairs) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < buckets->n_members; i++) {
        const struct bucket_member *member = &buckets->members[i];
        if (member->bucket > 0) {
            pairs[n_pairs++] = (struct replace_pair){.old = member->wait, .other = member->result};
        }
    }
    shoal_status status = graph_replace_many(buckets->graph, pairs, n_pairs);
    mem_free(pairs);
    return status;
}

static shoal_status erase_joined(const struct buckets *buckets)
{
    for (size_t i = 0; i < buckets->n_members; i++) {
        if (buckets->members[i].bucket > 0) {
            TRY(shoal_node_erase(buckets->members[i].wait));
            TRY(shoal_node_erase(buckets->members[i].start));
        }
    }
    return SHOAL_OK;
}

/* All ---------------------------------------------------------------------------------------------------- */

shoal_status buckets_merge(struct buckets *buckets, const struct bucket_kind *kind)
{
    struct shoal_graph *graph = buckets->graph;
    shoal_insert_point point = graph->point;
    shoal_status status = make_all_nodes(buckets, kind);
    graph->point = point; /* no node has been erased since */
    TRY(status);
    TRY(bring_into_order(buckets));
    TRY(replace_waits(buckets));
    return erase_joined(buckets);
}

shoal_status bucket_pass_limited(struct shoal_graph *graph, const struct bucket_kind *kind,
                                 const bool *is_accepted, const struct bucket_limit *limit,
                                 shoal_pass_report *report)
{
    struct buckets buckets;
    collective_hand_in();
    TRY(buckets_find(graph, kind, is_accepted, limit, &buckets));
    shoal_status status = SHOAL_OK;
    if (buckets.n_buckets > 0) {
        report->n_buckets = buckets.n_buckets;
        status = buckets_merge(&buckets, kind);
    }
    buckets_free(&buckets);
    return status;
}

static double get_same(void *context, size_t index)
{
    (void)index;
    return *(const double *)context;
}

shoal_status bucket_pass(struct shoal_graph *graph, const struct bucket_kind *kind, const bool *is_accepted,
                         const shoal_pass_options *options, shoal_pass_report *report)
{
    double mb = options->comm_bucket_mb > 0 ? options->comm_bucket_mb : BUCKET_DEFAULT_MB;
    struct bucket_limit limit = {.mb = get_same, .context = &mb};
    return bucket_pass_limited(graph, kind, is_accepted, &limit, report);
}
