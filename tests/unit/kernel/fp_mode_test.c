/* SPDX-License-Identifier: MIT */
/*
 * Every kernel in every floating-point mode that an application may have set: the bits are those of the default mode,
 * and the mode is the application's again afterwards.
 */
#include <string.h>

#include "fixtures/fp_modes.h"
#include "harness/test.h"
#include "kernel/half.h"
#include "kernel/kernel.h"
#include "kernel/simd.h"
#include "tensor/dtype.h"

enum {
    COUNT = 67, /* vectors and a rest */
    ROOM = COUNT * 16,
    N_INPUTS = 3
};

/* What a kernel is given. Inputs stay as they are; what is written comes from them. */
struct call {
    shoal_dtype dtype;
    shoal_dtype other;
    int variant; /* operator, or another choice of the kernel's */
    unsigned char inputs[N_INPUTS][ROOM];
    unsigned char output[ROOM];
};

typedef void run_function(struct call *call);

static const int64_t shape[] = {COUNT};
static const int64_t dense[] = {1};

static struct kernel_operand operand(void *data)
{
    return (struct kernel_operand){.data = address_of(data), .strides = dense};
}

/* All kinds of numbers: ordinary ones, whose results are rounded, and subnormal ones. */
static void fill_floats(shoal_dtype dtype, unsigned char *to, struct test_random *random)
{
    for (size_t i = 0; i < COUNT; i++) {
        static const int exponents[] = {0, -126, -130, -1040, -1040, -14, -20, -1};
        double value = test_random_unit(random) * 2 - 1;
        int exponent = exponents[test_random_below(random, 8)];
        for (int k = 0; k > exponent; k--) {
            value /= 2;
        }
        kernel_cast(dtype, to + i * dtype_bytes(dtype), SHOAL_F64, &value, 1);
    }
}

static void fill(struct call *call, struct test_random *random)
{
    memset(call->output, 0, sizeof call->output);
    for (int k = 0; k < N_INPUTS; k++) {
        if (dtype_is_real(call->dtype)) {
            fill_floats(call->dtype, call->inputs[k], random);
        } else {
            for (size_t i = 0; i < ROOM; i++) {
                call->inputs[k][i] = (unsigned char)test_random_below(random, 256);
            }
        }
    }
    /* Some are equal. */
    memcpy(call->inputs[1], call->inputs[0], ROOM / 4);
}

static void check_modes(struct call *call, const char *what, run_function *run)
{
    unsigned char expected[ROOM];
    unsigned char before[sizeof call->inputs];
    memcpy(before, call->inputs, sizeof before);
    run(call);
    memcpy(expected, call->output, ROOM);
    for (size_t row = 0; row < FP_MODE_ROWS; row++) {
        memcpy(call->inputs, before, sizeof before);
        memset(call->output, 0, ROOM);
        fp_modes_begin(row);
        run(call);
        fp_modes_end(row);
        if (memcmp(call->output, expected, ROOM) != 0) {
            test_failed(__FILE__, __LINE__, "%s %d of %s, %s, in mode %s gives other bits", what,
                        call->variant, shoal_dtype_name(call->dtype), shoal_dtype_name(call->other),
                        fp_mode_rows[row].name);
        }
    }
}

static void check_dtypes(const char *what, int n_variants, bool is_only_floats, run_function *run)
{
    static struct call call;
    struct test_random random = test_random_begin(1);
    for (int d = 0; d < DTYPE_COUNT; d++) {
        call.dtype = (shoal_dtype)d;
        call.other = call.dtype;
        for (call.variant = 0; dtype_is_valid(call.dtype) && call.variant < n_variants; call.variant++) {
            if (!is_only_floats || dtype_kind(call.dtype) == DTYPE_KIND_FLOAT) {
                fill(&call, &random);
                check_modes(&call, what, run);
            }
        }
    }
}

/* One kernel each. Combinations that are not offered write nothing -------------------------------------- */

static void run_cast(struct call *call)
{
    kernel_cast(call->other, call->output, call->dtype, call->inputs[0], COUNT);
}

static void run_copy_nd(struct call *call)
{
    static const int64_t backwards[] = {-1};
    size_t last = (COUNT - 1) * dtype_bytes(call->dtype);
    struct kernel_operand from = {.data = address_of(call->inputs[0] + last), .strides = backwards};
    kernel_copy_nd(call->other, operand(call->output), call->dtype, from, 1, shape);
}

static void run_pack(struct call *call)
{
    struct kernel_pack_item item = {.data = address_of(call->inputs[0]), .rows = COUNT, .row_elems = 1};
    kernel_pack(call->other, address_of(call->output), call->dtype, &item, 1, 1, 0, 1);
}

static void run_unpack(struct call *call)
{
    struct kernel_unpack_item item = {.data = address_of(call->output), .elems = COUNT};
    kernel_unpack(call->other, &item, 1, call->dtype, address_of(call->inputs[0]), 1);
}

static void run_fill(struct call *call)
{
    static const double values[] = {0.1, 1e-310, -3e-40, 65519.99, 1e300};
    kernel_fill_nd(call->dtype, operand(call->output), 1, shape,
                   (struct kernel_scalar){.real = values[call->variant]});
}

static void run_binary(struct call *call)
{
    (void)kernel_binary_nd((enum kernel_binary)call->variant, call->dtype, operand(call->output),
                           operand(call->inputs[0]), operand(call->inputs[1]), 1, shape);
}

static void run_negate(struct call *call)
{
    (void)kernel_negate_nd(call->dtype, operand(call->output), operand(call->inputs[0]), 1, shape);
}

