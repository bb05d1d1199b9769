/* SPDX-License-Identifier: MIT */
/* Sums over dimensions of device `cuda` against the CPU's: all dtypes, any strides, divided and not. */
#include "fixtures/device_shapes.h"

/* On the driver that SHOAL_CUDA names. */
__attribute__((constructor)) static void set_options(void)
{
    (void)setenv("SHOAL_TEST_DEVICE", "cuda", 0);
}

#define ROUNDS 600

static struct {
    shoal_dtype dtype;
    struct drawn_shape shape;
    struct drawn_operand src;
    struct drawn_operand dst;
    bool is_reduced[SHOAL_MAX_DIMS];
    int64_t divisor;
    struct told told[2];
} drawn;

static void run(const struct side *side)
{
    struct kernel_operand dst = {.data = address_add(side->out, (ptrdiff_t)drawn.dst.at),
                                 .strides = drawn.dst.strides};
    struct kernel_operand src = {.data = address_add(side->in, (ptrdiff_t)drawn.src.at),
                                 .strides = drawn.src.strides};
    drawn.told[side_number(side)] = told_of(side->kernels->sum_nd(
        drawn.dtype, dst, src, drawn.shape.n_dims, drawn.shape.sizes, drawn.is_reduced, drawn.divisor));
}

/* Sums of integers modulo 2^64 must not be divided by what they have no sign for. */
static int64_t draw_divisor(struct test_random *random)
{
    const int64_t lowest = dtype_kind(drawn.dtype) == DTYPE_KIND_UNSIGNED ? 0 : -2;
    return test_random_below(random, 2) == 0 ? 0 : lowest + (int64_t)test_random_below(random, 12);
}

/* The dtype, the shape and what is reduced of it are set. */
static void compare(struct test_random *random)
{
    struct drawn_shape kept = drawn.shape;
    size_t in_end = GUARD_BYTES;
    size_t out_end = GUARD_BYTES;
    for (int i = 0; i < kept.n_dims; i++) {
        kept.sizes[i] = drawn.is_reduced[i] ? 1 : kept.sizes[i];
    }
    begin(random);
    if (!draw_operand(random, &drawn.shape, drawn.dtype, true, in, &in_end, &drawn.src) ||
        !draw_operand(random, &kept, drawn.dtype, false, out, &out_end, &drawn.dst)) {
        return;
    }
    for (int i = 0; i < kept.n_dims; i++) {
        drawn.dst.strides[i] = drawn.is_reduced[i] ? 0 : drawn.dst.strides[i];
    }
    mark_operand(&kept, &drawn.dst, drawn.dtype);
    drawn.divisor = draw_divisor(random);
    compare_sides(run);
    check_told(drawn.told);
    check_out("sum");
}

TEST(shapes_and_strides)
{
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < ROUNDS && !test_has_failed(); round++) {
        drawn.dtype = draw_dtype(&random);
        drawn.shape = draw_shape(&random);
        for (int i = 0; i < drawn.shape.n_dims; i++) {
            drawn.is_reduced[i] = test_random_below(&random, 2) == 0;
        }
        compare(&random);
    }
}

/* Rows, columns and all of a matrix, whose rows are vectors or not. */
TEST(matrices)
{
    static const int64_t columns[] = {1, 7, 64, 96, 130};
    struct test_random random = test_random_begin(2);
    for (int i = 0; i < 5 * 3 * (DTYPE_COUNT - 1) && !test_has_failed(); i++) {
        drawn.dtype = (shoal_dtype)(1 + i % (DTYPE_COUNT - 1));
        int rest = i / (DTYPE_COUNT - 1);
        drawn.shape = (struct drawn_shape){.n_dims = 2, .sizes = {33, columns[rest % 5]}};
        drawn.is_reduced[0] = rest / 5 != 1;
        drawn.is_reduced[1] = rest / 5 != 0;
        compare(&random);
    }
}
