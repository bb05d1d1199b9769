/* SPDX-License-Identifier: MIT */
/*
 * Gradients that wait: looked at, changed, and reduced without a backward pass. Reduced by hand after the last
 * backward pass of a step they must have the bits that they have when that backward pass reduces them.
 */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_model.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof(array)[0]))

struct setting {
    shoal_world *world;
    shoal_mesh *mesh;
    shoal_fsdp *fsdp;
};

static bool setting_open(struct setting *s, struct rank *self, const struct model_case *c)
{
    *s = (struct setting){.world = rank_world_open(self, 0)};
    return s->world && CHECK_OK(model_create(s->world, c, &s->mesh, &s->fsdp)) &&
           CHECK_OK(model_add_params(s->fsdp));
}

static void setting_close(struct setting *s)
{
    shoal_fsdp_free(s->fsdp);
    shoal_mesh_free(s->mesh);
    CHECK_OK(shoal_world_close(s->world));
}

/* Bits --------------------------------------------------------------------------------------------------- */

enum kept {
    KEPT_FULL,    /* no communication at all */
    KEPT_PARTIAL, /* none over replicas */
    KEPT_BOTH     /* one after the other */
};

static shoal_status keep(shoal_fsdp *fsdp, enum kept kept, int micro)
{
    bool is_full = kept == KEPT_FULL || (kept == KEPT_BOTH && micro > 0);
    MODEL_TRY(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), !is_full));
    return shoal_fsdp_set_all_reduce(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), false);
}

/* By hand, or by the last backward pass. */
static shoal_status train(shoal_fsdp *fsdp, const struct model_case *c, enum kept kept, int part,
                          bool by_hand)
{
    float momentum[MODEL_PARAMS][MODEL_ROOM];
    struct model_pass pass;
    double norm;
    memset(momentum, 0, sizeof momentum);
    for (int step = 0; step < c->n_steps; step++) {
        for (int micro = 0; micro < c->n_micro; micro++) {
            MODEL_TRY(keep(fsdp, kept, micro));
            if (!by_hand && micro + 1 == c->n_micro) {
                MODEL_TRY(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), true));
            }
            MODEL_TRY(model_fsdp_pass(fsdp, &pass, step, part, micro));
        }
        for (int i = 0; by_hand && i < 2; i++) { /* the second time there is nothing left */
            MODEL_TRY(shoal_fsdp_synchronize(fsdp));
        }
        MODEL_TRY(model_fsdp_update(fsdp, c, momentum, &norm));
    }
    return SHOAL_OK;
}

static void check_bits(struct rank *self, const struct model_case *c, enum kept kept)
{
    struct model_result results[2];
    for (int by_hand = 0; by_hand < 2; by_hand++) {
        struct setting s;
        REQUIRE(setting_open(&s, self, c));
        CHECK_OK(train(s.fsdp, c, kept, self->rank, by_hand == 1));
        CHECK_OK(model_gather(s.fsdp, &results[by_hand]));
        setting_close(&s);
    }
    model_check_equal(&results[1], &results[0], "reduced by hand");
}

static void check_mode(struct rank *self, enum model_mode mode)
{
    static const shoal_dtype dtypes[] = {0, SHOAL_F64, SHOAL_BF16, SHOAL_F16};
    for (int k = 0; k < LENGTH(dtypes) * 3 && !test_has_failed(); k++) {
        struct model_case c = {.mode = mode,
                               .n_ranks = self->n_ranks,
                               .n_replicas = 2,
                               .n_steps = 2,
                               .n_micro = 2,
                               .options = {.reduce_dtype = dtypes[k / 3], .max_reduces = 1 + k % 2}};
        check_bits(self, &c, (enum kept)(k % 3));
    }
}

TEST_RANKS(bits_alone, 1)
{
    check_mode(self, MODEL_FSDP);
}

TEST_RANKS(bits_of_shards, 3)
{
    check_mode(self, MODEL_FSDP);
}

