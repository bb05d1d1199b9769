/* SPDX-License-Identifier: MIT */
/* Plans that break the rules are told from those that do not, lowering survives a lack of memory, and packing packs. */
#include "fixtures/random_graph.h"
#include "graph/plan/pack.h"
#include "lowering.h"
#include "unit/graph/run/plan_check.h"

static const char graph_text[] = "graph {\n"
                                 "    group @w = [[0, 1]]\n"
                                 "    %x = placeholder : f32[16]\n"
                                 "    %c = constant [1.0, 2.0] : f32[2]\n"
                                 "    %a = neg(%x)\n"
                                 "    %b = mul(%a, %x)\n"
                                 "    %r = all_reduce(%b, \"sum\", @w)\n"
                                 "    %d = add(%a, %x)\n"
                                 "    %e = mul(%d, %d)\n"
                                 "    %w = wait_tensor(%r)\n"
                                 "    %h = to_dtype(%x, bf16)\n"
                                 "    %g = all_gather_into_tensor(%h, @w)\n"
                                 "    %gw = wait_tensor(%g)\n"
                                 "    %v = narrow(%gw, 0, rank(@w) * 16, 16)\n"
                                 "    %f = to_dtype(%v, f32)\n"
                                 "    %s = reduce_scatter_tensor(%f, \"avg\", 0, @w)\n"
                                 "    %sw = wait_tensor(%s)\n"
                                 "    %i = add(%w, %e)\n"
                                 "    %p = cat([%i, %c])\n"
                                 "    %q = all_gather_tensor(%p, 0, @w)\n"
                                 "    %qw = wait_tensor(%q)\n"
                                 "    return [%i, %sw, %qw]\n"
                                 "}\n";

static struct plan_buffer *find_buffer(struct shoal_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->n_buffers; i++) {
        if (strcmp(plan->buffers[i].name, name) == 0) {
            return &plan->buffers[i];
        }
    }
    test_failed(__FILE__, __LINE__, "no buffer %s", name);
    return &plan->buffers[0];
}

static void place_on(struct shoal_plan *plan)
{
    find_buffer(plan, "d")->offset =
        find_buffer(plan, "a")->offset; /* both are in use in the step that makes d */
}

static void end_early(struct shoal_plan *plan)
{
    find_buffer(plan, "a")->last--;
}

static void end_in_flight(struct shoal_plan *plan)
{
    find_buffer(plan, "b")->last = find_buffer(plan, "b")->first + 1; /* where the start is */
}

static void begin_late(struct shoal_plan *plan)
{
    find_buffer(plan, "e")->first++;
}

static void leave_the_area(struct shoal_plan *plan)
{
    find_buffer(plan, "e")->offset = plan->pool_bytes;
}

static void turn_from_alignment(struct shoal_plan *plan)
{
    find_buffer(plan, "a")->bytes = 8;
    find_buffer(plan, "a")->offset += 8;
}

static void share_an_output(struct shoal_plan *plan)
{
    struct plan_buffer *output = find_buffer(plan, "i");
    struct plan_buffer *other = find_buffer(plan, "q");
    output->offset = other->offset;
}

static void end_an_output(struct shoal_plan *plan)
{
    find_buffer(plan, "i")->last--;
}

static void forget_a_wait(struct shoal_plan *plan)
{
    for (size_t i = 0; i < plan->n_steps; i++) {
        if (plan->steps[i].kind == PLAN_WAIT) {
            plan->steps[i].kind = PLAN_CALL;
            plan->steps[i].collective = PLAN_NONE;
            return;
        }
    }
}

static void overlap_scratch(struct shoal_plan *plan)
{
    struct plan_buffer *buffer = find_buffer(plan, "e");
    plan->steps[buffer->first].workspace_bytes = 64;
    plan->steps[buffer->first].workspace_offset = buffer->offset;
}

static void outgrow_a_window(struct shoal_plan *plan)
{
    plan->windows[0].bytes = 8;
}

TEST(violations_are_found)
{
    static const struct {
        const char *name;
        void (*plant)(struct shoal_plan *plan);
    } faults[] = {
        {"two that are in use share bytes", place_on},
        {"a life ends before the last use", end_early},
        {"a buffer is free while it is in flight", end_in_flight},
        {"a life begins behind the first use", begin_late},
        {"a buffer leaves its area", leave_the_area},
        {"a buffer is not aligned", turn_from_alignment},
        {"an output shares bytes", share_an_output},
        {"an output ends", end_an_output},
        {"nobody waits", forget_a_wait},
        {"scratch memory lies in a buffer", overlap_scratch},
        {"a window is too small", outgrow_a_window},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        struct shoal_plan *plan = lower_parse(graph_text, NULL, 1);
        REQUIRE(plan != NULL);
        faults[i].plant(plan);
        if (plan_check(plan) != SHOAL_ERR_INTERNAL) {
            test_failed(__FILE__, __LINE__, "not found: %s", faults[i].name);
        }
        plan_destroy(plan);
    }
}

