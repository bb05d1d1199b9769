/* SPDX-License-Identifier: MIT */
/* Fusing gradients: numbers are those of the catalogue of behaviour (D1 ...). Sizes count floats: 262144 are one MiB. D23 is about
   an argument that no op has here. */
#include <stdio.h>

#include "unit/graph/evaluate.h"
#include "graph/passes/passes.h"

enum {
    MIB = 262144
};

/* Buckets ------------------------------------------------------------------------------------------------- */

/* A graph of averages with so many floats each, as its outputs. */
static shoal_graph *averages(const int64_t *counts, size_t n)
{
    shoal_graph *graph = build_graph(8);
    shoal_node *waits[64];
    for (size_t i = 0; i < n; i++) {
        waits[i] = ddp_average(graph, counts[i]);
    }
    ddp_output(graph, waits, n);
    return graph;
}

/* Runs a pass; buckets and, if it is not 0, starts that are left. */
static void check_buckets(const char *pass, const int64_t *counts, size_t n, double size_mb, size_t n_buckets)
{
    shoal_graph *graph = averages(counts, n);
    CHECK_INT(ddp_run(graph, pass, size_mb), n_buckets);
    CHECK_INT(ddp_count(graph, "all_reduce") + ddp_count(graph, "all_reduce_coalesced"), n_buckets);
    shoal_graph_free(graph);
}

/* Four layers of 2000 x 2000 with bias, the last first. */
static shoal_graph *four_layers(bool has_gradients)
{
    shoal_graph *graph = build_graph(8);
    shoal_node *results[8];
    for (size_t i = 0; i < 4; i++) {
        for (size_t k = 0; k < 2; k++) {
            int64_t shape[2] = {2000, 2000};
            shoal_node *gradient = ddp_gradient_of(graph, shape, k == 0 ? 1 : 2, SHOAL_F32);
            shoal_node *wait = ddp_chain(graph, gradient, (struct ddp_chain){.divisor = 8});
            shoal_node *before = NULL;
            if (has_gradients) {
                CHECK_OK(shoal_graph_placeholder(graph, "grad", shape, k == 0 ? 1 : 2, SHOAL_F32, &before));
                wait = BUILD_CALL(graph, "copy_", arg_node(before), arg_node(wait));
            }
            results[2 * i + k] = wait;
        }
    }
    ddp_output(graph, results, 8);
    return graph;
}

static void check_waits_are_last(const shoal_graph *graph, const char *start)
{
    const shoal_node *last = ddp_find(graph, start, 2);
    REQUIRE(last != NULL);
    CHECK(ddp_find(graph, start, 3) == NULL);
    const shoal_node *wait = ddp_find(graph, "wait_tensor", 0);
    REQUIRE(wait != NULL);
    CHECK(shoal_node_is_before(last, wait));
}

TEST(d1_d2_four_layers_coalesced)
{
    for (int i = 0; i < 2; i++) {
        shoal_graph *graph = four_layers(false);
        shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
        shoal_pass_report report = SHOAL_PASS_REPORT_INIT;
        const char *passes[] = {COALESCED, SCHEDULE};
        options.bucket_size_mb = 25;
        REQUIRE_OK(shoal_graph_run_passes(graph, passes, 2, &options, &report));
        CHECK_INT(report.n_buckets, 3);
        CHECK_INT(ddp_count(graph, "foreach_div"), 3);
        CHECK_INT(ddp_count(graph, "wait_tensor"), 8);
        CHECK_INT(ddp_count(graph, "div_scalar"), 0);
        for (size_t k = 0; k < 3; k++) {
            CHECK(shoal_node_is_before(ddp_find(graph, "foreach_div", k),
                                       ddp_find(graph, "all_reduce_coalesced", k)));
        }
        check_waits_are_last(graph, "all_reduce_coalesced");
        shoal_graph_free(graph);
    }
}

