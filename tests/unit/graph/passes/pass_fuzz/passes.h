/* SPDX-License-Identifier: MIT */
/* One random graph: its passes, what is checked after each, and both graphs between ranks. */
#ifndef TESTS_UNIT_GRAPH_PASS_FUZZ_PASSES_H
#define TESTS_UNIT_GRAPH_PASS_FUZZ_PASSES_H

#include "checks.h"
#include "ranks.h"

enum {
    FUZZ_MAX_PASSES = 64, /* that there are */
    FUZZ_MAX_CHOSEN = 6
};

struct fuzz_choice {
    const char *names[FUZZ_MAX_CHOSEN];
    shoal_pass_options options[FUZZ_MAX_CHOSEN];
    size_t count;
};

enum {
    FUZZ_MAX_OPS = 512,
    FUZZ_MAX_DTYPES = 64
};

struct fuzz_counts {
    size_t ops[FUZZ_MAX_OPS]; /* calls of built-in ops, by index */
    size_t dtypes[FUZZ_MAX_DTYPES];
    size_t n_empty;                  /* values without elements */
    size_t changes[FUZZ_MAX_PASSES]; /* by pass: graphs that it changed */
    size_t n_graphs;
    size_t n_nodes;
    size_t n_starts;
    size_t n_passes;
    size_t n_changed; /* passes that made or erased nodes */
    size_t n_fewer;   /* graphs with fewer starts afterwards */
};

/* The built-in passes. */
static inline size_t fuzz_list_passes(const char *names[FUZZ_MAX_PASSES])
{
    size_t n_passes = 0;
    shoal_pass_definition pass = SHOAL_PASS_DEFINITION_INIT;
    while (n_passes < FUZZ_MAX_PASSES && shoal_pass_at(n_passes, &pass) == SHOAL_OK) {
        names[n_passes++] = pass.name;
    }
    return n_passes;
}

static inline void fuzz_choose(uint64_t number, struct fuzz_choice *choice)
{
    static const char *const pipeline[] = {"dedupe_waits", "fuse_ddp_communication",
                                           "bucket_fsdp_all_gathers", "bucket_fsdp_reduce_scatters",
                                           "simple_overlap"};
    static const char *const ddp_passes[] = {NULL, NULL, "fuse_ddp_with_coalesced_op,schedule_comm_wait",
                                             "schedule_comm_wait"};
    static const double bucket_sizes[] = {0, 25, -1, 0.00005, 0.0002};
    static const double comm_sizes[] = {0, 0, 0.00008, 0.0005};
    const char *names[FUZZ_MAX_PASSES];
    size_t n_names = fuzz_list_passes(names);
    struct test_random random = {.state = ~number};
    bool is_pipeline = test_random_below(&random, 5) == 0;
    choice->count = is_pipeline ? 5 : 1 + test_random_below(&random, FUZZ_MAX_CHOSEN);
    for (size_t i = 0; i < choice->count; i++) {
        shoal_pass_options *options = &choice->options[i];
        choice->names[i] = is_pipeline ? pipeline[i] : names[test_random_below(&random, n_names)];
        *options = (shoal_pass_options)SHOAL_PASS_OPTIONS_INIT;
        options->bucket_size_mb = bucket_sizes[test_random_below(&random, 5)];
        options->comm_bucket_mb = comm_sizes[test_random_below(&random, 4)];
        options->ddp_passes = ddp_passes[test_random_below(&random, 4)];
    }
}

/* As commands that read the graph's text and hand it on. The driver runs other passes where the options say so. */
static inline void fuzz_print_choice(const struct fuzz_choice *choice)
{
    for (size_t i = 0; i < choice->count; i++) {
        const shoal_pass_options *options = &choice->options[i];
        bool is_driver = strcmp(choice->names[i], "fuse_ddp_communication") == 0 && options->ddp_passes;
        printf("# %sshoal opt --passes=%s --bucket-mb=%.5f --comm-bucket-mb=%.5f -\n", i > 0 ? "| " : "",
               is_driver ? options->ddp_passes : choice->names[i], options->bucket_size_mb,
               options->comm_bucket_mb);
    }
}

