/* SPDX-License-Identifier: MIT */
/* `shoal bench checkpoint`: arguments, the directory, and the report. See bench/checkpoint.h. */
#include "bench/checkpoint.h"
#include "bench/launched.h"
#include "bench/ranks.h"
#include "bench/benches.h"
#include "common/options.h"
#include "common/tool.h"

#include "shoal/version.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    DEFAULT_RANKS = 2,
    DEFAULT_ROUNDS = 5,
    DEFAULT_BYTES = 256 << 20,
    STACK_ROW_BYTES = BENCH_CHECKPOINT_TENSORS * BENCH_CHECKPOINT_ROW_BYTES
};

#define MIB 1048576.0

struct report {
    double ms[BENCH_CHECKPOINT_N_TIMES]; /* medians over rounds */
    double save_ratio;
    double load_ratio;
    double background_ratio;
    double save_mib;
    double load_mib;
    uint64_t n_wrong;
};

/* Arguments -------------------------------------------------------------------------------------------- */

struct arguments {
    struct bench_checkpoint bench;
    const char *parent; /* of the directory; NULL if it is not said */
    const char *format; /* NULL means pieces */
};

/* By the values of shoal_checkpoint_format. */
static const char *const format_names[] = {"pieces", "whole"};

static const char *format_at(size_t index)
{
    return index < sizeof(format_names) / sizeof(format_names[0]) ? format_names[index] : NULL;
}

#define AT(field) offsetof(struct arguments, field)

static const struct tool_option option_rows[] = {
    {"--ranks", "N", TOOL_OPTION_INT, AT(bench.request.n_ranks), 1, MEASURE_MAX_RANKS, .alias = "-n",
     .help = "default 2"},
    {"--bytes", "B", TOOL_OPTION_BYTES, AT(bench.bytes), STACK_ROW_BYTES, (double)((int64_t)1 << 40),
     .help = "of all tensors; default 256M, at least 16K, of which it is made a multiple"},
    {"--directory", "D", TOOL_OPTION_TEXT, AT(parent),
     .help = "files are in a new one within it, which is removed; default $TMPDIR, or ."},
    {"--format", "F", TOOL_OPTION_NAME, AT(format), .name_at = format_at,
     .help = "of checkpoints; default pieces"},
    {"--iterations", "K", TOOL_OPTION_INT, AT(bench.n_rounds), 1, BENCH_CHECKPOINT_MAX_ROUNDS,
     .help = "rounds; default 5"},
    {"--json", NULL, TOOL_OPTION_FLAG, AT(bench.request.is_json), .help = "one object"},
};

const struct tool_options bench_checkpoint_options = {
    .about = "Measures saving and loading a sharded model on all ranks, compared with one process that "
             "writes and\n"
             "reads as many bytes in files of the same sizes; memory; and steps while a save is in the "
             "background.\n",
    TOOL_OPTIONS_ROWS(option_rows),
    .notes = "Every loaded byte is checked. docs/benchmarks.md explains the columns.\n",
};

static void choose_work(struct arguments *arguments)
{
    struct bench_checkpoint *bench = &arguments->bench;
    bench->bytes -= bench->bytes % STACK_ROW_BYTES;
    bench->format = arguments->format && strcmp(arguments->format, format_names[SHOAL_CHECKPOINT_WHOLE]) == 0
                        ? SHOAL_CHECKPOINT_WHOLE
                        : SHOAL_CHECKPOINT_PIECES;
}

static bool make_directory(struct arguments *arguments)
{
    struct bench_checkpoint *bench = &arguments->bench;
    const char *parent = arguments->parent ? arguments->parent : getenv("TMPDIR");
    parent = parent && parent[0] ? parent : ".";
    int length = snprintf(bench->directory, sizeof bench->directory, "%s/shoal-bench-XXXXXX", parent);
    if (length >= (int)sizeof bench->directory) {
        errno = ENAMETOOLONG;
    } else if (mkdtemp(bench->directory)) {
        return true;
    }
    fprintf(stderr, "shoal bench checkpoint: %.1000s: making a directory: %s\n", parent, strerror(errno));
    return false;
}

/* The first rank makes the directory, and tells the others, who have to see it too. */
static bool make_directory_together(struct arguments *arguments)
{
    struct bench_checkpoint *bench = &arguments->bench;
    if (!bench_place()->is_launched) {
        return make_directory(arguments);
    }
    if (!bench_launched_open(NULL)) {
        return false;
    }
    if (bench_place()->rank == 0 && !make_directory(arguments)) {
        bench->directory[0] = '\0';
    }
    return bench_launched_share(bench->directory, sizeof bench->directory) && bench->directory[0];
}

/* Numbers ---------------------------------------------------------------------------------------------- */

