/* SPDX-License-Identifier: MIT */
/*
 * Plans beyond 4 GiB: an offset or a count that is kept in 32 bits somewhere shows in the last elements. Needs twice that of memory,
 * and is left to builds without sanitizers, which would need several times as much. `make sweep` runs it.
 */
#include "fixtures/free_memory.h"
#include "unit/graph/planning.h"

/* A table of that many rows and columns has more than 2^32 elements. */
#define SIDE 65537
#define LAST_ROWS 7

static bool can_run(void)
{
    if (!test_is_whole()) {
        test_skip("a part of `make sweep`: half a minute of page faults");
        return false;
    }
    return free_memory_is_enough(3LL * SIDE * SIDE);
}

static uint8_t row_number(int64_t i)
{
    return (uint8_t)(i * 7 + i / 251);
}

static uint8_t column_number(int64_t i)
{
    return (uint8_t)(i * 13 + i / 241);
}

/* A row, or a column, of numbers that tell places apart. */
static shoal_tensor *make_side(bool is_row)
{
    const int64_t shape[] = {is_row ? 1 : SIDE, is_row ? SIDE : 1};
    shoal_tensor *side = shoal_empty(shape, 2, SHOAL_U8);
    uint8_t *data = shoal_mutable_data(side);
    for (int64_t i = 0; data && i < SIDE; i++) {
        data[i] = is_row ? row_number(i) : column_number(i);
    }
    return side;
}

#define SIDES                                                            \
    "%r = placeholder : u8[1, 65537]\n%c = placeholder : u8[65537, 1]\n" \
    "%e = expand(%r, [65537, 65537])\n%f = expand(%c, [65537, 65537])\n"

/* Two tables at once, and something small behind both. */
static const char pool_text[] = "graph {\n" SIDES "%a = add(%e, %f)\n%b = sub(%e, %f)\n"
                                "%x = narrow(%a, 0, 65530, 7)\n%y = narrow(%b, 0, 65530, 7)\n"
                                "%s = add(%x, %y)\n%t = mul(%s, %x)\n%z = add(%t, %y)\n"
                                "%u = narrow(%a, 0, 0, 7)\n%v = add(%u, %z)\nreturn [%z, %v]\n}\n";

static void check_pool(const uint8_t *z, const uint8_t *v)
{
    for (int64_t i = 0; i < LAST_ROWS * (int64_t)SIDE; i++) {
        int64_t row = SIDE - LAST_ROWS + i / SIDE;
        uint8_t e = row_number(i % SIDE);
        uint8_t a = (uint8_t)(e + column_number(row));
        uint8_t b = (uint8_t)(e - column_number(row));
        uint8_t want = (uint8_t)((uint8_t)(a + b) * a + b);
        uint8_t first = (uint8_t)(e + column_number(i / SIDE));
        if (z[i] != want || v[i] != (uint8_t)(first + want)) {
            test_failed(__FILE__, __LINE__, "row %lld, column %lld", (long long)row, (long long)(i % SIDE));
            return;
        }
    }
}

TEST(a_pool_beyond_4_gib)
{
    test_deadline(240);
    if (!can_run()) {
        return;
    }
    shoal_graph *graph = run_parse(pool_text, 1);
    shoal_plan *plan = NULL;
    shoal_plan_stats stats = SHOAL_PLAN_STATS_INIT;
    REQUIRE_OK(shoal_plan_create(graph, NULL, NULL, &plan));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *inputs[] = {make_side(true), make_side(false)};
    shoal_tensor *outputs[2] = {NULL};
    REQUIRE_OK(shoal_plan_run(plan, inputs, 2, outputs, 2));
    check_pool(shoal_data(outputs[0]), shoal_data(outputs[1]));
    CHECK_OK(shoal_plan_get_stats(plan, &stats));
    CHECK(stats.pool_bytes > 2 * (size_t)SIDE * SIDE);
    run_unref(outputs, 2);
    shoal_plan_free(plan);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
}

