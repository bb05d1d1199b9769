/* SPDX-License-Identifier: MIT */
/*
 * Steps of `shoal bench fsdp`: forward and backward pass through a chain of matrices, by the explicit calls on shards
 * (shoal/fsdp.h), and by the same matrix products on the rank's own whole weights. A round is one step of each, from
 * the same weights and the same input. After it, outside the clock, both are updated and all results are compared bit
 * by bit.
 */
#include "bench/fsdp.h"
#include "bench/ranks.h"

#include "base/clock.h"
#include "base/mem.h"
#include "shoal/fsdp.h"
#include "shoal/group.h"
#include "shoal/world.h"
#include "shoal_nn/nn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    N_WARMUPS = 3
};

enum which {
    WITH,
    WITHOUT
};

/* Small enough that the chain stays where it began for as many rounds as anybody asks for. */
#define LEARNING_RATE 0.01f

/* The name of a matrix is its number. */
struct matrix {
    int unit;
    size_t n_out;
    size_t n_in;
    float *weights;  /* whole, of this rank's own */
    float *gradient; /* of the whole weights, of this rank's own */
};

struct network {
    const struct bench_fsdp *bench;
    struct measure_page *page;
    int rank;
    int n_ranks;
    shoal_group *group;
    shoal_fsdp *fsdp;
    struct matrix *matrices;
    int n_matrices;
    float **values;     /* input of every matrix, and the result */
    float *upstream[2]; /* gradients of values, in turn */
    float *result;      /* of the first step of a round */
    float *gathered;    /* a matrix */
    uint64_t n_wrong;
};

static size_t count(const struct matrix *matrix)
{
    return matrix->n_out * matrix->n_in;
}

static bool check(const struct network *network, shoal_status status, const char *what)
{
    return bench_ranks_check("fsdp", network->rank, status, what);
}

/* Numbers between -1 and 1 that depend on nothing but the seed. */
static float draw(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / 8388608.0f - 1.0f;
}

/* Making ------------------------------------------------------------------------------------------------- */

static void describe_matrices(struct network *network)
{
    const struct bench_fsdp_work *work = &network->bench->work;
    size_t width = (size_t)work->width;
    for (int i = 0; i < work->n_units * BENCH_FSDP_MATRICES; i++) {
        size_t wide = width * BENCH_FSDP_WIDENING;
        network->matrices[i] = (struct matrix){.unit = i / BENCH_FSDP_MATRICES,
                                               .n_out = i % 2 == 0 ? wide : width,
                                               .n_in = i % 2 == 0 ? width : wide};
    }
    if (work->n_last > 0) {
        network->matrices[network->n_matrices - 1] =
            (struct matrix){.unit = work->n_units, .n_out = (size_t)work->n_last, .n_in = width};
    }
}

static float *allocate(size_t n_values)
{
    return mem_alloc_aligned(n_values * sizeof(float), MEM_DATA_ALIGNMENT);
}

static bool make_matrix(struct matrix *matrix, uint32_t seed)
{
    float scale = 1.7f / sqrtf((float)matrix->n_in);
    matrix->weights = allocate(count(matrix));
    matrix->gradient = allocate(count(matrix));
    for (size_t i = 0; matrix->weights && i < count(matrix); i++) {
        matrix->weights[i] = draw(&seed) * scale;
    }
    return matrix->weights && matrix->gradient;
}

/* The widest values, and the largest matrix. */
static bool make_memory(struct network *network)
{
    size_t n_tokens = (size_t)network->bench->work.n_tokens;
    size_t widest = 0;
    size_t largest = 0;
    for (int i = 0; i < network->n_matrices; i++) {
        struct matrix *matrix = &network->matrices[i];
        size_t wider = matrix->n_out > matrix->n_in ? matrix->n_out : matrix->n_in;
        widest = wider > widest ? wider : widest;
        largest = count(matrix) > largest ? count(matrix) : largest;
        network->values[i] = allocate(n_tokens * matrix->n_in);
        if (!make_matrix(matrix, (uint32_t)i) || !network->values[i]) {
            return false;
        }
    }
    size_t n_result = n_tokens * network->matrices[network->n_matrices - 1].n_out;
    network->values[network->n_matrices] = allocate(n_result);
    network->result = allocate(n_result);
    network->upstream[0] = allocate(n_tokens * widest);
    network->upstream[1] = allocate(n_tokens * widest);
    network->gathered = allocate(largest);
    return network->values[network->n_matrices] && network->result && network->upstream[0] &&
           network->upstream[1] && network->gathered;
}

