/* SPDX-License-Identifier: MIT */
/* Outputs of plans whose address somebody else has got (DLPack), and what they are to the record of gradients. */
#include "unit/graph/planning.h"

#include <dlpack/dlpack.h>

#include "shoal/autograd.h"
#include "shoal/dlpack.h"

/* Both outputs lie in comm memory, the second is a part of its buffer. */
static const char sums_text[] =
    "graph {\ngroup @g = [[$RANKS]]\n%x = placeholder : f32[64]\n%d = add(%x, %x)\n"
    "%s = all_reduce(%d, \"sum\", @g)\n%a = wait_tensor(%s)\n%n = narrow(%a, 0, 60, 4)\nreturn [%a, %n]\n}\n";

static void fill(float *numbers, float first)
{
    for (int i = 0; i < 64; i++) {
        numbers[i] = first + (float)i;
    }
}

static void check_sums(const void *data, float first, int n_ranks, size_t from, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float sum = 2 * (float)n_ranks * (first + (float)(from + i));
        CHECK_BYTES((const char *)data + i * sizeof(float), &sum, sizeof sum);
    }
}

static bool is_in_comm_memory(const shoal_plan *plan, size_t output)
{
    return plan->buffers[plan->outputs[output].buffer].place == PLAN_COMM;
}

/* One rank alone exports; the export has the numbers of its run, whatever happens to plan and world. */
static void export_alone(struct rank *self, bool ends_world_first)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_graph *graph = run_parse(sums_text, self->n_ranks);
    shoal_plan *plan = NULL;
    struct DLManagedTensor *exports[3] = {NULL};
    REQUIRE(graph != NULL);
    REQUIRE_OK(shoal_plan_create(graph, world, NULL, &plan));
    shoal_graph_free(graph);
    CHECK(is_in_comm_memory(plan, 0));
    float numbers[64];
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = shoal_from_memory(numbers, (int64_t[]){64}, 1, SHOAL_F32, NULL, NULL, NULL);
    for (int round = 0; round < 3; round++) {
        shoal_tensor *outputs[2] = {NULL};
        fill(numbers, (float)(100 * round));
        CHECK_OK(shoal_plan_run(plan, &x, 1, outputs, 2));
        if (self->rank == 1 && outputs[1]) {
            CHECK_OK(shoal_to_dlpack(outputs[1], &exports[round]));
            CHECK(exports[round]->dl_tensor.data == shoal_data(outputs[1]));
        }
        if (round == 2 && ends_world_first) {
            CHECK_OK(shoal_world_close(world));
        }
        check_sums(shoal_data(outputs[0]), (float)(100 * round), self->n_ranks, 0, 64);
        run_unref(outputs, 2);
    }
    shoal_plan_free(plan);
    CHECK_OK(shoal_scope_end());
    if (!ends_world_first) {
        CHECK_OK(shoal_world_close(world));
    }
    for (int round = 0; round < 3 && exports[round]; round++) {
        check_sums(exports[round]->dl_tensor.data, (float)(100 * round), self->n_ranks, 60, 4);
        exports[round]->deleter(exports[round]);
    }
}

TEST_RANKS(a_rank_that_exports_its_outputs, 2)
{
    export_alone(self, false);
}

TEST_RANKS(exports_outlive_the_world, 2)
{
    export_alone(self, true);
}

/* Allocating ----------------------------------------------------------------------------------------------- */

static const shoal_graph *tried_graph;

static shoal_status try_export(void *context)
{
    shoal_plan *plan = NULL;
    shoal_tensor *input = context;
    shoal_tensor *outputs[2] = {NULL};
    struct DLManagedTensor *exported = NULL;
    shoal_status status = shoal_plan_create(tried_graph, NULL, NULL, &plan);
    status = status == SHOAL_OK ? shoal_plan_run(plan, &input, 1, outputs, 2) : status;
    if (status == SHOAL_OK) {
        status = shoal_to_dlpack(outputs[1], &exported);
        check_sums(shoal_data(outputs[0]), 0, 1, 0, 64);
    }
    if (exported) {
        exported->deleter(exported);
    }
    run_unref(outputs, 2);
    shoal_plan_free(plan);
    return status;
}