TEST(d3_four_layers_concat)
{
    shoal_graph *graph = four_layers(false);
    CHECK_INT(ddp_run(graph, DRIVER, 25), 3);
    CHECK_INT(ddp_count(graph, "flatten"), 8);
    CHECK_INT(ddp_count(graph, "cat"), 3);
    CHECK_INT(ddp_count(graph, "div_scalar"), 3);
    CHECK_INT(ddp_count(graph, "reshape"), 8);
    check_waits_are_last(graph, "all_reduce");
    shoal_graph_free(graph);
}

TEST(d4_four_layers_with_gradients)
{
    shoal_graph *graph = four_layers(true);
    CHECK_INT(ddp_run(graph, DRIVER, 25), 3);
    CHECK_INT(ddp_count(graph, "all_reduce"), 3);
    CHECK_INT(ddp_count(graph, "copy_"), 8);
    shoal_graph_free(graph);
}

TEST(d13_without_candidates_nothing_changes)
{
    shoal_graph *graph = build_graph(2);
    shoal_node *x = build_input(graph, "x", 4);
    shoal_node *unused = BUILD_CALL(graph, "neg", arg_node(x));
    CHECK(unused != NULL);
    build_output(graph, 1, BUILD_CALL(graph, "mul", arg_node(x), arg_node(x)));
    CHECK_INT(ddp_run(graph, CONCAT, 0), 0);
    CHECK_NODES(graph, "x neg mul output");
    shoal_graph_free(graph);
}

TEST(d14_one_candidate_stays)
{
    shoal_graph *graph = averages((int64_t[]){5}, 1);
    CHECK_INT(ddp_run(graph, COALESCED, 0), 1);
    CHECK_NODES(graph, "p neg div_scalar all_reduce wait_tensor output");
    shoal_graph_free(graph);
}

TEST(d15_to_d19_sizes)
{
    const char *passes[] = {CONCAT, COALESCED};
    for (size_t i = 0; i < 2; i++) {
        check_buckets(passes[i], (int64_t[]){MIB + 1, 1, 1}, 3, 25, 2);           /* D15 */
        check_buckets(passes[i], (int64_t[]){MIB / 2, MIB / 2, 1}, 3, 25, 2);     /* D16: exactly */
        check_buckets(passes[i], (int64_t[]){MIB / 2, MIB / 2 - 1, 1}, 3, 25, 1); /* one float less */
        check_buckets(passes[i], (int64_t[]){MIB, 1, 3 * MIB, 1, 1}, 5, 2, 3);    /* D17 */
        check_buckets(passes[i], (int64_t[]){MIB, 25 * MIB, 1, 2}, 4, 25, 3);     /* D18 */
        check_buckets(passes[i], (int64_t[]){1, MIB, 1, 1, 1}, 5, -1, 4);         /* D19 */
    }
}

/* What is no gradient -------------------------------------------------------------------------------------- */

/* Two averages whose first one is changed by `spoil`: nothing is fused. */
static void check_rejected(shoal_node *(*spoil)(shoal_graph *graph, shoal_node *gradient))
{
    shoal_graph *graph = build_graph(8);
    shoal_node *first = spoil(graph, ddp_gradient(graph, 3));
    shoal_node *second = ddp_average(graph, 4);
    build_output(graph, 2, first, second);
    CHECK_INT(ddp_run(graph, CONCAT, 0), 1);
    CHECK_INT(ddp_count(graph, "all_reduce") + ddp_count(graph, "all_reduce_"), 2);
    shoal_graph_free(graph);
}

static shoal_node *without_division(shoal_graph *graph, shoal_node *gradient)
{
    return ddp_chain(graph, gradient, (struct ddp_chain){.divisor = 0});
}

static shoal_node *with_two_users(shoal_graph *graph, shoal_node *gradient)
{
    shoal_node *wait = ddp_chain(graph, gradient, (struct ddp_chain){.divisor = 8});
    return BUILD_CALL(graph, "add", arg_node(wait), arg_node(BUILD_CALL(graph, "neg", arg_node(wait))));
}

