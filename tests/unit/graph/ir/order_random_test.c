/* SPDX-License-Identifier: MIT */
/*
 * Passes that only move nodes, over random graphs: nodes are the same, and what had to stand before another one, by effects and by
 * the order of communication, still does. That they change no bits is in pass_fuzz_test.c.
 */
#include "unit/graph/passes/ddp_graph.h"
#include "fixtures/graph_text.h"
#include "fixtures/random_graph.h"
#include "graph/analysis/effects.h"
#include "graph/analysis/memory.h"

enum {
    N_RANKS = 2,
    N_GRAPHS = 150,
    MAX_NODES = 1024,
    N_MANY = 100000
};

static const char *const passes[] = {"dedupe_waits", "sink_waits", "raise_comms",
                                     "reorder_compute_for_overlap", "simple_overlap"};
enum {
    DEDUPE = 0,
    SIMPLE = 4,
    N_PASSES = 5
};

/* A part of so many: sanitizers make all slow. */
static uint64_t part_of(uint64_t count)
{
    return test_time_scale() > 1 ? (uint64_t)((double)count / (3 * test_time_scale())) : count;
}

/* The order before the pass, and what effects say about it. */
struct snapshot {
    struct effects *effects;
    shoal_node *nodes[MAX_NODES];
    size_t n_nodes;
};

static void take(struct snapshot *snapshot, shoal_graph *graph)
{
    snapshot->n_nodes = 0;
    for (shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        snapshot->nodes[snapshot->n_nodes++] = node;
    }
    CHECK_OK(effects_build(graph, &snapshot->effects));
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
    size_t i = 0;
    while (node->args[i].kind != SHOAL_ARG_GROUP) {
        i++;
    }
    return node->args[i].as.string;
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
static bool check_pass(uint64_t number, int pass)
{
    static struct snapshot snapshot;
    shoal_graph *graph = random_graph(number, N_RANKS);
    bool has_changed = false;
    size_t n_seen = 0;
    take(&snapshot, graph);
    CHECK_OK(shoal_graph_run_passes(graph, &passes[pass], 1, NULL, NULL));
    if (pass != DEDUPE) {
        check_order(&snapshot, graph, pass);
    }
    for (const shoal_node *node = shoal_graph_first(graph); node; node = node->next) {
        has_changed |= snapshot.nodes[n_seen++] != node;
    }
    effects_free(snapshot.effects);
    shoal_graph_free(graph);
    return has_changed;
}

TEST(r18_random_graphs)
{
    size_t n_changed[N_PASSES] = {0};
    uint64_t n_graphs = part_of(N_GRAPHS);
    for (uint64_t number = 1; number <= n_graphs && !test_has_failed(); number++) {
        for (int pass = 0; pass < N_PASSES && !test_has_failed(); pass++) {
            n_changed[pass] += check_pass(number, pass) ? 1 : 0;
            if (test_has_failed()) {
                test_failed(__FILE__, __LINE__, "graph %d, %s", (int)number, passes[pass]);
            }
        }
    }
    for (int pass = 0; pass < N_PASSES; pass++) {
        CHECK(n_changed[pass] > n_graphs / 10);
    }
}

/* A profile whose nodes are moved is the same as that of the graph as it stands then. */
TEST(r15_memory_follows_moves)
{
    for (uint64_t round = 0; round < part_of(N_GRAPHS) && !test_has_failed(); round++) {
        struct test_random random = test_random_begin(round);
        shoal_graph *graph = random_graph(round, N_RANKS);
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
    int n_many = (int)part_of(N_MANY / 4);
    for (int pass = 0; pass < N_PASSES && !test_has_failed(); pass++) {
        shoal_graph *graph = build_graph(8);
        shoal_node **waits = calloc((size_t)n_many, sizeof *waits);
        shoal_node *x = build_input(graph, "x", 4);
        for (int i = 0; i < n_many && waits; i++) {
            shoal_node *start = build_all_reduce(graph, BUILD_CALL(graph, "neg", arg_node(x)));
            waits[i] = build_wait(graph, start);
            build_wait(graph, start);
        }
        ddp_output(graph, waits, (size_t)n_many);
        CHECK_OK(shoal_graph_run_passes(graph, &passes[pass], 1, NULL, NULL));
        CHECK_INT(shoal_graph_n_nodes(graph), (pass == DEDUPE ? 3 : 4) * n_many + 2);
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
    shoal_graph *graph = random_graph(7, N_RANKS);
    struct task task = {.text = graph_text_print(graph)};
    shoal_graph_free(graph);
    REQUIRE(task.text);
    for (int pass = 0; pass < N_PASSES; pass++) {
        task.pass = passes[pass];
        CHECK(test_sweep_allocations(run_one, &task) > 10);
    }
    free(task.text);
}
