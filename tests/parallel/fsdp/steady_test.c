/* SPDX-License-Identifier: MIT */
/*
 * A training loop that repeats itself makes no windows and no buffers once its first steps are over: units of very
 * different sizes, one after the other or inside of each other, with and without backward passes.
 */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_model.h"
#include "fixtures/proc_memory.h"

enum {
    N_UNITS = 7,
    N_FIRST_STEPS = 2,
    N_STEPS = 6
};

struct loop {
    struct rank *self;
    shoal_fsdp *fsdp;
    const int64_t *sizes; /* elements */
    bool is_nested;       /* unit 0 is open while the others run */
    bool has_backward;
    shoal_sharded sharded;
};

static bool loop_open(struct loop *loop, shoal_world *world, int n_ahead)
{
    const shoal_fsdp_options options = {
        .struct_size = sizeof options, .forward_prefetch = n_ahead, .sharded = loop->sharded};
    bool is_good = CHECK_OK(shoal_fsdp_create(shoal_world_group(world), &options, &loop->fsdp));
    for (int unit = 0; is_good && unit < N_UNITS; unit++) {
        is_good = CHECK_OK(shoal_fsdp_add_param(loop->fsdp, unit, "w", SHOAL_F32, 1,
                                                (const int64_t[]){loop->sizes[unit]}, NULL, NULL));
    }
    return is_good;
}

static shoal_status run_forward(const struct loop *loop)
{
    for (int unit = 0; unit < N_UNITS; unit++) {
        MODEL_TRY(shoal_fsdp_pre_forward(loop->fsdp, unit));
        if (unit > 0 || !loop->is_nested) {
            MODEL_TRY(shoal_fsdp_post_forward(loop->fsdp, unit));
        }
    }
    return loop->is_nested ? shoal_fsdp_post_forward(loop->fsdp, 0) : SHOAL_OK;
}

static shoal_status run_backward(const struct loop *loop)
{
    MODEL_TRY(loop->is_nested ? shoal_fsdp_pre_backward(loop->fsdp, 0) : SHOAL_OK);
    for (int unit = N_UNITS - 1; unit >= 0; unit--) {
        MODEL_TRY(unit > 0 || !loop->is_nested ? shoal_fsdp_pre_backward(loop->fsdp, unit) : SHOAL_OK);
        float *grad = shoal_fsdp_grad(loop->fsdp, unit);
        if (grad) {
            grad[0] += 1.0F;
        }
        MODEL_TRY(shoal_fsdp_post_backward(loop->fsdp, unit));
    }
    MODEL_TRY(shoal_fsdp_end_backward(loop->fsdp));
    CHECK_OK(shoal_fsdp_zero_grad(loop->fsdp));
    return SHOAL_OK;
}

/* A memfd has a number that no later one gets. */
static void check_same(const struct proc_segments *before, const struct proc_segments *now)
{
    CHECK_INT(now->n, before->n);
    for (size_t i = 0; i < now->n; i++) {
        bool is_known = false;
        for (size_t k = 0; k < before->n; k++) {
            is_known = is_known || now->list[i].inode == before->list[k].inode;
        }
        CHECK(is_known);
    }
}

static void check_loop(struct loop *loop, shoal_world *world, int n_ahead)
{
    struct proc_segments before = {.n = 0};
    REQUIRE(loop_open(loop, world, n_ahead));
    for (int step = 0; step < N_STEPS && !test_has_failed(); step++) {
        struct proc_segments now = {.n = 0};
        REQUIRE_OK(run_forward(loop));
        REQUIRE_OK(loop->has_backward ? run_backward(loop) : shoal_fsdp_synchronize(loop->fsdp));
        test_barrier(loop->self);
        proc_find_segments("shoal:", &now);
        if (step < N_FIRST_STEPS) {
            before = now;
        } else {
            check_same(&before, &now);
        }
        test_barrier(loop->self);
    }
    shoal_fsdp_free(loop->fsdp);
    test_barrier(loop->self);
}

static void check_loops(struct rank *self, bool has_backward, shoal_sharded sharded)
{
    static const int64_t sizes[][N_UNITS] = {
        {200000, 15000, 15000, 15000, 15000, 15000, 200000}, /* embedding, blocks, head */
        {70000, 300, 20000, 4, 150000, 1200, 9000},
        {16, 80, 400, 2000, 10000, 50000, 250000},
        {250000, 50000, 10000, 2000, 400, 80, 16}};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int n_ahead = -1; n_ahead < 3 && !test_has_failed(); n_ahead += n_ahead < 0 ? 2 : 1) {
            for (int is_nested = 0; is_nested < 2; is_nested++) {
                struct loop loop = {.self = self,
                                    .sizes = sizes[i],
                                    .is_nested = is_nested != 0,
                                    .has_backward = has_backward,
                                    .sharded = sharded};
                check_loop(&loop, world, n_ahead);
            }
        }
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(training_makes_nothing_after_two_steps, 2)
{
    check_loops(self, true, SHOAL_SHARDED_PARAMETERS);
}

TEST_RANKS(inference_makes_nothing_after_two_steps, 2)
{
    check_loops(self, false, SHOAL_SHARDED_PARAMETERS);
}

TEST_RANKS(zero_makes_nothing_after_two_steps, 2)
{
    check_loops(self, true, SHOAL_SHARDED_GRADIENTS);
    check_loops(self, true, SHOAL_SHARDED_STATE);
    check_loops(self, false, SHOAL_SHARDED_STATE);
}