static shoal_node *with_compute(shoal_graph *graph, shoal_node *gradient)
{
    return BUILD_CALL(graph, "neg", arg_node(ddp_chain(graph, gradient, (struct ddp_chain){.divisor = 8})));
}

static shoal_node *written_into(shoal_graph *graph, shoal_node *gradient)
{
    shoal_node *wait = ddp_chain(graph, gradient, (struct ddp_chain){.divisor = 8});
    return BUILD_CALL(graph, "copy_", arg_node(wait), arg_node(gradient));
}

static shoal_node *divided_by_many(shoal_graph *graph, shoal_node *gradient)
{
    shoal_node *quotient = BUILD_CALL(graph, "div", arg_node(gradient), arg_node(build_input(graph, "d", 3)));
    return build_wait(graph, build_all_reduce(graph, quotient));
}

static shoal_node *in_place_of_an_input(shoal_graph *graph, shoal_node *gradient)
{
    shoal_node *x = build_input(graph, "x", 3);
    return ddp_chain(graph, x, (struct ddp_chain){.start = "all_reduce_", .reduce = "avg"});
}

static shoal_node *in_place_and_seen(shoal_graph *graph, shoal_node *gradient)
{
    shoal_node *quotient = BUILD_CALL(graph, "div_scalar", arg_node(gradient), arg_float(8));
    shoal_node *view = BUILD_CALL(graph, "view", arg_node(quotient), ARG_LIST(arg_int(3)));
    return ddp_chain(graph, view, (struct ddp_chain){.start = "all_reduce_", .reduce = "avg"});
}

static shoal_node *quotient_that_changes(shoal_graph *graph, shoal_node *gradient)
{
    shoal_node *quotient = BUILD_CALL(graph, "div_scalar", arg_node(gradient), arg_float(8));
    BUILD_CALL(graph, "mul_scalar_", arg_node(quotient), arg_float(2));
    return build_wait(graph, build_all_reduce(graph, quotient));
}

static shoal_node *overwritten_before_the_start(shoal_graph *graph, shoal_node *gradient)
{
    shoal_node *quotient = BUILD_CALL(graph, "div_scalar", arg_node(gradient), arg_float(8));
    BUILD_CALL(graph, "mul_scalar_", arg_node(gradient), arg_float(2));
    return build_wait(graph, build_all_reduce(graph, quotient));
}

TEST(d20_to_d22_rejected)
{
    check_rejected(quotient_that_changes);
    check_rejected(overwritten_before_the_start);
    check_rejected(without_division);
    check_rejected(with_two_users);
    check_rejected(with_compute);
    check_rejected(written_into);
    check_rejected(divided_by_many);
    check_rejected(in_place_of_an_input);
    check_rejected(in_place_and_seen);
}

/* A layer that is cut over the ranks of one group, and whose gradients are averaged over another. */
TEST(d12_tensor_parallel)
{
    const char *passes[] = {CONCAT, COALESCED};
    for (size_t i = 0; i < 2; i++) {
        char before[4096];
        char after[4096];
        shoal_graph *graph = build_graph(8);
        CHECK_OK(shoal_graph_add_group(graph, "tp", (int[]){0, 1, 2, 3}, 2, 2));
        shoal_node *results[5];
        for (size_t k = 0; k < 2; k++) { /* activations: summed over the layer's parts, and used */
            shoal_node *part = ddp_gradient(graph, 6);
            shoal_node *whole = ddp_chain(graph, part, (struct ddp_chain){.group = "tp"});
            results[k] = BUILD_CALL(graph, "mul", arg_node(whole), arg_node(part));
            results[2 + k] = ddp_chain(graph, results[k], (struct ddp_chain){.divisor = 8});
        }
        /* A loss, which is given out as it is. */
        results[4] = ddp_chain(graph, ddp_gradient(graph, 1), (struct ddp_chain){.group = "tp"});
        ddp_output(graph, results, 5);
        size_t n_bytes = evaluate(graph, before, sizeof before);
        CHECK_INT(ddp_run(graph, passes[i], 0), 1);
        CHECK_INT(ddp_count(graph, "all_reduce"), i == 0 ? 4 : 3);
        CHECK_INT(ddp_count(graph, "all_reduce_coalesced"), i == 0 ? 0 : 1);
        size_t n_tp = 0;
        for (const shoal_node *node = graph->first; node; node = node->next) {
            n_tp += strcmp(node->target, "all_reduce") == 0 && strcmp(node->args[2].as.string, "tp") == 0;
        }
        CHECK_INT(n_tp, 3);
        CHECK_INT(evaluate(graph, after, sizeof after), n_bytes);
        CHECK_BYTES(after, before, n_bytes);
        shoal_graph_free(graph);
    }
}

