/* SPDX-License-Identifier: MIT */
/* Values of options: what is accepted, and what only looks like it. */
#include "base/option_parse.h"

#include <stddef.h>

#include "harness/test.h"

static void expect_int(const char *text, int64_t expected)
{
    int64_t value = 99;
    if (!option_parse_int(text, &value) || value != expected) {
        test_failed(__FILE__, __LINE__, "\"%s\" gave %lld", text, (long long)value);
    }
}

static void expect_bytes(const char *text, int64_t expected)
{
    int64_t value = 99;
    if (!option_parse_bytes(text, &value) || value != expected) {
        test_failed(__FILE__, __LINE__, "\"%s\" gave %lld", text, (long long)value);
    }
}

static void expect_seconds(const char *text, double expected)
{
    double value = 99.0;
    if (!option_parse_seconds(text, &value) || value != expected) {
        test_failed(__FILE__, __LINE__, "\"%s\" gave %.17g", text, value);
    }
}

TEST(integers)
{
    expect_int("0", 0);
    expect_int("-0", 0);
    expect_int("007", 7);
    expect_int("-12", -12);
    expect_int("9223372036854775807", INT64_MAX);
    expect_int("-9223372036854775808", INT64_MIN);
    static const char *const bad[] = {"",
                                      "-",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "1K",
                                      "0x10",
                                      "1.0",
                                      "--1",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "99999999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t value = 99;
        if (option_parse_int(bad[i], &value) || value != 99) {
            test_failed(__FILE__, __LINE__, "\"%s\" was accepted as %lld", bad[i], (long long)value);
        }
    }
}

TEST(bytes)
{
    expect_bytes("0", 0);
    expect_bytes("4096", 4096);
    expect_bytes("64K", 65536);
    expect_bytes("64k", 65536);
    expect_bytes("8M", 8388608);
    expect_bytes("2G", INT64_C(2147483648));
    expect_bytes("8589934591G", INT64_C(8589934591) << 30);
    expect_bytes("9223372036854775807", INT64_MAX);
    static const char *const bad[] = {"",
                                      "K",
                                      "-1",
                                      "1KB",
                                      "1KK",
                                      "1T",
                                      "1.5M",
                                      " 1",
                                      "1 K",
                                      "8589934592G",
                                      "9007199254740992K",
                                      "9223372036854775808"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t value = 99;
        if (option_parse_bytes(bad[i], &value) || value != 99) {
            test_failed(__FILE__, __LINE__, "\"%s\" was accepted as %lld", bad[i], (long long)value);
        }
    }
}

TEST(seconds)
{
    expect_seconds("0", 0.0);
    expect_seconds("600", 600.0);
    expect_seconds("0.25", 0.25);
    expect_seconds("0.1", 0.1);
    expect_seconds("1.", 1.0);
    expect_seconds("123456.789", 123456.789);
    expect_seconds("0.00000000000000001", 1e-17);
    expect_seconds("999999999999999999", 999999999999999999.0);
    static const char *const bad[] = {"",    ".",    ".5",    "-1",    "+1",
                                      "1e3", "1..2", "1.2.3", "1,5",   "1s",
                                      " 1",  "nan",  "inf",   "0x1p3", "1000000000000000000"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        double value = 99.0;
        if (option_parse_seconds(bad[i], &value) || value != 99.0) {
            test_failed(__FILE__, __LINE__, "\"%s\" was accepted as %g", bad[i], value);
        }
    }
}

TEST(choices)
{
    int index = 99;
    CHECK(option_parse_choice("off", "off|on|auto", &index));
    CHECK_INT(index, 0);
    CHECK(option_parse_choice("auto", "off|on|auto", &index));
    CHECK_INT(index, 2);
    CHECK(option_parse_choice("only", "only", &index));
    CHECK_INT(index, 0);
    index = 99;
    static const char *const bad[] = {"", "o", "offf", "off|on", "OFF", "|", "aut"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(!option_parse_choice(bad[i], "off|on|auto", &index));
    }
    CHECK_INT(index, 99);
}
