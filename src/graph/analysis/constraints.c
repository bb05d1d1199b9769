/* SPDX-License-Identifier: MIT */
/* Collects constraints in one walk, as pairs of numbers, and then sorts them by counting. */
#include "graph/analysis/constraints.h"

#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/ir/twins.h"
#include "tensor/tensor.h"

#define NO_NUMBER UINT32_MAX

struct pair {
    uint32_t before;
    uint32_t behind;
};

/*
 * A sequence of nodes of which those of one group keep their order. A node without a group is a divider: all nodes
 * before it stay before it, and all nodes behind it stay behind it.
 */
struct sequence {
    uint32_t *last;   /* by group: its last node since the last divider; NO_NUMBER: none */
    uint32_t divider; /* the last divider; NO_NUMBER: none yet */
    uint32_t *recent; /* all nodes since the last divider */
    size_t n_recent;
};

struct walk {
    const struct shoal_graph *graph;
    const struct effects *effects;
    enum constraints_order order;
    struct constraints *constraints;
    struct pair *pairs;
    size_t n_pairs;
    size_t pairs_capacity;
    size_t n_groups;
    struct sequence starts;
    struct sequence waits;
    /* By id: the start whose result the node gives; NULL if there is none, or there are several. */
    struct shoal_node **source;
    struct map waited;    /* storages that were waited for -> indices of last_waits */
    uint32_t *last_waits; /* the number of the last wait for the storage */
    size_t n_waited;
    size_t waited_capacity;
};

static shoal_status add_pair(struct walk *walk, uint32_t before, uint32_t behind)
{
    if (before == NO_NUMBER) {
        return SHOAL_OK;
    }
    TRY(mem_grow((void **)&walk->pairs, &walk->pairs_capacity, walk->n_pairs + 1, sizeof *walk->pairs));
    walk->pairs[walk->n_pairs++] = (struct pair){.before = before, .behind = behind};
    return SHOAL_OK;
}

static shoal_status add_known(struct walk *walk, const struct shoal_node *node, uint32_t number)
{
    struct shoal_node *const *before;
    size_t n_before;
    const uint32_t *numbers = walk->constraints->number;
    for (size_t i = 0; i < node->n_inputs; i++) {
        TRY(add_pair(walk, numbers[node->inputs[i]->id], number));
    }
    effects_before(walk->effects, node, &before, &n_before);
    for (size_t i = 0; i < n_before; i++) {
        TRY(add_pair(walk, numbers[before[i]->id], number));
    }
    return SHOAL_OK;
}

/* Communication ----------------------------------------------------------------------------------------- */

/* Returns the index of the group that a start names; n_groups: none. */
static size_t find_group(const struct walk *walk, const struct shoal_node *start)
{
    for (size_t i = 0; i < start->n_args; i++) {
        if (start->args[i].kind == SHOAL_ARG_GROUP) {
            const struct graph_group *group = graph_find_group(walk->graph, start->args[i].as.string);
            return group ? group->number : walk->n_groups;
        }
    }
    return walk->n_groups;
}

static shoal_status add_divider(struct walk *walk, struct sequence *sequence, uint32_t number)
{
    TRY(add_pair(walk, sequence->divider, number));
    for (size_t i = 0; i < sequence->n_recent; i++) {
        TRY(add_pair(walk, sequence->recent[i], number));
    }
    sequence->divider = number;
    sequence->n_recent = 0;
    memset(sequence->last, 0xff, (walk->n_groups + 1) * sizeof sequence->last[0]);
    return SHOAL_OK;
}

/* Adds a node to a sequence. If `group` is n_groups, it is a divider. */
static shoal_status add_member(struct walk *walk, struct sequence *sequence, size_t group, uint32_t number)
{
    if (group >= walk->n_groups) {
        return add_divider(walk, sequence, number);
    }
    uint32_t last = sequence->last[group];
    TRY(add_pair(walk, last != NO_NUMBER ? last : sequence->divider, number));
    sequence->last[group] = number;
    sequence->recent[sequence->n_recent++] = number;
    return SHOAL_OK;
}