TEST_RANKS(bits_of_both, 4)
{
    check_mode(self, MODEL_HSDP);
}

TEST_RANKS(bits_of_replicas, 2)
{
    check_mode(self, MODEL_DDP);
}

/* Looking ------------------------------------------------------------------------------------------------ */

/* Adds `value` to all elements of all gradients. */
static void pass_value(shoal_fsdp *fsdp, float value)
{
    for (int unit = 0; unit < MODEL_UNITS; unit++) {
        REQUIRE_OK(shoal_fsdp_pre_forward(fsdp, unit));
        REQUIRE_OK(shoal_fsdp_post_forward(fsdp, unit));
    }
    for (int unit = MODEL_UNITS - 1; unit >= 0; unit--) {
        REQUIRE_OK(shoal_fsdp_pre_backward(fsdp, unit));
        for (int id = 0; id < MODEL_PARAMS; id++) {
            float *grad = model_params[id].unit == unit ? shoal_fsdp_grad(fsdp, id) : NULL;
            for (size_t i = 0; grad && i < model_count(id); i++) {
                grad[i] += value * (float)(i + 1);
            }
        }
        REQUIRE_OK(shoal_fsdp_post_backward(fsdp, unit));
    }
    REQUIRE_OK(shoal_fsdp_end_backward(fsdp));
}

static double element(const void *data, shoal_dtype dtype, size_t i)
{
    return dtype == SHOAL_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

/* Where element (row, column) of a matrix cut along its columns is. */
static size_t place_in_blocks(const shoal_pending_gradient *pending, int id, size_t i)
{
    size_t n_columns = model_params[id].n_dims == 2 ? (size_t)model_params[id].shape[1] : 1;
    size_t width = n_columns / (size_t)pending->n_blocks;
    size_t row = i / n_columns;
    size_t column = i % n_columns;
    if (pending->n_blocks == 1) {
        return i;
    }
    return (column / width * (size_t)model_params[id].shape[0] + row) * width + column % width;
}

static void check_full(shoal_fsdp *fsdp, shoal_dtype dtype, double value, double factor)
{
    for (int id = 0; id < MODEL_PARAMS; id++) {
        shoal_pending_gradient pending = SHOAL_PENDING_GRADIENT_INIT;
        REQUIRE_OK(shoal_fsdp_get_pending(shoal_fsdp_param_of(fsdp, id), &pending));
        CHECK_INT(pending.full != NULL, value != 0.0);
        if (!pending.full) {
            continue;
        }
        CHECK_INT(pending.full_count, model_count(id));
        CHECK_INT(pending.full_dtype, dtype);
        for (size_t i = 0; i < pending.full_count; i++) {
            size_t at = place_in_blocks(&pending, id, i);
            CHECK_DOUBLE(element(pending.full, dtype, at), value * (double)(i + 1));
            if (dtype == SHOAL_F64) {
                ((double *)pending.full)[at] *= factor;
            } else {
                ((float *)pending.full)[at] *= (float)factor;
            }
        }
    }
}

/* Of shards: value times the number of the element in the whole. */
static void check_shards(shoal_fsdp *fsdp, int n_shards, double value)
{
    for (int id = 0; id < MODEL_PARAMS; id++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_update_shard(fsdp, id, &shard));
        CHECK_INT(shard.grad != NULL, value != 0.0);
        if (!shard.grad || model_params[id].dim != 0) {
            continue;
        }
        int64_t inner = (int64_t)model_count(id) / model_params[id].shape[0];
        (void)n_shards;
        for (size_t i = 0; i < shard.count; i++) {
            CHECK_DOUBLE((double)((const float *)shard.grad)[i],
                         value * (double)((int64_t)i + shard.offset * inner + 1));
        }
    }
}

