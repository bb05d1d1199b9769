/* SPDX-License-Identifier: MIT */
/* Passes bucket_*: what goes together, what stays alone, and the same bits afterwards. */
#include "graph/passes/bucket.h"

#include "unit/graph/evaluate_ranks.h"

#define GATHERS "bucket_all_gathers"
#define SCATTERS "bucket_reduce_scatters"
#define REDUCES "bucket_all_reduces"
#define FSDP_GATHERS "bucket_fsdp_all_gathers"
#define FSDP_SCATTERS "bucket_fsdp_reduce_scatters"

enum {
    MIB_FLOATS = 1 << 18,
    MAX_BYTES = 1 << 20
};

static shoal_node *input_of(shoal_graph *graph, const int64_t *shape, int n_dims, shoal_dtype dtype)
{
    shoal_node *node = NULL;
    CHECK_OK(shoal_graph_placeholder(graph, "p", shape, n_dims, dtype, &node));
    return node;
}

static shoal_node *gather(shoal_graph *graph, shoal_node *x)
{
    return build_wait(graph,
                      BUILD_CALL(graph, "all_gather_into_tensor", arg_node(x), arg_group(BUILD_GROUP)));
}

static shoal_node *scatter(shoal_graph *graph, shoal_node *x)
{
    return build_wait(graph, BUILD_CALL(graph, "reduce_scatter_tensor", arg_node(x), arg_string("sum"),
                                        arg_int(0), arg_group(BUILD_GROUP)));
}

static shoal_node *reduce(shoal_graph *graph, shoal_node *x)
{
    return build_wait(graph, build_all_reduce(graph, x));
}

static size_t run_with(shoal_graph *graph, const char *pass, double mb)
{
    shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
    shoal_pass_report report = SHOAL_PASS_REPORT_INIT;
    options.comm_bucket_mb = mb;
    CHECK_OK(shoal_graph_run_passes(graph, &pass, 1, &options, &report));
    return report.n_buckets;
}

/* Runs a pass; the graph computes the same on so many ranks. Returns the number of buckets. */
static size_t run_same(shoal_graph *graph, int n_ranks, const char *pass, double mb)
{
    static char before[MAX_BYTES];
    static char after[MAX_BYTES];
    size_t n_bytes = evaluate_ranks(graph, n_ranks, before, sizeof before);
    size_t n_buckets = run_with(graph, pass, mb);
    CHECK_INT(evaluate_ranks(graph, n_ranks, after, sizeof after), n_bytes);
    CHECK(memcmp(before, after, n_bytes) == 0);
    return n_buckets;
}

/* What goes together --------------------------------------------------------------------------------------- */

TEST(b1_b2_a_gather_of_a_gather)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *casts[3];
    for (int i = 0; i < 3; i++) {
        shoal_node *x = input_of(graph, (int64_t[]){3, 4}, 2, SHOAL_F32);
        casts[i] = BUILD_CALL(graph, "to_dtype", arg_node(x), arg_dtype(SHOAL_BF16));
    }
    shoal_node *a = gather(graph, casts[0]);
    shoal_node *b = gather(graph, casts[1]);
    shoal_node *of_a = gather(graph, a); /* needs the first bucket: begins the next one */
    shoal_node *c = gather(graph, casts[2]);
    build_output(graph, 4, a, b, of_a, c);
    CHECK_INT(run_same(graph, 2, GATHERS, 0), 2);
    CHECK_INT(ddp_count(graph, "all_gather_into_tensor"), 2);
    CHECK_INT(ddp_count(graph, "wait_tensor"), 2);
    CHECK_INT(ddp_count(graph, "to_dtype"), 3);
    shoal_graph_free(graph);

    graph = build_graph(2);
    a = gather(graph, build_input(graph, "x", 4));
    b = gather(graph, BUILD_CALL(graph, "neg", arg_node(a)));
    build_output(graph, 2, a, b);
    CHECK_INT(run_same(graph, 2, GATHERS, 0), 0);
    CHECK_INT(ddp_count(graph, "wait_tensor"), 2);
    shoal_graph_free(graph);
}

