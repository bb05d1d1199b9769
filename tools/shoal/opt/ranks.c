/* SPDX-License-Identifier: MIT */
/*
 * `shoal opt --run`: ranks, as threads, run the graph of the file and the graph after passes and lowering, from the
 * same inputs. Each rank parses both texts itself, because a graph may be used by one thread at a time and has
 * constants that a run may write. Both run several times, because a plan keeps its memory from run to run.
 */
#include "opt/opt.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/ir/graph.h"
#include "shoal/group.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal/world.h"

#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    N_RUNS = 2
};

/* Tensors of one run, a reference each. */
struct values {
    shoal_tensor **inputs;
    shoal_tensor **outputs;
};

struct rank {
    struct opt_ranks *ranks;
    shoal_world *world;
    shoal_graph *before;
    shoal_graph *after;
    shoal_plan *plan;
    size_t n_inputs;
    size_t n_outputs;
    struct values wanted;
    struct values found;
};

int opt_ranks_count(const shoal_graph *graph)
{
    int n_ranks = 1;
    for (const struct graph_group *group = graph->groups; group; group = group->next) {
        for (size_t i = 0; i < group->n_lists * group->size; i++) {
            n_ranks = group->ranks[i] >= n_ranks ? group->ranks[i] + 1 : n_ranks;
        }
    }
    return n_ranks;
}

static size_t count_arg(const shoal_arg *arg)
{
    if (arg->kind == SHOAL_ARG_NODE) {
        return shoal_node_n_values(arg->as.node);
    }
    size_t n_outputs = arg->kind == SHOAL_ARG_NONE;
    for (size_t i = 0; arg->kind == SHOAL_ARG_LIST && i < arg->as.list.count; i++) {
        n_outputs += count_arg(&arg->as.list.items[i]);
    }
    return n_outputs;
}

static size_t count_outputs(const shoal_graph *graph)
{
    const shoal_node *last = shoal_graph_last(graph);
    size_t n_args = 0;
    bool is_output = last && shoal_node_get_kind(last) == SHOAL_NODE_OUTPUT;
    const shoal_arg *args = is_output ? shoal_node_args(last, &n_args) : NULL;
    return n_args > 0 ? count_arg(&args[0]) : 0;
}

/* Inputs ----------------------------------------------------------------------------------------------- */

/* Floats between -1 and 1; small whole numbers for others. In the innermost scope. */
static shoal_tensor *draw(const shoal_tensor *like, uint32_t seed)
{
    shoal_dtype dtype = shoal_tensor_dtype(like);
    shoal_tensor *numbers = shoal_empty(shoal_tensor_shape(like), shoal_tensor_n_dims(like), SHOAL_F32);
    float *data = numbers ? shoal_mutable_data(numbers) : NULL;
    seed = seed * 2654435761u + 99u;
    for (int64_t i = 0; data && i < shoal_tensor_count(numbers); i++) {
        seed = seed * 1664525u + 1013904223u;
        float number = (float)(seed >> 8) / 8388608.0f - 1.0f;
        data[i] = shoal_dtype_is_floating(dtype) ? number : (float)(seed >> 28);
    }
    return numbers ? shoal_to_dtype(numbers, dtype) : NULL;
}

/* One for each placeholder, the same in each run of a rank. */
static shoal_status draw_inputs(const struct rank *rank, shoal_tensor **inputs)
{
    uint32_t seed = (uint32_t)shoal_world_rank(rank->world) * 1000003u;
    size_t n_inputs = 0;
    for (const shoal_node *node = shoal_graph_first(rank->before); node; node = shoal_node_next(node)) {
        if (shoal_node_get_kind(node) == SHOAL_NODE_PLACEHOLDER) {
            TRY(shoal_scope_begin());
            shoal_tensor *input = draw(shoal_node_value(node, 0), seed + (uint32_t)n_inputs);
            inputs[n_inputs++] = shoal_tensor_ref(input);
            TRY(shoal_scope_end());
        }
    }
    return SHOAL_OK;
}

static size_t count_inputs(const shoal_graph *graph)
{
    size_t n_inputs = 0;
    for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        n_inputs += shoal_node_get_kind(node) == SHOAL_NODE_PLACEHOLDER;
    }
    return n_inputs;
}

/* Comparing -------------------------------------------------------------------------------------------- */

