/* SPDX-License-Identifier: MIT */
/* Excerpts of lines: never longer than they may be, and always with the column that matters. */
#include "graph/text/excerpt.h"

#include <string.h>

#include "harness/test.h"

TEST(short_lines_are_whole)
{
    char text[EXCERPT_BYTES];
    excerpt_write(text, "%sum: all_reduce\n", 16, 3);
    CHECK_STRING(text, "%sum: all_reduce");
    excerpt_write(text, "", 0, 7);
    CHECK_STRING(text, "");
}

TEST(differences)
{
    CHECK_INT(excerpt_find("abc", 3, "abd", 3), 2);
    CHECK_INT(excerpt_find("abc", 3, "abcd", 4), 3);
    CHECK_INT(excerpt_find("", 0, "abcd", 4), 0);
}

/* Lines of all lengths in which one column differs: it is there, and so are the beginning and what is in front of the column. */
TEST(the_column_is_there)
{
    enum {
        MOST = 700
    };
    char line[MOST];
    for (size_t bytes = 1; bytes < MOST && !test_has_failed(); bytes += 7) {
        for (size_t column = 0; column < bytes; column++) {
            char text[EXCERPT_BYTES];
            memset(line, 'x', bytes);
            memcpy(line, "%name", bytes < 5 ? bytes : 5);
            line[column] = '!';
            excerpt_write(text, line, bytes, column);
            CHECK(strlen(text) < EXCERPT_BYTES);
            CHECK(strlen(text) == bytes || strstr(text, "..."));
            CHECK(strchr(text, '!') != NULL);
            CHECK(column < 25 || bytes < 30 || strstr(text, "xxxx!"));
            CHECK(column < 5 || bytes < 5 || strncmp(text, "%name", 5) == 0);
        }
    }
}
