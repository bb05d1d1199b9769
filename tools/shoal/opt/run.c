/* SPDX-License-Identifier: MIT */
/* `shoal opt`: from a file to a graph, through passes, to text, a plan or a picture, and to ranks that run it. */
#include "opt/opt.h"
#include "common/output.h"
#include "common/tool.h"

#include "base/mem.h"
#include "shoal/status.h"
#include "shoal_nn/nn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define READ_BYTES ((size_t)65536)
#define MAX_BYTES ((size_t)1 << 30) /* of a graph; what gives more may never end */
#define NN_PREFIX "nn."             /* of the ops of libshoal_nn */

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
        if (text->n_bytes > MAX_BYTES) {
            (void)tell(plan, "a graph of more than 1 GiB is not read");
            return false;
        }
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
    struct stat about;
    bool is_good = fstat(fileno(file), &about) == 0 && !S_ISCHR(about.st_mode) && !S_ISBLK(about.st_mode);
    if (!is_good) {
        (void)tell(plan, "is a device, which may never end");
    }
    is_good = is_good && read_all(plan, file, text);
    (void)fclose(file);
    return is_good;
}

static bool has_nn_ops(void)
{
    const shoal_op *op;
    for (size_t i = 0; (op = shoal_op_at(i)) != NULL; i++) {
        if (strncmp(shoal_op_name(op), NN_PREFIX, strlen(NN_PREFIX)) == 0) {
            return true;
        }
    }
    return false;
}

/* The ops of libshoal_nn, which is a part of this program, exist once a graph needs them: with them comes a BLAS. --load
   may have brought others of these names. */
static bool add_nn_ops(const struct opt_plan *plan, const struct opt_text *text)
{
    bool has_some = text->n_bytes > 0 && memmem(text->chars, text->n_bytes, NN_PREFIX, strlen(NN_PREFIX));
    return !has_some || has_nn_ops() || check(plan, shoal_nn_init());
}

/* NULL when everything was said. */
static shoal_graph *read_graph(const struct opt_plan *plan)
{
    struct opt_text text = {0};
    shoal_graph *graph = NULL;
    if (!read_text(plan, &text) || !add_nn_ops(plan, &text) ||
        !check(plan, shoal_graph_parse(text.chars, text.n_bytes, &graph))) {
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
    struct tool_output output;
    shoal_status status = tool_output_open(plan->dot_path, &output);
    if (status == SHOAL_OK) {
        status = shoal_graph_print_dot(graph, opt_put, output.stream);
        if (status == SHOAL_OK || status == SHOAL_ERR_CANCELLED) { /* cancelled by put: the file is why */
            status = tool_output_commit(&output);
        } else {
            tool_output_drop(&output);
        }
    }
    if (status != SHOAL_OK) {
        fprintf(stderr, "shoal opt: --dot: %s\n", shoal_error_text());
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

static bool estimate(const struct opt_plan *plan, const char *pass, const shoal_graph *graph,
                     struct opt_estimates *estimates)
{
    return !plan->has_stats || check(plan, opt_estimates_add(estimates, pass, graph));
}

static int run_passes(const struct opt_plan *plan, const shoal_pass_options *options, shoal_graph *graph,
                      struct opt_estimates *estimates)
{
    const struct opt_names *passes = &plan->passes;
    int exit_status = TOOL_DONE;
    /* Without passes it says whether the options are good. */
    bool is_good = passes->n_names > 0 || check(plan, shoal_graph_run_passes(graph, NULL, 0, options, NULL));
    for (size_t i = 0; i < passes->n_names && is_good && exit_status == TOOL_DONE; i++) {
        const char *name = passes->names[i];
        is_good = check(plan, shoal_graph_run_passes(graph, &name, 1, options, NULL)) &&
                  estimate(plan, name, graph, estimates);
        if (is_good && opt_names_has(&plan->print_after, name)) {
            printf("# after %s\n", name);
            exit_status = print_text(plan, graph);
        }
    }
    return is_good ? exit_status : TOOL_FAILED;
}

static int run_with_options(const struct opt_plan *plan, shoal_graph *graph, struct opt_estimates *estimates)
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
    options.machine = plan->machine;
    int exit_status = run_passes(plan, &options, graph, estimates);
    mem_free(disabled);
    return exit_status;
}

/* What is made of the graph on the way. */
struct result {
    struct opt_stats before;
    struct opt_stats after;
    struct opt_estimates estimates;
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
                                       .max_bytes = plan->max_bytes,
                                       .n_times = plan->n_times};
    return check(plan, opt_ranks_run(&result->ranks, graph, result->plan));
}

static int print(const struct opt_plan *plan, const shoal_graph *graph, const struct result *result)
{
    if (plan->has_stats) {
        opt_stats_print(&result->before, "before", stdout);
        opt_stats_print(&result->after, "after", stdout);
        opt_estimates_print(&result->estimates, stdout);
    }
    if (plan->n_times > 0) {
        double load = 0;
        (void)getloadavg(&load, 1);
        printf("# measured: step %.1f us, fastest %.1f us, processor %.1f us, of %d runs; load %.2f\n",
               result->ranks.step_us, result->ranks.fastest_us, result->ranks.processor_us, plan->n_times,
               load);
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
        (plan->has_stats && !check(plan, machine_load(plan->machine, &result->estimates.machine))) ||
        !estimate(plan, NULL, graph, &result->estimates) || !keep_text(plan, graph, &result->before_text)) {
        return TOOL_FAILED;
    }
    int exit_status = run_with_options(plan, graph, &result->estimates);
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
    opt_estimates_free(&result.estimates);
    mem_free(result.before_text.chars);
    mem_free(result.after_text.chars);
    shoal_graph_free(graph);
    return exit_status;
}
