/* SPDX-License-Identifier: MIT */
/*
 * The C library converts and rounds. Numbers pass to and from it as digits and an exponent, without a decimal point,
 * which depends on the locale.
 */
#include "graph/text/float_text.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"
#include "tensor/dtype.h"

#define MAX_DIGITS 17
#define EXPONENT_LIMIT 100000 /* with larger exponents a number is infinity or zero, whatever its digits */

/* Numbers whose exponent is in this range are written without it. */
#define MIN_PLAIN_EXPONENT (-5)
#define MAX_PLAIN_EXPONENT 15

/* d[0].d[1]d[2]... * 10^exponent */
struct decimal {
    char digits[MAX_DIGITS + 1];
    int n_digits;
    int exponent;
};

/* Reading ---------------------------------------------------------------------------------------------- */

/* "12e-3" as a value of the dtype. */
static double read_plain(shoal_dtype dtype, const char *text)
{
    if (dtype == SHOAL_F64) {
        return strtod(text, NULL);
    }
    if (dtype == SHOAL_F32) {
        return (double)strtof(text, NULL);
    }
    unsigned char element[sizeof(double)];
    double value;
    kernel_scalar_store(dtype, element, (struct kernel_scalar){.real = strtod(text, NULL)});
    kernel_cast(SHOAL_F64, &value, dtype, element, 1);
    return value;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads an exponent, which must reach to `end`; limits its size. */
static bool read_exponent(const char *text, const char *end, long *exponent_out)
{
    bool is_negative = text < end && *text == '-';
    long exponent = 0;
    if (text < end && (*text == '-' || *text == '+')) {
        text++;
    }
    if (text == end) {
        return false;
    }
    for (; text < end; text++) {
        if (!is_digit(*text)) {
            return false;
        }
        if (exponent < EXPONENT_LIMIT) {
            exponent = exponent * 10 + (*text - '0');
        }
    }
    *exponent_out = is_negative ? -exponent : exponent;
    return true;
}

enum float_text_result float_text_read(shoal_dtype dtype, const char *text, size_t length, double *value_out)
{
    char plain[FLOAT_TEXT_MAX_CHARS + 32];
    const char *end = text + length;
    size_t n_digits = 0;
    long exponent = 0;
    long n_behind_point = 0;
    bool is_zero = true;
    bool has_point = false;
    if (length == 0 || length > FLOAT_TEXT_MAX_CHARS || !is_digit(*text)) {
        return FLOAT_TEXT_NO_NUMBER;
    }
    for (; text < end && *text != 'e' && *text != 'E'; text++) {
        if (is_digit(*text)) {
            plain[n_digits++] = *text;
            n_behind_point += has_point;
            is_zero = is_zero && *text == '0';
        } else if (*text == '.' && !has_point && text + 1 < end && is_digit(text[1])) {
            has_point = true;
        } else {
            return FLOAT_TEXT_NO_NUMBER;
        }
    }
    if (text < end && !read_exponent(text + 1, end, &exponent)) {
        return FLOAT_TEXT_NO_NUMBER;
    }
    (void)snprintf(plain + n_digits, sizeof plain - n_digits, "e%ld", exponent - n_behind_point);
    double value = read_plain(dtype, plain);
    if (!isfinite(value)) { /* e4m3fn, which has no infinity, gives NaN */
        return FLOAT_TEXT_TOO_LARGE;
    }
    if (value == 0 && !is_zero) {
        return FLOAT_TEXT_TOO_SMALL;
    }
    *value_out = value;
    return FLOAT_TEXT_OK;
}

/* Writing ---------------------------------------------------------------------------------------------- */

/* Rounds the number to that many digits. Returns whether it reads back as the same value. */
static bool try_digits(struct decimal *decimal, shoal_dtype dtype, double value, int n_digits)
{
    char printed[FLOAT_TEXT_BYTES];
    char plain[FLOAT_TEXT_BYTES];
    (void)snprintf(printed, sizeof printed, "%.*e", n_digits - 1, value);
    const char *mark = strchr(printed, 'e');
    decimal->n_digits = 0;
    for (const char *c = printed; c < mark; c++) {
        if (is_digit(*c)) {
            decimal->digits[decimal->n_digits++] = *c;
        }
    }
    decimal->digits[decimal->n_digits] = '\0';
    decimal->exponent = (int)strtol(mark + 1, NULL, 10);
    (void)snprintf(plain, sizeof plain, "%se%d", decimal->digits, decimal->exponent - (n_digits - 1));
    return read_plain(dtype, plain) == value;
}

static void write_plain(char *text, const struct decimal *decimal)
{
    int exponent = decimal->exponent;
    if (exponent < 0) {
        (void)snprintf(text, FLOAT_TEXT_BYTES - 1, "0.%.*s%s", -exponent - 1, "0000000000", decimal->digits);
    } else if (exponent >= decimal->n_digits - 1) {
        (void)snprintf(text, FLOAT_TEXT_BYTES - 1, "%s%.*s.0", decimal->digits,
                       exponent - (decimal->n_digits - 1), "00000000000000000000");
    } else {
        (void)snprintf(text, FLOAT_TEXT_BYTES - 1, "%.*s.%s", exponent + 1, decimal->digits,
                       decimal->digits + exponent + 1);
    }
}

const char *float_text_write(char text[FLOAT_TEXT_BYTES], shoal_dtype dtype, double value)
{
    struct decimal decimal;
    if (isnan(value)) {
        return memcpy(text, "nan", sizeof "nan");
    }
    char *to = text;
    if (signbit(value)) {
        *to++ = '-';
        value = -value;
    }
    if (isinf(value)) {
        memcpy(to, "inf", sizeof "inf");
        return text;
    }
    /* If 15 digits are not enough, fewer are not either. */
    int n_digits = try_digits(&decimal, dtype, value, MAX_DIGITS - 2) ? 1 : MAX_DIGITS - 1;
    while (!try_digits(&decimal, dtype, value, n_digits) && n_digits < MAX_DIGITS) {
        n_digits++;
    }
    if (decimal.exponent >= MIN_PLAIN_EXPONENT && decimal.exponent <= MAX_PLAIN_EXPONENT) {
        write_plain(to, &decimal);
    } else {
        (void)snprintf(to, FLOAT_TEXT_BYTES - 1, "%.1s%s%se%d", decimal.digits,
                       decimal.n_digits > 1 ? "." : "", decimal.digits + 1, decimal.exponent);
    }
    return text;
}

bool float_text_is_plain_nan(shoal_dtype dtype, const void *element)
{
    uint64_t f64;
    uint32_t f32;
    uint16_t half;
    if (dtype == SHOAL_F64) {
        memcpy(&f64, element, sizeof f64);
        return f64 == 0x7ff8000000000000u;
    }
    if (dtype == SHOAL_F32) {
        memcpy(&f32, element, sizeof f32);
        return f32 == 0x7fc00000u;
    }
    if (dtype_bytes(dtype) == 1) {
        return *(const unsigned char *)element == 0x7f;
    }
    memcpy(&half, element, sizeof half);
    return half == (dtype == SHOAL_F16 ? 0x7e00 : 0x7fc0);
}
