/* SPDX-License-Identifier: MIT */
/* `shoal opt`: from a file to a graph, through passes, to text, a plan or a picture, and to ranks that run it. */
#include "opt/opt.h"
#include "common/tool.h"

#include "base/mem.h"
#include "shoal/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define READ_BYTES ((size_t)65536)

static const char *name_of(const struct opt_plan *plan)
{
    return strcmp(plan->path, "-") == 0 ? "standard input" : plan->path;
}

/* What the library said, or the system. TOOL_FAILED. */
static int tell(const struct opt_plan *plan, const char *text)
{
    fprintf(stderr, "shoal opt: %s: %s\n", name_of(plan), text);
    return TOOL_FAILED;
}

static bool check(const struct opt_plan *plan, shoal_status status)
{
    if (status != SHOAL_OK) {
        (void)tell(plan, shoal_error_text());
    }
    return status == SHOAL_OK;
}

int opt_put(void *context, const char *text, size_t bytes)
{
    return fwrite(text, 1, bytes, context) == bytes ? 0 : -1;
}

int opt_append(void *context, const char *text, size_t bytes)
{
    struct opt_text *whole = context;
    if (mem_grow((void **)&whole->chars, &whole->capacity, whole->n_bytes + bytes + 1, 1) != SHOAL_OK) {
        return -1;
    }
    memcpy(whole->chars + whole->n_bytes, text, bytes);
    whole->n_bytes += bytes;
    whole->chars[whole->n_bytes] = '\0';
    return 0;
}

/* Reading ---------------------------------------------------------------------------------------------- */

static bool read_all(const struct opt_plan *plan, FILE *file, struct opt_text *text)
{
    size_t n_read;
    do {
        if (!check(plan, mem_grow((void **)&text->chars, &text->capacity, text->n_bytes + READ_BYTES, 1))) {
            return false;
        }
        n_read = fread(text->chars + text->n_bytes, 1, READ_BYTES, file);
        text->n_bytes += n_read;
    } while (n_read > 0);
    if (ferror(file)) {
        (void)tell(plan, strerror(errno));
        return false;
    }
    return true;
}

static bool read_text(const struct opt_plan *plan, struct opt_text *text)
{
    if (strcmp(plan->path, "-") == 0) {
        return read_all(plan, stdin, text);
    }
    FILE *file = fopen(plan->path, "rb");
    if (!file) {
        (void)tell(plan, strerror(errno));
        return false;
    }
    bool is_good = read_all(plan, file, text);
    (void)fclose(file);
    return is_good;
}

/* NULL when everything was said. */
static shoal_graph *read_graph(const struct opt_plan *plan)
{
    struct opt_text text = {0};
    shoal_graph *graph = NULL;
    if (!read_text(plan, &text) || !check(plan, shoal_graph_parse(text.chars, text.n_bytes, &graph))) {
        graph = NULL;
    }
    mem_free(text.chars);
    return graph;
}

/* Printing --------------------------------------------------------------------------------------------- */

static int print_text(const struct opt_plan *plan, const shoal_graph *graph)
{
    return check(plan, shoal_graph_print(graph, opt_put, stdout)) ? TOOL_DONE : TOOL_FAILED;
}

static int print_picture(const struct opt_plan *plan, const shoal_graph *graph)
{
    if (!plan->dot_path) {
        return check(plan, shoal_graph_print_dot(graph, opt_put, stdout)) ? TOOL_DONE : TOOL_FAILED;
    }
    FILE *file = fopen(plan->dot_path, "wb");
    shoal_status status = file ? shoal_graph_print_dot(graph, opt_put, file) : SHOAL_ERR_CANCELLED;
    int code = errno;
    if (file && fclose(file) != 0 && status == SHOAL_OK) {
        code = errno;
        status = SHOAL_ERR_CANCELLED;
    }
    if (status != SHOAL_OK) {
        /* Cancelled: by put, or here, so the file is why. */
        fprintf(stderr, "shoal opt: --dot: %s: %s\n", plan->dot_path,
                status == SHOAL_ERR_CANCELLED ? strerror(code) : shoal_error_text());
    }
    return status == SHOAL_OK ? TOOL_DONE : TOOL_FAILED;
}

/* Running ---------------------------------------------------------------------------------------------- */

/* "a,b"; NULL for none and without memory. */
static char *join_names(const struct opt_names *names)
{
    size_t n_bytes = 1;
    for (size_t i = 0; i < names->n_names; i++) {
        n_bytes += strlen(names->names[i]) + 1;
    }
    char *text = names->n_names > 0 ? mem_alloc_zeroed(n_bytes, 1) : NULL;
    for (size_t i = 0, at = 0; text && i < names->n_names; i++) {
        at += (size_t)snprintf(text + at, n_bytes - at, "%s%s", i > 0 ? "," : "", names->names[i]);
    }
    return text;
}

