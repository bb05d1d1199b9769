/* SPDX-License-Identifier: MIT */
/*
 * `shoal bench compiled`: what shoal_compile makes of a training step. bench_compiled.h has the parts; this file has the arguments,
 * starts the ranks, and puts the numbers together.
 */
#include "bench_compiled.h"
#include "bench_options.h"
#include "bench_ranks.h"
#include "tool.h"

#include "shoal/version.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    DEFAULT_ROUNDS = 30,
    FEW_RANKS = 2 /* up to here the smaller network */
};

static const struct bench_fsdp_work small_work = {
    .n_units = 6, .width = 256, .n_tokens = 512, .n_blas_threads = 1};
static const struct bench_fsdp_work large_work = {
    .n_units = 8, .width = 512, .n_tokens = 256, .n_blas_threads = 2};

/* As arguments, and in the results. */
static const char *const wrappings[BENCH_COMPILED_N_WRAPPINGS] = {"fsdp", "ddp"};
static const char *const wrapping_names[BENCH_COMPILED_N_WRAPPINGS] = {"compiled_fsdp", "compiled_ddp"};

/* Of one wrapping. */
struct report {
    double step_us[BENCH_COMPILED_N_KINDS];
    double ratio;                            /* compiled to eager, of a round */
    double exposed_us;                       /* compiled less without communication, of a round */
    double exposed_us_plain;                 /* the same without passes */
    double n_allocations;                    /* of a compiled step on one rank */
    size_t peak_bytes[BENCH_COMPILED_PLAIN]; /* eager and compiled, on the host */
    size_t unsharded_bytes[BENCH_COMPILED_PLAIN];
    uint64_t n_moved;
    uint64_t n_wrong;
};

/* Arguments -------------------------------------------------------------------------------------------- */

struct arguments {
    struct bench_compiled bench;
    struct bench_fsdp_work asked; /* 0: not */
    const char *wrapping;         /* NULL: each */
};

static const char *wrapping_at(size_t index)
{
    return index < BENCH_COMPILED_N_WRAPPINGS ? wrappings[index] : NULL;
}

#define AT(field) offsetof(struct arguments, field)

static const struct bench_option option_rows[] = {
    {"--wrapping", "W", BENCH_OPTION_NAME, AT(wrapping), .name_at = wrapping_at, .help = "default: each of"},
    {"--ranks", "N", BENCH_OPTION_INT, AT(bench.request.n_ranks), 1, MEASURE_MAX_RANKS,
     .help = "default 2; from 3 on, the default network is larger"},
    {"--units", "U", BENCH_OPTION_INT, AT(asked.n_units), 1, BENCH_FSDP_MAX_SIZE,
     .help = "of 4 matrices each; default 6, larger: 8"},
    {"--width", "W", BENCH_OPTION_INT, AT(asked.width), 1, BENCH_FSDP_MAX_SIZE,
     .help = "of the network: a unit has 12 W^2 parameters; default 256, larger: 512"},
    {"--tokens", "T", BENCH_OPTION_INT, AT(asked.n_tokens), 1, BENCH_FSDP_MAX_SIZE,
     .help = "rows of a rank's input; default 512, larger: 256"},
    {"--blas-threads", "B", BENCH_OPTION_INT, AT(asked.n_blas_threads), 1, BENCH_FSDP_MAX_SIZE,
     .help = "threads of a matrix product; default 1, larger: 2"},
    {"--iterations", "K", BENCH_OPTION_INT, AT(bench.n_rounds), 1, MEASURE_MAX_ITERATIONS,
     .help = "rounds, one step of each kind; default 30"},
    {"--json", NULL, BENCH_OPTION_FLAG, AT(bench.request.is_json), .help = "one object per line"},
};

static const struct bench_options options = {
    .about = "a step (forward and backward, no optimizer) that was compiled, next to the eager one, the "
             "compiled one\n"
             "without passes, and the same without communication: fully sharded, then with replicas\n",
    .rows = option_rows,
    .n_rows = sizeof(option_rows) / sizeof(option_rows[0]),
    .notes = "Every result is checked. docs/performance.md explains the columns.\n",
};

