/* SPDX-License-Identifier: MIT */
/* How many calls of the driver a step of FSDP takes, with one rank and the explicit calls. Launches are most of what a step
   costs the host. */
#include <stdlib.h>

#include "fixtures/test_device.h"
#include "kernel/kernel.h"
#include "shoal/fsdp.h"
#include "shoal/shoal.h"

__attribute__((constructor)) static void set_options(void)
{
    (void)setenv("SHOAL_TEST_DEVICE", "cuda", 0);
}

enum {
    N_UNITS = 3,
    N_PARAMS = 4, /* of a unit */
    COUNT = 300   /* what lies between parameters is not cleared */
};

static const shoal_fsdp_options options_of_bf16 = {
    .struct_size = sizeof(shoal_fsdp_options), .param_dtype = SHOAL_BF16, .reduce_dtype = SHOAL_F32};

static shoal_world *world;

static shoal_fsdp *create(const shoal_fsdp_options *given)
{
    shoal_fsdp_options options = given ? *given : (shoal_fsdp_options)SHOAL_FSDP_OPTIONS_INIT;
    shoal_fsdp *fsdp = NULL;
    options.device = test_device();
    (void)(CHECK_OK(shoal_world_open(NULL, &world)) &&
           CHECK_OK(shoal_fsdp_create(shoal_world_group(world), &options, &fsdp)));
    for (int i = 0; fsdp && i < N_UNITS * N_PARAMS; i++) {
        CHECK_OK(shoal_fsdp_add_param(fsdp, i / N_PARAMS, "w", SHOAL_F32, 1, (const int64_t[]){COUNT}, NULL,
                                      NULL));
    }
    return fsdp;
}

static void end(shoal_fsdp *fsdp)
{
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

/* `write` makes the gradients of a unit, where the step has come to them. */
static void step(shoal_fsdp *fsdp, void (*write)(shoal_fsdp *fsdp, int unit))
{
    for (int unit = 0; unit < N_UNITS; unit++) {
        CHECK_OK(shoal_fsdp_pre_forward(fsdp, unit));
        CHECK(shoal_fsdp_full_param(fsdp, unit * N_PARAMS) != NULL);
        CHECK_OK(shoal_fsdp_post_forward(fsdp, unit));
    }
    for (int unit = N_UNITS - 1; unit >= 0; unit--) {
        CHECK_OK(shoal_fsdp_pre_backward(fsdp, unit));
        write(fsdp, unit);
        CHECK_OK(shoal_fsdp_post_backward(fsdp, unit));
    }
    CHECK_OK(shoal_fsdp_end_backward(fsdp));
}

/* How many -------------------------------------------------------------------------------------------------- */

/* Kernels of the program would store all gradients here. */
static void ask_where_to_store(shoal_fsdp *fsdp, int unit)
{
    for (int i = 0; i < N_PARAMS; i++) {
        bool has_values = true;
        CHECK(shoal_fsdp_grad_to_store(fsdp, unit * N_PARAMS + i, &has_values) != NULL);
        CHECK(!has_values);
    }
}

static void ask_where_to_add(shoal_fsdp *fsdp, int unit)
{
    for (int i = 0; i < N_PARAMS; i++) {
        CHECK(shoal_fsdp_grad(fsdp, unit * N_PARAMS + i) != NULL);
    }
}

/* Calls that start work or allocate, for each unit of a step that is not the first. */
static double count_calls(const shoal_fsdp_options *options, void (*write)(shoal_fsdp *fsdp, int unit))
{
    uint64_t n_calls = 0;
    shoal_fsdp *fsdp = create(options);
    for (int i = 0; fsdp && i < 3; i++) {
        n_calls = atomic_load(&test_apart()->n_calls);
        step(fsdp, write);
        n_calls = atomic_load(&test_apart()->n_calls) - n_calls;
        CHECK_OK(shoal_fsdp_zero_grad(fsdp));
    }
    end(fsdp);
    return (double)n_calls / N_UNITS;
}

TEST(a_unit_of_one_dtype_takes_none)
{
    CHECK_DOUBLE(count_calls(NULL, ask_where_to_store), 0);
}

/* Memory and a cast for each pass, and a cast of the gradients. */
TEST(a_unit_that_computes_in_bf16_takes_three_kernels)
{
    CHECK_DOUBLE(count_calls(&options_of_bf16, ask_where_to_store), 2 + 3);
}

/* The zeros that they add to are one more, for all of them. */
TEST(kernels_that_add_need_zeros)
{
    CHECK_DOUBLE(count_calls(&options_of_bf16, ask_where_to_add), 2 + 4);
}

/* Values ---------------------------------------------------------------------------------------------------- */

static void write_to(void *grad, double value, bool is_added)
{
    uint16_t *elements = test_reach(test_device(), address_of(grad), COUNT * sizeof *elements);
    for (int i = 0; i < COUNT; i++) {
        double sum = value;
        double before = 0;
        if (is_added) {
            kernel_cast(SHOAL_F64, &before, SHOAL_BF16, &elements[i], 1);
        }
        sum += before;
        kernel_cast(SHOAL_BF16, &elements[i], SHOAL_F64, &sum, 1);
    }
}

/* The first is stored, the second added, the third asked for by nobody, and the fourth stored and then added. */
static void write_some(shoal_fsdp *fsdp, int unit)
{
    bool has_values = true;
    write_to(shoal_fsdp_grad_to_store(fsdp, unit * N_PARAMS, &has_values), 1, false);
    CHECK(!has_values);
    write_to(shoal_fsdp_grad(fsdp, unit * N_PARAMS + 1), 2, true);
    write_to(shoal_fsdp_grad_to_store(fsdp, unit * N_PARAMS + 3, &has_values), 3, false);
    CHECK(!has_values);
    write_to(shoal_fsdp_grad_to_store(fsdp, unit * N_PARAMS + 3, &has_values), 4, true);
    CHECK(has_values);
}

/* With `passes` backward passes, of which the last one reduces. */
static void check_values(int passes)
{
    static const float sums[N_PARAMS] = {1, 2, 0, 7};
    shoal_fsdp *fsdp = create(&options_of_bf16);
    REQUIRE(fsdp != NULL);
    for (int pass = 0; pass < passes; pass++) {
        CHECK_OK(shoal_fsdp_set_sync(shoal_fsdp_unit_of(fsdp, SHOAL_FSDP_ALL_UNITS), pass + 1 == passes));
        step(fsdp, write_some);
    }
    for (int i = 0; i < N_UNITS * N_PARAMS && !test_has_failed(); i++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        REQUIRE_OK(shoal_fsdp_read_shard(fsdp, i, &shard));
        REQUIRE(shard.grad != NULL);
        const float *grad = test_reach(test_device(), address_of(shard.grad), COUNT * sizeof *grad);
        CHECK_DOUBLE((double)grad[0], (double)(sums[i % N_PARAMS] * (float)passes));
        CHECK_DOUBLE((double)grad[COUNT - 1], (double)(sums[i % N_PARAMS] * (float)passes));
    }
    end(fsdp);
}

TEST(gradients_that_nobody_wrote_are_zeros)
{
    check_values(1);
    check_values(3);
}
