/* SPDX-License-Identifier: MIT */
/*
 * Gradients that are stored instead of added (shoal_fsdp_grad_to_store): the memory is not cleared, so whatever an
 * earlier backward pass left there must not come through, neither in parameters that nobody asked for nor in the room
 * behind a shard.
 */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_kinds.h"

#define N_PARAMS 3

/* Two that the ranks cannot cut evenly, one along its second dimension, whose gradient is put together apart from
   the buffer. */
static const struct {
    int64_t shape[2];
    int dim;
    size_t count;
} params[N_PARAMS] = {{{5, 3}, 0, 15}, {{2, 8}, 1, 16}, {{3, 2}, 0, 6}};

static void add_params(const struct setting *s)
{
    static const float zeros[16];
    for (int i = 0; i < N_PARAMS; i++) {
        CHECK_OK(shoal_fsdp_add_param_along(s->fsdp, 0, "w", SHOAL_F32, 2, params[i].shape, params[i].dim,
                                            zeros, NULL));
    }
}

static void begin(const struct setting *s)
{
    CHECK_OK(shoal_fsdp_pre_forward(s->fsdp, 0));
    CHECK_OK(shoal_fsdp_post_forward(s->fsdp, 0));
    CHECK_OK(shoal_fsdp_pre_backward(s->fsdp, 0));
}

static void end(const struct setting *s)
{
    CHECK_OK(shoal_fsdp_post_backward(s->fsdp, 0));
    CHECK_OK(shoal_fsdp_end_backward(s->fsdp));
}

/* As a matrix product would do it: stores, or adds where there are values. */
static void give(const struct setting *s, int id, float value, bool has_values)
{
    bool adds = !has_values;
    float *grad = shoal_fsdp_grad_to_store(s->fsdp, id, &adds);
    REQUIRE(grad != NULL);
    CHECK_INT(adds, has_values);
    for (size_t i = 0; i < params[id].count; i++) {
        grad[i] = value + (adds ? grad[i] : 0.0f);
    }
}

static void check_shards(const struct setting *s, int id, float value)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    REQUIRE_OK(shoal_fsdp_update_shard(s->fsdp, id, &shard));
    REQUIRE(shard.grad != NULL);
    for (size_t i = 0; i < shard.count; i++) {
        CHECK_DOUBLE((double)((const float *)shard.grad)[i], (double)value);
    }
}

/* Leaves large numbers everywhere in the buffers. */
static void soil(const struct setting *s)
{
    for (int turn = 0; turn < 3; turn++) {
        begin(s);
        for (int i = 0; i < N_PARAMS; i++) {
            give(s, i, 1000.0f, false);
        }
        end(s);
        CHECK_OK(shoal_fsdp_zero_grad(s->fsdp));
    }
}

static void check_stores(struct rank *self, enum model_mode mode)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, mode, NULL));
    add_params(&s);
    soil(&s);
    begin(&s);
    give(&s, 0, 2.0f, false);
    give(&s, 0, 3.0f, true); /* again in the same backward */
    give(&s, 1, 7.0f, false);
    end(&s);
    check_shards(&s, 0, 5.0f);
    check_shards(&s, 1, 7.0f);
    check_shards(&s, 2, 0.0f); /* nobody asked for it */
    CHECK_OK(shoal_fsdp_zero_grad(s.fsdp));
    setting_close(&s);
}

/* The first backward pass leaves its gradients for the second. */
static void check_accumulates(struct rank *self, enum model_mode mode)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, mode, NULL));
    add_params(&s);
    soil(&s);
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), false));
    begin(&s);
    give(&s, 0, 2.0f, false);
    give(&s, 1, 4.0f, false);
    end(&s);
    CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(s.fsdp, SHOAL_FSDP_ALL_UNITS), true));
    begin(&s);
    give(&s, 0, 8.0f, true);
    give(&s, 2, 16.0f, true); /* zeros, to add to */
    float *grad = shoal_fsdp_grad(s.fsdp, 1);
    REQUIRE(grad != NULL);
    for (size_t i = 0; i < params[1].count; i++) {
        grad[i] += 32.0f;
    }
    end(&s);
    check_shards(&s, 0, 10.0f);
    check_shards(&s, 1, 36.0f);
    check_shards(&s, 2, 16.0f);
    setting_close(&s);
}