static bool make_network(struct network *network)
{
    const struct bench_fsdp_work *work = &network->bench->work;
    network->n_matrices = work->n_units * BENCH_FSDP_MATRICES + (work->n_last > 0);
    network->matrices = mem_alloc_zeroed((size_t)network->n_matrices, sizeof(network->matrices[0]));
    network->values = mem_alloc_zeroed((size_t)network->n_matrices + 1, sizeof(network->values[0]));
    if (!network->matrices || !network->values) {
        return check(network, SHOAL_ERR_NO_MEMORY, "memory for the network");
    }
    describe_matrices(network);
    return make_memory(network) || check(network, SHOAL_ERR_NO_MEMORY, "memory for the network");
}

static void free_network(struct network *network)
{
    for (int i = 0; network->matrices && i < network->n_matrices; i++) {
        mem_free(network->matrices[i].weights);
        mem_free(network->matrices[i].gradient);
    }
    for (int i = 0; network->values && i <= network->n_matrices; i++) {
        mem_free(network->values[i]);
    }
    mem_free(network->upstream[0]);
    mem_free(network->upstream[1]);
    mem_free(network->result);
    mem_free(network->gathered);
    mem_free(network->matrices);
    mem_free(network->values);
}

static shoal_status shard(struct network *network)
{
    const shoal_fsdp_options options = {.struct_size = sizeof options,
                                        .sharded = network->bench->work.sharded};
    shoal_status status = shoal_fsdp_create(network->group, &options, &network->fsdp);
    for (int i = 0; status == SHOAL_OK && i < network->n_matrices; i++) {
        char name[16];
        const struct matrix *matrix = &network->matrices[i];
        const int64_t shape[] = {(int64_t)matrix->n_out, (int64_t)matrix->n_in};
        (void)snprintf(name, sizeof(name), "%d", i);
        status = shoal_fsdp_add_param(network->fsdp, matrix->unit, name, SHOAL_F32, 2, shape, matrix->weights,
                                      NULL);
    }
    return status;
}

/* Computing ---------------------------------------------------------------------------------------------- */

/* y = x W^T */
static shoal_status multiply_forward(struct network *network, int i, const float *weights)
{
    const struct matrix *matrix = &network->matrices[i];
    return shoal_nn_sgemm(false, true, (size_t)network->bench->work.n_tokens, matrix->n_out, matrix->n_in,
                          network->values[i], weights, false, network->values[i + 1]);
}

/* dW = dy^T x, dx = dy W */
static shoal_status multiply_backward(struct network *network, int i, const float *weights, float *gradient,
                                      bool adds)
{
    const struct matrix *matrix = &network->matrices[i];
    size_t n_tokens = (size_t)network->bench->work.n_tokens;
    const float *from = network->upstream[(i + 1) % 2];
    shoal_status status = shoal_nn_sgemm(true, false, matrix->n_out, matrix->n_in, n_tokens, from,
                                         network->values[i], adds, gradient);
    return status == SHOAL_OK ? shoal_nn_sgemm(false, false, n_tokens, matrix->n_in, matrix->n_out, from,
                                               weights, false, network->upstream[i % 2])
                              : status;
}

/* Of half the mean square of a token. */
static void start_backward(struct network *network)
{
    int last = network->n_matrices;
    size_t n_tokens = (size_t)network->bench->work.n_tokens;
    size_t n_values = n_tokens * network->matrices[last - 1].n_out;
    for (size_t i = 0; i < n_values; i++) {
        network->upstream[last % 2][i] = network->values[last][i] / (float)n_tokens;
    }
}

static bool is_first_of_unit(const struct network *network, int i)
{
    return i == 0 || network->matrices[i - 1].unit != network->matrices[i].unit;
}

static bool is_last_of_unit(const struct network *network, int i)
{
    return i == network->n_matrices - 1 || network->matrices[i + 1].unit != network->matrices[i].unit;
}

