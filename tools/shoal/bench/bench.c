/* SPDX-License-Identifier: MIT */
/* `shoal bench WHAT...`: finds each WHAT among the rows of benches.def and runs it. "all" runs every row. */
#include "common/commands.h"
#include "bench/benches.h"
#include "bench/launched.h"
#include "common/count_heap.h"
#include "common/tool.h"

#include "shoal/status.h"

#include <stdio.h>
#include <string.h>

static const struct tool_choice benches[] = {
#define BENCH(name_, function, options_, has_ranks, summary_) \
    {.name = #name_, .run = function, .summary = summary_, .options = options_},
#include "bench/benches.def"
#undef BENCH
    {.name = "all", .run = NULL, .summary = "all of these"},
};

#define N_BENCHES (sizeof benches / sizeof benches[0])

const struct tool_options command_bench_options = {
    .synopsis = "shoal bench WHAT... [options]", .choices = benches, .n_choices = N_BENCHES};

/* By the same order. */
static const bool have_ranks[] = {
#define BENCH(name, function, options, has_ranks, summary) has_ranks,
#include "bench/benches.def"
#undef BENCH
};

static void print_usage(FILE *out)
{
    fprintf(out, "usage: shoal bench WHAT... [options]\n\n");
    for (size_t i = 0; i < N_BENCHES; i++) {
        fprintf(out, "  %-15s %s\n", benches[i].name, benches[i].summary);
    }
    fputs(
        "\nshoal bench WHAT --help lists the options of one. Several are run one after the other with the "
        "same\n"
        "options. Under mpirun, srun, torchrun or shoal run the ranks are the processes that were started;\n"
        "otherwise the command starts its ranks itself.\n",
        out);
}

/* A benchmark without ranks runs once; all ranks check its options. */
static int run_one(size_t index, int argc, char **argv)
{
    const struct tool_place *place = bench_place();
    static char command[64];
    (void)snprintf(command, sizeof command, "bench %s", benches[index].name);
    tool_set_command(command);
    if (!have_ranks[index] && place->rank > 0 && !bench_is_checking()) {
        return TOOL_DONE;
    }
    if (!have_ranks[index] && place->n_ranks > 1 && !bench_is_checking()) {
        fprintf(stderr, "%s: has no ranks: runs in rank 0 of %d\n", tool_name(), place->n_ranks);
    }
    argv[0] = (char *)benches[index].name;
    int exit_status = benches[index].run(argc, argv);
    tool_set_command("bench");
    return exit_status;
}

/* Whether the word names a row, of `all` too. */
static bool is_named(const char *word, size_t index)
{
    return strcmp(word, benches[index].name) == 0 || (strcmp(word, "all") == 0 && benches[index].run);
}

/* Those that count allocations have to begin before the first one, which under a launcher is the control world's. */
static bool count_if_asked(int n_names, char **names)
{
    bool is_asked = false;
    for (int i = 0; i < n_names; i++) {
        is_asked = is_asked || strcmp(names[i], "all") == 0 || strcmp(names[i], "checkpoint") == 0 ||
                   strcmp(names[i], "compiled") == 0;
    }
    if (!is_asked || !bench_place()->is_launched || count_heap_begin() == SHOAL_OK) {
        return true;
    }
    fprintf(stderr, "%s: counting memory: %s\n", tool_name(), shoal_error_text());
    return false;
}

/* The words before the first option are names. Each benchmark gets the rest: argv[n_names] is replaced by its name. */
static int run_named(int n_names, int argc, char **argv)
{
    int worst = TOOL_DONE;
    for (int i = 0; i < n_names; i++) {
        const char *word = argv[i];
        for (size_t k = 0; k + 1 < N_BENCHES; k++) {
            if (is_named(word, k)) {
                char *before = argv[n_names - 1];
                int exit_status = run_one(k, argc - n_names + 1, argv + n_names - 1);
                argv[n_names - 1] = before;
                worst = exit_status > worst ? exit_status : worst;
                /* The others would be refused, too. */
                if (exit_status == TOOL_USAGE || (exit_status == TOOL_FAILED && bench_place()->is_launched)) {
                    return worst;
                }
            }
        }
    }
    return worst;
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

/* Nothing is measured before the options were found right for each benchmark. */
static int check_and_run(int n_names, int argc, char **argv)
{
    int exit_status = TOOL_DONE;
    for (int i = 0; i < n_names; i++) {
        bench_ask(argv[i]);
    }
    if (!asks_for_help(argc, argv)) {
        bench_set_checking(true);
        exit_status = run_named(n_names, argc, argv);
        bench_set_checking(false);
    }
    return exit_status == TOOL_DONE ? run_named(n_names, argc, argv) : exit_status;
}

int command_bench(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        if (tool_speaks()) {
            print_usage(argc < 2 ? stderr : stdout);
        }
        return argc < 2 ? TOOL_USAGE : TOOL_DONE;
    }
    int n_names = 0;
    while (n_names + 1 < argc && (n_names == 0 || argv[n_names + 1][0] != '-')) {
        const char *word = argv[++n_names];
        if (!tool_choice_find(benches, N_BENCHES, word)) {
            return tool_choice_unknown("benchmark", word, benches, N_BENCHES);
        }
    }
    if (!bench_launched_begin() || !count_if_asked(n_names, argv + 1)) {
        return TOOL_FAILED;
    }
    int exit_status = check_and_run(n_names, argc - 1, argv + 1);
    bool was_closed = bench_launched_end();
    return exit_status == TOOL_DONE && !was_closed ? TOOL_FAILED : exit_status;
}