/* A table in comm memory; of two ranks, so that there is room for both. */
static const char comm_text[] = "graph {\ngroup @g = [[$RANKS]]\n" SIDES "%a = add(%e, %f)\n"
                                "%s = all_reduce(%a, \"sum\", @g)\n%w = wait_tensor(%s)\n"
                                "%n = narrow(%w, 0, 65530, 7)\n%z = clone(%n)\nreturn [%z]\n}\n";

static void check_sum(const uint8_t *z)
{
    for (int64_t i = 0; i < LAST_ROWS * (int64_t)SIDE; i++) {
        int64_t row = SIDE - LAST_ROWS + i / SIDE;
        if (z[i] != (uint8_t)(2 * (row_number(i % SIDE) + column_number(row)))) {
            test_failed(__FILE__, __LINE__, "row %lld, column %lld", (long long)row, (long long)(i % SIDE));
            return;
        }
    }
}

TEST_PROCESSES(comm_memory_beyond_4_gib, 2)
{
    test_deadline(240);
    if (!can_run()) {
        return;
    }
    test_barrier(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_graph *graph = run_parse(comm_text, 2);
    shoal_plan *plan = NULL;
    shoal_plan_stats stats = SHOAL_PLAN_STATS_INIT;
    REQUIRE_OK(shoal_plan_create(graph, world, NULL, &plan));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *inputs[] = {make_side(true), make_side(false)};
    shoal_tensor *outputs[1] = {NULL};
    REQUIRE_OK(shoal_plan_run(plan, inputs, 2, outputs, 1));
    check_sum(shoal_data(outputs[0]));
    CHECK_OK(shoal_plan_get_stats(plan, &stats));
    CHECK(stats.comm_bytes > (size_t)SIDE * SIDE || stats.pool_bytes > (size_t)SIDE * SIDE);
    run_unref(outputs, 1);
    shoal_plan_free(plan);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* Halves that are gathered once for both ranks. */
#define HALF 32769
static const char window_text[] = "graph {\ngroup @g = [[$RANKS]]\n%h = placeholder : u8[32769, 65537]\n"
                                  "%s = all_gather_into_tensor(%h, @g)\n%w = wait_tensor(%s)\n"
                                  "%n = narrow(%w, 0, 65531, 7)\n%z = clone(%n)\nreturn [%z]\n}\n";

TEST_PROCESSES(a_window_beyond_4_gib, 2)
{
    test_deadline(240);
    if (!can_run()) {
        return;
    }
    test_barrier(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_graph *graph = run_parse(window_text, 2);
    shoal_plan *plan = NULL;
    shoal_plan_stats stats = SHOAL_PLAN_STATS_INIT;
    REQUIRE_OK(shoal_plan_create(graph, world, NULL, &plan));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *half = shoal_zeros((int64_t[]){HALF, SIDE}, 2, SHOAL_U8);
    uint8_t *data = shoal_mutable_data(half);
    REQUIRE(data != NULL);
    for (int64_t i = 0; i < LAST_ROWS * (int64_t)SIDE; i++) {
        data[(HALF - LAST_ROWS) * (int64_t)SIDE + i] = (uint8_t)(row_number(i) + self->rank);
    }
    shoal_tensor *outputs[1] = {NULL};
    REQUIRE_OK(shoal_plan_run(plan, &half, 1, outputs, 1));
    const uint8_t *z = shoal_data(outputs[0]);
    int64_t n_wrong = 0;
    for (int64_t i = 0; z && i < LAST_ROWS * (int64_t)SIDE; i++) {
        n_wrong += z[i] != (uint8_t)(row_number(i) + 1);
    }
    CHECK(z != NULL && n_wrong == 0);
    CHECK_OK(shoal_plan_get_stats(plan, &stats));
    CHECK(stats.window_bytes > UINT32_MAX || stats.pool_bytes > UINT32_MAX);
    run_unref(outputs, 1);
    shoal_plan_free(plan);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}
