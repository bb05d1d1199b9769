/* SPDX-License-Identifier: MIT */
/*
 * `shoal bench all_reduce ...`: times a collective between ranks that this program starts itself, as processes or as
 * threads. The measurement is in bench/measure/, which the programs for MPI and Gloo use too.
 */
#include "bench/calls.h"
#include "bench/ranks.h"
#include "bench/benches.h"
#include "common/tool.h"

#include "shoal/status.h"
#include "shoal/version.h"
#include "transport/algorithm.h"
#include "transport/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Arguments -------------------------------------------------------------------------------------------- */

struct arguments {
    struct bench_collective bench;
    bool is_threads;
};

static int print_usage(FILE *out, const char *op, int exit_status)
{
    fprintf(out,
            "usage: shoal bench %s [options]\n%s"
            "  --transport T      default SHOAL_TRANSPORT, or shm\n"
            "  --algorithm A      instead of the one the library picks (shoal info --explain %s)\n"
            "  --symmetric        buffers in symmetric memory instead of the heap\n"
            "  --window           all_gather only: into a window that all ranks share\n"
            "  --threads          ranks are threads instead of processes\n"
            "Every result is checked. docs/benchmarks.md explains the columns.\n",
            op, measure_usage, op);
    return exit_status;
}

/* Those of the default transport. */
static const char *algorithm_name(size_t index)
{
    const struct algorithm_table *table = transport_at(0)->algorithms;
    return index < (size_t)table->n_rows ? table->rows[index].name : NULL;
}

static const char *transport_name(size_t index)
{
    return transport_at(index) ? transport_at(index)->name : NULL;
}

static const char *dtype_name(size_t index)
{
    return measure_dtype_at(index) ? measure_dtype_at(index)->name : NULL;
}

/* Options whose value is one of a list of names. */
static const struct named_option {
    const char *option;
    const char *(*name_at)(size_t index); /* NULL past the last */
} named_options[] = {
    {"--algorithm", algorithm_name},
    {"--dtype", dtype_name},
    {"--transport", transport_name},
};

#define N_NAMED_OPTIONS (sizeof(named_options) / sizeof(named_options[0]))

/* "staged", or "all_reduce=staged,..." whose parts the library looks at. */
static bool is_algorithm(const char *name)
{
    for (size_t i = 0; algorithm_name(i); i++) {
        if (strcmp(algorithm_name(i), name) == 0) {
            return true;
        }
    }
    return strchr(name, '=');
}

/* How many words were taken; 0 or less when the first is not understood. */
static int parse_option(struct arguments *arguments, int argc, char **argv)
{
    struct bench_collective *bench = &arguments->bench;
    const struct transport *transport;
    if (strcmp(argv[0], "--threads") == 0) {
        arguments->is_threads = true;
        return 1;
    }
    if (strcmp(argv[0], "--symmetric") == 0 || strcmp(argv[0], "--window") == 0) {
        const char *buffers = argv[0] + strlen("--");
        bool is_first = strcmp(bench->buffers, "heap") == 0 || strcmp(bench->buffers, buffers) == 0;
        bool is_possible = strcmp(buffers, "symmetric") == 0 || bench->request.op == MEASURE_all_gather;
        bench->buffers = buffers;
        return is_first && is_possible ? 1 : -1;
    }
    if (strcmp(argv[0], "--transport") == 0 && argc > 1) {
        bench->transport = argv[1];
        return transport_find(argv[1], &transport) == SHOAL_OK ? 2 : -1;
    }
    if (strcmp(argv[0], "--algorithm") == 0 && argc > 1) {
        bench->algorithm = argv[1];
        return is_algorithm(argv[1]) ? 2 : -1;
    }
    return measure_parse(&bench->request, argc, argv);
}

