/* SPDX-License-Identifier: MIT */
/*
 * Structs of programs that were compiled with an older or a newer version: fields that a shorter one does not have get
 * their defaults and are not written, fields that this library does not know must be zero.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/struct_size.h"
#include "harness/test.h"
#include "shoal/shoal.h"
#include "shoal_nn/attention.h"
#include "shoal_nn/modules.h"
#include "shoal_nn/nn.h"
#include "shoal_nn/optim.h"
#include "shoal_nn/random.h"
#include "shoal_nn/scaler.h"
#include "shoal_nn/schedule.h"
#include "unit/nn/fixture.h"

/* The rule --------------------------------------------------------------------------------------------- */

struct older {
    size_t struct_size;
    int64_t first;
};

struct known {
    size_t struct_size;
    int64_t first;
    double second;
};

struct newer {
    struct known known;
    int64_t third;
};

TEST(reading)
{
    struct known ours = {sizeof ours, 1, 2.5};
    const struct older older = {sizeof older, 7};
    CHECK_OK(nn_struct_read("call", "options", &older, &ours, sizeof ours));
    CHECK_INT(ours.struct_size, sizeof ours);
    CHECK_INT(ours.first, 7);
    CHECK_DOUBLE(ours.second, 2.5);

    struct newer newer = {{sizeof newer, 8, 3.5}, 0};
    CHECK_OK(nn_struct_read("call", "options", &newer, &ours, sizeof ours));
    CHECK_INT(ours.struct_size, sizeof ours);
    CHECK_INT(ours.first, 8);
    CHECK_DOUBLE(ours.second, 3.5);

    newer.known.first = 9;
    newer.third = 1;
    CHECK_STATUS(nn_struct_read("call", "options", &newer, &ours, sizeof ours), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("call: options: struct_size is 32 and byte 24 is set, but this library knows 24 bytes");
    CHECK_INT(ours.first, 8);
    newer.known.struct_size = sizeof(void *);
    CHECK_STATUS(nn_struct_read("call", "options", &newer, &ours, sizeof ours), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("call: options: struct_size 8 is not at least 16");
    CHECK_STATUS(nn_struct_read("call", "options", NULL, &ours, sizeof ours), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("call: options is NULL");
}

TEST(writing)
{
    const struct known ours = {sizeof ours, 1, 2.5};
    struct known given = {sizeof(struct older), 7, 7};
    CHECK_OK(nn_struct_write("call", "state_out", &given, &ours, sizeof ours));
    CHECK_INT(given.struct_size, sizeof(struct older));
    CHECK_INT(given.first, 1);
    CHECK_DOUBLE(given.second, 7);

    struct newer newer = {{sizeof newer, 7, 7}, 7};
    CHECK_OK(nn_struct_write("call", "state_out", &newer, &ours, sizeof ours));
    CHECK_INT(newer.known.struct_size, sizeof newer);
    CHECK_DOUBLE(newer.known.second, 2.5);
    CHECK_INT(newer.third, 0);
    newer.known.struct_size = 3;
    CHECK_STATUS(nn_struct_write("call", "state_out", &newer, &ours, sizeof ours), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("call: state_out: struct_size 3 is not at least 16");
}

/* Calls ------------------------------------------------------------------------------------------------ */

/* In a block of exactly so many bytes, in which the sanitizer sees what is read beyond. */
static void *shorten(const void *options, size_t bytes)
{
    void *copy = malloc(bytes);
    if (copy) {
        memcpy(copy, options, bytes);
        memcpy(copy, &bytes, sizeof bytes);
    }
    return copy;
}

#define SHORTEN(options, field) shorten(&(options), offsetof(__typeof__(options), field))

TEST(modules)
{
    begin_nn();
    shoal_module *module = NULL;
    shoal_nn_linear_options linear = SHOAL_NN_LINEAR_OPTIONS_INIT;
    linear.n_in = 3;
    linear.n_out = 2;
    linear.dtype = SHOAL_F64;
    void *given = SHORTEN(linear, dtype);
    REQUIRE_OK(shoal_nn_linear_create(given, &module));
    CHECK_INT(shoal_tensor_dtype(shoal_module_parameter(module, "weight")), SHOAL_F32);
    shoal_module_unref(module);
    free(given);

    shoal_nn_embedding_options embedding = SHOAL_NN_EMBEDDING_OPTIONS_INIT;
    embedding.n_rows = 3;
    embedding.width = 2;
    given = SHORTEN(embedding, std);
    REQUIRE_OK(shoal_nn_embedding_create(given, &module));
    CHECK(*(const float *)shoal_data(shoal_module_parameter(module, "weight")) != 0.0F);
    shoal_module_unref(module);
    free(given);

    shoal_nn_norm_options norm = SHOAL_NN_NORM_OPTIONS_INIT;
    norm.width = 2;
    given = SHORTEN(norm, eps);
    REQUIRE_OK(shoal_nn_layer_norm_create(given, &module));
    shoal_module_unref(module);
    REQUIRE_OK(shoal_nn_rms_norm_create(given, &module));
    shoal_module_unref(module);
    free(given);

    shoal_nn_block_options block = SHOAL_NN_BLOCK_OPTIONS_INIT;
    block.width = 4;
    block.n_heads = 2;
    given = SHORTEN(block, is_causal);
    REQUIRE_OK(shoal_nn_self_attention_create(given, &module));
    shoal_module_unref(module);
    REQUIRE_OK(shoal_nn_mlp_create(given, &module));
    shoal_module_unref(module);
    REQUIRE_OK(shoal_nn_block_create(given, &module));
    shoal_module_unref(module);
    free(given);

    shoal_nn_gpt_options gpt = {sizeof gpt,   .n_layers = 1,    .width = 4, .n_heads = 2,
                                .context = 8, .vocabulary = 16, .eps = 77};
    given = SHORTEN(gpt, dropout);
    REQUIRE_OK(shoal_nn_gpt_create(given, &module));
    shoal_module_unref(module);
    free(given);
}

TEST(functions)
{
    begin_nn();
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = shoal_full((const int64_t[]){1, 2, 2, 2}, 4, 0.5, SHOAL_F32);
    shoal_nn_attention_options attention = SHOAL_NN_ATTENTION_OPTIONS_INIT;
    void *given = SHORTEN(attention, dropout);
    CHECK(shoal_nn_attention(x, x, x, given));
    free(given);

    shoal_tensor *logits = shoal_zeros((const int64_t[]){1, 2}, 2, SHOAL_F32);
    shoal_tensor *targets = shoal_zeros((const int64_t[]){1}, 1, SHOAL_I64);
    shoal_nn_cross_entropy_options loss = SHOAL_NN_CROSS_ENTROPY_OPTIONS_INIT;
    loss.label_smoothing = 77;
    given = SHORTEN(loss, label_smoothing);
    CHECK(shoal_nn_cross_entropy_with(logits, targets, given));
    free(given);

    const shoal_nn_distribution normal = SHOAL_NN_NORMAL(0.0, 1.0);
    const shoal_nn_draws draws = {0};
    given = SHORTEN(normal, gain);
    CHECK_OK(shoal_nn_fill(&draws, given, logits));
    free(given);
    CHECK_OK(shoal_scope_end());

    shoal_nn_blas info = {.struct_size = offsetof(shoal_nn_blas, core), .n_threads = -7};
    CHECK_OK(shoal_nn_blas_info(&info));
    CHECK(info.library && !info.core);
    CHECK_INT(info.n_threads, -7);
}

/* Rows of a shorter struct lie closer together. */
struct older_group {
    size_t struct_size;
    const char *pattern;
    int max_dims;
    double lr_factor;
};

TEST(optimizers)
{
    begin_nn();
    shoal_module *module = NULL;
    shoal_nn_optimizer *optimizer = NULL;
    shoal_nn_linear_options linear = SHOAL_NN_LINEAR_OPTIONS_INIT;
    linear.n_in = 3;
    linear.n_out = 2;
    REQUIRE_OK(shoal_nn_linear_create(&linear, &module));

    shoal_nn_adamw_options adamw = SHOAL_NN_ADAMW_OPTIONS_INIT;
    adamw.lr = 0.25;
    adamw.beta1 = 77;
    void *given = SHORTEN(adamw, beta1);
    CHECK_INT(sizeof(struct older_group), offsetof(shoal_nn_param_group, weight_decay));
    struct older_group groups[] = {{sizeof groups[0], "bias", 0, 0.5}, {sizeof groups[0], "*", 0, 0.125}};
    const shoal_nn_param_group *rows = (const shoal_nn_param_group *)(const void *)groups;
    REQUIRE_OK(shoal_nn_adamw_create_for(module, given, rows, 2, &optimizer));
    CHECK_DOUBLE(shoal_nn_optimizer_lr(optimizer), 0.25);
    shoal_nn_param_group row = SHOAL_NN_PARAM_GROUP_INIT;
    CHECK_OK(shoal_nn_optimizer_get_group(optimizer, 1, &row));
    CHECK_INT(row.struct_size, sizeof row);
    CHECK_STRING(row.pattern, "*");
    CHECK_DOUBLE(row.lr_factor, 0.125);
    CHECK_DOUBLE(row.weight_decay, SHOAL_NN_SAME_DECAY);
    /* What the shorter struct does not have stays. */
    row.weight_decay = 0.75;
    CHECK_OK(shoal_nn_optimizer_set_group(optimizer, 1, &row));
    groups[1].lr_factor = 0.25;
    CHECK_OK(shoal_nn_optimizer_set_group(optimizer, 1, (const void *)&groups[1]));
    CHECK_OK(shoal_nn_optimizer_get_group(optimizer, 1, &row));
    CHECK_DOUBLE(row.lr_factor, 0.25);
    CHECK_DOUBLE(row.weight_decay, 0.75);

    shoal_nn_optimizer_state state = {.struct_size = offsetof(shoal_nn_optimizer_state, first_moment),
                                      .first_moment = (void *)&state};
    CHECK_OK(shoal_nn_optimizer_get_state(optimizer, 0, &state));
    CHECK(state.first_moment == (void *)&state);
    shoal_nn_optimizer_free(optimizer);

    groups[1].struct_size = sizeof row;
    CHECK_STATUS(shoal_nn_adamw_create_for(module, given, rows, 2, &optimizer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("group 1: struct_size 48 is not 32, as of group 0");
    free(given);
    shoal_module_unref(module);
}

TEST(scalers_and_schedules)
{
    begin_nn();
    shoal_nn_scaler *scaler = NULL;
    shoal_nn_scaler_options options = SHOAL_NN_SCALER_OPTIONS_INIT;
    options.scale = 4;
    void *given = SHORTEN(options, growth);
    REQUIRE_OK(shoal_nn_scaler_create(given, &scaler));
    free(given);
    shoal_nn_scaler_state state = {.struct_size = offsetof(shoal_nn_scaler_state, n_skipped),
                                   .n_skipped = -7};
    CHECK_OK(shoal_nn_scaler_get_state(scaler, &state));
    CHECK_DOUBLE(state.scale, 4);
    CHECK_INT(state.n_skipped, -7);
    CHECK_OK(shoal_nn_scaler_set_state(scaler, &state));
    shoal_nn_scaler_free(scaler);

    /* A schedule is counted on in the caller's memory: it has all of today's fields. */
    struct {
        shoal_nn_schedule known;
        int64_t added;
    } schedule = {.known = {.struct_size = sizeof schedule, .kind = SHOAL_NN_SCHEDULE_CONSTANT, .lr = 0.5}};
    double lr = 0;
    CHECK_OK(shoal_nn_schedule_at(&schedule.known, 3, &lr));
    CHECK_DOUBLE(lr, 0.5);
    schedule.added = 1;
    CHECK_STATUS(shoal_nn_schedule_at(&schedule.known, 3, &lr), SHOAL_ERR_UNSUPPORTED);
    schedule.known.struct_size = offsetof(shoal_nn_schedule, step);
    CHECK_STATUS(shoal_nn_schedule_at(&schedule.known, 3, &lr), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("schedule: struct_size 48 is not at least 56");
}