/* Some ways in between: added to first, stored to never. */
static void check_mixed(struct rank *self, enum model_mode mode)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, mode, NULL));
    add_params(&s);
    soil(&s);
    begin(&s);
    for (int i = 0; i < 2; i++) {
        const float *grad = shoal_fsdp_grad(s.fsdp, i);
        REQUIRE(grad != NULL);
        for (size_t k = 0; k < params[i].count; k++) {
            CHECK_DOUBLE((double)grad[k], 0.0);
        }
        give(&s, i, 1.0f, true);
    }
    end(&s);
    check_shards(&s, 0, 1.0f);
    check_shards(&s, 1, 1.0f);
    check_shards(&s, 2, 0.0f);
    setting_close(&s);
}

static void check_all(struct rank *self, enum model_mode mode)
{
    check_stores(self, mode);
    check_accumulates(self, mode);
    check_mixed(self, mode);
}

TEST_RANKS(alone, 1)
{
    check_all(self, MODEL_FSDP);
}

TEST_RANKS(two_shards, 2)
{
    check_all(self, MODEL_FSDP);
}

TEST_RANKS(four_shards, 4)
{
    check_all(self, MODEL_FSDP);
}

TEST_RANKS(two_by_two, 4)
{
    check_all(self, MODEL_HSDP);
}

TEST_RANKS(refusals, 2)
{
    struct setting s;
    bool has_values = false;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    add_params(&s);
    CHECK(shoal_fsdp_grad_to_store(s.fsdp, 0, &has_values) == NULL);
    CHECK_ERROR_TEXT("grad_to_store");
    CHECK_ERROR_TEXT("between pre_ and post_backward");
    begin(&s);
    CHECK(shoal_fsdp_grad_to_store(s.fsdp, 0, NULL) == NULL);
    CHECK_ERROR_TEXT("has_values_out is NULL");
    CHECK(shoal_fsdp_grad_to_store(s.fsdp, N_PARAMS, &has_values) == NULL);
    CHECK(shoal_fsdp_grad_to_store(NULL, 0, &has_values) == NULL);
    end(&s);
    setting_close(&s);
}

/* A program that was compiled with an older header has a smaller struct, and one that has set no size gets nothing. */
TEST_RANKS(structs_of_older_programs, 2)
{
    struct setting s;
    REQUIRE(setting_open(self, &s, MODEL_FSDP, NULL));
    add_params(&s);
    begin(&s);
    give(&s, 0, 2.0f, false);
    end(&s);
    shoal_fsdp_shard shard = {.struct_size = offsetof(shoal_fsdp_shard, offset), .offset = 77, .length = 88};
    CHECK_OK(shoal_fsdp_update_shard(s.fsdp, 0, &shard));
    CHECK_INT(shard.struct_size, offsetof(shoal_fsdp_shard, offset));
    CHECK(shard.data != NULL);
    CHECK_INT(shard.offset, 77);
    CHECK_INT(shard.length, 88);
    shard.struct_size = 0;
    shard.count = 99;
    CHECK_STATUS(shoal_fsdp_update_shard(s.fsdp, 0, &shard), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("update_shard: shard_out");
    CHECK_INT(shard.count, 99);
    shoal_pending_gradient pending = {.struct_size = offsetof(shoal_pending_gradient, partial),
                                      .partial = &s};
    CHECK_OK(shoal_fsdp_get_pending(shoal_fsdp_param_of(s.fsdp, 0), &pending));
    CHECK(pending.full == NULL);
    CHECK(pending.partial == &s);
    pending.struct_size = 0;
    CHECK_STATUS(shoal_fsdp_get_pending(shoal_fsdp_param_of(s.fsdp, 0), &pending), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("get_pending: pending_out");
    setting_close(&s);
}
