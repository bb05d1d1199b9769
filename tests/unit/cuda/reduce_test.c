/* SPDX-License-Identifier: MIT */
/* Reductions of device `cuda` against the CPU's: all operators and dtypes, few and many sources, in place. */
#include "fixtures/device_shapes.h"

/* On the driver that SHOAL_CUDA names. */
__attribute__((constructor)) static void set_options(void)
{
    (void)setenv("SHOAL_TEST_DEVICE", "cuda", 0);
}

enum {
    ROUNDS = 500,
    SOURCES_MOST = 700, /* more than the arguments of a kernel can have */
    OPERATORS = SHOAL_PREMUL_SUM + 1
};

static struct {
    shoal_reduce_op op;
    shoal_dtype dtype;
    size_t count;
    size_t n_srcs;
    double factor;
    size_t dst_at;
    size_t srcs_at[SOURCES_MOST];
    bool is_dst[SOURCES_MOST];
    struct told told[2];
} drawn;

static void run(const struct side *side)
{
    const void *srcs[SOURCES_MOST];
    struct address dst = address_add(side->out, (ptrdiff_t)drawn.dst_at);
    for (size_t i = 0; i < drawn.n_srcs; i++) {
        srcs[i] = drawn.is_dst[i] ? dst.pointer : address_add(side->in, (ptrdiff_t)drawn.srcs_at[i]).pointer;
    }
    drawn.told[side_number(side)] = told_of(side->kernels->reduce(drawn.op, drawn.dtype, dst.pointer, srcs,
                                                                  drawn.n_srcs, drawn.count, drawn.factor));
}

/* Numbers whose sums are finite, so that orders and roundings show. */
static void make_finite(struct test_random *random, unsigned char *values)
{
    const size_t bytes = dtype_bytes(drawn.dtype);
    for (size_t i = 0; i < drawn.count; i++) {
        const double number = ldexp(test_random_unit(random) - 0.5, (int)test_random_below(random, 12));
        kernel_scalar_store(drawn.dtype, values + i * bytes, (struct kernel_scalar){.real = number});
    }
}

/* Sources begin like dst, or each somewhere else. */
static bool draw_places(struct test_random *random)
{
    const bool is_finite = test_random_below(random, 2) == 0;
    const bool is_alike = test_random_below(random, 3) > 0;
    size_t end = GUARD_BYTES;
    drawn.dst_at = draw_place(random, GUARD_BYTES, drawn.dtype);
    for (size_t i = 0; i < drawn.n_srcs; i++) {
        size_t alike = (end + 15) / 16 * 16 + drawn.dst_at % 16;
        drawn.srcs_at[i] = is_alike ? alike : draw_place(random, end, drawn.dtype);
        drawn.is_dst[i] = test_random_below(random, 8) == 0;
        end = drawn.srcs_at[i] + drawn.count * dtype_bytes(drawn.dtype);
        if (!has_room(drawn.srcs_at[i], drawn.dtype, drawn.count)) {
            return false;
        }
        make_values(random, drawn.dtype, in + drawn.srcs_at[i], drawn.count);
        if (is_finite) {
            make_finite(random, in + drawn.srcs_at[i]);
        }
    }
    make_values(random, drawn.dtype, out + drawn.dst_at, drawn.count);
    mark(drawn.dst_at, drawn.dtype, drawn.count);
    return true;
}

static bool compare(struct test_random *random)
{
    begin(random);
    if (!draw_places(random)) {
        return false;
    }
    compare_sides(run);
    check_told(drawn.told);
    check_out(shoal_reduce_op_name(drawn.op));
    return true;
}

TEST(every_operator_of_every_dtype)
{
    struct test_random random = test_random_begin(1);
    for (int i = 0; i < OPERATORS * (DTYPE_COUNT - 1) && !test_has_failed(); i++) {
        drawn.op = (shoal_reduce_op)(i % OPERATORS);
        drawn.dtype = (shoal_dtype)(1 + i / OPERATORS);
        drawn.count = 300;
        drawn.n_srcs = 1 + test_random_below(&random, 6);
        drawn.factor = 0.3;
        CHECK(compare(&random));
    }
}

TEST(sources_anywhere)
{
    struct test_random random = test_random_begin(2);
    for (int round = 0; round < ROUNDS && !test_has_failed(); round++) {
        bool is_average = test_random_below(&random, 2) == 0;
        drawn.op = (shoal_reduce_op)test_random_below(&random, is_average ? SHOAL_AVG + 1 : OPERATORS);
        drawn.dtype = draw_dtype(&random);
        drawn.count = draw_count(&random);
        drawn.n_srcs = 1 + test_random_below(&random, 20);
        drawn.factor = test_random_unit(&random);
        (void)compare(&random);
    }
}

TEST(many_sources)
{
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16, SHOAL_I64, SHOAL_U64, SHOAL_F64, SHOAL_I8};
    struct test_random random = test_random_begin(3);
    for (int i = 0; i < 24 && !test_has_failed(); i++) {
        drawn.op = i % 2 == 0 ? SHOAL_SUM : SHOAL_AVG;
        drawn.dtype = dtypes[i / 2 % 6];
        drawn.count = 1 + test_random_below(&random, 30);
        drawn.n_srcs = i < 12 ? SOURCES_MOST : 480 + test_random_below(&random, 20);
        CHECK(compare(&random));
    }
}
