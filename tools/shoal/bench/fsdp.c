/* SPDX-License-Identifier: MIT */
/*
 * `shoal bench fsdp`: measures what fully sharded training costs beyond its arithmetic. This file reads the arguments,
 * starts the ranks and combines their numbers; bench/fsdp.h lists the other files.
 */
#include "bench/fsdp.h"
#include "bench/launched.h"
#include "bench/ranks.h"
#include "bench/benches.h"
#include "common/options.h"
#include "common/tool.h"

#include "shoal/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    DEFAULT_ROUNDS = 30,
    FEW_RANKS = 2 /* the default; up to here the smaller network */
};

/* Those of PyTorch's figures: a GPT of 5.0 M parameters less embeddings, and one of 25.8 M with its head. */
static const struct bench_fsdp_work small_work = {
    .n_units = 6, .width = 256, .n_tokens = 512, .n_blas_threads = 1};
static const struct bench_fsdp_work large_work = {
    .n_units = 8, .width = 512, .n_last = 1216, .n_tokens = 256, .n_blas_threads = 2};

struct report {
    double step_us_fsdp;
    double step_us_none;
    double lanes_us;        /* processor time of a rank's lanes in a step */
    double host_us;         /* of a unit, alone */
    double host_us_plain;   /* of a layer that is not sharded */
    double host_us_2;       /* of a unit, between two threads */
    size_t unsharded_bytes; /* on the host */
    uint64_t n_wrong;
};

size_t bench_fsdp_count_params(const struct bench_fsdp_work *work)
{
    size_t width = (size_t)work->width;
    return (size_t)work->n_units * BENCH_FSDP_MATRICES * BENCH_FSDP_WIDENING * width * width +
           (size_t)work->n_last * width;
}

/* Arguments -------------------------------------------------------------------------------------------- */

struct arguments {
    struct bench_fsdp bench;
    struct bench_fsdp_work asked; /* numbers are 0 if they were not asked for */
    bool is_threads;
    const char *sharded; /* NULL means parameters */
};

/* By the values of shoal_sharded. */
static const char *const sharded_names[] = {"parameters", "gradients", "state"};

static const char *sharded_at(size_t index)
{
    return index < sizeof(sharded_names) / sizeof(sharded_names[0]) ? sharded_names[index] : NULL;
}

#define AT(field) offsetof(struct arguments, field)

static const struct tool_option option_rows[] = {
    {"--ranks", "N", TOOL_OPTION_INT, AT(bench.request.n_ranks), 1, MEASURE_MAX_RANKS, .alias = "-n",
     .help = "default 2; from 3 on, the default network is larger"},
    {"--units", "U", TOOL_OPTION_INT, AT(asked.n_units), 1, BENCH_FSDP_MAX_SIZE,
     .help = "of 4 matrices each; default 6, larger: 8"},
    {"--width", "W", TOOL_OPTION_INT, AT(asked.width), 1, BENCH_FSDP_MAX_SIZE,
     .help = "of the network: a unit has 12 W^2 parameters; default 256, larger: 512"},
    {"--tokens", "T", TOOL_OPTION_INT, AT(asked.n_tokens), 1, BENCH_FSDP_MAX_SIZE,
     .help = "rows of a rank's input; default 512, larger: 256"},
    {"--blas-threads", "B", TOOL_OPTION_INT, AT(asked.n_blas_threads), 1, BENCH_FSDP_MAX_SIZE,
     .help = "threads of a matrix product; default 1, larger: 2"},
    {"--sharded", "WHAT", TOOL_OPTION_NAME, AT(sharded), .name_at = sharded_at, .noun = "value of --sharded",
     .help = "FSDP, ZeRO-2 or ZeRO-1; default parameters"},
    {"--iterations", "K", TOOL_OPTION_INT, AT(bench.n_rounds), 1, MEASURE_MAX_ITERATIONS,
     .help = "rounds, one step of each kind; default 30"},
    {"--threads", NULL, TOOL_OPTION_FLAG, AT(is_threads), .help = "ranks are threads instead of processes"},
    {"--json", NULL, TOOL_OPTION_FLAG, AT(bench.request.is_json), .help = "one object"},
};

