/* SPDX-License-Identifier: MIT */
/* Extensions of gathers with the explicit calls; tests/parallel/fully_shard/extension_test.c has the rest. */
#include "fixtures/fsdp_kinds.h"
#include "fixtures/int8_rows.h"

enum {
    ROWS = 7,
    WIDTH = 16
};

static void check_whole(const struct setting *s, int id, const float *weight)
{
    const float *whole = shoal_fsdp_full_param(s->fsdp, id);
    REQUIRE(whole);
    for (int row = 0; row < ROWS; row++) {
        signed char codes[WIDTH];
        float expected[WIDTH];
        float scale;
        int8_encode_row(weight + (size_t)row * WIDTH, WIDTH, codes, &scale);
        int8_decode_row(codes, WIDTH, scale, expected);
        CHECK_BYTES(whole + (size_t)row * WIDTH, expected, sizeof expected);
    }
}

static void check_extension(struct rank *self, enum model_mode mode)
{
    struct setting s;
    struct int8_rows context = {.encode_fails_at = 0};
    const shoal_gather_buffer buffers[] = {{SHOAL_I8, WIDTH}, {SHOAL_F32, 1}};
    const shoal_gather_extension int8 = int8_rows_extension(buffers, &context);
    const int64_t shape[] = {ROWS, WIDTH};
    const int64_t wide[] = {WIDTH, (int64_t)WIDTH * self->n_ranks};
    float weight[ROWS * WIDTH];
    int id = -1;
    int turned = -1;
    for (int i = 0; i < ROWS * WIDTH; i++) {
        weight[i] = (float)(i % 23 - 11) / 7 * (float)(i / WIDTH); /* the first row is zero */
    }
    REQUIRE(setting_open(self, &s, mode, NULL));
    CHECK_OK(shoal_fsdp_add_param_along(s.fsdp, 0, "w", SHOAL_F32, 2, shape, 0, weight, &id));
    CHECK_OK(shoal_fsdp_add_param_along(s.fsdp, 0, "turned", SHOAL_F32, 2, wide, 1, NULL, &turned));
    CHECK_OK(shoal_fsdp_set_gather_extension(shoal_fsdp_param_of(s.fsdp, id), &int8));
    CHECK_STATUS(shoal_fsdp_set_gather_extension(shoal_fsdp_param_of(s.fsdp, turned), &int8),
                 SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("parameter turned: it is cut along dimension 1");
    for (int step = 0; step < 2; step++) {
        CHECK_OK(shoal_fsdp_pre_forward(s.fsdp, 0));
        check_whole(&s, id, weight);
        CHECK_OK(shoal_fsdp_post_forward(s.fsdp, 0));
        CHECK_OK(shoal_fsdp_end_backward(s.fsdp));
        weight[WIDTH] += 3;
        CHECK_OK(shoal_fsdp_load(shoal_fsdp_param_of(s.fsdp, id), weight));
    }
    CHECK(context.n_encodes >= 2);
    setting_close(&s);
}

TEST_RANKS(shards, 3)
{
    check_extension(self, MODEL_FSDP);
}

TEST_RANKS(replicas_of_shards, 4)
{
    check_extension(self, MODEL_HSDP);
}

TEST_RANKS(replicas, 2)
{
    check_extension(self, MODEL_DDP);
}
