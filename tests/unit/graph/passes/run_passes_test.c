/* SPDX-License-Identifier: MIT */
/*
 * Passes change no bits of steps as DDP and FSDP make them: graphs run between real ranks before and after, and outputs and inputs
 * are the same. Every pass there is takes part, also those that come later. Random graphs are in pass_fuzz_test.c.
 */
#include "ddp_graph.h"
#include "unit/graph/running.h"

enum {
    MAX_PASSES = 64
};

struct result {
    shoal_tensor *inputs[RUN_MAX];
    shoal_tensor *outputs[RUN_MAX];
    size_t n_inputs;
    size_t n_outputs;
};

static void free_result(struct result *result)
{
    run_unref(result->outputs, result->n_outputs);
    run_unref(result->inputs, result->n_inputs);
}

/* Runs a graph; its outputs are single tensors. */
static struct result run(const shoal_graph *graph, shoal_world *world)
{
    struct result result = {.n_inputs = 0};
    size_t n_args = 0;
    const shoal_arg *arg = shoal_node_args(shoal_graph_last(graph), &n_args);
    result.n_inputs = run_inputs(graph, shoal_world_rank(world), result.inputs);
    size_t n_outputs = arg && arg->kind == SHOAL_ARG_LIST ? arg->as.list.count : 1;
    if (CHECK_OK(shoal_graph_run(graph, world, result.inputs, result.n_inputs, result.outputs, n_outputs))) {
        result.n_outputs = n_outputs;
    }
    return result;
}

static void check_same(const struct result *actual, const struct result *expected, const char *passes)
{
    CHECK_INT(actual->n_inputs, expected->n_inputs);
    CHECK_INT(actual->n_outputs, expected->n_outputs);
    for (size_t i = 0; i < actual->n_outputs && i < expected->n_outputs; i++) {
        run_check_same("output", i, actual->outputs[i], expected->outputs[i]);
    }
    for (size_t i = 0; i < actual->n_inputs && i < expected->n_inputs; i++) {
        run_check_same("input", i, actual->inputs[i], expected->inputs[i]);
    }
    if (test_has_failed()) {
        test_failed(__FILE__, __LINE__, "that was after %s", passes);
    }
}

/* Makes a graph: the same one for the same number. */
typedef shoal_graph *(*make_graph)(int n_ranks, uint64_t number);

/* The graph after these passes, which end with a NULL, gives what it gave. Returns whether they changed it. */
static bool check_passes(shoal_world *world, make_graph make, uint64_t number, const char *const *passes,
                         double bucket_size_mb)
{
    size_t n_passes = 0;
    char names[256] = "";
    for (; passes[n_passes]; n_passes++) {
        (void)snprintf(names + strlen(names), sizeof names - strlen(names), " %s", passes[n_passes]);
    }
    (void)snprintf(names + strlen(names), sizeof names - strlen(names), ", graph %llu, %g MiB",
                   (unsigned long long)number, bucket_size_mb);
    shoal_graph *graph = make(shoal_world_n_ranks(world), number);
    struct result before = run(graph, world);
    shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
    shoal_pass_report report = SHOAL_PASS_REPORT_INIT;
    options.bucket_size_mb = bucket_size_mb;
    bool is_ok = CHECK_OK(shoal_graph_run_passes(graph, passes, n_passes, &options, &report));
    if (is_ok) {
        struct result after = run(graph, world);
        check_same(&after, &before, names);
        free_result(&after);
    }
    free_result(&before);
    shoal_graph_free(graph);
    return report.n_created > 0;
}

/* Gradients that are averaged ---------------------------------------------------------------------------- */

enum {
    IS_DIVIDED = 1, /* divided, then summed; otherwise averaged */
    IS_COPIED = 2,  /* into inputs, of which some are read again */
    N_VARIANTS = 4
};