static void check_looking(struct rank *self, enum model_mode mode, shoal_dtype reduce_dtype)
{
    struct setting s;
    struct model_case c = {
        .mode = mode, .n_ranks = self->n_ranks, .n_replicas = 2, .options = {.reduce_dtype = reduce_dtype}};
    int n_shards = mode == MODEL_HSDP ? self->n_ranks / 2 : self->n_ranks;
    shoal_dtype dtype = reduce_dtype == 0 ? SHOAL_F32 : reduce_dtype;
    REQUIRE(setting_open(&s, self, &c));
    CHECK_OK(shoal_fsdp_synchronize(s.fsdp)); /* before any forward */
    check_full(s.fsdp, dtype, 0.0, 1.0);
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), false));
    pass_value(s.fsdp, 2.0F);
    check_full(s.fsdp, dtype, 2.0, 1.0);
    pass_value(s.fsdp, 1.0F);
    check_full(s.fsdp, dtype, 3.0, 4.0); /* what is written here is reduced */
    check_full(s.fsdp, dtype, 12.0, 1.0);
    check_shards(s.fsdp, n_shards, 0.0);
    CHECK_OK(shoal_fsdp_synchronize(s.fsdp));
    check_full(s.fsdp, dtype, 0.0, 1.0);
    check_shards(s.fsdp, n_shards, 12.0);
    CHECK_OK(shoal_fsdp_synchronize(s.fsdp));
    check_shards(s.fsdp, n_shards, 12.0);
    /* On top of what is there; a backward pass goes on where the last one was. */
    pass_value(s.fsdp, 1.0F);
    check_full(s.fsdp, dtype, 1.0, 8.0);
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), true));
    pass_value(s.fsdp, 4.0F);
    check_full(s.fsdp, dtype, 0.0, 1.0);
    check_shards(s.fsdp, n_shards, 24.0);
    /* Given up. */
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), false));
    pass_value(s.fsdp, 1.0F);
    CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
    check_full(s.fsdp, dtype, 0.0, 1.0);
    CHECK_OK(shoal_fsdp_synchronize(s.fsdp));
    check_shards(s.fsdp, n_shards, 0.0);
    setting_close(&s);
}

TEST_RANKS(whole_gradients_of_shards, 2)
{
    check_looking(self, MODEL_FSDP, 0);
    check_looking(self, MODEL_FSDP, SHOAL_F64);
}

TEST_RANKS(whole_gradients_alone, 1)
{
    check_looking(self, MODEL_FSDP, 0);
    check_looking(self, MODEL_FSDP, SHOAL_F64);
}

TEST_RANKS(whole_gradients_of_both, 4)
{
    check_looking(self, MODEL_HSDP, 0);
    check_looking(self, MODEL_HSDP, SHOAL_F64);
}

/* Parts: those of this rank's shard, and nothing of the whole. */
TEST_RANKS(shards_that_wait_for_replicas, 4)
{
    struct setting s;
    struct model_case c = {.mode = MODEL_HSDP, .n_ranks = 4, .n_replicas = 2};
    REQUIRE(setting_open(&s, self, &c));
    CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), false));
    float value = self->rank < 2 ? 2.0F : 4.0F; /* replicas differ */
    pass_value(s.fsdp, value);
    pass_value(s.fsdp, value);
    for (int round = 0; round < 2; round++) {
        for (int id = 0; id < MODEL_PARAMS; id++) {
            shoal_pending_gradient pending = SHOAL_PENDING_GRADIENT_INIT;
            shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
            REQUIRE_OK(shoal_fsdp_get_pending(shoal_fsdp_param_of(s.fsdp, id), &pending));
            REQUIRE_OK(shoal_fsdp_update_shard(s.fsdp, id, &shard));
            CHECK(pending.full == NULL && shard.grad == NULL);
            REQUIRE(pending.partial != NULL);
            CHECK_INT(pending.partial_count, shard.count);
            CHECK_INT(pending.partial_dtype, SHOAL_F32);
            int64_t inner = (int64_t)model_count(id) / model_params[id].shape[0];
            float *values = pending.partial;
            for (size_t i = 0; model_params[id].dim == 0 && i < shard.count; i++) {
                /* Averaged over the shards, which agree. */
                CHECK_DOUBLE((double)values[i], (round == 0 ? 2.0 : 20.0) * (double)value *
                                                    (double)((int64_t)i + shard.offset * inner + 1));
                values[i] *= 10.0F;
            }
        }
    }
    CHECK_OK(shoal_fsdp_synchronize(s.fsdp));
    CHECK_OK(shoal_fsdp_synchronize(s.fsdp));
    check_shards(s.fsdp, 2, 100.0 * (2.0 * 2.0 + 2.0 * 4.0) / 2.0);
    setting_close(&s);
}

