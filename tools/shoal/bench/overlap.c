/* SPDX-License-Identifier: MIT */
/*
 * `shoal bench overlap`: measures how much of an all_reduce hides behind computation. A round times three things, each
 * after the ranks have met:
 *
 *   comm     shoal_all_reduce, then at once shoal_data, which waits
 *   compute  arithmetic on the rank's own memory, which stays in the cache; calibrated to take 1.5 times as long
 *   both     shoal_all_reduce, the same arithmetic, shoal_data
 *
 * hidden = 1 - (both - compute) / comm: 1 if the call costs nothing beyond the arithmetic, 0 if they did not overlap at
 * all.
 */
#include "bench/tensors.h"
#include "bench/benches.h"
#include "common/tool.h"

#include "base/clock.h"
#include "shoal/collective.h"
#include "shoal/scope.h"

enum which {
    COMM,
    COMPUTE,
    BOTH,
    N_TIMES
};

enum {
    N_VALUES = 4096,      /* 16 KiB: in the first cache of every processor */
    CALIBRATION_RUNS = 9, /* of the call */
    PASSES_TIMED = 200,
    N_WARMUPS = 3
};

/* What the arithmetic takes, relative to the call. */
#define COMPUTE_RATIO 1.5

struct overlap {
    struct bench_rank *rank;
    shoal_tensor *input;
    float values[N_VALUES];
    int64_t n_passes;
};

/* Arithmetic ------------------------------------------------------------------------------------------- */

/* Not inlined, so that no pass is left out. The values stay near 1. */
static __attribute__((noinline)) void compute_pass(float *values)
{
    for (size_t i = 0; i < N_VALUES; i++) {
        values[i] = values[i] * 0.999f + 0.001f;
    }
}

static void compute(struct overlap *overlap, int64_t n_passes)
{
    for (int64_t i = 0; i < n_passes; i++) {
        compute_pass(overlap->values);
    }
}

/* One measurement -------------------------------------------------------------------------------------- */

/* From the meeting to the result. False when the call failed. */
static bool run_timed(struct overlap *overlap, enum which which, const void **result_out, int64_t *time_out)
{
    shoal_tensor *sum = NULL;
    int64_t begin_ns = clock_now_ns();
    if (which != COMPUTE) {
        sum = shoal_all_reduce(overlap->input, SHOAL_SUM, overlap->rank->group);
    }
    if (which != COMM) {
        compute(overlap, overlap->n_passes);
    }
    *result_out = sum ? shoal_data(sum) : NULL;
    *time_out = clock_now_ns() - begin_ns;
    return which == COMPUTE || *result_out;
}

static bool run_in_scope(struct overlap *overlap, enum which which, uint32_t iteration, int64_t *time_out)
{
    struct bench_rank *rank = overlap->rank;
    const void *result;
    if (!measure_page_meet(rank->page, rank->number)) {
        return false;
    }
    if (!run_timed(overlap, which, &result, time_out)) {
        return bench_rank_check(rank, shoal_scope_error(), "all_reduce");
    }
    if (result) {
        bench_rank_check_sum(rank, result, iteration);
    }
    return true;
}

static bool measure(struct overlap *overlap, enum which which, int round)
{
    struct bench_rank *rank = overlap->rank;
    uint32_t iteration = rank->iteration++;
    int64_t time_ns = 0;
    if (!bench_rank_write(rank, overlap->input, iteration) ||
        !bench_rank_check(rank, shoal_scope_begin(), "opening a scope")) {
        return false;
    }
    bool was_run = run_in_scope(overlap, which, iteration, &time_ns);
    if (!bench_rank_check(rank, shoal_scope_end(), "closing the scope") || !was_run) {
        return false;
    }
    bench_rank_keep(rank, which, round, time_ns);
    return true;
}

/* Calibration ------------------------------------------------------------------------------------------ */

/* How many passes take COMPUTE_RATIO times as long as the call; the same on every rank. */
static bool calibrate(struct overlap *overlap)
{
    struct bench_rank *rank = overlap->rank;
    int n_rounds = rank->bench->n_rounds < CALIBRATION_RUNS ? rank->bench->n_rounds : CALIBRATION_RUNS;
    for (int round = -N_WARMUPS; round < n_rounds; round++) {
        if (!measure(overlap, COMM, round)) {
            return false;
        }
        int64_t begin_ns = clock_now_ns();
        compute(overlap, PASSES_TIMED);
        bench_rank_keep(rank, COMPUTE, round, clock_now_ns() - begin_ns);
    }
    int64_t comm_ns = bench_rank_agree(rank, COMM, n_rounds);
    int64_t compute_ns = bench_rank_agree(rank, COMPUTE, n_rounds);
    if (comm_ns == 0 || compute_ns == 0) {
        return false;
    }
    overlap->n_passes =
        1 + (int64_t)(COMPUTE_RATIO * (double)comm_ns / (double)compute_ns * (double)PASSES_TIMED);
    return true;
}

static bool run_overlap(struct bench_rank *rank)
{
    struct overlap overlap = {.rank = rank, .input = bench_rank_make_tensor(rank)};
    if (!overlap.input || !calibrate(&overlap)) {
        return false;
    }
    for (int round = -N_WARMUPS; round < rank->bench->n_rounds; round++) {
        for (unsigned which = COMM; which < N_TIMES; which++) {
            if (!measure(&overlap, (enum which)which, round)) {
                return false;
            }
        }
    }
    return true;
}

/* The benchmark ---------------------------------------------------------------------------------------- */

static void fill_columns(const double *medians_us, double *columns_out)
{
    for (unsigned which = COMM; which < N_TIMES; which++) {
        columns_out[which] = medians_us[which];
    }
    columns_out[N_TIMES] = 1.0 - (medians_us[BOTH] - medians_us[COMPUTE]) / medians_us[COMM];
}

int bench_overlap(int argc, char **argv)
{
    static const struct bench_tensors_kind kind = {
        .name = "overlap",
        .options = &bench_overlap_options,
        .run = run_overlap,
        .n_times = N_TIMES,
        .columns = {"comm_us", "compute_us", "both_us", "hidden"},
        .fill_columns = fill_columns,
        .note = "compute   calibrated to 1.5 times the call, in 16 KiB of the rank's own",
    };
    return bench_tensors(&kind, argc, argv);
}