static shoal_status compare_data(const char *what, size_t index, const char *wanted, const char *found,
                                 size_t n_bytes, size_t element_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        if (wanted[i] != found[i]) {
            return error_set(SHOAL_ERR_MISMATCH,
                             "%s %zu differs from that of the graph as it was, first in element %zu", what,
                             index, i / element_bytes);
        }
    }
    return SHOAL_OK;
}

/* In an open scope. */
static shoal_status compare_tensors(const char *what, size_t index, shoal_tensor *wanted, shoal_tensor *found)
{
    if (!wanted != !found) {
        return error_set(SHOAL_ERR_MISMATCH, "%s %zu is %s", what, index, found ? "not absent" : "absent");
    }
    int64_t count = shoal_tensor_count(wanted);
    shoal_dtype dtype = shoal_tensor_dtype(wanted);
    if (!wanted || (count == 0 && shoal_tensor_count(found) == 0)) {
        return SHOAL_OK;
    }
    if (count != shoal_tensor_count(found) || dtype != shoal_tensor_dtype(found)) {
        return error_set(SHOAL_ERR_MISMATCH, "%s %zu has another shape or dtype", what, index);
    }
    const void *left = shoal_data(shoal_contiguous(wanted));
    const void *right = shoal_data(shoal_contiguous(found));
    size_t element_bytes = shoal_dtype_bytes(dtype);
    return left && right
               ? compare_data(what, index, left, right, (size_t)count * element_bytes, element_bytes)
               : shoal_scope_error();
}

static shoal_status compare_lists(const char *what, shoal_tensor *const *wanted, shoal_tensor *const *found,
                                  size_t n_tensors)
{
    for (size_t i = 0; i < n_tensors; i++) {
        TRY(shoal_scope_begin());
        shoal_status status = compare_tensors(what, i, wanted[i], found[i]);
        shoal_status ended = shoal_scope_end();
        TRY(status != SHOAL_OK ? status : ended);
    }
    return SHOAL_OK;
}

/* Running ---------------------------------------------------------------------------------------------- */

static void drop(const struct rank *rank, struct values *values)
{
    for (size_t i = 0; values->inputs && i < rank->n_inputs; i++) {
        shoal_tensor_unref(values->inputs[i]);
        values->inputs[i] = NULL;
    }
    for (size_t i = 0; values->outputs && i < rank->n_outputs; i++) {
        shoal_tensor_unref(values->outputs[i]);
        values->outputs[i] = NULL;
    }
}

static shoal_status run_before(struct rank *rank)
{
    drop(rank, &rank->wanted);
    TRY(draw_inputs(rank, rank->wanted.inputs));
    return shoal_graph_run(rank->before, rank->world, rank->wanted.inputs, rank->n_inputs,
                           rank->wanted.outputs, rank->n_outputs);
}

static shoal_status run_after(struct rank *rank)
{
    struct values *found = &rank->found;
    drop(rank, found);
    TRY(draw_inputs(rank, found->inputs));
    TRY(rank->plan
            ? shoal_plan_run(rank->plan, found->inputs, rank->n_inputs, found->outputs, rank->n_outputs)
            : shoal_graph_run(rank->after, rank->world, found->inputs, rank->n_inputs, found->outputs,
                              rank->n_outputs));
    TRY(compare_lists("output", rank->wanted.outputs, found->outputs, rank->n_outputs));
    return compare_lists("input", rank->wanted.inputs, found->inputs, rank->n_inputs);
}

static shoal_status run_again(struct rank *rank)
{
    struct values *found = &rank->found;
    for (size_t i = 0; i < rank->n_outputs; i++) {
        shoal_tensor_unref(found->outputs[i]);
        found->outputs[i] = NULL;
    }
    return rank->plan
               ? shoal_plan_run(rank->plan, found->inputs, rank->n_inputs, found->outputs, rank->n_outputs)
               : shoal_graph_run(rank->after, rank->world, found->inputs, rank->n_inputs, found->outputs,
                                 rank->n_outputs);
}