/* What the generator has made, for those who ask whether it makes everything. */
static inline void fuzz_count_nodes(const shoal_graph *graph, struct fuzz_counts *counts)
{
    for (const shoal_node *node = graph->first; node; node = node->next) {
        if (node->op && node->op->index < FUZZ_MAX_OPS) {
            counts->ops[node->op->index]++;
        }
        for (size_t i = 0; i < node->n_values; i++) {
            counts->dtypes[(size_t)node->values[i]->dtype % FUZZ_MAX_DTYPES]++;
            counts->n_empty += node->values[i]->count == 0 ? 1 : 0;
        }
    }
}

/* Whether nodes are others, have other inputs, or stand in another order. Dead code that is gone is no change: every pass that
   ends with shoal_graph_remove_dead would change most graphs. */
static inline bool fuzz_has_changed(const shoal_graph *graph, const struct fuzz_facts *before)
{
    uint32_t last = 0;
    size_t n_live = 0;
    for (const shoal_node *node = graph->first; node; node = node->next) {
        if (node->id >= before->n_ids) {
            return true;
        }
        if (before->is_live[node->id]) {
            if (before->place[node->id] < last || fuzz_hash_inputs(node) != before->inputs[node->id]) {
                return true;
            }
            last = before->place[node->id];
            n_live++;
        }
    }
    return n_live != before->n_live;
}

static inline void fuzz_count_change(const char *pass, struct fuzz_counts *counts)
{
    const char *names[FUZZ_MAX_PASSES];
    size_t n_names = fuzz_list_passes(names);
    for (size_t i = 0; i < n_names; i++) {
        counts->changes[i] += strcmp(names[i], pass) == 0 ? 1 : 0;
    }
}

/* Runs the passes, and looks at the graph after each. */
static inline bool fuzz_run_passes(shoal_graph *graph, const struct fuzz_choice *choice,
                                   struct fuzz_facts *facts, struct fuzz_counts *counts,
                                   struct fuzz_report *report)
{
    for (size_t i = 0; i < choice->count; i++) {
        if (!fuzz_take_facts(graph, facts, report)) {
            return false;
        }
        shoal_pass_report done = SHOAL_PASS_REPORT_INIT;
        if (shoal_graph_run_passes(graph, &choice->names[i], 1, &choice->options[i], &done) != SHOAL_OK) {
            return fuzz_found(report, FUZZ_LINT, "%s", shoal_error_text());
        }
        counts->n_passes++;
        counts->n_changed += done.n_created + done.n_erased > 0 ? 1 : 0;
        bool is_dead = strcmp(choice->names[i], "remove_dead") == 0 && done.n_erased > 0;
        if (is_dead || fuzz_has_changed(graph, facts)) {
            fuzz_count_change(choice->names[i], counts);
        }
        if (!fuzz_check_pass(graph, facts, choice->names[i], report)) {
            return false;
        }
    }
    return true;
}

/* The same passes over a graph that was read from text. */
static inline char *fuzz_repeat(const char *text, const struct fuzz_choice *choice)
{
    shoal_graph *graph = NULL;
    char *after = NULL;
    bool is_ok = CHECK_OK(shoal_graph_parse(text, strlen(text), &graph));
    for (size_t i = 0; is_ok && i < choice->count; i++) {
        is_ok = CHECK_OK(shoal_graph_run_passes(graph, &choice->names[i], 1, &choice->options[i], NULL));
    }
    after = is_ok ? graph_text_print(graph) : NULL;
    shoal_graph_free(graph);
    return after;
}

static inline bool fuzz_same_results(const struct fuzz_result *before, const struct fuzz_result *after,
                                     int n_ranks, struct fuzz_report *report)
{
    for (int i = 0; i < n_ranks; i++) {
        if (after[i].status != SHOAL_OK) {
            report->status = after[i].status;
            return fuzz_found(report, FUZZ_RUN, "rank %d: %s", i, after[i].error);
        }
        if (before[i].given.length != after[i].given.length ||
            memcmp(before[i].given.bytes, after[i].given.bytes, before[i].given.length) != 0) {
            return fuzz_found(report, FUZZ_BITS, "rank %d computes something else", i);
        }
    }
    return true;
}

/* A graph, its text, and what ranks made of it. */
struct fuzz_case {
    uint64_t number;
    struct fuzz_choice choice;
    struct fuzz_facts before_last; /* pass */
    shoal_graph *graph;            /* after the passes */
    char *text;                    /* before */
    char *text_after;
    struct fuzz_result expected[RANDOM_MAX_RANKS];
};

