/* SPDX-License-Identifier: MIT */
/* Plans between ranks: addresses, allocations, ranks that differ, that fail, that die; ends. */
#include "unit/graph/planning.h"

#include <signal.h>

#include "graph/plan/plan.h"
#include "fixtures/world_allocations.h"

/* A step as DDP and FSDP make it: gathers, sums in place and not, a list, something in between. */
static const char step_text[] = "graph {\n"
                                "group @g = [[$RANKS]]\n"
                                "%x = placeholder : f32[6, 8]\n"
                                "%shard = placeholder : f32[6, 8]\n"
                                "%old = placeholder : f32[6, 8]\n"
                                "%gather = all_gather_into_tensor(%shard, @g)\n"
                                "%half = mul_scalar(%x, 0.5)\n"
                                "%weight = wait_tensor(%gather)\n"
                                "%sums = sum(%weight, [0], true)\n"
                                "%a = mul(%half, %sums)\n"
                                "%b = add(%a, %x)\n"
                                "%reduce = all_reduce(%a, \"avg\", @g)\n"
                                "%c = mul(%b, %b)\n"
                                "%list = all_reduce_coalesced([%b, %c], \"sum\", @g)\n"
                                "%scatter = reduce_scatter_tensor(%weight, \"sum\", 0, @g)\n"
                                "%mean = wait_tensor(%reduce)\n"
                                "%both = wait_tensors(%list)\n"
                                "%first = getitem(%both, 0)\n"
                                "%d = add(%first, %mean)\n"
                                "%piece = wait_tensor(%scatter)\n"
                                "%new = add_(%old, %d)\n"
                                "return [%d, %piece, %both, %new]\n}\n";
#define STEP_OUTPUTS 5

static shoal_plan *make_plan(shoal_world *world, const char *text)
{
    shoal_plan *plan = NULL;
    shoal_graph *graph = run_parse(text, shoal_world_n_ranks(world));
    if (graph) {
        (void)CHECK_OK(shoal_plan_create(graph, world, NULL, &plan));
        shoal_graph_free(graph);
    }
    return plan;
}

static shoal_status run_once(shoal_plan *plan, shoal_world *world, const char *text, size_t n_outputs)
{
    shoal_tensor *inputs[RUN_MAX] = {NULL};
    shoal_tensor *outputs[RUN_MAX] = {NULL};
    shoal_graph *graph = run_parse(text, shoal_world_n_ranks(world));
    size_t n_inputs = run_inputs(graph, shoal_world_rank(world), inputs);
    shoal_status status = shoal_plan_run(plan, inputs, n_inputs, outputs, n_outputs);
    run_unref(outputs, n_outputs);
    char text_before[512];
    (void)snprintf(text_before, sizeof text_before, "%s", shoal_error_text());
    run_unref(inputs, n_inputs);
    shoal_graph_free(graph);
    return status == SHOAL_OK ? SHOAL_OK : shoal_fail(status, "%s", text_before);
}

/* Addresses and allocations -------------------------------------------------------------------------------- */

#define MAX_BUFFERS 64

static size_t list_addresses(const shoal_plan *plan, const void **addresses)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->n_buffers && n < MAX_BUFFERS; i++) {
        const struct plan_buffer *buffer = &plan->buffers[i];
        if (buffer->place != PLAN_INPUT && buffer->storage->memory) {
            addresses[n++] = address_pointer(buffer->storage->memory->base);
        }
    }
    return n;
}

