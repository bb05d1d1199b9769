/* SPDX-License-Identifier: MIT */
/*
 * Random graphs with collectives of two groups, views and writes in place, and the passes that move nodes: they compute the same
 * bits, nodes are the same, what had to stand before another one still does, and memory does not grow where a pass promises that.
 */
#include "evaluate.h"
#include "fixtures/graph_text.h"
#include "graph/effects.h"
#include "graph/memory.h"

enum {
    MAX_STEPS = 60,
    MAX_NODES = 5 * MAX_STEPS + 8,
    MAX_BYTES = 1 << 20,
    N_MANY = 100000
};

static const char *const passes[] = {"dedupe_waits", "sink_waits", "raise_comms",
                                     "reorder_compute_for_overlap", "simple_overlap"};
enum {
    DEDUPE = 0,
    SIMPLE = 4,
    N_PASSES = 5
};

struct maker {
    struct test_random random;
    shoal_graph *graph;
    shoal_node *tensors[MAX_NODES];
    size_t n_tensors;
};

static shoal_node *pick(struct maker *maker)
{
    return maker->tensors[test_random_below(&maker->random, maker->n_tensors)];
}

static void keep(struct maker *maker, shoal_node *node)
{
    maker->tensors[maker->n_tensors++] = node;
}

/* A start, and its wait now or, without anything using it meanwhile, some compute later. */
static void add_reduction(struct maker *maker)
{
    bool is_in_place = test_random_below(&maker->random, 3) == 0;
    shoal_node *input = pick(maker);
    shoal_node *start = BUILD_CALL(maker->graph, is_in_place ? "all_reduce_" : "all_reduce", arg_node(input),
                                   arg_string("sum"),
                                   arg_group(test_random_below(&maker->random, 2) ? "other" : BUILD_GROUP));
    if (!is_in_place && test_random_below(&maker->random, 2) == 0) {
        keep(maker, BUILD_CALL(maker->graph, "neg", arg_node(pick(maker))));
    }
    shoal_node *wait = build_wait(maker->graph, start);
    if (test_random_below(&maker->random, 4) == 0) {
        shoal_node *again = test_random_below(&maker->random, 2) ? wait : start;
        keep(maker, build_wait(maker->graph, again));
    }
    keep(maker, wait);
}

/* Two at once, waited for one by one, in either order, or together. */
static void add_coalesced(struct maker *maker)
{
    shoal_node *inputs[] = {pick(maker), pick(maker)};
    shoal_node *start = build_all_reduce_coalesced(maker->graph, inputs, 2);
    int64_t first = (int64_t)test_random_below(&maker->random, 3);
    if (first == 2) {
        shoal_node *waits = BUILD_CALL(maker->graph, "wait_tensors", arg_node(start));
        keep(maker, build_getitem(maker->graph, waits, 0));
        keep(maker, build_getitem(maker->graph, waits, 1));
        return;
    }
    shoal_node *items[] = {build_getitem(maker->graph, start, first),
                           build_getitem(maker->graph, start, 1 - first)};
    keep(maker, build_wait(maker->graph, items[0]));
    keep(maker, build_wait(maker->graph, items[1]));
}

/* Memory that is there for a moment. */
static void add_moment(struct maker *maker)
{
    int64_t count = 8 * (1 + (int64_t)test_random_below(&maker->random, 8));
    BUILD_CALL(maker->graph, "zeros", ARG_LIST(arg_int(count)), arg_dtype(SHOAL_F32));
}

static void add_other(struct maker *maker)
{
    shoal_graph *graph = maker->graph;
    shoal_node *self = pick(maker);
    switch (test_random_below(&maker->random, 6)) {
    case 0:
        keep(maker, BUILD_CALL(graph, "mul_scalar_", arg_node(self), arg_float(0.5)));
        break;
    case 1:
        keep(maker, BUILD_CALL(graph, "copy_", arg_node(self), arg_node(pick(maker))));
        break;
    case 2:
        keep(maker, BUILD_CALL(graph, "view", arg_node(self), ARG_LIST(arg_int(4))));
        break;
    case 3:
        keep(maker, BUILD_CALL(graph, "reshape", arg_node(self), ARG_LIST(arg_int(4))));
        break;
    default:
        keep(maker, BUILD_CALL(graph, "sub", arg_node(self), arg_node(pick(maker))));
    }
}