TEST(b3_scatters_of_casts)
{
    const char *passes[] = {SCATTERS, FSDP_SCATTERS};
    for (int i = 0; i < 4; i++) {
        shoal_graph *graph = build_graph(2);
        shoal_node *results[2];
        for (int k = 0; k < 2; k++) {
            shoal_node *x = input_of(graph, (int64_t[]){6, k == 0 ? 8 : 5}, 2, SHOAL_F32);
            shoal_node *cast = BUILD_CALL(graph, "to_dtype", arg_node(x), arg_dtype(SHOAL_BF16));
            results[k] = scatter(graph, cast);
            if (i % 2 == 1) {
                results[k] = BUILD_CALL(graph, "to_dtype", arg_node(results[k]), arg_dtype(SHOAL_F32));
            }
        }
        build_output(graph, 2, results[0], results[1]);
        CHECK_INT(run_same(graph, 2, passes[i / 2], 0), 1);
        CHECK_INT(ddp_count(graph, "reduce_scatter_tensor"), 1);
        shoal_graph_free(graph);
    }
}

TEST(b4_to_b8_b25_two_and_three)
{
    static const int sizes[] = {1, 2, 3, 8}; /* B23: one rank */
    static const char *const passes[] = {GATHERS, SCATTERS, REDUCES};
    shoal_node *(*const starts[])(shoal_graph *, shoal_node *) = {gather, scatter, reduce};
    for (int i = 0; i < 4 * 3 * 2; i++) {
        int n_ranks = sizes[i % 4];
        int kind = i / 4 % 3;
        size_t n_starts = 2 + (size_t)i / 12;
        shoal_graph *graph = build_graph(n_ranks);
        shoal_node *results[3];
        for (size_t k = 0; k < n_starts; k++) { /* B24: odd sizes */
            int64_t rows = (int64_t)n_ranks * (int64_t)(2 * k + 1);
            results[k] = starts[kind](graph, input_of(graph, (int64_t[]){rows, 3}, 2, SHOAL_F32));
            results[k] = BUILD_CALL(graph, "neg", arg_node(results[k]));
        }
        ddp_output(graph, results, n_starts);
        CHECK_INT(run_same(graph, n_ranks, passes[kind], 0), 1);
        CHECK_INT(ddp_count(graph, "wait_tensor"), 1);
        CHECK_INT(run_same(graph, n_ranks, passes[kind], 0), 0); /* there is nothing left to do */
        shoal_graph_free(graph);
    }
}

TEST(b24_empty_members_and_numbers)
{
    for (int i = 0; i < 3; i++) {
        static const char *const passes[] = {GATHERS, SCATTERS, REDUCES};
        shoal_node *(*const starts[])(shoal_graph *, shoal_node *) = {gather, scatter, reduce};
        shoal_graph *graph = build_graph(3);
        shoal_node *none = starts[i](graph, input_of(graph, (int64_t[]){0, 5}, 2, SHOAL_F32));
        shoal_node *flat = starts[i](graph, input_of(graph, (int64_t[]){3, 0}, 2, SHOAL_F32));
        shoal_node *some = starts[i](graph, build_input(graph, "x", 3));
        shoal_node *rows = starts[i](graph, input_of(graph, (int64_t[]){3, 1, 2}, 3, SHOAL_F32));
        build_output(graph, 4, none, flat, some, rows);
        CHECK_INT(run_same(graph, 3, passes[i], 0), 1);
        shoal_graph_free(graph);

        graph = build_graph(3);
        none = starts[i](graph, input_of(graph, (int64_t[]){0, 5}, 2, SHOAL_F32));
        flat = starts[i](graph, input_of(graph, (int64_t[]){0}, 1, SHOAL_F32));
        build_output(graph, 2, none, flat);
        CHECK_INT(run_same(graph, 3, passes[i], 0), 1);
        shoal_graph_free(graph);
    }
    shoal_graph *graph = build_graph(3);
    shoal_node *number = reduce(graph, input_of(graph, NULL, 0, SHOAL_F32));
    shoal_node *other = reduce(graph, input_of(graph, NULL, 0, SHOAL_F32));
    build_output(graph, 2, number, other);
    CHECK_INT(run_same(graph, 3, REDUCES, 0), 1);
    shoal_graph_free(graph);
}

