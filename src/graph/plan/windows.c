/* SPDX-License-Identifier: MIT */
/*
 * Assigns a window to each gather. A gather may use a window again whose previous gather has been released on all
 * members when this one starts. Of the free windows it takes the smallest that is large enough, or else the largest,
 * which grows. The choice depends only on what all members have in common, so all of them make the same windows.
 * Nothing here can fail, because a member that failed alone would leave the others waiting.
 */
#include "graph/plan/plan.h"

static bool is_better(size_t bytes, size_t best_bytes, size_t wanted)
{
    return best_bytes < wanted ? bytes > best_bytes : bytes >= wanted && bytes < best_bytes;
}

static uint32_t find_window(struct shoal_plan *plan, const struct plan_gather *gather)
{
    size_t best = plan->n_windows;
    for (size_t i = 0; i < plan->n_windows; i++) {
        const struct plan_window *window = &plan->windows[i];
        bool is_free = window->group == gather->group && window->free_from <= gather->ordinal;
        if (is_free &&
            (best == plan->n_windows || is_better(window->bytes, plan->windows[best].bytes, gather->bytes))) {
            best = i;
        }
    }
    if (best == plan->n_windows) { /* lowering has made room for as many as there are gathers */
        plan->windows[plan->n_windows++] = (struct plan_window){.group = gather->group};
    }
    struct plan_window *window = &plan->windows[best];
    window->bytes = gather->bytes > window->bytes ? gather->bytes : window->bytes;
    window->free_from = gather->free_from;
    return (uint32_t)best;
}

static void take_needs(struct shoal_plan *plan)
{
    for (size_t i = 0; i < plan->n_groups; i++) {
        plan->groups[i].comm_bytes = (size_t)plan->groups[i].needs[0];
    }
    for (size_t i = 0; i < plan->n_gathers; i++) {
        struct plan_gather *gather = &plan->gathers[i];
        gather->free_from = (uint32_t)plan->groups[gather->group].needs[1 + gather->ordinal];
    }
}

void plan_assign_windows(struct shoal_plan *plan)
{
    take_needs(plan);
    plan->n_windows = 0;
    for (size_t i = 0; i < plan->n_gathers; i++) {
        struct plan_gather *gather = &plan->gathers[i];
        gather->window = find_window(plan, gather);
        plan->collectives[gather->collective].window = gather->window;
    }
    for (size_t i = 0; i < plan->n_buffers; i++) {
        if (plan->buffers[i].place == PLAN_WINDOW) {
            plan->buffers[i].index = plan->gathers[plan->buffers[i].gather].window;
        }
    }
    for (size_t i = 0; i < plan->n_steps; i++) {
        if (plan->steps[i].kind == PLAN_RELEASE) {
            plan->steps[i].window = plan->gathers[plan->steps[i].gather].window;
        }
    }
}
