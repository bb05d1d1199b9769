/* SPDX-License-Identifier: MIT */
/*
 * dedupe_waits: of several waits for one result only the first stays. Waits for what has been waited for, or for the
 * result of an op that starts nothing, are removed. If another start has used the same memory since the first wait, a
 * later wait is for that start, and is not a duplicate.
 */
#include "base/mem.h"
#include "base/try.h"
#include "collective/rows.h"
#include "graph/analysis/accesses.h"
#include "graph/passes/passes.h"
#include "graph/ir/replace_many.h"

struct dedupe {
    struct effects *effects;
    /* By id: the node that gives the same value after a wait. The node itself, if it is a view of a waited value. */
    struct shoal_node **result;
    uint32_t *waited_at; /* by id: the place of the wait of `result` */
    /* By storage: the place of the last start that writes it; 0 if there is none. */
    uint32_t *started_at;
    bool *is_computed;             /* by storage: it was created by an op that starts nothing */
    struct shoal_node **kept;      /* by id: the node that replaces it; NULL if it stays */
    struct replace_pair *removals; /* in program order */
    size_t n_removals;
    size_t removal_capacity;
    uint32_t place;
};

/* Replacements are made at the end. Until then, this gives the node that will be used instead. */
static struct shoal_node *resolve(const struct dedupe *dedupe, struct shoal_node *node)
{
    return dedupe->kept[node->id] ? dedupe->kept[node->id] : node;
}

/* Whether the node gives any elements. Empty tensors have nothing in flight, but their start needs a wait, too. */
static bool gives_elements(const struct shoal_node *node)
{
    bool has_any = node->n_values == 0;
    for (size_t i = 0; i < node->n_values; i++) {
        has_any = has_any || node->values[i]->count > 0;
    }
    return has_any;
}

static void note_start(struct dedupe *dedupe, const struct shoal_node *node)
{
    const struct effects_access *accesses;
    size_t n_accesses;
    bool is_under_way = gives_elements(node);
    effects_accesses(dedupe->effects, node, &accesses, &n_accesses);
    for (size_t i = 0; i < n_accesses; i++) {
        uint32_t storage = accesses[i].storage;
        if (accesses[i].writes || accesses[i].creates) {
            dedupe->started_at[storage] = is_under_way ? dedupe->place : dedupe->started_at[storage];
            dedupe->is_computed[storage] = false;
        }
    }
}

static void note_compute(struct dedupe *dedupe, const struct shoal_node *node)
{
    const struct effects_access *accesses;
    size_t n_accesses = 0;
    if (node->op && op_is_builtin(node->op)) {
        effects_accesses(dedupe->effects, node, &accesses, &n_accesses);
    }
    for (size_t i = 0; i < n_accesses; i++) {
        dedupe->is_computed[accesses[i].storage] |= accesses[i].creates;
    }
}

/* Whether what `wait` waits for was computed by ops, and no start has ever written it. */
static bool waits_for_nothing(const struct dedupe *dedupe, const struct shoal_node *wait)
{
    const struct effects_access *accesses;
    size_t n_accesses;
    bool is_nothing = true;
    effects_accesses(dedupe->effects, wait, &accesses, &n_accesses);
    for (size_t i = 0; i < n_accesses; i++) {
        is_nothing &=
            dedupe->is_computed[accesses[i].storage] && dedupe->started_at[accesses[i].storage] == 0;
    }
    return is_nothing;
}

/* Whether a start after `place` has written what `wait` waits for. */
static bool has_started_since(const struct dedupe *dedupe, const struct shoal_node *wait, uint32_t place)
{
    const struct effects_access *accesses;
    size_t n_accesses;
    effects_accesses(dedupe->effects, wait, &accesses, &n_accesses);
    for (size_t i = 0; i < n_accesses; i++) {
        if (accesses[i].writes && dedupe->started_at[accesses[i].storage] > place) {
            return true;
        }
    }
    return false;
}

