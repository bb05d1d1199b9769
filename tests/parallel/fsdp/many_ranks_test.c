/* SPDX-License-Identifier: MIT */
/*
 * More ranks than a machine like this one has cores, and more than parameters have rows: what is gathered, over all and
 * over neighbours, and what is reduced.
 */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_model.h"
#include "kernel/kernel.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof(array)[0]))

enum {
    MAX_COUNT = 512 * 64
};

static const struct {
    int n_dims;
    int64_t shape[2];
} params[] = {{2, {17, 257}}, {1, {17}},      {2, {64, 312}}, {1, {64}},
              {2, {64, 64}},  {2, {512, 64}}, {1, {256}},     {2, {64, 297}}};

static size_t count_of(int id)
{
    return (size_t)(params[id].shape[0] * (params[id].n_dims > 1 ? params[id].shape[1] : 1));
}

static float value_of(int id, size_t i)
{
    return (float)((i * 7 + (size_t)id) % 2048); /* f16 has it, too */
}

static void check_param(shoal_fsdp *fsdp, int id, shoal_dtype dtype)
{
    static _Thread_local float wide[MAX_COUNT];
    const void *data = shoal_fsdp_full_param(fsdp, id);
    REQUIRE(data != NULL);
    const float *values = data;
    if (dtype == SHOAL_F16) {
        kernel_cast(SHOAL_F32, wide, SHOAL_F16, data, count_of(id));
        values = wide;
    }
    for (size_t i = 0; i < count_of(id); i++) {
        REQUIRE(CHECK_DOUBLE((double)values[i], (double)value_of(id, i)));
    }
}

/* The gradient of every element is the rank modulo eight, the mean of which is a number of every dtype. */
static void add_gradient(shoal_fsdp *fsdp, int id, shoal_dtype dtype, int rank)
{
    static _Thread_local float wide[MAX_COUNT];
    void *grad = shoal_fsdp_grad(fsdp, id);
    REQUIRE(grad != NULL);
    for (size_t i = 0; i < count_of(id); i++) {
        wide[i] = (float)(rank % 8);
    }
    kernel_cast(dtype, grad, SHOAL_F32, wide, count_of(id));
}

static void check_gradient(shoal_fsdp *fsdp, int id)
{
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    REQUIRE_OK(shoal_fsdp_update_shard(fsdp, id, &shard));
    REQUIRE(shard.grad != NULL);
    for (size_t i = 0; i < shard.count; i++) {
        REQUIRE(CHECK_DOUBLE((double)((const float *)shard.grad)[i], 3.5));
    }
}

static void check(struct rank *self, shoal_reshard reshard, shoal_dtype dtype)
{
    static _Thread_local float full[MAX_COUNT];
    shoal_world *world = rank_world_open(self, 0);
    shoal_fsdp *fsdp;
    shoal_fsdp_options options = {.struct_size = sizeof options,
                                  .reshard = reshard,
                                  .reshard_ranks = self->n_ranks / 2,
                                  .param_dtype = dtype == SHOAL_F32 ? 0 : dtype};
    REQUIRE(world && CHECK_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp)));
    for (int id = 0; id < LENGTH(params); id++) {
        for (size_t i = 0; i < count_of(id); i++) {
            full[i] = value_of(id, i);
        }
        CHECK_OK(shoal_fsdp_add_param(fsdp, id / 4, "w", SHOAL_F32, params[id].n_dims, params[id].shape, full,
                                      NULL));
    }
    for (int step = 0; step < 2 && !test_has_failed(); step++) {
        for (int unit = 0; unit < 2; unit++) {
            CHECK_OK(shoal_fsdp_pre_forward(fsdp, unit));
            for (int id = 4 * unit; id < 4 * unit + 4; id++) {
                check_param(fsdp, id, dtype);
            }
            CHECK_OK(shoal_fsdp_post_forward(fsdp, unit));
        }
        for (int unit = 1; unit >= 0; unit--) {
            CHECK_OK(shoal_fsdp_pre_backward(fsdp, unit));
            for (int id = 4 * unit; id < 4 * unit + 4; id++) {
                check_param(fsdp, id, dtype); /* over neighbours: from what they kept */
                add_gradient(fsdp, id, dtype, self->rank);
            }
            CHECK_OK(shoal_fsdp_post_backward(fsdp, unit));
        }
        CHECK_OK(shoal_fsdp_end_backward(fsdp));
        for (int id = 0; id < LENGTH(params); id++) {
            check_gradient(fsdp, id);
        }
        CHECK_OK(shoal_fsdp_zero_grad(fsdp));
    }
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(sixteen, 16)
{
    check(self, SHOAL_RESHARD_ALWAYS, SHOAL_F32);
    check(self, SHOAL_RESHARD_PARTLY, SHOAL_F32);
    check(self, SHOAL_RESHARD_ALWAYS, SHOAL_F16);
    check(self, SHOAL_RESHARD_PARTLY, SHOAL_F16);
}
