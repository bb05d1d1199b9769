/* SPDX-License-Identifier: MIT */
/* `shoal trace FILE`: its command line. */
#include "trace/trace.h"
#include "common/commands.h"
#include "common/paths.h"
#include "common/tool.h"

#include <math.h>
#include <stdio.h>

struct trace_plan {
    const char *path;
    const char *svg;
    bool has_step;
    bool lists_ops;
    bool lists_steps;
    int64_t step;
};

#define AT(field) offsetof(struct trace_plan, field)

static const struct tool_option rows[] = {
    {"FILE", "file", TOOL_OPTION_TEXT, AT(path), .missing = "the file is missing"},
    {"--ops", NULL, TOOL_OPTION_FLAG, AT(lists_ops), .help = "prints the time of a step by operation, too"},
    {"--step", "N", TOOL_OPTION_INT64, AT(step), -HUGE_VAL, HUGE_VAL, .help = "summarizes this step only"},
    {"--steps", NULL, TOOL_OPTION_FLAG, AT(lists_steps), .help = "prints a line for each step and rank, too"},
    {"--svg", "OUT", TOOL_OPTION_TEXT, AT(svg),
     .help = "draws a step (default: one of median length): ranks, lanes, compute, waits"},
};

const struct tool_options command_trace_options = {
    TOOL_OPTIONS_ROWS(rows),
    .notes =
        "Summarizes a trace (SHOAL_TRACE=FILE, shoal_trace_start): how long steps take on each rank, how\n"
        "much of that is compute and how much exposed communication, by unit; and the slowest rank.\n"
        "Perfetto (ui.perfetto.dev) draws the whole file.\n",
};

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
    if (plan->lists_ops && !trace_print_ops(trace, plan->has_step ? &plan->step : NULL)) {
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
    struct tool_given given;
    int exit_status;
    if (!tool_options_read(&command_trace_options, argc, argv, &plan, &given, &exit_status)) {
        return exit_status;
    }
    const struct tool_path paths[] = {{"--svg", plan.svg, true}, {"the trace", plan.path, false}};
    if (!tool_paths_check(paths, sizeof paths / sizeof paths[0])) {
        return TOOL_USAGE;
    }
    plan.has_step = tool_option_is_given(&command_trace_options, &given, "--step");
    bool is_good = report(&plan, &trace);
    trace_free(&trace);
    return is_good && fflush(stdout) == 0 ? TOOL_DONE : TOOL_FAILED;
}
