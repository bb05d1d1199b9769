/* SPDX-License-Identifier: MIT */
/* Arguments, ranks and times of the benchmarks of collectives on tensors. */
#include "bench/tensors.h"
#include "bench/launched.h"
#include "bench/ranks.h"
#include "bench/benches.h"
#include "common/options.h"
#include "common/tool.h"

#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    DEFAULT_RANKS = 2
};

/* A rank ----------------------------------------------------------------------------------------------- */

bool bench_rank_check(const struct bench_rank *rank, shoal_status status, const char *what)
{
    return bench_ranks_check(rank->bench->kind->name, rank->number, status, what);
}

shoal_tensor *bench_rank_make_tensor(struct bench_rank *rank)
{
    shoal_tensor *tensor = shoal_empty(&rank->bench->count, 1, rank->bench->dtype);
    (void)bench_rank_check(rank, shoal_scope_error(), "making a tensor");
    return tensor;
}

bool bench_rank_write(struct bench_rank *rank, shoal_tensor *tensor, uint32_t iteration)
{
    void *data = shoal_mutable_data(tensor);
    if (!data) {
        return bench_rank_check(rank, shoal_scope_error(), "writing a tensor");
    }
    measure_pattern_write(&rank->pattern, data, (size_t)rank->bench->count, 0, rank->number, iteration);
    return true;
}

void bench_rank_check_sum(struct bench_rank *rank, const void *data, uint32_t iteration)
{
    rank->n_wrong +=
        measure_pattern_count_unreduced(&rank->pattern, data, (size_t)rank->bench->count, 0, iteration);
}

/* Inside the world and the scope. */
static bool run_measured(struct bench_rank *rank)
{
    bool is_good = rank->bench->kind->run(rank);
    *measure_page_wrong(rank->page, rank->number) = rank->n_wrong;
    return is_good;
}

static bool run_in_scope(struct bench_rank *rank)
{
    if (!bench_rank_check(rank, shoal_scope_begin(), "opening a scope")) {
        return false;
    }
    bool is_good = run_measured(rank);
    return bench_rank_check(rank, shoal_scope_end(), "closing the scope") && is_good;
}

static bool run_in_world(struct bench_rank *rank)
{
    const struct bench_tensors *bench = rank->bench;
    if (!bench_rank_check(rank, bench_ranks_open_world(bench->ranks, rank->number, &rank->world),
                          "opening the world")) {
        return false;
    }
    rank->group = shoal_world_group(rank->world);
    return bench_ranks_close_world(bench->ranks, rank->number, rank->world, run_in_scope(rank));
}

static bool run_rank(const void *context, struct measure_page *page, int number)
{
    struct bench_rank rank = {.bench = context, .page = page, .number = number};
    const struct measure_request *request = &rank.bench->request;
    bool is_good = false;
    if (measure_pattern_init(&rank.pattern, request->dtype, MEASURE_REDOP_sum, request->n_ranks)) {
        is_good = run_in_world(&rank);
        measure_pattern_fini(&rank.pattern);
    } else {
        fprintf(stderr, "shoal bench: no memory for the values\n");
    }
    return is_good;
}

/* Times ------------------------------------------------------------------------------------------------ */

void bench_rank_keep(struct bench_rank *rank, unsigned which, int round, int64_t time_ns)
{
    if (round >= 0) {
        measure_page_times(rank->page, rank->number)[which * (size_t)rank->bench->n_rounds + (size_t)round] =
            time_ns;
    }
}

static double find_median_ns(const struct bench_tensors *bench, struct measure_page *page, unsigned which,
                             int n_rounds)
{
    return bench_ranks_median_ns(page, bench->request.n_ranks, which * (size_t)bench->n_rounds,
                                 (size_t)n_rounds);
}

int64_t bench_rank_agree(struct bench_rank *rank, unsigned which, int n_rounds)
{
    if (!measure_page_meet(rank->page, rank->number) ||
        !measure_page_collect(rank->page, rank->number, (size_t)rank->bench->request.iterations)) {
        return 0;
    }
    int64_t median_ns = (int64_t)find_median_ns(rank->bench, rank->page, which, n_rounds);
    /* Nobody writes the next times while somebody reads these. */
    return measure_page_meet(rank->page, rank->number) && median_ns > 0 ? median_ns : 0;
}

/* Arguments -------------------------------------------------------------------------------------------- */