static void run_where(struct call *call)
{
    kernel_where_equal(call->dtype, address_of(call->output), address_of(call->inputs[0]),
                       address_of(call->inputs[1]), address_of(call->inputs[2]), COUNT);
}

static void run_scale(struct call *call)
{
    (void)kernel_scale(call->dtype, call->output, call->inputs[0], COUNT, 0.3);
}

static void run_clamp(struct call *call)
{
    static const double limits[] = {0.1, 1e-310, 3e-40};
    (void)kernel_clamp(call->dtype, call->inputs[0], COUNT, limits[call->variant]);
    memcpy(call->output, call->inputs[0], COUNT * dtype_bytes(call->dtype));
}

static void run_largest(struct call *call)
{
    double largest = 0;
    /* Of pairs: some are subnormal, both of them. */
    for (size_t i = 0; i + 2 <= COUNT; i++) {
        (void)kernel_largest(call->dtype, call->inputs[0] + i * dtype_bytes(call->dtype), 2, &largest);
        memcpy(call->output + i * sizeof largest, &largest, sizeof largest);
    }
}

static void run_reduce(struct call *call)
{
    const void *sources[] = {call->inputs[0], call->inputs[1], call->inputs[2]};
    (void)kernel_reduce((shoal_reduce_op)call->variant, call->dtype, call->output, sources, N_INPUTS, COUNT,
                        0.3);
}

static void run_sum(struct call *call)
{
    static const int64_t sizes[] = {6, 11};
    static const int64_t from_strides[] = {11, 1};
    static const int64_t to_strides[] = {1, 0};
    static const bool is_reduced[] = {false, true};
    struct kernel_operand from = {.data = address_of(call->inputs[0]), .strides = from_strides};
    struct kernel_operand to = {.data = address_of(call->output), .strides = to_strides};
    (void)kernel_sum_nd(call->dtype, to, from, 2, sizes, is_reduced, call->variant == 0 ? 0 : 7);
}

static void run_powers(struct call *call)
{
    static const double powers[] = {2.0, 1.0, 1.7, 3.0};
    struct kernel_squares squares;
    kernel_squares_init(&squares);
    if (call->variant == 0) {
        (void)kernel_squares_add(&squares, call->dtype, call->inputs[0], COUNT);
    } else {
        (void)kernel_powers_add(&squares, call->dtype, call->inputs[0], COUNT, powers[call->variant]);
    }
    double sum = kernel_squares_round(&squares);
    memcpy(call->output, &sum, sizeof sum);
}

static void check_pairs(const char *what, run_function *run)
{
    static struct call call;
    struct test_random random = test_random_begin(2);
    for (int from = 0; from < DTYPE_COUNT; from++) {
        for (int to = 0; to < DTYPE_COUNT; to++) {
            call.dtype = (shoal_dtype)from;
            call.other = (shoal_dtype)to;
            if (dtype_is_valid(call.dtype) && dtype_is_valid(call.other)) {
                fill(&call, &random);
                check_modes(&call, what, run);
            }
        }
    }
}

static void check_table(const struct simd_table *table)
{
    simd_table_set(table);
    check_pairs("cast", run_cast);
    check_pairs("copy_nd", run_copy_nd);
    check_pairs("pack", run_pack);
    check_pairs("unpack", run_unpack);
    check_dtypes("fill", 5, false, run_fill);
    check_dtypes("binary", KERNEL_BINARY_COUNT, false, run_binary);
    check_dtypes("negate", 1, false, run_negate);
    check_dtypes("where_equal", 1, false, run_where);
    check_dtypes("scale", 1, false, run_scale);
    check_dtypes("clamp", 3, true, run_clamp);
    check_dtypes("largest", 1, true, run_largest);
    check_dtypes("reduce", SHOAL_PREMUL_SUM + 1, false, run_reduce);
    check_dtypes("sum", 2, false, run_sum);
    check_dtypes("powers", 4, true, run_powers);
}

TEST(no_mode_changes_bits)
{
    const struct simd_table *before = simd_table();
    for (size_t i = 0; simd_variant(i); i++) {
        check_table(simd_variant(i));
    }
    simd_table_set(before);
}

/* Otherwise the tests above prove nothing. */
TEST(modes_change_plain_arithmetic)
{
    volatile float one = 1.0f;
    volatile float three = 3.0f;
    volatile float small = 3e-39f;
    for (size_t row = 0; row < FP_MODE_ROWS; row++) {
        volatile float in_default[] = {one / three, -one / three, small * one};
        fp_modes_begin(row);
        volatile float in_mode[] = {one / three, -one / three, small * one};
        fp_modes_end(row);
        bool is_of_halves = strstr(fp_mode_rows[row].name, "halves") != NULL;
        bool is_of_nan = strstr(fp_mode_rows[row].name, "NaN") != NULL;
        CHECK(is_of_halves || is_of_nan ||
              memcmp((const void *)in_default, (const void *)in_mode, sizeof in_mode) != 0);
    }
}

TEST(modes_nest)
{
    CHECK(fp_mode_is_default(fp_mode_enter()));
    fp_modes_begin(0);
    uint64_t outer = fp_mode_enter();
    uint64_t inner = fp_mode_enter();
    CHECK(fp_mode_is_default(fp_mode_read()));
    fp_mode_leave(inner);
    CHECK(fp_mode_is_default(fp_mode_read()));
    fp_mode_leave(outer);
    fp_modes_end(0);
}