static shoal_graph *make(uint64_t seed)
{
    struct maker maker = {.random = test_random_begin(seed), .graph = build_graph(8)};
    CHECK_OK(shoal_graph_add_group(maker.graph, "other", (int[]){0, 1, 2}, 1, 3));
    size_t n_inputs = 1 + test_random_below(&maker.random, 4);
    size_t n_steps = 4 + test_random_below(&maker.random, MAX_STEPS - 4);
    for (size_t i = 0; i < n_inputs; i++) {
        keep(&maker, build_input(maker.graph, i % 2 ? "primals" : "x", 4));
    }
    for (size_t i = 0; i < n_steps; i++) {
        uint64_t kind = test_random_below(&maker.random, 12);
        if (kind < 4) {
            add_reduction(&maker);
        } else if (kind == 4) {
            add_coalesced(&maker);
        } else if (kind == 5) {
            add_moment(&maker);
        } else {
            add_other(&maker);
        }
    }
    build_output(maker.graph, 3, pick(&maker), pick(&maker), pick(&maker));
    return maker.graph;
}

/* The order before the pass, and what effects say about it. */
struct snapshot {
    struct effects *effects;
    shoal_node *nodes[MAX_NODES];
    size_t n_nodes;
    uint64_t peak;
};

static void take(struct snapshot *snapshot, shoal_graph *graph)
{
    snapshot->n_nodes = 0;
    for (shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        snapshot->nodes[snapshot->n_nodes++] = node;
    }
    CHECK_OK(effects_build(graph, &snapshot->effects));
    CHECK_OK(memory_peak(graph, &snapshot->peak));
}

static bool is_start(const shoal_node *node)
{
    return (node_flags(node) & SHOAL_OP_COLLECTIVE) != 0;
}

static bool is_wait(const shoal_node *node)
{
    return (node_flags(node) & SHOAL_OP_WAIT) != 0;
}

/* Of two starts, or two waits for starts: the same group. */
static const char *group_of(const shoal_node *node)
{
    while (!is_start(node)) {
        node = node->inputs[0];
    }
    return node->args[2].as.string;
}

static void check_order(const struct snapshot *snapshot, const shoal_graph *graph, int pass)
{
    CHECK_INT(shoal_graph_n_nodes(graph), snapshot->n_nodes);
    for (size_t i = 0; i < snapshot->n_nodes; i++) {
        const shoal_node *node = snapshot->nodes[i];
        shoal_node *const *before;
        size_t n_before;
        CHECK(!node->is_erased);
        effects_before(snapshot->effects, node, &before, &n_before);
        for (size_t k = 0; k < n_before; k++) {
            CHECK(shoal_node_is_before(before[k], node));
        }
        for (size_t k = 0; k < i; k++) {
            const shoal_node *other = snapshot->nodes[k];
            bool are_starts = is_start(node) && is_start(other);
            bool are_waits = is_wait(node) && is_wait(other);
            bool is_fixed = pass == SIMPLE
                                ? (are_starts || are_waits) && strcmp(group_of(node), group_of(other)) == 0
                                : are_starts;
            CHECK(!is_fixed || shoal_node_is_before(other, node));
        }
    }
    for (const shoal_node *node = shoal_graph_first(graph); node && shoal_node_next(node);
         node = node->next) {
        CHECK(node->order < node->next->order);
        CHECK(node->kind == SHOAL_NODE_PLACEHOLDER || node->next->kind != SHOAL_NODE_PLACEHOLDER);
    }
}

