/* SPDX-License-Identifier: MIT */
/*
 * Finds effects by one walk over the list. For each storage the walk knows the node that wrote it last and the nodes
 * that have read it since, and for each group the last start. The next node that uses the storage or the group gets
 * edges to these. The accesses of a node are collected first, one for each storage, and turned into edges afterwards,
 * so that a node that reads and writes a storage has no conflict with itself.
 */
#include "graph/analysis/effects.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/analysis/flight.h"
#include "graph/analysis/touches.h"
#include "graph/ir/twins.h"
#include "op/op.h"

/* A part of an array, by node. */
struct part_of {
    size_t first;
    size_t count;
};

/* The edges of a node. */
struct edges_of {
    size_t first;
    uint32_t count;
    bool ends_with_group; /* the last edge is there only for the order of the group */
};

struct effects {
    size_t n_ids;
    struct edges_of *edges_of; /* by node id */
    struct part_of *accesses_of;
    struct shoal_node **edges;
    size_t n_edges;
    size_t edges_capacity;
    struct effects_access *accesses;
    size_t n_accesses;
    size_t accesses_capacity;
    size_t n_storages;
};

/* A node that has read a storage since it was last written. Each storage has a list of them. */
struct reader {
    struct shoal_node *node;
    size_t next; /* index + 1; 0 for the last one */
};

struct storage_state {
    uint32_t seen_at; /* the place of the node with which it first appeared */
    struct shoal_node *last_write;
    size_t readers;       /* index + 1 of the newest; 0 if there is none */
    uint32_t accessed_at; /* the place of the node that accessed it last */
    size_t access;        /* the index of that node's access in `accesses` */
    uint32_t input_of;    /* the place of the last node that has it as an argument (mark_inputs) */
};

/* What the walk knows of a node; by id. */
struct node_state {
    uint32_t place;    /* in the list, counted from 1; 0 if the walk has not been there yet */
    uint32_t named_at; /* the place of the last node that has this one as an input or an edge to it */
    size_t values;     /* index in walk.values, where the storages of its values begin */
};

struct walk {
    const struct shoal_graph *graph;
    struct effects *effects;
    struct map numbers;             /* of storages */
    struct storage_state *storages; /* by number */
    size_t storages_capacity;
    uint32_t *values; /* numbers of storages, for each value of the nodes so far */
    size_t n_values;
    size_t values_capacity;
    struct reader *readers;
    size_t n_readers;
    size_t readers_capacity;
    struct node_state *nodes;
    struct flight flight;
    const char **groups; /* names, sorted */
    size_t n_groups;
    struct shoal_node **last_starts; /* by group, and one more for starts without a group */
    struct shoal_node *last_side_effect;
    struct shoal_node *node; /* the current node */
    uint32_t place;          /* of the current node */
};

static uint32_t flags_of(const struct shoal_node *node)
{
    return node->op ? node->op->flags : 0;
}

bool effects_is_pure(const struct shoal_node *node)
{
    if (node->kind == SHOAL_NODE_PLACEHOLDER || node->kind == SHOAL_NODE_OUTPUT) {
        return false;
    }
    return (flags_of(node) & (SHOAL_OP_IN_PLACE | SHOAL_OP_WAIT | SHOAL_OP_SIDE_EFFECT)) == 0;
}

/* Storages --------------------------------------------------------------------------------------------- */

static shoal_status number_storage(struct walk *walk, const shoal_tensor *tensor, size_t *number_out)
{
    const struct storage *storage = twins_find(walk->graph, tensor->storage);
    size_t number = walk->effects->n_storages;
    TRY(map_get_or_add(&walk->numbers, map_key(storage), number, number_out));
    if (*number_out < number) {
        return SHOAL_OK;
    }
    if (number >= UINT32_MAX - 1) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the graph has too many storages");
    }
    TRY(mem_grow((void **)&walk->storages, &walk->storages_capacity, number + 1, sizeof *walk->storages));
    walk->storages[number] = (struct storage_state){.seen_at = walk->place};
    walk->effects->n_storages++;
    return SHOAL_OK;
}

/* Gives the number of a value's storage. */
static shoal_status number_value(struct walk *walk, const struct shoal_node *node, size_t index,
                                 size_t *number_out)
{
    const struct node_state *state = &walk->nodes[node->id];
    if (state->place > 0 && node != walk->node) {
        *number_out = walk->values[state->values + index];
        return SHOAL_OK;
    }
    return number_storage(walk, node->values[index], number_out);
}

