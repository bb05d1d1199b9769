/* SPDX-License-Identifier: MIT */
/* Every 16-bit value both ways, and narrowing at every boundary there is. */
#include "kernel/half.h"

#include "oracle.h"

#include <stdlib.h>

/* By arithmetic in double, which holds every step from f32 exactly. */
static double round_to(struct oracle_format format, double value)
{
    if (value == 0 || !isfinite(value)) {
        return value;
    }
    int exponent;
    (void)frexp(value, &exponent);
    int unit = exponent - format.precision > format.unit ? exponent - format.precision : format.unit;
    double rounded = copysign(ldexp(rint(ldexp(value, -unit)), unit), value);
    return fabs(rounded) > (double)format.max ? copysign((double)INFINITY, value) : rounded;
}

static bool is_same(double a, double b)
{
    return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

static bool is_quiet(float value)
{
    return !isnan(value) || (half_f32_bits(value) & 0x00400000) != 0;
}

/* Both narrowings of a double; when it is an f32, those of the f32 too. */
static void check_narrowing(double value)
{
    double f16 = round_to(oracle_format(SHOAL_F16), value);
    double bf16 = round_to(oracle_format(SHOAL_BF16), value);
    float single = (float)value;
    bool is_single = isnan(value) || (double)single == value;
    if (!is_same((double)half_f16_to_f32(half_f64_to_f16(value)), f16) ||
        (is_single && half_f32_to_f16(single) != half_f64_to_f16(value) && !isnan(value))) {
        test_failed(__FILE__, __LINE__, "%a to f16: f64 gives %#x, f32 gives %#x, should be %a", value,
                    half_f64_to_f16(value), half_f32_to_f16(single), f16);
    }
    if (!is_same((double)half_bf16_to_f32(half_f64_to_bf16(value)), bf16) ||
        (is_single && half_f32_to_bf16(single) != half_f64_to_bf16(value) && !isnan(value))) {
        test_failed(__FILE__, __LINE__, "%a to bf16: f64 gives %#x, f32 gives %#x, should be %a", value,
                    half_f64_to_bf16(value), half_f32_to_bf16(single), bf16);
    }
}

TEST(widening_is_exact)
{
    for (unsigned bits = 0; bits < 65536 && !test_has_failed(); bits++) {
        uint16_t half = (uint16_t)bits;
        float f16 = half_f16_to_f32(half);
        float bf16 = half_bf16_to_f32(half);
        if (!oracle_same_real((long double)f16, oracle_half(half, 5)) || !is_quiet(f16)) {
            test_failed(__FILE__, __LINE__, "f16 %#x became %a", bits, (double)f16);
        }
        if (!oracle_same_real((long double)bf16, oracle_half(half, 8))) {
            test_failed(__FILE__, __LINE__, "bf16 %#x became %a", bits, (double)bf16);
        }
    }
}

TEST(there_and_back_keeps_the_bits)
{
    for (unsigned bits = 0; bits < 65536 && !test_has_failed(); bits++) {
        uint16_t half = (uint16_t)bits;
        float f16 = half_f16_to_f32(half);
        float bf16 = half_bf16_to_f32(half);
        uint16_t f16_quiet = isnan(f16) ? half | 0x200 : half;
        uint16_t bf16_quiet = isnan(bf16) ? half | 0x40 : half;
        CHECK_INT(half_f32_to_f16(f16), f16_quiet);
        CHECK_INT(half_f64_to_f16((double)f16), f16_quiet);
        CHECK_INT(half_f32_to_bf16(bf16), bf16_quiet);
        CHECK_INT(half_f64_to_bf16((double)bf16), bf16_quiet);
    }
}

/* Every f32 exponent with the mantissas around each place where a rounding can turn. */
TEST(narrowing_f32_at_boundaries)
{
    for (uint32_t exponent = 0; exponent < 512 && !test_has_failed(); exponent++) {
        for (int place = 0; place < 24; place++) {
            for (uint32_t high = 0; high < 4; high++) {
                uint32_t tie = (high << place) + (place > 0 ? 1u << (place - 1) : 0);
                check_narrowing((double)half_f32_from_bits(exponent << 23 | (tie & 0x7fffff)));
                check_narrowing((double)half_f32_from_bits(exponent << 23 | ((tie - 1) & 0x7fffff)));
                check_narrowing((double)half_f32_from_bits(exponent << 23 | ((tie + 1) & 0x7fffff)));
                check_narrowing((double)half_f32_from_bits(exponent << 23 | (-tie & 0x7fffff)));
            }
        }
    }
}

TEST(narrowing_f32_at_random)
{
    struct test_random random = test_random_begin(1);
    for (int i = 0; i < 1000000 && !test_has_failed(); i++) {
        check_narrowing((double)half_f32_from_bits((uint32_t)test_random_u64(&random)));
    }
}

/* Halfway between two neighbours, and so little beside it that f32 would not see the difference. */
TEST(narrowing_f64_rounds_once)
{
    for (unsigned bits = 0; bits < 0x7c00 && !test_has_failed(); bits++) {
        double low = (double)half_f16_to_f32((uint16_t)bits);
        double high = bits + 1 < 0x7c00 ? (double)half_f16_to_f32((uint16_t)(bits + 1)) : 65536.0;
        double middle = (low + high) / 2;
        CHECK_INT(half_f64_to_f16(middle), bits + (bits & 1));
        CHECK_INT(half_f64_to_f16(nextafter(middle, 0)), bits);
        CHECK_INT(half_f64_to_f16(nextafter(middle, (double)INFINITY)), bits + 1);
    }
    for (unsigned bits = 0; bits < 0x7f80 && !test_has_failed(); bits++) {
        double low = (double)half_bf16_to_f32((uint16_t)bits);
        double high = bits + 1 < 0x7f80 ? (double)half_bf16_to_f32((uint16_t)(bits + 1)) : 0x1p128;
        double middle = (low + high) / 2;
        CHECK_INT(half_f64_to_bf16(middle), bits + (bits & 1));
        CHECK_INT(half_f64_to_bf16(nextafter(middle, 0)), bits);
        CHECK_INT(half_f64_to_bf16(nextafter(middle, (double)INFINITY)), bits + 1);
        CHECK_INT(half_f64_to_bf16(-middle), 0x8000 + bits + (bits & 1));
    }
}

TEST(narrowing_f64_at_random)
{
    struct test_random random = test_random_begin(2);
    for (int i = 0; i < 200000 && !test_has_failed(); i++) {
        uint64_t bits = test_random_u64(&random);
        check_narrowing(half_f64_from_bits(bits));
        /* Within the range of the two formats, where most random f64 are not. */
        uint64_t exponent = 1023 - 140 + test_random_below(&random, 280);
        check_narrowing(half_f64_from_bits((bits & 0x800fffffffffffff) | exponent << 52));
    }
}