/* What was wrong with the option at argv[0], and the names it could have had; otherwise the usage. TOOL_USAGE. */
static int refuse(const char *op, int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < N_NAMED_OPTIONS; i++) {
        if (strcmp(named_options[i].option, argv[0]) == 0) {
            fprintf(stderr, "shoal bench %s: %s: there is no '%s'; there are:", op, argv[0], argv[1]);
            for (size_t k = 0; named_options[i].name_at(k); k++) {
                fprintf(stderr, " %s", named_options[i].name_at(k));
            }
            fputc('\n', stderr);
            return TOOL_USAGE;
        }
    }
    bool has_value = argc > 1 && argv[1][0] != '-';
    fprintf(stderr, "shoal bench %s: bad argument: %s%s%s\n", op, argv[0], has_value ? " " : "",
            has_value ? argv[1] : "");
    return print_usage(stderr, op, TOOL_USAGE);
}

/* TOOL_DONE when the benchmark shall run; otherwise everything was said. */
static int parse(struct arguments *arguments, int argc, char **argv)
{
    for (int i = 1; i < argc;) {
        int n_words = parse_option(arguments, argc - i, argv + i);
        if (n_words <= 0) {
            return refuse(argv[0], argc - i, argv + i);
        }
        i += n_words;
    }
    struct bench_collective *bench = &arguments->bench;
    if (shoal_dtype_find(bench->request.dtype->name, &bench->dtype) != SHOAL_OK) {
        fprintf(stderr, "shoal bench %s: %s\n", argv[0], shoal_error_text());
        return TOOL_USAGE;
    }
    return TOOL_DONE;
}

/* "ring" is meant for this op; "op=ring,..." says itself what it is for. */
static bool set_algorithm(const struct bench_collective *bench)
{
    char text[256];
    const char *op =
        strcmp(bench->buffers, "window") == 0 ? "window_gather" : measure_ops[bench->request.op].name;
    int length = strchr(bench->algorithm, '=') ? snprintf(text, sizeof(text), "%s", bench->algorithm)
                                               : snprintf(text, sizeof(text), "%s=%s", op, bench->algorithm);
    return length < (int)sizeof(text) && setenv("SHOAL_ALGO", text, 1) == 0;
}

static void print_header(const struct arguments *arguments)
{
    const struct measure_request *request = &arguments->bench.request;
    measure_print_cpu(stdout);
    printf("# compiler  %s\n", TOOL_COMPILER);
    printf("# library   shoal %s, %d ranks as %s on %ld processors, not pinned\n", shoal_version(),
           request->n_ranks, arguments->is_threads ? "threads" : "processes", sysconf(_SC_NPROCESSORS_ONLN));
    printf("# buffers   %s, rewritten before every iteration, rotating through %zu bytes\n",
           arguments->bench.buffers, request->rotate_bytes);
    printf(
        "# times     of an iteration: the longest of any rank; median, 99th percentile, longest iteration\n");
    measure_print_header();
}

static bool run_rank(const void *context, struct measure_page *page, int rank)
{
    return bench_collective_rank(context, page, rank);
}

int bench_collective(int argc, char **argv)
{
    struct arguments arguments = {.bench = {.buffers = "heap"}};
    struct bench_collective *bench = &arguments.bench;
    measure_request_init(&bench->request);
    if (!measure_op_find(argv[0], &bench->request.op)) {
        return TOOL_USAGE; /* a row of benches.def that is none of bench/measure/ops.def */
    }
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        return print_usage(stdout, argv[0], TOOL_DONE);
    }
    int exit_status = parse(&arguments, argc, argv);
    if (exit_status != TOOL_DONE) {
        return exit_status;
    }
    if (bench->algorithm && !set_algorithm(bench)) {
        fprintf(stderr, "shoal bench %s: --algorithm is too long\n", argv[0]);
        return TOOL_USAGE;
    }
    snprintf(bench->key, sizeof(bench->key), "shoal bench %s %ld", argv[0], (long)getpid());
    struct measure_page *page = measure_page_map(&bench->request, NULL);
    if (!page) {
        perror("shoal bench: shared memory");
        return TOOL_FAILED;
    }
    if (!bench->request.is_json) {
        print_header(&arguments);
    }
    const struct bench_ranks ranks = {.n_ranks = bench->request.n_ranks,
                                      .is_threads = arguments.is_threads,
                                      .page = page,
                                      .run = run_rank,
                                      .context = bench};
    bool is_good = bench_ranks_run(&ranks);
    measure_page_unmap(page, &bench->request);
    return is_good ? TOOL_DONE : TOOL_FAILED;
}
