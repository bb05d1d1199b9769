/* SPDX-License-Identifier: MIT */
/*
 * simple_overlap: first each start is moved up, directly behind the last node that it depends on. Nodes that only delay
 * the gather of a unit (control_deps), or convert what it gathers, are moved up as well. Then each wait is moved down,
 * directly before the first node that depends on it, together with views of its result. Starts of one group keep their
 * order, and so do waits of one group. If a move would make the graph need more memory than a limit, the node is moved
 * only as far as memory allows.
 *
 * The limit is the peak memory of the graph before the pass. If the graph has FSDP units, the largest gather of a unit
 * is added; otherwise nothing could be gathered ahead where memory is at its peak. The gather of a unit is not moved
 * above the wait for the gather before it, so at most one unit is gathered ahead. The wait for the reduction of a unit
 * is not moved below the start of the next unit's reduction, so the gradients of at most one unit are in flight. Both
 * are as in an eager step.
 *
 * Starts are moved in program order and waits in reverse program order. So everything that a node depends on, or that
 * depends on it, has its final place when the node is moved, and one move per node is enough.
 */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/analysis/accesses.h"
#include "graph/analysis/constraints.h"
#include "graph/analysis/lint.h"
#include "graph/analysis/memory.h"
#include "graph/passes/passes.h"
#include "tensor/tensor.h"

struct overlap {
    struct constraints constraints;
    struct memory_profile *profile;
    uint64_t limit;
    /* By number: the node that was last moved next to this one. The next one that is moved here is put beyond it, so
       that moved nodes keep their order. */
    struct shoal_node **neighbours;
    bool *rises; /* by number: it is a start, or only gathers of units need it */
    bool *sinks; /* by number: it is a wait, or a view of the result of one */
};

static bool fits(const struct overlap *overlap)
{
    return memory_profile_peak(overlap->profile) <= overlap->limit;
}

/*
 * Moves the node before `where`. If the graph would need too much memory then, the node is moved only up to the nearest
 * node at which it would, and if that is too much as well, not at all. Returns whether the node was moved before
 * `where`.
 */
static bool try_move(struct overlap *overlap, struct shoal_node *node, struct shoal_node *where)
{
    struct shoal_node *old = node->next;
    if (where == node || where == old) {
        return true;
    }
    bool is_up = where->order < node->order;
    memory_profile_move(overlap->profile, node, where);
    if (fits(overlap)) {
        return true;
    }
    struct shoal_node *full = memory_profile_find_above(overlap->profile, overlap->limit, !is_up);
    memory_profile_move(overlap->profile, node, old);
    if (full && full != node) {
        memory_profile_move(overlap->profile, node, is_up ? full->next : full);
        if (!fits(overlap)) {
            memory_profile_move(overlap->profile, node, old);
        }
    }
    return false;
}

/* Units ------------------------------------------------------------------------------------------------- */

static bool gathers_unit(const struct shoal_node *node)
{
    return node->unit &&
           (node_calls(node, OP_all_gather_into_tensor) || node_calls(node, OP_all_gather_tensor) ||
            node_calls(node, OP_all_gather_into_tensor_coalesced));
}

static bool reduces_unit(const struct shoal_node *node)
{
    static const enum op_id ops[] = {OP_reduce_scatter_tensor, OP_reduce_scatter_tensor_coalesced,
                                     OP_all_reduce, OP_all_reduce_coalesced};
    bool is_one = false;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        is_one = is_one || node_calls(node, ops[i]);
    }
    return node->unit && is_one;
}

/* Returns the start that a wait is for, also if it waits for an element of the start's list; NULL if there is none, or
   there are several. */
static const struct shoal_node *find_start(const struct shoal_node *wait)
{
    const struct shoal_node *node = wait->n_inputs == 1 ? wait->inputs[0] : NULL;
    if (node && node_calls(node, OP_getitem)) {
        node = node->inputs[0];
    }
    return node && node_is_start(node) ? node : NULL;
}

/* Returns the later of two nodes; either may be NULL. */
static struct shoal_node *later(struct shoal_node *a, struct shoal_node *b)
{
    return !a || (b && b->order > a->order) ? b : a;
}

/* Returns the last wait for a result of a start; NULL if there is none. */
static struct shoal_node *find_last_wait(const struct shoal_node *start)
{
    struct shoal_node *last = NULL;
    for (const struct edge *edge = start->first_use; edge; edge = edge->next) {
        struct shoal_node *user = edge->user;
        last = node_is_wait(user) ? later(last, user) : last;
        for (const struct edge *next = node_calls(user, OP_getitem) ? user->first_use : NULL; next;
             next = next->next) {
            last = node_is_wait(next->user) ? later(last, next->user) : last;
        }
    }
    return last;
}

