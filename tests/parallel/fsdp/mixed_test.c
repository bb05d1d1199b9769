/* SPDX-License-Identifier: MIT */
/*
 * Mixed precision: what is gathered, added up, divided and kept, each in its own dtype, against an emulation of one
 * element at a time that shares nothing with the library but the rules: gradients are added in the dtype of compute,
 * reduced in that of the reduction, and kept in the one the parameter is stored in.
 */
#include "fixtures/fsdp_on_device.h"

#include "conformance/ops/scalar.h"
#include "fixtures/fsdp_model.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof(array)[0]))

enum {
    N_PARAMS = 3,
    N_MICRO = 3,
    MAX_COUNT = 24,
    MAX_RANKS = 4
};

static const struct {
    int n_dims;
    int64_t shape[2];
    int dim;
} params[N_PARAMS] = {{1, {7}, 0}, {2, {2, 12}, 1}, {2, {5, 3}, 0}};

static size_t count_of(int id)
{
    return (size_t)(params[id].shape[0] * (params[id].n_dims > 1 ? params[id].shape[1] : 1));
}

struct policy {
    shoal_dtype stored;
    shoal_dtype param;
    shoal_dtype reduce;
    double factor;
    bool force_sum;
    bool reduces_always;
};

static shoal_dtype compute_of(const struct policy *policy)
{
    return policy->param != 0 ? policy->param : policy->stored;
}

static shoal_dtype reduce_of(const struct policy *policy)
{
    return policy->reduce != 0 ? policy->reduce : compute_of(policy);
}

/* Numbers -------------------------------------------------------------------------------------------------- */

static double load(shoal_dtype dtype, const void *data, size_t i)
{
    return scalar_load(dtype, (const char *)data + i * dtype_bytes(dtype)).re;
}

static void store(shoal_dtype dtype, void *data, size_t i, double value)
{
    scalar_store(dtype, (char *)data + i * dtype_bytes(dtype), (struct scalar){.re = value});
}

static double start_of(int id, size_t i)
{
    return ((double)((i * 13 + (size_t)id * 5) % 29) - 14.0) * 0.1371;
}

/* What a rank's kernel adds in a micro-batch, before the rounding to the dtype of compute. */
static double contribution(int id, size_t i, int rank, int micro)
{
    int number = (int)((i * 5 + (size_t)(id * 3 + rank * 7 + micro * 11)) % 23) - 11;
    return ldexp(number * 0.3717, (int)((i + (size_t)rank) % 5) - 2);
}

/* The emulation -------------------------------------------------------------------------------------------- */

/* Halves are computed in f32. */
static double accumulate_round(shoal_dtype dtype, double value)
{
    return round_to(dtype == SHOAL_F64 ? SHOAL_F64 : SHOAL_F32, value);
}

static double divide(shoal_dtype dtype, double value, double divisor)
{
    return divisor == 1.0
               ? value
               : round_to(dtype, accumulate_round(dtype, value / accumulate_round(dtype, divisor)));
}

enum how {
    BY_SUM,
    BY_MEAN,
    BY_FACTOR
};

static double fold(shoal_dtype dtype, const double *values, int n, enum how how, double factor)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++) {
        double value = how == BY_FACTOR ? accumulate_round(dtype, values[i] * accumulate_round(dtype, factor))
                                        : values[i];
        sum = i == 0 ? value : accumulate_round(dtype, sum + value);
    }
    sum = how == BY_MEAN ? accumulate_round(dtype, sum / n) : sum;
    return round_to(dtype, sum);
}

struct ranks {
    int n_shards;
    int n_replicas;
};