/* Keys ------------------------------------------------------------------------------------------------------ */

/* Chains of two kinds, turn by turn. If they may not be joined, two starts are left, in the order of the second ones. */
static void check_joined(const char *pass, struct ddp_chain a, struct ddp_chain b, shoal_dtype dtype_b,
                         size_t n_starts)
{
    char before[4096];
    char after[4096];
    shoal_graph *graph = build_graph(8);
    shoal_node *waits[4];
    CHECK_OK(shoal_graph_add_group(graph, "other", (int[]){0, 1, 2}, 1, 3));
    for (size_t i = 0; i < 4; i++) {
        int64_t count = (int64_t)i + 1;
        shoal_node *gradient = ddp_gradient_of(graph, &count, 1, i % 2 == 0 ? SHOAL_F32 : dtype_b);
        waits[i] = ddp_chain(graph, gradient, i % 2 == 0 ? a : b);
    }
    ddp_output(graph, waits, 4);
    size_t n_bytes = evaluate(graph, before, sizeof before);
    CHECK_INT(ddp_run(graph, pass, 0), n_starts);
    CHECK_INT(ddp_count(graph, "all_reduce") + ddp_count(graph, "all_reduce_") +
                  ddp_count(graph, "all_reduce_coalesced"),
              n_starts);
    CHECK_INT(evaluate(graph, after, sizeof after), n_bytes);
    CHECK_BYTES(after, before, n_bytes);
    shoal_graph_free(graph);
}

static void check_interleaved(const char *pass, struct ddp_chain a, struct ddp_chain b, shoal_dtype dtype_b)
{
    check_joined(pass, a, b, dtype_b, 2);
}

TEST(d24_keys)
{
    const struct ddp_chain plain = {.divisor = 8};
    const char *passes[] = {CONCAT, COALESCED};
    for (size_t i = 0; i < 2; i++) {
        check_interleaved(passes[i], plain, (struct ddp_chain){.divisor = 8, .group = "other"}, SHOAL_F32);
        check_interleaved(passes[i], plain, (struct ddp_chain){.divisor = 4}, SHOAL_F32);
        check_interleaved(passes[i], plain, plain, SHOAL_F64);
        check_interleaved(passes[i], plain, (struct ddp_chain){.divisor = 8, .reduce = "avg"}, SHOAL_F32);
        check_interleaved(passes[i], plain, (struct ddp_chain){.reduce = "avg"}, SHOAL_F32);
    }
}

/* What is reduced in place, in memory of its own, is joined with what is not, whichever comes last. */
TEST(d24_both_forms)
{
    const struct ddp_chain plain = {.divisor = 8};
    const struct ddp_chain in_place = {.divisor = 8, .start = "all_reduce_"};
    const char *passes[] = {CONCAT, COALESCED};
    for (size_t i = 0; i < 2; i++) {
        check_joined(passes[i], plain, in_place, SHOAL_F32, 1);
        check_joined(passes[i], in_place, plain, SHOAL_F32, 1);
        check_joined(passes[i], plain, in_place, SHOAL_F64, 2);
    }
}

