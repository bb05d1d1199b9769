/* SPDX-License-Identifier: MIT */
/* Graphs that plans have made wrong once. */
#include "unit/graph/planning.h"
#include "unit/graph/run_texts.h"

/* A piece of a bucket that was computed as another dtype than the bucket has. */
WORLD_TEST(pieces_of_a_wider_dtype)
{
    plan_compare(world,
                 "graph {\ngroup @g = [[$RANKS]]\n"
                 "%x = placeholder : f32[1]\n%y = placeholder : f64[2]\n"
                 "%a = neg(%x)\n%d = neg(%y)\n%v = view_dtype(%d, f32)\n"
                 "%c = cat([%a, %v], 0)\n"
                 "%s = broadcast(%c, 0, @g)\n%w = wait_tensor(%s)\n"
                 "return [%w]\n}\n",
                 1);
}

/* Two starts in one storage, and a wait for a view that was there before both. */
WORLD_TEST(waits_for_a_view)
{
    plan_compare(world,
                 "graph {\ngroup @g = [[$RANKS]]\n"
                 "%x = placeholder : f32[2, 3, 4]\n%t = neg(%x)\n"
                 "%p = select(%t, 0, 0)\n%a = transpose(%p, 0, 1)\n%b = select(%t, 0, 1)\n"
                 "%s1 = all_reduce_(%a, \"sum\", @g)\n%s2 = all_reduce_(%b, \"sum\", @g)\n"
                 "%w = wait_tensor(%t)\n%n = neg(%t)\n"
                 "%w2 = wait_tensor(%s2)\n%w1 = wait_tensor(%s1)\n"
                 "return [%n, %w1, %w2]\n}\n",
                 3);
}

/* An address that is good enough for the input, but not for what it is looked at as. */
TEST(addresses_of_a_wider_dtype)
{
    static const char text[] = "graph {\n%x = placeholder : f32[4]\n%v = view_dtype(%x, f64)\n%n = neg(%v)\n"
                               "return [%n]\n}\n";
    static _Alignas(64) float numbers[8];
    shoal_graph *graph = run_parse(text, 1);
    shoal_plan *plan = NULL;
    shoal_tensor *output = NULL;
    REQUIRE(graph != NULL);
    REQUIRE_OK(shoal_plan_create(graph, NULL, NULL, &plan));
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *x = shoal_from_memory(numbers + i, (int64_t[]){4}, 1, SHOAL_F32, NULL, NULL, NULL);
        CHECK_STATUS(shoal_plan_run(plan, &x, 1, &output, 1), i == 1 ? SHOAL_ERR_INVALID : SHOAL_OK);
        shoal_tensor_unref(output);
        output = NULL;
        CHECK_OK(shoal_scope_end());
    }
    shoal_plan_free(plan);
    shoal_graph_free(graph);
}

TEST(sizes_that_overflow)
{
    static const char text[] =
        "graph {\n"
        "%a = zeros([1152921504606846976], f32)\n%b = zeros([1152921504606846976], f32)\n"
        "%c = zeros([1152921504606846976], f32)\n%d = zeros([1152921504606846976], f32)\n"
        "%e = add_(%a, %b)\n%f = add_(%c, %d)\n%h = add_(%a, %c)\n"
        "%i = sum(%h)\n%j = sum(%b)\n%k = sum(%d)\nreturn [%i, %j, %k]\n}\n";
    shoal_graph *graph = run_parse(text, 1);
    shoal_plan *plan = NULL;
    REQUIRE(graph != NULL);
    CHECK_STATUS(shoal_plan_create(graph, NULL, NULL, &plan), SHOAL_ERR_NO_MEMORY);
    shoal_plan_free(plan);
    shoal_graph_free(graph);
}

WORLD_TEST(integers_cast_on_the_way)
{
    plan_compare(world,
                 "graph {\ngroup @g = [[$RANKS]]\n"
                 "%x = placeholder : i64[5]\n%y = to_dtype(%x, f32)\n"
                 "%s = all_gather_into_tensor(%y, @g)\n%w = wait_tensor(%s)\n%n = neg(%w)\n"
                 "%z = placeholder : f32[5]\n%b = to_dtype(%z, u8)\n"
                 "%t = all_gather_into_tensor(%b, @g)\n%v = wait_tensor(%t)\n%m = to_dtype(%v, f64)\n"
                 "return [%n, %m]\n}\n",
                 2);
}

WORLD_TEST(nothing_among_pieces)
{
    plan_compare(world,
                 "graph {\ngroup @g = [[$RANKS]]\n"
                 "%x = placeholder : f32[3]\n%e = placeholder : f32[0]\n%y = placeholder : f32[2]\n"
                 "%nx = neg(%x)\n%ne = neg(%e)\n%ny = neg(%y)\n"
                 "%c = cat([%ne, %nx, %ne, %ny, %ne], 0)\n"
                 "%s = all_gather_into_tensor(%c, @g)\n%w = wait_tensor(%s)\n%n = neg(%w)\n"
                 "%c2 = cat([%ne, %nx, %ne, %ny, %ne], 0)\n"
                 "%r = all_reduce(%c2, \"sum\", @g)\n%v = wait_tensor(%r)\n%m = neg(%v)\n"
                 "return [%n, %m]\n}\n",
                 2);
}