/* What options are read into. */
struct arguments {
    struct bench_tensors bench;
    const char *dtype;
};

#define AT(field) offsetof(struct arguments, field)

static const char *dtype_at(size_t index)
{
    const struct measure_dtype *dtype = measure_dtype_at(index);
    return dtype ? dtype->name : NULL;
}

#define ROWS(default_bytes, max_bytes, bytes_help)                                                     \
    {                                                                                                  \
        {"--ranks",         "N",           TOOL_OPTION_INT,    AT(bench.request.n_ranks), 1,           \
         MEASURE_MAX_RANKS, .alias = "-n", .help = "default 2"},                                       \
            {"--bytes", "B",       TOOL_OPTION_BYTES,         AT(bench.bytes),                         \
             1,         max_bytes, .standard = default_bytes, .help = bytes_help},                     \
            {"--dtype", "T", TOOL_OPTION_NAME, AT(dtype), .name_at = dtype_at, .help = "default f32"}, \
            {"--iterations",                                                                           \
             "K",                                                                                      \
             TOOL_OPTION_INT,                                                                          \
             AT(bench.n_rounds),                                                                       \
             1,                                                                                        \
             MEASURE_MAX_ITERATIONS,                                                                   \
             .help = "rounds; default: by size, 2000 to 20"},                                          \
            {"--threads", NULL, TOOL_OPTION_FLAG, AT(bench.is_threads),                                \
             .help = "ranks are threads instead of processes"},                                        \
            {"--json", NULL, TOOL_OPTION_FLAG, AT(bench.request.is_json), .help = "one object"},       \
    }

static const struct tool_option functional_rows[] = ROWS("1K", 1 << 20, "of the tensor, at most 1M");
static const struct tool_option overlap_rows[] = ROWS("16M", 1 << 30, "of the tensor, at most 1G");

static const char notes[] = "Every result is checked. docs/benchmarks.md explains the columns.\n";

const struct tool_options bench_functional_options = {
    .about = "Measures what shoal_all_reduce and a wait cost beyond shoal_group_all_reduce.\n",
    TOOL_OPTIONS_ROWS(functional_rows),
    .notes = notes,
};

const struct tool_options bench_overlap_options = {
    .about = "Measures how much of shoal_all_reduce is hidden behind computation of 1.5 times its time.\n",
    TOOL_OPTIONS_ROWS(overlap_rows),
    .notes = notes,
};

/* Puts the options into the benchmark. Returns false if there is nothing left to do, after a message. */
static bool read_options(struct bench_tensors *bench, int argc, char **argv, int *exit_status_out)
{
    struct arguments arguments = {.bench = *bench, .dtype = "f32"};
    bool is_good = tool_options_read(bench->kind->options, argc, argv, &arguments, NULL, exit_status_out);
    *bench = arguments.bench;
    bench->request.dtype = measure_dtype_find(arguments.dtype);
    return is_good;
}

/* By size: enough for a median that stays, few enough for a run that ends. */
static int choose_rounds(size_t bytes)
{
    static const struct {
        size_t up_to_bytes;
        int n_rounds;
    } efforts[] = {{(size_t)64 << 10, 2000}, {(size_t)1 << 20, 200}, {(size_t)16 << 20, 40}, {SIZE_MAX, 20}};
    size_t i = 0;
    while (bytes > efforts[i].up_to_bytes) {
        i++;
    }
    return efforts[i].n_rounds;
}

/* Returns false if there is nothing left to do, after a message. */
static bool choose(struct bench_tensors *bench, int argc, char **argv, int *exit_status_out)
{
    if (!read_options(bench, argc, argv, exit_status_out)) {
        return false;
    }
    *exit_status_out = TOOL_USAGE;
    if (!bench_ranks_settle(&bench->request, DEFAULT_RANKS, bench->is_threads)) {
        return false;
    }
    if (shoal_dtype_find(bench->request.dtype->name, &bench->dtype) != SHOAL_OK) {
        fprintf(stderr, "shoal bench %s: %s\n", argv[0], shoal_error_text());
        *exit_status_out = TOOL_USAGE;
        return false;
    }
    size_t element_bytes = bench->request.dtype->bytes;
    size_t count = bench->bytes > element_bytes ? bench->bytes / element_bytes : 1;
    bench->n_rounds = bench->n_rounds > 0 ? bench->n_rounds : choose_rounds(bench->bytes);
    bench->count = (int64_t)count;
    bench->bytes = count * element_bytes;
    /* As many as the page has room for. */
    bench->request.iterations = bench->n_rounds * (int)bench->kind->n_times;
    return true;
}