/* Digits ------------------------------------------------------------------------------------------------- */

static float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* To nearest, even. */
static uint16_t to_bf16(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    return (uint16_t)((wide + 0x7FFFU + (wide >> 16 & 1U)) >> 16);
}

static void add_half(shoal_fsdp *fsdp, float value)
{
    REQUIRE_OK(shoal_fsdp_pre_forward(fsdp, 0));
    REQUIRE_OK(shoal_fsdp_post_forward(fsdp, 0));
    REQUIRE_OK(shoal_fsdp_pre_backward(fsdp, 0));
    uint16_t *grad = shoal_fsdp_grad(fsdp, 0);
    for (int i = 0; grad && i < 3; i++) {
        grad[i] = to_bf16(from_bf16(grad[i]) + value);
    }
    REQUIRE_OK(shoal_fsdp_post_backward(fsdp, 0));
    REQUIRE_OK(shoal_fsdp_end_backward(fsdp));
}

/* What has been reduced stays in f32, what waits rounds in bf16. */
static void check_digits(struct rank *self, const float *reduced, int n_reduced, const float *kept,
                         int n_kept, double pending_value, double wanted)
{
    const float start[] = {1.0F, 2.0F, 3.0F};
    shoal_world *world = rank_world_open(self, 0);
    shoal_fsdp *fsdp = NULL;
    shoal_pending_gradient pending = SHOAL_PENDING_GRADIENT_INIT;
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    const shoal_fsdp_options options = {.struct_size = sizeof options, .param_dtype = SHOAL_BF16};
    REQUIRE(world && CHECK_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp)));
    REQUIRE_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, (int64_t[]){3}, start, NULL));
    for (int i = 0; i < n_reduced; i++) {
        add_half(fsdp, reduced[i]);
    }
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), false));
    for (int i = 0; i < n_kept; i++) {
        add_half(fsdp, kept[i]);
    }
    REQUIRE_OK(shoal_fsdp_get_pending(shoal_fsdp_param_of(fsdp, 0), &pending));
    CHECK_INT(pending.full_dtype, SHOAL_BF16);
    for (int i = 0; pending.full && i < 3; i++) {
        CHECK_DOUBLE((double)from_bf16(((const uint16_t *)pending.full)[i]), pending_value);
    }
    CHECK_OK(shoal_fsdp_synchronize(fsdp));
    CHECK_OK(shoal_fsdp_update_shard(fsdp, 0, &shard));
    for (size_t i = 0; i < shard.count; i++) {
        CHECK_DOUBLE((double)((const float *)shard.grad)[i], wanted);
    }
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(digits, 2)
{
    check_digits(self, (float[]){256}, 1, (float[]){1, -256}, 2, -255.0, 1.0);
    check_digits(self, (float[]){3}, 1, (float[]){256, 1, -256}, 3, 0.0, 3.0);
    check_digits(self, (float[]){256, 1}, 2, (float[]){-256}, 1, -256.0, 1.0);
}

/* Units that only some ranks use ------------------------------------------------------------------------- */