static int compare_times(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

static double processor_us(void)
{
    struct timespec time = {.tv_sec = 0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

/* What is measured of each run, in arrays one behind the other. */
enum {
    WALL,
    PROCESSOR, /* time that the rank's own thread had a processor */
    N_MEASURED
};

/* Times runs that begin together on all ranks. The time of a run is the longest of any rank. */
static shoal_status time_runs(struct rank *rank, double *times_us)
{
    size_t n_times = (size_t)rank->ranks->n_times;
    shoal_group *group = shoal_world_group(rank->world);
    double *wall = times_us + WALL * n_times;
    double *processor = times_us + PROCESSOR * n_times;
    for (size_t i = 0; i < n_times; i++) {
        TRY(shoal_group_barrier(group));
        int64_t begin_ns = clock_now_ns();
        double begin_us = processor_us();
        TRY(run_again(rank));
        wall[i] = (double)(clock_now_ns() - begin_ns) * 1e-3;
        processor[i] = processor_us() - begin_us;
    }
    TRY(shoal_group_all_reduce(group, times_us, times_us, N_MEASURED * n_times, SHOAL_F64, SHOAL_MAX));
    qsort(wall, n_times, sizeof wall[0], compare_times);
    qsort(processor, n_times, sizeof processor[0], compare_times);
    if (shoal_world_rank(rank->world) == 0) {
        rank->ranks->fastest_us = wall[0];
        rank->ranks->step_us = (wall[n_times / 2] + wall[(n_times - 1) / 2]) / 2;
        rank->ranks->processor_us = processor[0];
    }
    return SHOAL_OK;
}

static shoal_status measure(struct rank *rank)
{
    double *times_us = mem_alloc_zeroed(N_MEASURED * (size_t)rank->ranks->n_times, sizeof times_us[0]);
    shoal_status status = times_us ? time_runs(rank, times_us) : SHOAL_ERR_NO_MEMORY;
    mem_free(times_us);
    return status;
}

static shoal_status make_values(const struct rank *rank, struct values *values)
{
    values->inputs = mem_alloc_zeroed(rank->n_inputs + 1, sizeof(values->inputs[0]));
    values->outputs = mem_alloc_zeroed(rank->n_outputs + 1, sizeof(values->outputs[0]));
    return values->inputs && values->outputs ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static shoal_status run_rank(struct rank *rank)
{
    const struct opt_ranks *ranks = rank->ranks;
    TRY(shoal_graph_parse(ranks->before->chars, ranks->before->n_bytes, &rank->before));
    TRY(shoal_graph_parse(ranks->after->chars, ranks->after->n_bytes, &rank->after));
    rank->n_inputs = count_inputs(rank->before);
    rank->n_outputs = count_outputs(rank->before);
    TRY(make_values(rank, &rank->wanted));
    TRY(make_values(rank, &rank->found));
    if (ranks->lowering) {
        TRY(shoal_plan_create(rank->after, rank->world, ranks->lowering, &rank->plan));
    }
    for (int i = 0; i < N_RUNS; i++) {
        TRY(run_before(rank));
        TRY(run_after(rank));
    }
    return ranks->n_times > 0 ? measure(rank) : SHOAL_OK;
}

static shoal_status run_in_world(shoal_world *world, void *context)
{
    struct rank rank = {.ranks = context, .world = world};
    shoal_status status = run_rank(&rank);
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    drop(&rank, &rank.wanted);
    drop(&rank, &rank.found);
    mem_free(rank.wanted.inputs);
    mem_free(rank.wanted.outputs);
    mem_free(rank.found.inputs);
    mem_free(rank.found.outputs);
    shoal_plan_free(rank.plan);
    shoal_graph_free(rank.before);
    shoal_graph_free(rank.after);
    return status == SHOAL_OK ? SHOAL_OK : error_set(status, "%s", text);
}

shoal_status opt_ranks_run(struct opt_ranks *ranks, const shoal_graph *after, const shoal_plan *plan)
{
    shoal_graph *before = NULL;
    TRY(shoal_graph_parse(ranks->before->chars, ranks->before->n_bytes, &before));
    ranks->n_outputs = count_outputs(before);
    const struct opt_memory memory = {
        .before = before, .after = after, .plan = plan, .n_ranks = ranks->n_ranks, .limit = ranks->max_bytes};
    shoal_status status = opt_memory_check(&memory);
    shoal_graph_free(before);
    return status == SHOAL_OK ? shoal_world_run_threads(ranks->n_ranks, run_in_world, ranks) : status;
}
