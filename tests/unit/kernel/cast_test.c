/* SPDX-License-Identifier: MIT */
/* All pairs of dtypes against the oracle: boundary values, random bits, odd counts, misaligned memory. */
#include "kernel/kernel.h"

#include "oracle.h"

enum {
    RANDOM_ELEMS = 1500,
    MAX_ELEMS = RANDOM_ELEMS + 128,
    GUARD = 0xa5
};

static const double real_edges[] = {
    0.0,
    -0.0,
    0.5,
    -0.5,
    0.99999,
    1.0,
    -1.0,
    1.5,
    2.5,
    -2.5,
    126.5,
    127.0,
    127.9,
    128.0,
    -128.0,
    -128.9,
    -129.0,
    255.0,
    255.9,
    256.0,
    32767.5,
    32768.0,
    -32768.9,
    -32769.0,
    65504.0,
    448.0,
    464.0,
    0x1.d0000000001p8,
    -464.0,
    479.0,
    480.0,
    57344.0,
    61439.0,
    61440.0,
    -61440.0,
    65519.0,
    65520.0,
    65535.5,
    65536.0,
    0x1p31,
    0x1p31 - 0.5,
    -0x1p31,
    -0x1p31 - 1,
    0x1p32,
    0x1p32 - 0.5,
    0x1p53,
    0x1p63,
    -0x1p63,
    0x1.fffffffffffffp62,
    0x1p64,
    0x1.fffffffffffffp63,
    -0x1.8p63,
    0x1p127,
    0x1.fffffep127,
    0x1.ffffffp127,
    0x1p128,
    0x1p-14,
    0x1p-6,
    0x1.ep-7,
    0x1p-9,
    0x1p-10,
    0x1.8p-10,
    0x1p-16,
    0x1p-17,
    0x1.000001p-17,
    0x1p-24,
    0x1p-25,
    0x1.8p-25,
    0x1p-126,
    0x1p-133,
    0x1p-134,
    0x1p-149,
    0x1p-150,
    0x1p-1074,
    0x1.fffffffffffffp1023,
    (double)INFINITY,
    -(double)INFINITY,
    (double)NAN,
    1.00390625000001,
    0x1.01p0,
    0x1.03p0,
};

static const int64_t integer_edges[] = {
    0,
    1,
    -1,
    2,
    127,
    128,
    -128,
    -129,
    255,
    256,
    32767,
    32768,
    -32768,
    65504,
    65519,
    65520,
    65535,
    65536,
    INT32_MAX,
    INT32_MIN,
    (int64_t)UINT32_MAX,
    (1ll << 32) + 1,
    (1ll << 24) + 1,
    (1ll << 24) + 3,
    (1ll << 53) + 1,
    (1ll << 53) + 3,
    INT64_MAX,
    INT64_MIN,
    INT64_MIN + 1,
    /* Halfway between two bf16, and one beside it: a rounding to f64 on the way would show. */
    0x4040000000000000,
    0x4040000000000001,
    0x403fffffffffffff,
    0x40c0000000000001,
    -0x4040000000000001,
    /* The same for f32. */
    0x4000004000000001,
    0x4000004000000000,
    0x400000c000000001,
    -0x4000004000000001,
};

/* Edges as far as the dtype has them, then random bits. Returns the number of elements. */
static size_t make_elements(shoal_dtype dtype, unsigned char *memory, struct test_random *random)
{
    size_t bytes = dtype_bytes(dtype);
    size_t count = 0;
    const size_t n_reals = sizeof(real_edges) / sizeof(real_edges[0]);
    const size_t n_integers = sizeof(integer_edges) / sizeof(integer_edges[0]);
    for (size_t i = 0; i < n_reals && dtype_kind(dtype) == DTYPE_KIND_FLOAT; i++) {
        float single = (float)real_edges[i];
        uint32_t bits;
        memcpy(&bits, &single, sizeof(bits));
        uint16_t half = (uint16_t)(bits >> 16);
        const void *element = dtype == SHOAL_F64   ? (const void *)&real_edges[i]
                              : dtype == SHOAL_F32 ? (const void *)&single
                                                   : (const void *)&half;
        memcpy(memory + count++ * bytes, element, bytes);
    }
    for (size_t i = 0; i < n_reals && dtype_kind(dtype) == DTYPE_KIND_COMPLEX; i++) {
        struct dtype_c128 wide = {.re = real_edges[i], .im = real_edges[(i * 7 + 1) % n_reals]};
        struct dtype_c64 narrow = {.re = (float)wide.re, .im = (float)wide.im};
        memcpy(memory + count++ * bytes, dtype == SHOAL_C64 ? (const void *)&narrow : (const void *)&wide,
               bytes);
    }
    for (size_t i = 0; i < n_integers && count == i; i++) {
        memcpy(memory + count++ * bytes, &integer_edges[i], bytes);
    }
    oracle_random_bits(random, memory + count * bytes, RANDOM_ELEMS * bytes);
    return count + RANDOM_ELEMS;
}

