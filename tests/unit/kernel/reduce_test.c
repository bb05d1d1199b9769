/* SPDX-License-Identifier: MIT */
/*
 * kernel_reduce for every dtype and operator, with every vector table that this machine can run, against
 * arithmetic written out one element at a time. Rare bits are the matter of simd_test.c.
 */
#include "kernel/kernel.h"

#include "base/mem.h"
#include "harness/harness.h"
#include "harness/test.h"
#include "kernel/half.h"
#include "kernel/simd.h"
#include "tensor/dtype.h"

#include <math.h>
#include <string.h>

enum {
    MAX_COUNT = 1100, /* more than one block of any loop */
    MAX_SRCS = 70,
    MAX_SHIFT = 7,
    MAX_ELEMENT_BYTES = 16,
    BUFFER_BYTES = MAX_COUNT * MAX_ELEMENT_BYTES + MAX_SHIFT,
    OPERATOR_COUNT = SHOAL_PREMUL_SUM + 1
};

__extension__ typedef __int128 wide_integer;

static unsigned char buffers[MAX_SRCS][BUFFER_BYTES];
static unsigned char dst_buffer[BUFFER_BYTES];
static unsigned char expected[BUFFER_BYTES];
static unsigned char saved[BUFFER_BYTES];

struct reduce_case {
    shoal_reduce_op op;
    shoal_dtype dtype;
    size_t n_srcs;
    size_t count;
    double factor;
    size_t in_place; /* which source dst is; n_srcs: none */
};

/* The reference ------------------------------------------------------------------------------------------ */

/* Integers and bool. */
static wide_integer load_integer(shoal_dtype dtype, const void *element)
{
    uint64_t bits = 0;
    size_t bytes = dtype_bytes(dtype);
    memcpy(&bits, element, bytes);
    if (dtype == SHOAL_BOOL) {
        return bits != 0;
    }
    uint64_t sign = (uint64_t)1 << (8 * bytes - 1);
    if (dtype_kind(dtype) == DTYPE_KIND_SIGNED && (bits & sign) != 0) {
        return (wide_integer)bits - ((wide_integer)sign << 1);
    }
    return (wide_integer)bits;
}

static wide_integer fold_integer(shoal_reduce_op op, shoal_dtype dtype, wide_integer a, wide_integer b)
{
    bool is_bool = dtype == SHOAL_BOOL;
    switch (op) {
    case SHOAL_SUM:
        return is_bool ? (a | b) : a + b;
    case SHOAL_AVG:
        return a + b;
    case SHOAL_PRODUCT:
        return (wide_integer)((uint64_t)a * (uint64_t)b);
    case SHOAL_MIN:
        return a < b ? a : b;
    case SHOAL_MAX:
        return a > b ? a : b;
    case SHOAL_BAND:
        return a & b;
    case SHOAL_BOR:
        return a | b;
    case SHOAL_BXOR:
        return a ^ b;
    case SHOAL_PREMUL_SUM:
        break;
    }
    return 0;
}

static void reduce_integer(const struct reduce_case *one, void *dst, const void *const *srcs, size_t i)
{
    size_t bytes = dtype_bytes(one->dtype);
    wide_integer folded = load_integer(one->dtype, (const char *)srcs[0] + i * bytes);
    for (size_t s = 1; s < one->n_srcs; s++) {
        wide_integer next = load_integer(one->dtype, (const char *)srcs[s] + i * bytes);
        folded = fold_integer(one->op, one->dtype, folded, next);
    }
    if (one->op == SHOAL_AVG) {
        folded /= (wide_integer)one->n_srcs;
    }
    uint64_t bits = (uint64_t)folded;
    memcpy((char *)dst + i * bytes, &bits, bytes);
}

/* Floats, in f32 unless they are f64: every operation is done in double and rounded, which is exact for one
   f32 addition, multiplication or division because 53 >= 2 * 24 + 2. */
static double round_to(shoal_dtype dtype, double value)
{
    return dtype == SHOAL_F64 ? value : (double)(float)value;
}

static double load_real(shoal_dtype dtype, const void *element)
{
    uint16_t half;
    float single;
    double real;
    memcpy(&half, element, sizeof(half));
    if (dtype == SHOAL_BF16) {
        return (double)half_bf16_to_f32(half);
    }
    if (dtype == SHOAL_F16) {
        return (double)half_f16_to_f32(half);
    }
    if (dtype == SHOAL_F32) {
        memcpy(&single, element, sizeof(single));
        return (double)single;
    }
    memcpy(&real, element, sizeof(real));
    return real;
}

