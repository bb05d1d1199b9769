/* SPDX-License-Identifier: MIT */
/*
 * Measures how much memory steps of one kind take, with ranks that do nothing else. The heap is counted by
 * count_heap.h; shared memory is read from /proc.
 */
#include "bench/compiled.h"
#include "bench/ranks.h"
#include "common/count_heap.h"

#include "shoal/scope.h"
#include "shoal_nn/nn.h"

#include <stdio.h>

enum {
    N_STEPS = 4
};

/* Ranks -------------------------------------------------------------------------------------------------- */

static bool find_blas(const struct bench_compiled *bench, int rank)
{
    struct bench_compiled_found *found = bench->found;
    shoal_nn_blas info = {.struct_size = sizeof(info)};
    if (!bench_ranks_check("compiled", rank, shoal_nn_set_threads(bench->work.n_blas_threads),
                           "threads of the BLAS") ||
        !bench_ranks_check("compiled", rank, shoal_nn_blas_info(&info), "loading the BLAS")) {
        return false;
    }
    if (rank == 0) {
        (void)snprintf(found->library, sizeof(found->library), "%s", info.library);
        (void)snprintf(found->core, sizeof(found->core), "%s", info.core[0] ? info.core : "-");
    }
    return true;
}

static bool run_in_world(const struct bench_compiled *bench, int rank, shoal_world *world,
                         bool (*run)(void *context, shoal_world *world), void *context)
{
    if (!find_blas(bench, rank) ||
        !bench_ranks_check("compiled", rank, shoal_scope_begin(), "opening a scope")) {
        return false;
    }
    bool is_good = run(context, world);
    return bench_ranks_check("compiled", rank, shoal_scope_end(), "closing the scope") && is_good;
}

bool bench_compiled_run_rank(const struct bench_compiled *bench, int rank,
                             bool (*run)(void *context, shoal_world *world), void *context)
{
    shoal_world *world;
    bool is_good = bench_ranks_check("compiled", rank, count_heap_begin(), "counting memory") &&
                   bench_ranks_check("compiled", rank, bench_ranks_open_world(bench->ranks, rank, &world),
                                     "opening the world");
    return is_good &&
           bench_ranks_close_world(bench->ranks, rank, world, run_in_world(bench, rank, world, run, context));
}

/* Steps of one kind -------------------------------------------------------------------------------------- */

struct training {
    const struct bench_compiled *bench;
    struct measure_page *page;
    int rank;
};

static shoal_status train(const struct training *training, const struct bench_compiled_net *net)
{
    shoal_tensor *inputs[2];
    shoal_status status = bench_compiled_make_inputs(training->bench, inputs);
    for (int i = 0; i < N_STEPS && status == SHOAL_OK; i++) {
        shoal_tensor *loss = NULL;
        bench_compiled_write_inputs(inputs, training->rank, i);
        status = bench_compiled_step(net, inputs, &loss);
        shoal_tensor_unref(loss);
        status = status == SHOAL_OK ? bench_compiled_update(net) : status;
    }
    return status;
}

static bool run_training(void *context, shoal_world *world)
{
    struct training *training = context;
    const struct bench_compiled *bench = training->bench;
    struct bench_compiled_net net = {.root = NULL};
    shoal_status status = bench_compiled_make(bench, bench->kind, world, &net);
    bool is_good = bench_ranks_check("compiled", training->rank, status, "making a network") &&
                   bench_ranks_check("compiled", training->rank, train(training, &net), "a step");
    /* When all have made their last step, and nobody has freed anything. */
    if (is_good && measure_page_meet(training->page, training->rank)) {
        struct bench_compiled_found *found = bench->found;
        int rank = training->rank;
        found->ranks[rank].peak_bytes = count_heap_peak();
        found->ranks[rank].n_segments =
            bench_fsdp_find_segments("", found->ranks[rank].segments, BENCH_COMPILED_MAX_SEGMENTS);
        found->ranks[rank].n_windows =
            bench_fsdp_find_segments("window/", found->ranks[rank].windows, BENCH_FSDP_MAX_SEGMENTS);
        is_good = measure_page_meet(training->page, rank);
    }
    bench_compiled_free(&net);
    return is_good;
}

bool bench_compiled_run_memory(const void *context, struct measure_page *page, int rank)
{
    struct training training = {.bench = context, .page = page, .rank = rank};
    return bench_compiled_run_rank(context, rank, run_training, &training);
}