TEST(numbers_of_either_kind_are_one_divisor)
{
    shoal_graph *graph = build_graph(8);
    shoal_node *waits[2];
    for (size_t i = 0; i < 2; i++) {
        shoal_node *quotient = BUILD_CALL(graph, "div_scalar", arg_node(ddp_gradient(graph, 3)),
                                          i == 0 ? arg_int(8) : arg_float(8));
        waits[i] = build_wait(graph, build_all_reduce(graph, quotient));
    }
    ddp_output(graph, waits, 2);
    CHECK_INT(ddp_run(graph, CONCAT, 0), 1);
    CHECK_INT(ddp_count(graph, "all_reduce"), 1);
    shoal_graph_free(graph);
}

TEST(divisor_that_is_a_tensor)
{
    const char *passes[] = {CONCAT, COALESCED};
    for (size_t i = 0; i < 2; i++) {
        char before[4096];
        char after[4096];
        shoal_graph *graph = build_graph(8);
        shoal_node *divisor = build_input(graph, "d", 1);
        shoal_node *waits[3];
        for (size_t k = 0; k < 3; k++) {
            shoal_node *quotient =
                BUILD_CALL(graph, "div", arg_node(ddp_gradient(graph, (int64_t)k + 1)), arg_node(divisor));
            waits[k] = build_wait(graph, build_all_reduce(graph, quotient));
        }
        ddp_output(graph, waits, 3);
        size_t n_bytes = evaluate(graph, before, sizeof before);
        CHECK_INT(ddp_run(graph, passes[i], 0), 1);
        CHECK_INT(ddp_count(graph, "all_reduce") + ddp_count(graph, "all_reduce_coalesced"), 1);
        CHECK_INT(ddp_count(graph, "div"), i == 0 ? 1 : 3);
        CHECK_INT(evaluate(graph, after, sizeof after), n_bytes);
        CHECK_BYTES(after, before, n_bytes);
        shoal_graph_free(graph);
    }
}

TEST(d25_one_division_for_two)
{
    const char *passes[] = {CONCAT, COALESCED};
    for (size_t i = 0; i < 2; i++) {
        char before[4096];
        char after[4096];
        shoal_graph *graph = build_graph(8);
        shoal_node *quotient =
            BUILD_CALL(graph, "div_scalar", arg_node(ddp_gradient(graph, 3)), arg_float(8));
        shoal_node *a = build_wait(graph, build_all_reduce(graph, quotient));
        shoal_node *b = build_wait(graph, build_all_reduce(graph, quotient));
        build_output(graph, 3, a, b, ddp_average(graph, 2));
        size_t n_bytes = evaluate(graph, before, sizeof before);
        CHECK_INT(ddp_run(graph, passes[i], 0), 1);
        CHECK_INT(evaluate(graph, after, sizeof after), n_bytes);
        CHECK_BYTES(after, before, n_bytes);
        shoal_graph_free(graph);
    }
}

TEST(average_without_division_gets_none)
{
    const char *passes[] = {CONCAT, COALESCED};
    for (size_t i = 0; i < 2; i++) {
        shoal_graph *graph = build_graph(8);
        const struct ddp_chain chain = {.reduce = "avg"};
        shoal_node *a = ddp_chain(graph, ddp_gradient(graph, 3), chain);
        shoal_node *b = ddp_chain(graph, ddp_gradient(graph, 2), chain);
        build_output(graph, 2, a, b);
        CHECK_INT(ddp_run(graph, passes[i], 0), 1);
        if (i == 0) {
            CHECK_NODES(graph,
                        "p neg p_1 neg_1 flatten flatten_1 cat all_reduce_2 wait_tensor_2 split_with_sizes "
                        "getitem reshape getitem_1 reshape_1 output");
        } else {
            CHECK_NODES(graph,
                        "p neg p_1 neg_1 all_reduce_coalesced getitem getitem_1 wait_tensor_2 wait_tensor_3 "
                        "output");
        }
        shoal_graph_free(graph);
    }
}

