/* SPDX-License-Identifier: MIT */
/*
 * `shoal bench functional`: measures what a collective on tensors costs beyond the raw call. A round times two batches
 * of CALLS calls each, back to back, after the ranks have met:
 *
 *   raw         shoal_group_all_reduce from buffer to buffer
 *   functional  shoal_scope_begin, then CALLS times shoal_all_reduce and shoal_data, then shoal_scope_end, which drops
 *               the results: a step of a program. All of it counts; the clock only stands still between the last
 *               shoal_data and shoal_scope_end, while results are checked.
 *
 * Both read the same inputs, one for each call of a batch, and write each result to a place of its own. A time is that
 * of a batch divided by CALLS.
 */
#include "bench/tensors.h"
#include "bench/benches.h"
#include "common/tool.h"

#include "base/clock.h"
#include "base/mem.h"
#include "shoal/collective.h"
#include "shoal/group.h"
#include "shoal/scope.h"

enum which {
    RAW,
    FUNCTIONAL,
    N_TIMES
};

enum {
    CALLS = 32,
    N_WARMUPS = 20
};

struct functional {
    struct bench_rank *rank;
    shoal_tensor *inputs[CALLS];
    const void *sends[CALLS]; /* where the inputs lie */
    const void *results[CALLS];
    char *recv; /* CALLS places for raw results */
    size_t recv_stride;
};

/* Batches ---------------------------------------------------------------------------------------------- */

static bool call_raw(struct functional *functional)
{
    struct bench_rank *rank = functional->rank;
    size_t count = (size_t)rank->bench->count;
    for (size_t i = 0; i < CALLS; i++) {
        void *recv = functional->recv + i * functional->recv_stride;
        shoal_status status = shoal_group_all_reduce(rank->group, functional->sends[i], recv, count,
                                                     rank->bench->dtype, SHOAL_SUM);
        if (status != SHOAL_OK) {
            return bench_rank_check(rank, status, "shoal_group_all_reduce");
        }
        functional->results[i] = recv;
    }
    return true;
}

static bool call_functional(struct functional *functional)
{
    struct bench_rank *rank = functional->rank;
    for (size_t i = 0; i < CALLS; i++) {
        functional->results[i] = shoal_data(shoal_all_reduce(functional->inputs[i], SHOAL_SUM, rank->group));
        if (!functional->results[i]) {
            return bench_rank_check(rank, shoal_scope_error(), "shoal_all_reduce");
        }
    }
    return true;
}

static void check_results(struct functional *functional, uint32_t iteration)
{
    for (size_t i = 0; i < CALLS; i++) {
        bench_rank_check_sum(functional->rank, functional->results[i], iteration + (uint32_t)i);
    }
}

static bool run_raw(struct functional *functional, uint32_t iteration, int64_t *time_out)
{
    int64_t begin_ns = clock_now_ns();
    bool is_good = call_raw(functional);
    *time_out = clock_now_ns() - begin_ns;
    if (is_good) {
        check_results(functional, iteration);
    }
    return is_good;
}

static bool run_functional(struct functional *functional, uint32_t iteration, int64_t *time_out)
{
    struct bench_rank *rank = functional->rank;
    int64_t begin_ns = clock_now_ns();
    if (!bench_rank_check(rank, shoal_scope_begin(), "opening a scope")) {
        return false;
    }
    bool is_good = call_functional(functional);
    int64_t time_ns = clock_now_ns() - begin_ns;
    if (is_good) {
        check_results(functional, iteration);
    }
    begin_ns = clock_now_ns();
    shoal_status status = shoal_scope_end();
    *time_out = time_ns + (clock_now_ns() - begin_ns);
    return bench_rank_check(rank, status, "closing the scope") && is_good;
}

static bool measure(struct functional *functional, enum which which, int round)
{
    struct bench_rank *rank = functional->rank;
    uint32_t iteration = rank->iteration;
    int64_t time_ns;
    rank->iteration += CALLS;
    for (size_t i = 0; i < CALLS; i++) {
        if (!bench_rank_write(rank, functional->inputs[i], iteration + (uint32_t)i)) {
            return false;
        }
    }
    if (!measure_page_meet(rank->page, rank->number) ||
        !(which == RAW ? run_raw : run_functional)(functional, iteration, &time_ns)) {
        return false;
    }
    bench_rank_keep(rank, which, round, time_ns);
    return true;
}

/* The rank --------------------------------------------------------------------------------------------- */

static bool make_buffers(struct functional *functional)
{
    struct bench_rank *rank = functional->rank;
    for (size_t i = 0; i < CALLS; i++) {
        functional->inputs[i] = bench_rank_make_tensor(rank);
        if (!functional->inputs[i]) {
            return false;
        }
        functional->sends[i] = shoal_data(functional->inputs[i]);
    }
    size_t alignment = MEM_DATA_ALIGNMENT;
    functional->recv_stride = (rank->bench->bytes + alignment - 1) / alignment * alignment;
    functional->recv = mem_alloc_aligned(CALLS * functional->recv_stride, alignment);
    return functional->recv || bench_rank_check(rank, SHOAL_ERR_NO_MEMORY, "memory for results");
}

static bool run_rounds(struct bench_rank *rank)
{
    struct functional functional = {.rank = rank};
    bool is_good = make_buffers(&functional);
    for (int round = -N_WARMUPS; is_good && round < rank->bench->n_rounds; round++) {
        is_good = measure(&functional, RAW, round) && measure(&functional, FUNCTIONAL, round);
    }
    mem_free(functional.recv);
    return is_good;
}

/* The benchmark ---------------------------------------------------------------------------------------- */

static void fill_columns(const double *medians_us, double *columns_out)
{
    columns_out[0] = medians_us[RAW] / CALLS;
    columns_out[1] = medians_us[FUNCTIONAL] / CALLS;
    columns_out[2] = columns_out[1] - columns_out[0];
}

int bench_functional(int argc, char **argv)
{
    static const struct bench_tensors_kind kind = {
        .name = "functional",
        .options = &bench_functional_options,
        .run = run_rounds,
        .n_times = N_TIMES,
        .columns = {"raw_us", "functional_us", "overhead_us"},
        .fill_columns = fill_columns,
        .note = "batches   of 32 calls; opening and closing a scope, once a batch, counts",
    };
    return bench_tensors(&kind, argc, argv);
}
