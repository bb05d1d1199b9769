/* SPDX-License-Identifier: MIT */
/*
 * The cases of `shoal bench passes`. A graph consists of a number of equal units and an output. A unit is a gradient
 * that is averaged, a shard that is gathered, a gradient that is scattered, or a layer with a reduction.
 */
#include "bench/passes.h"

#include <string.h>

#include "base/mem.h"
#include "base/try.h"
#include "op/op.h"
#include "shoal/compile.h"

#define GROUP "world"

enum {
    WIDTH = 64
};

/* Building ------------------------------------------------------------------------------------------------ */

static shoal_arg node_arg(shoal_node *node)
{
    return (shoal_arg){.kind = SHOAL_ARG_NODE, .as = {.node = node}};
}

static shoal_arg string_arg(const char *string)
{
    return (shoal_arg){.kind = SHOAL_ARG_STRING, .as = {.string = string}};
}

static shoal_arg group_arg(void)
{
    return (shoal_arg){.kind = SHOAL_ARG_GROUP, .as = {.string = GROUP}};
}

static shoal_status call(shoal_graph *graph, const char *name, const shoal_arg *args, size_t n_args,
                         shoal_node **node_out)
{
    const shoal_op *op = NULL;
    TRY(shoal_op_find(name, &op));
    return shoal_graph_call(graph, op, args, n_args, NULL, node_out);
}

static shoal_status call_one(shoal_graph *graph, const char *name, shoal_node *input, shoal_node **node_out)
{
    shoal_arg arg = node_arg(input);
    return call(graph, name, &arg, 1, node_out);
}

/* Matrices and vectors in turn, as weights and biases are. */
static shoal_status add_input(shoal_graph *graph, size_t index, shoal_node **node_out)
{
    const int64_t shape[] = {WIDTH, WIDTH};
    return shoal_graph_placeholder(graph, "p", shape, index % 2 == 0 ? 2 : 1, SHOAL_F32, node_out);
}

typedef shoal_status (*unit_builder)(shoal_graph *graph, size_t index, shoal_node **result_out);

static shoal_status build_units(shoal_graph *graph, unit_builder build, size_t n_units)
{
    shoal_arg *items = mem_alloc_zeroed(n_units + 1, sizeof(items[0]));
    shoal_status status = items ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    for (size_t i = 0; i < n_units && status == SHOAL_OK; i++) {
        shoal_node *result = NULL;
        status = build(graph, i, &result);
        items[i] = node_arg(result);
    }
    shoal_arg list = {.kind = SHOAL_ARG_LIST, .as = {.list = {items, n_units}}};
    if (status == SHOAL_OK) {
        status = shoal_graph_output(graph, &list, NULL);
    }
    mem_free(items);
    return status;
}

/* 5 nodes */
static shoal_status add_gradient(shoal_graph *graph, size_t index, shoal_node **result_out)
{
    shoal_node *node = NULL;
    TRY(add_input(graph, index, &node));
    TRY(call_one(graph, "neg", node, &node));
    shoal_arg division[] = {node_arg(node), {.kind = SHOAL_ARG_FLOAT, .as = {.real = 8}}};
    TRY(call(graph, "div_scalar", division, 2, &node));
    shoal_arg start[] = {node_arg(node), string_arg("sum"), group_arg()};
    TRY(call(graph, "all_reduce", start, 3, &node));
    return call_one(graph, "wait_tensor", node, result_out);
}

/* 4 nodes */
static shoal_status add_shard(shoal_graph *graph, size_t index, shoal_node **result_out)
{
    shoal_node *node = NULL;
    TRY(add_input(graph, index, &node));
    shoal_arg start[] = {node_arg(node), group_arg()};
    TRY(call(graph, "all_gather_into_tensor", start, 2, &node));
    TRY(call_one(graph, "wait_tensor", node, &node));
    return call_one(graph, "neg", node, result_out);
}