static void store_real(shoal_dtype dtype, void *element, double value)
{
    float single = (float)value;
    uint16_t half = dtype == SHOAL_BF16 ? half_f32_to_bf16(single) : half_f32_to_f16(single);
    const void *from = dtype == SHOAL_F64 ? (void *)&value : dtype == SHOAL_F32 ? (void *)&single : &half;
    memcpy(element, from, dtype_bytes(dtype));
}

static double fold_real(shoal_reduce_op op, double a, double b)
{
    if (op == SHOAL_MIN || op == SHOAL_MAX) {
        if (isnan(a) || isnan(b)) {
            return (double)NAN;
        }
        return (op == SHOAL_MIN ? b < a : b > a) ? b : a;
    }
    return op == SHOAL_PRODUCT ? a * b : a + b;
}

static void reduce_real(const struct reduce_case *one, shoal_dtype dtype, void *dst, const void *const *srcs,
                        size_t i)
{
    size_t bytes = dtype_bytes(dtype);
    double factor = one->op == SHOAL_PREMUL_SUM ? round_to(dtype, one->factor) : 1;
    double folded = 0;
    for (size_t s = 0; s < one->n_srcs; s++) {
        double next = load_real(dtype, (const char *)srcs[s] + i * bytes);
        next = round_to(dtype, next * factor);
        folded = s == 0 ? next : round_to(dtype, fold_real(one->op, folded, next));
    }
    if (one->op == SHOAL_AVG) {
        folded = round_to(dtype, folded / (double)one->n_srcs);
    }
    store_real(dtype, (char *)dst + i * bytes, folded);
}

static void reduce_reference(const struct reduce_case *one, void *dst, const void *const *srcs)
{
    enum dtype_kind kind = dtype_kind(one->dtype);
    for (size_t i = 0; i < one->count; i++) {
        if (kind == DTYPE_KIND_COMPLEX) {
            shoal_dtype part = one->dtype == SHOAL_C64 ? SHOAL_F32 : SHOAL_F64;
            reduce_real(one, part, dst, srcs, 2 * i);
            reduce_real(one, part, dst, srcs, 2 * i + 1);
        } else if (kind == DTYPE_KIND_FLOAT) {
            reduce_real(one, one->dtype, dst, srcs, i);
        } else {
            reduce_integer(one, dst, srcs, i);
        }
    }
}

/* Checks ------------------------------------------------------------------------------------------------- */

/* Values whose sums round, with the special ones among them; integers and bool are any bits. */
static void fill(struct test_random *random, shoal_dtype dtype, unsigned char *base, size_t count)
{
    static const double specials[] = {
        0.0, -0.0, (double)INFINITY, -(double)INFINITY, (double)NAN, 0x1p-149, -0x1p-126, 65504.0, 1e38};
    bool is_complex = dtype_kind(dtype) == DTYPE_KIND_COMPLEX;
    shoal_dtype part = !is_complex ? dtype : dtype == SHOAL_C64 ? SHOAL_F32 : SHOAL_F64;
    size_t part_count = is_complex ? 2 * count : count;
    for (size_t i = 0; i < part_count * dtype_bytes(part); i++) {
        base[i] = (unsigned char)test_random_u64(random);
    }
    for (size_t i = 0; i < part_count && dtype_kind(part) == DTYPE_KIND_FLOAT; i++) {
        double value = test_random_unit(random) * 4 - 2;
        if (test_random_below(random, 8) == 0) {
            value = specials[test_random_below(random, sizeof(specials) / sizeof(specials[0]))];
        }
        store_real(part, base + i * dtype_bytes(part), value);
    }
}

/* Whether two elements are equal up to the payload of a NaN. */
static bool is_same(shoal_dtype dtype, const void *a, const void *b)
{
    if (dtype_kind(dtype) == DTYPE_KIND_FLOAT && isnan(load_real(dtype, a)) && isnan(load_real(dtype, b))) {
        return true;
    }
    return memcmp(a, b, dtype_bytes(dtype)) == 0;
}

