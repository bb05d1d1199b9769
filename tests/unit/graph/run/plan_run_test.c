/* SPDX-License-Identifier: MIT */
/* Running plans: the bits of shoal_graph_run, outputs, errors, ends. */
#include "unit/graph/planning.h"
#include "unit/graph/run_texts.h"

#include <signal.h>

/* Every collective ----------------------------------------------------------------------------------------- */

WORLD_TEST(views_lists_and_writes)
{
    plan_compare(world, views_text, 7);
}

WORLD_TEST(reductions)
{
    plan_compare(world, reduces_text, 11);
}

WORLD_TEST(data_that_moves)
{
    plan_compare(world, moves_text, 16);
}

TEST_RANKS(point_to_point, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    plan_compare(world, p2p_text, 4);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(groups_that_overlap, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    plan_compare(world, mesh_text, 5);
    CHECK_OK(shoal_world_close(world));
}

/* Without ranks -------------------------------------------------------------------------------------------- */

static const char small_text[] =
    "graph {\n%x = placeholder : f32[3]\n%c = constant [1.0, 2.0, 3.0] : f32[3]\n"
    "%y = add(%x, %c)\n%z = mul(%y, %y)\nreturn [%z, none, %c, %x]\n}\n";

TEST(no_world_is_needed_without_groups)
{
    shoal_graph *graph = run_parse(small_text, 1);
    shoal_plan *plan = NULL;
    shoal_plan_stats stats = SHOAL_PLAN_STATS_INIT;
    REQUIRE(graph != NULL);
    REQUIRE_OK(shoal_plan_create(graph, NULL, NULL, &plan));
    shoal_graph_free(graph);
    float numbers[] = {1, 2, 3};
    for (int round = 0; round < 3; round++) {
        shoal_tensor *outputs[4] = {NULL};
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *x = shoal_from_memory(numbers, (int64_t[]){3}, 1, SHOAL_F32, NULL, NULL, NULL);
        CHECK_OK(shoal_plan_run(plan, &x, 1, outputs, 4));
        CHECK_BYTES(shoal_data(outputs[0]), ((const float[]){4, 16, 36}), 12);
        CHECK(outputs[1] == NULL);
        CHECK_BYTES(shoal_data(outputs[2]), ((const float[]){1, 2, 3}), 12);
        CHECK(outputs[3] == x);
        run_unref(outputs, 4);
        CHECK_OK(shoal_scope_end());
    }
    CHECK_OK(shoal_plan_get_stats(plan, &stats));
    CHECK_INT(stats.n_steps, 2);
    CHECK_INT(stats.n_collectives, 0);
    CHECK_INT(stats.n_copied_out, 0);
    CHECK(stats.output_bytes >= 12);
    shoal_plan_free(plan);
}

TEST(mistakes_are_refused)
{
    shoal_graph *graph = run_parse(small_text, 1);
    shoal_graph *grouped =
        run_parse("graph {\ngroup @g = [[0]]\n%x = placeholder : f32[3]\nreturn %x\n}\n", 1);
    shoal_plan *plan = NULL;
    shoal_plan_stats stats = SHOAL_PLAN_STATS_INIT;
    shoal_tensor *outputs[5] = {NULL};
    REQUIRE(graph != NULL && grouped != NULL);
    CHECK_STATUS(shoal_plan_create(NULL, NULL, NULL, &plan), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("plan_create: graph is NULL");
    CHECK_STATUS(shoal_plan_create(graph, NULL, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_plan_create(grouped, NULL, NULL, &plan), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("world is NULL, but the graph has group @g");
    shoal_compile_options options = {.struct_size = 1};
    CHECK_STATUS(shoal_plan_create(graph, NULL, &options, &plan), SHOAL_ERR_INVALID);
    CHECK(plan == NULL);
    REQUIRE_OK(shoal_plan_create(graph, NULL, NULL, &plan));
    CHECK_STATUS(shoal_plan_get_stats(NULL, &stats), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_plan_run(NULL, NULL, 0, NULL, 0), SHOAL_ERR_INVALID);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = shoal_zeros((int64_t[]){3}, 1, SHOAL_F32);
    shoal_tensor *wide = shoal_zeros((int64_t[]){3, 2}, 2, SHOAL_F32);
    const struct {
        shoal_tensor *input;
        const char *words;
    } cases[] = {
        {NULL, "plan_run: %x: input 0 is NULL"},
        {shoal_zeros((int64_t[]){4}, 1, SHOAL_F32), "input 0 is f32 [4], but the placeholder is f32 [3]"},
        {shoal_zeros((int64_t[]){3}, 1, SHOAL_F64), "input 0 is f64 [3]"},
        {shoal_select(wide, 1, 0), "is not contiguous: strides [2]"},
        {shoal_empty_on((int64_t[]){3}, 1, SHOAL_F32, SHOAL_META), "has no data: it is on device meta"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_STATUS(shoal_plan_run(plan, &cases[i].input, 1, outputs, 4), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(cases[i].words);
    }
    CHECK_STATUS(shoal_plan_run(plan, NULL, 1, outputs, 4), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("inputs is NULL, but n_inputs is 1");
    CHECK_STATUS(shoal_plan_run(plan, &x, 1, NULL, 4), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_plan_run(plan, &x, 1, outputs, 5), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("n_outputs is 5, but the graph has 4 outputs");
    CHECK_STATUS(shoal_plan_run(plan, &x, 2, outputs, 4), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("n_inputs is 2, but the graph has 1 placeholders");
    CHECK(outputs[0] == NULL);
    CHECK_OK(shoal_plan_run(plan, &x, 1, outputs, 4));
    run_unref(outputs, 4);
    CHECK_OK(shoal_scope_end());
    shoal_plan_free(plan);
    shoal_plan_free(NULL);
    shoal_graph_free(graph);
    shoal_graph_free(grouped);
}

/* Outputs -------------------------------------------------------------------------------------------------- */

static const char outputs_text[] =
    "graph {\n%x = placeholder : f32[4]\n%y = add(%x, %x)\n%v = narrow(%y, 0, 1, 2)\n"
    "%z = neg(%x)\n%w = narrow(%x, 0, 2, 2)\nreturn [%y, %v, %z, %w]\n}\n";

/* A view of an output keeps it, and so does work that the caller has begun on it; the others are given out again. */
TEST(outputs_that_are_kept_get_memory_of_their_own)
{
    shoal_graph *graph = run_parse(outputs_text, 1);
    shoal_plan *plan = NULL;
    shoal_plan_stats stats = SHOAL_PLAN_STATS_INIT;
    shoal_tensor *outputs[4] = {NULL};
    shoal_tensor *again[4] = {NULL};
    REQUIRE(graph != NULL);
    REQUIRE_OK(shoal_plan_create(graph, NULL, NULL, &plan));
    REQUIRE_OK(shoal_scope_begin());
    float numbers[] = {1, 2, 3, 4};
    shoal_tensor *x = shoal_from_memory(numbers, (int64_t[]){4}, 1, SHOAL_F32, NULL, NULL, NULL);
    REQUIRE_OK(shoal_plan_run(plan, &x, 1, outputs, 4));
    CHECK_BYTES(shoal_data(outputs[1]), ((const float[]){4, 6}), 8);
    CHECK_BYTES(shoal_data(outputs[3]), ((const float[]){3, 4}), 8);
    CHECK(shoal_data(outputs[3]) == &numbers[2]);
    shoal_tensor *view = shoal_narrow(outputs[0], 0, 3, 1);
    run_unref(outputs, 4);
    numbers[3] = 10;
    REQUIRE_OK(shoal_plan_run(plan, &x, 1, again, 4));
    CHECK_BYTES(shoal_data(view), ((const float[]){8}), 4);
    CHECK_BYTES(shoal_data(again[0]), ((const float[]){2, 4, 6, 20}), 16);
    CHECK_OK(shoal_plan_get_stats(plan, &stats));
    CHECK_INT(stats.n_copied_out, 2); /* the two that share the memory of %y */
    run_unref(again + 1, 3);
    shoal_plan_free(plan);
    CHECK_BYTES(shoal_data(again[0]), ((const float[]){2, 4, 6, 20}), 16);
    shoal_tensor_unref(again[0]);
    CHECK_OK(shoal_scope_end());
    shoal_graph_free(graph);
}