/* 4 nodes */
static shoal_status add_scattered(shoal_graph *graph, size_t index, shoal_node **result_out)
{
    shoal_node *node = NULL;
    TRY(add_input(graph, index, &node));
    TRY(call_one(graph, "neg", node, &node));
    shoal_arg start[] = {
        node_arg(node), string_arg("avg"), {.kind = SHOAL_ARG_INT, .as = {.integer = 0}}, group_arg()};
    TRY(call(graph, "reduce_scatter_tensor", start, 4, &node));
    return call_one(graph, "wait_tensor", node, result_out);
}

static shoal_status build_gradients(struct bench_passes_round *round, size_t n_units)
{
    return build_units(round->graph, add_gradient, n_units);
}

static shoal_status build_shards(struct bench_passes_round *round, size_t n_units)
{
    return build_units(round->graph, add_shard, n_units);
}

static shoal_status build_scattered(struct bench_passes_round *round, size_t n_units)
{
    return build_units(round->graph, add_scattered, n_units);
}

/* A large tensor at the beginning leaves room in memory for all that comes later. */
static shoal_status add_slack(shoal_graph *graph, shoal_node **x_out)
{
    const int64_t shape[] = {WIDTH};
    const int64_t large[] = {1 << 24};
    shoal_node *node = NULL;
    TRY(shoal_graph_placeholder(graph, "x", shape, 1, SHOAL_F32, x_out));
    TRY(shoal_graph_placeholder(graph, "large", large, 1, SHOAL_F32, &node));
    TRY(call_one(graph, "neg", node, &node));
    return call_one(graph, "sum", node, &node);
}

/* 5 nodes each: a reduction that is waited for at once, work that does not need it, and what needs both. */
static shoal_status build_layers(struct bench_passes_round *round, size_t n_units)
{
    shoal_graph *graph = round->graph;
    shoal_node *x = NULL;
    TRY(add_slack(graph, &x));
    shoal_node *total = x;
    for (size_t i = 0; i < n_units; i++) {
        shoal_node *node = NULL;
        TRY(call_one(graph, "neg", x, &node));
        shoal_arg start[] = {node_arg(node), string_arg("sum"), group_arg()};
        TRY(call(graph, "all_reduce", start, 3, &node));
        TRY(call_one(graph, "wait_tensor", node, &node));
        TRY(call_one(graph, "neg", x, &x));
        shoal_arg sum[] = {node_arg(total), node_arg(node)};
        TRY(call(graph, "add", sum, 2, &total));
    }
    shoal_arg items[] = {node_arg(x), node_arg(total)};
    shoal_arg list = {.kind = SHOAL_ARG_LIST, .as = {.list = {items, 2}}};
    return shoal_graph_output(graph, &list, NULL);
}

/* Gradients go to the end of the list, behind all that need them. */
static shoal_status build_unsorted(struct bench_passes_round *round, size_t n_units)
{
    TRY(build_gradients(round, n_units));
    shoal_node *output = shoal_graph_last(round->graph);
    const shoal_node *end = shoal_node_prev(output);
    shoal_node *next;
    for (shoal_node *node = shoal_graph_first(round->graph); node != end; node = next) {
        next = shoal_node_next(node);
        if (strcmp(shoal_node_target(node), "neg") == 0) {
            TRY(shoal_node_move_before(node, output));
        }
    }
    return SHOAL_OK;
}

/* Each unit has two nodes that nobody needs. */
static shoal_status build_dead(struct bench_passes_round *round, size_t n_units)
{
    TRY(build_gradients(round, n_units));
    shoal_node *last = shoal_graph_last(round->graph);
    TRY(shoal_graph_set_insert_point(round->graph, (shoal_insert_point){.node = last, .is_after = false}));
    for (size_t i = 0; i < n_units; i++) {
        shoal_node *node = NULL;
        TRY(call_one(round->graph, "neg", shoal_graph_first(round->graph), &node));
        TRY(call_one(round->graph, "neg", node, &node));
        round->n_dead += 2;
    }
    return SHOAL_OK;
}

