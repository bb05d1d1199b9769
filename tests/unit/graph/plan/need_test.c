/* SPDX-License-Identifier: MIT */
/*
 * Memory that is not there: plans and runs say what they would take, and name the largest values, before they take any.
 */
#include "graph/plan/need.h"

#include "unit/graph/planning.h"

/* 4 TiB each of %a, %b and %d; the views have no memory. */
static const char huge_text[] =
    "graph {\n%r = placeholder : u8[1, 2097152]\n%c = placeholder : u8[2097152, 1]\n"
    "%e = expand(%r, [2097152, 2097152])\n%f = expand(%c, [2097152, 2097152])\n"
    "%a = add(%e, %f)\n%b = sub(%a, %f)\n%s = add(%r, %r)\n%d = mul(%a, %b)\n"
    "return [%d, %s]\n}\n";

/* 64 KiB of floats each. */
static const char small_text[] =
    "graph {\n%x = placeholder : f32[16384]\n%a = add(%x, %x)\n%b = mul(%a, %x)\n"
    "%n = narrow(%b, 0, 0, 1024)\n%c = add(%n, %n)\nreturn [%b, %c]\n}\n";

TEST(what_a_graph_takes)
{
    struct need need;
    shoal_graph *graph = run_parse(small_text, 1);
    REQUIRE_OK(need_of_graph(graph, &need));
    CHECK_INT(need.bytes, 2 * 65536);
    CHECK_STRING(need.largest[0].name, "a");
    CHECK_STRING(need.largest[1].name, "b");
    CHECK_STRING(need.largest[2].name, "c");
    CHECK_INT(need.largest[1].bytes, 65536);
    CHECK_INT(need.largest[2].bytes, 4096);
    shoal_graph_free(graph);
}

TEST(a_run_that_takes_more_than_there_is)
{
    shoal_graph *graph = run_parse(huge_text, 1);
    shoal_tensor *inputs[2] = {NULL};
    shoal_tensor *outputs[2] = {NULL};
    CHECK_INT(run_inputs(graph, 0, inputs), 2);
    CHECK_STATUS(shoal_graph_run(graph, NULL, inputs, 2, outputs, 2), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT("graph_run: running the graph takes 12.00 TiB beside its inputs, but only ");
    CHECK_ERROR_TEXT(" are free; largest: %a 4.00 TiB, %b 4.00 TiB, %d 4.00 TiB");
    run_unref(inputs, 2);
    shoal_graph_free(graph);
}

TEST(a_plan_that_takes_more_than_there_is)
{
    shoal_graph *graph = run_parse(huge_text, 1);
    shoal_plan *plan = NULL;
    CHECK_STATUS(shoal_plan_create(graph, NULL, NULL, &plan), SHOAL_ERR_NO_MEMORY);
    CHECK(!plan);
    CHECK_ERROR_TEXT(
        "plan_create: the plan takes 12.00 TiB (pool 8.00 TiB, outputs 4.00 TiB, comm memory 0 bytes, "
        "windows 0 bytes), but only ");
    CHECK_ERROR_TEXT(" are free; largest: %a 4.00 TiB, %b 4.00 TiB, %d 4.00 TiB");
    shoal_graph_free(graph);
}

TEST(a_plan_with_a_limit)
{
    shoal_graph *graph = run_parse(small_text, 1);
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    shoal_plan *plan = NULL;
    options.max_bytes = 100000;
    CHECK_STATUS(shoal_plan_create(graph, NULL, &options, &plan), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT(
        "the plan takes 132.00 KiB (pool 64.00 KiB, outputs 68.00 KiB, comm memory 0 bytes, windows 0 "
        "bytes), "
        "more than options.max_bytes, 97.66 KiB; largest: %a 64.00 KiB, %b 64.00 KiB, %c 4.00 KiB");
    options.max_bytes = (64 + 68) * 1024;
    CHECK_OK(shoal_plan_create(graph, NULL, &options, &plan));
    shoal_plan_free(plan);
    shoal_graph_free(graph);
}

/* Before it takes it. */
static void keep_line(void *context, shoal_log_level level, const char *line)
{
    char *text = context;
    if (level == SHOAL_LOG_INFO && strstr(line, "plan_create: takes")) {
        (void)snprintf(text, 400, "%s", line);
    }
}

TEST(a_plan_says_what_it_takes)
{
    shoal_graph *graph = run_parse(small_text, 1);
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    shoal_plan *plan = NULL;
    char text[400] = "";
    options.max_bytes = 1;
    shoal_log_set(keep_line, text, SHOAL_LOG_INFO);
    CHECK_STATUS(shoal_plan_create(graph, NULL, &options, &plan), SHOAL_ERR_NO_MEMORY);
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
    CHECK(strstr(text,
                 "plan_create: takes 132.00 KiB: pool 64.00 KiB, outputs 68.00 KiB, comm memory 0 bytes, "
                 "windows 0 bytes; largest: %a 64.00 KiB, %b 64.00 KiB, %c 4.00 KiB") != NULL);
    shoal_graph_free(graph);
}

/* A rank that refuses tells the others, and all can go on. */
TEST_RANKS(one_rank_refuses, 2)
{
    static const char text[] = "graph {\ngroup @g = [[$RANKS]]\n%x = placeholder : f32[16384]\n"
                               "%r = all_reduce(%x, \"sum\", @g)\n%w = wait_tensor(%r)\nreturn [%w]\n}\n";
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_graph *graph = run_parse(text, self->n_ranks);
    shoal_plan *plan = NULL;
    options.max_bytes = self->rank == 1 ? 1000 : 0;
    CHECK_STATUS(shoal_plan_create(graph, world, &options, &plan), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT("the plan takes 64.00 KiB");
    options.max_bytes = 0;
    CHECK_OK(shoal_plan_create(graph, world, &options, &plan));
    shoal_plan_free(plan);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}