/* Order ----------------------------------------------------------------------------------------------------- */

TEST(d26_early_copy_and_its_users)
{
    const char *passes[] = {CONCAT, COALESCED};
    for (size_t i = 0; i < 2; i++) {
        char before[4096];
        char after[4096];
        shoal_graph *graph = build_graph(8);
        shoal_node *grad = build_input(graph, "grad", 3);
        shoal_node *copy = BUILD_CALL(graph, "copy_", arg_node(grad), arg_node(ddp_average(graph, 3)));
        shoal_node *abs =
            build_named(graph, "user", "mul_scalar", (shoal_arg[]){arg_node(copy), arg_float(3)}, 2);
        /* Reads the memory without using the copy, and so does what comes after it. */
        shoal_node *read = build_named(graph, "read", "neg", (shoal_arg[]){arg_node(grad)}, 1);
        shoal_node *add = build_named(graph, "add", "add_", (shoal_arg[]){arg_node(grad), arg_node(read)}, 2);
        shoal_node *free_node =
            build_named(graph, "free", "neg", (shoal_arg[]){arg_node(build_input(graph, "x", 3))}, 1);
        shoal_node *second = ddp_average(graph, 4);
        shoal_arg items[] = {arg_node(copy), arg_node(abs),       arg_node(read),
                             arg_node(add),  arg_node(free_node), arg_node(second)};
        shoal_arg list = arg_list(items, 6);
        REQUIRE_OK(shoal_graph_output(graph, &list, NULL));
        size_t n_bytes = evaluate(graph, before, sizeof before);
        CHECK_INT(ddp_run(graph, passes[i], 0), 1);
        CHECK_INT(ddp_count(graph, "all_reduce") + ddp_count(graph, "all_reduce_coalesced"), 1);
        const shoal_node *wait = ddp_find(graph, "wait_tensor", 0);
        CHECK(shoal_node_is_before(wait, copy));
        CHECK(shoal_node_is_before(copy, abs));
        CHECK(shoal_node_is_before(abs, read));
        CHECK(shoal_node_is_before(read, add));
        CHECK(shoal_node_is_before(free_node, wait));
        CHECK_INT(evaluate(graph, after, sizeof after), n_bytes);
        CHECK_BYTES(after, before, n_bytes);
        shoal_graph_free(graph);
    }
}

/* The second gradient comes from the first result: they cannot go together. */
TEST(no_bucket_waits_for_itself)
{
    char before[4096];
    char after[4096];
    shoal_graph *graph = build_graph(8);
    shoal_node *grad = build_input(graph, "grad", 3);
    shoal_node *copy = BUILD_CALL(graph, "copy_", arg_node(grad), arg_node(ddp_average(graph, 3)));
    shoal_node *second =
        ddp_chain(graph, BUILD_CALL(graph, "neg", arg_node(grad)), (struct ddp_chain){.divisor = 8});
    shoal_node *third = ddp_average(graph, 5);
    build_output(graph, 3, copy, second, third);
    size_t n_bytes = evaluate(graph, before, sizeof before);
    CHECK_INT(ddp_run(graph, CONCAT, 0), 2);
    CHECK_INT(ddp_count(graph, "all_reduce"), 2);
    CHECK_INT(evaluate(graph, after, sizeof after), n_bytes);
    CHECK_BYTES(after, before, n_bytes);
    shoal_graph_free(graph);
}