/* Running ------------------------------------------------------------------------------------------------- */

static int append(void *context, const char *text, size_t bytes)
{
    struct bench_passes_round *round = context;
    if (round->text && round->n_written + bytes <= round->text_bytes) {
        memcpy(round->text + round->n_written, text, bytes);
    }
    round->n_written += bytes;
    return 0;
}

static shoal_status print(struct bench_passes_round *round)
{
    round->n_written = 0;
    return shoal_graph_print(round->graph, append, round);
}

/* Printed twice: for the length, and for the text. */
static shoal_status build_printed(struct bench_passes_round *round, size_t n_units)
{
    TRY(build_gradients(round, n_units));
    TRY(print(round));
    round->text = mem_alloc(round->n_written + 1);
    round->text_bytes = round->n_written;
    return round->text ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static shoal_status build_text(struct bench_passes_round *round, size_t n_units)
{
    TRY(build_printed(round, n_units));
    TRY(print(round));
    round->n_parsed_into = shoal_graph_n_nodes(round->graph);
    shoal_graph_free(round->graph);
    round->graph = NULL;
    return SHOAL_OK;
}

static shoal_status build_model(struct bench_passes_round *round, size_t n_units)
{
    shoal_graph_free(round->graph);
    round->graph = NULL;
    return bench_passes_make_model(round, n_units);
}

static shoal_status parse(struct bench_passes_round *round)
{
    return shoal_graph_parse(round->text, round->text_bytes, &round->graph);
}

static shoal_status lint(struct bench_passes_round *round)
{
    return shoal_graph_lint(round->graph);
}

static shoal_status sort(struct bench_passes_round *round)
{
    return shoal_graph_sort(round->graph);
}

static shoal_status remove_dead(struct bench_passes_round *round)
{
    return shoal_graph_remove_dead(round->graph, &round->n_erased);
}

static shoal_status run_pass(struct bench_passes_round *round, const char *name, const char *ddp_passes)
{
    shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
    shoal_pass_report report = SHOAL_PASS_REPORT_INIT;
    options.ddp_passes = ddp_passes;
    options.comm_bucket_mb = 25;
    TRY(shoal_graph_run_passes(round->graph, &name, 1, &options, &report));
    round->n_buckets = report.n_buckets;
    return SHOAL_OK;
}

static shoal_status fuse(struct bench_passes_round *round)
{
    return run_pass(round, "fuse_ddp_communication", NULL);
}

static shoal_status fuse_coalesced(struct bench_passes_round *round)
{
    return run_pass(round, "fuse_ddp_communication", "fuse_ddp_with_coalesced_op,schedule_comm_wait");
}

static shoal_status bucket_gathers(struct bench_passes_round *round)
{
    return run_pass(round, "bucket_all_gathers", NULL);
}

static shoal_status bucket_scatters(struct bench_passes_round *round)
{
    return run_pass(round, "bucket_reduce_scatters", NULL);
}

static shoal_status bucket_reduces(struct bench_passes_round *round)
{
    return run_pass(round, "bucket_all_reduces", NULL);
}

static shoal_status overlap(struct bench_passes_round *round)
{
    return run_pass(round, "simple_overlap", NULL);
}

/* Checking ------------------------------------------------------------------------------------------------ */

static bool has_flag(const shoal_node *node, uint32_t flag)
{
    const shoal_op *op = shoal_node_op(node);
    return op && (op->flags & flag) != 0;
}

static size_t count_starts(const shoal_graph *graph)
{
    size_t count = 0;
    for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        count += has_flag(node, SHOAL_OP_COLLECTIVE) ? 1 : 0;
    }
    return count;
}