static void compare(const struct reduce_case *one, const unsigned char *actual)
{
    bool is_complex = dtype_kind(one->dtype) == DTYPE_KIND_COMPLEX;
    shoal_dtype part = !is_complex ? one->dtype : one->dtype == SHOAL_C64 ? SHOAL_F32 : SHOAL_F64;
    size_t part_count = is_complex ? 2 * one->count : one->count;
    for (size_t i = 0; i < part_count; i++) {
        size_t offset = i * dtype_bytes(part);
        if (!is_same(part, actual + offset, expected + offset)) {
            test_failed(__FILE__, __LINE__, "%s %s %s: srcs %zu, count %zu, dst is source %zu: element %zu",
                        simd_name(), shoal_reduce_op_name(one->op), shoal_dtype_name(one->dtype), one->n_srcs,
                        one->count, one->in_place, i);
            return;
        }
    }
}

static void check_case(struct test_random *random, const struct reduce_case *one)
{
    const void *srcs[MAX_SRCS];
    unsigned char *dst = dst_buffer + test_random_below(random, MAX_SHIFT + 1);
    for (size_t s = 0; s < one->n_srcs; s++) {
        unsigned char *src = buffers[s] + test_random_below(random, MAX_SHIFT + 1);
        fill(random, one->dtype, src, one->count);
        srcs[s] = src;
        if (s == one->in_place) {
            dst = src;
        }
    }
    reduce_reference(one, expected, srcs);
    size_t dst_bytes = one->count * dtype_bytes(one->dtype);
    memcpy(saved, dst, dst_bytes);
    const struct simd_table *in_use = simd_table();
    const struct simd_table *table;
    for (size_t v = 0; (table = simd_variant(v)); v++) {
        memcpy(dst, saved, dst_bytes);
        simd_table_set(table);
        CHECK_OK(kernel_reduce(one->op, one->dtype, dst, srcs, one->n_srcs, one->count, one->factor));
        compare(one, dst);
    }
    simd_table_set(in_use);
}

static void check_all(struct test_random *random, size_t n_srcs, size_t count)
{
    for (int dtype = 1; dtype < DTYPE_COUNT; dtype++) {
        for (int op = 0; op < OPERATOR_COUNT; op++) {
            struct reduce_case one = {.op = (shoal_reduce_op)op,
                                      .dtype = (shoal_dtype)dtype,
                                      .n_srcs = n_srcs,
                                      .count = count,
                                      .factor = 1.0 / 3,
                                      .in_place = n_srcs};
            if (kernel_reduce_check(one.op, one.dtype) != SHOAL_OK) {
                continue;
            }
            check_case(random, &one);
            one.in_place = count % n_srcs;
            check_case(random, &one);
        }
    }
}

TEST(every_dtype_and_operator)
{
    struct test_random random = test_random_begin(1);
    for (size_t n_srcs = 1; n_srcs <= 9; n_srcs++) {
        static const size_t counts[] = {0, 1, 2, 3, 7, 15, 31, 64, 65, 130};
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]) && !test_has_failed(); i++) {
            check_all(&random, n_srcs, counts[i]);
        }
    }
}

TEST(more_than_a_block_and_many_sources)
{
    struct test_random random = test_random_begin(2);
    check_all(&random, 2, MAX_COUNT);
    check_all(&random, 3, MAX_COUNT - 1);
    /* Both at once, where that does not take half a minute. */
    check_all(&random, MAX_SRCS, HARNESS_HAS_TSAN ? 130 : MAX_COUNT);
    check_all(&random, 17, 513);
}

