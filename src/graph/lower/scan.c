/* SPDX-License-Identifier: MIT */
/*
 * Collects what has to be known before the first step is made: the places of nodes, the storages and their users, and
 * the values of nodes on this rank.
 *
 * If an argument depends on the rank, a view may lie elsewhere on each rank; the graph has the values of the first
 * rank. The op's meta function is called again for such views, and for views of them. Shapes and storages stay the
 * same.
 */
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/ir/boxing.h"
#include "graph/lower/lower.h"
#include "graph/ir/run_groups.h"
#include "graph/ir/twins.h"
#include "op/dispatch.h"
#include "op/op.h"
#include "tensor/scope.h"

/* Groups ----------------------------------------------------------------------------------------------- */

static shoal_status copy_group(struct shoal_lowering *lowering, const struct graph_group *row,
                               struct plan_group *group)
{
    const int *list;
    TRY(run_group_list(row, lowering->target->rank, lowering->target->n_ranks, &list));
    int *ranks = arena_alloc(&lowering->plan->arena, row->size, sizeof *ranks);
    const char *name = arena_string(&lowering->plan->arena, row->name);
    if (!ranks || !name) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *group = (struct plan_group){.name = name, .ranks = ranks, .size = row->size};
    for (size_t i = 0; i < row->size; i++) {
        ranks[i] = list[i];
        group->rank = list[i] == lowering->target->rank ? (int)i : group->rank;
    }
    return SHOAL_OK;
}

static shoal_status scan_groups(struct shoal_lowering *lowering)
{
    struct shoal_plan *plan = lowering->plan;
    size_t n_groups = 0;
    for (const struct graph_group *row = lowering->graph->groups; row; row = row->next) {
        n_groups++;
    }
    plan->groups = arena_alloc(&plan->arena, n_groups + 1, sizeof *plan->groups);
    lowering->groups = arena_alloc(&lowering->scratch, n_groups + 1, sizeof *lowering->groups);
    if (!plan->groups || !lowering->groups) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (const struct graph_group *row = lowering->graph->groups; row; row = row->next) {
        TRY(copy_group(lowering, row, &plan->groups[plan->n_groups]));
        lowering->groups[plan->n_groups++] = row;
    }
    return SHOAL_OK;
}

uint32_t lower_group(const struct shoal_lowering *lowering, const struct shoal_node *node)
{
    for (size_t i = 0; i < node->n_args; i++) {
        if (node->args[i].kind == SHOAL_ARG_GROUP) {
            return (uint32_t)graph_find_group(lowering->graph, node->args[i].as.string)->number;
        }
    }
    return PLAN_NONE;
}

/* What nodes give here ---------------------------------------------------------------------------------- */

const shoal_tensor *lower_here(const struct shoal_lowering *lowering, const struct shoal_node *node,
                               size_t index)
{
    shoal_tensor *const *here = lowering->nodes[node->id].here;
    return here ? here[index] : node->values[index];
}

static shoal_status box_one(void *context, const struct shoal_node *node, shoal_tensor **tensor_out)
{
    const struct shoal_lowering *lowering = context;
    shoal_tensor *const *here = lowering->nodes[node->id].here;
    /* Twins of constants are there since the graph was built: nothing of the graph changes. */
    return twins_tensor((struct shoal_graph *)(uintptr_t)lowering->graph, here ? here[0] : node->values[0],
                        tensor_out);
}

static shoal_tensor *const *box_list(void *context, const struct shoal_node *node)
{
    const struct shoal_lowering *lowering = context;
    shoal_tensor *const *here = lowering->nodes[node->id].here;
    return here ? here : node->values;
}

static struct shoal_group *box_group_of(void *context, const struct graph_group *row)
{
    (void)context;
    return row->stand_in;
}

static int64_t box_rank(void *context, const struct graph_group *row)
{
    const struct shoal_lowering *lowering = context;
    return lowering->plan->groups[row->number].rank;
}

void lower_box_meta(struct shoal_lowering *lowering, struct boxing *boxing_out)
{
    *boxing_out = (struct boxing){.graph = lowering->graph,
                                  .context = lowering,
                                  .one = box_one,
                                  .list = box_list,
                                  .group = box_group_of,
                                  .rank = box_rank};
}

