/* SPDX-License-Identifier: MIT */
/* Doubles as text: every bit comes back, and each double has one text. */
#include "checkpoint/io/hexfloat.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"

static double from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* What printf and strtod say in the "C" locale. */
static void check_round_trip(uint64_t bits)
{
    char text[HEXFLOAT_BYTES];
    double value = from_bits(bits);
    double back = 0;
    hexfloat_format(text, value);
    CHECK(hexfloat_parse(text, &back));
    CHECK_BYTES(&back, &value, sizeof value);
    if (isnan(value)) {
        return;
    }
    back = strtod(text, NULL);
    CHECK_BYTES(&back, &value, sizeof value);
}

TEST(texts)
{
    static const struct {
        double value;
        const char *text;
    } rows[] = {
        {0.0, "0x0p+0"},
        {-0.0, "-0x0p+0"},
        {1.0, "0x1p+0"},
        {3.0, "0x1.8p+1"},
        {-0.1, "-0x1.999999999999ap-4"},
        {DBL_MAX, "0x1.fffffffffffffp+1023"},
        {DBL_MIN, "0x1p-1022"},
        {DBL_MIN / 2, "0x0.8p-1022"},
        {DBL_TRUE_MIN, "0x0.0000000000001p-1022"},
        {(double)INFINITY, "inf"},
        {-(double)INFINITY, "-inf"},
        {(double)NAN, "nan"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[HEXFLOAT_BYTES];
        uint64_t bits;
        CHECK_STRING(hexfloat_format(text, rows[i].value), rows[i].text);
        memcpy(&bits, &rows[i].value, sizeof bits);
        check_round_trip(bits);
    }
}

/* With all of their bits: programs mark values with them. */
TEST(nans)
{
    static const struct {
        uint64_t bits;
        const char *text;
    } rows[] = {{0x7ff8000000000000, "nan"},
                {0xfff8000000000000, "-nan"},
                {0x7ff0000000000001, "nan(0x1)"},
                {0xfff8000000000123, "-nan(0x8000000000123)"},
                {0xffffffffffffffff, "-nan(0xfffffffffffff)"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[HEXFLOAT_BYTES];
        CHECK_STRING(hexfloat_format(text, from_bits(rows[i].bits)), rows[i].text);
        check_round_trip(rows[i].bits);
    }
    struct test_random random = test_random_begin(2);
    for (int i = 0; i < 20000 && !test_has_failed(); i++) {
        check_round_trip(test_random_u64(&random) | (uint64_t)2047 << 52);
    }
}

TEST(round_trips)
{
    struct test_random random = test_random_begin(1);
    for (int i = 0; i < 200000 && !test_has_failed(); i++) {
        uint64_t bits = test_random_u64(&random);
        check_round_trip(bits);
        /* Few digits, and no exponent. */
        check_round_trip(bits & ~(uint64_t)0 << test_random_below(&random, 64));
        check_round_trip(bits & ~((uint64_t)2047 << 52));
    }
}

TEST(other_texts_are_refused)
{
    static const char *const texts[] = {"",
                                        " ",
                                        "0",
                                        "1",
                                        "1.0",
                                        "0x",
                                        "0x1",
                                        "0x1p",
                                        "0x1p0",
                                        "0x1p+",
                                        "0x1p+00",
                                        "0x1p+0 ",
                                        " 0x1p+0",
                                        "+0x1p+0",
                                        "0X1p+0",
                                        "0x1P+0",
                                        "0x1.p+0",
                                        "0x1.80p+1",
                                        "0x2p+0",
                                        "0x1.8Ap+1",
                                        "0x1.8p+1024",
                                        "0x1p-0",
                                        "0x1p-1023",
                                        "0x0p-1022",
                                        "0x0p+1",
                                        "0x0.8p-1023",
                                        "0x0.8p+0",
                                        "--0x1p+0",
                                        "nan(",
                                        "nan()",
                                        "nan(0x)",
                                        "nan(0x0)",
                                        "nan(0x01)",
                                        "nan(0x1",
                                        "nan(0x1)x",
                                        "nan0x1",
                                        "nan(0x8000000000000)",
                                        "nan(0x10000000000001)",
                                        "nan(0xA)",
                                        "NaN",
                                        "Inf",
                                        "infinity",
                                        "nan(1)",
                                        "0x1.g",
                                        "0x1,8p+1",
                                        "0x1p+10000000000",
                                        "0x1.ffffffffffffffp+0",
                                        "inf ",
                                        "1.8p+1",
                                        "-",
                                        "-0x",
                                        "p+0",
                                        "0x.8p+0"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        double value = 7;
        if (hexfloat_parse(texts[i], &value) || value < 7 || value > 7) {
            test_failed(__FILE__, __LINE__, "'%s' is read as %a", texts[i], value);
        }
    }
}
