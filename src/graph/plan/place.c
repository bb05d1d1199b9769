/* SPDX-License-Identifier: MIT */
/*
 * Computes where buffers lie. Each area (the pool, the outputs, the comm memory of each group) is packed on its own:
 * buffers that are in use in the same step share no byte. Outputs, in whatever area, share with no other buffer,
 * because they are valid until the next run. graph/plan/pack.c packs an area in several ways, and the smallest result is
 * taken:
 *
 *   - in the order of time, and backwards: memory whose life is over goes into bins by size, and the smallest hole of
 *     the first bin with a fitting one is taken. Takes n log n time.
 *   - the largest buffer first, each into the smallest gap between those that it overlaps in time. Takes quadratic
 *     time, so only for few buffers.
 *
 * Nothing depends on addresses, so ranks with the same buffers get the same offsets.
 */
#include <stdint.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/plan/pack.h"
#include "graph/plan/plan.h"

#define ALIGNMENT MEM_DATA_ALIGNMENT

static size_t align_up(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The items that are placed in one area: buffers, and the scratch memory of steps. */
struct placement {
    struct shoal_plan *plan;
    struct pack_item *items;
    size_t n_items;
    size_t bytes; /* of all items, of all areas */
};

static void add_item(struct placement *placement, size_t bytes, uint32_t first, uint32_t last, size_t *offset)
{
    if (bytes == 0) {
        *offset = 0;
        return;
    }
    size_t room = PTRDIFF_MAX - placement->bytes;
    placement->bytes += align_up(bytes) < room ? align_up(bytes) : room;
    placement->items[placement->n_items++] =
        (struct pack_item){.bytes = align_up(bytes), .first = first, .last = last, .offset = offset};
}

/* Outputs are in use in all steps. */
static void add_buffer(struct placement *placement, struct plan_buffer *buffer, bool allows_reuse)
{
    uint32_t n_steps = (uint32_t)placement->plan->n_steps;
    bool is_kept = !allows_reuse || buffer->last == n_steps;
    add_item(placement, buffer->bytes, is_kept ? 0 : buffer->first, is_kept ? n_steps : buffer->last,
             &buffer->offset);
}

static shoal_status place_area(struct placement *placement, enum plan_place place, uint32_t index,
                               bool allows_reuse, size_t *bytes_out)
{
    struct shoal_plan *plan = placement->plan;
    placement->n_items = 0;
    for (size_t i = 0; i < plan->n_buffers; i++) {
        struct plan_buffer *buffer = &plan->buffers[i];
        if (buffer->place == place && (place != PLAN_COMM || buffer->index == index)) {
            add_buffer(placement, buffer, allows_reuse);
        }
    }
    for (uint32_t i = 0; place == PLAN_POOL && i < plan->n_steps; i++) {
        struct plan_step *step = &plan->steps[i];
        bool is_kept = !allows_reuse;
        add_item(placement, step->workspace_bytes, is_kept ? 0 : i, is_kept ? (uint32_t)plan->n_steps : i,
                 &step->workspace_offset);
    }
    if (placement->bytes == PTRDIFF_MAX) {
        return error_set(SHOAL_ERR_NO_MEMORY, "the buffers of the plan are more than memory can hold");
    }
    return pack(placement->items, placement->n_items, bytes_out);
}

static shoal_status place_areas(struct placement *placement, bool allows_reuse)
{
    struct shoal_plan *plan = placement->plan;
    TRY(place_area(placement, PLAN_POOL, 0, allows_reuse, &plan->pool_bytes));
    TRY(place_area(placement, PLAN_OUTPUT, 0, /*allows_reuse=*/false, &plan->output_bytes));
    for (uint32_t i = 0; i < plan->n_groups; i++) {
        TRY(place_area(placement, PLAN_COMM, i, allows_reuse, &plan->groups[i].comm_bytes));
    }
    return SHOAL_OK;
}

/* Finds the most bytes of pool and outputs that are in use in one step. */
static shoal_status find_peak(struct shoal_plan *plan)
{
    int64_t *changes = mem_alloc_zeroed(plan->n_steps + 2, sizeof *changes);
    int64_t bytes = 0;
    if (!changes) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < plan->n_buffers; i++) {
        const struct plan_buffer *buffer = &plan->buffers[i];
        if (buffer->place == PLAN_POOL || buffer->place == PLAN_OUTPUT) {
            changes[buffer->first] += (int64_t)buffer->bytes;
            changes[buffer->last + 1] -= (int64_t)buffer->bytes;
        }
    }
    for (size_t i = 0; i < plan->n_steps; i++) {
        changes[i] += (int64_t)plan->steps[i].workspace_bytes;
        changes[i + 1] -= (int64_t)plan->steps[i].workspace_bytes;
    }
    plan->peak_bytes = 0;
    for (size_t i = 0; i <= plan->n_steps; i++) {
        bytes += changes[i];
        plan->peak_bytes = bytes > (int64_t)plan->peak_bytes ? (size_t)bytes : plan->peak_bytes;
    }
    mem_free(changes);
    return SHOAL_OK;
}

shoal_status plan_place(struct shoal_plan *plan, bool allows_reuse)
{
    struct placement placement = {.plan = plan};
    placement.items = mem_alloc_zeroed(plan->n_buffers + plan->n_steps + 1, sizeof *placement.items);
    if (!placement.items) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = place_areas(&placement, allows_reuse);
    mem_free(placement.items);
    return status == SHOAL_OK ? find_peak(plan) : status;
}
