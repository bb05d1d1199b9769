/* SPDX-License-Identifier: MIT */
/*
 * `shoal bench compiled`: compares compiled training steps with eager ones. This file reads the arguments, starts the
 * ranks and combines their numbers; bench/compiled.h lists the other files.
 */
#include "bench/compiled.h"
#include "bench/launched.h"
#include "bench/ranks.h"
#include "bench/benches.h"
#include "common/options.h"
#include "common/tool.h"

#include "shoal/version.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    FEW_RANKS = 2, /* up to here the smaller network */
    FEW_ROUNDS = 40,
    MANY_ROUNDS = 60 /* of the smaller network: a step is short */
};

static const struct bench_fsdp_work small_work = {
    .n_units = 12, .width = 128, .n_tokens = 256, .n_blas_threads = 1};
static const struct bench_fsdp_work large_work = {
    .n_units = 8, .width = 512, .n_tokens = 256, .n_blas_threads = 2};

/* As arguments, and in the results. */
static const char *const wrappings[BENCH_COMPILED_N_WRAPPINGS] = {"fsdp", "ddp"};
static const char *const wrapping_names[BENCH_COMPILED_N_WRAPPINGS] = {"compiled_fsdp", "compiled_ddp"};

/* Of one wrapping. */
struct report {
    struct bench_compiled_times times;
    double cpu_us[BENCH_COMPILED_N_KINDS];     /* of a step, summed over ranks */
    double n_switches[BENCH_COMPILED_N_KINDS]; /* of a step, summed over ranks */
    double n_allocations;                      /* of a compiled step on one rank */
    size_t peak_bytes[BENCH_COMPILED_PLAIN];   /* eager and compiled, on the host */
    size_t unsharded_bytes[BENCH_COMPILED_PLAIN];
    uint64_t n_moved;
    uint64_t n_wrong;
};

/* Arguments -------------------------------------------------------------------------------------------- */

struct arguments {
    struct bench_compiled bench;
    struct bench_fsdp_work asked; /* numbers are 0 if they were not asked for */
    const char *wrapping;         /* NULL means each */
};

static const char *wrapping_at(size_t index)
{
    return index < BENCH_COMPILED_N_WRAPPINGS ? wrappings[index] : NULL;
}

#define AT(field) offsetof(struct arguments, field)

static const struct tool_option option_rows[] = {
    {"--wrapping", "W", TOOL_OPTION_NAME, AT(wrapping), .name_at = wrapping_at,
     .help = "only this; default: both"},
    {"--ranks", "N", TOOL_OPTION_INT, AT(bench.request.n_ranks), 1, MEASURE_MAX_RANKS, .alias = "-n",
     .help = "default 2; from 3 on, the default network is larger"},
    {"--units", "U", TOOL_OPTION_INT, AT(asked.n_units), 1, BENCH_FSDP_MAX_SIZE,
     .help = "of 12 parameters each; default 12, larger: 8"},
    {"--width", "W", TOOL_OPTION_INT, AT(asked.width), 1, BENCH_FSDP_MAX_SIZE,
     .help = "of the network: a unit has 12 W^2 + 12 W elements; default 128, larger: 512"},
    {"--tokens", "T", TOOL_OPTION_INT, AT(asked.n_tokens), 1, BENCH_FSDP_MAX_SIZE,
     .help = "rows of a rank's input; default 256"},
    {"--blas-threads", "B", TOOL_OPTION_INT, AT(asked.n_blas_threads), 1, BENCH_FSDP_MAX_SIZE,
     .help = "threads of a matrix product; default 1, larger: 2"},
    {"--iterations", "K", TOOL_OPTION_INT, AT(bench.n_rounds), 1, MEASURE_MAX_ITERATIONS,
     .help = "rounds, one step of each kind; default 60, larger: 40"},
    {"--json", NULL, TOOL_OPTION_FLAG, AT(bench.request.is_json), .help = "one object per line"},
};

const struct tool_options bench_compiled_options = {
    .about =
        "Measures a compiled step (forward and backward pass, no optimizer), compared with the eager one,\n"
        "without passes, and without communication: fully sharded, then replicated.\n",
    TOOL_OPTIONS_ROWS(option_rows),
    .notes = "Every result is checked. docs/benchmarks.md explains the columns.\n",
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
    if (bench->n_rounds == 0) {
        bench->n_rounds = bench->request.n_ranks <= FEW_RANKS ? MANY_ROUNDS : FEW_ROUNDS;
    }
    bench->request.iterations = bench->n_rounds * BENCH_COMPILED_N_KINDS;
}

/* Parts ------------------------------------------------------------------------------------------------ */

/* Ranks that run one part. What they found has to be ended by the caller, also if it returns false. */
static bool run_part(struct bench_compiled *bench, struct bench_ranks *ranks)
{
    ranks->bench = "compiled";
    ranks->request = &bench->request;
    ranks->context = bench;
    bench->ranks = ranks;
    return bench_ranks_begin(ranks) && bench_ranks_run(ranks) &&
           bench_ranks_gather(bench->found->ranks, sizeof(bench->found->ranks[0]));
}