/* Returns the bytes of the largest gather of a unit. */
static uint64_t find_ahead(const struct shoal_graph *graph)
{
    uint64_t ahead = 0;
    for (const struct shoal_node *node = graph->first; node; node = node->next) {
        uint64_t bytes = 0;
        for (size_t i = 0; gathers_unit(node) && i < node->n_values; i++) {
            bytes += tensor_bytes(node->values[i]);
        }
        ahead = bytes > ahead ? bytes : ahead;
    }
    return ahead;
}

/* Starts ------------------------------------------------------------------------------------------------ */

/* Returns the last of the placeholders and constants at the beginning of the list; NULL if there is none. */
static struct shoal_node *find_inputs_end(const struct shoal_graph *graph)
{
    struct shoal_node *end = NULL;
    struct shoal_node *node = graph->first;
    while (node && (node->kind == SHOAL_NODE_PLACEHOLDER || node->kind == SHOAL_NODE_CONSTANT)) {
        end = node;
        node = node->next;
    }
    return end;
}

/* Moves a node up behind the last node that it depends on, but not above `floor`, a node before it, if that is not
   NULL. */
static void raise_start(struct overlap *overlap, uint32_t number, struct shoal_node *floor)
{
    const struct constraints *constraints = &overlap->constraints;
    struct shoal_node *node = constraints->nodes[number];
    struct shoal_node *last = floor;
    for (uint32_t i = constraints->first_before[number]; i < constraints->first_before[number + 1]; i++) {
        struct shoal_node *before = constraints->nodes[constraints->before[i]];
        last = !last || before->order > last->order ? before : last;
    }
    uint32_t beside = last ? constraints->number[last->id] : constraints->n_nodes;
    last = overlap->neighbours[beside] ? overlap->neighbours[beside] : last;
    struct shoal_node *where = last ? last->next : node->graph->first;
    if (where->order <= node->order && try_move(overlap, node, where)) {
        overlap->neighbours[beside] = node;
    }
}

/* Whether a node delays or converts the input of gathers of units, and nobody else uses its value. `rises` must be
   known for later nodes. */
static bool leads_to_gathers(const struct overlap *overlap, const struct shoal_node *node)
{
    bool is_one = node_calls(node, OP_control_deps) || node_calls(node, OP_to_dtype);
    for (const struct edge *edge = is_one ? node->first_use : NULL; edge; edge = edge->next) {
        const struct shoal_node *user = edge->user;
        is_one = is_one && overlap->rises[overlap->constraints.number[user->id]] &&
                 (gathers_unit(user) || !node_is_start(user));
    }
    return is_one && node->unit && node->first_use;
}

static void find_rising(struct overlap *overlap)
{
    for (uint32_t i = overlap->constraints.n_nodes; i-- > 0;) {
        const struct shoal_node *node = overlap->constraints.nodes[i];
        overlap->rises[i] = node_is_start(node) || leads_to_gathers(overlap, node);
    }
}

static void raise_starts(struct overlap *overlap, const struct shoal_graph *graph)
{
    const struct constraints *constraints = &overlap->constraints;
    find_rising(overlap);
    struct shoal_node *inputs_end = find_inputs_end(graph);
    struct shoal_node *last_gathered = NULL; /* the last wait for the gather of the unit before */
    for (uint32_t i = 0; i < constraints->n_nodes; i++) {
        struct shoal_node *node = constraints->nodes[i];
        if (!overlap->rises[i]) {
            continue;
        }
        bool is_gather = gathers_unit(node) || !node_is_start(node);
        bool is_held = is_gather && last_gathered && last_gathered->order < node->order;
        raise_start(overlap, i, is_held ? later(inputs_end, last_gathered) : inputs_end);
        last_gathered = gathers_unit(node) ? find_last_wait(node) : last_gathered;
    }
}

/* Waits ------------------------------------------------------------------------------------------------- */

/* Whether the node is a view, or an op that gives a view in this graph. Such nodes move down together with waits. */
static bool looks(const struct shoal_node *node)
{
    const uint32_t effects = SHOAL_OP_IN_PLACE | SHOAL_OP_COLLECTIVE | SHOAL_OP_WAIT | SHOAL_OP_SIDE_EFFECT;
    uint32_t flags = node_flags(node);
    return node->op && node->n_inputs == 1 &&
           ((flags & SHOAL_OP_VIEW) != 0 || (node->is_alias && (flags & effects) == 0));
}

static void find_sinking(struct overlap *overlap)
{
    const struct constraints *constraints = &overlap->constraints;
    for (uint32_t i = 0; i < constraints->n_nodes; i++) {
        const struct shoal_node *node = constraints->nodes[i];
        overlap->sinks[i] =
            node_is_wait(node) || (looks(node) && overlap->sinks[constraints->number[node->inputs[0]->id]]);
    }
}