static shoal_status forward_with(struct network *network)
{
    shoal_status status = SHOAL_OK;
    for (int i = 0; status == SHOAL_OK && i < network->n_matrices; i++) {
        int unit = network->matrices[i].unit;
        if (is_first_of_unit(network, i)) {
            status = shoal_fsdp_pre_forward(network->fsdp, unit);
        }
        if (status == SHOAL_OK) {
            status = multiply_forward(network, i, shoal_fsdp_full_param(network->fsdp, i));
        }
        if (status == SHOAL_OK && is_last_of_unit(network, i)) {
            status = shoal_fsdp_post_forward(network->fsdp, unit);
        }
    }
    return status;
}

static shoal_status backward_with(struct network *network)
{
    shoal_status status = SHOAL_OK;
    for (int i = network->n_matrices - 1; status == SHOAL_OK && i >= 0; i--) {
        int unit = network->matrices[i].unit;
        if (is_last_of_unit(network, i)) {
            status = shoal_fsdp_pre_backward(network->fsdp, unit);
        }
        if (status == SHOAL_OK) {
            bool adds = false;
            float *gradient = shoal_fsdp_grad_to_store(network->fsdp, i, &adds);
            status = multiply_backward(network, i, shoal_fsdp_full_param(network->fsdp, i), gradient, adds);
        }
        if (status == SHOAL_OK && is_first_of_unit(network, i)) {
            status = shoal_fsdp_post_backward(network->fsdp, unit);
        }
    }
    return status == SHOAL_OK ? shoal_fsdp_end_backward(network->fsdp) : status;
}

static shoal_status step_with(struct network *network)
{
    shoal_status status = forward_with(network);
    start_backward(network);
    return status == SHOAL_OK ? backward_with(network) : status;
}

static shoal_status step_without(struct network *network)
{
    shoal_status status = SHOAL_OK;
    for (int i = 0; status == SHOAL_OK && i < network->n_matrices; i++) {
        status = multiply_forward(network, i, network->matrices[i].weights);
    }
    start_backward(network);
    for (int i = network->n_matrices - 1; status == SHOAL_OK && i >= 0; i--) {
        status = multiply_backward(network, i, network->matrices[i].weights, network->matrices[i].gradient,
                                   /*adds=*/false);
    }
    return status;
}

/* Checking ----------------------------------------------------------------------------------------------- */

static void compare(struct network *network, const void *left, const void *right, size_t n_values)
{
    if (n_values == 0 || memcmp(left, right, n_values * sizeof(float)) == 0) {
        return;
    }
    const uint32_t *a = left;
    const uint32_t *b = right;
    for (size_t i = 0; i < n_values; i++) {
        network->n_wrong += a[i] != b[i];
    }
}

static void update(float *weights, const float *gradient, size_t n_values)
{
    for (size_t i = 0; i < n_values; i++) {
        weights[i] -= LEARNING_RATE * gradient[i];
    }
}

/* What all ranks' whole gradients say, against what the shards have; then both weights move. */
static shoal_status update_matrix(struct network *network, int i)
{
    struct matrix *matrix = &network->matrices[i];
    shoal_fsdp_shard part = SHOAL_FSDP_SHARD_INIT;
    shoal_status status = shoal_group_all_reduce(network->group, matrix->gradient, matrix->gradient,
                                                 count(matrix), SHOAL_F32, SHOAL_SUM);
    if (status == SHOAL_OK) {
        status = shoal_fsdp_update_shard(network->fsdp, i, &part);
    }
    if (status != SHOAL_OK) {
        return status;
    }
    for (size_t k = 0; k < count(matrix); k++) {
        matrix->gradient[k] /= (float)network->n_ranks;
    }
    compare(network, part.grad, matrix->gradient + (size_t)part.offset * matrix->n_in, part.count);
    update(part.data, part.grad, part.count);
    update(matrix->weights, matrix->gradient, count(matrix));
    return SHOAL_OK;
}

static bool finish_round(struct network *network)
{
    shoal_status status = SHOAL_OK;
    for (int i = 0; status == SHOAL_OK && i < network->n_matrices; i++) {
        status = update_matrix(network, i);
        if (status == SHOAL_OK) {
            status = shoal_fsdp_gather(shoal_fsdp_param_of(network->fsdp, i), network->gathered,
                                       SHOAL_FSDP_ALL_RANKS);
        }
        if (status == SHOAL_OK) {
            compare(network, network->gathered, network->matrices[i].weights, count(&network->matrices[i]));
        }
    }
    return check(network, status, "comparing") &&
           check(network, shoal_fsdp_zero_grad(network->fsdp), "clearing gradients");
}

