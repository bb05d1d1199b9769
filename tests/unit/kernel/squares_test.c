/* SPDX-License-Identifier: MIT */
/*
 * The exact sum of squares against a long integer kept bit by bit. The rounding is not recomputed: the
 * result must lie between the midpoints to its neighbours, and be even when it lies on one.
 */
#include "kernel/kernel.h"

#include "kernel/half.h"
#include "oracle.h"

enum {
    BIG_DIGITS = 150,
    BIG_UNIT = 2200 /* bit of 2^0 */
};

struct big {
    uint32_t digits[BIG_DIGITS];
};

/* Adds value * 2^exponent. */
static void big_add(struct big *big, uint64_t value, int exponent)
{
    for (int i = 0; i < 64; i++) {
        if ((value >> i & 1) == 0) {
            continue;
        }
        int bit = BIG_UNIT + exponent + i;
        uint64_t carry = 1ull << (bit % 32);
        for (int digit = bit / 32; carry != 0; digit++) {
            carry += big->digits[digit];
            big->digits[digit] = (uint32_t)carry;
            carry >>= 32;
        }
    }
}

static void big_add_square(struct big *big, double value)
{
    int exponent;
    uint64_t mantissa = (uint64_t)ldexp(frexp(fabs(value), &exponent), 53);
    exponent -= 53;
    /* By halves of the mantissa, so that no product is wider than 64 bits. */
    uint64_t low = mantissa & 0x7ffffff;
    uint64_t high = mantissa >> 27;
    big_add(big, low * low, 2 * exponent);
    big_add(big, low * high, 2 * exponent + 28);
    big_add(big, high * high, 2 * exponent + 54);
}

static int big_compare(const struct big *a, const struct big *b)
{
    for (int i = BIG_DIGITS - 1; i >= 0; i--) {
        if (a->digits[i] != b->digits[i]) {
            return a->digits[i] > b->digits[i] ? 1 : -1;
        }
    }
    return 0;
}

/* `value` is what the sum rounds to. */
static bool is_rounded(const struct big *sum, double value)
{
    uint64_t bits = half_f64_bits(value);
    bool is_even = (bits & 1) == 0;
    /* Midpoints to both neighbours: (2m +- 1) * 2^(e - 1); below a power of two the lower one is nearer. */
    uint64_t below[2] = {bits > 0 ? bits - 1 : 0, bits};
    for (int side = 0; side < 2; side++) {
        uint64_t low = below[side];
        if ((side == 0 && bits == 0) || low == half_f64_bits((double)INFINITY)) {
            continue;
        }
        int exponent = (int)(low >> 52);
        uint64_t mantissa = (low & 0xfffffffffffff) | (exponent > 0 ? 1ull << 52 : 0);
        struct big middle = {.digits = {0}};
        big_add(&middle, 2 * mantissa + 1, (exponent > 0 ? exponent : 1) - 1075 - 1);
        int order = big_compare(sum, &middle);
        bool is_on_our_side = side == 0 ? order > 0 : order < 0;
        if (!is_on_our_side && !(order == 0 && is_even)) {
            return false;
        }
    }
    return true;
}

static double element_as_double(shoal_dtype dtype, const unsigned char *element)
{
    return (double)oracle_read(dtype, element).re;
}

/* Adds to both; `count` components of a real dtype. */
static void add_both(struct kernel_squares *squares, struct big *big, shoal_dtype dtype, const void *values,
                     size_t count)
{
    CHECK_OK(kernel_squares_add(squares, dtype, values, count));
    for (size_t i = 0; i < count; i++) {
        big_add_square(big, element_as_double(dtype, (const unsigned char *)values + i * dtype_bytes(dtype)));
    }
}

static void check_rounding(const struct kernel_squares *squares, const struct big *big, shoal_dtype dtype)
{
    double rounded = kernel_squares_round(squares);
    if (!is_rounded(big, rounded)) {
        test_failed(__FILE__, __LINE__, "%s: %a is not the sum rounded", shoal_dtype_name(dtype), rounded);
    }
}

/* Random finite numbers of all exponents; for half of the rounds of few, as in real gradients. */
static void make_finite(shoal_dtype dtype, unsigned char *memory, size_t count, struct test_random *random)
{
    size_t bytes = dtype_bytes(dtype);
    bool is_narrow = test_random_below(random, 2) == 0;
    for (size_t i = 0; i < count; i++) {
        unsigned char *element = memory + i * bytes;
        double narrow = (test_random_unit(random) - 0.5) * 0.01;
        do {
            oracle_random_bits(random, element, bytes);
        } while (!isfinite(element_as_double(dtype, element)));
        if (is_narrow) {
            kernel_cast(dtype, element, SHOAL_F64, &narrow, 1);
        }
    }
}

static const shoal_dtype reals[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16};