/* One row each: a piece of all rows is no contiguous tensor, and a user asks for another shape. */
TEST(gathered_rows_are_contiguous)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *results[2];
    for (int i = 0; i < 2; i++) {
        shoal_node *wait = gather(graph, input_of(graph, (int64_t[]){1, 6}, 2, SHOAL_F32));
        results[i] = BUILD_CALL(graph, "view", arg_node(wait), ARG_LIST(arg_int(3), arg_int(4)));
    }
    build_output(graph, 2, results[0], results[1]);
    CHECK_INT(run_same(graph, 2, GATHERS, 0), 1);
    shoal_graph_free(graph);
}

TEST(both_names_of_a_gather_go_together)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *a = gather(graph, build_input(graph, "a", 2));
    shoal_node *b =
        build_wait(graph, BUILD_CALL(graph, "all_gather_tensor", arg_node(build_input(graph, "b", 3)),
                                     arg_int(0), arg_group(BUILD_GROUP)));
    shoal_node *c = build_wait(graph, BUILD_CALL(graph, "all_gather_tensor",
                                                 arg_node(input_of(graph, (int64_t[]){2, 2}, 2, SHOAL_F32)),
                                                 arg_int(1), arg_group(BUILD_GROUP)));
    build_output(graph, 3, a, b, c);
    CHECK_INT(run_with(graph, GATHERS, 0), 1);
    CHECK_INT(ddp_count(graph, "all_gather_into_tensor"), 1);
    CHECK_INT(ddp_count(graph, "all_gather_tensor"), 1); /* along another dimension */
    shoal_graph_free(graph);
}

/* Sizes ---------------------------------------------------------------------------------------------------- */

static shoal_graph *reduces(const int64_t *mib, size_t n_starts)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *results[16];
    for (size_t i = 0; i < n_starts; i++) {
        results[i] = reduce(graph, build_input(graph, "x", mib[i] * MIB_FLOATS));
    }
    ddp_output(graph, results, n_starts);
    return graph;
}

static void check_sizes(const int64_t *mib, size_t n_starts, double mb, size_t n_buckets, size_t n_left)
{
    shoal_graph *graph = reduces(mib, n_starts);
    CHECK_INT(run_with(graph, REDUCES, mb), n_buckets);
    CHECK_INT(ddp_count(graph, "all_reduce"), n_left);
    shoal_graph_free(graph);
}

TEST(b17_sizes)
{
    check_sizes((int64_t[]){2, 2, 2, 2}, 4, 4, 2, 2); /* exactly */
    check_sizes((int64_t[]){2, 2, 2, 2}, 4, 3.9, 0, 4);
    check_sizes((int64_t[]){1, 1, 9, 1, 1}, 5, 2, 2, 3);
    check_sizes((int64_t[]){9, 1, 1}, 3, 2, 1, 2);
    check_sizes((int64_t[]){1000, 1000, 1}, 3, 0, 1, 2); /* 0: 2000 */
    check_sizes((int64_t[]){1000, 1000, 1}, 3, 2001, 1, 1);
    check_sizes((int64_t[]){1000, 1000, 1}, 3, (double)INFINITY, 1, 1);
}

static double growing(void *context, size_t index)
{
    (*(size_t *)context)++;
    return index == 0 ? 1 : 2.0 * (double)index;
}

TEST(b18_a_size_for_each_bucket)
{
    shoal_graph *graph = reduces((int64_t[]){1, 1, 1, 1, 1, 1, 1}, 7);
    size_t n_calls = 0;
    struct bucket_limit limit = {.mb = growing, .context = &n_calls};
    shoal_pass_report report = SHOAL_PASS_REPORT_INIT;
    CHECK_OK(bucket_pass_limited(graph, &bucket_of_all_reduces, NULL, &limit, &report));
    CHECK_OK(shoal_graph_lint(graph));
    CHECK_INT(report.n_buckets, 2); /* 1 alone, 2, 4 */
    CHECK_INT(ddp_count(graph, "all_reduce"), 3);
    CHECK(n_calls >= 3);
    shoal_graph_free(graph);
}

TEST(options_are_checked)
{
    shoal_graph *graph = reduces((int64_t[]){1, 1}, 2);
    const char *pass = REDUCES;
    shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
    options.comm_bucket_mb = -1;
    CHECK_STATUS(shoal_graph_run_passes(graph, &pass, 1, &options, NULL), SHOAL_ERR_INVALID);
    options.comm_bucket_mb = (double)NAN;
    CHECK_STATUS(shoal_graph_run_passes(graph, &pass, 1, &options, NULL), SHOAL_ERR_INVALID);
    CHECK_INT(ddp_count(graph, "all_reduce"), 2);
    shoal_graph_free(graph);
}