/* Over all ranks, in rank order: shards, then replicas. */
static double reduce(const struct policy *policy, struct ranks ranks, const double *values)
{
    shoal_dtype dtype = reduce_of(policy);
    bool is_risky = dtype != SHOAL_F32 && dtype != SHOAL_BF16;
    int n_ranks = ranks.n_shards * ranks.n_replicas;
    double total = policy->factor > 0.0 ? policy->factor : n_ranks;
    double before = 1.0;
    double after = 1.0;
    enum how scatter = BY_SUM;
    enum how all_reduce = BY_SUM;
    if (is_risky) {
        while (fmod(total, before) == 0.0 && total / before > before) {
            before *= 2.0;
        }
        after = total / before;
    } else if (policy->force_sum) {
        after = total;
    } else if (policy->factor <= 0.0) {
        scatter = all_reduce = BY_MEAN;
    } else if (ranks.n_shards == 1) {
        before = total;
    } else {
        scatter = total == ranks.n_shards ? BY_MEAN : BY_FACTOR;
    }
    double outs[MAX_RANKS];
    for (int r = 0; r < ranks.n_replicas; r++) {
        double ins[MAX_RANKS];
        for (int s = 0; s < ranks.n_shards; s++) {
            ins[s] = divide(dtype, values[r * ranks.n_shards + s], before);
        }
        outs[r] = ranks.n_shards > 1 ? fold(dtype, ins, ranks.n_shards, scatter, 1.0 / total) : ins[0];
    }
    double out = ranks.n_replicas > 1 ? fold(dtype, outs, ranks.n_replicas, all_reduce, 1.0) : outs[0];
    return divide(dtype, out, after);
}

/* The gradient of an element after all micro-batches. */
static double emulate(const struct policy *policy, struct ranks ranks, int id, size_t i)
{
    shoal_dtype compute = compute_of(policy);
    shoal_dtype dtype = reduce_of(policy);
    double pending[MAX_RANKS] = {0.0};
    double gradient = 0.0;
    bool has_gradient = false;
    bool is_fresh = true;
    for (int micro = 0; micro < N_MICRO; micro++) {
        for (int rank = 0; rank < ranks.n_shards * ranks.n_replicas; rank++) {
            double mine = round_to(compute, contribution(id, i, rank, micro));
            if (compute == dtype) {
                pending[rank] = round_to(compute, (is_fresh ? 0.0 : pending[rank]) + mine);
            } else {
                double cast = round_to(dtype, mine);
                pending[rank] =
                    is_fresh ? cast : round_to(dtype, accumulate_round(dtype, pending[rank] + cast));
            }
        }
        is_fresh = false;
        if (policy->reduces_always || micro + 1 == N_MICRO) {
            double reduced = round_to(policy->stored, reduce(policy, ranks, pending));
            gradient = has_gradient ? round_to(policy->stored, gradient + reduced) : reduced;
            has_gradient = true;
            is_fresh = true;
        }
    }
    return gradient;
}

/* Ranks ---------------------------------------------------------------------------------------------------- */

static void add_params(shoal_fsdp *fsdp, shoal_dtype stored)
{
    for (int id = 0; id < N_PARAMS; id++) {
        char full[MAX_COUNT * 8];
        for (size_t i = 0; i < count_of(id); i++) {
            store(stored, full, i, round_to(stored, start_of(id, i)));
        }
        CHECK_OK(shoal_fsdp_add_param_along(fsdp, id > 0, "w", stored, params[id].n_dims, params[id].shape,
                                            params[id].dim, full, NULL));
    }
}

/* Full parameters are those that are stored, rounded to the dtype of compute. */
static void check_param(shoal_fsdp *fsdp, const struct policy *policy, int id)
{
    const void *whole = shoal_fsdp_full_param(fsdp, id);
    REQUIRE(whole != NULL);
    for (size_t i = 0; i < count_of(id); i++) {
        double wanted = round_to(compute_of(policy), round_to(policy->stored, start_of(id, i)));
        CHECK_DOUBLE(load(compute_of(policy), whole, i), wanted);
    }
}

static void add_gradient(shoal_fsdp *fsdp, const struct policy *policy, int id, int rank, int micro)
{
    shoal_dtype dtype = compute_of(policy);
    void *grad = shoal_fsdp_grad(fsdp, id);
    REQUIRE(grad != NULL);
    for (size_t i = 0; i < count_of(id); i++) {
        double mine = round_to(dtype, contribution(id, i, rank, micro));
        store(dtype, grad, i, round_to(dtype, load(dtype, grad, i) + mine));
    }
}

static void run_micro(shoal_fsdp *fsdp, const struct policy *policy, int rank, int micro)
{
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS),
                                 policy->reduces_always || micro + 1 == N_MICRO));
    for (int unit = 0; unit < 2; unit++) {
        CHECK_OK(shoal_fsdp_pre_forward(fsdp, unit));
        for (int id = 0; id < N_PARAMS; id++) {
            if ((id > 0) == (unit > 0)) {
                check_param(fsdp, policy, id);
            }
        }
        CHECK_OK(shoal_fsdp_post_forward(fsdp, unit));
    }
    for (int unit = 1; unit >= 0; unit--) {
        CHECK_OK(shoal_fsdp_pre_backward(fsdp, unit));
        for (int id = 0; id < N_PARAMS; id++) {
            if ((id > 0) == (unit > 0)) {
                check_param(fsdp, policy, id);
                add_gradient(fsdp, policy, id, rank, micro);
            }
        }
        CHECK_OK(shoal_fsdp_post_backward(fsdp, unit));
    }
    CHECK_OK(shoal_fsdp_end_backward(fsdp));
}

