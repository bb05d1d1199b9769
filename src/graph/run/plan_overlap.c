/* SPDX-License-Identifier: MIT */
/*
 * Refuses inputs that share memory. The compiler ordered the steps and placed the buffers as if each placeholder had
 * memory of its own. So an input that the plan writes must not overlap another input, and no input may lie in the
 * plan's memory. Inputs that are only read may overlap.
 *
 * The check is made again only if addresses have changed since the run before. Inputs stay sorted by address from run
 * to run, so that sorting is fast if only a few have moved. Nothing is allocated.
 */
#include "base/error.h"
#include "base/try.h"
#include "graph/run/bind.h"

struct area {
    const char *name;
    const char *first;
    size_t bytes;
};

static size_t input_bytes(const struct shoal_plan *plan, uint32_t index)
{
    return plan->buffers[plan->inputs[index]].bytes;
}

/* The plan's memory ---------------------------------------------------------------------------------------- */

static shoal_status check_area(const struct shoal_plan *plan, uint32_t index, struct area area)
{
    uintptr_t first = (uintptr_t)plan->binding->inputs[index].address;
    uintptr_t other = (uintptr_t)area.first;
    bool is_apart = first + input_bytes(plan, index) <= other || other + area.bytes <= first;
    return is_apart ? SHOAL_OK
                    : error_set(SHOAL_ERR_INVALID,
                                "%%%s: the input lies in the plan's own %s memory, which the run overwrites",
                                plan->binding->inputs[index].name, area.name);
}

static shoal_status check_areas(const struct shoal_plan *plan, uint32_t index)
{
    const struct plan_binding *binding = plan->binding;
    if (input_bytes(plan, index) == 0) {
        return SHOAL_OK;
    }
    TRY(check_area(plan, index, (struct area){"pool", binding->pool, plan->pool_bytes}));
    TRY(check_area(plan, index, (struct area){"output", binding->output, plan->output_bytes}));
    for (size_t i = 0; i < plan->n_groups; i++) {
        const struct plan_group *group = &plan->groups[i];
        TRY(check_area(plan, index, (struct area){"comm", group->comm, group->comm_bytes}));
    }
    for (size_t i = 0; i < plan->n_windows; i++) {
        const struct plan_window *window = &plan->windows[i];
        TRY(check_area(plan, index,
                       (struct area){"window", shoal_window_data(window->window), window->bytes}));
    }
    return SHOAL_OK;
}

/* Sorting -------------------------------------------------------------------------------------------------- */

static bool is_before(const struct plan_binding *binding, uint32_t a, uint32_t b)
{
    uintptr_t x = (uintptr_t)binding->inputs[a].address;
    uintptr_t y = (uintptr_t)binding->inputs[b].address;
    return x != y ? x < y : a < b;
}

static void sift(const struct plan_binding *binding, uint32_t *heap, size_t at, size_t count)
{
    for (size_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        child += child + 1 < count && is_before(binding, heap[child], heap[child + 1]);
        if (!is_before(binding, heap[at], heap[child])) {
            return;
        }
        uint32_t down = heap[at];
        heap[at] = heap[child];
        heap[child] = down;
        at = child;
    }
}

static void sort_all(const struct plan_binding *binding, uint32_t *order, size_t count)
{
    for (size_t i = count / 2; i > 0; i--) {
        sift(binding, order, i - 1, count);
    }
    for (size_t i = count; i > 1; i--) {
        uint32_t last = order[0];
        order[0] = order[i - 1];
        order[i - 1] = last;
        sift(binding, order, 0, i - 1);
    }
}

/* Sorts by insertion, which is fast if few are out of place; falls back to heapsort after too many moves. */
static void sort(const struct plan_binding *binding, uint32_t *order, size_t count)
{
    size_t n_moves = 0;
    for (size_t i = 1; i < count; i++) {
        uint32_t moved = order[i];
        size_t at = i;
        for (; at > 0 && is_before(binding, moved, order[at - 1]) && n_moves <= 8 * count; at--) {
            order[at] = order[at - 1];
            n_moves++;
        }
        order[at] = moved;
        if (n_moves > 8 * count) {
            sort_all(binding, order, count);
            return;
        }
    }
}

/* Each other ----------------------------------------------------------------------------------------------- */

/* Of the inputs so far, the one whose end is the highest. */
struct reach {
    uint32_t input; /* PLAN_NONE if there is none */
    uintptr_t end;
};

static shoal_status fail_shared(const struct plan_binding *binding, uint32_t a, uint32_t b)
{
    uint32_t first = a < b ? a : b;
    uint32_t second = a < b ? b : a;
    uint32_t written = binding->inputs[first].is_written ? first : second;
    return error_set(SHOAL_ERR_INVALID, "inputs %%%s and %%%s share memory, and the plan writes %%%s",
                     binding->inputs[first].name, binding->inputs[second].name,
                     binding->inputs[written].name);
}

/* Returns the end of an input. Of a shard and its padded shard in the same memory, the shard counts with the larger
   size, and the other one as empty. */
static uintptr_t find_end(const struct shoal_plan *plan, uint32_t index)
{
    const struct bound_input *input = &plan->binding->inputs[index];
    uintptr_t first = (uintptr_t)input->address;
    size_t bytes = input_bytes(plan, index);
    if (input->twin == PLAN_NONE || plan->binding->inputs[input->twin].address != input->address) {
        return first + bytes;
    }
    size_t twin_bytes = input_bytes(plan, input->twin);
    return first + (input->source ? 0 : bytes < twin_bytes ? twin_bytes : bytes);
}

static shoal_status check_order(const struct shoal_plan *plan)
{
    const struct plan_binding *binding = plan->binding;
    struct reach any = {.input = PLAN_NONE};
    struct reach written = {.input = PLAN_NONE};
    for (size_t i = 0; i < plan->n_inputs; i++) {
        uint32_t index = binding->by_address[i];
        const struct bound_input *input = &binding->inputs[index];
        struct reach own = {.input = index, .end = find_end(plan, index)};
        const struct reach *before = input->is_written ? &any : &written;
        if (own.end == (uintptr_t)input->address) {
            continue;
        }
        if (before->input != PLAN_NONE && (uintptr_t)input->address < before->end) {
            return fail_shared(binding, before->input, index);
        }
        any = any.end < own.end ? own : any;
        written = input->is_written && written.end < own.end ? own : written;
    }
    return SHOAL_OK;
}

shoal_status plan_check_apart(struct shoal_plan *plan)
{
    struct plan_binding *binding = plan->binding;
    bool was_apart = binding->is_apart;
    bool have_moved = !was_apart;
    binding->is_apart = false;
    for (uint32_t i = 0; i < plan->n_inputs; i++) {
        struct bound_input *input = &binding->inputs[i];
        const char *address = address_pointer(plan->buffers[plan->inputs[i]].storage->memory->base);
        if (!was_apart || input->address != address) {
            have_moved = true;
            input->address = address;
            TRY(check_areas(plan, i));
        }
    }
    if (have_moved) {
        sort(binding, binding->by_address, plan->n_inputs);
        TRY(check_order(plan));
    }
    binding->is_apart = true;
    return SHOAL_OK;
}