/* What stays alone ----------------------------------------------------------------------------------------- */

TEST(b19_a_dependent_one_begins_the_next_bucket)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *a = reduce(graph, build_input(graph, "a", 4));
    shoal_node *b = reduce(graph, build_input(graph, "b", 4));
    shoal_node *of_a = reduce(graph, BUILD_CALL(graph, "neg", arg_node(a)));
    shoal_node *of_b = reduce(graph, BUILD_CALL(graph, "neg", arg_node(b)));
    build_output(graph, 4, a, b, of_a, of_b);
    CHECK_INT(run_same(graph, 2, REDUCES, 0), 2);
    shoal_graph_free(graph);
}

TEST(b20_keys)
{
    static const char *const reductions[] = {"sum", "avg", "sum"};
    shoal_graph *graph = build_graph(2);
    shoal_node *results[7];
    for (int i = 0; i < 3; i++) { /* another key in between */
        results[i] =
            ddp_chain(graph, build_input(graph, "x", 4), (struct ddp_chain){.reduce = reductions[i]});
    }
    CHECK_OK(shoal_graph_add_group(graph, "other", (int[]){0, 1}, 1, 2));
    results[3] = ddp_chain(graph, build_input(graph, "x", 4), (struct ddp_chain){.group = "other"});
    results[4] = reduce(graph, input_of(graph, (int64_t[]){4}, 1, SHOAL_F64));
    for (int i = 5; i < 7; i++) {
        shoal_node *x = build_input(graph, "x", 4);
        results[i] = build_wait(graph, BUILD_CALL(graph, "all_reduce", arg_node(x), arg_string("premul_sum"),
                                                  arg_group(BUILD_GROUP), arg_float(i)));
    }
    ddp_output(graph, results, 7);
    CHECK_INT(run_with(graph, REDUCES, 0), 0);
    CHECK_INT(ddp_count(graph, "all_reduce"), 7);
    shoal_graph_free(graph);
}

/* B5, B9, U10: PyTorch can gather several dtypes as bytes. Here a bucket has one. */
TEST(b5_b9_u10_dtypes_stay_apart)
{
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16, SHOAL_F16, SHOAL_F32, SHOAL_F32};
    shoal_graph *graph = build_graph(2);
    shoal_node *results[5];
    for (int i = 0; i < 5; i++) {
        results[i] = gather(graph, input_of(graph, (int64_t[]){3}, 1, dtypes[i]));
    }
    ddp_output(graph, results, 5);
    CHECK_INT(run_same(graph, 2, GATHERS, 0), 1);
    CHECK_INT(ddp_count(graph, "all_gather_into_tensor"), 4);
    for (int i = 0; i < 3; i++) {
        CHECK(shoal_tensor_dtype(shoal_node_value(results[i], 0)) == dtypes[i]);
    }
    shoal_graph_free(graph);
}

/* Sums of all ranks, whole and in parts: the same group, op and dtype. */
TEST(u6_kinds_are_not_mixed)
{
    for (int n_each = 1; n_each <= 2; n_each++) { /* U9: one of a kind stays as it is */
        shoal_graph *graph = build_graph(2);
        shoal_node *results[4];
        for (int i = 0; i < n_each; i++) {
            results[2 * i] = reduce(graph, build_input(graph, "x", 4));
            results[2 * i + 1] = scatter(graph, build_input(graph, "y", 4));
        }
        ddp_output(graph, results, 2 * (size_t)n_each);
        size_t n_nodes = shoal_graph_n_nodes(graph);
        CHECK_INT(run_same(graph, 2, REDUCES, 0), n_each == 2 ? 1 : 0);
        CHECK_INT(run_same(graph, 2, SCATTERS, 0), n_each == 2 ? 1 : 0);
        CHECK_INT(ddp_count(graph, "all_reduce"), 1);
        CHECK_INT(ddp_count(graph, "reduce_scatter_tensor"), 1);
        CHECK(n_each == 2 || shoal_graph_n_nodes(graph) == n_nodes);
        shoal_graph_free(graph);
    }
}