static bool run_steps(struct bench_compiled *bench, struct report *report)
{
    int n_ranks = bench->request.n_ranks;
    memset(bench->found, 0, sizeof(*bench->found));
    struct bench_ranks ranks = {.run = bench_compiled_run_steps};
    bool is_good = run_part(bench, &ranks) && bench_compiled_sum_up(bench, ranks.page, &report->times);
    for (int rank = 0; is_good && rank < n_ranks; rank++) {
        report->n_wrong += *measure_page_wrong(ranks.page, rank);
        report->n_moved += bench->found->ranks[rank].n_moved;
        report->n_allocations +=
            (double)bench->found->ranks[rank].n_allocations / ((double)n_ranks * bench->n_rounds);
        for (int kind = 0; kind < BENCH_COMPILED_N_KINDS; kind++) {
            const struct bench_compiled_usage *usage = &bench->found->ranks[rank].usage[kind];
            report->cpu_us[kind] += (double)usage->cpu_ns * 1e-3 / bench->n_rounds;
            report->n_switches[kind] += (double)usage->n_switches / bench->n_rounds;
        }
    }
    bench_ranks_end(&ranks);
    return is_good;
}

/* Shared memory of all ranks of a host, each once, whoever has it. */
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
    struct bench_ranks ranks = {.run = bench_compiled_run_memory};
    bool is_good = run_part(bench, &ranks);
    bench_ranks_end(&ranks);
    for (int rank = 0; is_good && rank < bench->request.n_ranks; rank++) {
        if (!bench_launched_is_here(rank)) {
            continue;
        }
        add_segments(&all, found->ranks[rank].segments, found->ranks[rank].n_segments);
        add_segments(&windows, found->ranks[rank].windows, found->ranks[rank].n_windows);
        heap_bytes += found->ranks[rank].peak_bytes;
    }
    report->peak_bytes[kind] = heap_bytes + all.bytes;
    report->unsharded_bytes[kind] = windows.bytes;
    return is_good;
}

/* Printing --------------------------------------------------------------------------------------------- */

enum {
    MAX_CELLS = 40,
    MIN_CELL_WIDTH = 9
};

struct row {
    struct cell {
        const char *name;
        bool is_number;
        char text[64];
    } cells[MAX_CELLS];
    size_t n_cells;
};

static __attribute__((format(printf, 3, 4))) void add_number(struct row *row, const char *name,
                                                             const char *format, ...)
{
    struct cell *cell = &row->cells[row->n_cells++];
    va_list values;
    va_start(values, format);
    (void)vsnprintf(cell->text, sizeof(cell->text), format, values);
    va_end(values);
    cell->name = name;
    cell->is_number = true;
}

static void add_word(struct row *row, const char *name, const char *word)
{
    add_number(row, name, "%s", word);
    row->cells[row->n_cells - 1].is_number = false;
}

static void add_work(struct row *row, const struct bench_compiled *bench)
{
    const struct bench_fsdp_work *work = &bench->work;
    add_word(row, "bench", wrapping_names[bench->wrapping]);
    add_number(row, "processors", "%ld", sysconf(_SC_NPROCESSORS_ONLN));
    add_number(row, "ranks", "%d", bench->request.n_ranks);
    add_number(row, "params", "%zu", bench_compiled_count_params(work));
    add_number(row, "units", "%d", work->n_units);
    add_number(row, "tokens", "%d", work->n_tokens);
    add_number(row, "blas_threads", "%d", work->n_blas_threads);
    add_word(row, "core", bench->found->core);
}

static void add_times(struct row *row, const struct report *report)
{
    const struct bench_compiled_times *times = &report->times;
    add_number(row, "step_us_eager", "%.1f", times->step_us[BENCH_COMPILED_EAGER]);
    add_number(row, "step_us_compiled", "%.1f", times->step_us[BENCH_COMPILED_PASSES]);
    add_number(row, "step_us_plain", "%.1f", times->step_us[BENCH_COMPILED_PLAIN]);
    add_number(row, "step_us_none", "%.1f", times->step_us[BENCH_COMPILED_NONE]);
    add_number(row, "ratio", "%.4f", times->ratio);
    add_number(row, "exposed_us", "%.1f", times->exposed_us);
    add_number(row, "exposed_us_plain", "%.1f", times->exposed_us_plain);
    add_number(row, "exposed_ratio", "%.4f", times->exposed_ratio);
    add_number(row, "exposed_ratio_low", "%.4f", times->exposed_low);
    add_number(row, "exposed_ratio_high", "%.4f", times->exposed_high);
    add_number(row, "cpu_us_compiled", "%.1f", report->cpu_us[BENCH_COMPILED_PASSES]);
    add_number(row, "cpu_us_plain", "%.1f", report->cpu_us[BENCH_COMPILED_PLAIN]);
    add_number(row, "cpu_us_none", "%.1f", report->cpu_us[BENCH_COMPILED_NONE]);
    add_number(row, "switches_compiled", "%.1f", report->n_switches[BENCH_COMPILED_PASSES]);
    add_number(row, "switches_plain", "%.1f", report->n_switches[BENCH_COMPILED_PLAIN]);
    add_number(row, "switches_none", "%.1f", report->n_switches[BENCH_COMPILED_NONE]);
}

