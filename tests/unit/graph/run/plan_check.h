/* SPDX-License-Identifier: MIT */
/*
 * Checks the rules of graph/plan/place.c for every pair of buffers, and the lives of buffers by the steps themselves, so
 * that a wrong life is found as well as a wrong offset. Slow and simple.
 */
#ifndef UNIT_GRAPH_PLAN_CHECK_H
#define UNIT_GRAPH_PLAN_CHECK_H

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/plan/plan.h"
#include "op/op.h"

struct check {
    const struct shoal_plan *plan;
    uint32_t step;
    bool *is_running; /* by collective */
};

static inline bool is_memory(const struct plan_buffer *buffer)
{
    return buffer->place == PLAN_POOL || buffer->place == PLAN_OUTPUT || buffer->place == PLAN_COMM ||
           buffer->place == PLAN_WINDOW;
}

static inline size_t area_bytes(const struct shoal_plan *plan, const struct plan_buffer *buffer)
{
    switch (buffer->place) {
    case PLAN_POOL:
        return plan->pool_bytes;
    case PLAN_OUTPUT:
        return plan->output_bytes;
    case PLAN_COMM:
        return plan->groups[buffer->index].comm_bytes;
    case PLAN_WINDOW:
        return plan->windows[buffer->index].bytes;
    case PLAN_SLOT:
        return plan->buffers[buffer->index].bytes;
    case PLAN_INPUT:
    case PLAN_CONSTANT:
        break;
    }
    return SIZE_MAX;
}

