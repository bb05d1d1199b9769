/* SPDX-License-Identifier: MIT */
/*
 * Units inside others, and units that are used twice, by the explicit calls: what shoal/fsdp.h says about a tied
 * embedding. Unit 0 is used at both ends of the model, units 1 and 2 lie between. Gradients depend on the weights
 * that are read, so that a wrong one is seen; one process computes the same without the library.
 */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_kinds.h"

enum {
    N_UNITS = 3,
    N_PARAMS = 5,
    N_STEPS = 3,
    ROOM = 36
};

static const struct {
    int unit;
    int n_dims;
    int64_t shape[2];
    int dim;
} params[N_PARAMS] = {
    {0, 2, {7, 3}, 0}, {0, 2, {2, 12}, 1}, {1, 2, {3, 12}, 1}, {1, 1, {5}, 0}, {2, 2, {4, 3}, 0}};

static size_t count_of(int id)
{
    return (size_t)(params[id].shape[0] * (params[id].n_dims > 1 ? params[id].shape[1] : 1));
}

/* How unit 0 is opened. */
enum way {
    AROUND,       /* once in forward and in backward, around the others */
    TWICE_AROUND, /* twice in forward; once in backward, around the others */
    TWICE,        /* twice in both: each backward pass is reduced */
    CROSSED       /* closed while another is open, in forward and in backward */
};

/* What one use of a parameter adds to its gradient. */
static void add_use(int id, int use, int step, int part, const float *weights, float *gradient)
{
    uint32_t seed = (uint32_t)(id * 1000 + use * 500 + step * 10 + part + 1);
    for (size_t i = 0; i < count_of(id); i++) {
        gradient[i] += model_draw(&seed) * (1.0F + weights[i]);
    }
}

/* One process -------------------------------------------------------------------------------------------- */

struct alone {
    float weights[N_PARAMS][ROOM];
    float parts[2][MODEL_MAX_RANKS][N_PARAMS][ROOM]; /* of both reductions, if there are two */
};

static float mean_of(const struct alone *alone, int reduction, int id, size_t i, int n_ranks, int n_replicas)
{
    float parts[MODEL_MAX_RANKS];
    for (int part = 0; part < n_ranks; part++) {
        parts[part] = alone->parts[reduction][part][id][i];
    }
    return model_mean(parts, n_ranks, n_replicas);
}

static void step_alone(struct alone *alone, enum way way, int step, int n_ranks, int n_replicas)
{
    memset(alone->parts, 0, sizeof alone->parts);
    for (int part = 0; part < n_ranks; part++) {
        for (int id = 0; id < N_PARAMS; id++) {
            bool is_outer = params[id].unit == 0;
            int last = is_outer && way == TWICE;
            add_use(id, 0, step, part, alone->weights[id], alone->parts[0][part][id]);
            if (is_outer) {
                add_use(id, 1, step, part, alone->weights[id], alone->parts[last][part][id]);
            }
        }
    }
    for (int id = 0; id < N_PARAMS; id++) {
        for (size_t i = 0; i < count_of(id); i++) {
            float gradient = mean_of(alone, 0, id, i, n_ranks, n_replicas);
            if (params[id].unit == 0 && way == TWICE) {
                gradient += mean_of(alone, 1, id, i, n_ranks, n_replicas);
            }
            alone->weights[id][i] -= 0.1F * gradient;
        }
    }
}

/* Ranks -------------------------------------------------------------------------------------------------- */

/* The weights of a unit are what one process has. */
static void check_weights(shoal_fsdp *fsdp, const struct alone *alone, int unit)
{
    for (int id = 0; id < N_PARAMS; id++) {
        if (params[id].unit == unit) {
            const void *weights = shoal_fsdp_full_param(fsdp, id);
            CHECK(weights && CHECK_BYTES(weights, alone->weights[id], count_of(id) * sizeof(float)));
        }
    }
}

static void use_backward(shoal_fsdp *fsdp, int unit, int use, int step, int part)
{
    for (int id = 0; id < N_PARAMS; id++) {
        if (params[id].unit == unit) {
            const float *weights = shoal_fsdp_full_param(fsdp, id);
            float *gradient = shoal_fsdp_grad(fsdp, id);
            REQUIRE(weights && gradient);
            add_use(id, use, step, part, weights, gradient);
        }
    }
}

static void run_forward(shoal_fsdp *fsdp, const struct alone *alone, enum way way)
{
    bool is_closed_early = way == TWICE || way == TWICE_AROUND;
    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    check_weights(fsdp, alone, 0);
    if (is_closed_early) {
        CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    }
    for (int unit = 1; unit < N_UNITS; unit++) {
        CHECK_OK(shoal_fsdp_pre_forward(fsdp, unit));
        check_weights(fsdp, alone, unit);
        if (way == CROSSED && unit == N_UNITS - 1) {
            CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
        }
        CHECK_OK(shoal_fsdp_post_forward(fsdp, unit));
    }
    if (is_closed_early) {
        CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    }
    if (way != CROSSED) {
        check_weights(fsdp, alone, 0);
        CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    }
}

