/* SPDX-License-Identifier: MIT */
/* Updates of parameters of device `cuda` against the CPU's: both rules, all dtypes of parameters and gradients. */
#include "fixtures/device_shapes.h"

/* On the driver that SHOAL_CUDA names. */
__attribute__((constructor)) static void set_options(void)
{
    (void)setenv("SHOAL_TEST_DEVICE", "cuda", 0);
}

enum {
    ROUNDS = 300,
    UPDATES_MOST = 120, /* more than the arguments of a kernel can have */
    OPERANDS = 4        /* the parameter, both moments, the gradient */
};

static struct {
    enum kernel_rule rule;
    size_t n_updates;
    struct kernel_update updates[UPDATES_MOST];
    size_t at[UPDATES_MOST][OPERANDS];
    struct told told[2];
} drawn;

static void run(const struct side *side)
{
    struct kernel_update updates[UPDATES_MOST];
    for (size_t i = 0; i < drawn.n_updates; i++) {
        updates[i] = drawn.updates[i];
        updates[i].data = address_add(side->out, (ptrdiff_t)drawn.at[i][0]);
        updates[i].gradient = address_add(side->in, (ptrdiff_t)drawn.at[i][3]);
        for (int k = 0; k < 2 && drawn.rule == KERNEL_ADAMW; k++) {
            updates[i].moments[k] = address_add(side->out, (ptrdiff_t)drawn.at[i][1 + k]);
        }
    }
    drawn.told[side_number(side)] = told_of(side->kernels->update(drawn.rule, updates, drawn.n_updates));
}

/* Numbers as in training; now and then anything. Second moments are not negative. */
static void make_state(struct test_random *random, shoal_dtype dtype, unsigned char *values, size_t count,
                       bool is_positive)
{
    if (test_random_below(random, 4) == 0) {
        make_values(random, dtype, values, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const double number = test_random_unit(random) - (is_positive ? 0 : 0.5);
        kernel_scalar_store(dtype, values + i * dtype_bytes(dtype), (struct kernel_scalar){.real = number});
    }
}

static struct kernel_rates draw_rates(struct test_random *random, bool are_equal)
{
    const double t = are_equal ? 1 : 1 + (double)test_random_below(random, 4);
    return (struct kernel_rates){.lr = 0.1 * t,
                                 .decay = 0.001,
                                 .beta1 = 0.9,
                                 .one_minus_beta1 = 1 - 0.9,
                                 .beta2 = 0.95,
                                 .one_minus_beta2 = 1 - 0.95,
                                 .step = 0.01 / t,
                                 .root = 0.7,
                                 .eps = 1e-8};
}

/* The dtypes, the count and the rates are set. */
static bool draw_update(struct test_random *random, size_t i, size_t ends[2])
{
    const struct kernel_update *update = &drawn.updates[i];
    const shoal_dtype real = update->dtype == SHOAL_F64 ? SHOAL_F64 : SHOAL_F32;
    const shoal_dtype dtypes[OPERANDS] = {update->dtype, real, real, update->gradient_dtype};
    const bool is_aligned = test_random_below(random, 3) > 0;
    for (int k = 0; k < OPERANDS; k++) {
        size_t *end = &ends[k == OPERANDS - 1];
        unsigned char *bytes = k == OPERANDS - 1 ? in : out;
        drawn.at[i][k] = is_aligned ? (*end + 15) / 16 * 16 : draw_place(random, *end, dtypes[k]);
        *end = drawn.at[i][k] + update->count * dtype_bytes(dtypes[k]);
        if (!has_room(drawn.at[i][k], dtypes[k], update->count)) {
            return false;
        }
        make_state(random, dtypes[k], bytes + drawn.at[i][k], update->count, k == 2);
        if (k < OPERANDS - 1) {
            mark(drawn.at[i][k], dtypes[k], update->count);
        }
    }
    return true;
}

static shoal_dtype draw_float(struct test_random *random)
{
    return test_random_below(random, 300) == 0 ? draw_dtype(random)
                                               : (shoal_dtype)(1 + test_random_below(random, 4));
}

TEST(random_updates)
{
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < ROUNDS && !test_has_failed(); round++) {
        const bool are_many = test_random_below(&random, 5) == 0;
        const bool are_equal = test_random_below(&random, 2) == 0;
        const size_t wanted = test_random_below(&random, are_many ? UPDATES_MOST + 1 : 5);
        size_t ends[] = {GUARD_BYTES, GUARD_BYTES};
        drawn.rule = (enum kernel_rule)test_random_below(&random, KERNEL_RULE_COUNT);
        begin(&random);
        for (drawn.n_updates = 0; drawn.n_updates < wanted; drawn.n_updates++) {
            drawn.updates[drawn.n_updates] = (struct kernel_update){
                .count = are_many ? test_random_below(&random, 40) : draw_count(&random),
                .dtype = draw_float(&random),
                .gradient_dtype = draw_float(&random),
                .rates = draw_rates(&random, are_equal)};
            if (!draw_update(&random, drawn.n_updates, ends)) {
                break;
            }
        }
        compare_sides(run);
        check_told(drawn.told);
        check_out("update");
    }
}

TEST(every_pair_of_dtypes)
{
    struct test_random random = test_random_begin(2);
    for (int i = 0; i < 2 * 16 && !test_has_failed(); i++) {
        size_t ends[] = {GUARD_BYTES, GUARD_BYTES};
        begin(&random);
        drawn.rule = i % 2 == 0 ? KERNEL_SGD : KERNEL_ADAMW;
        drawn.n_updates = 1;
        drawn.updates[0] = (struct kernel_update){.count = 2500,
                                                  .dtype = (shoal_dtype)(1 + i / 2 % 4),
                                                  .gradient_dtype = (shoal_dtype)(1 + i / 8),
                                                  .rates = draw_rates(&random, true)};
        CHECK(draw_update(&random, 0, ends));
        compare_sides(run);
        check_told(drawn.told);
        check_out("a pair");
    }
}
