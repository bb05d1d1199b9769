/* SPDX-License-Identifier: MIT */
/* Edit distances that are known, and their symmetry. */
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
    CHECK_INT(name_distance("ab", "ba"), 1);
    CHECK_INT(name_distance("fdsp", "fsdp"), 1);
    CHECK_INT(name_distance("defualt", "default"), 1);
    CHECK_INT(name_distance("abcd", "badc"), 2);
    CHECK_INT(name_distance("ca", "abc"), 3); /* exchanged characters are not changed again */
    CHECK_INT(name_distance("abc", "xyz"), 3);
}

TEST(beginnings_have_two_letters)
{
    CHECK(name_begins("fuse_ddp_communication", "fuse_ddp"));
    CHECK(name_begins("--ranks", "--rank"));
    CHECK(name_begins("add", "add"));
    CHECK(!name_begins("add", "add_"));
    CHECK(!name_begins("add", "a"));
    CHECK(!name_begins("--ranks", "--"));
    CHECK(!name_begins("--ranks", "--r"));
    CHECK(!name_begins("", ""));
}

TEST(distances_are_symmetric)
{
    static const char *const names[] = {"", "a", "add", "add_", "sub", "narrow", "arrow", "unsqueeze"};
    size_t n_names = sizeof names / sizeof names[0];
    for (size_t i = 0; i < n_names; i++) {
        for (size_t j = 0; j < n_names; j++) {
            size_t direct = name_distance(names[i], names[j]);
            CHECK_INT(direct == 0, i == j);
            CHECK_INT(direct, name_distance(names[j], names[i]));
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