/* Three dtypes, sizes from nothing to what fills no bucket evenly. */
static shoal_graph *make_ddp(int n_ranks, uint64_t number)
{
    static const int64_t counts[] = {3, 0, 1, 17, 4, 0, 255};
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16, SHOAL_F16};
    shoal_graph *graph = build_graph(n_ranks);
    shoal_node *results[RUN_MAX];
    size_t n_results = 0;
    struct ddp_chain chain = {.divisor = n_ranks};
    if ((number & IS_DIVIDED) == 0) {
        chain = (struct ddp_chain){.reduce = "avg"};
    }
    for (size_t i = 0; i < 14; i++) {
        int64_t shape[2] = {counts[i % 7], 1 + (int64_t)(i % 2)};
        shoal_dtype dtype = dtypes[(i / 2) % 3];
        shoal_node *wait = ddp_chain(graph, ddp_gradient_of(graph, shape, 2, dtype), chain);
        shoal_node *before = NULL;
        if ((number & IS_COPIED) != 0) {
            CHECK_OK(shoal_graph_placeholder(graph, "grad", shape, 2, dtype, &before));
            wait = BUILD_CALL(graph, "copy_", arg_node(before), arg_node(wait));
        }
        results[n_results++] =
            i % 5 == 4 ? BUILD_CALL(graph, "mul_scalar", arg_node(wait), arg_float(3)) : wait;
    }
    ddp_output(graph, results, n_results);
    return graph;
}

static void fuse_gradients(struct rank *self)
{
    static const char *const lists[][4] = {{CONCAT, NULL},
                                           {COALESCED, NULL},
                                           {SCHEDULE, NULL},
                                           {CONCAT, SCHEDULE, NULL},
                                           {COALESCED, SCHEDULE, NULL},
                                           {SCHEDULE, COALESCED, NULL},
                                           {DRIVER, NULL}};
    static const double sizes[] = {25, -1, 0.0001};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    size_t n_changed = 0;
    for (uint64_t variant = 0; variant < N_VARIANTS; variant++) {
        for (size_t i = 0; i < sizeof lists / sizeof lists[0] && !test_has_failed(); i++) {
            for (size_t k = 0; k < 3; k++) {
                n_changed += check_passes(world, make_ddp, variant, lists[i], sizes[k]) ? 1 : 0;
            }
        }
    }
    CHECK(n_changed >= 48); /* all that fuse, except for -1 with one bucket each */
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(gradients_fused_on_2, 2)
{
    fuse_gradients(self);
}

TEST_RANKS(gradients_fused_on_3, 3)
{
    fuse_gradients(self);
}

/*
 * Gradients that are communicated in another dtype, as a hook of DDP does it. They are copied into gradients of their own dtype, or
 * converted back by an op: those are not joined.
 */
static shoal_graph *make_compressed(int n_ranks, uint64_t number)
{
    static const int64_t counts[] = {3, 17, 1, 40};
    shoal_dtype dtype = number % 2 == 0 ? SHOAL_BF16 : SHOAL_F16;
    shoal_graph *graph = build_graph(n_ranks);
    shoal_node *results[4];
    for (size_t i = 0; i < 4; i++) {
        shoal_node *before = NULL;
        shoal_node *gradient = ddp_gradient_of(graph, &counts[i], 1, SHOAL_F32);
        shoal_node *small = BUILD_CALL(graph, "to_dtype", arg_node(gradient), arg_dtype(dtype));
        shoal_node *wait = ddp_chain(graph, small, (struct ddp_chain){.divisor = n_ranks});
        CHECK_OK(shoal_graph_placeholder(graph, "grad", &counts[i], 1, SHOAL_F32, &before));
        results[i] = number < 2 ? BUILD_CALL(graph, "copy_", arg_node(before), arg_node(wait))
                                : BUILD_CALL(graph, "to_dtype", arg_node(wait), arg_dtype(SHOAL_F32));
    }
    ddp_output(graph, results, 4);
    return graph;
}

TEST_RANKS(d9_d10_compressed_gradients, 2)
{
    static const char *const lists[][3] = {{CONCAT, NULL}, {COALESCED, SCHEDULE, NULL}, {DRIVER, NULL}};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (uint64_t number = 0; number < 4; number++) {
        for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
            CHECK(check_passes(world, make_compressed, number, lists[i], 25) == (number < 2));
        }
    }
    CHECK_OK(shoal_world_close(world));
}

