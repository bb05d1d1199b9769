/* SPDX-License-Identifier: MIT */
/*
 * Adds a release of a window after the last step that reads a gather's results. Also finds, for each gather, the first
 * later gather of its group that may use the same window; ranks agree on that before windows are assigned
 * (graph/plan/windows.c).
 */
#include "base/mem.h"
#include "base/try.h"
#include "graph/lower/lower.h"

static void find_ends(struct shoal_lowering *lowering)
{
    struct shoal_plan *plan = lowering->plan;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        const struct plan_step *step = &plan->steps[i];
        if (step->kind == PLAN_WAIT && lowering->gather_of[step->collective]) {
            lowering->gather_of[step->collective]->last = i;
        }
    }
    for (size_t i = 0; i < plan->n_buffers; i++) {
        const struct plan_buffer *buffer = &plan->buffers[i];
        if (buffer->place == PLAN_WINDOW && buffer->first != PLAN_NONE) {
            struct window_gather *gather = lowering->gather_at[buffer->gather];
            gather->last = buffer->last > gather->last ? buffer->last : gather->last;
        }
    }
}

/* Inserts the releases between the steps. `ends` lists the gathers by their last step. */
static shoal_status insert_releases(struct shoal_lowering *lowering, struct window_gather **ends)
{
    struct shoal_plan *plan = lowering->plan;
    size_t n_steps = plan->n_steps + lowering->n_gathers;
    struct plan_step *steps = mem_alloc_zeroed(n_steps, sizeof *steps);
    size_t n = 0;
    if (!steps) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < plan->n_steps; i++) {
        steps[n++] = plan->steps[i];
        for (const struct window_gather *gather = ends[i]; gather; gather = gather->next_end) {
            steps[n++] = (struct plan_step){.kind = PLAN_RELEASE,
                                            .node = plan->collectives[gather->collective].node,
                                            .group = PLAN_NONE,
                                            .collective = PLAN_NONE,
                                            .window = PLAN_NONE,
                                            .gather = gather->number};
        }
    }
    mem_free(plan->steps);
    plan->steps = steps;
    plan->n_steps = n;
    plan->steps_capacity = n_steps;
    return SHOAL_OK;
}

static shoal_status release(struct shoal_lowering *lowering)
{
    struct shoal_plan *plan = lowering->plan;
    find_ends(lowering);
    struct window_gather **ends = mem_alloc_zeroed(plan->n_steps, sizeof(struct window_gather *));
    if (!ends) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = lowering->n_gathers; i > 0; i--) {
        struct window_gather *gather = lowering->gather_at[i - 1];
        gather->next_end = ends[gather->last];
        ends[gather->last] = gather;
    }
    shoal_status status = insert_releases(lowering, ends);
    mem_free((void *)ends);
    return status;
}

shoal_status lower_release_windows(struct shoal_lowering *lowering)
{
    struct shoal_plan *plan = lowering->plan;
    size_t n = 0;
    if (lowering->n_gathers == 0) {
        return SHOAL_OK;
    }
    lowering->gather_of =
        arena_alloc(&lowering->scratch, plan->n_collectives, sizeof(struct window_gather *));
    lowering->gather_at =
        arena_alloc(&lowering->scratch, lowering->n_gathers, sizeof(struct window_gather *));
    if (!lowering->gather_of || !lowering->gather_at) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (struct window_gather *gather = lowering->gathers; gather; gather = gather->next) {
        lowering->gather_of[gather->collective] = gather;
        gather->number = (uint32_t)n;
        lowering->gather_at[n++] = gather;
    }
    TRY(release(lowering));
    return lower_find_lives(lowering);
}

/* Finds free_from of each gather of the group (struct plan_gather), and appends it to the group's needs. `of_group` has
   room for all gathers. */
static void find_free_from(struct shoal_lowering *lowering, struct plan_group *group, uint32_t index,
                           struct window_gather **of_group)
{
    uint32_t n = 0;
    for (struct window_gather *gather = lowering->gathers; gather; gather = gather->next) {
        if (gather->group == index) {
            lowering->plan->gathers[gather->number].ordinal = n;
            of_group[n++] = gather;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t low = i + 1; /* the first gather that starts after the last use is in [low, high] */
        uint32_t high = n;
        while (low < high) {
            uint32_t middle = low + (high - low) / 2;
            if (of_group[middle]->first > of_group[i]->last) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        group->needs[group->n_needs++] = low;
    }
}

shoal_status lower_find_needs(struct shoal_lowering *lowering)
{
    struct shoal_plan *plan = lowering->plan;
    size_t n_gathers = lowering->n_gathers;
    plan->gathers = arena_alloc(&plan->arena, n_gathers + 1, sizeof *plan->gathers);
    struct window_gather **of_group =
        arena_alloc(&lowering->scratch, n_gathers + 1, sizeof(struct window_gather *));
    if (!plan->gathers || !of_group) {
        return SHOAL_ERR_NO_MEMORY;
    }
    plan->n_gathers = n_gathers;
    for (const struct window_gather *gather = lowering->gathers; gather; gather = gather->next) {
        plan->gathers[gather->number] = (struct plan_gather){
            .group = gather->group, .collective = gather->collective, .bytes = gather->bytes};
    }
    for (uint32_t i = 0; i < plan->n_groups; i++) {
        struct plan_group *group = &plan->groups[i];
        group->needs = arena_alloc(&plan->arena, n_gathers + 1, sizeof *group->needs);
        if (!group->needs) {
            return SHOAL_ERR_NO_MEMORY;
        }
        group->needs[group->n_needs++] = (int64_t)group->comm_bytes;
        find_free_from(lowering, group, i, of_group);
    }
    TRY(mem_grow((void **)&plan->windows, &plan->windows_capacity, n_gathers + 1, sizeof *plan->windows));
    plan_assign_windows(plan);
    return SHOAL_OK;
}