/* Up to each pass after which the graph is shown, then the rest, perhaps none. */
static int run_passes(const struct opt_plan *plan, const shoal_pass_options *options, shoal_graph *graph)
{
    const struct opt_names *passes = &plan->passes;
    size_t begin = 0;
    int exit_status = TOOL_DONE;
    for (size_t i = 0; i < passes->n_names && exit_status == TOOL_DONE; i++) {
        if (!opt_names_has(&plan->print_after, passes->names[i])) {
            continue;
        }
        if (!check(plan, shoal_graph_run_passes(graph, (const char *const *)passes->names + begin,
                                                i + 1 - begin, options, NULL))) {
            return TOOL_FAILED;
        }
        printf("# after %s\n", passes->names[i]);
        exit_status = print_text(plan, graph);
        begin = i + 1;
    }
    if (exit_status != TOOL_DONE) {
        return exit_status;
    }
    const char *const *rest = passes->names ? (const char *const *)passes->names + begin : NULL;
    return check(plan, shoal_graph_run_passes(graph, rest, passes->n_names - begin, options, NULL))
               ? TOOL_DONE
               : TOOL_FAILED;
}

static int run_with_options(const struct opt_plan *plan, shoal_graph *graph)
{
    char *disabled = join_names(&plan->disabled);
    if (!disabled && plan->disabled.n_names > 0) {
        return tell(plan, shoal_error_text());
    }
    shoal_pass_options options = SHOAL_PASS_OPTIONS_INIT;
    options.bucket_size_mb = plan->bucket_size_mb;
    options.comm_bucket_mb = plan->comm_bucket_mb;
    options.disabled = disabled;
    options.dot_prefix = plan->dot_prefix;
    int exit_status = run_passes(plan, &options, graph);
    mem_free(disabled);
    return exit_status;
}

/* What is made of the graph on the way. */
struct result {
    struct opt_stats before;
    struct opt_stats after;
    struct opt_text before_text;
    struct opt_text after_text;
    shoal_plan *plan;
    struct opt_ranks ranks; /* that have run */
};

static bool count(const struct opt_plan *plan, const shoal_graph *graph, struct opt_stats *stats)
{
    return !plan->has_stats ||
           check(plan, opt_stats_count(graph, plan->is_lowered ? &plan->lowering : NULL, stats));
}

/* For ranks, which read it again. */
static bool keep_text(const struct opt_plan *plan, const shoal_graph *graph, struct opt_text *text)
{
    return !plan->is_run || check(plan, shoal_graph_print(graph, opt_append, text));
}

static bool run_ranks(const struct opt_plan *plan, const shoal_graph *graph, struct result *result)
{
    if (!plan->is_run) {
        return true;
    }
    result->ranks = (struct opt_ranks){.n_ranks = plan->n_ranks > 0 ? plan->n_ranks : opt_ranks_count(graph),
                                       .before = &result->before_text,
                                       .after = &result->after_text,
                                       .lowering = plan->is_lowered ? &plan->lowering : NULL,
                                       .max_bytes = plan->max_bytes};
    return check(plan, opt_ranks_run(&result->ranks, graph, result->plan));
}

static int print(const struct opt_plan *plan, const shoal_graph *graph, const struct result *result)
{
    if (plan->has_stats) {
        opt_stats_print(&result->before, "before", stdout);
        opt_stats_print(&result->after, "after", stdout);
    }
    if (plan->is_run) {
        printf("# run: ranks %d, outputs %zu, same bits\n", result->ranks.n_ranks, result->ranks.n_outputs);
    }
    if (plan->print_after.n_names > 0 && !plan->is_dot) {
        printf("# result\n");
    }
    if (plan->is_lowered) {
        return check(plan, shoal_plan_print(result->plan, opt_put, stdout)) ? TOOL_DONE : TOOL_FAILED;
    }
    return plan->is_dot ? print_picture(plan, graph) : print_text(plan, graph);
}

static int run_and_print(const struct opt_plan *plan, shoal_graph *graph, struct result *result)
{
    /* Written by hand, perhaps. Passes rely on what this checks. */
    if (!check(plan, shoal_graph_lint(graph)) || !count(plan, graph, &result->before) ||
        !keep_text(plan, graph, &result->before_text)) {
        return TOOL_FAILED;
    }
    int exit_status = run_with_options(plan, graph);
    if (exit_status != TOOL_DONE) {
        return exit_status;
    }
    if (!count(plan, graph, &result->after) || !keep_text(plan, graph, &result->after_text) ||
        (plan->is_lowered && !check(plan, opt_lower(graph, &plan->lowering, &result->plan))) ||
        !run_ranks(plan, graph, result)) {
        return TOOL_FAILED;
    }
    return print(plan, graph, result);
}

int opt_run(const struct opt_plan *plan)
{
    struct result result = {.plan = NULL};
    shoal_graph *graph = read_graph(plan);
    if (!graph) {
        return TOOL_FAILED;
    }
    int exit_status = run_and_print(plan, graph, &result);
    shoal_plan_free(result.plan);
    opt_stats_free(&result.before);
    opt_stats_free(&result.after);
    mem_free(result.before_text.chars);
    mem_free(result.after_text.chars);
    shoal_graph_free(graph);
    return exit_status;
}