/* Shards ------------------------------------------------------------------------------------------------- */

/*
 * A step as FSDP makes it: parameters, of which this rank has a part, are gathered in another dtype and used; gradients are reduced
 * to parts, which are added to inputs. Every third parameter is gathered twice, and all_reduces go between.
 */
static shoal_graph *make_fsdp(int n_ranks, uint64_t number)
{
    static const int64_t rows[] = {1, 5, 2, 64, 3, 7};
    shoal_graph *graph = build_graph(n_ranks);
    shoal_node *results[RUN_MAX];
    size_t n_results = 0;
    for (size_t i = 0; i < 9; i++) {
        int64_t shape[2] = {rows[(i + number) % 6], 3};
        shoal_node *shard = NULL;
        shoal_node *grad = NULL;
        CHECK_OK(
            shoal_graph_placeholder(graph, "shard", shape, 2, i % 4 == 3 ? SHOAL_F64 : SHOAL_F32, &shard));
        CHECK_OK(shoal_graph_placeholder(graph, "grad", shape, 2, SHOAL_F32, &grad));
        shoal_node *cast =
            i % 2 == 0 ? BUILD_CALL(graph, "to_dtype", arg_node(shard), arg_dtype(SHOAL_BF16)) : shard;
        shoal_node *full = NULL;
        for (size_t k = 0; k < (i % 3 == 0 ? 2 : 1); k++) {
            full = BUILD_CALL(graph, "all_gather_into_tensor", arg_node(cast), arg_group(BUILD_GROUP));
            full = build_wait(graph, full);
        }
        shoal_node *used = BUILD_CALL(graph, "mul", arg_node(full), arg_node(full));
        used = BUILD_CALL(graph, "to_dtype", arg_node(used), arg_dtype(SHOAL_F32));
        shoal_node *part =
            BUILD_CALL(graph, "reduce_scatter_tensor", arg_node(used), arg_string(i % 4 == 1 ? "sum" : "avg"),
                       arg_int(0), arg_group(BUILD_GROUP));
        part = build_wait(graph, part);
        if (number % 2 == 1) {
            part = build_wait(graph, build_all_reduce(graph, part));
        }
        results[n_results++] =
            BUILD_CALL(graph, i % 2 == 0 ? "add_" : "copy_", arg_node(grad), arg_node(part));
        if (i % 4 == 0) {
            results[n_results++] = BUILD_CALL(graph, "add_scalar", arg_node(used), arg_float(1));
        }
    }
    ddp_output(graph, results, n_results);
    return graph;
}

/* The names of all passes; how many there are. */
static size_t list_passes(const char *names[MAX_PASSES])
{
    size_t n_passes = 0;
    shoal_pass_definition pass = SHOAL_PASS_DEFINITION_INIT;
    while (n_passes < MAX_PASSES && shoal_pass_at(n_passes, &pass) == SHOAL_OK) {
        names[n_passes++] = pass.name;
    }
    CHECK(n_passes >= 4);
    return n_passes;
}

/* Each pass alone, and then with others behind it. */
static void run_shards(struct rank *self)
{
    const char *names[MAX_PASSES] = {NULL};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    size_t n_passes = list_passes(names);
    size_t n_changed = 0;
    for (size_t i = 0; i < 3 * n_passes && !test_has_failed(); i++) {
        struct test_random random = test_random_begin(2000 + i);
        const char *second = names[test_random_below(&random, n_passes)];
        const char *const list[] = {names[i % n_passes], i < n_passes ? NULL : second, NULL};
        n_changed += check_passes(world, make_fsdp, i, list, i % 5 == 0 ? 0.0001 : 25) ? 1 : 0;
    }
    CHECK(n_changed > 0);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(shards_on_2, 2)
{
    run_shards(self);
}

TEST_RANKS(shards_on_3, 3)
{
    run_shards(self);
}