/* Rounds ------------------------------------------------------------------------------------------------- */

static void write_input(struct network *network, int round)
{
    uint32_t seed = (uint32_t)(round * MEASURE_MAX_RANKS + network->rank);
    size_t n_values = (size_t)network->bench->work.n_tokens * network->matrices[0].n_in;
    for (size_t i = 0; i < n_values; i++) {
        network->values[0][i] = draw(&seed);
    }
}

static bool measure(struct network *network, enum which which, int round)
{
    int64_t lanes_ns = bench_fsdp_lanes_ns();
    if (!measure_page_meet(network->page, network->rank)) {
        return false;
    }
    int64_t begin_ns = clock_now_ns();
    shoal_status status = which == WITH ? step_with(network) : step_without(network);
    int64_t time_ns = clock_now_ns() - begin_ns;
    if (round >= 0 && which == WITH) {
        network->bench->found->ranks[network->rank].lanes_ns += bench_fsdp_lanes_ns() - lanes_ns;
    }
    if (round >= 0) {
        size_t at = (size_t)which * (size_t)network->bench->n_rounds + (size_t)round;
        measure_page_times(network->page, network->rank)[at] = time_ns;
    }
    return check(network, status, "a step");
}

/* They take turns in coming first. */
static bool run_round(struct network *network, int round)
{
    enum which first = round % 2 == 0 ? WITH : WITHOUT;
    int last = network->n_matrices;
    size_t n_result = (size_t)network->bench->work.n_tokens * network->matrices[last - 1].n_out;
    write_input(network, round);
    if (!measure(network, first, round)) {
        return false;
    }
    memcpy(network->result, network->values[last], n_result * sizeof(float));
    if (!measure(network, first == WITH ? WITHOUT : WITH, round)) {
        return false;
    }
    compare(network, network->result, network->values[last], n_result);
    return finish_round(network);
}

static bool find_blas(struct network *network)
{
    struct bench_fsdp_found *found = network->bench->found;
    shoal_nn_blas info = {.struct_size = sizeof(info)};
    if (!check(network, shoal_nn_set_threads(network->bench->work.n_blas_threads), "threads of the BLAS") ||
        !check(network, shoal_nn_blas_info(&info), "loading the BLAS")) {
        return false;
    }
    if (network->rank == 0) {
        (void)snprintf(found->library, sizeof(found->library), "%s", info.library);
        (void)snprintf(found->core, sizeof(found->core), "%s", info.core[0] ? info.core : "-");
    }
    return true;
}

static bool run_network(struct network *network)
{
    if (!find_blas(network) || !make_network(network) || !check(network, shard(network), "sharding")) {
        return false;
    }
    bool is_good = true;
    for (int round = -N_WARMUPS; is_good && round < network->bench->n_rounds; round++) {
        is_good = run_round(network, round);
    }
    struct bench_fsdp_found *found = network->bench->found;
    found->ranks[network->rank].n_windows =
        bench_fsdp_find_segments("window/", found->ranks[network->rank].windows, BENCH_FSDP_MAX_SEGMENTS);
    *measure_page_wrong(network->page, network->rank) = network->n_wrong;
    return is_good;
}

static bool run_in_world(struct network *network)
{
    shoal_world *world;
    if (!check(network, bench_ranks_open_world(network->bench->ranks, network->rank, &world),
               "opening the world")) {
        return false;
    }
    network->group = shoal_world_group(world);
    const struct bench_ranks *ranks = network->bench->ranks;
    bool is_good = bench_ranks_agree(ranks, world, run_network(network));
    shoal_fsdp_free(network->fsdp);
    free_network(network);
    return bench_ranks_close_world(ranks, network->rank, world, is_good);
}

bool bench_fsdp_run_steps(const void *context, struct measure_page *page, int rank)
{
    const struct bench_fsdp *bench = context;
    struct network network = {.bench = bench, .page = page, .rank = rank, .n_ranks = bench->request.n_ranks};
    return run_in_world(&network);
}