/* Whether the pass has changed something. */
static bool check_pass(uint64_t seed, int pass, char *before, char *after)
{
    static struct snapshot snapshot;
    shoal_graph *graph = make(seed);
    shoal_graph *twin = make(seed);
    size_t n_bytes = evaluate(graph, before, MAX_BYTES);
    take(&snapshot, graph);
    CHECK_OK(shoal_graph_run_passes(graph, &passes[pass], 1, NULL, NULL));
    CHECK_OK(shoal_graph_run_passes(twin, &passes[pass], 1, NULL, NULL));
    CHECK_INT(evaluate(graph, after, MAX_BYTES), n_bytes);
    CHECK(memcmp(before, after, n_bytes) == 0);
    if (pass != DEDUPE) {
        check_order(&snapshot, graph, pass);
    }
    if (pass == SIMPLE) {
        uint64_t peak = UINT64_MAX;
        CHECK_OK(memory_peak(graph, &peak));
        CHECK(peak <= snapshot.peak);
    }
    const shoal_node *other = shoal_graph_first(twin);
    bool has_changed = false;
    size_t n_seen = 0;
    for (const shoal_node *node = shoal_graph_first(graph); node; node = node->next) {
        has_changed |= snapshot.nodes[n_seen++] != node;
        CHECK(other && strcmp(node->name, other->name) == 0);
        other = other ? other->next : NULL;
    }
    effects_free(snapshot.effects);
    shoal_graph_free(graph);
    shoal_graph_free(twin);
    return has_changed;
}

TEST(r18_random_graphs)
{
    static char before[MAX_BYTES];
    static char after[MAX_BYTES];
    size_t n_changed[N_PASSES] = {0};
    for (uint64_t round = 0; round < 300 && !test_has_failed(); round++) {
        for (int pass = 0; pass < N_PASSES && !test_has_failed(); pass++) {
            n_changed[pass] += check_pass(round, pass, before, after) ? 1 : 0;
            if (test_has_failed()) {
                test_failed(__FILE__, __LINE__, "round %d, %s", (int)round, passes[pass]);
            }
        }
    }
    for (int pass = 0; pass < N_PASSES; pass++) {
        CHECK(n_changed[pass] > 100);
    }
}

/* Up to three nodes to a place. Whether they may go there. */
static bool check_move(shoal_graph *graph, struct test_random *random)
{
    static shoal_node *nodes[MAX_NODES];
    size_t n_nodes = 0;
    for (shoal_node *node = graph->first; node; node = node->next) {
        nodes[n_nodes++] = node;
    }
    size_t first = test_random_below(random, n_nodes);
    size_t n_moved = 1 + test_random_below(random, 3);
    n_moved = first + n_moved > n_nodes ? n_nodes - first : n_moved;
    size_t distance = test_random_below(random, 9);
    size_t place = first + distance > 4 ? first + distance - 4 : 0;
    shoal_insert_point where = {.node = nodes[place < n_nodes ? place : n_nodes - 1],
                                .is_after = test_random_below(random, 2) == 0};
    if (shoal_graph_move_nodes(graph, nodes + first, n_moved, where) == SHOAL_OK) {
        CHECK_OK(shoal_graph_lint(graph));
        return true;
    }
    const shoal_node *node = graph->first;
    for (size_t i = 0; i < n_nodes; i++, node = node->next) {
        CHECK(node == nodes[i]);
    }
    return false;
}

TEST(random_moves_compute_the_same)
{
    static char bytes_before[MAX_BYTES];
    static char bytes_after[MAX_BYTES];
    size_t n_moved = 0;
    size_t n_refused = 0;
    for (uint64_t round = 0; round < 200 && !test_has_failed(); round++) {
        struct test_random random = test_random_begin(round + 1);
        shoal_graph *graph = make(round);
        size_t n_bytes = evaluate(graph, bytes_before, MAX_BYTES);
        for (int i = 0; i < 40; i++) {
            *(check_move(graph, &random) ? &n_moved : &n_refused) += 1;
        }
        CHECK_INT(evaluate(graph, bytes_after, MAX_BYTES), n_bytes);
        CHECK(memcmp(bytes_before, bytes_after, n_bytes) == 0);
        shoal_graph_free(graph);
    }
    CHECK(n_moved > 500 && n_refused > 500);
}

