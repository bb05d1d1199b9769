/* SPDX-License-Identifier: MIT */
/*
 * 8-bit floats: every code, and every result of narrowing, against a table of the format's numbers that is searched for
 * the nearest one. How an f32 is rounded to 8 bits follows from its upper 16 bits and from whether the lower 16 are
 * zero: these patterns are all tried. With test_is_whole, all 2^32 are. Bits of NaNs are those of PyTorch's to().
 */
#include "kernel/half.h"
#include "kernel/kernel.h"

#include "oracle.h"

/* Codes without a sign, in the order of their numbers; the number at `beyond` is where the format would go on. */
struct table {
    shoal_dtype dtype;
    unsigned beyond;
    uint8_t overflow; /* what numbers that round to `beyond` or more become */
    double numbers[128];
};

static void table_fill(struct table *table, int exponent_bits)
{
    int fraction_bits = 7 - exponent_bits;
    int bias = (1 << (exponent_bits - 1)) - 1;
    for (unsigned code = 0; code <= table->beyond; code++) {
        int exponent = (int)(code >> fraction_bits);
        int fraction = (int)(code & ((1u << fraction_bits) - 1));
        int steps = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
        table->numbers[code] = ldexp(steps, (exponent == 0 ? 1 : exponent) - bias - fraction_bits);
    }
}

static struct table e4m3fn = {.dtype = SHOAL_F8_E4M3FN, .beyond = 0x7f, .overflow = 0x7f};
static struct table e5m2 = {.dtype = SHOAL_F8_E5M2, .beyond = 0x7c, .overflow = 0x7c};

static void fill_tables(void)
{
    table_fill(&e4m3fn, 4);
    table_fill(&e5m2, 5);
}

/* The nearest of the table; of two that are as near, the one with the even code. */
static uint8_t narrow(const struct table *table, double value)
{
    uint8_t sign = signbit(value) ? 0x80 : 0;
    double magnitude = fabs(value);
    if (isnan(value)) {
        return sign | 0x7f;
    }
    if (magnitude >= table->numbers[table->beyond]) {
        return sign | table->overflow;
    }
    /* The place of the last number, if this one is there too: patterns come in order. */
    static _Thread_local unsigned last;
    bool is_near =
        last < table->beyond && table->numbers[last] <= magnitude && magnitude < table->numbers[last + 1];
    unsigned low = is_near ? last : 0;
    unsigned high = is_near ? last + 1 : table->beyond;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        *(table->numbers[middle] <= magnitude ? &low : &high) = middle;
    }
    last = low;
    double below = magnitude - table->numbers[low]; /* exact, as is the other: both are near */
    double above = table->numbers[high] - magnitude;
    unsigned nearest = below < above || (below == above && low % 2 == 0) ? low : high;
    return sign | (uint8_t)(nearest == table->beyond ? table->overflow : nearest);
}

/* A few values at a time, through kernel_cast, whose loops are vectorized. */
enum {
    BATCH = 1 << 14
};

static void check_batch(const struct table *table, const float *values, size_t count)
{
    static uint8_t codes[BATCH];
    kernel_cast(table->dtype, codes, SHOAL_F32, values, count);
    for (size_t i = 0; i < count && !test_has_failed(); i++) {
        uint8_t expected = narrow(table, (double)values[i]);
        if (codes[i] != expected) {
            test_failed(__FILE__, __LINE__, "%s of %a (%#x) is %#x, not %#x", shoal_dtype_name(table->dtype),
                        (double)values[i], half_f32_bits(values[i]), codes[i], expected);
        }
    }
}

static void check_doubles(const struct table *table, double value)
{
    double values[] = {value, nextafter(value, (double)INFINITY), nextafter(value, -(double)INFINITY)};
    uint8_t codes[3];
    kernel_cast(table->dtype, codes, SHOAL_F64, values, 3);
    for (size_t i = 0; i < 3; i++) {
        uint8_t expected = narrow(table, values[i]);
        if (codes[i] != expected) {
            test_failed(__FILE__, __LINE__, "%s of the double %a is %#x, not %#x",
                        shoal_dtype_name(table->dtype), values[i], codes[i], expected);
        }
    }
}

TEST(every_f32_pattern_that_decides)
{
    static const uint32_t lows[] = {0, 1, 0x8000, 0xffff};
    static float values[BATCH];
    fill_tables();
    size_t count = 0;
    for (uint32_t high = 0; high < 0x10000 && !test_has_failed(); high++) {
        for (size_t i = 0; i < 4; i++) {
            values[count++] = half_f32_from_bits(high << 16 | lows[i]);
        }
        if (count == BATCH) {
            check_batch(&e4m3fn, values, count);
            check_batch(&e5m2, values, count);
            count = 0;
        }
    }
    CHECK_INT(count, 0);
}

TEST(all_f32_patterns)
{
    static float values[BATCH];
    if (!test_is_whole()) {
        return;
    }
    test_deadline(600);
    fill_tables();
    for (uint64_t first = 0; first < (uint64_t)1 << 32 && !test_has_failed(); first += BATCH) {
        for (uint32_t i = 0; i < BATCH; i++) {
            values[i] = half_f32_from_bits((uint32_t)first + i);
        }
        check_batch(&e4m3fn, values, BATCH);
        check_batch(&e5m2, values, BATCH);
    }
}

/* A double is rounded once: what lies beside a tie by less than f32 can tell does not go to the even code. */
TEST(doubles_are_rounded_once)
{
    fill_tables();
    for (uint32_t high = 0; high < 0x10000 && !test_has_failed(); high++) {
        double value = (double)half_f32_from_bits(high << 16);
        if (!isnan(value)) {
            check_doubles(&e4m3fn, value);
            check_doubles(&e5m2, value);
        }
    }
}

