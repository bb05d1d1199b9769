/* SPDX-License-Identifier: MIT */
/*
 * The score of a node is one number, made of three parts. The highest bits are the number of the first start that needs
 * it (all ones: none does). The next bit says whether it is a wait that should sink. The last is its number in the
 * list.
 */
#include "graph/passes/list_schedule.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/analysis/constraints.h"
#include "graph/analysis/estimate.h"
#include "graph/analysis/lint.h"

#define NO_START UINT32_C(0x7fffffff)

/* A heap with the lowest score at the top. */
struct heap {
    uint64_t *scores;
    size_t count;
};

struct scheduling {
    const struct list_schedule *settings;
    const struct machine *machine; /* NULL if starts are not covered */
    struct constraints constraints;
    uint32_t *starts;        /* by number: the first start that needs the node; NO_START: none */
    uint32_t *n_missing;     /* by number: predecessors that are not placed yet */
    struct heap compute;     /* nodes that are ready, and neither communication nor waits */
    struct heap rest;        /* other nodes that are ready */
    struct shoal_node **new; /* nodes in their new order */
    uint32_t n_new;
};

/* Heaps ------------------------------------------------------------------------------------------------- */

static void push(struct heap *heap, uint64_t score)
{
    size_t at = heap->count++;
    while (at > 0 && heap->scores[(at - 1) / 2] > score) {
        heap->scores[at] = heap->scores[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->scores[at] = score;
}

static uint64_t pop(struct heap *heap)
{
    uint64_t lowest = heap->scores[0];
    uint64_t last = heap->scores[--heap->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < heap->count && heap->scores[child + 1] < heap->scores[child]) {
            child++;
        }
        if (child >= heap->count || heap->scores[child] >= last) {
            break;
        }
        heap->scores[at] = heap->scores[child];
        at = child;
    }
    heap->scores[at] = last;
    return lowest;
}

/* Scores ------------------------------------------------------------------------------------------------ */

/* Finds the first start that needs each node, by a walk from the last node to the first. */
static void find_starts(struct scheduling *scheduling)
{
    const struct constraints *constraints = &scheduling->constraints;
    uint32_t n_starts = 0;
    for (uint32_t i = 0; i < constraints->n_nodes; i++) {
        bool counts = scheduling->settings->raises_starts && node_is_start(constraints->nodes[i]);
        scheduling->starts[i] = counts ? n_starts++ : NO_START;
    }
    for (uint32_t i = constraints->n_nodes; i-- > 0;) {
        for (uint32_t k = constraints->first_before[i]; k < constraints->first_before[i + 1]; k++) {
            uint32_t before = constraints->before[k];
            if (scheduling->starts[i] < scheduling->starts[before]) {
                scheduling->starts[before] = scheduling->starts[i];
            }
        }
    }
}

static uint64_t score_of(const struct scheduling *scheduling, uint32_t number)
{
    bool sinks = scheduling->settings->sinks_waits && node_is_wait(scheduling->constraints.nodes[number]);
    return (uint64_t)scheduling->starts[number] << 33 | (uint64_t)(sinks ? 1 : 0) << 32 | number;
}

/* Placing ----------------------------------------------------------------------------------------------- */

/* Whether the node is placed at the beginning or at the end. */
static bool is_end(const struct shoal_node *node)
{
    return node->kind == SHOAL_NODE_PLACEHOLDER || node->kind == SHOAL_NODE_OUTPUT;
}

static void make_ready(struct scheduling *scheduling, uint32_t number)
{
    const struct shoal_node *node = scheduling->constraints.nodes[number];
    if (!is_end(node)) {
        bool is_compute = !node_is_communication(node) && !node_is_wait(node);
        push(is_compute ? &scheduling->compute : &scheduling->rest, score_of(scheduling, number));
    }
}

static void place(struct scheduling *scheduling, uint32_t number)
{
    const struct constraints *constraints = &scheduling->constraints;
    scheduling->new[scheduling->n_new++] = constraints->nodes[number];
    for (uint32_t k = constraints->first_behind[number]; k < constraints->first_behind[number + 1]; k++) {
        if (--scheduling->n_missing[constraints->behind[k]] == 0) {
            make_ready(scheduling, constraints->behind[k]);
        }
    }
}

/* Places compute behind a start, for as long as the start takes. */
static void cover(struct scheduling *scheduling, const struct shoal_node *start)
{
    uint64_t left = estimate_node_ns(scheduling->machine, start);
    while (left > 0 && scheduling->compute.count > 0) {
        uint32_t number = (uint32_t)pop(&scheduling->compute);
        uint64_t taken = estimate_node_ns(scheduling->machine, scheduling->constraints.nodes[number]);
        left -= taken < left ? taken : left;
        place(scheduling, number);
    }
}

static void place_kind(struct scheduling *scheduling, shoal_node_kind kind)
{
    const struct constraints *constraints = &scheduling->constraints;
    for (uint32_t i = 0; i < constraints->n_nodes; i++) {
        if (constraints->nodes[i]->kind == kind) {
            place(scheduling, i);
        }
    }
}

static void place_all(struct scheduling *scheduling)
{
    const struct constraints *constraints = &scheduling->constraints;
    struct heap *compute = &scheduling->compute;
    struct heap *rest = &scheduling->rest;
    for (uint32_t i = 0; i < constraints->n_nodes; i++) {
        scheduling->n_missing[i] = constraints->first_before[i + 1] - constraints->first_before[i];
        if (scheduling->n_missing[i] == 0) {
            make_ready(scheduling, i);
        }
    }
    place_kind(scheduling, SHOAL_NODE_PLACEHOLDER);
    while (compute->count + rest->count > 0) {
        bool is_compute = rest->count == 0 || (compute->count > 0 && compute->scores[0] < rest->scores[0]);
        uint32_t number = (uint32_t)pop(is_compute ? compute : rest);
        place(scheduling, number);
        if (scheduling->settings->covers_starts && node_is_start(constraints->nodes[number])) {
            cover(scheduling, constraints->nodes[number]);
        }
    }
    place_kind(scheduling, SHOAL_NODE_OUTPUT);
}

static shoal_status apply(const struct scheduling *scheduling)
{
    for (uint32_t i = 0; i < scheduling->n_new; i++) {
        struct shoal_node *node = scheduling->new[i];
        const struct shoal_node *prev = i > 0 ? scheduling->new[i - 1] : NULL;
        struct shoal_node *here = prev ? prev->next : node->graph->first;
        if (here != node) {
            TRY(shoal_node_move_before(node, here));
        }
    }
    return SHOAL_OK;
}

static shoal_status schedule(struct scheduling *scheduling)
{
    size_t n_nodes = scheduling->constraints.n_nodes;
    scheduling->starts = mem_alloc_zeroed(n_nodes + 1, sizeof scheduling->starts[0]);
    scheduling->n_missing = mem_alloc_zeroed(n_nodes + 1, sizeof scheduling->n_missing[0]);
    scheduling->compute.scores = mem_alloc_zeroed(n_nodes + 1, sizeof scheduling->compute.scores[0]);
    scheduling->rest.scores = mem_alloc_zeroed(n_nodes + 1, sizeof scheduling->rest.scores[0]);
    scheduling->new = mem_alloc_zeroed(n_nodes + 1, sizeof scheduling->new[0]);
    if (!scheduling->starts || !scheduling->n_missing || !scheduling->compute.scores ||
        !scheduling->rest.scores || !scheduling->new) {
        return SHOAL_ERR_NO_MEMORY;
    }
    find_starts(scheduling);
    place_all(scheduling);
    if (scheduling->n_new < n_nodes) {
        return error_set(SHOAL_ERR_STATE,
                         "%zu nodes could not be ordered, because they depend on each other in a cycle",
                         n_nodes - scheduling->n_new);
    }
    return apply(scheduling);
}

shoal_status list_schedule_run(struct shoal_graph *graph, const struct list_schedule *settings,
                               const shoal_pass_options *options)
{
    struct scheduling scheduling = {.settings = settings};
    struct effects *effects;
    if (graph->n_nodes >= NO_START) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the graph has too many nodes: %zu", graph->n_nodes);
    }
    TRY(graph_lint_order(graph));
    if (settings->covers_starts) {
        TRY(machine_of_graph(graph, options->machine, &scheduling.machine));
    }
    TRY(effects_build(graph, &effects));
    shoal_status status = constraints_build(graph, effects, CONSTRAINTS_ALL_STARTS, &scheduling.constraints);
    effects_free(effects);
    TRY(status);
    status = schedule(&scheduling);
    mem_free(scheduling.starts);
    mem_free(scheduling.n_missing);
    mem_free(scheduling.compute.scores);
    mem_free(scheduling.rest.scores);
    mem_free(scheduling.new);
    constraints_free(&scheduling.constraints);
    return status;
}
