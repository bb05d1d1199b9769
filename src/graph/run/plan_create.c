/* SPDX-License-Identifier: MIT */
/* The public calls that make and free plans and give their numbers. */
#include <stdio.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "graph/run/bind.h"
#include "graph/ir/captured.h"
#include "graph/ir/graph.h"
#include "graph/ir/run_groups.h"
#include "shoal/compile.h"

#define ONE_SHOT_MAX_BYTES 131072

/* A plan that is being made. */
struct making {
    const struct shoal_graph *graph;
    shoal_world *world;
    shoal_compile_options options; /* complete */
    shoal_group **groups;          /* by row; NULL if it could not be made */
    size_t n_groups;
    shoal_group *few[8]; /* used for few groups, because an allocation could fail before others are told */
};

static shoal_status make_group(struct making *making, const struct graph_group *row, shoal_group **group_out)
{
    const int *list = NULL;
    TRY(graph_bound_group(row, group_out));
    if (*group_out) {
        making->world = making->world ? making->world : shoal_group_world(*group_out);
        return SHOAL_OK;
    }
    if (!making->world) {
        return error_set(SHOAL_ERR_INVALID, "world is NULL, but the graph has group @%.64s", row->name);
    }
    TRY(run_group_list(row, shoal_world_rank(making->world), shoal_world_n_ranks(making->world), &list));
    return run_group_create(making->world, row->name, list, row->size, group_out);
}

/* Makes all groups, even if one of them fails: plan_bind tells the members of the others about the failure. */
static shoal_status make_groups(struct making *making)
{
    size_t n_groups = 0;
    for (const struct graph_group *row = making->graph->groups; row; row = row->next) {
        n_groups++;
    }
    bool are_few = n_groups <= sizeof making->few / sizeof making->few[0];
    making->groups = are_few ? making->few : mem_alloc_zeroed(n_groups, sizeof(shoal_group *));
    if (!making->groups) {
        return SHOAL_ERR_NO_MEMORY;
    }
    char text[ERROR_TEXT_BYTES] = "";
    shoal_status failed = SHOAL_OK;
    for (const struct graph_group *row = making->graph->groups; row; row = row->next) {
        shoal_status status = make_group(making, row, &making->groups[making->n_groups]);
        if (status != SHOAL_OK) {
            making->groups[making->n_groups] = NULL;
        }
        if (status != SHOAL_OK && failed == SHOAL_OK) {
            failed = status;
            (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        }
        making->n_groups++;
    }
    return failed == SHOAL_OK ? SHOAL_OK : error_set(failed, "%s", text);
}

static bool has_windows(void *context, const struct graph_group *row)
{
    const struct making *making = context;
    size_t i = 0;
    for (const struct graph_group *at = making->graph->groups; at != row; at = at->next) {
        i++;
    }
    return group_has_windows(making->groups[i], SHOAL_CPU);
}

static shoal_status lower(struct making *making, struct shoal_plan **plan_out)
{
    struct plan_target target = {.rank = making->world ? shoal_world_rank(making->world) : 0,
                                 .n_ranks = making->world ? shoal_world_n_ranks(making->world) : 1,
                                 .has_windows = has_windows,
                                 .context = making};
    TRY(shoal_graph_lint(making->graph));
    return plan_lower(making->graph, &making->options, &target, plan_out);
}

static shoal_status create(struct making *making, struct shoal_plan **plan_out)
{
    struct shoal_plan *plan = NULL;
    shoal_status status = make_groups(making);
    status = status == SHOAL_OK ? lower(making, &plan) : status;
    status = plan_bind(plan, making->graph, making->world, &making->options, making->groups, making->n_groups,
                       status);
    if (status != SHOAL_OK) {
        shoal_plan_free(plan);
        return status;
    }
    *plan_out = plan;
    return SHOAL_OK;
}

shoal_status shoal_plan_create(const shoal_graph *graph, shoal_world *world,
                               const shoal_compile_options *options, shoal_plan **plan_out)
{
    struct making making = {.graph = graph, .world = world, .options = SHOAL_COMPILE_OPTIONS_INIT};
    error_clear();
    if (!graph || !plan_out) {
        return error_set(SHOAL_ERR_INVALID, "plan_create: %s is NULL", graph ? "plan_out" : "graph");
    }
    if (options) {
        TRY(struct_size_read("plan_create: options", options, sizeof(size_t), &making.options,
                             sizeof making.options));
    }
    if (making.options.one_shot_max_bytes == 0) {
        making.options.one_shot_max_bytes = ONE_SHOT_MAX_BYTES;
    }
    shoal_status status = world ? world_check(world) : SHOAL_OK;
    if (status == SHOAL_OK) {
        status = create(&making, plan_out);
    }
    mem_free(making.groups != making.few ? making.groups : NULL);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "plan_create");
}

void shoal_plan_free(shoal_plan *plan)
{
    if (plan) {
        char text[ERROR_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        plan_unbind(plan);
        plan_destroy(plan);
        (void)error_set(SHOAL_OK, "%s", text);
    }
}

/* Asking --------------------------------------------------------------------------------------------------- */

static size_t count_bytes(const struct shoal_plan *plan, const struct plan_collective *collective)
{
    if (collective->window != PLAN_NONE) {
        return plan->windows[collective->window].bytes;
    }
    struct collective call = collective->call;
    call.n_pieces = collective->n_pieces;
    return collective_bytes(&call, (int)plan->groups[collective->group].size);
}

shoal_status shoal_plan_get_stats(const shoal_plan *plan, shoal_plan_stats *stats_out)
{
    error_clear();
    if (!plan) {
        return error_set(SHOAL_ERR_INVALID, "plan_get_stats: plan is NULL");
    }
    shoal_plan_stats stats = {.n_steps = plan->n_steps,
                              .n_collectives = plan->n_collectives,
                              .pool_bytes = plan->pool_bytes,
                              .output_bytes = plan->output_bytes,
                              .peak_bytes = plan->peak_bytes,
                              .n_copied_out = plan->n_copied_out};
    for (size_t i = 0; i < plan->n_steps; i++) {
        stats.n_blocking += plan->steps[i].kind == PLAN_BLOCK;
    }
    for (size_t i = 0; i < plan->n_collectives; i++) {
        stats.collective_bytes += count_bytes(plan, &plan->collectives[i]);
    }
    for (size_t i = 0; i < plan->n_groups; i++) {
        stats.comm_bytes += plan->groups[i].comm_bytes;
    }
    for (size_t i = 0; i < plan->n_windows; i++) {
        stats.window_bytes += plan->windows[i].bytes;
    }
    return struct_size_write("plan_get_stats: stats_out", stats_out, sizeof(size_t), &stats, sizeof stats);
}
