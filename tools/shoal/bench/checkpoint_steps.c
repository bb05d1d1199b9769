/* SPDX-License-Identifier: MIT */
/*
 * Steps like those of training, while a save runs and while none does: matrix products on the rank's own memory, then
 * an all_reduce of gradients. The first element of that all_reduce tells all ranks how many of them have seen the end
 * of the save.
 */
#include "bench/checkpoint.h"
#include "bench/ranks.h"

#include "base/clock.h"
#include "shoal_nn/nn.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    WIDTH = 512,            /* of square matrices */
    N_GRADIENTS = 1 << 20,  /* of f32 */
    PRODUCTS_TIMED = 4,     /* to find out how many make a step */
    STEP_NS = 25 * 1000000, /* about */
    QUIET_STEPS = 20,
    MOST_STEPS = 4096 /* times that are kept */
};

struct bench_checkpoint_steps {
    const struct bench_checkpoint *bench;
    struct measure_page *page;
    int rank;
    shoal_group *group;
    float *matrices[3];
    float *gradients;
    int64_t *times_ns;
};

/* Making ------------------------------------------------------------------------------------------------- */

void bench_checkpoint_steps_free(struct bench_checkpoint_steps *steps)
{
    for (int i = 0; steps && i < 3; i++) {
        free(steps->matrices[i]);
    }
    if (steps) {
        free(steps->gradients);
        free(steps->times_ns);
    }
    free(steps);
}

static bool make_memory(struct bench_checkpoint_steps *steps)
{
    bool is_there = true;
    for (int i = 0; i < 3; i++) {
        steps->matrices[i] = calloc((size_t)WIDTH * WIDTH, sizeof(float));
        is_there = is_there && steps->matrices[i];
    }
    for (size_t i = 0; is_there && i < (size_t)WIDTH * WIDTH; i++) {
        steps->matrices[0][i] = (float)(i % 7) - 3.0f;
        steps->matrices[1][i] = (float)(i % 5) - 2.0f;
    }
    steps->gradients = calloc(N_GRADIENTS, sizeof(float));
    steps->times_ns = calloc(MOST_STEPS, sizeof(steps->times_ns[0]));
    if (!is_there || !steps->gradients || !steps->times_ns) {
        fprintf(stderr, "shoal bench checkpoint: rank %d: no memory for steps\n", steps->rank);
        return false;
    }
    return true;
}

static bool multiply(struct bench_checkpoint_steps *steps, int n_products)
{
    shoal_status status = SHOAL_OK;
    for (int i = 0; i < n_products && status == SHOAL_OK; i++) {
        status = shoal_nn_sgemm(false, false, WIDTH, WIDTH, WIDTH, steps->matrices[0], steps->matrices[1],
                                false, steps->matrices[2]);
    }
    return bench_ranks_check("checkpoint", steps->rank, status, "a matrix product");
}

/* How many products a step has: rank 0 says it, while all multiply. */
static bool calibrate(struct bench_checkpoint_steps *steps)
{
    if (!bench_ranks_check("checkpoint", steps->rank, shoal_nn_set_threads(1), "threads of the BLAS") ||
        !multiply(steps, 1) || !measure_page_meet(steps->page, steps->rank)) {
        return false;
    }
    int64_t begin_ns = clock_now_ns();
    bool is_good = multiply(steps, PRODUCTS_TIMED);
    int64_t product_ns = (clock_now_ns() - begin_ns) / PRODUCTS_TIMED + 1;
    if (steps->rank == 0) {
        int n_products = (int)(STEP_NS / product_ns);
        steps->bench->found->n_products = n_products > 0 ? n_products : 1;
    }
    return is_good && measure_page_meet(steps->page, steps->rank);
}

struct bench_checkpoint_steps *bench_checkpoint_steps_make(const struct bench_checkpoint *bench,
                                                           struct measure_page *page, int rank,
                                                           shoal_group *group)
{
    struct bench_checkpoint_steps *steps = calloc(1, sizeof(*steps));
    if (!steps) {
        fprintf(stderr, "shoal bench checkpoint: rank %d: no memory for steps\n", rank);
        return NULL;
    }
    *steps = (struct bench_checkpoint_steps){.bench = bench, .page = page, .rank = rank, .group = group};
    if (!make_memory(steps) || !calibrate(steps)) {
        bench_checkpoint_steps_free(steps);
        return NULL;
    }
    return steps;
}

/* Running ------------------------------------------------------------------------------------------------ */

/* How many ranks were done with the save when they began this step. */
static bool run_step(struct bench_checkpoint_steps *steps, bool is_done, int *n_done_out)
{
    if (!multiply(steps, steps->bench->found->n_products)) {
        return false;
    }
    steps->gradients[0] = is_done ? 1.0f : 0.0f;
    shoal_status status = shoal_group_all_reduce(steps->group, steps->gradients, steps->gradients,
                                                 N_GRADIENTS, SHOAL_F32, SHOAL_SUM);
    *n_done_out = (int)steps->gradients[0];
    return bench_ranks_check("checkpoint", steps->rank, status, "all_reduce");
}

static int compare_times(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left;
    int64_t b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* Beyond MOST_STEPS: of the last ones. */
static int64_t find_median(int64_t *times_ns, size_t n_steps)
{
    size_t n_times = n_steps < MOST_STEPS ? n_steps : MOST_STEPS;
    qsort(times_ns, n_times, sizeof(times_ns[0]), compare_times);
    return (times_ns[n_times / 2] + times_ns[n_times - 1 - n_times / 2]) / 2;
}

bool bench_checkpoint_steps_run(struct bench_checkpoint_steps *steps, const shoal_checkpoint_saving *saving,
                                int64_t *median_ns_out, size_t *n_steps_out)
{
    size_t n_steps = 0;
    bool is_over = false;
    if (!measure_page_meet(steps->page, steps->rank)) {
        return false;
    }
    /* Ranks leave a step together: the time from end to end is that of all. */
    for (int64_t begin_ns = clock_now_ns(); !is_over;) {
        int n_done = 0;
        if (!run_step(steps, saving && shoal_checkpoint_save_test(saving), &n_done)) {
            return false;
        }
        int64_t end_ns = clock_now_ns();
        if (n_done == 0 || n_steps == 0) {
            steps->times_ns[n_steps % MOST_STEPS] = end_ns - begin_ns;
            n_steps++;
        }
        begin_ns = end_ns;
        is_over = saving ? n_done > 0 : n_steps == QUIET_STEPS;
    }
    *median_ns_out = find_median(steps->times_ns, n_steps);
    *n_steps_out = n_steps;
    return true;
}
