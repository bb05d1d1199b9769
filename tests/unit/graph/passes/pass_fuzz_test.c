/* SPDX-License-Identifier: MIT */
/*
 * Random graphs and random passes. After each pass the graph is clean by shoal_graph_lint, starts are waited for once and nobody
 * touches their memory before, and no more memory is needed than the pass may need (pass_fuzz/checks.h). Run between real ranks it
 * gives the bits that it gave before, in outputs and in inputs, and the same passes over the same text give the same text.
 *
 * SHOAL_FUZZ_GRAPHS says how many graphs (scripts/fuzz_passes.sh), SHOAL_FUZZ_FIRST the number of the first. What fails is printed
 * with its number, its text, its passes as commands of `shoal opt`, and the graph as it was then.
 */
#include "pass_fuzz/faults.h"
#include "pass_fuzz/passes.h"

enum {
    N_GRAPHS = 900
};

/* A part of so many: sanitizers make all slow, and ranks that meet slower still. */
static size_t part_of(size_t count)
{
    return test_time_scale() > 1 ? (size_t)((double)count / (3 * test_time_scale())) : count;
}

static uint64_t get_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && text[0] != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

/* So many graphs have each op and change with each pass; some ops are rare. */
#define N_COVERING 800

/* All collectives but those of symmetric memory, which lowering makes; arithmetic; three dtypes; and each pass has something to
   do. */
static void check_coverage(const struct fuzz_counts *counts)
{
    static const enum op_id computed[] = {OP_add, OP_sub, OP_mul, OP_neg, OP_neg_};
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16, SHOAL_F64};
    const char *names[FUZZ_MAX_PASSES];
    size_t n_passes = fuzz_list_passes(names);
    for (int i = 0; i < OP_COUNT && i < FUZZ_MAX_OPS; i++) {
        const shoal_op *op = op_get((enum op_id)i);
        bool is_symmetric = strstr(op->name, "_shot_") != NULL;
        if ((op->flags & (SHOAL_OP_COLLECTIVE | SHOAL_OP_WAIT)) != 0 && !is_symmetric &&
            counts->ops[i] == 0) {
            test_failed(__FILE__, __LINE__, "no graph has %s", op->name);
        }
    }
    for (size_t i = 0; i < sizeof computed / sizeof computed[0]; i++) {
        CHECK(counts->ops[computed[i]] > 0);
    }
    for (size_t i = 0; i < 3; i++) {
        CHECK(counts->dtypes[dtypes[i]] > 0);
    }
    for (size_t i = 0; i < n_passes; i++) {
        if (counts->changes[i] == 0) {
            test_failed(__FILE__, __LINE__,
                        "%s changed no graph: fixtures/random_graph.h makes nothing that it looks for",
                        names[i]);
        }
    }
    CHECK(counts->n_empty > 0);
}

static void run_graphs(int n_ranks, double part)
{
    uint64_t n_graphs = get_number("SHOAL_FUZZ_GRAPHS", part_of(N_GRAPHS));
    uint64_t first = get_number("SHOAL_FUZZ_FIRST", 1);
    struct fuzz_counts counts = {.n_graphs = 0};
    struct fuzz_ranks ranks;
    test_deadline(60 + (double)n_graphs);
    fuzz_ranks_begin(&ranks, n_ranks, 20);
    for (uint64_t i = 0; i < (uint64_t)((double)n_graphs * part) && !test_has_failed(); i++) {
        fuzz_graph(&ranks, first + i, &counts);
        test_progress(i + 1, (uint64_t)((double)n_graphs * part));
    }
    fuzz_ranks_end(&ranks);
    fuzz_print_counts(&counts, n_ranks);
    if (counts.n_graphs >= N_COVERING) {
        check_coverage(&counts);
    }
}

TEST(random_graphs_on_2)
{
    run_graphs(2, 1);
}

TEST(random_graphs_on_3)
{
    run_graphs(3, 1);
}

/* Rows and columns of ranks: groups that overlap in one. */
TEST(random_graphs_on_4)
{
    run_graphs(4, 0.25);
}

/* Moves ------------------------------------------------------------------------------------------------ */

