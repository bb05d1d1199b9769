/* SPDX-License-Identifier: MIT */
/*
 * Random graphs of collectives of all kinds and random passes bucket_*: all ranks compute the same bits afterwards,
 * starts that are left keep their order in their group, and two runs give the same text.
 */
#include <stdio.h>

#include "evaluate_ranks.h"
#include "tensor/tensor.h"

enum {
    MAX_NODES = 200,
    MAX_BYTES = 1 << 20,
    MAX_TEXT = 1 << 18
};

struct maker {
    struct test_random random;
    shoal_graph *graph;
    int64_t n_ranks;
    shoal_node *tensors[MAX_NODES]; /* f32, one number for each rank, to take from */
    size_t n_tensors;
    shoal_node *starts[MAX_NODES]; /* to be waited for */
    size_t n_starts;
    shoal_node *outputs[MAX_NODES];
    size_t n_outputs;
};

/* Whether a start that nobody waits for yet stands in the way of reading, or of writing. */
static bool is_in_flight(const struct maker *maker, const shoal_node *node, bool writes)
{
    for (size_t i = 0; i < maker->n_starts; i++) {
        const shoal_node *start = maker->starts[i];
        if (start->inputs[0]->values[0]->storage == node->values[0]->storage &&
            (writes || (node_flags(start) & SHOAL_OP_IN_PLACE) != 0)) {
            return true;
        }
    }
    return false;
}

static shoal_node *pick_for(struct maker *maker, bool writes)
{
    size_t first = (size_t)test_random_below(&maker->random, maker->n_tensors);
    for (size_t i = 0; i < maker->n_tensors; i++) {
        shoal_node *node = maker->tensors[(first + i) % maker->n_tensors];
        if (!is_in_flight(maker, node, writes)) {
            return node;
        }
    }
    return build_input(maker->graph, "x", maker->n_ranks);
}

static shoal_node *pick(struct maker *maker)
{
    return pick_for(maker, /*writes=*/false);
}

static void keep(struct maker *maker, shoal_node *node)
{
    if (maker->n_tensors < MAX_NODES) {
        maker->tensors[maker->n_tensors++] = node;
    }
}

static void add_compute(struct maker *maker)
{
    static const char *const ops[] = {"add", "sub"};
    shoal_node *node = BUILD_CALL(maker->graph, ops[test_random_below(&maker->random, 2)],
                                  arg_node(pick(maker)), arg_node(pick(maker)));
    keep(maker, BUILD_CALL(maker->graph, "mul_scalar", arg_node(node), arg_float(0.25)));
}

static void add_write(struct maker *maker)
{
    shoal_node *self = pick_for(maker, /*writes=*/true);
    switch (test_random_below(&maker->random, 3)) {
    case 0:
        keep(maker, BUILD_CALL(maker->graph, "mul_scalar_", arg_node(self), arg_float(0.5)));
        break;
    case 1:
        keep(maker, BUILD_CALL(maker->graph, "copy_", arg_node(self), arg_node(pick(maker))));
        break;
    default:
        keep(maker, BUILD_CALL(maker->graph, "view", arg_node(self), ARG_LIST(arg_int(maker->n_ranks))));
    }
}

static const char *pick_group(struct maker *maker)
{
    static const char *const groups[] = {BUILD_GROUP, BUILD_GROUP, BUILD_GROUP, BUILD_GROUP, "again", "solo"};
    return groups[test_random_below(&maker->random, 6)];
}

static void add_start(struct maker *maker)
{
    shoal_graph *graph = maker->graph;
    shoal_arg group = arg_group(pick_group(maker));
    shoal_arg x = arg_node(pick(maker));
    shoal_arg op = arg_string(test_random_below(&maker->random, 5) == 0 ? "avg" : "sum");
    shoal_node *start;
    if (test_random_below(&maker->random, 4) == 0) {
        x = arg_node(BUILD_CALL(graph, "reshape", x, ARG_LIST(arg_int(maker->n_ranks), arg_int(1))));
    }
    switch (test_random_below(&maker->random, 8)) {
    case 0:
        start = BUILD_CALL(graph, is_in_flight(maker, x.as.node, true) ? "all_reduce" : "all_reduce_", x, op,
                           group);
        break;
    case 1:
    case 2:
        start = BUILD_CALL(graph, "all_reduce", x, op, group);
        break;
    case 3:
    case 4:
        start = BUILD_CALL(graph, "reduce_scatter_tensor", x, op, arg_int(0), group);
        break;
    case 5:
        start = BUILD_CALL(graph, "all_gather_tensor", x, arg_int(0), group);
        break;
    default:
        start = BUILD_CALL(graph, "all_gather_into_tensor", x, group);
    }
    maker->starts[maker->n_starts++] = start;
}

/* Waits for any start; what it gives is brought to the usual shape. */
static void add_wait(struct maker *maker)
{
    if (maker->n_starts == 0) {
        return;
    }
    size_t index = test_random_below(&maker->random, maker->n_starts);
    shoal_node *start = maker->starts[index];
    maker->starts[index] = maker->starts[--maker->n_starts];
    shoal_node *wait = build_wait(maker->graph, start);
    shoal_node *flat = BUILD_CALL(maker->graph, "flatten", arg_node(wait));
    int64_t count = shoal_tensor_count(shoal_node_value(flat, 0));
    if (count > maker->n_ranks) {
        flat = BUILD_CALL(maker->graph, "narrow", arg_node(flat), arg_int(0), arg_int(count - maker->n_ranks),
                          arg_int(maker->n_ranks));
    } else if (count < maker->n_ranks) {
        flat = BUILD_CALL(maker->graph, "add", arg_node(flat), arg_node(pick(maker)));
    }
    if (test_random_below(&maker->random, 3) > 0) {
        keep(maker, flat);
    }
    maker->outputs[maker->n_outputs++] = wait;
}

