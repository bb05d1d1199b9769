/* SPDX-License-Identifier: MIT */
/*
 * Windows for gathers, and their releases. A gather has its window from its start to the last step that reads it; a release follows
 * that. Gathers of a group whose times are apart share a window. Times differ between ranks in nothing but steps that some ranks
 * make and others do not, so the same gathers share everywhere.
 */
#include "base/mem.h"
#include "base/try.h"
#include "graph/lower.h"

/* Until when each window is in use. */
struct window_use {
    uint32_t until;
};

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
            struct window_gather *gather = lowering->gather_at[buffer->index];
            gather->last = buffer->last > gather->last ? buffer->last : gather->last;
        }
    }
}

/* The smallest that is large enough, or else the largest; a new one when all are in use. */
static shoal_status find_window(struct shoal_lowering *lowering, struct window_gather *gather,
                                struct window_use **uses, size_t *uses_capacity)
{
    struct shoal_plan *plan = lowering->plan;
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < plan->n_windows; i++) {
        const struct plan_window *window = &plan->windows[i];
        if (window->group != gather->group || (*uses)[i].until >= gather->first) {
            continue;
        }
        size_t bytes = window->bytes;
        size_t best_bytes = best == SIZE_MAX ? 0 : plan->windows[best].bytes;
        bool is_better =
            best_bytes < gather->bytes ? bytes > best_bytes : bytes >= gather->bytes && bytes < best_bytes;
        best = best == SIZE_MAX || is_better ? i : best;
    }
    if (best == SIZE_MAX) {
        TRY(mem_grow((void **)&plan->windows, &plan->windows_capacity, plan->n_windows + 1,
                     sizeof *plan->windows));
        TRY(mem_grow((void **)uses, uses_capacity, plan->n_windows + 1, sizeof **uses));
        best = plan->n_windows++;
        plan->windows[best] = (struct plan_window){.group = gather->group};
    }
    struct plan_window *window = &plan->windows[best];
    window->bytes = gather->bytes > window->bytes ? gather->bytes : window->bytes;
    (*uses)[best].until = gather->last;
    gather->window = (uint32_t)best;
    return SHOAL_OK;
}

static shoal_status find_windows(struct shoal_lowering *lowering)
{
    struct window_use *uses = NULL;
    size_t uses_capacity = 0;
    shoal_status status = SHOAL_OK;
    for (struct window_gather *gather = lowering->gathers; gather && status == SHOAL_OK;
         gather = gather->next) {
        status = find_window(lowering, gather, &uses, &uses_capacity);
        lowering->plan->collectives[gather->collective].window = gather->window;
    }
    mem_free(uses);
    return status;
}

/* Steps with releases among them: `ends` lists the gathers by their last step. */
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
                                            .window = gather->window};
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
    TRY(find_windows(lowering));
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
        lowering->gather_at[n++] = gather;
    }
    TRY(release(lowering));
    for (size_t i = 0; i < plan->n_buffers; i++) {
        if (plan->buffers[i].place == PLAN_WINDOW) {
            plan->buffers[i].index = lowering->gather_at[plan->buffers[i].index]->window;
        }
    }
    return lower_find_lives(lowering);
}
