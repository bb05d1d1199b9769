/* SPDX-License-Identifier: MIT */
/* Texts that are appended to until they are full. */
#include "base/text.h"

#include <string.h>

#include "harness/test.h"

TEST(text_is_a_string_at_any_time)
{
    char string[8] = "garbage";
    struct text text = text_begin(string, sizeof string);
    CHECK_STRING(string, "");
    text_add(&text, "%d", 12);
    CHECK_STRING(string, "12");
    text_add(&text, "%s", "345");
    CHECK_STRING(string, "12345");
    CHECK_INT(text.length, 5);
}

TEST(text_is_cut_where_it_is_full)
{
    char string[8];
    struct text text = text_begin(string, sizeof string);
    text_add(&text, "%s", "1234567");
    CHECK_STRING(string, "1234567");
    text_add(&text, "%s", "8");
    CHECK_STRING(string, "1234567");
    text = text_begin(string, sizeof string);
    text_add(&text, "%s", "12345678");
    CHECK_STRING(string, "1234567");
    CHECK_INT(text.length, 7);
    text = text_begin(string, 1);
    text_add(&text, "%s", "1");
    CHECK_STRING(string, "");
}

/* In memory of each size: whole names, then "...", and nothing behind it. */
TEST(names_are_whole_or_not_there)
{
    static const char *const names[] = {"a", "bb", "ccc", "d"};
    static const char *const expected[] = {"x a, bb, ccc, d", "x a, bb, ccc, ...", "x a, bb, ...", "x a, ...",
                                           "x ..."};
    for (size_t bytes = sizeof "x ..."; bytes < 40; bytes++) {
        char string[40];
        bool is_expected = false;
        struct text text = text_begin(string, bytes);
        const char *between = "x ";
        for (size_t i = 0; i < 4; i++) {
            text_add_name(&text, between, names[i]);
            between = ", ";
        }
        for (size_t i = 0; i < 5; i++) {
            is_expected = is_expected || strcmp(string, expected[i]) == 0;
        }
        CHECK(is_expected);
        CHECK(strlen(string) < bytes && strlen(string) == text.length);
        CHECK(bytes < sizeof "x a, bb, ccc, d, ..." || strcmp(string, expected[0]) == 0);
        CHECK(bytes >= sizeof "x a, ..." || strcmp(string, expected[4]) == 0);
    }
}

TEST(names_end_where_not_even_dots_fit)
{
    char string[6];
    struct text text = text_begin(string, sizeof string);
    text_add(&text, "%s", "1234");
    text_add_name(&text, ", ", "name");
    CHECK_STRING(string, "1234,");
    text_add_name(&text, ", ", "name");
    text_add(&text, "%s", "more");
    CHECK_STRING(string, "1234,");
}

TEST(numbers_of_bytes)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 bytes"},
                 {1023, "1023 bytes"},
                 {1024, "1.00 KiB"},
                 {1536, "1.50 KiB"},
                 {(uint64_t)1 << 20, "1.00 MiB"},
                 {((uint64_t)1 << 20) - 1, "1.00 MiB"},
                 {(uint64_t)16 << 30, "16.00 GiB"},
                 {(uint64_t)1 << 40, "1.00 TiB"},
                 {UINT64_MAX, "16.00 EiB"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char string[32];
        struct text text = text_begin(string, sizeof string);
        text_add_bytes(&text, cases[i].bytes);
        CHECK_STRING(string, cases[i].text);
    }
}