/* The whole -------------------------------------------------------------------------------------------- */

static void print_header(const struct bench_tensors *bench)
{
    const struct bench_tensors_kind *kind = bench->kind;
    measure_print_cpu(stdout);
    printf("# compiler  %s\n", TOOL_COMPILER);
    printf("# library   shoal %s, %s, not pinned\n", shoal_version(),
           bench_ranks_text(&bench->request, bench->is_threads));
    printf("# times     medians over %d rounds; of a round: the longest of any rank\n", bench->n_rounds);
    printf("# %s\n", kind->note);
    printf("%-11s %10s %5s %10s %-5s", "#bench", "processors", "ranks", "bytes", "dtype");
    for (int i = 0; i < BENCH_TENSORS_MAX_COLUMNS && kind->columns[i]; i++) {
        printf(" %13s", kind->columns[i]);
    }
    printf(" %7s\n", "wrong");
}

static void print_json(const struct bench_tensors *bench, const double *columns, uint64_t n_wrong)
{
    const struct bench_tensors_kind *kind = bench->kind;
    printf("{\"bench\": \"%s\", \"processors\": %ld, \"ranks\": %d, \"bytes\": %zu, \"dtype\": \"%s\"",
           kind->name, sysconf(_SC_NPROCESSORS_ONLN), bench->request.n_ranks, bench->bytes,
           bench->request.dtype->name);
    for (int i = 0; i < BENCH_TENSORS_MAX_COLUMNS && kind->columns[i]; i++) {
        printf(", \"%s\": %.3f", kind->columns[i], columns[i]);
    }
    printf(", \"wrong\": %" PRIu64 ", \"iterations\": %d}\n", n_wrong, bench->n_rounds);
}

static void print_text(const struct bench_tensors *bench, const double *columns, uint64_t n_wrong)
{
    const struct bench_tensors_kind *kind = bench->kind;
    printf("%-11s %10ld %5d %10zu %-5s", kind->name, sysconf(_SC_NPROCESSORS_ONLN), bench->request.n_ranks,
           bench->bytes, bench->request.dtype->name);
    for (int i = 0; i < BENCH_TENSORS_MAX_COLUMNS && kind->columns[i]; i++) {
        printf(" %13.3f", columns[i]);
    }
    printf(" %7" PRIu64 "\n", n_wrong);
}

/* Once all ranks have ended well. False when a result was wrong. */
static bool report(const struct bench_tensors *bench, struct measure_page *page)
{
    double medians_us[BENCH_TENSORS_MAX_TIMES];
    double columns[BENCH_TENSORS_MAX_COLUMNS];
    uint64_t n_wrong = 0;
    for (unsigned which = 0; which < bench->kind->n_times; which++) {
        medians_us[which] = find_median_ns(bench, page, which, bench->n_rounds) * 1e-3;
    }
    for (int rank = 0; rank < bench->request.n_ranks; rank++) {
        n_wrong += *measure_page_wrong(page, rank);
    }
    bench->kind->fill_columns(medians_us, columns);
    (bench->request.is_json ? print_json : print_text)(bench, columns, n_wrong);
    return n_wrong == 0;
}

int bench_tensors(const struct bench_tensors_kind *kind, int argc, char **argv)
{
    struct bench_tensors bench = {.kind = kind};
    measure_request_init(&bench.request);
    bench.request.n_ranks = 0;
    int exit_status;
    if (!choose(&bench, argc, argv, &exit_status)) {
        return exit_status;
    }
    if (bench_is_checking()) {
        return TOOL_DONE;
    }
    struct bench_ranks ranks = {.bench = kind->name,
                                .request = &bench.request,
                                .is_threads = bench.is_threads,
                                .run = run_rank,
                                .context = &bench};
    bench.ranks = &ranks;
    if (!bench_ranks_begin(&ranks)) {
        return TOOL_FAILED;
    }
    if (!bench.request.is_json && bench_prints()) {
        print_header(&bench);
    }
    bool is_good = bench_ranks_run(&ranks) && (!bench_prints() || report(&bench, ranks.page));
    bench_ranks_end(&ranks);
    return is_good ? TOOL_DONE : TOOL_FAILED;
}
