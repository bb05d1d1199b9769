/* SPDX-License-Identifier: MIT */
/*
 * Waits. All results of a start come from one work. The first wait ends it, and makes the copies that follow it; later
 * waits only ask for its status. A blocking start ends in its own step and needs no wait.
 */
#include "base/try.h"
#include "graph/lower/lower.h"
#include "op/op.h"

static shoal_status wait_eager(struct shoal_lowering *lowering, const struct lowered_start *start)
{
    struct plan_step step = {.kind = PLAN_EAGER,
                             .op = op_get(OP_wait_tensors),
                             .group = PLAN_NONE,
                             .collective = PLAN_NONE,
                             .window = PLAN_NONE};
    if (start->has_ended) {
        return SHOAL_OK;
    }
    step.arguments = arena_alloc(&lowering->plan->arena, 1, sizeof *step.arguments);
    if (!step.arguments) {
        return SHOAL_ERR_NO_MEMORY;
    }
    step.arguments[0] = start->eager;
    return lower_add_step(lowering, &step);
}

shoal_status lower_end_start(struct shoal_lowering *lowering, struct lowered_start *start)
{
    if (start->collective == PLAN_NONE) {
        TRY(wait_eager(lowering, start));
    } else if (!start->skips_wait) {
        struct plan_step step = {.kind = PLAN_WAIT,
                                 .op = op_get(OP_wait_tensor),
                                 .group = PLAN_NONE,
                                 .collective = start->collective,
                                 .window = PLAN_NONE};
        TRY(lower_add_step(lowering, &step));
    }
    if (!start->has_ended) {
        lower_count_in_flight(lowering, start, -1);
    }
    for (const struct late_copy *copy = start->has_ended ? NULL : start->copies; copy; copy = copy->next) {
        TRY(lower_copy(lowering, copy->to, copy->from));
    }
    start->has_ended = true;
    return SHOAL_OK;
}

/* Called by flight_wait for each start that a wait ends. */
static shoal_status end_waited(void *context, const struct shoal_node *node, bool is_certain)
{
    struct shoal_lowering *lowering = context;
    uint32_t start = lowering->nodes[node->id].start;
    (void)is_certain; /* always true, because this rank is known */
    return start > 0 && !lowering->starts[start - 1].has_ended
               ? lower_end_start(lowering, &lowering->starts[start - 1])
               : SHOAL_OK;
}

/* Ends the starts in whose memory the waited tensors lie. If that adds no step, the start whose result they are has
   ended before; a wait is added all the same, so that its status is asked for. */
shoal_status lower_wait(struct shoal_lowering *lowering, struct shoal_node *node)
{
    size_t n_steps = lowering->plan->n_steps;
    TRY(flight_wait(&lowering->flight, node, end_waited, lowering));
    uint32_t last = 0;
    for (size_t i = 0; i < node->n_inputs && lowering->plan->n_steps == n_steps; i++) {
        uint32_t start = lowering->nodes[node->inputs[i]->id].start;
        if (start > 0 && start != last) {
            TRY(lower_end_start(lowering, &lowering->starts[start - 1]));
            last = start;
        }
    }
    return SHOAL_OK;
}

shoal_status lower_wait_all(struct shoal_lowering *lowering)
{
    for (size_t i = 0; i < lowering->n_starts; i++) {
        struct lowered_start *start = &lowering->starts[i];
        bool is_done = start->has_ended || (start->skips_wait && !start->copies);
        if (!is_done) {
            TRY(lower_end_start(lowering, start));
        }
    }
    return SHOAL_OK;
}

void lower_pass_start(struct shoal_lowering *lowering, const struct shoal_node *node)
{
    for (size_t i = 0; i < node->n_inputs && node->n_values > 0; i++) {
        const struct shoal_node *input = node->inputs[i];
        uint32_t start = lowering->nodes[input->id].start;
        for (size_t k = 0; k < input->n_values && start > 0; k++) {
            if (input->values[k]->storage == node->values[0]->storage) {
                lowering->nodes[node->id].start = start;
                return;
            }
        }
    }
}