/* Waits that stand directly behind a start. */
static size_t count_exposed(const shoal_graph *graph)
{
    size_t count = 0;
    for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        const shoal_node *next = shoal_node_next(node);
        count += next && has_flag(node, SHOAL_OP_COLLECTIVE) && has_flag(next, SHOAL_OP_WAIT) ? 1 : 0;
    }
    return count;
}

static size_t check_lint(const struct bench_passes_round *round)
{
    return shoal_graph_lint(round->graph) == SHOAL_OK ? 0 : 1;
}

static size_t check_parsed(const struct bench_passes_round *round)
{
    return check_lint(round) + (shoal_graph_n_nodes(round->graph) != round->n_parsed_into);
}

static size_t check_printed(const struct bench_passes_round *round)
{
    return round->n_written != round->text_bytes;
}

static size_t check_erased(const struct bench_passes_round *round)
{
    return check_lint(round) + (round->n_erased != round->n_dead);
}

/* As many collectives as buckets, and fewer than there were. */
static size_t check_buckets(const struct bench_passes_round *round)
{
    size_t n_starts = count_starts(round->graph);
    return check_lint(round) + (n_starts != round->n_buckets || n_starts >= round->n_starts);
}

static size_t check_overlap(const struct bench_passes_round *round)
{
    size_t n_starts = count_starts(round->graph);
    return check_lint(round) + (n_starts != round->n_starts) +
           (count_exposed(round->graph) >= round->n_exposed);
}

/* Rows ---------------------------------------------------------------------------------------------------- */

const struct bench_passes_case bench_passes_cases[] = {
    {"parse", "1", 5, build_text, parse, check_parsed},
    {"print", "1", 5, build_printed, print, check_printed},
    {"lint", "1", 5, build_gradients, lint, check_lint},
    {"sort", "1", 5, build_unsorted, sort, check_lint},
    {"remove_dead", "1", 7, build_dead, remove_dead, check_erased},
    {"fuse_schedule", "2", 5, build_gradients, fuse, check_buckets},
    {"fuse_coalesced", "2", 5, build_gradients, fuse_coalesced, check_buckets},
    {"bucket_gathers", "4.5", 4, build_shards, bucket_gathers, check_buckets},
    {"bucket_scatters", "4.5", 4, build_scattered, bucket_scatters, check_buckets},
    {"bucket_reduces", "4.5", 5, build_gradients, bucket_reduces, check_buckets},
    {"simple_overlap", "4.13", 5, build_layers, overlap, check_overlap},
};
const size_t bench_passes_n_cases = sizeof(bench_passes_cases) / sizeof(bench_passes_cases[0]);

const struct bench_passes_case bench_passes_capturing = {
    "capture", "capture", 0, build_model, bench_passes_capture, bench_passes_check_captured};

const struct bench_passes_case *bench_passes_find(const char *name)
{
    for (size_t i = 0; i < bench_passes_n_cases; i++) {
        if (strcmp(bench_passes_cases[i].name, name) == 0) {
            return &bench_passes_cases[i];
        }
    }
    return strcmp(name, bench_passes_capturing.name) == 0 ? &bench_passes_capturing : NULL;
}

shoal_status bench_passes_begin(const struct bench_passes_case *one, size_t n_units,
                                struct bench_passes_round *round)
{
    const int ranks[] = {0, 1};
    *round = (struct bench_passes_round){.graph = NULL};
    TRY(shoal_graph_create(&round->graph));
    TRY(shoal_graph_add_group(round->graph, GROUP, ranks, 1, 2));
    TRY(one->build(round, n_units));
    round->n_nodes = round->graph ? shoal_graph_n_nodes(round->graph) : round->n_parsed_into;
    round->n_starts = count_starts(round->graph);
    round->n_exposed = count_exposed(round->graph);
    return SHOAL_OK;
}

void bench_passes_end(struct bench_passes_round *round)
{
    shoal_graph_free(round->graph);
    bench_passes_free_model(round->model);
    mem_free(round->text);
    *round = (struct bench_passes_round){.graph = NULL};
}