/* Where a view lies by the rank. */
WORLD_TEST(views_by_rank)
{
    plan_compare(
        world,
        "graph {\ngroup @g = [[$RANKS]]\n"
        "%x = placeholder : f32[4]\n%y = placeholder : f32[8]\n"
        "%c = cat([%x, %y], 0)\n"
        "%s = all_gather_into_tensor(%c, @g)\n%w = wait_tensor(%s)\n"
        "%v = view(%w, [-1, 12])\n%p = narrow(%v, 1, rank(@g) * 2, 4)\n%q = contiguous(%p)\n%n = neg(%q)\n"
        "return [%n]\n}\n",
        1);
}

/* Rows of other sources on each rank. */
TEST_RANKS(buckets_in_another_order, 2)
{
    static const char text[] =
        "graph {\ngroup @g = [[0, 1]]\n%%x = placeholder : f32[4]\n%%y = placeholder : f32[8]\n"
        "%%c = cat([%%%c, %%%c], 0)\n%%s = all_gather_into_tensor(%%c, @g)\n%%w = wait_tensor(%%s)\n"
        "%%v = view(%%w, [2, 12])\n%%p = narrow(%%v, 1, 0, %d)\n%%q = contiguous(%%p)\n%%n = neg(%%q)\n"
        "%%r = narrow(%%v, 1, %d, %d)\n%%t = contiguous(%%r)\n%%m = neg(%%t)\nreturn [%%n, %%m]\n}\n";
    char whole[1024];
    bool is_first = self->rank == 0;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    (void)snprintf(whole, sizeof whole, text, is_first ? 'x' : 'y', is_first ? 'y' : 'x', is_first ? 4 : 8,
                   is_first ? 4 : 8, is_first ? 8 : 4);
    shoal_graph *graph = run_parse(whole, 2);
    shoal_plan *plan = NULL;
    REQUIRE(graph != NULL);
    CHECK_STATUS(shoal_plan_create(graph, world, NULL, &plan), SHOAL_ERR_MISMATCH);
    shoal_plan_free(plan);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}

/* What is received into is written: it may be, and nobody reads it any more. */
TEST_RANKS(receives_into_inputs, 2)
{
    static const char text[] =
        "graph {\ngroup @g = [[0, 1]]\n%x = placeholder : f32[5]\n%y = placeholder : f32[5]\n"
        "%s = isend(%x, rank(@g) * -1 + 1, 3, @g)\n"
        "%r = irecv(%y, rank(@g) * -1 + 1, 3, @g)\n"
        "%wr = wait_tensor(%r)\n%ws = wait_tensor(%s)\nreturn [%wr]\n}\n";
    shoal_world *world = rank_world_open(self, 0);
    shoal_plan *plan = NULL;
    shoal_tensor *inputs[2] = {NULL};
    shoal_tensor *output = NULL;
    REQUIRE(world != NULL);
    shoal_graph *graph = run_parse(text, 2);
    REQUIRE(graph != NULL);
    REQUIRE_OK(shoal_plan_create(graph, world, NULL, &plan));
    (void)run_inputs(graph, self->rank, inputs);
    uint64_t version = atomic_load(&inputs[1]->storage->version);
    storage_set_read_only(inputs[1]->storage, "it is looked at");
    CHECK_STATUS(shoal_plan_run(plan, inputs, 2, &output, 1), SHOAL_ERR_STATE);
    storage_set_read_only(inputs[1]->storage, NULL);
    CHECK_OK(shoal_plan_run(plan, inputs, 2, &output, 1));
    CHECK(output == inputs[1]);
    CHECK(atomic_load(&inputs[1]->storage->version) == version + 1);
    shoal_tensor_unref(output);
    run_unref(inputs, 2);
    shoal_plan_free(plan);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}

/* Two starts in one memory, of which a wait for the memory ends both: only then may their inputs be written. */
TEST_RANKS(inputs_of_starts_in_one_memory, 2)
{
    static const char text[] =
        "graph {\ngroup @g = [[0, 1]]\n%x = placeholder : f32[4]\n%z = placeholder : f32[4]\n"
        "%t = zeros([16], f32)\n%a = narrow(%t, 0, 0, 8)\n%b = narrow(%t, 0, 8, 8)\n"
        "%s1 = all_gather_into_tensor_out(%a, %x, @g)\n%s2 = all_gather_into_tensor_out(%b, %z, @g)\n"
        "%m = neg(%z)\n%w = wait_tensor(%t)\n%c = copy_(%x, %m)\n"
        "%w1 = wait_tensor(%s1)\n%w2 = wait_tensor(%s2)\nreturn [%w1, %w2]\n}\n";
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_graph *graph = run_parse(text, 2);
    shoal_plan *plan = NULL;
    REQUIRE(graph != NULL);
    REQUIRE_OK(shoal_plan_create(graph, world, NULL, &plan));
    const struct storage *x = plan->buffers[plan->inputs[0]].storage;
    bool is_in_flight = false;
    for (size_t i = 0; i < plan->n_steps; i++) {
        const struct plan_step *step = &plan->steps[i];
        bool is_first = step->collective == 0 && (step->kind == PLAN_START || step->kind == PLAN_WAIT);
        is_in_flight = is_first ? step->kind == PLAN_START : is_in_flight;
        CHECK(!is_in_flight || step->n_outputs == 0 || step->outputs[0]->storage != x);
    }
    shoal_plan_free(plan);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}