/* The memory of the first gradient is used for something else before the second one is there. */
TEST(gradient_that_is_overwritten)
{
    char before[4096];
    char after[4096];
    shoal_graph *graph = build_graph(8);
    shoal_node *gradient = ddp_gradient(graph, 3);
    shoal_node *first = ddp_chain(graph, gradient, (struct ddp_chain){.divisor = 8});
    shoal_node *changed = BUILD_CALL(graph, "mul_scalar_", arg_node(gradient), arg_float(2));
    shoal_node *second = ddp_average(graph, 4);
    build_output(graph, 3, first, changed, second);
    size_t n_bytes = evaluate(graph, before, sizeof before);
    CHECK_INT(ddp_run(graph, CONCAT, 0), 2);
    CHECK_INT(evaluate(graph, after, sizeof after), n_bytes);
    CHECK_BYTES(after, before, n_bytes);
    shoal_graph_free(graph);
}

/* A gradient that is accumulated into itself. */
TEST(copy_into_the_gradient)
{
    char before[4096];
    char after[4096];
    shoal_graph *graph = build_graph(8);
    shoal_node *results[3];
    for (size_t i = 0; i < 3; i++) {
        shoal_node *grad = build_input(graph, "grad", 3);
        shoal_node *wait = ddp_chain(graph, grad, (struct ddp_chain){.divisor = 8});
        results[i] = BUILD_CALL(graph, "copy_", arg_node(grad), arg_node(wait));
    }
    ddp_output(graph, results, 3);
    size_t n_bytes = evaluate(graph, before, sizeof before);
    CHECK_INT(ddp_run(graph, CONCAT, 0), 1);
    CHECK_INT(ddp_count(graph, "all_reduce"), 1);
    CHECK_INT(evaluate(graph, after, sizeof after), n_bytes);
    CHECK_BYTES(after, before, n_bytes);
    shoal_graph_free(graph);
}

TEST(d31_in_place_stays_in_place)
{
    shoal_graph *graph = build_graph(8);
    const struct ddp_chain chain = {.start = "all_reduce_", .divisor = 8};
    shoal_node *a = ddp_chain(graph, ddp_gradient(graph, 3), chain);
    shoal_node *b = ddp_chain(graph, ddp_gradient(graph, 2), chain);
    build_output(graph, 2, a, b);
    CHECK_INT(ddp_run(graph, CONCAT, 0), 1);
    CHECK_INT(ddp_count(graph, "all_reduce_"), 1);
    CHECK_INT(ddp_count(graph, "all_reduce"), 0);
    CHECK_INT(ddp_count(graph, "div_scalar"), 1);
    shoal_graph_free(graph);
}

TEST(d32_nothing_and_scalars)
{
    const char *passes[] = {CONCAT, COALESCED};
    for (size_t i = 0; i < 2; i++) {
        char before[4096];
        char after[4096];
        shoal_graph *graph = build_graph(8);
        const struct ddp_chain chain = {.divisor = 8};
        shoal_node *empty = ddp_chain(graph, ddp_gradient_of(graph, (int64_t[]){0, 7}, 2, SHOAL_F32), chain);
        shoal_node *scalar = ddp_chain(graph, ddp_gradient_of(graph, NULL, 0, SHOAL_F32), chain);
        shoal_node *matrix = ddp_chain(graph, ddp_gradient_of(graph, (int64_t[]){2, 3}, 2, SHOAL_F32), chain);
        build_output(graph, 3, empty, scalar, matrix);
        size_t n_bytes = evaluate(graph, before, sizeof before);
        CHECK_INT(ddp_run(graph, passes[i], 0), 1);
        CHECK_INT(ddp_count(graph, "all_reduce") + ddp_count(graph, "all_reduce_coalesced"), 1);
        CHECK_INT(evaluate(graph, after, sizeof after), n_bytes);
        CHECK_BYTES(after, before, n_bytes);
        shoal_graph_free(graph);
    }
}