TEST(random_sums_are_exact)
{
    static unsigned char memory[5000 * 8 + 1];
    struct test_random random = test_random_begin(1);
    for (int round = 0; round < 120 && !test_has_failed(); round++) {
        shoal_dtype dtype = reals[round % 4];
        size_t count = test_random_below(&random, round % 10 < 2 ? 5000 : 300);
        struct kernel_squares squares;
        struct big big = {.digits = {0}};
        kernel_squares_init(&squares);
        make_finite(dtype, memory + 1, count, &random);
        add_both(&squares, &big, dtype, memory + 1, count);
        check_rounding(&squares, &big, dtype);
    }
}

/* Pairs whose sum lies on, or just beside, the middle of two doubles; and at both ends of the range. */
TEST(rounding_at_its_edges)
{
    static const double cases[][3] = {
        {0x1p27, 1, 0},                        /* 2^54 + 1: below the middle */
        {0x1p27, 0x1.6a09e667f3bcdp0, 0},      /* 2^54 + about 2: beside a middle */
        {0x1p26, 0x1p-0, 0},                   /* 2^52 + 1: exact */
        {0x1p28, 4, 0x1p-1074},                /* 2^56 + 16 and a trace */
        {0x1p27, 0x1p0, 0x1p0},                /* a tie, to even */
        {0x1p27, 0x1p0, 0x1.0000000000001p0},  /* just above the tie */
        {0x1p-537, 0, 0},                      /* 2^-1074, the smallest */
        {0x1p-538, 0, 0},                      /* 2^-1076: to zero */
        {0x1.6a09e667f3bcdp-538, 0, 0},        /* about 2^-1075, just above */
        {0x1.6a09e667f3bccp-538, 0, 0},        /* just below */
        {0x1p-1074, 0, 0},                     /* 2^-2148: bit 0 */
        {0x1p-538, 0x1p-538, 0},               /* 2^-1075: a tie, to zero */
        {0x1p-538, 0x1p-538, 0x1p-1074},       /* the same and a trace: up */
        {0x1p-511, 0x1p-537, 0x1p-538},        /* the smallest normal numbers */
        {0x1p-512, 0x1.fffffffffffffp-512, 0}, /* the border of the subnormal ones */
        {0x1.fffffffffffffp511, 0, 0},         /* the largest without overflow */
        {0x1.fffffffffffffp511, 0x1p485, 0},   /* up to the last doubles */
        {0x1p512, 0, 0},                       /* overflow */
        {0x1.fffffffffffffp1023, 0x1.fffffffffffffp1023, 1},
        {0, -0.0, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kernel_squares squares;
        struct big big = {.digits = {0}};
        kernel_squares_init(&squares);
        add_both(&squares, &big, SHOAL_F64, cases[i], 3);
        check_rounding(&squares, &big, SHOAL_F64);
    }
    struct kernel_squares squares;
    kernel_squares_init(&squares);
    CHECK_DOUBLE(kernel_squares_round(&squares), 0.0);
    CHECK_OK(kernel_squares_add(&squares, SHOAL_F64, &(double){0x1p512}, 1));
    CHECK_DOUBLE(kernel_squares_round(&squares), (double)INFINITY);
}

/* Between the largest double and the midpoint after it, digit by digit: 2^1024 - 2^970 becomes infinity. */
TEST(the_last_double_before_infinity)
{
    struct kernel_squares squares;
    struct big big = {.digits = {0}};
    kernel_squares_init(&squares);
    /* 2^1023 + 2^1022 + ... + 2^971: squares of powers of two, two of each odd exponent less one. */
    for (int exponent = 971; exponent < 1024; exponent++) {
        double root = ldexp(1, exponent / 2);
        add_both(&squares, &big, SHOAL_F64, (double[]){root, root}, exponent % 2 == 0 ? 1 : 2);
    }
    CHECK_DOUBLE(kernel_squares_round(&squares), 0x1.fffffffffffffp1023);
    struct kernel_squares more = squares;
    CHECK_OK(kernel_squares_add(&more, SHOAL_F64, (double[]){0x1p484, 0x1p484, 0x1p484}, 3));
    CHECK_DOUBLE(kernel_squares_round(&more), 0x1.fffffffffffffp1023);
    CHECK_OK(kernel_squares_add(&more, SHOAL_F64, &(double){0x1p484}, 1));
    CHECK_DOUBLE(kernel_squares_round(&more), (double)INFINITY);
    check_rounding(&squares, &big, SHOAL_F64);
}

/* Every order and every split leaves the same bins. */
TEST(order_and_split_do_not_matter)
{
    static unsigned char memory[3000 * 8];
    struct test_random random = test_random_begin(2);
    for (int round = 0; round < 40 && !test_has_failed(); round++) {
        shoal_dtype dtype = reals[round % 4];
        size_t bytes = dtype_bytes(dtype);
        size_t count = 1 + test_random_below(&random, 2999);
        make_finite(dtype, memory, count, &random);
        struct kernel_squares whole;
        kernel_squares_init(&whole);
        CHECK_OK(kernel_squares_add(&whole, dtype, memory, count));
        for (size_t i = count - 1; i > 0; i--) {
            size_t j = test_random_below(&random, i + 1);
            unsigned char element[8];
            memcpy(element, memory + i * bytes, bytes);
            memcpy(memory + i * bytes, memory + j * bytes, bytes);
            memcpy(memory + j * bytes, element, bytes);
        }
        struct kernel_squares merged;
        struct kernel_squares added;
        kernel_squares_init(&merged);
        kernel_squares_init(&added);
        for (size_t begin = 0; begin < count;) {
            size_t part = 1 + test_random_below(&random, count - begin);
            struct kernel_squares squares;
            kernel_squares_init(&squares);
            CHECK_OK(kernel_squares_add(&squares, dtype, memory + begin * bytes, part));
            kernel_squares_normalise(&squares);
            kernel_squares_merge(&merged, &squares);
            /* What an all-reduce of the bins does. */
            for (size_t i = 0; i < KERNEL_SQUARES_BINS; i++) {
                added.bins[i] += squares.bins[i];
            }
            begin += part;
        }
        CHECK_BYTES(&merged, &whole, sizeof(whole));
        CHECK(half_f64_bits(kernel_squares_round(&added)) == half_f64_bits(kernel_squares_round(&whole)));
        kernel_squares_normalise(&added);
        CHECK_BYTES(&added, &whole, sizeof(whole));
    }
}

/* As many full digits as ranks may add at once: the bins are almost 2^64. */
TEST(full_bins_carry)
{
    struct kernel_squares squares;
    struct big big = {.digits = {0}};
    kernel_squares_init(&squares);
    for (int i = 0; i < 120; i++) {
        squares.bins[i] = UINT64_MAX - (uint64_t)i;
        big_add(&big, squares.bins[i], 32 * i - 2148);
    }
    check_rounding(&squares, &big, SHOAL_F64);
    kernel_squares_normalise(&squares);
    check_rounding(&squares, &big, SHOAL_F64);
    for (int i = 0; i < 122; i++) {
        CHECK(squares.bins[i] <= UINT32_MAX);
    }
}

/* More of the largest mantissas in one exponent than a table entry holds unless it is emptied in time. */
TEST(many_equal_values)
{
    enum {
        COUNT = 600001
    };
    static float values[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = 0x1.fffffep-1f;
    }
    struct kernel_squares squares;
    kernel_squares_init(&squares);
    CHECK_OK(kernel_squares_add(&squares, SHOAL_F32, values, COUNT));
    /* 600001 * (2^24 - 1)^2 / 2^48, whole in 128 bits and below 2^68. */
    unsigned __int128 sum = (unsigned __int128)0xffffff * 0xffffff * COUNT;
    struct big big = {.digits = {0}};
    big_add(&big, (uint64_t)sum, -48);
    big_add(&big, (uint64_t)(sum >> 64), 64 - 48);
    check_rounding(&squares, &big, SHOAL_F32);
}

TEST(infinity_and_nan)
{
    static const size_t counts[] = {1, 50, 127, 128, 1000, 5000};
    static unsigned char memory[5000 * 8];
    struct test_random random = test_random_begin(3);
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        for (int d = 0; d < 4; d++) {
            size_t bytes = dtype_bytes(reals[d]);
            make_finite(reals[d], memory, counts[k], &random);
            unsigned char *special = memory + test_random_below(&random, counts[k]) * bytes;
            struct kernel_squares squares;
            kernel_squares_init(&squares);
            kernel_cast(reals[d], special, SHOAL_F64, &(double){-(double)INFINITY}, 1);
            CHECK_OK(kernel_squares_add(&squares, reals[d], memory, counts[k]));
            CHECK_DOUBLE(kernel_squares_round(&squares), (double)INFINITY);
            struct kernel_squares other = squares;
            kernel_cast(reals[d], special, SHOAL_F64, &(double){(double)NAN}, 1);
            CHECK_OK(kernel_squares_add(&other, reals[d], memory, counts[k]));
            CHECK_DOUBLE(kernel_squares_round(&other), (double)NAN);
            kernel_squares_merge(&squares, &other);
            CHECK_DOUBLE(kernel_squares_round(&squares), (double)NAN);
        }
    }
}

TEST(complex_counts_both_components)
{
    struct kernel_squares squares;
    kernel_squares_init(&squares);
    const struct dtype_c64 narrow[2] = {{.re = 3, .im = -4}, {.re = 0, .im = 12}};
    const struct dtype_c128 wide = {.re = 84, .im = 1e-200};
    CHECK_OK(kernel_squares_add(&squares, SHOAL_C64, narrow, 2));
    CHECK_DOUBLE(kernel_squares_round(&squares), 169);
    CHECK_OK(kernel_squares_add(&squares, SHOAL_C128, &wide, 1));
    CHECK_DOUBLE(kernel_squares_round(&squares), 7225);
}

TEST(integers_are_refused)
{
    struct kernel_squares squares;
    struct kernel_squares untouched;
    kernel_squares_init(&squares);
    kernel_squares_init(&untouched);
    CHECK_STATUS(kernel_squares_add(&squares, SHOAL_I32, &(int32_t){3}, 1), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("i32");
    CHECK_STATUS(kernel_squares_add(&squares, SHOAL_BOOL, &(uint8_t){1}, 1), SHOAL_ERR_UNSUPPORTED);
    CHECK_BYTES(&squares, &untouched, sizeof(squares));
}