static void keep_addresses(struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_plan *plan = make_plan(world, step_text);
    shoal_graph *graph = run_parse(step_text, self->n_ranks);
    REQUIRE(plan != NULL && graph != NULL);
    const void *before[MAX_BUFFERS] = {NULL};
    const void *outputs_before[STEP_OUTPUTS] = {NULL};
    size_t n_before = list_addresses(plan, before);
    bool has_comm = false;
    for (size_t i = 0; i < plan->n_buffers; i++) {
        has_comm = has_comm || plan->buffers[i].place == PLAN_COMM || plan->buffers[i].place == PLAN_WINDOW;
    }
    CHECK(has_comm);
    for (int round = 0; round < 100 && !test_has_failed(); round++) {
        const void *now[MAX_BUFFERS] = {NULL};
        shoal_tensor *outputs[STEP_OUTPUTS] = {NULL};
        plan_round(plan, graph, world, round, outputs, STEP_OUTPUTS);
        CHECK_INT(list_addresses(plan, now), n_before);
        CHECK(memcmp(now, before, sizeof now) == 0);
        for (size_t i = 0; i + 1 < STEP_OUTPUTS; i++) { /* the last is an input */
            CHECK(round == 0 || shoal_data(outputs[i]) == outputs_before[i]);
            outputs_before[i] = shoal_data(outputs[i]);
        }
        run_unref(outputs, STEP_OUTPUTS);
    }
    shoal_plan_stats stats = SHOAL_PLAN_STATS_INIT;
    CHECK_OK(shoal_plan_get_stats(plan, &stats));
    CHECK_INT(stats.n_copied_out, 0);
    CHECK_INT(stats.n_collectives, 4);
    shoal_plan_free(plan);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(buffers_stay_where_they_are_1, 1)
{
    keep_addresses(self);
}

TEST_RANKS(buffers_stay_where_they_are_2, 2)
{
    keep_addresses(self);
}

TEST_RANKS(buffers_stay_where_they_are_3, 3)
{
    keep_addresses(self);
}

/* Through the library's allocator; tests/unit/nn/plan_test.c looks at malloc itself. A transport of messages has frames of its own,
   as many as happen to be on their way. */
TEST_RANKS(runs_allocate_nothing, 2)
{
    if (rank_hears_by_messages()) {
        test_skip("messages are allocated");
        return;
    }
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_plan *plan = make_plan(world, step_text);
    shoal_graph *graph = run_parse(step_text, self->n_ranks);
    shoal_tensor *inputs[RUN_MAX] = {NULL};
    REQUIRE(plan != NULL && graph != NULL);
    size_t n_inputs = run_inputs(graph, self->rank, inputs);
    for (int round = 0; round < 60; round++) {
        if (round == 10) {
            test_barrier(self);
            if (self->is_process || self->rank == 0) {
                test_fail_allocation(1, /*is_lasting=*/true);
            }
            test_barrier(self);
        }
        shoal_tensor *outputs[STEP_OUTPUTS] = {NULL};
        CHECK_OK(shoal_plan_run(plan, inputs, n_inputs, outputs, STEP_OUTPUTS));
        run_unref(outputs, STEP_OUTPUTS);
    }
    test_barrier(self);
    CHECK_INT(test_count_allocations(), 0);
    test_barrier(self);
    test_fail_allocation(0, false);
    run_unref(inputs, n_inputs);
    shoal_plan_free(plan);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}

/* Ranks that differ ---------------------------------------------------------------------------------------- */

#define PAIR_HEAD "graph {\ngroup @g = [[$RANKS]]\n%x = placeholder : f32[6]\n%y = placeholder : f32[4]\n"
static const char pair_text[] =
    PAIR_HEAD "%one = all_reduce(%x, \"sum\", @g)\n%two = all_reduce(%y, \"sum\", @g)\n"
              "%a = wait_tensor(%one)\n%b = wait_tensor(%two)\nreturn [%a, %b]\n}\n";
static const char turned_text[] =
    PAIR_HEAD "%two = all_reduce(%y, \"sum\", @g)\n%one = all_reduce(%x, \"sum\", @g)\n"
              "%a = wait_tensor(%one)\n%b = wait_tensor(%two)\nreturn [%a, %b]\n}\n";
static const char fewer_text[] = PAIR_HEAD "%one = all_reduce(%x, \"sum\", @g)\n%a = wait_tensor(%one)\n"
                                           "return [%a, %y]\n}\n";
static const char other_text[] =
    PAIR_HEAD "%one = all_reduce(%x, \"sum\", @g)\n%two = all_reduce(%y, \"max\", @g)\n"
              "%a = wait_tensor(%one)\n%b = wait_tensor(%two)\nreturn [%a, %b]\n}\n";
static const char named_text[] =
    PAIR_HEAD "%one = all_reduce(%x, \"sum\", @g)\n%zwei = all_reduce(%y, \"sum\", @g)\n"
              "%a = wait_tensor(%one)\n%b = wait_tensor(%zwei)\nreturn [%a, %b]\n}\n";

static void differ(struct rank *self)
{
    static const struct {
        const char *text;
        const char *words[2];
    } cases[] = {
        {turned_text,
         {"\"%one: all_reduce as all_reduce f32 sum, count 6",
          "\"%two: all_reduce as all_reduce f32 sum, count 4"}},
        {fewer_text, {"\"%two: all_reduce", " has \""}},
        {other_text,
         {"\"%two: all_reduce as all_reduce f32 sum", "\"%two: all_reduce as all_reduce f32 max"}},
        {named_text, {"\"%two: all_reduce", "\"%zwei: all_reduce"}},
    };
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int other = 0; other < self->n_ranks; other++) {
            shoal_plan *plan = NULL;
            shoal_graph *graph = run_parse(self->rank == other ? cases[i].text : pair_text, self->n_ranks);
            REQUIRE(graph != NULL);
            CHECK_STATUS(shoal_plan_create(graph, world, NULL, &plan), SHOAL_ERR_MISMATCH);
            CHECK_ERROR_TEXT("plan_create: plans differ on group @g: rank ");
            CHECK_ERROR_TEXT(cases[i].words[0]);
            CHECK_ERROR_TEXT(cases[i].words[1]);
            CHECK(plan == NULL);
            shoal_graph_free(graph);
        }
    }
    /* The group is as good as before. */
    shoal_plan *plan = make_plan(world, pair_text);
    REQUIRE(plan != NULL);
    CHECK_OK(run_once(plan, world, pair_text, 2));
    shoal_plan_free(plan);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(two_ranks_with_different_plans, 2)
{
    differ(self);
}