/* Gives the current node's access to a storage; if there is none, adds one with no flag set. */
static shoal_status get_access(struct walk *walk, size_t number, struct effects_access **access_out)
{
    struct effects *effects = walk->effects;
    struct storage_state *storage = &walk->storages[number];
    if (storage->accessed_at != walk->place) {
        TRY(mem_grow((void **)&effects->accesses, &effects->accesses_capacity, effects->n_accesses + 1,
                     sizeof *effects->accesses));
        effects->accesses[effects->n_accesses] = (struct effects_access){.storage = (uint32_t)number};
        storage->accessed_at = walk->place;
        storage->access = effects->n_accesses++;
    }
    *access_out = &effects->accesses[storage->access];
    return SHOAL_OK;
}

static shoal_status access_storage(struct walk *walk, size_t number, bool reads, bool writes)
{
    struct effects_access *access;
    TRY(get_access(walk, number, &access));
    access->reads |= reads;
    access->writes |= writes;
    return SHOAL_OK;
}

static shoal_status access_value(struct walk *walk, const struct shoal_node *node, size_t index, bool reads,
                                 bool writes)
{
    size_t number;
    TRY(number_value(walk, node, index, &number));
    return access_storage(walk, number, reads, writes);
}

/* Calls ------------------------------------------------------------------------------------------------ */

static shoal_status mark_inputs(struct walk *walk)
{
    for (size_t i = 0; i < walk->node->n_inputs; i++) {
        const struct shoal_node *input = walk->node->inputs[i];
        for (size_t k = 0; k < input->n_values; k++) {
            size_t number;
            TRY(number_value(walk, input, k, &number));
            walk->storages[number].input_of = walk->place;
        }
    }
    return SHOAL_OK;
}

/* Whether all values of the node are views of its inputs, or the inputs themselves, so that the dispatcher runs no
   kernel. */
static shoal_status find_views(struct walk *walk, bool *is_view_out)
{
    const struct shoal_node *node = walk->node;
    *is_view_out = (flags_of(node) & SHOAL_OP_VIEW) != 0;
    if (*is_view_out || !node->op) {
        return SHOAL_OK;
    }
    if (!node->is_alias && node->n_values > 0) {
        return SHOAL_OK; /* all are new */
    }
    TRY(mark_inputs(walk));
    *is_view_out = true;
    for (size_t i = 0; i < node->n_values && *is_view_out; i++) {
        size_t number;
        TRY(number_storage(walk, node->values[i], &number));
        *is_view_out = walk->storages[number].input_of == walk->place;
    }
    return SHOAL_OK;
}

static shoal_status access_touched(void *context, const struct touch *touch)
{
    struct walk *walk = context;
    size_t number;
    if (touch->tensor == touch->node->values[0]) {
        TRY(number_value(walk, touch->node, 0, &number));
    } else {
        TRY(number_storage(walk, touch->tensor, &number));
    }
    return access_storage(walk, number, touch->reads, touch->writes);
}

/* Notes that the wait ends the reads of a start: what the start reads may be written after the wait. */
static shoal_status end_start(void *context, const struct shoal_node *start, bool is_certain)
{
    struct walk *walk = context;
    struct part_of part = walk->effects->accesses_of[start->id];
    (void)
        is_certain; /* if it is false, a later wait ends the start for certain, and adds the same accesses */
    for (size_t i = part.first; i < part.first + part.count; i++) {
        struct effects_access access = walk->effects->accesses[i];
        /* Even if the storage was written meanwhile: that was in other bytes, or by a node that waited by itself. */
        if (access.reads) {
            TRY(access_storage(walk, access.storage, /*reads=*/true, /*writes=*/false));
        }
    }
    return SHOAL_OK;
}

/* A wait counts as a write: at this place its storages get new contents, also for views that were taken before it. */
static shoal_status access_wait(struct walk *walk)
{
    const struct shoal_node *node = walk->node;
    for (size_t i = 0; i < node->n_inputs; i++) {
        for (size_t k = 0; k < node->inputs[i]->n_values; k++) {
            TRY(access_value(walk, node->inputs[i], k, /*reads=*/true, /*writes=*/true));
        }
    }
    return flight_wait(&walk->flight, node, end_start, walk);
}

static shoal_status access_call(struct walk *walk)
{
    const uint32_t effects = SHOAL_OP_IN_PLACE | SHOAL_OP_COLLECTIVE | SHOAL_OP_WAIT | SHOAL_OP_SIDE_EFFECT;
    uint32_t flags = flags_of(walk->node);
    bool is_view;
    if ((flags & SHOAL_OP_WAIT) != 0) {
        return access_wait(walk);
    }
    if ((flags & effects) != 0) {
        return touches_visit(walk->node, access_touched, walk);
    }
    TRY(find_views(walk, &is_view));
    if (!is_view) {
        return touches_visit(walk->node, access_touched, walk);
    }
    flight_pass(&walk->flight, walk->node);
    return SHOAL_OK;
}

