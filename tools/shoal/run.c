/* SPDX-License-Identifier: MIT */
/* `shoal run -n N [--] PROGRAM ARGUMENTS`: its command line. What happens then is in run_job.c. */
#include "tool.h"

#include "base/option_parse.h"
#include "run_job.h"

#include <stdio.h>
#include <string.h>

#define GRACE_DEFAULT_S 2.0
#define GRACE_MAX_S 86400.0

static int print_usage(FILE *out, int exit_status)
{
    fprintf(
        out,
        "usage: shoal run -n N [--grace SECONDS] [--no-label] [--] PROGRAM [ARGUMENT...]\n"
        "  -n N             ranks, 1 to %d (-np N is the same)\n"
        "  --grace SECONDS  between telling a rank to end and killing it; default %g\n"
        "  --no-label       lines as the ranks wrote them, without [RANK]\n"
        "Starts N ranks of a program on this machine. Each finds SHOAL_RANK, SHOAL_RANKS and SHOAL_KEY in\n"
        "its environment, which is all that shoal_world_open needs. Rank 0 reads the standard input.\n"
        "The first rank that fails ends the others, and its exit code is returned.\n",
        RUN_MAX_RANKS, GRACE_DEFAULT_S);
    return exit_status;
}

static bool parse_ranks(struct run_plan *plan, const char *value)
{
    int64_t n_ranks;
    if (!option_parse_int(value, &n_ranks) || n_ranks < 1 || n_ranks > RUN_MAX_RANKS) {
        fprintf(stderr, "shoal run: -n: '%s' is not a number of ranks from 1 to %d\n", value, RUN_MAX_RANKS);
        return false;
    }
    plan->n_ranks = (int)n_ranks;
    return true;
}

static bool parse_grace(struct run_plan *plan, const char *value)
{
    if (!option_parse_seconds(value, &plan->grace_s) || plan->grace_s < 0 || plan->grace_s > GRACE_MAX_S) {
        fprintf(stderr, "shoal run: --grace: '%s' is not a number of seconds from 0 to %g\n", value,
                GRACE_MAX_S);
        return false;
    }
    return true;
}

static const struct run_option {
    const char *name;
    bool (*parse)(struct run_plan *plan, const char *value);
} run_options[] = {
    {"-n", parse_ranks},
    {"-np", parse_ranks}, /* what mpirun calls it */
    {"--grace", parse_grace},
};

#define N_RUN_OPTIONS (sizeof run_options / sizeof run_options[0])

/* Only to find what a mistyped option is nearest to. */
static const struct tool_choice option_names[] = {
    {.name = "-n"}, {.name = "--grace"}, {.name = "--no-label"}, {.name = "--help"}};

/* Reads the option at argv[i], and its value; how many words these were, 0 after an error. */
static int parse_option(struct run_plan *plan, int argc, char **argv, int i)
{
    if (strcmp(argv[i], "--no-label") == 0) {
        plan->has_labels = false;
        return 1;
    }
    for (size_t k = 0; k < N_RUN_OPTIONS; k++) {
        if (strcmp(argv[i], run_options[k].name) != 0) {
            continue;
        }
        if (i + 1 >= argc) {
            fprintf(stderr, "shoal run: %s needs a value\n", argv[i]);
            return 0;
        }
        return run_options[k].parse(plan, argv[i + 1]) ? 2 : 0;
    }
    /* -n4 */
    if (strncmp(argv[i], "-n", 2) == 0) {
        return parse_ranks(plan, argv[i] + 2) ? 1 : 0;
    }
    (void)tool_choice_unknown("option of run", argv[i], option_names,
                              sizeof option_names / sizeof option_names[0]);
    return 0;
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

int command_run(int argc, char **argv)
{
    struct run_plan plan = {
        .command = "shoal run", .tells_codes = true, .has_labels = true, .grace_s = GRACE_DEFAULT_S};
    int i = 1;
    while (i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0) {
        if (is_help(argv[i])) {
            return print_usage(stdout, TOOL_DONE);
        }
        int n_words = parse_option(&plan, argc, argv, i);
        if (n_words == 0) {
            return TOOL_USAGE;
        }
        i += n_words;
    }
    i += i < argc && strcmp(argv[i], "--") == 0;
    if (plan.n_ranks == 0 || i >= argc) {
        fprintf(stderr, "shoal run: %s\n", plan.n_ranks == 0 ? "-n N is missing" : "the program is missing");
        return print_usage(stderr, TOOL_USAGE);
    }
    plan.program = argv + i;
    tool_report_options();
    return run_job(&plan);
}
