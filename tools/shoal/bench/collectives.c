/* SPDX-License-Identifier: MIT */
/*
 * `shoal bench all_reduce ...`: times a collective between ranks that this program starts itself, as processes or as
 * threads, or between those of a launcher. The measurement is in bench/measure/, which the programs for MPI and Gloo use
 * too.
 */
#include "bench/calls.h"
#include "bench/ranks.h"
#include "bench/benches.h"
#include "bench/launched.h"
#include "common/options.h"
#include "common/tool.h"

#include "shoal/status.h"
#include "shoal/version.h"
#include "transport/algorithm.h"
#include "transport/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    DEFAULT_RANKS = 2,
    MAX_ALGORITHMS = 32,
    MAX_US = 10 * 1000 * 1000
};

/* Arguments -------------------------------------------------------------------------------------------- */

struct arguments {
    struct bench_collective bench;
    const char *dtype; /* "all", or the name of one */
    const char *redop;
    bool is_symmetric;
    bool is_window;
};

/* Those of the default transport. */
static const char *algorithm_at(size_t index)
{
    const struct algorithm_table *table = transport_at(0)->algorithms;
    return index < (size_t)table->n_rows ? table->rows[index].name : NULL;
}

static const char *dtype_at(size_t index)
{
    const struct measure_dtype *dtype = index > 0 ? measure_dtype_at(index - 1) : NULL;
    return index == 0 ? "all" : dtype ? dtype->name : NULL;
}

static const char *redop_at(size_t index)
{
    return index < MEASURE_N_REDOPS ? measure_redops[index].name : NULL;
}

static int take_sizes(void *context, const char *text)
{
    struct arguments *arguments = context;
    if (!measure_read_sizes(&arguments->bench.request, text)) {
        return tool_refuse(
            "--sizes: '%s' is not a size, as 64K, or a smaller and a larger one and a factor of at least 2, "
            "as 1K:64M:4",
            text);
    }
    return TOOL_DONE;
}

/* The transport is found, too, by names that only ranks can load: what an MPI brings. */
static int take_transport(void *context, const char *text)
{
    struct arguments *arguments = context;
    arguments->bench.transport = text;
    return tool_is_transport(text) ? TOOL_DONE : TOOL_USAGE;
}

/* "staged", or "all_reduce=staged,..." whose parts the library looks at. */
static int take_algorithm(void *context, const char *text)
{
    struct arguments *arguments = context;
    struct tool_choice choices[MAX_ALGORITHMS] = {{0}};
    size_t n_choices = 0;
    bool is_known = strchr(text, '=');
    for (; n_choices < MAX_ALGORITHMS && algorithm_at(n_choices); n_choices++) {
        choices[n_choices].name = algorithm_at(n_choices);
        is_known = is_known || strcmp(choices[n_choices].name, text) == 0;
    }
    arguments->bench.algorithm = text;
    return is_known ? TOOL_DONE : tool_choice_unknown("algorithm", text, choices, n_choices);
}

#define AT(field) offsetof(struct arguments, field)

