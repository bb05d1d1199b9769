/* SPDX-License-Identifier: MIT */
/* Arithmetic element by element of device `cuda` against the CPU's: all dtypes and operators, any strides, in place. */
#include "fixtures/device_shapes.h"

/* On the driver that SHOAL_CUDA names. */
__attribute__((constructor)) static void set_options(void)
{
    (void)setenv("SHOAL_TEST_DEVICE", "cuda", 0);
}

#define ROUNDS 600

/* Any shape ------------------------------------------------------------------------------------------------ */

enum call {
    BINARY,
    NUMBER,
    NEGATE,
    CALL_COUNT
};

/* a and b lie in `in`, or are dst. */
static struct {
    enum call call;
    enum kernel_binary op;
    shoal_dtype dtype;
    struct kernel_scalar number;
    struct drawn_shape shape;
    struct drawn_operand operands[3];
    bool is_in_place[3];
    struct told told[2];
} drawn;

static struct kernel_operand operand_of(const struct side *side, int k)
{
    const struct drawn_operand *operand = &drawn.operands[drawn.is_in_place[k] ? 0 : k];
    struct address base = k == 0 || drawn.is_in_place[k] ? side->out : side->in;
    return (struct kernel_operand){.data = address_add(base, (ptrdiff_t)operand->at),
                                   .strides = operand->strides};
}

static void run_shape(const struct side *side)
{
    struct kernel_operand dst = operand_of(side, 0);
    struct kernel_operand a = operand_of(side, 1);
    struct kernel_operand b = operand_of(side, 2);
    const int n_dims = drawn.shape.n_dims;
    const int64_t *shape = drawn.shape.sizes;
    shoal_status status =
        drawn.call == BINARY ? side->kernels->binary_nd(drawn.op, drawn.dtype, dst, a, b, n_dims, shape)
        : drawn.call == NUMBER
            ? side->kernels->number_nd(drawn.op, drawn.dtype, dst, a, drawn.number, n_dims, shape)
            : side->kernels->negate_nd(drawn.dtype, dst, a, n_dims, shape);
    drawn.told[side_number(side)] = told_of(status);
}

static bool draw_case(struct test_random *random)
{
    size_t in_end = GUARD_BYTES;
    size_t out_end = GUARD_BYTES;
    drawn.call = (enum call)test_random_below(random, CALL_COUNT);
    drawn.op = (enum kernel_binary)test_random_below(random, KERNEL_BINARY_COUNT);
    drawn.dtype = draw_dtype(random);
    drawn.number = (struct kernel_scalar){.is_integer = test_random_below(random, 2) == 0,
                                          .integer = (int64_t)test_random_below(random, 9) - 4,
                                          .real = 4 * test_random_unit(random) - 2};
    drawn.shape = draw_shape(random);
    for (int k = 0; k < 3; k++) {
        drawn.is_in_place[k] = k > 0 && test_random_below(random, 4) == 0;
        if (!draw_operand(random, &drawn.shape, drawn.dtype, k > 0, k == 0 ? out : in,
                          k == 0 ? &out_end : &in_end, &drawn.operands[k])) {
            return false;
        }
    }
    mark_operand(&drawn.shape, &drawn.operands[0], drawn.dtype);
    return true;
}

TEST(shapes_and_strides)
{
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < ROUNDS && !test_has_failed(); round++) {
        begin(&random);
        if (draw_case(&random)) {
            compare_sides(run_shape);
            check_told(drawn.told);
            check_out("arithmetic");
        }
    }
}