/* Moves a node down before the first node that depends on it, but not below `ceiling`, a node behind it, if that is not
   NULL. */
static void sink_wait(struct overlap *overlap, uint32_t number, struct shoal_node *ceiling)
{
    const struct constraints *constraints = &overlap->constraints;
    struct shoal_node *node = constraints->nodes[number];
    struct shoal_node *where = ceiling;
    for (uint32_t i = constraints->first_behind[number]; i < constraints->first_behind[number + 1]; i++) {
        struct shoal_node *behind = constraints->nodes[constraints->behind[i]];
        where = !where || behind->order < where->order ? behind : where;
    }
    if (!where) {
        return; /* nothing depends on it */
    }
    uint32_t beside = constraints->number[where->id];
    where = overlap->neighbours[beside] ? overlap->neighbours[beside] : where;
    if (where->order > node->order && try_move(overlap, node, where)) {
        overlap->neighbours[beside] = node;
    }
}

/* Finds, for each wait for the reduction of a unit, the start of the next unit's reduction. `ceilings` is by number; it
   is NULL where there is none. */
static void find_ceilings(const struct overlap *overlap, const struct shoal_graph *graph,
                          struct shoal_node **ceilings)
{
    struct shoal_node *next = NULL;  /* the next reduction of a unit */
    struct shoal_node *other = NULL; /* the next reduction of a unit other than that of `next` */
    for (struct shoal_node *node = graph->last; node; node = node->prev) {
        const struct shoal_node *start = node_is_wait(node) ? find_start(node) : NULL;
        if (start && reduces_unit(start)) {
            bool is_own = next && strcmp(next->unit, start->unit) == 0;
            ceilings[overlap->constraints.number[node->id]] = is_own ? other : next;
        } else if (reduces_unit(node)) {
            other = next && strcmp(next->unit, node->unit) != 0 ? next : other;
            next = node;
        }
    }
}

/* Whether it is a wait for a gathered parameter that nobody uses, as in the backward pass of some units. Another wait
   for the same gather comes first, and moving this one down would only keep the memory longer. */
static bool is_spare(const struct shoal_node *node)
{
    const struct shoal_node *start = node_is_wait(node) && node->n_users == 0 ? find_start(node) : NULL;
    return start && gathers_unit(start);
}

static void sink_waits(struct overlap *overlap, const struct shoal_graph *graph, struct shoal_node **ceilings)
{
    find_sinking(overlap);
    find_ceilings(overlap, graph, ceilings);
    for (uint32_t i = overlap->constraints.n_nodes; i-- > 0;) {
        if (overlap->sinks[i] && !is_spare(overlap->constraints.nodes[i])) {
            sink_wait(overlap, i, ceilings[i]);
        }
    }
}

/* All of it --------------------------------------------------------------------------------------------- */

static shoal_status run(struct overlap *overlap, const struct shoal_graph *graph,
                        const struct effects *effects)
{
    TRY(constraints_build(graph, effects, CONSTRAINTS_GROUPS, &overlap->constraints));
    TRY(memory_profile_build(graph, effects, &overlap->profile));
    size_t n_nodes = overlap->constraints.n_nodes;
    struct shoal_node **neighbours = mem_alloc_zeroed(3 * (n_nodes + 1), sizeof neighbours[0]);
    overlap->neighbours = neighbours;
    overlap->sinks = mem_alloc_zeroed(n_nodes + 1, sizeof overlap->sinks[0]);
    overlap->rises = mem_alloc_zeroed(n_nodes + 1, sizeof overlap->rises[0]);
    if (!neighbours || !overlap->sinks || !overlap->rises) {
        return SHOAL_ERR_NO_MEMORY;
    }
    overlap->limit = memory_profile_peak(overlap->profile) + find_ahead(graph);
    raise_starts(overlap, graph);
    overlap->neighbours = neighbours + n_nodes + 1;
    sink_waits(overlap, graph, neighbours + 2 * (n_nodes + 1));
    overlap->neighbours = neighbours;
    return SHOAL_OK;
}

shoal_status pass_simple_overlap(shoal_graph *graph, const shoal_pass_options *options,
                                 shoal_pass_report *report, void *context)
{
    struct overlap overlap = {.limit = 0};
    struct effects *effects;
    (void)options;
    (void)report;
    (void)context;
    TRY(graph_lint_order(graph));
    TRY(effects_build(graph, &effects));
    shoal_status status = run(&overlap, graph, effects);
    effects_free(effects);
    constraints_free(&overlap.constraints);
    memory_profile_free(overlap.profile);
    mem_free(overlap.neighbours);
    mem_free(overlap.sinks);
    mem_free(overlap.rises);
    return status;
}