static void check_code(const struct table *table, unsigned code)
{
    uint8_t byte = (uint8_t)code;
    uint32_t sign = code & 0x80 ? 0x80000000u : 0;
    unsigned magnitude = code & 0x7f;
    float single;
    double wide;
    uint32_t bits;
    kernel_cast(SHOAL_F32, &single, table->dtype, &byte, 1);
    kernel_cast(SHOAL_F64, &wide, table->dtype, &byte, 1);
    memcpy(&bits, &single, sizeof bits);
    if (magnitude < table->beyond) {
        double expected = sign ? -table->numbers[magnitude] : table->numbers[magnitude];
        CHECK((double)single == expected && !signbit(single) == !sign);
        CHECK(wide == expected && !signbit(wide) == !sign);
    } else if (magnitude == 0x7c && table == &e5m2) {
        CHECK(bits == (sign | 0x7f800000u) && isinf(wide) && !signbit(wide) == !sign);
    } else {
        /* All NaNs of PyTorch have the fraction's bits of the code, and are quiet. */
        uint32_t fraction = table == &e4m3fn ? 0x700000u : (magnitude & 3) << 21 | 0x400000u;
        CHECK(isnan(wide) && bits == (sign | 0x7f800000u | fraction));
    }
    /* And back: every code but the other NaNs of e5m2, which become the one. */
    uint8_t back;
    kernel_cast(table->dtype, &back, SHOAL_F32, &single, 1);
    CHECK_INT(back, isnan(wide) ? (code & 0x80) | 0x7f : code);
}

TEST(every_code)
{
    fill_tables();
    CHECK(e4m3fn.numbers[0x7e] == 448 && e4m3fn.numbers[1] == 0x1p-9);
    CHECK(e5m2.numbers[0x7b] == 57344 && e5m2.numbers[1] == 0x1p-16);
    for (unsigned code = 0; code < 256 && !test_has_failed(); code++) {
        check_code(&e4m3fn, code);
        check_code(&e5m2, code);
    }
}

/* The numbers that documents name. */
TEST(overflow_and_ties)
{
    static const struct {
        float value;
        uint8_t e4m3fn;
        uint8_t e5m2;
    } rows[] = {
        {0.0f, 0x00, 0x00},       {-0.0f, 0x80, 0x80},     {448.0f, 0x7e, 0x5f},
        {464.0f, 0x7e, 0x5f},     {464.1f, 0x7f, 0x5f},    {-1e9f, 0xff, 0xfc},
        {61439.0f, 0x7f, 0x7b},   {61440.0f, 0x7f, 0x7c},  {(float)INFINITY, 0x7f, 0x7c},
        {0x1p-10f, 0x00, 0x14},   {0x1.8p-9f, 0x02, 0x1a}, {0x1p-17f, 0x00, 0x00},
        {0x1.8p-16f, 0x00, 0x02}, {-0x1p-9f, 0x81, 0x98},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t code;
        kernel_cast(SHOAL_F8_E4M3FN, &code, SHOAL_F32, &rows[i].value, 1);
        CHECK_INT(code, rows[i].e4m3fn);
        kernel_cast(SHOAL_F8_E5M2, &code, SHOAL_F32, &rows[i].value, 1);
        CHECK_INT(code, rows[i].e5m2);
    }
}

TEST(arithmetic_is_refused_by_name)
{
    static const shoal_dtype dtypes[] = {SHOAL_F8_E4M3FN, SHOAL_F8_E5M2};
    const int64_t one = 1;
    const bool is_reduced = true;
    for (size_t i = 0; i < 2; i++) {
        uint8_t data = 0x38;
        struct kernel_operand operand = {.data = address_of(&data), .strides = &one};
        const void *source = &data;
        double largest;
        struct kernel_squares squares;
        kernel_squares_init(&squares);
        for (int op = 0; op < KERNEL_BINARY_COUNT; op++) {
            CHECK_STATUS(
                kernel_binary_nd((enum kernel_binary)op, dtypes[i], operand, operand, operand, 1, &one),
                SHOAL_ERR_UNSUPPORTED);
            CHECK_ERROR_TEXT(shoal_dtype_name(dtypes[i]));
        }
        CHECK_STATUS(kernel_negate_nd(dtypes[i], operand, operand, 1, &one), SHOAL_ERR_UNSUPPORTED);
        CHECK_STATUS(kernel_scale(dtypes[i], &data, &data, 1, 2.0), SHOAL_ERR_UNSUPPORTED);
        CHECK_STATUS(kernel_clamp(dtypes[i], &data, 1, 0.5), SHOAL_ERR_UNSUPPORTED);
        CHECK_STATUS(kernel_largest(dtypes[i], &data, 1, &largest), SHOAL_ERR_UNSUPPORTED);
        CHECK_STATUS(kernel_reduce(SHOAL_SUM, dtypes[i], &data, &source, 1, 1, 1.0), SHOAL_ERR_UNSUPPORTED);
        CHECK_STATUS(kernel_squares_add(&squares, dtypes[i], &data, 1), SHOAL_ERR_UNSUPPORTED);
        CHECK_STATUS(kernel_powers_add(&squares, dtypes[i], &data, 1, 3.0), SHOAL_ERR_UNSUPPORTED);
        CHECK_STATUS(kernel_sum_nd(dtypes[i], operand, operand, 1, &one, &is_reduced, 0),
                     SHOAL_ERR_UNSUPPORTED);
        CHECK_ERROR_TEXT(shoal_dtype_name(dtypes[i]));
        CHECK_INT(data, 0x38);
    }
}