static const struct tool_option option_rows[] = {
    {"--ranks", "N", TOOL_OPTION_INT, AT(bench.request.n_ranks), 1, MEASURE_MAX_RANKS, .alias = "-n",
     .help = "ranks to start; default 2; not under a launcher"},
    {"--sizes", "A[:B[:F]]", TOOL_OPTION_OTHER, 0, .alias = "--bytes", .take = take_sizes,
     .help = "bytes of the full buffer on one rank, from A to B by factor F; default 1K:64M:4"},
    {"--dtype", "T", TOOL_OPTION_NAME, AT(dtype), .name_at = dtype_at, .standard = "f32",
     .help = "of elements; all: one after the other"},
    {"--redop", "R", TOOL_OPTION_NAME, AT(redop), .name_at = redop_at, .standard = "sum",
     .help = "of reductions"},
    {"--root", "R", TOOL_OPTION_INT, AT(bench.request.root), 0, MEASURE_MAX_RANKS - 1,
     .help = "the rank from which a broadcast goes out; default 0"},
    {"--in-place", NULL, TOOL_OPTION_FLAG, AT(bench.request.has_in_place),
     .help = "measures calls in place, too, where the collective has them"},
    {"--transport", "T", TOOL_OPTION_OTHER, 0, .take = take_transport, .name_at = tool_transport_at,
     .help = "default SHOAL_TRANSPORT, or shm"},
    {"--algorithm", "A", TOOL_OPTION_OTHER, 0, .take = take_algorithm, .name_at = algorithm_at,
     .help = "instead of the one the library picks (shoal info --explain OP)"},
    {"--symmetric", NULL, TOOL_OPTION_FLAG, AT(is_symmetric),
     .help = "buffers in symmetric memory instead of the heap"},
    {"--window", NULL, TOOL_OPTION_FLAG, AT(is_window),
     .help = "all_gather only: into a window that all ranks share"},
    {"--rotate", "BYTES", TOOL_OPTION_BYTES, AT(bench.request.rotate_bytes), 0, (double)((int64_t)1 << 40),
     .help = "buffers cycle through that much memory; default 0: one buffer for all iterations"},
    {"--iterations", "K", TOOL_OPTION_INT, AT(bench.request.iterations), 1, MEASURE_MAX_ITERATIONS,
     .help = "default: by size, 2000 to 20"},
    {"--warmup", "K", TOOL_OPTION_INT, AT(bench.request.warmups), 0, MEASURE_MAX_ITERATIONS,
     .help = "iterations before the clock counts; default, and least for the first row: by size, 100 to 5"},
    {"--back-to-back", NULL, TOOL_OPTION_FLAG, AT(bench.request.is_back_to_back),
     .help = "ranks do not meet before a call"},
    {"--late", "US", TOOL_OPTION_INT64, AT(bench.request.late_us), 0, MAX_US,
     .help = "rank 0 calls so many microseconds after the others; default 0"},
    {"--slow", "US", TOOL_OPTION_INT64, AT(bench.request.slow_us), 1, MAX_US,
     .help = "longer iterations are slow; default 4"},
    {"--threads", NULL, TOOL_OPTION_FLAG, AT(bench.is_threads),
     .help = "ranks are threads instead of processes"},
    {"--json", NULL, TOOL_OPTION_FLAG, AT(bench.request.is_json), .help = "one object per line"},
};

const struct tool_options bench_collective_options = {
    TOOL_OPTIONS_ROWS(option_rows),
    .notes = "Every result is checked, and so are the bytes around the buffers. docs/benchmarks.md explains "
             "the columns.\n",
};

/* What an option is about ------------------------------------------------------------------------------ */

static bool has_root(enum measure_op op)
{
    return measure_ops[op].has_root;
}

static bool reduces(enum measure_op op)
{
    return measure_ops[op].reduces;
}

static bool can_be_in_place(enum measure_op op)
{
    return measure_ops[op].in_place != MEASURE_NEVER;
}

static bool has_buffers(enum measure_op op)
{
    return op != MEASURE_barrier;
}

/* Options that not every collective heeds. */
static const struct use {
    const char *option;
    bool (*heeds)(enum measure_op op);
} uses[] = {
    {"--sizes", has_buffers},  {"--dtype", has_buffers},        {"--redop", reduces},
    {"--root", has_root},      {"--in-place", can_be_in_place}, {"--symmetric", has_buffers},
    {"--rotate", has_buffers},
};

/* "all_reduce and reduce_scatter": the collectives that heed it. Returns how many they are. */
static size_t name_heeding(const struct use *use, char *names, size_t names_bytes)
{
    const char *found[MEASURE_N_OPS];
    size_t n_found = 0;
    size_t length = 0;
    for (int op = 0; op < MEASURE_N_OPS; op++) {
        if (use->heeds((enum measure_op)op)) {
            found[n_found++] = measure_ops[op].name;
        }
    }
    names[0] = '\0';
    for (size_t i = 0; i < n_found && length < names_bytes; i++) {
        const char *before = i == 0 ? "" : i + 1 == n_found ? " and " : ", ";
        length += (size_t)snprintf(names + length, names_bytes - length, "%s%s", before, found[i]);
    }
    return n_found;
}

/* TOOL_DONE if each option that was given is heeded by a collective that is to be measured. */
static int check_uses(const struct tool_given *given)
{
    char names[128];
    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++) {
        bool is_heeded = !tool_option_is_given(&bench_collective_options, given, uses[i].option);
        for (int op = 0; op < MEASURE_N_OPS; op++) {
            is_heeded =
                is_heeded || (uses[i].heeds((enum measure_op)op) && bench_is_asked(measure_ops[op].name));
        }
        if (!is_heeded) {
            size_t n_names = name_heeding(&uses[i], names, sizeof names);
            return tool_refuse("%s is about %s, which %s not to be measured", uses[i].option, names,
                               n_names > 1 ? "are" : "is");
        }
    }
    return TOOL_DONE;
}