static void check_gradient(shoal_fsdp *fsdp, const struct policy *policy, struct ranks ranks, int id)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    REQUIRE_OK(shoal_fsdp_update_shard(fsdp, id, &shard));
    REQUIRE(shard.grad != NULL);
    int64_t inner = params[id].n_dims > 1 && params[id].dim == 0 ? params[id].shape[1] : 1;
    int64_t row = shard.length * inner;
    int64_t whole_row = params[id].shape[params[id].dim] * inner;
    for (size_t k = 0; k < shard.count; k++) {
        int64_t outer = (int64_t)k / row;
        size_t i = (size_t)(outer * whole_row + shard.offset * inner + (int64_t)k % row);
        REQUIRE(CHECK_DOUBLE(load(policy->stored, shard.grad, k), emulate(policy, ranks, id, i)));
    }
}

static void check_policy(shoal_world *world, enum model_mode mode, const struct policy *policy)
{
    struct model_case c = {.mode = mode, .n_ranks = shoal_world_n_ranks(world), .n_replicas = 2};
    c.options = (shoal_fsdp_options){.param_dtype = policy->param,
                                     .reduce_dtype = policy->reduce,
                                     .divide_factor = policy->factor,
                                     .force_sum = policy->force_sum};
    struct ranks ranks = {c.n_ranks, 1};
    if (mode != MODEL_FSDP) {
        ranks = mode == MODEL_DDP ? (struct ranks){1, c.n_ranks} : (struct ranks){c.n_ranks / 2, 2};
    }
    shoal_mesh *mesh = NULL;
    shoal_fsdp *fsdp = NULL;
    REQUIRE_OK(model_create(world, &c, &mesh, &fsdp));
    add_params(fsdp, policy->stored);
    int n_steps = policy->factor > 0.0 ? 1 : 2;
    for (int step = 0; step < n_steps; step++) {
        for (int micro = 0; micro < N_MICRO; micro++) {
            run_micro(fsdp, policy, shoal_world_rank(world), micro);
        }
        for (int id = 0; id < N_PARAMS; id++) {
            check_gradient(fsdp, policy, ranks, id);
        }
        CHECK_OK(shoal_fsdp_zero_grad(fsdp));
    }
    if (test_has_failed()) {
        test_failed(__FILE__, __LINE__, "mode %d, stored %s, compute %s, reduced in %s, factor %g%s%s",
                    (int)mode, shoal_dtype_name(policy->stored), shoal_dtype_name(compute_of(policy)),
                    shoal_dtype_name(reduce_of(policy)), policy->factor, policy->force_sum ? ", sum" : "",
                    policy->reduces_always ? ", reduced always" : "");
    }
    shoal_fsdp_free(fsdp);
    shoal_mesh_free(mesh);
}

static const struct {
    shoal_dtype stored;
    shoal_dtype param;
    shoal_dtype reduce;
} dtypes[] = {
    {SHOAL_F32, 0, 0},
    {SHOAL_F32, SHOAL_BF16, 0},
    {SHOAL_F32, SHOAL_BF16, SHOAL_BF16},
    {SHOAL_F32, SHOAL_BF16, SHOAL_F32},
    {SHOAL_F32, SHOAL_BF16, SHOAL_F16},
    {SHOAL_F32, 0, SHOAL_BF16},
    {SHOAL_F32, SHOAL_F16, 0},
    {SHOAL_F32, SHOAL_F16, SHOAL_F32},
    {SHOAL_BF16, 0, SHOAL_F32},
    {SHOAL_BF16, 0, 0},
    {SHOAL_F16, SHOAL_F32, 0},
    {SHOAL_F64, SHOAL_F32, SHOAL_F64},
    {SHOAL_F32, 0, SHOAL_F64},
};

