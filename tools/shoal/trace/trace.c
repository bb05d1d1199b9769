/* SPDX-License-Identifier: MIT */
/* `shoal trace FILE`: its command line. */
#include "trace/trace.h"
#include "common/commands.h"
#include "common/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print_usage(FILE *out, int exit_status)
{
    fputs("usage: shoal trace [options] FILE\n"
          "  --step N    summarizes this step only\n"
          "  --steps     prints a line for each step and rank, too\n"
          "  --svg OUT   draws a step (default: one of median length): ranks, lanes, compute, waits\n"
          "Summarizes a trace (SHOAL_TRACE=FILE, shoal_trace_start): how long steps take on each rank, how\n"
          "much of that is compute and how much exposed communication, by unit; and the slowest rank.\n"
          "Perfetto (ui.perfetto.dev) draws the whole file.\n",
          out);
    return exit_status;
}

struct trace_plan {
    const char *path;
    const char *svg;
    bool has_step;
    bool lists_steps;
    int64_t step;
};

static bool parse_step(const char *text, int64_t *step_out)
{
    char *end = NULL;
    long long number = strtoll(text, &end, 10);
    *step_out = number;
    return end != text && *end == '\0';
}

/* TOOL_DONE if it was understood. *at is moved over a value that is a word of its own. */
static int parse_word(struct trace_plan *plan, int argc, char **argv, int *at)
{
    const char *word = argv[*at];
    bool is_step = strcmp(word, "--step") == 0 || strncmp(word, "--step=", 7) == 0;
    bool is_svg = strcmp(word, "--svg") == 0 || strncmp(word, "--svg=", 6) == 0;
    if (strcmp(word, "--steps") == 0) {
        plan->lists_steps = true;
        return TOOL_DONE;
    }
    if (is_step || is_svg) {
        const char *value = strchr(word, '=') ? strchr(word, '=') + 1 : argv[*at + 1 < argc ? ++*at : argc];
        if (!value || !value[0]) {
            fprintf(stderr, "shoal trace: %s needs a value\n", word);
            return TOOL_USAGE;
        }
        plan->svg = is_svg ? value : plan->svg;
        plan->has_step = plan->has_step || is_step;
        if (is_step && !parse_step(value, &plan->step)) {
            fprintf(stderr, "shoal trace: --step: '%s' is not a number\n", value);
            return TOOL_USAGE;
        }
        return TOOL_DONE;
    }
    if (word[0] == '-' && word[1] != '\0') {
        static const struct tool_choice options[] = {
            {.name = "--step"}, {.name = "--steps"}, {.name = "--svg"}, {.name = "--help"}};
        return tool_choice_unknown("option", word, options, sizeof options / sizeof options[0]);
    }
    if (plan->path) {
        fprintf(stderr, "shoal trace: one file expected, but got '%s' and '%s'\n", plan->path, word);
        return TOOL_USAGE;
    }
    plan->path = word;
    return TOOL_DONE;
}

static bool has_step(const struct trace *trace, int64_t number)
{
    for (size_t i = 0; i < trace->n_steps; i++) {
        if (trace->steps[i].number == number) {
            return true;
        }
    }
    fprintf(stderr, "shoal trace: there is no step %lld; they go from %lld to %lld\n", (long long)number,
            trace->n_steps > 0 ? (long long)trace->steps[0].number : 0,
            trace->n_steps > 0 ? (long long)trace->steps[trace->n_steps - 1].number : 0);
    return false;
}

static bool report(const struct trace_plan *plan, struct trace *trace)
{
    if (!trace_read(plan->path, trace) || !trace_sum_up(trace) ||
        (plan->has_step && !has_step(trace, plan->step)) ||
        !trace_print_table(trace, plan->path, plan->has_step ? &plan->step : NULL)) {
        return false;
    }
    if (plan->lists_steps) {
        trace_print_steps(trace);
    }
    int64_t step = plan->has_step ? plan->step : trace_median_step(trace);
    return !plan->svg || trace_write_svg(trace, step, plan->svg);
}

int command_trace(int argc, char **argv)
{
    struct trace_plan plan = {0};
    struct trace trace = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return print_usage(stdout, TOOL_DONE);
        }
        int status = parse_word(&plan, argc, argv, &i);
        if (status != TOOL_DONE) {
            return status;
        }
    }
    if (!plan.path) {
        return print_usage(stderr, TOOL_USAGE);
    }
    bool is_good = report(&plan, &trace);
    trace_free(&trace);
    return is_good && fflush(stdout) == 0 ? TOOL_DONE : TOOL_FAILED;
}
