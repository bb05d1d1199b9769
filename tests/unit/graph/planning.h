/* SPDX-License-Identifier: MIT */
/* Plans beside shoal_graph_run: the same bits, in run after run. */
#ifndef TESTS_UNIT_GRAPH_PLANNING_H
#define TESTS_UNIT_GRAPH_PLANNING_H

#include "graph/plan/plan.h"
#include "running.h"

/* Other numbers in each round. */
static inline size_t plan_inputs(const shoal_graph *graph, int rank, int round, shoal_tensor **inputs)
{
    return run_inputs(graph, rank + 7 * round, inputs);
}

static inline void plan_check_all(const char *what, shoal_tensor *const *actual,
                                  shoal_tensor *const *expected, size_t n_tensors)
{
    for (size_t i = 0; i < n_tensors; i++) {
        run_check_same(what, i, actual[i], expected[i]);
    }
}

/* The graph may write its constants in each run, also when they are outputs. */
static inline bool plan_gives_constant(const shoal_plan *plan, size_t index)
{
    uint32_t buffer = plan->outputs[index].buffer;
    while (plan->outputs[index].tensor && plan->buffers[buffer].place == PLAN_SLOT) {
        buffer = plan->buffers[buffer].index;
    }
    return plan->outputs[index].tensor && plan->buffers[buffer].place == PLAN_CONSTANT;
}

/* One run of each, on inputs of their own. The outputs of the plan are the caller's. */
static inline void plan_round(shoal_plan *plan, const shoal_graph *graph, shoal_world *world, int round,
                              shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *inputs[RUN_MAX] = {NULL};
    shoal_tensor *others[RUN_MAX] = {NULL};
    shoal_tensor *expected[RUN_MAX] = {NULL};
    int rank = shoal_world_rank(world);
    size_t n_inputs = plan_inputs(graph, rank, round, inputs);
    (void)plan_inputs(graph, rank, round, others);
    bool has_run = CHECK_OK(shoal_graph_run(graph, world, others, n_inputs, expected, n_outputs));
    if (CHECK_OK(shoal_plan_run(plan, inputs, n_inputs, outputs, n_outputs)) && has_run) {
        plan_check_all("output", outputs, expected, n_outputs);
        plan_check_all("input", inputs, others, n_inputs);
    }
    run_unref(expected, has_run ? n_outputs : 0);
    run_unref(inputs, n_inputs);
    run_unref(others, n_inputs);
}

/* Several rounds of `graph`, and of the plan of `planned`, which may be the same; outputs of every other one are kept over the next, and are still what they were. */
static inline void plan_rounds(shoal_world *world, const shoal_graph *graph, const shoal_graph *planned,
                               const shoal_compile_options *options, size_t n_outputs, int n_rounds)
{
    shoal_plan *plan = NULL;
    shoal_tensor *kept[RUN_MAX] = {NULL};
    shoal_tensor *copies[RUN_MAX] = {NULL};
    REQUIRE_OK(shoal_plan_create(planned, world, options, &plan));
    for (int round = 0; round < n_rounds && !test_has_failed(); round++) {
        shoal_tensor *outputs[RUN_MAX] = {NULL};
        plan_round(plan, graph, world, round, outputs, n_outputs);
        if (copies[0]) {
            plan_check_all("kept output", kept, copies, n_outputs);
            run_unref(kept, n_outputs);
            run_unref(copies, n_outputs);
            memset(copies, 0, sizeof copies);
        }
        if (round % 3 == 1 && !test_has_failed() && CHECK_OK(shoal_scope_begin())) {
            for (size_t i = 0; i < n_outputs; i++) {
                kept[i] = outputs[i];
                copies[i] =
                    shoal_tensor_ref(plan_gives_constant(plan, i) ? outputs[i] : shoal_clone(outputs[i]));
            }
            CHECK_OK(shoal_scope_end());
        } else {
            run_unref(outputs, n_outputs);
        }
    }
    shoal_plan_free(plan);
    if (copies[0]) {
        plan_check_all("output after the plan", kept, copies, n_outputs);
        run_unref(kept, n_outputs);
        run_unref(copies, n_outputs);
    }
}

static inline void plan_compare(shoal_world *world, const char *text, size_t n_outputs)
{
    shoal_graph *graph = run_parse(text, shoal_world_n_ranks(world));
    REQUIRE(graph != NULL);
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    plan_rounds(world, graph, graph, NULL, n_outputs, 5);
    options.one_shot = true;
    plan_rounds(world, graph, graph, &options, n_outputs, 3);
    options.no_reuse = true;
    options.no_comm_buffers = true;
    plan_rounds(world, graph, graph, &options, n_outputs, 3);
    shoal_graph_free(graph);
}

#endif