/* Ranks that come to two groups in another order: memory of each group is made in the order of the table. */
TEST_RANKS(windows_of_two_groups, 2)
{
    static const char text[] =
        "graph {\ngroup @g = [[0, 1]]\ngroup @h = [[0, 1]]\n%%x = placeholder : f32[4]\n"
        "%%s%c = all_gather_into_tensor(%%x, @%c)\n%%s%c = all_gather_into_tensor(%%x, @%c)\n"
        "%%wg = wait_tensor(%%sg)\n%%wh = wait_tensor(%%sh)\n"
        "%%m = neg(%%wg)\n%%n = neg(%%wh)\nreturn [%%m, %%n]\n}\n";
    char whole[1024];
    char first = self->rank == 0 ? 'g' : 'h';
    char second = self->rank == 0 ? 'h' : 'g';
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    (void)snprintf(whole, sizeof whole, text, first, first, second, second);
    shoal_graph *graph = run_parse(whole, 2);
    REQUIRE(graph != NULL);
    plan_rounds(world, graph, graph, NULL, 2, 2);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}

/* Blocking sums of one value over two groups, and in place: a copy for the second group. */
TEST_RANKS(one_shot_of_two_groups, 2)
{
    static const char text[] =
        "graph {\ngroup @g = [[0, 1]]\ngroup @h = [[0, 1]]\n%x = placeholder : f32[4, 3]\n"
        "%a = neg(%x)\n%r = all_reduce(%a, \"sum\", @g)\n%w = wait_tensor(%r)\n"
        "%q = all_reduce(%a, \"sum\", @h)\n%v = wait_tensor(%q)\n"
        "%t = transpose(%a, 0, 1)\n%p = all_reduce_(%t, \"sum\", @h)\n"
        "%u = wait_tensor(%p)\nreturn [%w, %v, %a, %u]\n}\n";
    shoal_compile_options options = {.struct_size = sizeof options, .one_shot = true};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_graph *graph = run_parse(text, 2);
    REQUIRE(graph != NULL);
    plan_rounds(world, graph, graph, &options, 4, 4);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}

/* Results of a list that lie one after the other, as another dtype, and given out. */
TEST_RANKS(parts_of_a_packed_list, 2)
{
    static const char text[] =
        "graph {\ngroup @g = [[0, 1]]\n%x = placeholder : f32[2]\n%y = placeholder : f32[4]\n"
        "%a = to_dtype(%x, bf16)\n%b = to_dtype(%y, bf16)\n"
        "%s = reduce_scatter_tensor_coalesced([%a, %b], \"sum\", [0, 0], @g)\n%w = wait_tensors(%s)\n"
        "%p = getitem(%w, 0)\n%q = getitem(%w, 1)\n%v = view_dtype(%q, f32)\n%n = neg(%v)\nreturn [%p, "
        "%n]\n}\n";
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_graph *graph = run_parse(text, 2);
    REQUIRE(graph != NULL);
    plan_rounds(world, graph, graph, NULL, 2, 5);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}

/* Who changes one output does not change another. */
TEST_RANKS(outputs_have_storages_of_their_own, 2)
{
    static const char text[] =
        "graph {\ngroup @g = [[0, 1]]\n%x = placeholder : f32[4]\n%y = placeholder : f32[4]\n"
        "%a = to_dtype(%x, f64)\n%b = to_dtype(%y, f64)\n"
        "%s = reduce_scatter_tensor_coalesced([%a, %b], \"sum\", [0, 0], @g)\n%w = wait_tensors(%s)\n"
        "%p = getitem(%w, 0)\n%q = getitem(%w, 1)\n%r = narrow(%q, 0, 1, 1)\nreturn [%p, %q, %r]\n}\n";
    shoal_world *world = rank_world_open(self, 0);
    shoal_plan *plan = NULL;
    shoal_tensor *inputs[2] = {NULL};
    shoal_tensor *outputs[3] = {NULL};
    REQUIRE(world != NULL);
    shoal_graph *graph = run_parse(text, 2);
    REQUIRE(graph != NULL);
    plan_rounds(world, graph, graph, NULL, 3, 5);
    REQUIRE_OK(shoal_plan_create(graph, world, NULL, &plan));
    (void)run_inputs(graph, self->rank, inputs);
    REQUIRE_OK(shoal_plan_run(plan, inputs, 2, outputs, 3));
    CHECK(outputs[0]->storage != outputs[1]->storage);
    CHECK(outputs[1]->storage == outputs[2]->storage);
    CHECK(outputs[1]->storage->bytes == 2 * sizeof(double));
    run_unref(outputs, 3);
    run_unref(inputs, 2);
    shoal_plan_free(plan);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}
