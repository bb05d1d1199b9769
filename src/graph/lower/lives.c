/* SPDX-License-Identifier: MIT */
/*
 * Computes the life of each buffer: from the first step that touches it to the last. A collective touches its buffers
 * in the step that starts it and in the first wait for it, so memory in flight is in use until then.
 */
#include "base/mem.h"
#include "graph/lower/lower.h"
#include "op/op.h"

static void touch(struct shoal_lowering *lowering, const shoal_tensor *tensor, uint32_t step)
{
    if (!tensor) {
        return;
    }
    struct plan_buffer *buffer = &lowering->plan->buffers[lower_buffer_of(lowering, tensor)];
    bool is_there = buffer->place == PLAN_INPUT || buffer->place == PLAN_CONSTANT;
    if (buffer->first == PLAN_NONE && !is_there) {
        buffer->first = step;
    }
    buffer->last = step;
}

static void touch_value(struct shoal_lowering *lowering, const shoal_value *value, uint32_t step)
{
    if (value->kind == SHOAL_VALUE_TENSOR) {
        touch(lowering, value->as.tensor, step);
    }
    for (size_t i = 0; value->kind == SHOAL_VALUE_TENSORS && i < value->count; i++) {
        touch(lowering, value->as.tensors[i], step);
    }
}

static void touch_collective(struct shoal_lowering *lowering, const struct plan_collective *collective,
                             uint32_t step)
{
    for (size_t i = 0; i < collective->n_pieces; i++) {
        touch(lowering, collective->sends[i], step);
        touch(lowering, collective->receives[i], step);
    }
}

static void touch_step(struct shoal_lowering *lowering, uint32_t index, bool *has_ended)
{
    const struct plan_step *step = &lowering->plan->steps[index];
    size_t n_arguments = step->arguments ? step->op->n_params : 0;
    for (size_t i = 0; i < n_arguments; i++) {
        touch_value(lowering, &step->arguments[i], index);
    }
    for (size_t i = 0; i < step->n_outputs; i++) {
        touch(lowering, step->outputs[i], index);
    }
    if (step->collective != PLAN_NONE && !has_ended[step->collective]) {
        touch_collective(lowering, &lowering->plan->collectives[step->collective], index);
        has_ended[step->collective] = step->kind == PLAN_WAIT;
    }
}

shoal_status lower_find_lives(struct shoal_lowering *lowering)
{
    struct shoal_plan *plan = lowering->plan;
    bool *has_ended = mem_alloc_zeroed(plan->n_collectives + 1, sizeof *has_ended);
    if (!has_ended) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < plan->n_buffers; i++) {
        plan->buffers[i].first = PLAN_NONE;
        plan->buffers[i].last = 0;
    }
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        touch_step(lowering, i, has_ended);
    }
    mem_free(has_ended);
    for (size_t i = 0; i < plan->n_outputs; i++) {
        if (plan->outputs[i].buffer != PLAN_NONE) {
            struct plan_buffer *buffer = &plan->buffers[plan->outputs[i].buffer];
            bool is_there = buffer->place == PLAN_INPUT || buffer->place == PLAN_CONSTANT;
            buffer->first = buffer->first == PLAN_NONE && !is_there ? 0 : buffer->first;
            buffer->last = (uint32_t)plan->n_steps;
        }
    }
    for (size_t i = 0; i < plan->n_buffers; i++) {
        struct plan_buffer *buffer = &plan->buffers[i];
        if (buffer->place == PLAN_SLOT) {
            buffer->first = plan->buffers[buffer->index].first;
            buffer->last = plan->buffers[buffer->index].last;
        } else if ((buffer->place == PLAN_POOL || buffer->place == PLAN_WINDOW) &&
                   buffer->first == PLAN_NONE) {
            /* No step uses the buffer. */
            buffer->first = 0;
            buffer->bytes = 0;
        }
    }
    return SHOAL_OK;
}