const struct tool_options bench_fsdp_options = {
    .about =
        "Measures a step (forward and backward pass, no optimizer) of fully sharded training, and the same\n"
        "without communication.\n",
    TOOL_OPTIONS_ROWS(option_rows),
    .notes = "Every result is checked. docs/benchmarks.md explains the columns.\n",
};

static void choose_work(struct arguments *arguments)
{
    struct bench_fsdp *bench = &arguments->bench;
    const struct bench_fsdp_work *asked = &arguments->asked;
    struct bench_fsdp_work *work = &bench->work;
    *work = bench->request.n_ranks <= FEW_RANKS ? small_work : large_work;
    if (asked->n_units > 0 || asked->width > 0) {
        work->n_last = 0; /* a network of the caller's: nothing but units */
    }
    work->n_units = asked->n_units > 0 ? asked->n_units : work->n_units;
    work->width = asked->width > 0 ? asked->width : work->width;
    work->n_tokens = asked->n_tokens > 0 ? asked->n_tokens : work->n_tokens;
    work->n_blas_threads = asked->n_blas_threads > 0 ? asked->n_blas_threads : work->n_blas_threads;
    for (size_t i = 0; arguments->sharded && sharded_at(i); i++) {
        work->sharded = strcmp(arguments->sharded, sharded_at(i)) == 0 ? (shoal_sharded)i : work->sharded;
    }
    bench->n_host_rounds = bench->n_rounds < DEFAULT_ROUNDS ? 20 * bench->n_rounds : 20 * DEFAULT_ROUNDS;
}

/* Parts ------------------------------------------------------------------------------------------------ */

/* Ranks that run one part: medians of the two kinds of rounds. */
static bool run_part(struct bench_fsdp *bench, struct bench_ranks *ranks, int n_rounds,
                     double *medians_us_out, uint64_t *n_wrong)
{
    int n_ranks = bench->request.n_ranks;
    bench->request.iterations = 2 * n_rounds;
    ranks->bench = "fsdp";
    ranks->request = &bench->request;
    ranks->context = bench;
    bench->ranks = ranks;
    if (!bench_ranks_begin(ranks)) {
        return false;
    }
    bool is_good = bench_ranks_run(ranks);
    for (int i = 0; is_good && i < 2; i++) {
        size_t first = (size_t)i * (size_t)n_rounds;
        medians_us_out[i] = bench_ranks_median_ns(ranks->page, n_ranks, first, (size_t)n_rounds) * 1e-3;
    }
    for (int rank = 0; is_good && rank < n_ranks; rank++) {
        *n_wrong += *measure_page_wrong(ranks->page, rank);
    }
    bench_ranks_end(ranks);
    return is_good;
}

/* Every window of this host once, whoever has it. */
static size_t sum_windows(const struct bench_fsdp *bench)
{
    struct bench_fsdp_segment seen[BENCH_FSDP_MAX_SEGMENTS];
    size_t n_seen = 0;
    size_t bytes = 0;
    for (int rank = 0; rank < bench->request.n_ranks; rank++) {
        size_t n_windows = bench_launched_is_here(rank) ? bench->found->ranks[rank].n_windows : 0;
        for (size_t i = 0; i < n_windows; i++) {
            const struct bench_fsdp_segment *window = &bench->found->ranks[rank].windows[i];
            size_t k = 0;
            while (k < n_seen && seen[k].inode != window->inode) {
                k++;
            }
            if (k == n_seen && n_seen < BENCH_FSDP_MAX_SEGMENTS) {
                seen[n_seen++] = *window;
                bytes += window->bytes;
            }
        }
    }
    return bytes;
}

/* A rank's share, of one step. */
static double average_lanes_us(const struct arguments *arguments)
{
    const struct bench_fsdp *bench = &arguments->bench;
    int n_ranks = bench->request.n_ranks;
    int64_t sum_ns = 0;
    for (int rank = 0; rank < (arguments->is_threads ? 1 : n_ranks); rank++) {
        sum_ns += bench->found->ranks[rank].lanes_ns;
    }
    return (double)sum_ns * 1e-3 / n_ranks / bench->n_rounds;
}