/* 3.3 is no number of any format; 100001 none of f16 and bf16. */
static const double factors[] = {0.0, 1.0, 2.0, 3.3, 4.0, 100001.0};

static void check_all(struct rank *self, enum model_mode mode)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (int d = 0; d < LENGTH(dtypes); d++) {
        for (int k = 0; k < LENGTH(factors) * 4 && !test_has_failed(); k++) {
            struct policy policy = {.stored = dtypes[d].stored,
                                    .param = dtypes[d].param,
                                    .reduce = dtypes[d].reduce,
                                    .factor = factors[k / 4],
                                    .force_sum = k % 2 == 1,
                                    .reduces_always = k / 2 % 2 == 1};
            if (test_takes(self, d + k % 2 + k / 2 % 2 + k / 4)) {
                check_policy(world, mode, &policy);
            }
        }
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(alone, 1)
{
    check_all(self, MODEL_FSDP);
}

TEST_RANKS(replicas_alone, 1)
{
    check_all(self, MODEL_DDP);
}

TEST_RANKS(shards_of_two, 2)
{
    check_all(self, MODEL_FSDP);
}

TEST_RANKS(shards_of_four, 4)
{
    check_all(self, MODEL_FSDP);
}

TEST_RANKS(replicas_of_three, 3)
{
    check_all(self, MODEL_DDP);
}

TEST_RANKS(two_replicas_of_two, 4)
{
    check_all(self, MODEL_HSDP);
}

TEST_RANKS(two_replicas_of_one, 2)
{
    check_all(self, MODEL_HSDP);
}

/* Digits --------------------------------------------------------------------------------------------------- */

/* bf16 has eight digits: 256 + 1 is 256. Adds `values` in turn; 'r': that backward pass reduces. */
static double add_up(shoal_world *world, shoal_dtype reduce_dtype, const double *values, const char *how)
{
    shoal_fsdp_options options = {
        .struct_size = sizeof options, .param_dtype = SHOAL_BF16, .reduce_dtype = reduce_dtype};
    shoal_fsdp *fsdp = NULL;
    double sum = (double)NAN;
    if (!CHECK_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp))) {
        return sum;
    }
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, (const int64_t[]){1}, NULL, NULL));
    for (int i = 0; how[i]; i++) {
        CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), how[i] == 'r'));
        CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
        CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
        CHECK_OK(shoal_fsdp_pre_backward(fsdp, 0));
        void *grad = shoal_fsdp_grad(fsdp, 0);
        CHECK(grad != NULL);
        if (grad) {
            store(SHOAL_BF16, grad, 0, round_to(SHOAL_BF16, load(SHOAL_BF16, grad, 0) + values[i]));
        }
        CHECK_OK(shoal_fsdp_post_backward(fsdp, 0));
        CHECK_OK(shoal_fsdp_end_backward(fsdp));
    }
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    CHECK_OK(shoal_fsdp_update_shard(fsdp, 0, &shard));
    sum = shard.count > 0 && shard.grad ? load(SHOAL_F32, shard.grad, 0) : (double)NAN;
    shoal_fsdp_free(fsdp);
    return shoal_world_rank(world) == 0 ? sum : 0.0;
}

TEST_RANKS(digits_are_lost_where_they_should_be, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    const double three[] = {256.0, 1.0, -256.0};
    const double four[] = {3.0, 256.0, 1.0, -256.0};
    double is_here = self->rank == 0 ? 1.0 : 0.0;
    /* What was reduced is f32; what waits is bf16. */
    CHECK_DOUBLE(add_up(world, 0, three, "r-r"), 1.0 * is_here);
    CHECK_DOUBLE(add_up(world, 0, three, "rrr"), 1.0 * is_here);
    CHECK_DOUBLE(add_up(world, 0, three, "--r"), 0.0);
    CHECK_DOUBLE(add_up(world, 0, four, "r--r"), 3.0 * is_here);
    /* It waits in the dtype of the reduction. */
    CHECK_DOUBLE(add_up(world, SHOAL_F32, three, "--r"), 1.0 * is_here);
    CHECK_DOUBLE(add_up(world, SHOAL_F32, four, "r--r"), 4.0 * is_here);
    CHECK_DOUBLE(add_up(world, SHOAL_BF16, three, "--r"), 0.0);
    CHECK_DOUBLE(add_up(world, SHOAL_F16, three, "--r"), 1.0 * is_here);
    CHECK_OK(shoal_world_close(world));
}