/* Up to three nodes to a place. Whether they may go there. */
static bool check_move(shoal_graph *graph, struct test_random *random)
{
    static shoal_node *nodes[FUZZ_MAX_IDS];
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

/* What shoal_graph_move_nodes allows changes no bits either. */
TEST(random_moves_compute_the_same)
{
    static struct fuzz_case test;
    struct fuzz_counts counts = {.n_graphs = 0};
    struct fuzz_report report = {.finding = FUZZ_NOTHING};
    struct fuzz_ranks ranks;
    size_t n_moved = 0;
    size_t n_refused = 0;
    size_t n_graphs = part_of(N_GRAPHS / 4);
    fuzz_ranks_begin(&ranks, 2, 20);
    for (uint64_t number = 1; number <= n_graphs && !test_has_failed(); number++) {
        struct test_random random = {.state = number};
        struct fuzz_result results[RANDOM_MAX_RANKS] = {{.status = SHOAL_OK}};
        CHECK(fuzz_case_begin(number, 2, &test, &counts, &report) &&
              fuzz_case_expect(&ranks, &test, &report));
        for (int i = 0; i < 40 && test.graph; i++) {
            *(check_move(test.graph, &random) ? &n_moved : &n_refused) += 1;
        }
        char *text = test.graph ? graph_text_print(test.graph) : NULL;
        char *texts[] = {text, text, NULL, NULL};
        if (!text || !fuzz_ranks_run(&ranks, texts, results) ||
            !fuzz_same_results(test.expected, results, 2, &report)) {
            test_failed(__FILE__, __LINE__, "graph %d: %s", (int)number, report.text);
        }
        free(text);
        fuzz_free_results(results);
        fuzz_case_end(&test);
    }
    fuzz_ranks_end(&ranks);
    CHECK(n_moved > 3 * n_graphs && n_refused > 3 * n_graphs);
}

/* Planted faults --------------------------------------------------------------------------------------- */

enum {
    N_FOUND = 12,    /* how often each fault must be found */
    MAX_TRIED = 2000 /* graphs; not all have a place for it */
};

static void plant(struct fuzz_ranks *ranks, const struct fuzz_fault *fault)
{
    static const char *const findings[] = {"nothing", "lint",   "outputs", "starts", "order", "waits",
                                           "flight",  "memory", "ranks",   "run",    "bits"};
    size_t counts[sizeof findings / sizeof findings[0]] = {0};
    size_t n_wished = 2 + part_of(N_FOUND - 2);
    size_t n_planted = 0;
    uint64_t number = 1;
    for (; number <= MAX_TRIED && n_planted - counts[FUZZ_NOTHING] < n_wished; number++) {
        int found = fuzz_plant_one(ranks, fault, number);
        if (found >= 0) {
            n_planted++;
            counts[found]++;
        }
    }
    printf("%s: planted in %zu of %d graphs; found:", fault->name, n_planted, (int)number - 1);
    for (size_t i = 0; i < sizeof findings / sizeof findings[0]; i++) {
        if (counts[i] > 0) {
            printf(" %s %zu", findings[i], counts[i]);
        }
    }
    printf("\n");
    /* Some change no bit where tensors are equal by chance, or where nobody looks at them. */
    size_t n_missed = counts[FUZZ_NOTHING];
    if (n_planted - n_missed < n_wished || n_missed > (fault->is_certain ? 0 : 4 + n_wished)) {
        test_failed(__FILE__, __LINE__, "%s: planted in %zu graphs, not found in %zu", fault->name, n_planted,
                    n_missed);
    }
}

static void plant_all(int n_ranks)
{
    struct fuzz_ranks ranks;
    fuzz_ranks_begin(&ranks, n_ranks, 10);
    for (size_t i = 0; i < sizeof fuzz_faults / sizeof fuzz_faults[0]; i++) {
        plant(&ranks, &fuzz_faults[i]);
    }
    fuzz_ranks_end(&ranks);
}

TEST(faults_are_found_on_2)
{
    plant_all(2);
}

TEST(faults_are_found_on_3)
{
    if (test_time_scale() > 1) {
        test_skip("two ranks are enough for sanitizers");
        return;
    }
    plant_all(3);
}
