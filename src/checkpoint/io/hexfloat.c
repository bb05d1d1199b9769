/* SPDX-License-Identifier: MIT */
/* Doubles as text, by their bits: see hexfloat.h. */
#include "checkpoint/io/hexfloat.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

#define FRACTION_BITS 52
#define FRACTION_DIGITS (FRACTION_BITS / 4)
#define FRACTION_MASK (((uint64_t)1 << FRACTION_BITS) - 1)
#define QUIET_BIT ((uint64_t)1 << (FRACTION_BITS - 1)) /* the fraction of the usual NaN */
#define SIGN_BIT ((uint64_t)1 << 63)
#define EXPONENT_BIAS 1023
#define EXPONENT_SPECIAL 2047 /* of infinities and NaNs */
#define EXPONENT_LEAST (-1022)

const char *hexfloat_format(char text[HEXFLOAT_BYTES], double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint64_t fraction = bits & FRACTION_MASK;
    int exponent = (int)(bits >> FRACTION_BITS & EXPONENT_SPECIAL);
    const char *sign = bits & SIGN_BIT ? "-" : "";
    struct text out = text_begin(text, HEXFLOAT_BYTES);
    if (exponent == EXPONENT_SPECIAL) {
        text_add(&out, "%s%s", sign, fraction ? "nan" : "inf");
        if (fraction && fraction != QUIET_BIT) {
            text_add(&out, "(0x%llx)", (unsigned long long)fraction);
        }
        return text;
    }
    text_add(&out, "%s0x%d", sign, exponent != 0);
    if (fraction) {
        int digits = FRACTION_DIGITS;
        while ((fraction & 15) == 0) {
            fraction >>= 4;
            digits--;
        }
        text_add(&out, ".%0*llx", digits, (unsigned long long)fraction);
    }
    /* Without a leading 1 the exponent is the least one; that of zero is written as 0. */
    int shown = exponent ? exponent - EXPONENT_BIAS : fraction ? EXPONENT_LEAST : 0;
    text_add(&out, "p%+d", shown);
    return text;
}

static int digit_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The bits of "1.8p+1", without the sign. The caller finds out whether the text has the right form. */
static uint64_t parse_bits(const char *text)
{
    bool is_normal = text[0] == '1';
    uint64_t fraction = 0;
    int digits = 0;
    text += text[0] != '\0';
    text += text[0] == '.';
    for (; digit_value(*text) >= 0 && digits < FRACTION_DIGITS; text++, digits++) {
        fraction = fraction << 4 | (uint64_t)digit_value(*text);
    }
    fraction <<= 4 * (FRACTION_DIGITS - digits);
    text += text[0] == 'p';
    bool is_negative = text[0] == '-';
    text += text[0] == '-' || text[0] == '+';
    int exponent = 0;
    for (int i = 0; i < 4 && *text >= '0' && *text <= '9'; i++, text++) {
        exponent = 10 * exponent + (*text - '0');
    }
    exponent = (is_negative ? -exponent : exponent) + EXPONENT_BIAS;
    if (!is_normal || exponent < 1 || exponent >= EXPONENT_SPECIAL) {
        exponent = 0;
    }
    return (uint64_t)exponent << FRACTION_BITS | fraction;
}

/* The fraction of a NaN: of "(0x1)", or of nothing. */
static uint64_t parse_fraction(const char *text)
{
    uint64_t fraction = 0;
    if (text[0] == '\0') {
        return QUIET_BIT;
    }
    text += strncmp(text, "(0x", 3) == 0 ? 3 : 0;
    for (; digit_value(*text) >= 0; text++) {
        fraction = fraction << 4 | (uint64_t)digit_value(*text);
    }
    return fraction & FRACTION_MASK;
}

static uint64_t parse_text(const char *text)
{
    bool is_negative = text[0] == '-';
    uint64_t sign = is_negative ? SIGN_BIT : 0;
    text += is_negative;
    if (strcmp(text, "inf") == 0) {
        return sign | (uint64_t)EXPONENT_SPECIAL << FRACTION_BITS;
    }
    if (strncmp(text, "nan", 3) == 0) {
        return sign | (uint64_t)EXPONENT_SPECIAL << FRACTION_BITS | parse_fraction(text + 3);
    }
    return sign | parse_bits(strncmp(text, "0x", 2) == 0 ? text + 2 : text);
}

/* Reads the text without checks, and then checks that the value is written like this. */
bool hexfloat_parse(const char *text, double *value_out)
{
    uint64_t bits = parse_text(text);
    double value;
    char written[HEXFLOAT_BYTES];
    memcpy(&value, &bits, sizeof value);
    if (strcmp(text, hexfloat_format(written, value)) != 0) {
        return false;
    }
    *value_out = value;
    return true;
}