static void choose_work(struct arguments *arguments)
{
    struct bench_compiled *bench = &arguments->bench;
    const struct bench_fsdp_work *asked = &arguments->asked;
    struct bench_fsdp_work *work = &bench->work;
    *work = bench->request.n_ranks <= FEW_RANKS ? small_work : large_work;
    work->n_units = asked->n_units > 0 ? asked->n_units : work->n_units;
    work->width = asked->width > 0 ? asked->width : work->width;
    work->n_tokens = asked->n_tokens > 0 ? asked->n_tokens : work->n_tokens;
    work->n_blas_threads = asked->n_blas_threads > 0 ? asked->n_blas_threads : work->n_blas_threads;
    bench->request.iterations = bench->n_rounds * BENCH_COMPILED_N_KINDS;
}

/* Numbers ---------------------------------------------------------------------------------------------- */

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, size_t n_values)
{
    qsort(values, n_values, sizeof(values[0]), compare_doubles);
    return (values[n_values / 2] + values[(n_values - 1) / 2]) * 0.5;
}

/* Of a step: the longest of any rank. */
static double longest_us(const struct bench_compiled *bench, struct measure_page *page,
                         enum bench_compiled_kind kind, int round)
{
    size_t at = (size_t)kind * (size_t)bench->n_rounds + (size_t)round;
    int64_t longest = 0;
    for (int rank = 0; rank < bench->request.n_ranks; rank++) {
        int64_t time_ns = measure_page_times(page, rank)[at];
        longest = time_ns > longest ? time_ns : longest;
    }
    return (double)longest * 1e-3;
}

/* Medians over rounds of a quotient, or a difference, of two kinds. `values` has room for all rounds. */
static double median_pair(const struct bench_compiled *bench, struct measure_page *page,
                          enum bench_compiled_kind left, enum bench_compiled_kind right, bool is_quotient,
                          double *values)
{
    for (int i = 0; i < bench->n_rounds; i++) {
        double a = longest_us(bench, page, left, i);
        double b = longest_us(bench, page, right, i);
        values[i] = is_quotient ? a / b : a - b;
    }
    return median(values, (size_t)bench->n_rounds);
}

static bool sum_up_times(const struct bench_compiled *bench, struct measure_page *page, struct report *report)
{
    double *values = calloc((size_t)bench->n_rounds, sizeof(values[0]));
    if (!values) {
        perror("shoal bench compiled");
        return false;
    }
    for (int kind = 0; kind < BENCH_COMPILED_N_KINDS; kind++) {
        for (int i = 0; i < bench->n_rounds; i++) {
            values[i] = longest_us(bench, page, (enum bench_compiled_kind)kind, i);
        }
        report->step_us[kind] = median(values, (size_t)bench->n_rounds);
    }
    report->ratio = median_pair(bench, page, BENCH_COMPILED_PASSES, BENCH_COMPILED_EAGER, true, values);
    report->exposed_us = median_pair(bench, page, BENCH_COMPILED_PASSES, BENCH_COMPILED_NONE, false, values);
    report->exposed_us_plain =
        median_pair(bench, page, BENCH_COMPILED_PLAIN, BENCH_COMPILED_NONE, false, values);
    free(values);
    return true;
}

/* Where nothing was exposed without passes, the run does not tell what they hide: 1, which misses the bar. */
static double exposed_ratio(const struct report *report)
{
    return report->exposed_us_plain > 0 ? report->exposed_us / report->exposed_us_plain : 1;
}

static double peak_ratio(const struct report *report)
{
    return (double)report->peak_bytes[BENCH_COMPILED_PASSES] /
           (double)report->peak_bytes[BENCH_COMPILED_EAGER];
}

/* Parts ------------------------------------------------------------------------------------------------ */

typedef bool (*part_function)(const void *bench, struct measure_page *page, int rank);

static struct measure_page *run_part(struct bench_compiled *bench, part_function run)
{
    static int number;
    (void)snprintf(bench->key, sizeof(bench->key), "shoal bench compiled %ld %d", (long)getpid(), number++);
    struct measure_page *page = measure_page_map(&bench->request, NULL);
    if (!page) {
        perror("shoal bench compiled: shared memory");
        return NULL;
    }
    const struct bench_ranks ranks = {
        .n_ranks = bench->request.n_ranks, .page = page, .run = run, .context = bench};
    if (!bench_ranks_run(&ranks)) {
        measure_page_unmap(page, &bench->request);
        return NULL;
    }
    return page;
}