/* Two waits for each gather: only without the second ones they are a bucket. */
TEST(u29_gathers_that_are_waited_for_twice)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *results[4];
    for (int i = 0; i < 2; i++) {
        shoal_node *start = BUILD_CALL(graph, "all_gather_into_tensor", arg_node(build_input(graph, "x", 4)),
                                       arg_group(BUILD_GROUP));
        results[2 * i] = build_wait(graph, start);
        results[2 * i + 1] = BUILD_CALL(graph, "neg", arg_node(build_wait(graph, start)));
    }
    ddp_output(graph, results, 4);
    CHECK_INT(run_same(graph, 2, GATHERS, 0), 0);
    CHECK_INT(run_same(graph, 2, "dedupe_waits", 0), 0);
    CHECK_INT(run_same(graph, 2, GATHERS, 0), 1);
    CHECK_INT(ddp_count(graph, "all_gather_into_tensor"), 1);
    CHECK_INT(ddp_count(graph, "wait_tensor"), 1);
    shoal_graph_free(graph);
}

/* Others in between do not break a run: another kind, and one of the kind that cannot be joined. */
TEST(b21_others_in_between)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *a = reduce(graph, build_input(graph, "a", 4));
    shoal_node *kind = gather(graph, build_input(graph, "b", 4));
    shoal_node *start = build_all_reduce(graph, build_input(graph, "c", 4)); /* two users */
    shoal_node *wait = build_wait(graph, start);
    shoal_node *again = build_wait(graph, start);
    shoal_node *d = reduce(graph, build_input(graph, "d", 4));
    build_output(graph, 5, a, kind, wait, again, d);
    CHECK_INT(run_same(graph, 2, REDUCES, 0), 1);
    CHECK_INT(ddp_count(graph, "all_reduce"), 2);
    shoal_graph_free(graph);
}

/* B22: conversions stay, whoever uses them. */
TEST(b22_conversions_stay)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *results[3];
    for (int i = 0; i < 2; i++) {
        results[i] =
            BUILD_CALL(graph, "to_dtype", arg_node(build_input(graph, "x", 4)), arg_dtype(SHOAL_F16));
    }
    results[2] = BUILD_CALL(graph, "neg", arg_node(results[0]));
    results[0] = gather(graph, results[0]);
    results[1] = gather(graph, results[1]);
    build_output(graph, 3, results[0], results[1], results[2]);
    CHECK_INT(run_same(graph, 2, GATHERS, 0), 1);
    CHECK_INT(ddp_count(graph, "to_dtype"), 2);
    shoal_graph_free(graph);
}

TEST(memory_is_a_dependency)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *y = build_input(graph, "y", 4);
    shoal_node *a = reduce(graph, x);
    (void)BUILD_CALL(graph, "copy_", arg_node(y), arg_node(a));
    shoal_node *b = reduce(graph, y); /* reads what was copied */
    build_output(graph, 2, a, b);
    CHECK_INT(run_same(graph, 2, REDUCES, 0), 0);
    shoal_graph_free(graph);

    graph = build_graph(2); /* an input is overwritten after its wait: that comes later, the bucket is made */
    x = build_input(graph, "x", 4);
    y = build_input(graph, "y", 4);
    a = reduce(graph, x);
    (void)BUILD_CALL(graph, "mul_scalar_", arg_node(x), arg_float(3));
    b = reduce(graph, y);
    build_output(graph, 2, a, b);
    CHECK_INT(run_same(graph, 2, REDUCES, 0), 1);
    shoal_graph_free(graph);
}

/* The second bucket reads what is copied from a result of the first, and has starts before the first one's last: it reads late. */
TEST(a_bucket_reads_behind_a_write_that_moved)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *y = build_input(graph, "y", 4);
    shoal_node *z = build_input(graph, "z", 4);
    shoal_node *a = reduce(graph, build_input(graph, "a", 4));
    (void)BUILD_CALL(graph, "copy_", arg_node(y), arg_node(a));
    shoal_node *of_y = build_all_reduce(graph, y);
    shoal_node *of_z = build_all_reduce(graph, z);
    shoal_node *b = reduce(graph, build_input(graph, "b", 4));
    shoal_node *wait_y = build_wait(graph, of_y);
    shoal_node *wait_z = build_wait(graph, of_z);
    build_output(graph, 4, a, b, wait_y, wait_z);
    CHECK_INT(run_same(graph, 2, REDUCES, 0), 2);
    shoal_graph_free(graph);
}