static bool run_host(const struct bench_fsdp *steps, int n_ranks, double *medians_us_out, uint64_t *n_wrong)
{
    struct bench_fsdp bench = *steps;
    bench.request.n_ranks = n_ranks;
    struct bench_ranks ranks = {.is_threads = n_ranks > 1,
                                .is_apart = true,
                                .transport = bench_place()->is_launched ? "shm" : NULL,
                                .run = bench_fsdp_run_host};
    bool is_good = run_part(&bench, &ranks, bench.n_host_rounds, medians_us_out, n_wrong);
    for (int i = 0; is_good && i < 2; i++) {
        medians_us_out[i] /= BENCH_FSDP_HOST_UNITS;
    }
    return is_good;
}

/* Processes first: threads are best not forked. */
static bool run_all(struct arguments *arguments, struct report *report)
{
    struct bench_fsdp *bench = &arguments->bench;
    double steps_us[2];
    double alone_us[2];
    double two_us[2];
    struct bench_ranks ranks = {.is_threads = arguments->is_threads, .run = bench_fsdp_run_steps};
    if (!run_host(bench, 1, alone_us, &report->n_wrong) ||
        !run_part(bench, &ranks, bench->n_rounds, steps_us, &report->n_wrong) ||
        !bench_ranks_gather(bench->found->ranks, sizeof(bench->found->ranks[0])) ||
        !run_host(bench, 2, two_us, &report->n_wrong)) {
        return false;
    }
    report->step_us_fsdp = steps_us[0];
    report->step_us_none = steps_us[1];
    report->host_us = alone_us[0];
    report->host_us_plain = alone_us[1];
    report->host_us_2 = two_us[0];
    report->unsharded_bytes = sum_windows(bench);
    report->lanes_us = average_lanes_us(arguments);
    return true;
}

/* What a rank's lanes read and write in a step, at least: its shards into windows, in forward and, where parameters are
   sharded, in backward, and its blocks of all gradients into one. */
static double count_lanes_bytes(const struct bench_fsdp *bench)
{
    double bytes = (double)bench_fsdp_count_params(&bench->work) * sizeof(float);
    double n_ranks = bench->request.n_ranks;
    double n_gathers = bench->work.sharded == SHOAL_SHARDED_PARAMETERS ? 2 : 1;
    return n_ranks > 1 ? n_gathers * 2 * bytes / n_ranks + bytes + bytes / n_ranks : 0;
}

static double lanes_gbps(const struct bench_fsdp *bench, const struct report *report)
{
    return report->lanes_us > 0 ? count_lanes_bytes(bench) / report->lanes_us * 1e-3 : 0;
}

/* Printing --------------------------------------------------------------------------------------------- */

static double gflops(const struct bench_fsdp *bench, double step_us)
{
    return 6.0 * (double)bench_fsdp_count_params(&bench->work) * bench->work.n_tokens / step_us * 1e-3;
}

static void print_json(const struct arguments *arguments, const struct report *report)
{
    const struct bench_fsdp *bench = &arguments->bench;
    const struct bench_fsdp_work *work = &bench->work;
    printf("{\"bench\": \"fsdp\", \"processors\": %ld, \"ranks\": %d, \"params\": %zu, \"units\": %d, "
           "\"sharded\": \"%s\", \"tokens\": %d, \"blas_threads\": %d, \"core\": \"%s\", \"gflops\": %.1f",
           sysconf(_SC_NPROCESSORS_ONLN), bench->request.n_ranks, bench_fsdp_count_params(work),
           work->n_units + (work->n_last > 0), sharded_names[work->sharded], work->n_tokens,
           work->n_blas_threads, bench->found->core, gflops(bench, report->step_us_none));
    printf(", \"step_us_fsdp\": %.1f, \"step_us_none\": %.1f, \"ratio\": %.4f, \"exposed_us\": %.1f",
           report->step_us_fsdp, report->step_us_none, report->step_us_fsdp / report->step_us_none,
           report->step_us_fsdp - report->step_us_none);
    printf(", \"lanes_us\": %.1f, \"lanes_gbps\": %.2f", report->lanes_us, lanes_gbps(bench, report));
    printf(", \"host_us_per_unit\": %.2f, \"host_us_per_unit_2\": %.2f, \"host_us_plain\": %.2f"
           ", \"unsharded_bytes_host\": %zu, \"wrong\": %" PRIu64 ", \"iterations\": %d}\n",
           report->host_us, report->host_us_2, report->host_us_plain, report->unsharded_bytes,
           report->n_wrong, bench->n_rounds);
}

