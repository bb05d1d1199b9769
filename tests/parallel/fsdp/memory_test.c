/* SPDX-License-Identifier: MIT */
/*
 * How much memory sharding takes: what the ranks of a host have mapped together, as /proc/self/maps shows it, not as
 * we count it. Four ranks, eight units of different sizes; SHOAL_TEST_FSDP_BYTES sets the size of the model (default
 * 16 MiB).
 */
#include <stdlib.h>
#include <unistd.h>

#include "fixtures/fsdp_model.h"
#include "fixtures/proc_memory.h"

enum {
    N_UNITS = 8
};

/* The model -------------------------------------------------------------------------------------------------- */

enum sizes {
    EQUAL,
    GROWING,
    SHRINKING
};

static size_t model_bytes(void)
{
    const char *text = getenv("SHOAL_TEST_FSDP_BYTES");
    return text ? strtoul(text, NULL, 10) : (size_t)16 << 20;
}

/* Elements of f32. */
static int64_t size_of(enum sizes sizes, int unit)
{
    int64_t share = (int64_t)(model_bytes() / sizeof(float)) / 36;
    if (sizes == EQUAL) {
        return share * 9 / 2;
    }
    return share * (sizes == GROWING ? unit + 1 : N_UNITS - unit);
}

static size_t largest(enum sizes sizes)
{
    size_t bytes = 0;
    for (int unit = 0; unit < N_UNITS; unit++) {
        size_t mine = (size_t)size_of(sizes, unit) * sizeof(float);
        bytes = mine > bytes ? mine : bytes;
    }
    return bytes;
}

static shoal_status run_step(shoal_fsdp *fsdp)
{
    for (int unit = 0; unit < N_UNITS; unit++) {
        MODEL_TRY(shoal_fsdp_pre_forward(fsdp, unit));
        MODEL_TRY(shoal_fsdp_post_forward(fsdp, unit));
    }
    for (int unit = N_UNITS - 1; unit >= 0; unit--) {
        MODEL_TRY(shoal_fsdp_pre_backward(fsdp, unit));
        float *grad = shoal_fsdp_grad(fsdp, unit);
        if (grad) {
            grad[0] += 1.0F;
        }
        MODEL_TRY(shoal_fsdp_post_backward(fsdp, unit));
    }
    MODEL_TRY(shoal_fsdp_end_backward(fsdp));
    CHECK_OK(shoal_fsdp_zero_grad(fsdp));
    return SHOAL_OK;
}

/* Flags of windows, rounding to pages. */
static size_t slack(size_t n_segments)
{
    return n_segments * 3 * (size_t)sysconf(_SC_PAGESIZE);
}

struct limits {
    size_t windows; /* as many as this of the largest unit's size */
    size_t buffers; /* of one rank: gradients of the largest unit */
};

static void check_limits(struct rank *self, const shoal_fsdp_options *options, enum sizes sizes,
                         struct limits limits)
{
    shoal_fsdp *fsdp = NULL;
    size_t n;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), options, &fsdp));
    for (int unit = 0; unit < N_UNITS; unit++) {
        const int64_t shape[] = {size_of(sizes, unit)};
        CHECK_OK(shoal_fsdp_add_param(fsdp, unit, "w", SHOAL_F32, 1, shape, NULL, NULL));
    }
    for (int step = 0; step < 3; step++) {
        CHECK_OK(run_step(fsdp));
    }
    size_t bytes = proc_shared_bytes(self, "shoal:window", &n);
    CHECK(bytes > 0);
    if (bytes > limits.windows * largest(sizes) + slack(n)) {
        test_failed(__FILE__, __LINE__, "%zu windows of %zu bytes in all; the largest unit has %zu", n, bytes,
                    largest(sizes));
    }
    bytes = proc_shared_bytes(self, "shoal:symmetric", &n);
    size_t one = largest(sizes) + 256;
    CHECK(bytes > 0);
    if (bytes > limits.buffers * (size_t)self->n_ranks * one + slack(n * (size_t)self->n_ranks)) {
        test_failed(__FILE__, __LINE__,
                    "%zu buffers of %zu bytes on %d ranks; one of the largest unit has %zu", n, bytes,
                    self->n_ranks, one);
    }
    shoal_fsdp_free(fsdp);
    CHECK_INT(proc_shared_bytes(self, "shoal:window", &n), 0);
    CHECK_INT(proc_shared_bytes(self, "shoal:symmetric", &n), 0);
    CHECK_OK(shoal_world_close(world));
}