static __int128 saturate(shoal_dtype dtype, long double value)
{
    size_t bits = 8 * dtype_bytes(dtype);
    bool is_signed = dtype_kind(dtype) == DTYPE_KIND_SIGNED;
    __int128 max = ((__int128)1 << (is_signed ? bits - 1 : bits)) - 1;
    __int128 min = is_signed ? -max - 1 : 0;
    if (isnan(value)) {
        return 0;
    }
    value = truncl(value);
    if (value > (long double)max) {
        return max;
    }
    return value < (long double)min ? min : (__int128)value;
}

static struct oracle_number expect_cast(shoal_dtype to, struct oracle_number from)
{
    struct oracle_number number = {.is_integer = true};
    enum dtype_kind kind = dtype_kind(to);
    if (kind == DTYPE_KIND_BOOLEAN) {
        number.integer = from.is_integer ? from.integer != 0 : from.re != 0 || from.im != 0;
    } else if (kind == DTYPE_KIND_SIGNED || kind == DTYPE_KIND_UNSIGNED) {
        number.integer = from.is_integer ? oracle_wrap(to, from.integer) : saturate(to, from.re);
    } else {
        number = oracle_round_number(to, from);
        number.im = kind == DTYPE_KIND_COMPLEX ? number.im : 0;
    }
    return number;
}

static void check_pair(shoal_dtype to, shoal_dtype from, struct test_random *random)
{
    static unsigned char src[MAX_ELEMS * 16 + 1];
    static unsigned char dst[MAX_ELEMS * 16 + 64];
    size_t count = make_elements(from, src + 1, random);
    size_t dst_bytes = dtype_bytes(to);
    memset(dst, GUARD, sizeof(dst));
    kernel_cast(to, dst + 1, from, src + 1, count);
    for (size_t i = 0; i < count && !test_has_failed(); i++) {
        struct oracle_number number = oracle_read(from, src + 1 + i * dtype_bytes(from));
        struct oracle_number actual = oracle_read(to, dst + 1 + i * dst_bytes);
        struct oracle_number expected = expect_cast(to, number);
        if (!oracle_same(actual, expected) || (to == SHOAL_BOOL && dst[1 + i] > 1)) {
            test_failed(__FILE__, __LINE__, "%s to %s: %La %Lai became %La %Lai, should be %La %Lai",
                        shoal_dtype_name(from), shoal_dtype_name(to), number.re, number.im, actual.re,
                        actual.im, expected.is_integer ? (long double)expected.integer : expected.re,
                        expected.im);
        }
    }
    CHECK_INT(dst[0], GUARD);
    for (size_t i = 0; i < 32; i++) {
        CHECK_INT(dst[1 + count * dst_bytes + i], GUARD);
    }
}

TEST(all_pairs_follow_the_rules)
{
    struct test_random random = test_random_begin(1);
    for (int to = 1; to < DTYPE_COUNT; to++) {
        for (int from = 1; from < DTYPE_COUNT && !test_has_failed(); from++) {
            if (to != from || to == SHOAL_BOOL) {
                check_pair((shoal_dtype)to, (shoal_dtype)from, &random);
            }
        }
    }
}

TEST(equal_dtypes_copy_bits)
{
    struct test_random random = test_random_begin(2);
    unsigned char src[33 * 16];
    unsigned char dst[33 * 16];
    for (int dtype = 1; dtype < DTYPE_COUNT; dtype++) {
        if (dtype == SHOAL_BOOL) {
            continue;
        }
        oracle_random_bits(&random, src, sizeof(src));
        memcpy(dst, src, sizeof(dst));
        memset(dst, 0, 33 * dtype_bytes((shoal_dtype)dtype));
        kernel_cast((shoal_dtype)dtype, dst, (shoal_dtype)dtype, src, 33);
        CHECK_BYTES(dst, src, sizeof(dst));
        kernel_cast((shoal_dtype)dtype, dst, (shoal_dtype)dtype, dst, 33);
        CHECK_BYTES(dst, src, sizeof(dst));
    }
}

/* The same bytes whatever the length of the call: blocks and vector tails have no influence. */
TEST(counts_do_not_matter)
{
    static const size_t counts[] = {0, 1, 2, 3, 7, 8, 15, 31, 33, 255, 256, 257, 511, 700};
    struct test_random random = test_random_begin(3);
    static unsigned char src[700 * 16];
    static unsigned char one[700 * 16];
    static unsigned char many[700 * 16 + 1];
    for (int to = 1; to < DTYPE_COUNT; to++) {
        int from = 1 + (int)test_random_below(&random, DTYPE_COUNT - 1);
        size_t to_bytes = dtype_bytes((shoal_dtype)to);
        size_t from_bytes = dtype_bytes((shoal_dtype)from);
        oracle_random_bits(&random, src, sizeof(src));
        for (size_t i = 0; i < 700; i++) {
            kernel_cast((shoal_dtype)to, one + i * to_bytes, (shoal_dtype)from, src + i * from_bytes, 1);
        }
        for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
            memset(many, GUARD, sizeof(many));
            kernel_cast((shoal_dtype)to, many, (shoal_dtype)from, src, counts[k]);
            for (size_t i = 0; i < counts[k] && !test_has_failed(); i++) {
                CHECK(oracle_same_elements((shoal_dtype)to, many + i * to_bytes, one + i * to_bytes));
            }
            CHECK_INT(many[counts[k] * to_bytes], GUARD);
        }
    }
}