/* Notes the new storages among the node's values. If it is a start, it is in flight from here on. */
static shoal_status access_values(struct walk *walk)
{
    struct shoal_node *node = walk->node;
    TRY(mem_grow((void **)&walk->values, &walk->values_capacity, walk->n_values + node->n_values,
                 sizeof *walk->values));
    walk->nodes[node->id].values = walk->n_values;
    for (size_t i = 0; i < node->n_values; i++) {
        size_t number;
        TRY(number_storage(walk, node->values[i], &number));
        walk->values[walk->n_values++] = (uint32_t)number;
        if (walk->storages[number].seen_at == walk->place) {
            struct effects_access *access;
            TRY(get_access(walk, number, &access));
            /* Otherwise it is the storage of an argument that comes later in the list. */
            access->creates = !access->reads && !access->writes;
        }
    }
    if (flight_is_start(node)) {
        flight_start(&walk->flight, node);
    }
    return SHOAL_OK;
}

/* Edges ------------------------------------------------------------------------------------------------ */

static shoal_status add_edge(struct walk *walk, struct shoal_node *before)
{
    struct effects *effects = walk->effects;
    if (!before || before == walk->node || walk->nodes[before->id].named_at == walk->place) {
        return SHOAL_OK;
    }
    walk->nodes[before->id].named_at = walk->place;
    TRY(mem_grow((void **)&effects->edges, &effects->edges_capacity, effects->n_edges + 1,
                 sizeof *effects->edges));
    effects->edges[effects->n_edges++] = before;
    return SHOAL_OK;
}