static inline bool shares_bytes(const struct plan_buffer *a, const struct plan_buffer *b)
{
    bool is_one_area =
        a->place == b->place && ((a->place != PLAN_COMM && a->place != PLAN_WINDOW) || a->index == b->index);
    return is_one_area && a->bytes > 0 && b->bytes > 0 && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static inline bool is_output(const struct shoal_plan *plan, size_t index)
{
    for (size_t i = 0; i < plan->n_outputs; i++) {
        if (plan->outputs[i].buffer == index) {
            return true;
        }
    }
    return false;
}

/* Pairs ------------------------------------------------------------------------------------------------ */

static inline shoal_status check_pair(const struct shoal_plan *plan, size_t a, size_t b)
{
    const struct plan_buffer *x = &plan->buffers[a];
    const struct plan_buffer *y = &plan->buffers[b];
    if (!is_memory(x) || !is_memory(y) || !shares_bytes(x, y)) {
        return SHOAL_OK;
    }
    if (is_output(plan, a) || is_output(plan, b)) {
        return error_set(SHOAL_ERR_INTERNAL, "buffers %s and %s share bytes, and one is an output", x->name,
                         y->name);
    }
    if (x->first <= y->last && y->first <= x->last) {
        return error_set(SHOAL_ERR_INTERNAL, "buffers %s and %s share bytes, and are in use at step %u",
                         x->name, y->name, x->first > y->first ? x->first : y->first);
    }
    return SHOAL_OK;
}

static inline shoal_status check_buffer(const struct shoal_plan *plan, size_t index)
{
    const struct plan_buffer *buffer = &plan->buffers[index];
    size_t bytes = area_bytes(plan, buffer);
    if ((is_memory(buffer) || buffer->place == PLAN_SLOT) &&
        (buffer->bytes > bytes || buffer->offset > bytes - buffer->bytes)) {
        return error_set(SHOAL_ERR_INTERNAL, "buffer %s lies outside of its area", buffer->name);
    }
    if (is_memory(buffer) && buffer->place != PLAN_WINDOW && buffer->offset % MEM_DATA_ALIGNMENT != 0) {
        return error_set(SHOAL_ERR_INTERNAL, "buffer %s is not aligned", buffer->name);
    }
    if (is_output(plan, index) && buffer->last != plan->n_steps) {
        return error_set(SHOAL_ERR_INTERNAL, "buffer %s is an output, but its life ends at step %u",
                         buffer->name, buffer->last);
    }
    for (size_t i = 0; i < index; i++) {
        TRY(check_pair(plan, i, index));
    }
    return SHOAL_OK;
}

/* Checks a step's scratch memory against all buffers that are in use in that step. */
static inline shoal_status check_workspace(const struct shoal_plan *plan, uint32_t index)
{
    const struct plan_step *step = &plan->steps[index];
    struct plan_buffer scratch = {
        .place = PLAN_POOL, .offset = step->workspace_offset, .bytes = step->workspace_bytes};
    for (size_t i = 0; i < plan->n_buffers && step->workspace_bytes > 0; i++) {
        const struct plan_buffer *buffer = &plan->buffers[i];
        if (buffer->first <= index && index <= buffer->last && shares_bytes(buffer, &scratch)) {
            return error_set(SHOAL_ERR_INTERNAL, "the scratch memory of step %u lies in buffer %s", index,
                             buffer->name);
        }
    }
    return SHOAL_OK;
}

/* Lives ------------------------------------------------------------------------------------------------ */

static inline shoal_status check_touch(const struct check *check, const shoal_tensor *tensor)
{
    const struct shoal_plan *plan = check->plan;
    for (size_t i = 0; tensor && i < plan->n_buffers; i++) {
        const struct plan_buffer *buffer = &plan->buffers[i];
        bool is_over =
            buffer->last < check->step || (buffer->first != PLAN_NONE && buffer->first > check->step);
        if (buffer->storage == tensor->storage && buffer->place != PLAN_SLOT && buffer->bytes > 0 &&
            is_over) {
            return error_set(SHOAL_ERR_INTERNAL, "step %u touches buffer %s, which lives from %u to %u",
                             check->step, buffer->name, buffer->first, buffer->last);
        }
    }
    return SHOAL_OK;
}

static inline shoal_status check_collective(const struct check *check, uint32_t index)
{
    const struct plan_collective *collective = &check->plan->collectives[index];
    for (size_t i = 0; i < collective->n_pieces; i++) {
        TRY(check_touch(check, collective->sends[i]));
        TRY(check_touch(check, collective->receives[i]));
    }
    return SHOAL_OK;
}

static inline shoal_status check_values(const struct check *check, const struct plan_step *step)
{
    for (size_t i = 0; step->arguments && i < step->op->n_params; i++) {
        const shoal_value *value = &step->arguments[i];
        if (value->kind == SHOAL_VALUE_TENSOR) {
            TRY(check_touch(check, value->as.tensor));
        }
        for (size_t k = 0; value->kind == SHOAL_VALUE_TENSORS && k < value->count; k++) {
            TRY(check_touch(check, value->as.tensors[k]));
        }
    }
    for (size_t i = 0; i < step->n_outputs; i++) {
        TRY(check_touch(check, step->outputs[i]));
    }
    return SHOAL_OK;
}

/* A collective that is running counts as touching its buffers in every step. */
static inline shoal_status check_step(struct check *check)
{
    const struct shoal_plan *plan = check->plan;
    const struct plan_step *step = &plan->steps[check->step];
    TRY(check_workspace(plan, check->step));
    TRY(check_values(check, step));
    if (step->kind == PLAN_START || step->kind == PLAN_BLOCK) {
        check->is_running[step->collective] = true;
    }
    for (uint32_t i = 0; i < plan->n_collectives; i++) {
        if (check->is_running[i]) {
            TRY(check_collective(check, i));
        }
    }
    if (step->kind == PLAN_WAIT || step->kind == PLAN_BLOCK) {
        check->is_running[step->collective] = false;
    }
    return SHOAL_OK;
}

static inline shoal_status check_steps(struct check *check)
{
    const struct shoal_plan *plan = check->plan;
    for (check->step = 0; check->step < plan->n_steps; check->step++) {
        TRY(check_step(check));
    }
    for (size_t i = 0; i < plan->n_collectives; i++) {
        if (check->is_running[i]) {
            return error_set(SHOAL_ERR_INTERNAL, "nobody waits for collective %s", plan->collectives[i].node);
        }
    }
    return SHOAL_OK;
}

/* SHOAL_ERR_INTERNAL names a violation. */
static inline shoal_status plan_check(const struct shoal_plan *plan)
{
    struct check check = {.plan = plan};
    for (size_t i = 0; i < plan->n_buffers; i++) {
        TRY(check_buffer(plan, i));
    }
    check.is_running = mem_alloc_zeroed(plan->n_collectives + 1, sizeof *check.is_running);
    if (!check.is_running) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = check_steps(&check);
    mem_free(check.is_running);
    return status;
}

#endif