TEST(combinations_without_meaning_change_nothing)
{
    static const struct {
        shoal_reduce_op op;
        shoal_dtype dtype;
    } rows[] = {
        {SHOAL_AVG, SHOAL_BOOL},
        {SHOAL_PREMUL_SUM, SHOAL_BOOL},
        {SHOAL_PREMUL_SUM, SHOAL_I32},
        {SHOAL_PREMUL_SUM, SHOAL_U8},
        {SHOAL_BAND, SHOAL_F32},
        {SHOAL_BOR, SHOAL_F64},
        {SHOAL_BXOR, SHOAL_BF16},
        {SHOAL_BAND, SHOAL_F16},
        {SHOAL_PRODUCT, SHOAL_C64},
        {SHOAL_MIN, SHOAL_C128},
        {SHOAL_MAX, SHOAL_C64},
        {SHOAL_BOR, SHOAL_C128},
        {(shoal_reduce_op)9, SHOAL_F32},
        {(shoal_reduce_op)-1, SHOAL_F32},
        {SHOAL_SUM, (shoal_dtype)0},
        {SHOAL_SUM, (shoal_dtype)DTYPE_COUNT},
        {SHOAL_SUM, SHOAL_F8_E4M3FN},
        {SHOAL_MAX, SHOAL_F8_E5M2},
        {SHOAL_PREMUL_SUM, SHOAL_F8_E5M2},
        {SHOAL_BOR, SHOAL_F8_E4M3FN},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t src[2] = {1, 2};
        uint64_t dst[2] = {3, 4};
        const void *srcs[1] = {src};
        CHECK_STATUS(kernel_reduce_check(rows[i].op, rows[i].dtype), SHOAL_ERR_UNSUPPORTED);
        CHECK_ERROR_TEXT(shoal_reduce_op_name(rows[i].op));
        CHECK_ERROR_TEXT(shoal_dtype_name(rows[i].dtype));
        CHECK_STATUS(kernel_reduce(rows[i].op, rows[i].dtype, dst, srcs, 1, 1, 1.0), SHOAL_ERR_UNSUPPORTED);
        CHECK_INT(dst[0], 3);
    }
}

/* The number of combinations that are offered: 4 floats x 6, 8 integers x 8, bool x 7, 2 complex x 3; 8-bit
   floats have none. */
TEST(as_many_combinations_as_documented)
{
    int offered = 0;
    for (int dtype = 1; dtype < DTYPE_COUNT; dtype++) {
        for (int op = 0; op < OPERATOR_COUNT; op++) {
            offered += kernel_reduce_check((shoal_reduce_op)op, (shoal_dtype)dtype) == SHOAL_OK;
        }
    }
    CHECK_INT(offered, 4 * 6 + 8 * 8 + 7 + 2 * 3);
}

TEST(integer_averages_do_not_overflow)
{
    int64_t low = INT64_MIN;
    uint64_t high = UINT64_MAX;
    int8_t parts[3] = {-3, -3, -2};
    const void *lows[3] = {&low, &low, &low};
    const void *highs[3] = {&high, &high, &high};
    const void *three[3] = {&parts[0], &parts[1], &parts[2]};
    int64_t low_average = 0;
    uint64_t high_average = 0;
    int8_t truncated = 0;
    CHECK_OK(kernel_reduce(SHOAL_AVG, SHOAL_I64, &low_average, lows, 3, 1, 1.0));
    CHECK_OK(kernel_reduce(SHOAL_AVG, SHOAL_U64, &high_average, highs, 3, 1, 1.0));
    CHECK_OK(kernel_reduce(SHOAL_AVG, SHOAL_I8, &truncated, three, 3, 1, 1.0));
    CHECK(low_average == INT64_MIN);
    CHECK(high_average == UINT64_MAX);
    CHECK_INT(truncated, -2); /* -8 / 3 */
}

/* 2^24 + 1 + 1 is 2^24 + 2 in exact arithmetic and 2^24 when each addition rounds; f16 rounds only once. */
/* Sums one below, at and one above each multiple of the number of sources, as large as they become: quotients that a
   rounded division would get wrong. */
TEST(integer_averages_truncate_next_to_whole_quotients)
{
    enum {
        MOST = 1023
    };
    static const size_t numbers[] = {1, 2, 3, 7, 10, 49, 1000, MOST};
    static uint32_t values[MOST][3];
    const void *srcs[MOST];
    uint32_t averages[3];
    for (size_t s = 0; s < MOST; s++) {
        srcs[s] = values[s];
        for (size_t i = 0; i < 3; i++) {
            values[s][i] = UINT32_MAX - 1;
        }
    }
    for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++) {
        values[0][0] = UINT32_MAX - 2;
        values[0][2] = UINT32_MAX;
        CHECK_OK(kernel_reduce(SHOAL_AVG, SHOAL_U32, averages, srcs, numbers[k], 3, 1.0));
        CHECK(averages[0] == UINT32_MAX - 2);
        CHECK(averages[1] == UINT32_MAX - 1);
        CHECK(averages[2] == (numbers[k] == 1 ? UINT32_MAX : UINT32_MAX - 1));
        /* The same bits as signed ones are -3, -2 and -1: truncated toward zero. */
        int32_t signed_averages[3];
        CHECK_OK(kernel_reduce(SHOAL_AVG, SHOAL_I32, signed_averages, srcs, numbers[k], 3, 1.0));
        CHECK(signed_averages[0] == (numbers[k] == 1 ? -3 : -2));
        CHECK(signed_averages[1] == -2);
        CHECK(signed_averages[2] == -1);
    }
}