static bool run_steps(struct bench_compiled *bench, struct report *report)
{
    int n_ranks = bench->request.n_ranks;
    memset(bench->found, 0, sizeof(*bench->found));
    struct measure_page *page = run_part(bench, bench_compiled_run_steps);
    bool is_good = page && sum_up_times(bench, page, report);
    for (int rank = 0; is_good && rank < n_ranks; rank++) {
        report->n_wrong += *measure_page_wrong(page, rank);
        report->n_moved += bench->found->ranks[rank].n_moved;
        report->n_allocations +=
            (double)bench->found->ranks[rank].n_allocations / ((double)n_ranks * bench->n_rounds);
    }
    if (page) {
        measure_page_unmap(page, &bench->request);
    }
    return is_good;
}

/* Shared memory of all ranks, each once, whoever has it. */
struct segments {
    struct bench_fsdp_segment seen[BENCH_COMPILED_MAX_SEGMENTS];
    size_t n_seen;
    size_t bytes;
};

static void add_segments(struct segments *segments, const struct bench_fsdp_segment *others, size_t n_others)
{
    for (size_t i = 0; i < n_others; i++) {
        size_t k = 0;
        while (k < segments->n_seen && segments->seen[k].inode != others[i].inode) {
            k++;
        }
        if (k == segments->n_seen && k < BENCH_COMPILED_MAX_SEGMENTS) {
            segments->seen[segments->n_seen++] = others[i];
            segments->bytes += others[i].bytes;
        }
    }
}

static bool run_memory(struct bench_compiled *bench, enum bench_compiled_kind kind, struct report *report)
{
    struct segments all = {.n_seen = 0};
    struct segments windows = {.n_seen = 0};
    const struct bench_compiled_found *found = bench->found;
    size_t heap_bytes = 0;
    bench->kind = kind;
    struct measure_page *page = run_part(bench, bench_compiled_run_memory);
    if (!page) {
        return false;
    }
    for (int rank = 0; rank < bench->request.n_ranks; rank++) {
        add_segments(&all, found->ranks[rank].segments, found->ranks[rank].n_segments);
        add_segments(&windows, found->ranks[rank].windows, found->ranks[rank].n_windows);
        heap_bytes += found->ranks[rank].peak_bytes;
    }
    report->peak_bytes[kind] = heap_bytes + all.bytes;
    report->unsharded_bytes[kind] = windows.bytes;
    measure_page_unmap(page, &bench->request);
    return true;
}

/* Printing --------------------------------------------------------------------------------------------- */

static void print_json(const struct bench_compiled *bench, const struct report *report)
{
    const struct bench_fsdp_work *work = &bench->work;
    printf("{\"bench\": \"%s\", \"processors\": %ld, \"ranks\": %d, \"params\": %zu, \"units\": %d, "
           "\"tokens\": %d, \"blas_threads\": %d, \"core\": \"%s\"",
           wrapping_names[bench->wrapping], sysconf(_SC_NPROCESSORS_ONLN), bench->request.n_ranks,
           bench_fsdp_count_params(work), work->n_units, work->n_tokens, work->n_blas_threads,
           bench->found->core);
    printf(
        ", \"step_us_eager\": %.1f, \"step_us_compiled\": %.1f, \"step_us_plain\": %.1f, \"step_us_none\": "
        "%.1f, \"ratio\": %.4f",
        report->step_us[BENCH_COMPILED_EAGER], report->step_us[BENCH_COMPILED_PASSES],
        report->step_us[BENCH_COMPILED_PLAIN], report->step_us[BENCH_COMPILED_NONE], report->ratio);
    printf(", \"exposed_us\": %.1f, \"exposed_us_plain\": %.1f, \"exposed_ratio\": %.4f", report->exposed_us,
           report->exposed_us_plain, exposed_ratio(report));
    printf(", \"peak_bytes_eager\": %zu, \"peak_bytes\": %zu, \"peak_ratio\": %.4f, "
           "\"unsharded_bytes_host_eager\": %zu, \"unsharded_bytes_host\": %zu",
           report->peak_bytes[BENCH_COMPILED_EAGER], report->peak_bytes[BENCH_COMPILED_PASSES],
           peak_ratio(report), report->unsharded_bytes[BENCH_COMPILED_EAGER],
           report->unsharded_bytes[BENCH_COMPILED_PASSES]);
    printf(", \"allocations\": %.2f, \"moved\": %" PRIu64 ", \"wrong\": %" PRIu64 ", \"iterations\": %d}\n",
           report->n_allocations, report->n_moved, report->n_wrong, bench->n_rounds);
}