static inline void fuzz_free_results(struct fuzz_result *results)
{
    for (int i = 0; i < RANDOM_MAX_RANKS; i++) {
        free(results[i].given.bytes);
        results[i].given = (struct graph_text){.bytes = NULL};
    }
}

static inline void fuzz_case_end(struct fuzz_case *test)
{
    shoal_graph_free(test->graph);
    free(test->text);
    free(test->text_after);
    fuzz_free_results(test->expected);
}

static inline size_t fuzz_count_starts(const shoal_graph *graph)
{
    size_t count = 0;
    for (const shoal_node *node = graph->first; node; node = node->next) {
        count += node_is_start(node) ? 1 : 0;
    }
    return count;
}

/* What the ranks give without the passes. */
static inline bool fuzz_case_expect(struct fuzz_ranks *ranks, struct fuzz_case *test,
                                    struct fuzz_report *report)
{
    char *texts[RANDOM_MAX_RANKS];
    for (int i = 0; i < ranks->n_ranks; i++) {
        texts[i] = test->text;
    }
    return fuzz_ranks_run(ranks, texts, test->expected)
               ? true
               : fuzz_found(report, FUZZ_RUN, "before any pass: %s", test->expected[0].error);
}

/* A graph with its passes run. */
static inline bool fuzz_case_begin(uint64_t number, int n_ranks, struct fuzz_case *test,
                                   struct fuzz_counts *counts, struct fuzz_report *report)
{
    *test = (struct fuzz_case){.number = number};
    fuzz_choose(number, &test->choice);
    test->graph = random_graph(number, n_ranks);
    test->text = test->graph ? graph_text_print(test->graph) : NULL;
    if (!test->text) {
        return fuzz_found(report, FUZZ_LINT, "it could not be made");
    }
    size_t n_starts = fuzz_count_starts(test->graph);
    counts->n_graphs++;
    counts->n_nodes += test->graph->n_nodes;
    counts->n_starts += n_starts;
    fuzz_count_nodes(test->graph, counts);
    if (!fuzz_run_passes(test->graph, &test->choice, &test->before_last, counts, report)) {
        return false;
    }
    counts->n_fewer += fuzz_count_starts(test->graph) < n_starts ? 1 : 0;
    test->text_after = graph_text_print(test->graph);
    return test->text_after != NULL;
}

static inline void fuzz_graph(struct fuzz_ranks *ranks, uint64_t number, struct fuzz_counts *counts)
{
    static struct fuzz_case test;
    struct fuzz_report report = {.finding = FUZZ_NOTHING};
    struct fuzz_result results[RANDOM_MAX_RANKS] = {{.status = SHOAL_OK}};
    bool is_ok = fuzz_case_begin(number, ranks->n_ranks, &test, counts, &report) &&
                 fuzz_case_expect(ranks, &test, &report);
    if (is_ok) {
        char *texts[RANDOM_MAX_RANKS];
        char *again = fuzz_repeat(test.text, &test.choice);
        if (!again || strcmp(again, test.text_after) != 0) {
            is_ok = fuzz_found(&report, FUZZ_RANKS, "two runs of the same passes differ");
        }
        for (int i = 0; i < ranks->n_ranks; i++) {
            texts[i] = i == 0 || !again ? test.text_after : again;
        }
        (void)fuzz_ranks_run(ranks, texts, results);
        is_ok = is_ok && fuzz_same_results(test.expected, results, ranks->n_ranks, &report);
        free(again);
    }
    if (!is_ok) {
        test_failed(__FILE__, __LINE__, "graph %llu on %d ranks: %s", (unsigned long long)number,
                    ranks->n_ranks, report.text);
        fuzz_print_choice(&test.choice);
        printf("%s\n", test.text ? test.text : "");
        char *now = test.graph ? graph_text_print(test.graph) : NULL;
        printf("# after the passes:\n%s\n", now ? now : "");
        free(now);
    }
    fuzz_free_results(results);
    fuzz_case_end(&test);
}

static inline void fuzz_print_counts(const struct fuzz_counts *counts, int n_ranks)
{
    printf(
        "%d ranks: %zu graphs of %zu nodes and %zu starts, %zu passes of which %zu made or erased nodes; %zu "
        "graphs with fewer starts afterwards\n",
        n_ranks, counts->n_graphs, counts->n_nodes, counts->n_starts, counts->n_passes, counts->n_changed,
        counts->n_fewer);
}

#endif
