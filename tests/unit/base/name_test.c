/* SPDX-License-Identifier: MIT */
/* Edit distances that are known, and the laws any distance keeps. */
#include "base/name.h"

#include <stddef.h>
#include <string.h>

#include "harness/test.h"

TEST(known_distances)
{
    CHECK_INT(name_distance("", ""), 0);
    CHECK_INT(name_distance("", "abc"), 3);
    CHECK_INT(name_distance("abc", ""), 3);
    CHECK_INT(name_distance("narrow", "narow"), 1);
    CHECK_INT(name_distance("kitten", "sitting"), 3);
    CHECK_INT(name_distance("ab", "ba"), 2);
    CHECK_INT(name_distance("abc", "xyz"), 3);
}

TEST(laws_of_a_distance)
{
    static const char *const names[] = {"", "a", "add", "add_", "sub", "narrow", "arrow", "unsqueeze"};
    size_t n_names = sizeof names / sizeof names[0];
    for (size_t i = 0; i < n_names; i++) {
        for (size_t j = 0; j < n_names; j++) {
            size_t direct = name_distance(names[i], names[j]);
            CHECK_INT(direct == 0, i == j);
            CHECK_INT(direct, name_distance(names[j], names[i]));
            for (size_t k = 0; k < n_names; k++) {
                CHECK(direct <= name_distance(names[i], names[k]) + name_distance(names[k], names[j]));
            }
        }
    }
}

TEST(long_names_are_compared_by_their_beginning)
{
    char a[200];
    char b[200];
    memset(a, 'a', sizeof a);
    memset(b, 'a', sizeof b);
    a[199] = '\0';
    b[100] = '\0';
    CHECK_INT(name_distance(a, b), 0);
    b[NAME_MAX_CHARS - 1] = 'b';
    CHECK_INT(name_distance(a, b), 1);
    b[NAME_MAX_CHARS - 1] = '\0';
    CHECK_INT(name_distance(a, b), 1);
}