static void print_header(const struct bench_compiled *bench)
{
    measure_print_cpu(stdout);
    printf("# compiler  %s\n", TOOL_COMPILER);
    printf("# library   shoal %s, ranks as processes, not pinned\n", shoal_version());
    printf("# times     medians over %d rounds; of a round: the longest of any rank\n", bench->n_rounds);
    printf("%-13s %10s %5s %9s %5s %6s %12s %-12s %13s %16s %13s %12s %6s %10s %16s %13s %16s %11s %10s %26s "
           "%20s %11s %5s %5s\n",
           "#bench", "processors", "ranks", "params", "units", "tokens", "blas_threads", "core",
           "step_us_eager", "step_us_compiled", "step_us_plain", "step_us_none", "ratio", "exposed_us",
           "exposed_us_plain", "exposed_ratio", "peak_bytes_eager", "peak_bytes", "peak_ratio",
           "unsharded_bytes_host_eager", "unsharded_bytes_host", "allocations", "moved", "wrong");
}

static void print_text(const struct bench_compiled *bench, const struct report *report)
{
    const struct bench_fsdp_work *work = &bench->work;
    printf("# blas      %s, core %s, %d threads\n", bench->found->library, bench->found->core,
           bench->work.n_blas_threads);
    printf("%-13s %10ld %5d %9zu %5d %6d %12d %-12s %13.1f %16.1f %13.1f %12.1f %6.4f %10.1f %16.1f %13.4f "
           "%16zu %11zu %10.4f %26zu %20zu %11.2f %5" PRIu64 " %5" PRIu64 "\n",
           wrapping_names[bench->wrapping], sysconf(_SC_NPROCESSORS_ONLN), bench->request.n_ranks,
           bench_fsdp_count_params(work), work->n_units, work->n_tokens, work->n_blas_threads,
           bench->found->core, report->step_us[BENCH_COMPILED_EAGER], report->step_us[BENCH_COMPILED_PASSES],
           report->step_us[BENCH_COMPILED_PLAIN], report->step_us[BENCH_COMPILED_NONE], report->ratio,
           report->exposed_us, report->exposed_us_plain, exposed_ratio(report),
           report->peak_bytes[BENCH_COMPILED_EAGER], report->peak_bytes[BENCH_COMPILED_PASSES],
           peak_ratio(report), report->unsharded_bytes[BENCH_COMPILED_EAGER],
           report->unsharded_bytes[BENCH_COMPILED_PASSES], report->n_allocations, report->n_moved,
           report->n_wrong);
}

static bool run_wrapping(struct bench_compiled *bench, enum bench_compiled_wrapping wrapping)
{
    struct report report = {.n_wrong = 0};
    bench->wrapping = wrapping;
    if (!run_steps(bench, &report) || !run_memory(bench, BENCH_COMPILED_EAGER, &report) ||
        !run_memory(bench, BENCH_COMPILED_PASSES, &report)) {
        return false;
    }
    (bench->request.is_json ? print_json : print_text)(bench, &report);
    return report.n_wrong == 0;
}

int bench_compiled(int argc, char **argv)
{
    struct arguments arguments = {.bench = {.n_rounds = DEFAULT_ROUNDS}};
    int exit_status;
    measure_request_init(&arguments.bench.request);
    if (!bench_options_read(&options, argc, argv, &arguments, &exit_status)) {
        return exit_status;
    }
    choose_work(&arguments);
    void *found = mmap(NULL, sizeof(struct bench_compiled_found), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) {
        perror("shoal bench compiled: shared memory");
        return TOOL_FAILED;
    }
    arguments.bench.found = found;
    bool is_good = true;
    if (!arguments.bench.request.is_json) {
        print_header(&arguments.bench);
    }
    for (int i = 0; i < BENCH_COMPILED_N_WRAPPINGS && is_good; i++) {
        if (!arguments.wrapping || strcmp(arguments.wrapping, wrappings[i]) == 0) {
            is_good = run_wrapping(&arguments.bench, (enum bench_compiled_wrapping)i);
        }
    }
    (void)munmap(found, sizeof(struct bench_compiled_found));
    return is_good ? TOOL_DONE : TOOL_FAILED;
}