static shoal_status order_access(struct walk *walk, struct effects_access access)
{
    struct storage_state *storage = &walk->storages[access.storage];
    if (access.writes) {
        /* Readers since the last write stay behind that write, so edges to them are enough. */
        if (storage->readers == 0) {
            TRY(add_edge(walk, storage->last_write));
        }
        for (size_t at = storage->readers; at != 0; at = walk->readers[at - 1].next) {
            TRY(add_edge(walk, walk->readers[at - 1].node));
        }
        storage->last_write = walk->node;
        storage->readers = 0;
    } else if (access.reads) {
        TRY(add_edge(walk, storage->last_write));
        TRY(mem_grow((void **)&walk->readers, &walk->readers_capacity, walk->n_readers + 1,
                     sizeof *walk->readers));
        walk->readers[walk->n_readers++] = (struct reader){.node = walk->node, .next = storage->readers};
        storage->readers = walk->n_readers;
    }
    return SHOAL_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Returns where the last start of the current node's group is kept. */
static struct shoal_node **find_last_start(struct walk *walk)
{
    const struct shoal_node *node = walk->node;
    for (size_t i = 0; i < node->n_args; i++) {
        if (node->args[i].kind == SHOAL_ARG_GROUP) {
            const char **found = bsearch(&node->args[i].as.string, walk->groups, walk->n_groups,
                                         sizeof *walk->groups, compare_names);
            return &walk->last_starts[found ? (size_t)(found - walk->groups) : walk->n_groups];
        }
    }
    return &walk->last_starts[walk->n_groups];
}

static shoal_status order_side_effect(struct walk *walk)
{
    /* For a wait, the flag only means that it must not be removed. */
    if ((flags_of(walk->node) & (SHOAL_OP_SIDE_EFFECT | SHOAL_OP_WAIT)) == SHOAL_OP_SIDE_EFFECT) {
        TRY(add_edge(walk, walk->last_side_effect));
        walk->last_side_effect = walk->node;
    }
    return SHOAL_OK;
}

/* Must come last: it adds an edge only where nothing else asks for that edge. */
static shoal_status order_group(struct walk *walk)
{
    if ((flags_of(walk->node) & SHOAL_OP_COLLECTIVE) != 0) {
        struct shoal_node **last = find_last_start(walk);
        TRY(add_edge(walk, *last));
        *last = walk->node;
    }
    return SHOAL_OK;
}

/* The walk --------------------------------------------------------------------------------------------- */

static shoal_status access_all(struct walk *walk)
{
    switch ((shoal_node_kind)walk->node->kind) {
    case SHOAL_NODE_PLACEHOLDER:
    case SHOAL_NODE_CONSTANT:
        break;
    case SHOAL_NODE_CALL:
        TRY(access_call(walk));
        break;
    case SHOAL_NODE_OUTPUT:
        TRY(touches_visit(walk->node, access_touched, walk));
        break;
    }
    return access_values(walk);
}

static shoal_status visit(struct walk *walk, struct shoal_node *node)
{
    struct effects *effects = walk->effects;
    size_t first_access = effects->n_accesses;
    size_t first_edge = effects->n_edges;
    walk->node = node;
    walk->place++;
    walk->nodes[node->id].place = walk->place;
    TRY(access_all(walk));
    effects->accesses_of[node->id] =
        (struct part_of){.first = first_access, .count = effects->n_accesses - first_access};
    for (size_t i = 0; i < node->n_inputs; i++) {
        walk->nodes[node->inputs[i]->id].named_at = walk->place;
    }
    for (size_t i = first_access; i < effects->n_accesses; i++) {
        TRY(order_access(walk, effects->accesses[i]));
    }
    TRY(order_side_effect(walk));
    size_t n_edges = effects->n_edges;
    TRY(order_group(walk));
    effects->edges_of[node->id] = (struct edges_of){.first = first_edge,
                                                    .count = (uint32_t)(effects->n_edges - first_edge),
                                                    .ends_with_group = effects->n_edges > n_edges};
    return SHOAL_OK;
}

static shoal_status begin_walk(struct walk *walk)
{
    struct effects *effects = walk->effects;
    const struct shoal_graph *graph = walk->graph;
    for (const struct graph_group *group = graph->groups; group; group = group->next) {
        walk->n_groups++;
    }
    effects->n_ids = graph->n_ids;
    effects->edges_of = mem_alloc_zeroed(effects->n_ids + 1, sizeof *effects->edges_of);
    effects->accesses_of = mem_alloc_zeroed(effects->n_ids + 1, sizeof *effects->accesses_of);
    walk->nodes = mem_alloc_zeroed(effects->n_ids + 1, sizeof *walk->nodes);
    walk->groups = mem_alloc_zeroed(walk->n_groups + 1, sizeof *walk->groups);
    walk->last_starts = mem_alloc_zeroed(walk->n_groups + 1, sizeof *walk->last_starts);
    if (!effects->edges_of || !effects->accesses_of || !walk->nodes || !walk->groups || !walk->last_starts) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(map_reserve(&walk->numbers, graph->n_nodes)); /* most nodes have one storage */
    TRY(mem_grow((void **)&walk->storages, &walk->storages_capacity, 1, sizeof *walk->storages));
    size_t n_groups = 0;
    for (const struct graph_group *group = graph->groups; group; group = group->next) {
        walk->groups[n_groups++] = group->name;
    }
    qsort(walk->groups, n_groups, sizeof *walk->groups, compare_names);
    return flight_begin(&walk->flight);
}

static void end_walk(struct walk *walk)
{
    map_free(&walk->numbers);
    mem_free(walk->values);
    mem_free(walk->storages);
    mem_free(walk->readers);
    mem_free(walk->nodes);
    mem_free(walk->groups);
    mem_free(walk->last_starts);
    flight_free(&walk->flight);
}

shoal_status effects_build(const struct shoal_graph *graph, struct effects **effects_out)
{
    struct walk walk = {.graph = graph,
                        .effects = mem_alloc_zeroed(1, sizeof *walk.effects),
                        .flight = {.graph = graph, .is_any_rank = true}};
    if (!walk.effects) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = begin_walk(&walk);
    for (struct shoal_node *node = graph->first; node && status == SHOAL_OK; node = node->next) {
        status = visit(&walk, node);
    }
    end_walk(&walk);
    if (status != SHOAL_OK) {
        effects_free(walk.effects);
        return status;
    }
    *effects_out = walk.effects;
    return SHOAL_OK;
}

void effects_free(struct effects *effects)
{
    if (effects) {
        mem_free(effects->edges_of);
        mem_free(effects->accesses_of);
        mem_free(effects->edges);
        mem_free(effects->accesses);
        mem_free(effects);
    }
}

void effects_before(const struct effects *effects, const struct shoal_node *node,
                    struct shoal_node *const **nodes_out, size_t *count_out)
{
    struct edges_of edges =
        effects && node->id < effects->n_ids ? effects->edges_of[node->id] : (struct edges_of){.count = 0};
    *nodes_out = edges.count > 0 ? effects->edges + edges.first : NULL;
    *count_out = edges.count;
}

void effects_before_strict(const struct effects *effects, const struct shoal_node *node,
                           struct shoal_node *const **nodes_out, size_t *count_out)
{
    effects_before(effects, node, nodes_out, count_out);
    *count_out -= *count_out > 0 && effects->edges_of[node->id].ends_with_group ? 1 : 0;
}

void effects_accesses(const struct effects *effects, const struct shoal_node *node,
                      const struct effects_access **accesses_out, size_t *count_out)
{
    struct part_of part =
        effects && node->id < effects->n_ids ? effects->accesses_of[node->id] : (struct part_of){.count = 0};
    *accesses_out = part.count > 0 ? effects->accesses + part.first : NULL;
    *count_out = part.count;
}

size_t effects_n_storages(const struct effects *effects)
{
    return effects ? effects->n_storages : 0;
}