/* A profile whose nodes are moved is the same as that of the graph as it stands then. */
TEST(r15_memory_follows_moves)
{
    for (uint64_t round = 0; round < 200 && !test_has_failed(); round++) {
        struct test_random random = test_random_begin(round);
        shoal_graph *graph = make(round);
        struct effects *effects = NULL;
        struct memory_profile *profile = NULL;
        CHECK_OK(effects_build(graph, &effects));
        CHECK_OK(memory_profile_build(graph, effects, &profile));
        for (shoal_node *node = graph->first, *next; node && node->next; node = next) {
            next = node->next;
            /* To the left of a neighbour that it does not depend on, if the effects stay the same. */
            shoal_node *const *edges;
            size_t n_edges;
            shoal_node *where = node->prev;
            effects_before(effects, node, &edges, &n_edges);
            bool is_free = where && node->kind == SHOAL_NODE_CALL && where->kind == SHOAL_NODE_CALL &&
                           !(is_wait(node) && is_wait(where)); /* the first wait of a start ends it */
            for (size_t i = 0; is_free && i < n_edges + node->n_inputs; i++) {
                is_free = (i < n_edges ? edges[i] : node->inputs[i - n_edges]) != where;
            }
            if (is_free && test_random_below(&random, 2)) {
                memory_profile_move(profile, node, where);
            }
        }
        struct effects *now = NULL;
        struct memory_profile *expected = NULL;
        CHECK_OK(effects_build(graph, &now));
        CHECK_OK(memory_profile_build(graph, now, &expected));
        CHECK_INT(memory_profile_peak(profile), memory_profile_peak(expected));
        for (const shoal_node *node = graph->first; node; node = node->next) {
            CHECK_INT(memory_profile_at(profile, node), memory_profile_at(expected, node));
        }
        memory_profile_free(profile);
        memory_profile_free(expected);
        effects_free(effects);
        effects_free(now);
        shoal_graph_free(graph);
    }
}

/* Gradients of one input, each reduced and waited for at once: everything can be moved past everything. */
TEST(many_nodes)
{
    for (int pass = 0; pass < N_PASSES && !test_has_failed(); pass++) {
        shoal_graph *graph = build_graph(8);
        shoal_node **waits = calloc(N_MANY / 4, sizeof *waits);
        shoal_node *x = build_input(graph, "x", 4);
        for (int i = 0; i < N_MANY / 4 && waits; i++) {
            shoal_node *start = build_all_reduce(graph, BUILD_CALL(graph, "neg", arg_node(x)));
            waits[i] = build_wait(graph, start);
            build_wait(graph, start);
        }
        ddp_output(graph, waits, N_MANY / 4);
        CHECK_OK(shoal_graph_run_passes(graph, &passes[pass], 1, NULL, NULL));
        CHECK_INT(shoal_graph_n_nodes(graph), pass == DEDUPE ? 3 * (N_MANY / 4) + 2 : N_MANY + 2);
        free(waits);
        shoal_graph_free(graph);
    }
}

/* Memory ------------------------------------------------------------------------------------------------- */

struct task {
    char *text;
    const char *pass;
};

/* A graph of its own each time: what a pass changes stays in its memory. */
static shoal_status run_one(void *context)
{
    const struct task *task = context;
    shoal_graph *graph;
    shoal_status status = shoal_graph_parse(task->text, strlen(task->text), &graph);
    if (status == SHOAL_OK) {
        status = shoal_graph_run_passes(graph, &task->pass, 1, NULL, NULL);
        shoal_graph_free(graph);
    }
    return status;
}

TEST(memory_runs_out)
{
    shoal_graph *graph = make(7);
    struct task task = {.text = graph_text_print(graph)};
    shoal_graph_free(graph);
    REQUIRE(task.text);
    for (int pass = 0; pass < N_PASSES; pass++) {
        task.pass = passes[pass];
        CHECK(test_sweep_allocations(run_one, &task) > 10);
    }
    free(task.text);
}
