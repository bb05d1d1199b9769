/* SPDX-License-Identifier: MIT */
/* `shoal report LOG [TRACE]`: its command line, and writing the file. */
#include "report/report.h"
#include "report/page.h"
#include "common/commands.h"
#include "common/output.h"
#include "common/paths.h"
#include "common/tool.h"

#include "base/error.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writing ------------------------------------------------------------------------------------------------ */

static bool fail_page(const struct report_sources *sources)
{
    fprintf(stderr, "%s: %s\n", sources->command, shoal_error_text());
    return false;
}

/* What cannot be written is found first: it may be why the page is not whole. */
static bool write_page(const struct report_sources *sources, struct page *page, const char *path)
{
    struct tool_output output;
    if (tool_output_open(path, &output) != SHOAL_OK) {
        return fail_page(sources);
    }
    page->out = output.stream;
    bool is_whole = page_write(page);
    (void)fflush(output.stream);
    if (!is_whole && output.code == 0) {
        tool_output_drop(&output);
        fprintf(stderr, "%s: %s: there is no memory for the page\n", sources->command, path);
        return false;
    }
    return tool_output_commit(&output) == SHOAL_OK || fail_page(sources);
}

static bool has_step(const struct report_sources *sources, const struct trace *trace)
{
    for (size_t i = 0; i < trace->n_steps; i++) {
        if (trace->steps[i].number == sources->step) {
            return true;
        }
    }
    fprintf(stderr, "%s: the trace has no step %lld; they go from %lld to %lld\n", sources->command,
            (long long)sources->step, trace->n_steps > 0 ? (long long)trace->steps[0].number : 0,
            trace->n_steps > 0 ? (long long)trace->steps[trace->n_steps - 1].number : 0);
    return false;
}

/* The trace that the log names; NULL if it is not there, is empty until the run ends, or is of another run. */
static const char *find_trace(const struct log *log, struct trace *trace)
{
    struct stat about;
    const char *path = json_string_value(json_object_get(log->run, "trace"));
    if (!path || stat(path, &about) != 0 || about.st_size == 0 || !trace_read(path, trace) ||
        !log_has_run(log, trace->run)) {
        trace_free(trace);
        *trace = (struct trace){0};
        return NULL;
    }
    return path;
}

static bool is_of_log(const struct report_sources *sources, const struct log *log, const struct trace *trace)
{
    if (log_has_run(log, trace->run)) {
        return true;
    }
    const char *id = json_string_value(json_object_get(log->run, "id"));
    fprintf(stderr, "%s: %s is of run %s, and %s of run %s: both must be of one run\n", sources->command,
            sources->log, id ? id : "", sources->trace, trace->run);
    return false;
}

/* *path_out is NULL if there is no trace. */
static bool read_trace(const struct report_sources *sources, const struct log *log, struct trace *trace,
                       const char **path_out)
{
    *path_out = sources->trace;
    if (sources->trace && (!trace_read(sources->trace, trace) || !is_of_log(sources, log, trace))) {
        return false;
    }
    if (!sources->trace && sources->finds_trace) {
        *path_out = find_trace(log, trace);
    }
    if (!*path_out && sources->has_step) {
        fprintf(stderr, "%s: --step is about a trace, and the log names none that is there: give one\n",
                sources->command);
        return false;
    }
    return !*path_out || (trace_sum_up(trace) && (!sources->has_step || has_step(sources, trace)));
}

bool report_write(const struct report_sources *sources, const char *path)
{
    struct log log;
    struct trace trace = {0};
    const char *trace_path = NULL;
    bool is_good =
        log_read(sources->command, sources->log, &log) && read_trace(sources, &log, &trace, &trace_path);
    const struct tool_path paths[] = {{"the page", path, true}, {"the trace", trace_path, false}};
    is_good = is_good && tool_paths_check(paths, sizeof paths / sizeof paths[0]);
    if (is_good) {
        struct page page = {.log = &log,
                            .log_path = sources->log,
                            .trace = trace_path ? &trace : NULL,
                            .trace_path = trace_path};
        page.step = !page.trace ? 0 : sources->has_step ? sources->step : trace_median_step(&trace);
        is_good = write_page(sources, &page, path);
    }
    trace_free(&trace);
    log_free(&log);
    return is_good;
}

/* The command -------------------------------------------------------------------------------------------- */

struct report_plan {
    const char *log;
    const char *trace;
    const char *out;
    int64_t step;
};

#define AT(field) offsetof(struct report_plan, field)

static const struct tool_option rows[] = {
    {"LOG", "log", TOOL_OPTION_TEXT, AT(log), .missing = "the log is missing",
     .help = "what shoal train --log LOG wrote"},
    {"TRACE", "trace", TOOL_OPTION_TEXT, AT(trace), .missing = NULL,
     .help = "what --trace TRACE of the same run wrote; default: the one that the log names"},
    {"--out", "FILE", TOOL_OPTION_TEXT, AT(out), .alias = "-o",
     .help = "the page to write; default: run.html for run.jsonl, LOG.html for other names"},
    {"--step", "N", TOOL_OPTION_INT64, AT(step), -HUGE_VAL, HUGE_VAL,
     .help = "draws this step of the trace; default: one of median length"},
};

const struct tool_options command_report_options = {
    .about = "Writes a page (HTML) about a run of shoal train: losses, learning rate, norm, where the time\n"
             "of steps went, memory, ranks, and, from a trace, the timeline of a step and the units that\n"
             "compute waits for.\n",
    TOOL_OPTIONS_ROWS(rows),
    .notes = "The page is one file, which a browser opens without a network. shoal train --report FILE\n"
             "writes it at the end of a run.\n",
};

/* "run.html" of "run.jsonl". */
static bool name_page(const char *log, char *path, size_t bytes)
{
    size_t length = strlen(log);
    size_t n_kept = length > 6 && strcmp(log + length - 6, ".jsonl") == 0 ? length - 6 : length;
    return snprintf(path, bytes, "%.*s.html", (int)n_kept, log) < (int)bytes;
}

int command_report(int argc, char **argv)
{
    struct report_plan plan = {0};
    struct tool_given given;
    char path[PATH_MAX];
    int exit_status;
    if (!tool_options_read(&command_report_options, argc, argv, &plan, &given, &exit_status)) {
        return exit_status;
    }
    struct report_sources sources = {.command = "shoal report",
                                     .log = plan.log,
                                     .trace = plan.trace,
                                     .finds_trace = true,
                                     .step = plan.step};
    sources.has_step = tool_option_is_given(&command_report_options, &given, "--step");
    if (!plan.out && !name_page(plan.log, path, sizeof path)) {
        fprintf(stderr, "shoal report: the name of the log is too long\n");
        return TOOL_FAILED;
    }
    const char *out = plan.out ? plan.out : path;
    const struct tool_path paths[] = {{plan.out ? "--out" : "the page", out, true},
                                      {"the log", plan.log, false},
                                      {"the trace", plan.trace, false}};
    if (!tool_paths_check(paths, sizeof paths / sizeof paths[0])) {
        return TOOL_USAGE;
    }
    if (!report_write(&sources, out)) {
        return TOOL_FAILED;
    }
    printf("%s\n", out);
    return fflush(stdout) == 0 ? TOOL_DONE : TOOL_FAILED;
}