/* Its input is overwritten after its wait, and the other's is made of that: it is read where it stands, and stays there. */
TEST(an_input_that_is_overwritten)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *a = reduce(graph, x);
    shoal_node *written = BUILD_CALL(graph, "mul_scalar_", arg_node(x), arg_float(3));
    shoal_node *b = reduce(graph, BUILD_CALL(graph, "neg", arg_node(written)));
    build_output(graph, 2, a, b);
    CHECK_INT(run_same(graph, 2, REDUCES, 0), 0);
    shoal_graph_free(graph);
}

/* all_reduces that are not joined keep their order: u after v, v before b, so a and b cannot meet. */
TEST(order_in_a_group_is_a_dependency)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *a = gather(graph, build_input(graph, "a", 4));
    shoal_node *u = reduce(graph, a);
    shoal_node *v = reduce(graph, build_input(graph, "v", 4));
    shoal_node *b = gather(graph, v);
    build_output(graph, 4, a, u, v, b);
    CHECK_INT(run_same(graph, 2, GATHERS, 0), 0);
    shoal_graph_free(graph);
}

/* A call of many tensors that needs the first result stands before the second start. They have the group in common and no memory,
   however many tensors there are. */
TEST(a_call_of_many_tensors_in_between)
{
    enum {
        MAX_TENSORS = 300
    };
    for (size_t n_tensors = 1; n_tensors <= MAX_TENSORS; n_tensors += MAX_TENSORS - 1) {
        shoal_arg items[MAX_TENSORS];
        shoal_node *results[MAX_TENSORS + 2];
        shoal_graph *graph = build_graph(2);
        results[0] = reduce(graph, build_input(graph, "a", 4));
        for (size_t i = 0; i < n_tensors; i++) {
            items[i] = arg_node(BUILD_CALL(graph, "neg", arg_node(results[0])));
        }
        shoal_node *many = BUILD_CALL(graph, "all_reduce_coalesced", arg_list(items, n_tensors),
                                      arg_string("sum"), arg_group(BUILD_GROUP));
        results[1] = reduce(graph, build_input(graph, "b", 4));
        for (size_t i = 0; i < n_tensors; i++) {
            results[2 + i] =
                build_wait(graph, BUILD_CALL(graph, "getitem", arg_node(many), arg_int((int64_t)i)));
        }
        ddp_output(graph, results, n_tensors + 2);
        CHECK_INT(run_with(graph, REDUCES, 0), 1);
        CHECK_INT(ddp_count(graph, "all_reduce"), 1);
        CHECK_OK(shoal_graph_lint(graph));
        shoal_graph_free(graph);
    }
}

TEST(fsdp_filters)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *w[3];
    for (int i = 0; i < 3; i++) {
        w[i] = gather(
            graph, BUILD_CALL(graph, "to_dtype", arg_node(build_input(graph, "w", 4)), arg_dtype(SHOAL_F16)));
        if (i == 1) { /* an activation */
            shoal_node *sum = BUILD_CALL(graph, "add", arg_node(x), arg_node(build_input(graph, "y", 4)));
            w[1] = gather(graph, BUILD_CALL(graph, "to_dtype", arg_node(sum), arg_dtype(SHOAL_F16)));
        }
    }
    build_output(graph, 3, w[0], w[1], w[2]);
    CHECK_INT(run_same(graph, 2, FSDP_GATHERS, 0), 1);
    CHECK_INT(ddp_count(graph, "all_gather_into_tensor"), 2);
    shoal_graph_free(graph);

    graph = build_graph(2);
    for (int i = 0; i < 3; i++) {
        w[i] = scatter(graph, build_input(graph, "g", 4));
    }
    w[1] = BUILD_CALL(graph, "add", arg_node(w[1]), arg_node(build_input(graph, "h", 2)));
    build_output(graph, 3, w[0], w[1], w[2]);
    CHECK_INT(run_same(graph, 2, FSDP_SCATTERS, 0), 1);
    CHECK_INT(ddp_count(graph, "reduce_scatter_tensor"), 2);
    shoal_graph_free(graph);
}