static shoal_status lower_once(void *context)
{
    const shoal_graph *graph = context;
    shoal_compile_options options = {.struct_size = sizeof options, .one_shot = true};
    struct plan_target target = {.rank = 1};
    struct shoal_plan *plan = NULL;
    shoal_status status = plan_lower(graph, &options, &target, &plan);
    plan_destroy(plan);
    return status;
}

TEST(failing_allocations)
{
    shoal_graph *graph = NULL;
    REQUIRE_OK(shoal_graph_parse(graph_text, strlen(graph_text), &graph));
    CHECK(test_sweep_allocations(lower_once, graph) > 30);
    shoal_graph_free(graph);
}

TEST(errors_name_the_node)
{
    static const char opaque[] = "graph {\n    %x = placeholder : f32[4]\n    return [%x]\n}\n";
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    struct plan_target target = {.rank = 5};
    struct shoal_plan *plan = NULL;
    shoal_graph *graph = NULL;
    REQUIRE_OK(shoal_graph_parse(graph_text, strlen(graph_text), &graph));
    CHECK_INT(plan_lower(graph, &options, &target, &plan), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("@w does not have this rank, 5");
    shoal_graph_free(graph);
    REQUIRE_OK(shoal_graph_create(&graph));
    CHECK_INT(plan_lower(graph, &options, &target, &plan), SHOAL_ERR_STATE);
    shoal_graph_free(graph);
    REQUIRE_OK(shoal_graph_parse(opaque, strlen(opaque), &graph));
    shoal_node *x = shoal_graph_first(graph);
    const shoal_tensor *like = shoal_node_value(x, 0);
    REQUIRE_OK(shoal_graph_set_insert_point(graph, (shoal_insert_point){.node = x, .is_after = true}));
    REQUIRE_OK(shoal_graph_opaque(graph, "other.op", &(shoal_arg){.kind = SHOAL_ARG_NODE, .as.node = x}, 1,
                                  (shoal_tensor *const[]){(shoal_tensor *)(uintptr_t)like}, 1, false, "y",
                                  NULL));
    CHECK_INT(plan_lower(graph, &options, &target, &plan), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("%y: there is no op \"other.op\" in this program");
    CHECK(plan == NULL);
    shoal_graph_free(graph);
}

/* Whatever is lowered keeps the rules, on each rank; and ranks have the same comm memory and windows. */
TEST(random_graphs)
{
    int n_graphs = (int)(400 / test_time_scale());
    for (int i = 0; i < n_graphs && !test_has_failed(); i++) {
        int n_ranks = 2 + i % 2;
        shoal_graph *graph = random_graph((uint64_t)i, n_ranks);
        struct shoal_plan *plans[3] = {NULL};
        for (int rank = 0; rank < n_ranks; rank++) {
            shoal_compile_options options = {
                .struct_size = sizeof options, .one_shot = i % 3 == 0, .no_reuse = i % 5 == 0};
            struct plan_target target = {.rank = rank, .n_ranks = n_ranks};
            REQUIRE_OK(plan_lower(graph, &options, &target, &plans[rank]));
            if (!CHECK_OK(plan_check(plans[rank]))) {
                test_failed(__FILE__, __LINE__, "that was graph %d", i);
            }
            CHECK_INT(plans[rank]->n_collectives, plans[0]->n_collectives);
            CHECK_INT(plans[rank]->n_windows, plans[0]->n_windows);
            for (size_t k = 0; k < plans[0]->n_groups; k++) {
                CHECK_INT(plans[rank]->groups[k].comm_bytes, plans[0]->groups[k].comm_bytes);
            }
            for (size_t k = 0; k < plans[0]->n_windows && k < plans[rank]->n_windows; k++) {
                CHECK_INT(plans[rank]->windows[k].bytes, plans[0]->windows[k].bytes);
            }
        }
        for (int rank = 0; rank < n_ranks; rank++) {
            plan_destroy(plans[rank]);
        }
        shoal_graph_free(graph);
    }
}

/* Packing ---------------------------------------------------------------------------------------------- */

enum {
    MAX_ITEMS = 3000
};

static void check_packed(const struct pack_item *items, size_t n_items, size_t bytes)
{
    for (size_t i = 0; i < n_items; i++) {
        CHECK(*items[i].offset + items[i].bytes <= bytes);
        for (size_t k = 0; k < i; k++) {
            bool meet = items[i].first <= items[k].last && items[k].first <= items[i].last;
            bool share = *items[i].offset < *items[k].offset + items[k].bytes &&
                         *items[k].offset < *items[i].offset + items[i].bytes;
            if (meet && share) {
                test_failed(__FILE__, __LINE__, "items %zu and %zu share bytes", i, k);
                return;
            }
        }
    }
}

/* The bytes that must be there at the worst time. */
static size_t find_peak(const struct pack_item *items, size_t n_items, uint32_t end)
{
    size_t peak = 0;
    for (uint32_t time = 0; time < end; time++) {
        size_t bytes = 0;
        for (size_t i = 0; i < n_items; i++) {
            bytes += items[i].first <= time && time <= items[i].last ? items[i].bytes : 0;
        }
        peak = bytes > peak ? bytes : peak;
    }
    return peak;
}

TEST(packing_random_items)
{
    static struct pack_item items[MAX_ITEMS];
    static size_t offsets[MAX_ITEMS];
    struct test_random random = test_random_begin(7);
    for (int round = 0; round < 60; round++) {
        size_t n_items = round == 0 ? 0 : round == 1 ? 1500 : 1 + test_random_below(&random, 200);
        uint32_t end = (uint32_t)n_items + 1;
        size_t bytes = SIZE_MAX;
        for (size_t i = 0; i < n_items; i++) {
            uint32_t first = (uint32_t)test_random_below(&random, end);
            uint32_t last = first + (uint32_t)test_random_below(&random, round % 2 == 0 ? 4 : 30);
            size_t size = 64 * (1 + test_random_below(&random, round % 3 == 0 ? 4 : 1000));
            items[i] = (struct pack_item){
                .bytes = size, .first = first, .last = last < end ? last : end - 1, .offset = &offsets[i]};
        }
        REQUIRE_OK(pack(items, n_items, &bytes));
        check_packed(items, n_items, bytes);
        CHECK(bytes <= 2 * find_peak(items, n_items, end)); /* far from it, on all seeds that were tried */
    }
}

/* Of a chain, in which each meets the one before and the one behind only, two at a time are there; and few buffers, packed by
   size, fill a hole exactly. */
TEST(packing_is_tight)
{
    static struct pack_item chain[MAX_ITEMS];
    static size_t offsets[MAX_ITEMS];
    size_t bytes = 0;
    for (uint32_t i = 0; i < MAX_ITEMS; i++) {
        chain[i] = (struct pack_item){.bytes = 64, .first = i, .last = i + 1, .offset = &offsets[i]};
    }
    REQUIRE_OK(pack(chain, MAX_ITEMS, &bytes));
    CHECK_INT(bytes, 128);
    struct pack_item few[] = {
        {.bytes = 64, .first = 0, .last = 1, .offset = &offsets[0]},
        {.bytes = 128, .first = 0, .last = 3, .offset = &offsets[1]},
        {.bytes = 192, .first = 2, .last = 3, .offset = &offsets[2]},
        {.bytes = 128, .first = 0, .last = 1, .offset = &offsets[3]},
    };
    REQUIRE_OK(pack(few, 4, &bytes));
    CHECK_INT(bytes, 320);
}

/* Sizes ------------------------------------------------------------------------------------------------ */

/* A long graph: quadratic walks would take minutes. */
TEST(long_graphs)
{
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    struct plan_target target = {.rank = 0};
    struct shoal_plan *plan = NULL;
    shoal_graph *graph = NULL;
    const shoal_op *ops[3];
    const char *const names[] = {"neg", "all_reduce", "wait_tensor"};
    shoal_node *node = NULL;
    size_t n_nodes = 3 * (size_t)(20000 / test_time_scale());
    REQUIRE_OK(shoal_graph_create(&graph));
    REQUIRE_OK(shoal_graph_add_group(graph, "w", (const int[]){0, 1}, 1, 2));
    REQUIRE_OK(shoal_graph_placeholder(graph, "x", (const int64_t[]){4}, 1, SHOAL_F32, &node));
    for (size_t i = 0; i < 3; i++) {
        REQUIRE_OK(shoal_op_find(names[i], &ops[i]));
    }
    for (size_t i = 0; i < n_nodes; i++) {
        shoal_arg args[] = {{.kind = SHOAL_ARG_NODE, .as.node = node},
                            {.kind = SHOAL_ARG_STRING, .as.string = "sum"},
                            {.kind = SHOAL_ARG_GROUP, .as.string = "w"}};
        REQUIRE_OK(shoal_graph_call(graph, ops[i % 3], args, i % 3 == 1 ? 3 : 1, NULL, &node));
    }
    REQUIRE_OK(shoal_graph_output(graph, &(shoal_arg){.kind = SHOAL_ARG_NODE, .as.node = node}, NULL));
    REQUIRE_OK(plan_lower(graph, &options, &target, &plan));
    CHECK_INT(plan->n_steps, n_nodes);
    CHECK(plan->groups[0].comm_bytes <= 192); /* two at a time, and the output */
    plan_destroy(plan);
    shoal_graph_free(graph);
}