static shoal_graph *make(uint64_t seed, int n_ranks)
{
    struct maker maker = {
        .random = test_random_begin(seed), .graph = build_graph(n_ranks), .n_ranks = n_ranks};
    static const int ranks[] = {0, 1, 2, 3, 4, 5, 6, 7};
    CHECK_OK(shoal_graph_add_group(maker.graph, "again", ranks, 1, (size_t)n_ranks));
    CHECK_OK(shoal_graph_add_group(maker.graph, "solo", ranks, (size_t)n_ranks, 1));
    size_t n_inputs = 2 + test_random_below(&maker.random, 4);
    size_t n_steps = 6 + test_random_below(&maker.random, 50);
    uint64_t n_writes = test_random_below(&maker.random, 3);
    for (size_t i = 0; i < n_inputs; i++) {
        keep(&maker, build_input(maker.graph, "x", n_ranks));
    }
    for (size_t i = 0; i < n_steps; i++) {
        uint64_t kind = test_random_below(&maker.random, 10 + n_writes);
        if (kind < 4) {
            add_start(&maker);
        } else if (kind < 8) {
            add_wait(&maker);
        } else if (kind < 10) {
            add_compute(&maker);
        } else {
            add_write(&maker);
        }
    }
    while (maker.n_starts > 0) {
        add_wait(&maker);
    }
    for (size_t i = 0; i < 3; i++) {
        maker.outputs[maker.n_outputs++] = pick(&maker);
    }
    ddp_output(maker.graph, maker.outputs, maker.n_outputs);
    return maker.graph;
}

/* Starts that were there before are in the order of their making, which was the order of the list. */
static void check_group_order(const shoal_graph *graph, uint32_t n_ids)
{
    static const char *const groups[] = {BUILD_GROUP, "again", "solo"};
    for (size_t i = 0; i < 3; i++) {
        uint32_t last = 0;
        for (const shoal_node *node = graph->first; node; node = node->next) {
            if ((node_flags(node) & SHOAL_OP_COLLECTIVE) == 0 || node->id >= n_ids ||
                strcmp(ranks_string(node, SHOAL_ARG_GROUP), groups[i]) != 0) {
                continue;
            }
            CHECK(node->id >= last);
            last = node->id;
        }
    }
}

static void run_random_passes(shoal_graph *graph, uint64_t seed)
{
    static const char *const names[] = {"bucket_all_gathers", "bucket_reduce_scatters", "bucket_all_reduces",
                                        "bucket_fsdp_all_gathers", "bucket_fsdp_reduce_scatters"};
    static const double sizes[] = {0, 0, 0.00008};
    struct test_random random = test_random_begin(seed);
    size_t n_passes = 1 + test_random_below(&random, 4);
    CHECK_OK(shoal_graph_lint(graph));
    uint32_t n_ids = graph->n_ids;
    for (size_t i = 0; i < n_passes && !test_has_failed(); i++) {
        shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
        const char *pass = names[test_random_below(&random, 5)];
        options.comm_bucket_mb = sizes[test_random_below(&random, 3)];
        CHECK_OK(shoal_graph_run_passes(graph, &pass, 1, &options, NULL));
        check_group_order(graph, n_ids);
    }
}

static size_t count_starts(const shoal_graph *graph)
{
    size_t count = 0;
    for (const shoal_node *node = graph->first; node; node = node->next) {
        count += (node_flags(node) & SHOAL_OP_COLLECTIVE) != 0 ? 1 : 0;
    }
    return count;
}

TEST(random_graphs_compute_the_same)
{
    static char before[MAX_BYTES];
    static char after[MAX_BYTES];
    size_t n_fewer = 0;
    for (uint64_t round = 0; round < 1500 && !test_has_failed(); round++) {
        int n_ranks = 2 + (int)(round % 2);
        shoal_graph *graph = make(2 * round, n_ranks);
        size_t n_starts = count_starts(graph);
        size_t n_bytes = evaluate_ranks(graph, n_ranks, before, sizeof before);
        run_random_passes(graph, 2 * round + 1);
        CHECK_INT(evaluate_ranks(graph, n_ranks, after, sizeof after), n_bytes);
        n_fewer += count_starts(graph) < n_starts ? 1 : 0;
        if (memcmp(before, after, n_bytes) != 0) {
            test_failed(__FILE__, __LINE__, "round %llu computes something else", (unsigned long long)round);
        }
        shoal_graph_free(graph);
    }
    CHECK(n_fewer > 500);
}

struct text {
    char bytes[MAX_TEXT];
    size_t length;
};

static int append(void *context, const char *bytes, size_t n_bytes)
{
    struct text *text = context;
    if (text->length + n_bytes > sizeof text->bytes) {
        return 1;
    }
    memcpy(text->bytes + text->length, bytes, n_bytes);
    text->length += n_bytes;
    return 0;
}

TEST(two_runs_are_alike)
{
    static struct text texts[2];
    for (uint64_t round = 0; round < 100 && !test_has_failed(); round++) {
        for (int i = 0; i < 2; i++) {
            shoal_graph *graph = make(round, 3);
            run_random_passes(graph, round);
            texts[i].length = 0;
            CHECK_OK(shoal_graph_print(graph, append, &texts[i]));
            shoal_graph_free(graph);
        }
        CHECK_INT(texts[0].length, texts[1].length);
        CHECK(memcmp(texts[0].bytes, texts[1].bytes, texts[0].length) == 0);
    }
}