TEST(folds_keep_the_order_and_round_where_they_say)
{
    float singles[3] = {0x1p24f, 1, 1};
    const void *in_order[3] = {&singles[0], &singles[1], &singles[2]};
    const void *reversed[3] = {&singles[2], &singles[1], &singles[0]};
    float sum = 0;
    CHECK_OK(kernel_reduce(SHOAL_SUM, SHOAL_F32, &sum, in_order, 3, 1, 1.0));
    CHECK_DOUBLE((double)sum, 0x1p24);
    CHECK_OK(kernel_reduce(SHOAL_SUM, SHOAL_F32, &sum, reversed, 3, 1, 1.0));
    CHECK_DOUBLE((double)sum, 0x1p24 + 2);
    uint16_t halves[3] = {half_f32_to_f16(2048), half_f32_to_f16(1), half_f32_to_f16(1)};
    const void *half_srcs[3] = {&halves[0], &halves[1], &halves[2]};
    uint16_t half_sum = 0;
    CHECK_OK(kernel_reduce(SHOAL_SUM, SHOAL_F16, &half_sum, half_srcs, 3, 1, 1.0));
    CHECK_DOUBLE((double)half_f16_to_f32(half_sum), 2050);
}

TEST(zeros_keep_the_sign_of_the_earlier_source)
{
    float zeros[2] = {0.0f, -0.0f};
    const void *positive_first[2] = {&zeros[0], &zeros[1]};
    const void *negative_first[2] = {&zeros[1], &zeros[0]};
    float result = 1;
    CHECK_OK(kernel_reduce(SHOAL_MIN, SHOAL_F32, &result, positive_first, 2, 1, 1.0));
    CHECK(!signbit(result));
    CHECK_OK(kernel_reduce(SHOAL_MAX, SHOAL_F32, &result, negative_first, 2, 1, 1.0));
    CHECK(result == 0 && signbit(result));
}

TEST(bool_results_are_0_or_1)
{
    unsigned char bytes[2][4] = {{0, 7, 0, 255}, {0, 0, 8, 1}};
    const void *srcs[2] = {bytes[0], bytes[1]};
    unsigned char result[4];
    CHECK_OK(kernel_reduce(SHOAL_SUM, SHOAL_BOOL, result, srcs, 2, 4, 1.0));
    CHECK_BYTES(result, ((unsigned char[]){0, 1, 1, 1}), 4);
    CHECK_OK(kernel_reduce(SHOAL_BXOR, SHOAL_BOOL, result, srcs, 2, 4, 1.0));
    CHECK_BYTES(result, ((unsigned char[]){0, 1, 1, 0}), 4);
    CHECK_OK(kernel_reduce(SHOAL_MIN, SHOAL_BOOL, result, srcs, 1, 4, 1.0));
    CHECK_BYTES(result, ((unsigned char[]){0, 1, 0, 1}), 4);
}

/* Past SHOAL_STREAM_BYTES, apart and in place. */
TEST(large_outputs)
{
    size_t count = ((size_t)9 << 20) / sizeof(float) + 5;
    float *a = mem_alloc(count * sizeof(*a));
    float *b = mem_alloc(count * sizeof(*b));
    float *sum = mem_alloc(count * sizeof(*sum));
    if (a && b && sum) {
        for (size_t i = 0; i < count; i++) {
            a[i] = (float)(i % 1000);
            b[i] = (float)(i % 7) * 0.25f;
        }
        const void *srcs[2] = {a, b};
        CHECK_OK(kernel_reduce(SHOAL_SUM, SHOAL_F32, sum, srcs, 2, count, 1.0));
        CHECK_OK(kernel_reduce(SHOAL_SUM, SHOAL_F32, b, srcs, 2, count, 1.0));
        size_t wrong = 0;
        for (size_t i = 0; i < count; i++) {
            wrong += sum[i] != (float)(i % 1000) + (float)(i % 7) * 0.25f;
        }
        CHECK_INT(wrong, 0);
        CHECK(memcmp(sum, b, count * sizeof(*sum)) == 0);
    } else {
        test_failed(__FILE__, __LINE__, "no memory");
    }
    mem_free(a);
    mem_free(b);
    mem_free(sum);
}