/* Infers the values of a node on this rank. The caller opens a scope for it. */
static shoal_status infer_here(struct shoal_lowering *lowering, const struct shoal_node *node,
                               shoal_tensor **here)
{
    struct boxing boxing;
    shoal_value values[OP_MAX_PARAMS] = {{.kind = SHOAL_VALUE_NONE}};
    shoal_value result = {.kind = SHOAL_VALUE_NONE};
    lower_box_meta(lowering, &boxing);
    TRY(boxing_box(&boxing, node->op, node->args, node->n_args, values));
    TRY(op_infer(node->op, values, node->n_args, &result));
    bool is_list = result.kind == SHOAL_VALUE_TENSORS;
    if ((is_list ? result.count : 1) != node->n_values) {
        return error_set(SHOAL_ERR_INVALID, "%s returns another number of tensors here than in the graph",
                         node->op->name);
    }
    for (size_t i = 0; i < node->n_values; i++) {
        shoal_tensor *value = is_list ? result.as.tensors[i] : result.as.tensor;
        const struct layout *a = &value->layout;
        const struct layout *b = &node->values[i]->layout;
        if (value->dtype != node->values[i]->dtype ||
            !layout_is_same_shape(a->n_dims, a->shape, b->n_dims, b->shape)) {
            return error_set(SHOAL_ERR_INVALID,
                             "tensor %zu of %s has another shape or dtype here than in the graph", i,
                             node->op->name);
        }
        /* A new tensor has the graph's own value; only views differ. */
        bool is_view = value->storage == node->values[i]->storage;
        here[i] = shoal_tensor_ref(is_view ? value : node->values[i]);
    }
    return SHOAL_OK;
}

static bool has_rank(const shoal_arg *arg)
{
    if (arg->kind == SHOAL_ARG_LIST) {
        for (size_t i = 0; i < arg->as.list.count; i++) {
            if (has_rank(&arg->as.list.items[i])) {
                return true;
            }
        }
    }
    return arg->kind == SHOAL_ARG_RANK;
}

static bool depends_on_rank(const struct shoal_lowering *lowering, const struct shoal_node *node)
{
    for (size_t i = 0; i < node->n_args; i++) {
        if (has_rank(&node->args[i])) {
            return true;
        }
    }
    for (size_t i = 0; i < node->n_inputs; i++) {
        if (lowering->nodes[node->inputs[i]->id].here) {
            return true;
        }
    }
    return false;
}

void lower_forget_here(struct shoal_lowering *lowering, const struct shoal_node *node)
{
    shoal_tensor **here = lowering->nodes[node->id].here;
    for (size_t i = 0; here && i < node->n_values; i++) {
        shoal_tensor_unref(here[i]);
    }
    lowering->nodes[node->id].here = NULL;
}

static shoal_status scan_here(struct shoal_lowering *lowering, const struct shoal_node *node)
{
    if (!node->op || !depends_on_rank(lowering, node)) {
        return SHOAL_OK;
    }
    shoal_tensor **here = arena_alloc(&lowering->scratch, node->n_values + 1, sizeof *here);
    if (!here) {
        return SHOAL_ERR_NO_MEMORY;
    }
    lowering->nodes[node->id].here = here;
    TRY(shoal_scope_begin());
    scope_current()->has_grad = false;
    scope_current()->tracer = NULL;
    shoal_status status = infer_here(lowering, node, here);
    if (status != SHOAL_OK) {
        (void)scope_fail(error_prefix(status, "%%%s", node->name));
    }
    TRY(shoal_scope_end());
    for (size_t i = 0; i < node->n_values; i++) {
        if (here[i] != node->values[i]) {
            return SHOAL_OK;
        }
    }
    lower_forget_here(lowering, node);
    return SHOAL_OK;
}

/* Storages ---------------------------------------------------------------------------------------------- */

uint32_t lower_number(const struct shoal_lowering *lowering, const shoal_tensor *value)
{
    size_t number = 0;
    (void)map_get(&lowering->numbers, map_key(twins_find(lowering->graph, value->storage)), &number);
    return (uint32_t)number;
}

/* Numbers storages in the order in which they first appear in the list, as effects_build does. */
static shoal_status scan_values(struct shoal_lowering *lowering, struct shoal_node *node, uint32_t place)
{
    for (size_t i = 0; i < node->n_values; i++) {
        size_t number;
        const struct storage *storage = twins_find(lowering->graph, node->values[i]->storage);
        size_t element_bytes = shoal_dtype_bytes(node->values[i]->dtype);
        if (map_get(&lowering->numbers, map_key(storage), &number)) {
            size_t *widest = &lowering->storages[number].element_bytes;
            *widest = element_bytes > *widest ? element_bytes : *widest;
            continue;
        }
        number = lowering->numbers.count;
        TRY(map_add(&lowering->numbers, map_key(storage), number));
        lowering->storages[number] = (struct lowered_storage){.creator = node,
                                                              .bytes = storage->bytes,
                                                              .element_bytes = element_bytes,
                                                              .created_at = place,
                                                              .last_use = place,
                                                              .last_user = place,
                                                              .inside = PLAN_NONE,
                                                              .buffer = PLAN_NONE};
    }
    return SHOAL_OK;
}