TEST(transposed_gradients)
{
    char before[4096];
    char after[4096];
    shoal_graph *graph = build_graph(8);
    shoal_node *waits[2];
    for (size_t i = 0; i < 2; i++) {
        shoal_node *gradient = ddp_gradient_of(graph, (int64_t[]){2, 3}, 2, SHOAL_F32);
        shoal_node *turned = BUILD_CALL(graph, "transpose", arg_node(gradient), arg_int(0), arg_int(1));
        waits[i] = ddp_chain(graph, turned, (struct ddp_chain){.divisor = 8});
    }
    ddp_output(graph, waits, 2);
    size_t n_bytes = evaluate(graph, before, sizeof before);
    CHECK_INT(ddp_run(graph, CONCAT, 0), 1);
    CHECK_INT(evaluate(graph, after, sizeof after), n_bytes);
    CHECK_BYTES(after, before, n_bytes);
    shoal_graph_free(graph);
}

/* Running it again finds one block per bucket, which has no division of its own form, and changes nothing. */
TEST(second_run_changes_nothing)
{
    shoal_graph *graph = averages((int64_t[]){3, 4, 5}, 3);
    CHECK_INT(ddp_run(graph, CONCAT, 0), 1);
    size_t n_nodes = shoal_graph_n_nodes(graph);
    CHECK_INT(ddp_run(graph, CONCAT, 0), 0);
    CHECK_INT(shoal_graph_n_nodes(graph), n_nodes);
    shoal_graph_free(graph);
}

/* Thousands of gradients must not take long. */
/* Tables of new nodes are as large as the greatest id, which must not wrap around. */
TEST(ids_that_run_out)
{
    shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
    shoal_pass_report report = SHOAL_PASS_REPORT_INIT;
    shoal_graph *graph = averages((int64_t[]){4, 4}, 2);
    uint32_t n_ids = graph->n_ids;
    graph->n_ids = UINT32_MAX - 8;
    CHECK_STATUS(pass_fuse_ddp_with_concat_op(graph, &options, &report, NULL), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("this one has made 4294967287");
    graph->n_ids = n_ids;
    CHECK_INT(ddp_run(graph, CONCAT, 25), 1);
    shoal_graph_free(graph);
}

TEST(many_gradients)
{
    const size_t n = (size_t)(20000 / test_time_scale());
    shoal_graph *graph = build_graph(8);
    shoal_node **waits = calloc(n, sizeof(waits[0]));
    REQUIRE(waits != NULL);
    for (size_t i = 0; i < n; i++) {
        shoal_node *grad = build_input(graph, "grad", 3);
        waits[i] = ddp_average(graph, 3);
        if (i % 2 == 0) {
            waits[i] = BUILD_CALL(graph, "copy_", arg_node(grad), arg_node(waits[i]));
        }
    }
    ddp_output(graph, waits, n);
    free(waits);
    CHECK_INT(ddp_run(graph, DRIVER, 25), 1);
    CHECK_INT(ddp_count(graph, "all_reduce"), 1);
    shoal_graph_free(graph);
}

/* Small buckets, and copies into one piece of memory. */
TEST(many_buckets)
{
    enum {
        N = 3000
    };
    shoal_graph *graph = build_graph(8);
    shoal_node *flat = build_input(graph, "flat", 3 * N);
    shoal_node **results = calloc(N, sizeof(results[0]));
    REQUIRE(results != NULL);
    for (size_t i = 0; i < N; i++) {
        shoal_node *wait =
            ddp_chain(graph, ddp_gradient(graph, 3), (struct ddp_chain){.divisor = (double)(1 + i / 2)});
        shoal_node *part =
            BUILD_CALL(graph, "narrow", arg_node(flat), arg_int(0), arg_int(3 * (int64_t)i), arg_int(3));
        results[i] = BUILD_CALL(graph, "copy_", arg_node(part), arg_node(wait));
    }
    ddp_output(graph, results, N);
    free(results);
    CHECK_INT(ddp_run(graph, DRIVER, 0), N / 2);
    CHECK_INT(ddp_count(graph, "all_reduce"), N / 2);
    shoal_graph_free(graph);
}