/* Every operator of every dtype on the same addresses: contiguous, and with one number for b. */
TEST(every_dtype)
{
    struct test_random random = test_random_begin(2);
    for (int i = 0; i < 4 * 2 * KERNEL_BINARY_COUNT * (DTYPE_COUNT - 1) && !test_has_failed(); i++) {
        int rest = i;
        drawn.dtype = (shoal_dtype)(1 + rest % (DTYPE_COUNT - 1));
        rest /= DTYPE_COUNT - 1;
        drawn.op = (enum kernel_binary)(rest % KERNEL_BINARY_COUNT);
        rest /= KERNEL_BINARY_COUNT;
        drawn.call = BINARY;
        drawn.shape = (struct drawn_shape){.n_dims = 1, .sizes = {700}};
        begin(&random);
        for (int k = 0; k < 3; k++) {
            drawn.is_in_place[k] = false;
            drawn.operands[k] = (struct drawn_operand){.at = (size_t)GUARD_BYTES + (size_t)(k == 2) * 16384 +
                                                             (size_t)(rest / 2) * dtype_bytes(drawn.dtype),
                                                       .strides = {k == 2 && rest % 2 == 1 ? 0 : 1}};
            make_values(&random, drawn.dtype, (k == 0 ? out : in) + drawn.operands[k].at, 700);
        }
        mark_operand(&drawn.shape, &drawn.operands[0], drawn.dtype);
        compare_sides(run_shape);
        check_told(drawn.told);
        check_out("a dtype");
    }
}

/* Contiguous elements -------------------------------------------------------------------------------------- */

static struct {
    shoal_dtype dtype;
    size_t count;
    size_t at[4];
    bool is_in_place;
    double divisor;
} line;

static void run_where(const struct side *side)
{
    struct address dst = address_add(side->out, (ptrdiff_t)line.at[0]);
    struct address src = address_add(side->in, (ptrdiff_t)line.at[1]);
    side->kernels->where_equal(line.dtype, dst, line.is_in_place ? dst : src,
                               address_add(side->in, (ptrdiff_t)line.at[2]),
                               address_add(side->in, (ptrdiff_t)line.at[3]), line.count);
}

static void run_divide(const struct side *side)
{
    side->kernels->divide(line.dtype, address_add(side->out, (ptrdiff_t)line.at[0]), line.count,
                          line.divisor);
}

/* Half of the elements that are compared are equal. */
static bool draw_line(struct test_random *random, shoal_dtype dtype)
{
    const size_t bytes = dtype_bytes(dtype);
    size_t ends[] = {GUARD_BYTES, GUARD_BYTES};
    line.dtype = dtype;
    line.count = draw_count(random);
    line.is_in_place = test_random_below(random, 4) == 0;
    for (int k = 0; k < 4; k++) {
        line.at[k] = draw_place(random, ends[k > 0], dtype);
        ends[k > 0] = line.at[k] + line.count * bytes;
        if (!has_room(line.at[k], dtype, line.count)) {
            return false;
        }
        make_values(random, dtype, (k == 0 ? out : in) + line.at[k], line.count);
    }
    for (size_t i = 0; i < line.count; i++) {
        if (test_random_below(random, 2) == 0) {
            memcpy(in + line.at[3] + i * bytes, in + line.at[2] + i * bytes, bytes);
        }
    }
    mark(line.at[0], dtype, line.count);
    return true;
}

TEST(where_two_are_equal)
{
    struct test_random random = test_random_begin(3);
    for (int round = 0; round < ROUNDS / 2 && !test_has_failed(); round++) {
        begin(&random);
        if (draw_line(&random, draw_dtype(&random))) {
            compare_sides(run_where);
            check_out("where_equal");
        }
    }
}

TEST(dividing_in_place)
{
    static const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16, SHOAL_C64, SHOAL_C128};
    static const double divisors[] = {1, 2, 3, 7, 1e-3, 1e40, 0, -5};
    struct test_random random = test_random_begin(4);
    for (int round = 0; round < ROUNDS / 4 && !test_has_failed(); round++) {
        begin(&random);
        if (draw_line(&random, dtypes[test_random_below(&random, 6)])) {
            line.divisor = divisors[test_random_below(&random, 8)];
            compare_sides(run_divide);
            check_out("divide");
        }
    }
}