static void scan_uses(struct shoal_lowering *lowering, const struct shoal_node *node, uint32_t place)
{
    const struct effects_access *accesses;
    size_t n_accesses;
    bool is_wait = (node_flags(node) & SHOAL_OP_WAIT) != 0;
    effects_accesses(lowering->effects, node, &accesses, &n_accesses);
    for (size_t i = 0; i < n_accesses; i++) {
        struct lowered_storage *storage = &lowering->storages[accesses[i].storage];
        if (node->op && node->op->index == OP_copy_ && accesses[i].writes) {
            storage->last_copy = place;
            storage->before_copy = storage->last_user;
        }
        storage->last_user = place;
        if (is_wait) {
            continue;
        }
        storage->last_use = place;
        storage->is_output |= node->kind == SHOAL_NODE_OUTPUT;
        if (storage->creator != node) {
            storage->n_uses++;
            storage->n_writes += accesses[i].writes ? 1 : 0;
            storage->last_write = accesses[i].writes ? place : storage->last_write;
        }
    }
}

/* Lists the places of writes, storage by storage. n_writes has their numbers already. */
static shoal_status scan_writes(struct shoal_lowering *lowering)
{
    uint32_t n_writes = 0;
    for (size_t i = 0; i < lowering->n_storages; i++) {
        lowering->storages[i].write_places = n_writes;
        n_writes += lowering->storages[i].n_writes;
        lowering->storages[i].n_writes = 0;
    }
    lowering->write_places = mem_alloc_zeroed((size_t)n_writes + 1, sizeof *lowering->write_places);
    if (!lowering->write_places) {
        return SHOAL_ERR_NO_MEMORY;
    }
    GRAPH_EACH(lowering->graph, node)
    {
        const struct effects_access *accesses;
        size_t n_accesses;
        effects_accesses(lowering->effects, node, &accesses, &n_accesses);
        for (size_t i = 0; i < n_accesses && (node_flags(node) & SHOAL_OP_WAIT) == 0; i++) {
            struct lowered_storage *storage = &lowering->storages[accesses[i].storage];
            if (storage->creator != node && accesses[i].writes) {
                lowering->write_places[storage->write_places + storage->n_writes++] =
                    lowering->nodes[node->id].place;
            }
        }
    }
    return SHOAL_OK;
}

bool lower_is_written(const struct shoal_lowering *lowering, uint32_t number, uint32_t after, uint32_t until)
{
    const struct lowered_storage *storage = &lowering->storages[number];
    const uint32_t *places = lowering->write_places + storage->write_places;
    uint32_t low = 0; /* the first one behind `after` is in [low, high] */
    uint32_t high = storage->n_writes;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (places[middle] <= after) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < storage->n_writes && places[low] <= until;
}

const struct shoal_node *lower_strip_views(const struct shoal_lowering *lowering,
                                           const struct shoal_node *node, size_t *value)
{
    while (node->kind == SHOAL_NODE_CALL && lower_is_view(lowering, node) &&
           node->args[0].kind == SHOAL_ARG_NODE && !node->args[0].as.node->is_list && node->n_values == 1) {
        const struct shoal_node *base = node->args[0].as.node;
        const shoal_tensor *from = lower_here(lowering, base, 0);
        const shoal_tensor *to = lower_here(lowering, node, 0);
        if (from->dtype != to->dtype || from->count != to->count || !from->is_contiguous ||
            !to->is_contiguous || from->layout.offset != to->layout.offset) {
            break;
        }
        node = base;
        *value = 0;
    }
    return node;
}

bool lower_is_view(const struct shoal_lowering *lowering, const struct shoal_node *node)
{
    const uint32_t effects = SHOAL_OP_IN_PLACE | SHOAL_OP_COLLECTIVE | SHOAL_OP_WAIT | SHOAL_OP_SIDE_EFFECT;
    uint32_t flags = node_flags(node);
    if ((flags & SHOAL_OP_VIEW) != 0) {
        return true;
    }
    /* As in effects_build, an op also counts as a view if it has no effects and all its storages existed before. */
    for (size_t i = 0; i < node->n_values; i++) {
        if (lowering->storages[lower_number(lowering, node->values[i])].creator == node) {
            return false;
        }
    }
    return (flags & effects) == 0 && node->n_values > 0;
}

static const shoal_tensor *tensor_here(void *context, const struct shoal_node *node, size_t index)
{
    return lower_here(context, node, index);
}

shoal_status lower_scan(struct shoal_lowering *lowering)
{
    const struct shoal_graph *graph = lowering->graph;
    uint32_t place = 0;
    TRY(effects_build(graph, &lowering->effects));
    lowering->n_storages = effects_n_storages(lowering->effects);
    lowering->nodes = mem_alloc_zeroed(graph->n_ids + 1, sizeof *lowering->nodes);
    lowering->storages = mem_alloc_zeroed(lowering->n_storages + 1, sizeof *lowering->storages);
    if (!lowering->nodes || !lowering->storages) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(scan_groups(lowering));
    GRAPH_EACH(graph, node)
    {
        lowering->nodes[node->id].place = place;
        TRY(scan_values(lowering, node, place));
        scan_uses(lowering, node, place);
        TRY(scan_here(lowering, node));
        place++;
    }
    TRY(scan_writes(lowering));
    lowering->flight = (struct flight){.graph = graph, .here = tensor_here, .context = lowering};
    return flight_begin(&lowering->flight);
}