TEST(allocations_may_fail)
{
    shoal_graph *graph = run_parse("graph {\n%x = placeholder : f32[64]\n%d = add(%x, %x)\n"
                                   "%n = narrow(%d, 0, 60, 4)\nreturn [%d, %n]\n}\n",
                                   1);
    tried_graph = graph;
    REQUIRE_OK(shoal_scope_begin());
    float numbers[64];
    fill(numbers, 0);
    shoal_tensor *x =
        shoal_tensor_ref(shoal_from_memory(numbers, (int64_t[]){64}, 1, SHOAL_F32, NULL, NULL, NULL));
    CHECK_OK(shoal_scope_end()); /* which keeps blocks */
    CHECK(test_sweep_allocations(try_export, x) > 2);
    shoal_tensor_unref(x);
    shoal_graph_free(graph);
}

/* An output that cannot be copied when its world ends has no data, rather than an address that nobody has. */
TEST(no_memory_when_the_world_ends)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 1, .rank = 0, .key = "fake", .transport = "fake"};
    shoal_world *world = NULL;
    shoal_plan *plan = NULL;
    shoal_tensor *outputs[2] = {NULL};
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_graph *graph = run_parse(sums_text, 1);
    REQUIRE_OK(shoal_plan_create(graph, world, NULL, &plan));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = shoal_zeros((int64_t[]){64}, 1, SHOAL_F32);
    CHECK_OK(shoal_plan_run(plan, &x, 1, outputs, 2));
    bool is_in_comm = is_in_comm_memory(plan, 0);
    test_fail_allocation(1, /*is_lasting=*/true);
    shoal_plan_free(plan);
    test_fail_allocation(0, false);
    CHECK_OK(shoal_world_close(world));
    CHECK(!is_in_comm || shoal_data(outputs[0]) == NULL);
    CHECK_ERROR_TEXT("was released");
    run_unref(outputs, 2);
    CHECK_OK(shoal_scope_end());
    shoal_graph_free(graph);
}

/* The record of gradients ---------------------------------------------------------------------------------- */

/* As what shoal_graph_run gives: another view of the memory may have a history, this one has none and may begin one. */
TEST(outputs_are_detached)
{
    static const char text[] =
        "graph {\n%x = placeholder : f32[4]\n%y = neg(%x)\n%v = narrow(%y, 0, 0, 2)\n"
        "%w = narrow(%x, 0, 1, 2)\n%u = narrow(%x, 0, 0, 2)\nreturn [%y, %v, %w, %u]\n}\n";
    shoal_graph *graph = run_parse(text, 1);
    shoal_plan *plan = NULL;
    REQUIRE_OK(shoal_plan_create(graph, NULL, NULL, &plan));
    for (int is_plan = 0; is_plan < 2; is_plan++) {
        shoal_tensor *outputs[4] = {NULL};
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *x = shoal_zeros((int64_t[]){4}, 1, SHOAL_F32);
        shoal_tensor *leaf = shoal_zeros((int64_t[]){4}, 1, SHOAL_F32);
        CHECK_OK(is_plan ? shoal_plan_run(plan, &x, 1, outputs, 4)
                         : shoal_graph_run(graph, NULL, &x, 1, outputs, 4));
        CHECK_OK(shoal_set_requires_grad(leaf, true));
        (void)shoal_add_(outputs[0], leaf);
        (void)shoal_add_(x, leaf);
        for (size_t i = 1; i < 4; i++) {
            CHECK_OK(shoal_set_requires_grad(outputs[i], true));
        }
        run_unref(outputs, 4);
        CHECK_OK(shoal_scope_end());
    }
    shoal_plan_free(plan);
    shoal_graph_free(graph);
}
