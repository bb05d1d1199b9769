/* SPDX-License-Identifier: MIT */
/* Reading the values of options. By hand, because strtod and friends accept more and depend on the locale. */
#include "base/option_parse.h"

#include <stddef.h>
#include <string.h>

/* So many digits fit a uint64_t without a check for overflow. */
#define SECONDS_MAX_DIGITS 18

static bool is_digit(char character)
{
    return character >= '0' && character <= '9';
}

/* Reads digits as a negative number, whose range is the larger one; moves *text behind them. */
static bool read_negated(const char **text, int64_t *negated_out)
{
    if (!is_digit(**text)) {
        return false;
    }
    int64_t negated = 0;
    for (; is_digit(**text); (*text)++) {
        int64_t digit = **text - '0';
        if (__builtin_mul_overflow(negated, 10, &negated) ||
            __builtin_sub_overflow(negated, digit, &negated)) {
            return false;
        }
    }
    *negated_out = negated;
    return true;
}

bool option_parse_int(const char *text, int64_t *value_out)
{
    bool is_negative = *text == '-';
    const char *rest = is_negative ? text + 1 : text;
    int64_t negated;
    if (!read_negated(&rest, &negated) || *rest != '\0') {
        return false;
    }
    if (!is_negative && negated == INT64_MIN) {
        return false;
    }
    *value_out = is_negative ? negated : -negated;
    return true;
}

/* The factor of a suffix; 0 for a character that is none. */
static int64_t find_factor(char suffix)
{
    switch (suffix) {
    case '\0':
        return 1;
    case 'K':
    case 'k':
        return (int64_t)1 << 10;
    case 'M':
    case 'm':
        return (int64_t)1 << 20;
    case 'G':
    case 'g':
        return (int64_t)1 << 30;
    default:
        return 0;
    }
}

bool option_parse_bytes(const char *text, int64_t *bytes_out)
{
    const char *rest = text;
    int64_t negated;
    if (!read_negated(&rest, &negated) || negated == INT64_MIN) {
        return false;
    }
    int64_t factor = find_factor(*rest);
    if (factor == 0 || (*rest != '\0' && rest[1] != '\0')) {
        return false;
    }
    int64_t bytes;
    if (__builtin_mul_overflow(-negated, factor, &bytes)) {
        return false;
    }
    *bytes_out = bytes;
    return true;
}

bool option_parse_seconds(const char *text, double *seconds_out)
{
    uint64_t digits = 0;
    int n_digits = 0;
    bool has_point = false;
    double divisor = 1.0;
    for (; *text != '\0'; text++) {
        if (*text == '.' && !has_point && n_digits > 0) {
            has_point = true;
            continue;
        }
        if (!is_digit(*text) || n_digits == SECONDS_MAX_DIGITS) {
            return false;
        }
        digits = digits * 10 + (uint64_t)(*text - '0');
        n_digits++;
        /* Powers of ten are exact up to 1e22, so there is one rounding in the end. */
        divisor = has_point ? divisor * 10.0 : divisor;
    }
    if (n_digits == 0) {
        return false;
    }
    *seconds_out = (double)digits / divisor;
    return true;
}

bool option_parse_choice(const char *text, const char *choices, int *index_out)
{
    size_t text_chars = strlen(text);
    int index = 0;
    while (*choices != '\0') {
        size_t choice_chars = strcspn(choices, "|");
        if (choice_chars == text_chars && memcmp(choices, text, text_chars) == 0) {
            *index_out = index;
            return true;
        }
        choices += choice_chars;
        choices += *choices == '|' ? 1 : 0;
        index++;
    }
    return false;
}