static void print_text(const struct arguments *arguments, const struct report *report)
{
    const struct bench_fsdp *bench = &arguments->bench;
    const struct bench_fsdp_work *work = &bench->work;
    measure_print_cpu(stdout);
    printf("# compiler  %s\n", TOOL_COMPILER);
    printf("# library   shoal %s, %s, not pinned\n", shoal_version(),
           bench_ranks_text(&bench->request, arguments->is_threads));
    printf("# blas      %s, core %s, %d threads\n", bench->found->library, bench->found->core,
           work->n_blas_threads);
    printf("# times     medians over %d rounds; of a round: the longest of any rank\n", bench->n_rounds);
    printf("%-6s %10s %5s %9s %5s %10s %6s %12s %-12s %7s %12s %12s %6s %10s %10s %10s %16s %18s %13s %20s "
           "%7s\n",
           "#bench", "processors", "ranks", "params", "units", "sharded", "tokens", "blas_threads", "core",
           "gflops", "step_us_fsdp", "step_us_none", "ratio", "exposed_us", "lanes_us", "lanes_gbps",
           "host_us_per_unit", "host_us_per_unit_2", "host_us_plain", "unsharded_bytes_host", "wrong");
    printf("%-6s %10ld %5d %9zu %5d %10s %6d %12d %-12s %7.1f %12.1f %12.1f %6.4f %10.1f %10.1f %10.2f "
           "%16.2f %18.2f "
           "%13.2f %20zu %7" PRIu64 "\n",
           "fsdp", sysconf(_SC_NPROCESSORS_ONLN), bench->request.n_ranks, bench_fsdp_count_params(work),
           work->n_units + (work->n_last > 0), sharded_names[work->sharded], work->n_tokens,
           work->n_blas_threads, bench->found->core, gflops(bench, report->step_us_none),
           report->step_us_fsdp, report->step_us_none, report->step_us_fsdp / report->step_us_none,
           report->step_us_fsdp - report->step_us_none, report->lanes_us, lanes_gbps(bench, report),
           report->host_us, report->host_us_2, report->host_us_plain, report->unsharded_bytes,
           report->n_wrong);
}

int bench_fsdp(int argc, char **argv)
{
    struct arguments arguments = {.bench = {.n_rounds = DEFAULT_ROUNDS}};
    int exit_status;
    struct report report = {.n_wrong = 0};
    measure_request_init(&arguments.bench.request);
    arguments.bench.request.n_ranks = 0;
    if (!tool_options_read(&bench_fsdp_options, argc, argv, &arguments, NULL, &exit_status)) {
        return exit_status;
    }
    if (!bench_ranks_settle(&arguments.bench.request, FEW_RANKS, arguments.is_threads)) {
        return TOOL_USAGE;
    }
    if (bench_is_checking()) {
        return TOOL_DONE;
    }
    choose_work(&arguments);
    void *found = mmap(NULL, sizeof(struct bench_fsdp_found), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) {
        perror("shoal bench fsdp: shared memory");
        return TOOL_FAILED;
    }
    arguments.bench.found = found;
    bool is_good = run_all(&arguments, &report);
    if (is_good && bench_prints()) {
        (arguments.bench.request.is_json ? print_json : print_text)(&arguments, &report);
    }
    (void)munmap(found, sizeof(struct bench_fsdp_found));
    return is_good && report.n_wrong == 0 ? TOOL_DONE : TOOL_FAILED;
}