/* TOOL_DONE when the benchmark shall run; otherwise everything was said. */
static int settle(struct arguments *arguments, const struct tool_given *given)
{
    struct measure_request *request = &arguments->bench.request;
    if (check_uses(given) != TOOL_DONE) {
        return TOOL_USAGE;
    }
    if (arguments->is_symmetric && arguments->is_window) {
        return tool_refuse("--symmetric and --window are two kinds of buffers: give one");
    }
    if (arguments->is_window && request->op != MEASURE_all_gather) {
        return tool_refuse("--window is about all_gather");
    }
    arguments->bench.buffers = arguments->is_symmetric ? "symmetric"
                               : arguments->is_window  ? "window"
                                                       : "heap";
    request->dtype = measure_dtype_find(arguments->dtype);
    for (int redop = 0; redop < MEASURE_N_REDOPS; redop++) {
        bool is_asked = strcmp(measure_redops[redop].name, arguments->redop) == 0;
        request->redop = is_asked ? (enum measure_redop)redop : request->redop;
    }
    if (!bench_ranks_settle(request, DEFAULT_RANKS, arguments->bench.is_threads)) {
        return TOOL_USAGE;
    }
    if (!tool_place_has_transport(bench_place(), arguments->bench.transport)) {
        return TOOL_USAGE;
    }
    const char *misfit = measure_misfit(request);
    return misfit ? tool_refuse("%s", misfit) : TOOL_DONE;
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

/* When ranks are ready: what cannot begin prints no table. */
static void print_header(const struct bench_collective *bench)
{
    const struct measure_request *request = &bench->request;
    if (request->is_json || bench->has_header) {
        return;
    }
    measure_print_cpu(stdout);
    printf("# compiler  %s\n", TOOL_COMPILER);
    printf("# library   shoal %s, %s on %ld processors, not pinned\n", shoal_version(),
           bench_ranks_text(request, bench->is_threads), sysconf(_SC_NPROCESSORS_ONLN));
    printf("# buffers   %s, rewritten before every iteration, rotating through %zu bytes\n", bench->buffers,
           request->rotate_bytes);
    printf(
        "# times     of an iteration: the longest of any rank; median, 99th percentile, longest iteration\n");
    measure_print_header(request);
    (void)fflush(stdout); /* the first row may take long */
}

static bool run_rank(const void *context, struct measure_page *page, int rank)
{
    return bench_collective_rank(context, page, rank);
}

static bool run(struct arguments *arguments)
{
    static bool has_header; /* collectives of one command share a table */
    struct bench_collective *bench = &arguments->bench;
    struct bench_ranks ranks = {.bench = measure_ops[bench->request.op].name,
                                .request = &bench->request,
                                .is_threads = bench->is_threads,
                                .transport = bench->transport,
                                .run = run_rank,
                                .context = bench};
    bench->ranks = &ranks;
    bench->begin = print_header;
    bench->has_header = has_header;
    if (!bench_ranks_begin(&ranks)) {
        return false;
    }
    bool is_good = bench_ranks_run(&ranks);
    has_header = has_header || measure_page_has_begun(ranks.page);
    bench_ranks_end(&ranks);
    return is_good;
}

int bench_collective(int argc, char **argv)
{
    struct arguments arguments = {.dtype = "f32"};
    struct bench_collective *bench = &arguments.bench;
    struct tool_given given;
    int exit_status;
    measure_request_init(&bench->request);
    bench->request.n_ranks = 0;
    if (!measure_op_find(argv[0], &bench->request.op)) {
        return TOOL_USAGE; /* a row of benches.def that is none of bench/measure/ops.def */
    }
    if (!tool_options_read(&bench_collective_options, argc, argv, &arguments, &given, &exit_status)) {
        return exit_status;
    }
    exit_status = settle(&arguments, &given);
    if (exit_status != TOOL_DONE || bench_is_checking()) {
        return exit_status;
    }
    if (bench->algorithm && !set_algorithm(bench)) {
        return tool_refuse("--algorithm is too long");
    }
    return run(&arguments) ? TOOL_DONE : TOOL_FAILED;
}