/* Notes the start from which the node's value comes, through views and waits. */
static void find_source(struct walk *walk, struct shoal_node *node)
{
    if (node_is_start(node)) {
        walk->source[node->id] = node;
    } else if (node->n_inputs == 1 && (node_flags(node) & (SHOAL_OP_VIEW | SHOAL_OP_WAIT)) != 0) {
        walk->source[node->id] = walk->source[node->inputs[0]->id];
    }
}

static shoal_status add_communication(struct walk *walk, struct shoal_node *node, uint32_t number)
{
    find_source(walk, node);
    if (walk->order == CONSTRAINTS_ALL_STARTS) {
        return node_is_communication(node) ? add_divider(walk, &walk->starts, number) : SHOAL_OK;
    }
    if (node_is_wait(node)) {
        const struct shoal_node *start = walk->source[node->id];
        return add_member(walk, &walk->waits, start ? find_group(walk, start) : walk->n_groups, number);
    }
    return node_is_communication(node)
               ? add_member(walk, &walk->starts,
                            node_is_start(node) ? find_group(walk, node) : walk->n_groups, number)
               : SHOAL_OK;
}

/* Results behind their waits ---------------------------------------------------------------------------- */

static shoal_status note_wait(struct walk *walk, const struct shoal_node *wait, uint32_t number)
{
    for (size_t i = 0; i < wait->n_values; i++) {
        const struct storage *storage = twins_find(walk->graph, wait->values[i]->storage);
        size_t index;
        if (!map_get(&walk->waited, map_key(storage), &index)) {
            index = walk->n_waited;
            TRY(mem_grow((void **)&walk->last_waits, &walk->waited_capacity, index + 1,
                         sizeof *walk->last_waits));
            TRY(map_add(&walk->waited, map_key(storage), index));
            walk->n_waited++;
        }
        walk->last_waits[index] = number;
    }
    return SHOAL_OK;
}

/* Keeps readers of a result behind its wait. Effects do not do that for ops that give a view only sometimes (reshape),
   because a view does not touch memory; lint treats such ops as readers. */
static shoal_status add_looks(struct walk *walk, const struct shoal_node *node, uint32_t number)
{
    if (node->kind != SHOAL_NODE_CALL || (node_flags(node) & SHOAL_OP_VIEW) != 0) {
        return SHOAL_OK;
    }
    for (size_t i = 0; i < node->n_inputs; i++) {
        const struct shoal_node *input = node->inputs[i];
        for (size_t k = 0; k < input->n_values; k++) {
            size_t index;
            if (map_get(&walk->waited, map_key(twins_find(walk->graph, input->values[k]->storage)), &index)) {
                TRY(add_pair(walk, walk->last_waits[index], number));
            }
        }
    }
    return SHOAL_OK;
}

/* The walk ---------------------------------------------------------------------------------------------- */

static shoal_status visit(struct walk *walk, struct shoal_node *node, uint32_t number)
{
    TRY(add_known(walk, node, number));
    TRY(add_communication(walk, node, number));
    return node_is_wait(node) ? note_wait(walk, node, number) : add_looks(walk, node, number);
}

static shoal_status begin_sequence(const struct walk *walk, struct sequence *sequence)
{
    sequence->divider = NO_NUMBER;
    sequence->last = mem_alloc_zeroed(walk->n_groups + 1, sizeof sequence->last[0]);
    sequence->recent = mem_alloc_zeroed(walk->graph->n_nodes + 1, sizeof sequence->recent[0]);
    if (!sequence->last || !sequence->recent) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memset(sequence->last, 0xff, (walk->n_groups + 1) * sizeof sequence->last[0]);
    return SHOAL_OK;
}