static shoal_status visit_wait(struct dedupe *dedupe, struct shoal_node *wait)
{
    bool is_known = node_calls(wait, OP_wait_tensor) || node_calls(wait, OP_wait_tensors);
    if (!is_known || wait->n_inputs != 1 || wait->args[0].kind != SHOAL_ARG_NODE) {
        return SHOAL_OK; /* no node gives the same as this wait */
    }
    struct shoal_node *input = resolve(dedupe, wait->inputs[0]);
    struct shoal_node *other = dedupe->result[input->id];
    if (waits_for_nothing(dedupe, wait)) {
        other = input;
    }
    if (other && !has_started_since(dedupe, wait, dedupe->waited_at[input->id])) {
        TRY(mem_grow((void **)&dedupe->removals, &dedupe->removal_capacity, dedupe->n_removals + 1,
                     sizeof dedupe->removals[0]));
        dedupe->removals[dedupe->n_removals++] = (struct replace_pair){.old = wait, .other = other};
        dedupe->kept[wait->id] = other;
        return SHOAL_OK;
    }
    dedupe->result[input->id] = wait;
    dedupe->waited_at[input->id] = dedupe->place;
    dedupe->result[wait->id] = wait;
    dedupe->waited_at[wait->id] = dedupe->place;
    return SHOAL_OK;
}

/* A view of a waited value needs no wait of its own; but it cannot be replaced by another view. Ops such as reshape may
   give views, too. */
static void visit_view(struct dedupe *dedupe, struct shoal_node *node)
{
    bool is_view = (node_flags(node) & SHOAL_OP_VIEW) != 0 ||
                   (node->is_alias && node->op && op_is_builtin(node->op) && effects_is_pure(node));
    struct shoal_node *input = is_view && node->n_inputs == 1 ? resolve(dedupe, node->inputs[0]) : NULL;
    if (input && dedupe->result[input->id] == input) {
        dedupe->result[node->id] = node;
        dedupe->waited_at[node->id] = dedupe->waited_at[input->id];
    }
}

static shoal_status visit_all(struct dedupe *dedupe, struct shoal_graph *graph)
{
    GRAPH_EACH(graph, node)
    {
        uint32_t flags = node_flags(node);
        dedupe->place++;
        if ((flags & SHOAL_OP_WAIT) != 0) {
            TRY(visit_wait(dedupe, node));
        } else if ((flags & SHOAL_OP_COLLECTIVE) != 0) {
            note_start(dedupe, node);
        } else {
            note_compute(dedupe, node);
            visit_view(dedupe, node);
        }
    }
    if (dedupe->n_removals == 0) {
        return SHOAL_OK;
    }
    TRY(graph_replace_many(graph, dedupe->removals, dedupe->n_removals));
    while (dedupe->n_removals > 0) {
        TRY(shoal_node_erase(dedupe->removals[--dedupe->n_removals].old));
    }
    return SHOAL_OK;
}

shoal_status pass_dedupe_waits(shoal_graph *graph, const shoal_pass_options *options,
                               shoal_pass_report *report, void *context)
{
    struct dedupe dedupe = {.place = 0};
    (void)options;
    (void)report;
    (void)context;
    TRY(effects_build(graph, &dedupe.effects));
    dedupe.result = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof dedupe.result[0]);
    dedupe.waited_at = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof dedupe.waited_at[0]);
    dedupe.started_at = mem_alloc_zeroed(effects_n_storages(dedupe.effects) + 1, sizeof dedupe.started_at[0]);
    dedupe.is_computed =
        mem_alloc_zeroed(effects_n_storages(dedupe.effects) + 1, sizeof dedupe.is_computed[0]);
    dedupe.kept = mem_alloc_zeroed((size_t)graph->n_ids + 1, sizeof dedupe.kept[0]);
    bool has_memory =
        dedupe.result && dedupe.waited_at && dedupe.started_at && dedupe.is_computed && dedupe.kept;
    shoal_status status = has_memory ? visit_all(&dedupe, graph) : SHOAL_ERR_NO_MEMORY;
    effects_free(dedupe.effects);
    mem_free(dedupe.result);
    mem_free(dedupe.waited_at);
    mem_free(dedupe.started_at);
    mem_free(dedupe.is_computed);
    mem_free(dedupe.kept);
    mem_free(dedupe.removals);
    return status;
}
