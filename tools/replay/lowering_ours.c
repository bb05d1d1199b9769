/* SPDX-License-Identifier: MIT */
/* Lowers a graph with the library, and finds in the plan what was decided. */
#include <string.h>

#include "graph/plan/plan.h"
#include "lowering.h"
#include "op/op.h"
#include "shoal/compile.h"
#include "shoal/status.h"
#include "tensor/tensor.h"

static uint32_t find_buffer(const struct shoal_plan *plan, const shoal_tensor *tensor)
{
    for (size_t i = 0; i < plan->n_buffers; i++) {
        if (plan->buffers[i].storage == tensor->storage) {
            return (uint32_t)i;
        }
    }
    return PLAN_NONE;
}

static bool is_copy(const struct plan_step *step)
{
    return step->kind == PLAN_CALL && step->op->index == OP_copy_;
}

/* Whether a copy before the step wrote the tensor. */
static bool was_copied(const struct shoal_plan *plan, size_t before, const shoal_tensor *tensor)
{
    for (size_t i = before; i > 0; i--) {
        const struct plan_step *step = &plan->steps[i - 1];
        if (is_copy(step) && step->arguments[0].as.tensor->storage == tensor->storage) {
            return true;
        }
    }
    return false;
}

static void add_start(const struct shoal_plan *plan, size_t at, struct lowering_decisions *decisions)
{
    const struct plan_collective *collective = &plan->collectives[plan->steps[at].collective];
    bool is_in_place = collective->n_pieces > 0 && !collective->sends[0];
    lowering_begin(decisions, collective->op->name, is_in_place);
    for (size_t i = 0; i < collective->n_pieces; i++) {
        const shoal_tensor *tensor = is_in_place ? collective->receives[i] : collective->sends[i];
        uint32_t buffer = find_buffer(plan, tensor);
        enum plan_place place = buffer == PLAN_NONE ? PLAN_POOL : plan->buffers[buffer].place;
        lowering_add_source(decisions, place == PLAN_INPUT            ? LOWERING_INPUT
                                       : was_copied(plan, at, tensor) ? LOWERING_COPY
                                                                      : LOWERING_TEMPORARY);
    }
}

static void read_plan(const struct shoal_plan *plan, struct lowering_decisions *decisions)
{
    for (size_t i = 0; i < plan->n_steps; i++) {
        const struct plan_step *step = &plan->steps[i];
        if (step->kind == PLAN_START || step->kind == PLAN_BLOCK) {
            add_start(plan, i, decisions);
        } else if (step->kind == PLAN_WAIT) {
            lowering_add_wait(decisions, step->collective);
        } else if (step->kind == PLAN_CALL && !is_copy(step)) {
            lowering_add_kernel(decisions);
        }
    }
}

static shoal_status lower(const struct lowering_text *text, bool reorders, struct shoal_plan **plan_out)
{
    static const char *const passes[] = {"reorder_compute_for_overlap"};
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    struct plan_target target = {.rank = 0};
    shoal_graph *graph = NULL;
    shoal_status status = shoal_graph_parse(text->bytes, text->length, &graph);
    status = status == SHOAL_OK ? shoal_graph_lint(graph) : status;
    if (status == SHOAL_OK && reorders) {
        status = shoal_graph_run_passes(graph, passes, 1, NULL, NULL);
    }
    status = status == SHOAL_OK ? plan_lower(graph, &options, &target, plan_out) : status;
    shoal_graph_free(graph);
    return status;
}

bool lowering_decide(const struct lowering_text *graph, bool reorders, struct lowering_decisions *decisions,
                     struct lowering_text *reason)
{
    struct shoal_plan *plan = NULL;
    if (lower(graph, reorders, &plan) != SHOAL_OK) {
        lowering_write(reason, "%.400s", shoal_error_text());
        return false;
    }
    if (plan->n_collectives >= LOWERING_MAX_COLLECTIVES) {
        lowering_write(reason, "it has %zu collectives", plan->n_collectives);
        plan_destroy(plan);
        return false;
    }
    read_plan(plan, decisions);
    plan_destroy(plan);
    return true;
}