/* Rank 0 alone walks back through unit 0. */
TEST_RANKS(unused, 2)
{
    struct setting s;
    struct model_case c = {
        .mode = MODEL_FSDP,
        .n_ranks = 2,
        .options = {.reshard = SHOAL_RESHARD_NEVER, .forward_prefetch = -1, .reduce_dtype = SHOAL_F64}};
    REQUIRE(setting_open(&s, self, &c));
    CHECK_OK(shoal_fsdp_set_reduce_unused(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), true));
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), false));
    for (int micro = 0; micro < 2; micro++) {
        for (int unit = 0; unit < MODEL_UNITS; unit++) {
            CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, unit));
            CHECK_OK(shoal_fsdp_post_forward(s.fsdp, unit));
        }
        for (int unit = MODEL_UNITS - 1; unit >= self->rank; unit--) {
            CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, unit));
            float *grad = unit == 0 ? shoal_fsdp_grad(s.fsdp, 1) : NULL;
            for (int i = 0; grad && i < 5; i++) {
                grad[i] += 3.0F;
            }
            CHECK_OK(shoal_fsdp_post_backward(s.fsdp, unit));
        }
        CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
    }
    CHECK_OK(shoal_fsdp_synchronize(s.fsdp));
    CHECK_OK(shoal_fsdp_synchronize(s.fsdp));
    for (int id = 0; id < MODEL_PARAMS; id++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        CHECK_OK(shoal_fsdp_update_shard(s.fsdp, id, &shard));
        CHECK(shard.grad != NULL);
        for (size_t i = 0; shard.grad && i < shard.count; i++) {
            CHECK_DOUBLE((double)((const float *)shard.grad)[i], id == 1 ? 3.0 : 0.0);
        }
    }
    setting_close(&s);
}

/* Refused and failing -------------------------------------------------------------------------------------- */

TEST_RANKS(refused, 2)
{
    struct setting s;
    shoal_pending_gradient pending = SHOAL_PENDING_GRADIENT_INIT;
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = 2};
    REQUIRE(setting_open(&s, self, &c));
    CHECK_STATUS(shoal_fsdp_get_pending(shoal_fsdp_param_of(NULL, 0), &pending), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_get_pending(shoal_fsdp_param_of(s.fsdp, MODEL_PARAMS), &pending),
                 SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_get_pending(shoal_fsdp_param_of(s.fsdp, 0), NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("get_pending: parameter w0: pending_out is NULL");
    CHECK_STATUS(shoal_fsdp_synchronize(NULL), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
    CHECK_STATUS(shoal_fsdp_get_pending(shoal_fsdp_param_of(s.fsdp, 0), &pending), SHOAL_ERR_STATE);
    CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_pre_backward(s.fsdp, 0));
    CHECK_STATUS(shoal_fsdp_get_pending(shoal_fsdp_param_of(s.fsdp, 0), &pending), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("get_pending: the backward pass has not been ended");
    CHECK_STATUS(shoal_fsdp_synchronize(s.fsdp), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("synchronize: the backward pass has not been ended");
    CHECK_OK(shoal_fsdp_post_backward(s.fsdp, 0));
    CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
    setting_close(&s);
}

/* Every allocation of a reduction by hand; a reset, and the next one works. */
TEST_RANKS(without_memory, 1)
{
    struct setting s;
    bool has_failed = true;
    struct model_case c = {.mode = MODEL_FSDP, .n_ranks = 1, .options = {.reduce_dtype = SHOAL_F64}};
    for (size_t k = 1; has_failed && !test_has_failed(); k++) {
        REQUIRE(setting_open(&s, self, &c));
        CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), false));
        pass_value(s.fsdp, 1.0F);
        test_fail_allocation(k, false);
        shoal_status status = shoal_fsdp_synchronize(s.fsdp);
        test_fail_allocation(0, false);
        has_failed = status != SHOAL_OK;
        CHECK_INT(status, has_failed ? SHOAL_ERR_NO_MEMORY : SHOAL_OK);
        CHECK_OK(shoal_fsdp_reset(s.fsdp));
        CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
        pass_value(s.fsdp, 2.0F);
        CHECK_OK(shoal_fsdp_synchronize(s.fsdp));
        check_shards(s.fsdp, 1, 2.0);
        setting_close(&s);
    }
}