static void add_memory(struct row *row, const struct report *report)
{
    const size_t *peaks = report->peak_bytes;
    add_number(row, "peak_bytes_eager", "%zu", peaks[BENCH_COMPILED_EAGER]);
    add_number(row, "peak_bytes", "%zu", peaks[BENCH_COMPILED_PASSES]);
    add_number(row, "peak_ratio", "%.4f",
               (double)peaks[BENCH_COMPILED_PASSES] / (double)peaks[BENCH_COMPILED_EAGER]);
    add_number(row, "unsharded_bytes_host_eager", "%zu", report->unsharded_bytes[BENCH_COMPILED_EAGER]);
    add_number(row, "unsharded_bytes_host", "%zu", report->unsharded_bytes[BENCH_COMPILED_PASSES]);
    add_number(row, "allocations", "%.2f", report->n_allocations);
    add_number(row, "moved", "%" PRIu64, report->n_moved);
    add_number(row, "wrong", "%" PRIu64, report->n_wrong);
}

static void print_json(const struct row *row, const struct bench_compiled *bench)
{
    for (size_t i = 0; i < row->n_cells; i++) {
        const struct cell *cell = &row->cells[i];
        const char *quote = cell->is_number ? "" : "\"";
        printf("%s\"%s\": %s%s%s", i == 0 ? "{" : ", ", cell->name, quote, cell->text, quote);
    }
    printf(", \"iterations\": %d}\n", bench->n_rounds);
}

static void print_heading(const struct bench_compiled *bench)
{
    measure_print_cpu(stdout);
    printf("# compiler  %s\n", TOOL_COMPILER);
    printf("# library   shoal %s, %s, not pinned\n", shoal_version(),
           bench_ranks_text(&bench->request, false));
    printf("# times     medians over %d rounds; of a round: the longest of any rank\n", bench->n_rounds);
}

static int cell_width(const struct cell *cell)
{
    int width = (int)strlen(cell->name) + 1;
    return width > MIN_CELL_WIDTH ? width : MIN_CELL_WIDTH;
}

static void print_text(const struct row *row, const struct bench_compiled *bench)
{
    printf("# blas      %s, core %s, %d threads\n", bench->found->library, bench->found->core,
           bench->work.n_blas_threads);
    printf("#%-13s", row->cells[0].name);
    for (size_t i = 1; i < row->n_cells; i++) {
        printf(" %*s", cell_width(&row->cells[i]), row->cells[i].name);
    }
    printf("\n%-14s", row->cells[0].text);
    for (size_t i = 1; i < row->n_cells; i++) {
        printf(" %*s", cell_width(&row->cells[i]), row->cells[i].text);
    }
    printf("\n");
}

static bool run_wrapping(struct bench_compiled *bench, enum bench_compiled_wrapping wrapping)
{
    struct report report = {.n_wrong = 0};
    bench->wrapping = wrapping;
    if (!run_steps(bench, &report) || !run_memory(bench, BENCH_COMPILED_EAGER, &report) ||
        !run_memory(bench, BENCH_COMPILED_PASSES, &report)) {
        return false;
    }
    struct row row = {.n_cells = 0};
    add_work(&row, bench);
    add_times(&row, &report);
    add_memory(&row, &report);
    if (bench_prints()) {
        (bench->request.is_json ? print_json : print_text)(&row, bench);
    }
    return report.n_wrong == 0;
}

int bench_compiled(int argc, char **argv)
{
    struct arguments arguments = {.wrapping = NULL};
    int exit_status;
    measure_request_init(&arguments.bench.request);
    arguments.bench.request.n_ranks = 0;
    if (!tool_options_read(&bench_compiled_options, argc, argv, &arguments, NULL, &exit_status)) {
        return exit_status;
    }
    if (!bench_ranks_settle(&arguments.bench.request, FEW_RANKS, false)) {
        return TOOL_USAGE;
    }
    if (bench_is_checking()) {
        return TOOL_DONE;
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
    if (!arguments.bench.request.is_json && bench_prints()) {
        print_heading(&arguments.bench);
    }
    for (int i = 0; i < BENCH_COMPILED_N_WRAPPINGS && is_good; i++) {
        if (!arguments.wrapping || strcmp(arguments.wrapping, wrappings[i]) == 0) {
            is_good = run_wrapping(&arguments.bench, (enum bench_compiled_wrapping)i);
        }
    }
    (void)munmap(found, sizeof(struct bench_compiled_found));
    return is_good ? TOOL_DONE : TOOL_FAILED;
}