static shoal_fsdp_options options_of(shoal_reshard reshard, int prefetch, int max_reduces)
{
    return (shoal_fsdp_options){.struct_size = sizeof(shoal_fsdp_options),
                                .reshard = reshard,
                                .reshard_ranks = 2,
                                .forward_prefetch = prefetch,
                                .max_reduces = max_reduces};
}

TEST_PROCESSES(by_default_three_windows_at_most, 4)
{
    shoal_fsdp_options options = options_of(SHOAL_RESHARD_DEFAULT, 0, 0);
    check_limits(self, &options, EQUAL, (struct limits){.windows = 3, .buffers = 2});
    check_limits(self, &options, GROWING, (struct limits){.windows = 3, .buffers = 2});
    check_limits(self, &options, SHRINKING, (struct limits){.windows = 3, .buffers = 2});
}

/* Forward keeps one; backward always gathers one ahead. */
TEST_PROCESSES(without_prefetch_two_windows, 4)
{
    shoal_fsdp_options options = options_of(SHOAL_RESHARD_ALWAYS, -1, 0);
    check_limits(self, &options, EQUAL, (struct limits){.windows = 2, .buffers = 2});
}

TEST_PROCESSES(two_ahead_are_one_window_more, 4)
{
    shoal_fsdp_options options = options_of(SHOAL_RESHARD_ALWAYS, 2, 0);
    check_limits(self, &options, EQUAL, (struct limits){.windows = 4, .buffers = 2});
}

TEST_PROCESSES(more_reductions_are_more_buffers, 4)
{
    shoal_fsdp_options options = options_of(SHOAL_RESHARD_ALWAYS, 0, 3);
    check_limits(self, &options, SHRINKING, (struct limits){.windows = 3, .buffers = 4});
}

/* Windows of two neighbourhoods besides those of all. */
TEST_PROCESSES(neighbours_share_their_windows, 4)
{
    shoal_fsdp_options options = options_of(SHOAL_RESHARD_PARTLY, 0, 0);
    check_limits(self, &options, EQUAL, (struct limits){.windows = 3 + 2 * 3, .buffers = 2});
}

TEST_PROCESSES(all_that_stay_have_one_window_each, 4)
{
    shoal_fsdp_options options = options_of(SHOAL_RESHARD_NEVER, 0, 0);
    check_limits(self, &options, EQUAL, (struct limits){.windows = N_UNITS, .buffers = 2});
}

/* What waits for a later backward pass has its own size: the whole model once, not so many times the largest unit. */
TEST_PROCESSES(gradients_that_wait_take_their_own_size, 4)
{
    shoal_fsdp *fsdp = NULL;
    size_t n;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    size_t model = 0;
    for (int unit = 0; unit < N_UNITS; unit++) {
        const int64_t shape[] = {size_of(GROWING, unit)};
        CHECK_OK(shoal_fsdp_add_param(fsdp, unit, "w", SHOAL_F32, 1, shape, NULL, NULL));
        model += (size_t)shape[0] * sizeof(float);
    }
    for (int step = 0; step < 4; step++) {
        for (int micro = 0; micro < 3; micro++) {
            CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), micro == 2));
            CHECK_OK(run_step(fsdp));
        }
    }
    size_t bytes = proc_shared_bytes(self, "shoal:symmetric", &n);
    size_t one = model + 256 * N_UNITS;
    CHECK(bytes <= (size_t)self->n_ranks * one + slack(n * (size_t)self->n_ranks));
    CHECK_INT(n, N_UNITS);
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}