static void run_backward(shoal_fsdp *fsdp, enum way way, int step, int part)
{
    CHECK_OK(shoal_fsdp_pre_backward(fsdp, 0));
    use_backward(fsdp, 0, 0, step, part);
    if (way == TWICE) {
        CHECK_OK(shoal_fsdp_post_backward(fsdp, 0));
    }
    for (int unit = N_UNITS - 1; unit > 0; unit--) {
        CHECK_OK(shoal_fsdp_pre_backward(fsdp, unit));
        if (way == CROSSED && unit == 1) {
            use_backward(fsdp, 0, 1, step, part);
            CHECK_OK(shoal_fsdp_post_backward(fsdp, 0));
        }
        use_backward(fsdp, unit, 0, step, part);
        CHECK_OK(shoal_fsdp_post_backward(fsdp, unit));
    }
    if (way == TWICE) {
        CHECK_OK(shoal_fsdp_pre_backward(fsdp, 0));
    }
    if (way != CROSSED) {
        use_backward(fsdp, 0, 1, step, part);
        CHECK_OK(shoal_fsdp_post_backward(fsdp, 0));
    }
    CHECK_OK(shoal_fsdp_end_backward(fsdp));
}

static void update(shoal_fsdp *fsdp)
{
    for (int id = 0; id < N_PARAMS; id++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_update_shard(fsdp, id, &shard));
        REQUIRE(shard.grad != NULL);
        for (size_t i = 0; i < shard.count; i++) {
            ((float *)shard.data)[i] -= 0.1F * ((const float *)shard.grad)[i];
        }
    }
    CHECK_OK(shoal_fsdp_zero_grad(fsdp));
}

static void check_way(struct rank *self, enum model_mode mode, enum way way,
                      const shoal_fsdp_options *options)
{
    struct setting s;
    struct alone alone;
    int n_replicas = mode == MODEL_HSDP ? 2 : 1;
    REQUIRE(setting_open(self, &s, mode, options));
    for (int id = 0; id < N_PARAMS; id++) {
        uint32_t seed = (uint32_t)id + 9;
        for (size_t i = 0; i < count_of(id); i++) {
            alone.weights[id][i] = model_draw(&seed);
        }
        CHECK_OK(shoal_fsdp_add_param_along(s.fsdp, params[id].unit, "w", SHOAL_F32, params[id].n_dims,
                                            params[id].shape, params[id].dim, alone.weights[id], NULL));
    }
    for (int step = 0; step < N_STEPS && !test_has_failed(); step++) {
        run_forward(s.fsdp, &alone, way);
        run_backward(s.fsdp, way, step, s.rank);
        step_alone(&alone, way, step, s.n_ranks, n_replicas);
        update(s.fsdp);
    }
    run_forward(s.fsdp, &alone, way); /* shows the weights of the last step */
    CHECK_OK(shoal_fsdp_end_forward(s.fsdp));
    if (test_has_failed()) {
        test_failed(__FILE__, __LINE__, "way %d, reshard %d, prefetch %d, %d at once", (int)way,
                    options ? (int)options->reshard : 0, options ? options->forward_prefetch : 0,
                    options ? options->max_reduces : 0);
    }
    setting_close(&s);
}

static void check_ways(struct rank *self, enum model_mode mode)
{
    int n_shards = mode == MODEL_HSDP ? self->n_ranks / 2 : self->n_ranks;
    bool may_keep = mode != MODEL_DDP && n_shards % 2 == 0;
    shoal_fsdp_options all[] = {{.reshard = SHOAL_RESHARD_ALWAYS},
                                {.reshard = SHOAL_RESHARD_NEVER},
                                {.reshard = SHOAL_RESHARD_PARTLY, .reshard_ranks = may_keep ? 2 : 1},
                                {.forward_prefetch = -1},
                                {.forward_prefetch = 3},
                                {.max_reduces = 3},
                                {.force_sum = true}};
    for (enum way way = AROUND; way <= CROSSED; way++) {
        for (int i = 0; i < LENGTH(all) && !test_has_failed(); i++) {
            check_way(self, mode, way, &all[i]);
        }
    }
}

TEST_RANKS(alone, 1)
{
    check_ways(self, MODEL_FSDP);
}

TEST_RANKS(two_shards, 2)
{
    check_ways(self, MODEL_FSDP);
}

TEST_RANKS(three_shards, 3)
{
    check_ways(self, MODEL_FSDP);
}

TEST_RANKS(four_shards, 4)
{
    check_ways(self, MODEL_FSDP);
}

TEST_RANKS(two_by_two, 4)
{
    check_ways(self, MODEL_HSDP);
}

TEST_RANKS(replicas, 3)
{
    check_ways(self, MODEL_DDP);
}