static shoal_status begin(struct walk *walk)
{
    const struct shoal_graph *graph = walk->graph;
    struct constraints *constraints = walk->constraints;
    walk->n_groups = graph->n_groups;
    TRY(begin_sequence(walk, &walk->starts));
    TRY(begin_sequence(walk, &walk->waits));
    TRY(mem_grow((void **)&walk->last_waits, &walk->waited_capacity, 1, sizeof *walk->last_waits));
    walk->source = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof walk->source[0]);
    constraints->nodes = mem_alloc_zeroed(graph->n_nodes + 1, sizeof constraints->nodes[0]);
    constraints->number = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof constraints->number[0]);
    constraints->first_before = mem_alloc_zeroed(graph->n_nodes + 2, sizeof constraints->first_before[0]);
    constraints->first_behind = mem_alloc_zeroed(graph->n_nodes + 2, sizeof constraints->first_behind[0]);
    return walk->source && constraints->nodes && constraints->number && constraints->first_before &&
                   constraints->first_behind
               ? SHOAL_OK
               : SHOAL_ERR_NO_MEMORY;
}

/* Makes the lists of all nodes, one after the other. `first` has n_nodes + 1 zeros, and gets where each list begins. */
static shoal_status sort_pairs(const struct walk *walk, bool is_behind, uint32_t *first, uint32_t **list_out)
{
    uint32_t n_nodes = walk->constraints->n_nodes;
    uint32_t *list = mem_alloc_zeroed(walk->n_pairs + 1, sizeof list[0]);
    if (!list) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < walk->n_pairs; i++) {
        first[(is_behind ? walk->pairs[i].before : walk->pairs[i].behind) + 1]++;
    }
    for (uint32_t i = 0; i < n_nodes; i++) {
        first[i + 1] += first[i];
    }
    for (size_t i = walk->n_pairs; i-- > 0;) { /* afterwards first[k + 1] is where the list of k begins */
        const struct pair *pair = &walk->pairs[i];
        uint32_t owner = is_behind ? pair->before : pair->behind;
        list[--first[owner + 1]] = is_behind ? pair->behind : pair->before;
    }
    memmove(first, first + 1, n_nodes * sizeof first[0]);
    first[n_nodes] = (uint32_t)walk->n_pairs;
    *list_out = list;
    return SHOAL_OK;
}

static shoal_status build(struct walk *walk)
{
    struct constraints *constraints = walk->constraints;
    TRY(begin(walk));
    for (struct shoal_node *node = walk->graph->first; node; node = node->next) {
        uint32_t number = constraints->n_nodes++;
        constraints->nodes[number] = node;
        constraints->number[node->id] = number;
        TRY(visit(walk, node, number));
    }
    if (walk->n_pairs >= NO_NUMBER) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the graph has too many edges: %zu", walk->n_pairs);
    }
    TRY(sort_pairs(walk, /*is_behind=*/false, constraints->first_before, &constraints->before));
    return sort_pairs(walk, /*is_behind=*/true, constraints->first_behind, &constraints->behind);
}

shoal_status constraints_build(const struct shoal_graph *graph, const struct effects *effects,
                               enum constraints_order order, struct constraints *constraints_out)
{
    struct constraints constraints = {.n_nodes = 0};
    struct walk walk = {.graph = graph, .effects = effects, .order = order, .constraints = &constraints};
    shoal_status status = build(&walk);
    mem_free(walk.pairs);
    mem_free(walk.starts.last);
    mem_free(walk.starts.recent);
    mem_free(walk.waits.last);
    mem_free(walk.waits.recent);
    mem_free(walk.source);
    mem_free(walk.last_waits);
    map_free(&walk.waited);
    if (status != SHOAL_OK) {
        constraints_free(&constraints);
        return status;
    }
    *constraints_out = constraints;
    return SHOAL_OK;
}

void constraints_free(struct constraints *constraints)
{
    mem_free(constraints->nodes);
    mem_free(constraints->number);
    mem_free(constraints->first_before);
    mem_free(constraints->before);
    mem_free(constraints->first_behind);
    mem_free(constraints->behind);
    *constraints = (struct constraints){.n_nodes = 0};
}