TEST_RANKS(three_ranks_with_different_plans, 3)
{
    differ(self);
}

/* Options that say how collectives are made. */
TEST_RANKS(options_that_differ, 2)
{
    static const struct {
        shoal_compile_options options;
        const char *words;
    } cases[] = {{{.no_comm_buffers = true}, "no_comm_buffers 1"},
                 {{.one_shot = true}, "one_shot 1"},
                 {{.one_shot_max_bytes = 77}, "one_shot_max_bytes 77"}};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        shoal_compile_options options = cases[i / 2].options;
        shoal_plan *plan = NULL;
        shoal_graph *graph = run_parse(pair_text, self->n_ranks);
        options.struct_size = sizeof options;
        CHECK_STATUS(shoal_plan_create(graph, world, self->rank == (int)(i % 2) ? &options : NULL, &plan),
                     SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT(cases[i / 2].words);
        CHECK(plan == NULL);
        shoal_graph_free(graph);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Lines that are longer than what an error shows, and differ far behind: in a name, and in the last count of a list. */
#define LONG_40 "a_name_of_forty_characters_repeated_here_"
#define LONG_NAME LONG_40 LONG_40 LONG_40 LONG_40 LONG_40
#define NAMED(name) \
    PAIR_HEAD "%" name " = all_reduce(%x, \"sum\", @g)\n%a = wait_tensor(%" name ")\nreturn [%a, %y]\n}\n"
#define EIGHT "%x, %x, %x, %x, %x, %x, %x, %x"
#define LISTED(last)                                                                                        \
    PAIR_HEAD "%list = all_reduce_coalesced([" EIGHT ", " EIGHT ", " EIGHT ", " EIGHT ", " EIGHT ", " EIGHT \
              ", " EIGHT ", " last "], \"sum\", @g)\n%w = wait_tensors(%list)\n%a = getitem(%w, 0)\n"       \
              "return [%a, %y]\n}\n"

TEST_RANKS(long_lines_that_differ, 2)
{
    static const struct {
        const char *texts[2];
        const char *words[2];
    } cases[] = {
        {{NAMED(LONG_NAME "left"), NAMED(LONG_NAME "right")}, {"_left: all_reduce", "_right: all_reduce"}},
        {{LISTED("%x"), LISTED("%y")}, {"%list: all_reduce_coalesced", "6 6 6 4"}}};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        shoal_plan *plan = NULL;
        shoal_graph *graph = run_parse(cases[i].texts[self->rank], self->n_ranks);
        REQUIRE(graph != NULL);
        CHECK_STATUS(shoal_plan_create(graph, world, NULL, &plan), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT(cases[i].words[0]);
        CHECK_ERROR_TEXT(cases[i].words[1]);
        CHECK(plan == NULL);
        shoal_graph_free(graph);
    }
    CHECK_OK(shoal_world_close(world));
}

/* What fails on one rank, before ranks have met, is told to the others at once. */
TEST_RANKS(a_rank_that_can_not_make_its_plan, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_plan *plan = NULL;
    const char *text =
        "graph {\ngroup @g = [[$RANKS]]\n%x = placeholder : f32[6]\n%o = opaque \"unknown\"(%x) : f32[6]\n"
        "%s = all_reduce(%o, \"sum\", @g)\n%a = wait_tensor(%s)\nreturn [%a, %x]\n}\n";
    shoal_graph *graph = run_parse(self->rank == 0 ? text : pair_text, self->n_ranks);
    REQUIRE(graph != NULL);
    CHECK_STATUS(shoal_plan_create(graph, world, NULL, &plan), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(self->rank == 0 ? "unknown" : "rank 0 of group @g could not make its plan");
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}

/* Both have both plans; one runs the other one. The starts tell. */
TEST_RANKS(a_rank_that_runs_another_plan, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_plan *plans[2] = {make_plan(world, pair_text), make_plan(world, pair_text)};
    REQUIRE(plans[0] != NULL && plans[1] != NULL);
    CHECK_OK(run_once(plans[0], world, pair_text, 2));
    CHECK_OK(run_once(plans[1], world, pair_text, 2));
    CHECK_STATUS(run_once(plans[self->rank], world, pair_text, 2), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("node %one of plan 1");
    CHECK_ERROR_TEXT("node %one of plan 2");
    CHECK_ERROR_TEXT("plan_run: %");
    CHECK_STATUS(run_once(plans[0], world, pair_text, 2), SHOAL_ERR_MISMATCH);
    shoal_plan_free(plans[0]);
    shoal_plan_free(plans[1]);
    (void)shoal_world_close(world);
}

/* One rank calls the ops of the graph one by one. Such a call belongs to no plan, model or sharding. */
TEST_RANKS(a_rank_that_runs_no_plan, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_plan *plan = make_plan(world, pair_text);
    REQUIRE(plan != NULL);
    if (self->rank == 0) {
        shoal_tensor *inputs[RUN_MAX] = {NULL};
        shoal_tensor *outputs[RUN_MAX] = {NULL};
        shoal_graph *graph = run_parse(pair_text, self->n_ranks);
        size_t n_inputs = run_inputs(graph, self->rank, inputs);
        CHECK_STATUS(shoal_graph_run(graph, world, inputs, n_inputs, outputs, 2), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("node %one of plan 1");
        CHECK_ERROR_TEXT("rank 0 called all_reduce");
        CHECK(strstr(shoal_error_text(), "sharded") == NULL);
        run_unref(inputs, n_inputs);
        shoal_graph_free(graph);
    } else {
        CHECK_STATUS(run_once(plan, world, pair_text, 2), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("node %one of plan 1");
        CHECK(strstr(shoal_error_text(), "sharded") == NULL);
    }
    shoal_plan_free(plan);
    (void)shoal_world_close(world);
}

/* One rank makes its plan again, alone. */
TEST_RANKS(a_rank_that_recompiles_alone, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_plan *plan = make_plan(world, pair_text);
    REQUIRE(plan != NULL);
    CHECK_OK(run_once(plan, world, pair_text, 2));
    if (self->rank == 0) {
        shoal_plan *another = NULL;
        shoal_graph *graph = run_parse(pair_text, self->n_ranks);
        CHECK_STATUS(shoal_plan_create(graph, world, NULL, &another), SHOAL_ERR_MISMATCH);
        shoal_graph_free(graph);
    } else {
        CHECK_STATUS(run_once(plan, world, pair_text, 2), SHOAL_ERR_MISMATCH);
    }
    CHECK_ERROR_TEXT("comparison of plans");
    CHECK_ERROR_TEXT("node %one of plan 1");
    shoal_plan_free(plan);
    (void)shoal_world_close(world);
}

/* Failures ------------------------------------------------------------------------------------------------- */

static bool must_fail;

static shoal_status meta_shaky(shoal_op_call_context *call, const shoal_value *arguments)
{
    return shoal_op_output(call, shoal_tensor_shape(arguments[0].as.tensor),
                           shoal_tensor_n_dims(arguments[0].as.tensor), SHOAL_F32);
}

/* Calls ops, and fails when it is told to. */
static shoal_status run_shaky(shoal_op_call_context *call, const shoal_value *arguments,
                              shoal_tensor *const *outputs, size_t n_outputs)
{
    if (must_fail) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "it was told to");
    }
    shoal_tensor *twice = shoal_add(arguments[0].as.tensor, arguments[0].as.tensor);
    return shoal_copy_(outputs[0], twice) ? SHOAL_OK : SHOAL_ERR_STATE;
}

static void register_shaky(void)
{
    static bool is_registered;
    if (!is_registered) {
        size_t n_before = test_live_blocks();
        shoal_op_definition definition = SHOAL_OP_DEFINITION_INIT;
        definition.name = "test.shaky";
        definition.signature = "tensor self -> tensor";
        definition.meta = meta_shaky;
        definition.kernel = run_shaky;
        CHECK_OK(shoal_op_register(&definition, NULL));
        is_registered = true;
        test_keep_blocks(test_live_blocks() - n_before);
    }
}

/* On all ranks alike, with collectives in flight: they are waited for, and the next run is as good as the first. */
TEST_PROCESSES(a_kernel_that_fails, 2)
{
    static const char text[] =
        PAIR_HEAD "%one = all_gather_into_tensor(%x, @g)\n%two = all_reduce(%y, \"sum\", @g)\n"
                  "%s = test.shaky(%x)\n%a = wait_tensor(%one)\n%n = neg(%a)\n"
                  "%b = wait_tensor(%two)\nreturn [%n, %b, %s]\n}\n";
    register_shaky();
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_plan *plan = make_plan(world, text);
    shoal_graph *graph = run_parse(text, self->n_ranks);
    REQUIRE(plan != NULL && graph != NULL);
    for (int round = 0; round < 6; round++) {
        shoal_tensor *outputs[3] = {NULL};
        must_fail = round % 2 == 1;
        if (must_fail) {
            CHECK_STATUS(run_once(plan, world, text, 3), SHOAL_ERR_UNSUPPORTED);
            CHECK_ERROR_TEXT("plan_run: %s: test.shaky: it was told to");
        } else {
            plan_round(plan, graph, world, round, outputs, 3);
            run_unref(outputs, 3);
        }
    }
    must_fail = false;
    shoal_plan_free(plan);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}

TEST_PROCESSES(a_rank_that_dies, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_plan *plan = make_plan(world, step_text);
    REQUIRE(plan != NULL);
    CHECK_OK(run_once(plan, world, step_text, STEP_OUTPUTS));
    test_expect_death(1, SIGKILL);
    if (self->rank == 1) {
        (void)raise(SIGKILL);
    }
    CHECK_STATUS(run_once(plan, world, step_text, STEP_OUTPUTS), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("plan_run: %");
    CHECK_STATUS(run_once(plan, world, step_text, STEP_OUTPUTS), SHOAL_ERR_PEER);
    shoal_plan_free(plan);
    (void)shoal_world_close(world);
}

TEST_RANKS(a_rank_that_does_not_come, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_plan *plan = make_plan(world, pair_text);
    shoal_group *group = NULL;
    REQUIRE(plan != NULL);
    CHECK_OK(run_once(plan, world, pair_text, 2));
    REQUIRE_OK(shoal_group_create(world, (const int[]){0, 1}, 2, "graph:g", &group));
    REQUIRE_OK(shoal_group_set_timeout(group, 0.1));
    if (self->rank == 0) {
        CHECK_STATUS(run_once(plan, world, pair_text, 2), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("plan_run: %a: ");
    }
    test_barrier(self);
    shoal_plan_free(plan);
    (void)shoal_world_close(world);
}

/* Ends ----------------------------------------------------------------------------------------------------- */

TEST_RANKS(a_world_may_end_before_its_plans, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_plan *plan = make_plan(world, step_text);
    shoal_graph *graph = run_parse(step_text, self->n_ranks);
    shoal_tensor *inputs[RUN_MAX] = {NULL};
    shoal_tensor *outputs[STEP_OUTPUTS] = {NULL};
    shoal_tensor *copy = NULL;
    REQUIRE(plan != NULL && graph != NULL);
    size_t n_inputs = run_inputs(graph, self->rank, inputs);
    REQUIRE_OK(shoal_plan_run(plan, inputs, n_inputs, outputs, STEP_OUTPUTS));
    REQUIRE_OK(shoal_scope_begin());
    copy = shoal_tensor_ref(shoal_clone(outputs[2]));
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
    run_check_same("output", 2, outputs[2], copy);
    shoal_tensor *none[STEP_OUTPUTS] = {NULL};
    CHECK_STATUS(shoal_plan_run(plan, inputs, n_inputs, none, STEP_OUTPUTS), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("world of the plan was closed");
    shoal_plan_free(plan);
    run_check_same("output", 2, outputs[2], copy);
    run_unref(outputs, STEP_OUTPUTS);
    run_unref(inputs, n_inputs);
    shoal_tensor_unref(copy);
    shoal_graph_free(graph);
}

static const shoal_graph *tried_graph;

static shoal_status try_plan(void *context)
{
    shoal_plan *plan = NULL;
    shoal_world *world = shoal_group_world(context);
    shoal_status status = shoal_plan_create(tried_graph, world, NULL, &plan);
    for (int i = 0; i < 2 && status == SHOAL_OK; i++) {
        shoal_tensor *outputs[STEP_OUTPUTS] = {NULL};
        shoal_tensor *inputs[3] = {NULL};
        size_t n_inputs = 0;
        /* Their own allocations may fail too. */
        for (; n_inputs < 3 && status == SHOAL_OK; n_inputs++) {
            status = tensor_create_empty(SHOAL_CPU, SHOAL_F32, 2, (int64_t[]){6, 8}, &inputs[n_inputs]);
        }
        for (size_t k = 0; k < n_inputs && inputs[k] && status == SHOAL_OK; k++) {
            void *data = NULL;
            status = tensor_host_address(inputs[k], &data);
            memset(data, 0, tensor_bytes(inputs[k]));
        }
        if (status == SHOAL_OK) {
            status = shoal_plan_run(plan, inputs, n_inputs, outputs, STEP_OUTPUTS);
        }
        run_unref(outputs, STEP_OUTPUTS);
        run_unref(inputs, 3);
    }
    shoal_plan_free(plan);
    return status;
}

TEST(allocations_may_fail)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 1, .rank = 0, .key = "fake", .transport = "fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_graph *graph = run_parse(step_text, 1);
    tried_graph = graph;
    REQUIRE_OK(try_plan(shoal_world_group(world)));
    CHECK(test_sweep_allocations(try_plan, shoal_world_group(world)) > 20);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}

/* Any rank can make a plan alone. */
TEST(a_world_without_peers)
{
    for (int rank = 0; rank < 3; rank++) {
        shoal_world_options options = {
            .struct_size = sizeof options, .n_ranks = 3, .rank = rank, .key = "fake", .transport = "fake"};
        shoal_world *world = NULL;
        REQUIRE_OK(shoal_world_open(&options, &world));
        shoal_graph *graph = run_parse(step_text, 3);
        tried_graph = graph;
        CHECK_OK(try_plan(shoal_world_group(world)));
        shoal_graph_free(graph);
        CHECK_OK(shoal_world_close(world));
    }
}