/* U31: activations that are gathered over the parts of a layer are no parameters. U32: a cast comes before the gather. */
TEST(u31_u32_gathers_of_tensor_parallelism_stay)
{
    shoal_graph *graph = build_graph(2);
    CHECK_OK(shoal_graph_add_group(graph, "tp", (int[]){0, 1}, 1, 2));
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *results[4];
    for (int i = 0; i < 2; i++) {
        shoal_node *w = build_input(graph, "w", 4);
        results[i] = gather(graph, BUILD_CALL(graph, "to_dtype", arg_node(w), arg_dtype(SHOAL_BF16)));
        shoal_node *part = BUILD_CALL(graph, "mul", arg_node(x), arg_node(w));
        results[2 + i] =
            build_wait(graph, BUILD_CALL(graph, "all_gather_into_tensor", arg_node(part), arg_group("tp")));
    }
    ddp_output(graph, results, 4);
    CHECK_INT(run_same(graph, 2, FSDP_GATHERS, 0), 1);
    CHECK_INT(ddp_count(graph, "all_gather_into_tensor"), 3);
    shoal_graph_free(graph);
}

/* The start stands behind the last one, the wait before the first: what can hide the collective stays between. */
TEST(the_wait_stays_late)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *a = build_all_reduce(graph, x);
    shoal_node *b = build_all_reduce(graph, build_input(graph, "y", 4));
    shoal_node *compute = BUILD_CALL(graph, "neg", arg_node(x));
    shoal_node *wait_a = build_wait(graph, a);
    shoal_node *wait_b = build_wait(graph, b);
    build_output(graph, 3, wait_a, wait_b, compute);
    CHECK_INT(run_same(graph, 2, REDUCES, 0), 1);
    CHECK_NODES(graph,
                "x y flatten flatten_1 cat all_reduce_2 neg wait_tensor_2 split_with_sizes getitem reshape "
                "getitem_1 reshape_1 output");
    shoal_graph_free(graph);
}

/* Memory that runs out, and many nodes --------------------------------------------------------------------- */

TEST(allocations_that_fail)
{
    for (size_t k = 1; k < 5000; k++) {
        shoal_graph *graph = build_graph(2);
        shoal_node *results[4];
        for (size_t i = 0; i < 2; i++) {
            results[i] = gather(graph, build_input(graph, "x", 3));
            results[i + 2] = scatter(graph, results[i]);
        }
        ddp_output(graph, results, 4);
        const char *passes[] = {FSDP_GATHERS, FSDP_SCATTERS, REDUCES};
        test_fail_allocation(k, false);
        shoal_status status = shoal_graph_run_passes(graph, passes, 3, NULL, NULL);
        bool was_clean = test_count_allocations() < k;
        test_fail_allocation(0, false);
        CHECK_STATUS(status, was_clean ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
        shoal_graph_free(graph);
        if (was_clean || test_has_failed()) {
            CHECK(k > 20);
            return;
        }
    }
    test_failed(__FILE__, __LINE__, "the passes come to an end");
}

enum {
    N_STARTS = 33000 /* 100,000 nodes and more */
};

static size_t n_starts(void)
{
    return (size_t)(N_STARTS / test_time_scale()) / 2 * 2;
}

static void check_many(double mb, size_t n_buckets)
{
    static shoal_node *results[N_STARTS];
    shoal_graph *graph = build_graph(2);
    for (size_t i = 0; i < n_starts(); i++) {
        results[i] = BUILD_CALL(graph, "neg", arg_node(reduce(graph, build_input(graph, "x", 4))));
    }
    ddp_output(graph, results, n_starts());
    CHECK_INT(run_with(graph, REDUCES, mb), n_buckets);
    CHECK_INT(ddp_count(graph, "all_reduce"), n_buckets);
    shoal_graph_free(graph);
}

TEST(many_members)
{
    check_many(0, 1);
    check_many(32.0 / 1048576, n_starts() / 2);
}

TEST(many_that_depend_on_each_other)
{
    shoal_graph *graph = build_graph(2);
    build_output(graph, 1, build_chain(graph, build_input(graph, "x", 4), n_starts()));
    CHECK_INT(run_with(graph, REDUCES, 0), 0);
    CHECK_INT(ddp_count(graph, "all_reduce"), n_starts());
    shoal_graph_free(graph);
}