static int64_t longest_ns(const struct bench_checkpoint *bench, struct measure_page *page,
                          enum bench_checkpoint_time kind, int round)
{
    int64_t longest = 0;
    for (int rank = 0; rank < bench->request.n_ranks; rank++) {
        int64_t time_ns = measure_page_times(page, rank)[(int)kind * bench->n_rounds + round];
        bool is_first_only = kind == BENCH_CHECKPOINT_SAVE_PLAIN || kind == BENCH_CHECKPOINT_LOAD_PLAIN ||
                             kind == BENCH_CHECKPOINT_STEP || kind == BENCH_CHECKPOINT_STEP_SAVING;
        longest = (rank == 0 || !is_first_only) && time_ns > longest ? time_ns : longest;
    }
    return longest;
}

static int compare_numbers(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

static double find_median(double *numbers, int n_numbers)
{
    qsort(numbers, (size_t)n_numbers, sizeof(numbers[0]), compare_numbers);
    return (numbers[n_numbers / 2] + numbers[n_numbers - 1 - n_numbers / 2]) * 0.5;
}

static double median_ms(const struct bench_checkpoint *bench, struct measure_page *page,
                        enum bench_checkpoint_time kind)
{
    double numbers[BENCH_CHECKPOINT_MAX_ROUNDS];
    for (int round = 0; round < bench->n_rounds; round++) {
        numbers[round] = (double)longest_ns(bench, page, kind, round) * 1e-6;
    }
    return find_median(numbers, bench->n_rounds);
}

/* The median over rounds of the quotient. */
static double median_ratio(const struct bench_checkpoint *bench, struct measure_page *page,
                           enum bench_checkpoint_time kind, enum bench_checkpoint_time by)
{
    double numbers[BENCH_CHECKPOINT_MAX_ROUNDS];
    for (int round = 0; round < bench->n_rounds; round++) {
        int64_t divisor = longest_ns(bench, page, by, round);
        numbers[round] = (double)longest_ns(bench, page, kind, round) / (double)(divisor > 0 ? divisor : 1);
    }
    return find_median(numbers, bench->n_rounds);
}

static void sum_up(const struct bench_checkpoint *bench, struct measure_page *page, struct report *report)
{
    for (int kind = 0; kind < BENCH_CHECKPOINT_N_TIMES; kind++) {
        report->ms[kind] = median_ms(bench, page, (enum bench_checkpoint_time)kind);
    }
    report->save_ratio = median_ratio(bench, page, BENCH_CHECKPOINT_SAVE, BENCH_CHECKPOINT_SAVE_PLAIN);
    report->load_ratio = median_ratio(bench, page, BENCH_CHECKPOINT_LOAD, BENCH_CHECKPOINT_LOAD_PLAIN);
    report->background_ratio = median_ratio(bench, page, BENCH_CHECKPOINT_STEP_SAVING, BENCH_CHECKPOINT_STEP);
    for (int rank = 0; rank < bench->request.n_ranks; rank++) {
        double save_mib = (double)bench->found->ranks[rank].save_bytes / MIB;
        double load_mib = (double)bench->found->ranks[rank].load_bytes / MIB;
        report->save_mib = save_mib > report->save_mib ? save_mib : report->save_mib;
        report->load_mib = load_mib > report->load_mib ? load_mib : report->load_mib;
        report->n_wrong += *measure_page_wrong(page, rank);
    }
}

static double memory_mib(const struct report *report)
{
    return report->save_mib > report->load_mib ? report->save_mib : report->load_mib;
}

static bool run(struct bench_checkpoint *bench, struct report *report)
{
    bench->request.iterations = BENCH_CHECKPOINT_N_TIMES * bench->n_rounds;
    struct bench_ranks ranks = {
        .bench = "checkpoint", .request = &bench->request, .run = bench_checkpoint_run, .context = bench};
    bench->ranks = &ranks;
    bool is_good = bench_ranks_begin(&ranks) && bench_ranks_run(&ranks) &&
                   bench_ranks_gather(bench->found->ranks, sizeof(bench->found->ranks[0]));
    if (is_good) {
        sum_up(bench, ranks.page, report);
    }
    bench_ranks_end(&ranks);
    return is_good;
}

/* Printing --------------------------------------------------------------------------------------------- */

static void print_json(const struct bench_checkpoint *bench, const struct report *report)
{
    const double *ms = report->ms;
    printf("{\"bench\": \"checkpoint\", \"processors\": %ld, \"ranks\": %d, \"bytes\": %zu, "
           "\"format\": \"%s\", \"files\": %zu",
           sysconf(_SC_NPROCESSORS_ONLN), bench->request.n_ranks, bench->bytes, format_names[bench->format],
           bench->found->n_files);
    printf(", \"save_ms\": %.1f, \"save_ms_plain\": %.1f, \"save_ratio\": %.4f", ms[BENCH_CHECKPOINT_SAVE],
           ms[BENCH_CHECKPOINT_SAVE_PLAIN], report->save_ratio);
    printf(", \"load_ms\": %.1f, \"load_ms_plain\": %.1f, \"load_ratio\": %.4f, \"cached\": %.4f",
           ms[BENCH_CHECKPOINT_LOAD], ms[BENCH_CHECKPOINT_LOAD_PLAIN], report->load_ratio,
           bench->found->cached);
    printf(", \"save_mib\": %.2f, \"load_mib\": %.2f, \"memory_mib\": %.2f", report->save_mib,
           report->load_mib, memory_mib(report));
    printf(", \"start_ms\": %.1f, \"step_ms\": %.2f, \"step_ms_saving\": %.2f, \"background_ratio\": %.4f, "
           "\"steps_saving\": %" PRIu64,
           ms[BENCH_CHECKPOINT_START], ms[BENCH_CHECKPOINT_STEP], ms[BENCH_CHECKPOINT_STEP_SAVING],
           report->background_ratio, bench->found->n_steps_saving);
    printf(", \"wrong\": %" PRIu64 ", \"iterations\": %d}\n", report->n_wrong, bench->n_rounds);
}

static void print_text(const struct bench_checkpoint *bench, const struct report *report)
{
    const double *ms = report->ms;
    measure_print_cpu(stdout);
    printf("# compiler  %s\n", TOOL_COMPILER);
    printf("# library   shoal %s, %s, not pinned\n", shoal_version(),
           bench_ranks_text(&bench->request, false));
    printf("# times     medians over %d rounds; of a round: the longest of any rank\n", bench->n_rounds);
    printf("%-10s %10s %5s %11s %6s %5s %9s %13s %10s %9s %13s %10s %6s %8s %8s %10s %8s %8s %14s %16s %12s "
           "%7s\n",
           "#bench", "processors", "ranks", "bytes", "format", "files", "save_ms", "save_ms_plain",
           "save_ratio", "load_ms", "load_ms_plain", "load_ratio", "cached", "save_mib", "load_mib",
           "memory_mib", "start_ms", "step_ms", "step_ms_saving", "background_ratio", "steps_saving",
           "wrong");
    printf("%-10s %10ld %5d %11zu %6s %5zu %9.1f %13.1f %10.4f %9.1f %13.1f %10.4f %6.4f %8.2f %8.2f %10.2f "
           "%8.1f %8.2f %14.2f %16.4f %12" PRIu64 " %7" PRIu64 "\n",
           "checkpoint", sysconf(_SC_NPROCESSORS_ONLN), bench->request.n_ranks, bench->bytes,
           format_names[bench->format], bench->found->n_files, ms[BENCH_CHECKPOINT_SAVE],
           ms[BENCH_CHECKPOINT_SAVE_PLAIN], report->save_ratio, ms[BENCH_CHECKPOINT_LOAD],
           ms[BENCH_CHECKPOINT_LOAD_PLAIN], report->load_ratio, bench->found->cached, report->save_mib,
           report->load_mib, memory_mib(report), ms[BENCH_CHECKPOINT_START], ms[BENCH_CHECKPOINT_STEP],
           ms[BENCH_CHECKPOINT_STEP_SAVING], report->background_ratio, bench->found->n_steps_saving,
           report->n_wrong);
}

int bench_checkpoint(int argc, char **argv)
{
    struct arguments arguments = {.bench = {.n_rounds = DEFAULT_ROUNDS, .bytes = DEFAULT_BYTES}};
    struct bench_checkpoint *bench = &arguments.bench;
    int exit_status;
    struct report report = {.n_wrong = 0};
    measure_request_init(&bench->request);
    bench->request.n_ranks = 0;
    if (!tool_options_read(&bench_checkpoint_options, argc, argv, &arguments, NULL, &exit_status)) {
        return exit_status;
    }
    if (!bench_ranks_settle(&bench->request, DEFAULT_RANKS, false)) {
        return TOOL_USAGE;
    }
    if (bench_is_checking()) {
        return TOOL_DONE;
    }
    bench->found = mmap(NULL, sizeof(struct bench_checkpoint_found), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (bench->found == MAP_FAILED) {
        perror("shoal bench checkpoint: shared memory");
        return TOOL_FAILED;
    }
    choose_work(&arguments);
    bool has_directory = make_directory_together(&arguments);
    bool is_good = has_directory && run(bench, &report);
    if (has_directory && bench_prints()) {
        is_good = bench_checkpoint_remove(bench->directory) && is_good;
    }
    if (is_good && bench_prints()) {
        (bench->request.is_json ? print_json : print_text)(bench, &report);
    }
    (void)munmap(bench->found, sizeof(struct bench_checkpoint_found));
    return is_good && report.n_wrong == 0 ? TOOL_DONE : TOOL_FAILED;
}
