/* SPDX-License-Identifier: MIT */
/* The checks of test.h: each prints what it got and what it wanted, once per failure. */
#include "harness/test.h"

#include <math.h>
#include <string.h>

#include "shoal/status.h"

bool test_check_int(const char *file, int line, const char *what, long long actual, long long expected)
{
    if (actual != expected) {
        test_failed(file, line, "%s is %lld, expected %lld", what, actual, expected);
        return false;
    }
    return true;
}

bool test_check_double(const char *file, int line, const char *what, double actual, double expected)
{
    bool is_equal = actual == expected || (isnan(actual) && isnan(expected));
    if (!is_equal) {
        test_failed(file, line, "%s is %.17g (%a), expected %.17g (%a)", what, actual, actual, expected,
                    expected);
    }
    return is_equal;
}

bool test_check_string(const char *file, int line, const char *what, const char *actual, const char *expected)
{
    bool is_equal = actual == expected || (actual && expected && strcmp(actual, expected) == 0);
    if (!is_equal) {
        test_failed(file, line, "%s is \"%s\", expected \"%s\"", what, actual ? actual : "(NULL)",
                    expected ? expected : "(NULL)");
    }
    return is_equal;
}

bool test_check_status(const char *file, int line, const char *what, shoal_status actual,
                       shoal_status expected)
{
    if (actual != expected) {
        test_failed(file, line, "%s gave %s, expected %s; error text \"%s\"", what, shoal_status_name(actual),
                    shoal_status_name(expected), shoal_error_text());
        return false;
    }
    return true;
}

bool test_check_bytes(const char *file, int line, const char *what, const void *actual, const void *expected,
                      size_t bytes)
{
    const unsigned char *a = actual;
    const unsigned char *b = expected;
    size_t first = bytes;
    size_t n_different = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (a[i] != b[i]) {
            first = n_different == 0 ? i : first;
            n_different++;
        }
    }
    if (n_different > 0) {
        test_failed(file, line, "%s: %zu of %zu bytes differ, first byte %zu is 0x%02x, expected 0x%02x",
                    what, n_different, bytes, first, a[first], b[first]);
        return false;
    }
    return true;
}

bool test_check_error_text(const char *file, int line, const char *words)
{
    if (!strstr(shoal_error_text(), words)) {
        test_failed(file, line, "the error text is \"%s\", expected to find \"%s\" in it", shoal_error_text(),
                    words);
        return false;
    }
    return true;
}
