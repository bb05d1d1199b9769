/* SPDX-License-Identifier: MIT */
/* Everything that shoal_group_find, _create and _create_lists refuse, with the words that say why. */
#include <stddef.h>

#include "fixtures/groups.h"
#include "fixtures/mesh_checks.h"
#include "harness/test.h"
#include "shoal/collective.h"
#include "shoal/ops.h"
#include "shoal/scope.h"

#define LISTS(...) ((const int *const[]){__VA_ARGS__})

#define EXPECT(call, expected, words) \
    do {                              \
        shoal_group *group = NULL;    \
        CHECK_STATUS(call, expected); \
        CHECK_ERROR_TEXT(words);      \
        CHECK(group == NULL);         \
    } while (0)

struct bad_name {
    const char *name;
    const char *words;
};

TEST(names_that_are_refused)
{
    static const char expected[] = "expected \"world\", or ranks joined by ',', then, if there is a tag, '/' "
                                   "and the tag: \"0,2\", \"0,2/tag\"";
    static const struct bad_name bad[] = {
        {NULL, "group_find: name is NULL"},
        {"tp", "group_find: \"tp\" is not the name of a group, from character 0 on: expected \"world\""},
        {"/", "\"/\" is not the name of a group, from character 0 on"},
        {"/tag", "from character 0 on"},
        {",1", "from character 0 on"},
        {"1,", "from character 2 on"},
        {"0,,1", "from character 2 on"},
        {"0,/t", "from character 2 on"},
        {"0, 1", "from character 2 on"},
        {"0,1 ", "from character 3 on"},
        {" 0,1", "from character 0 on"},
        {"0;1", "from character 1 on"},
        {"0,-1", "from character 2 on"},
        {"+0,1", "from character 0 on"},
        {"0x1", "from character 1 on"},
        {"[0,1]", "from character 0 on"},
        {"0,1.0", "from character 3 on"},
        {"World", "from character 0 on"},
        {"worlds", "from character 0 on"},
        {"world,1", "from character 0 on"},
        {"1 rank", "from character 1 on"},
        {"0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,x", expected},
        {"0,2147483648", "name \"0,2147483648\": the rank at character 2 is too large"},
        {"99999999999999999999999999,1", "the rank at character 0 is too large"},
        {"1,2147483647", "rank 2147483647 of group [1,2147483647] is outside of the world of 4 ranks"},
        {"1,4", "group_find: rank 4 of group [1,4] is outside of the world of 4 ranks"},
        {"1,1", "rank 1 is twice in group [1,1]"},
        {"0,1,2,3,1", "name \"0,1,2,3,1\": the group has 5 ranks, but the world has 4"},
        {"0,2", "group_find: rank 1 is not in group [0,2]: only members can make it"},
        {"0,1/a\nb", "tag: character 1 (0x0a) is not printable ASCII"},
        {"world/\x7f", "tag: character 0 (0x7f)"},
        {"0,1/0123456789012345678901234567890123456789012345678901234567890123456789",
         "more than 64 characters"},
        {"3 ranks 0123456789abcdef0123456789abcdef", "is not a group of this rank yet"},
        {"3 ranks 0123456789abcdef0123456789abcdef/t", "is not a group of this rank yet"},
        {"3 ranks ", "is not a group of this rank yet"},
    };
    shoal_world *world = open_fake(4, 1);
    REQUIRE(world);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        EXPECT(shoal_group_find(world, bad[i].name, &group), SHOAL_ERR_INVALID, bad[i].words);
    }
    EXPECT(shoal_group_find(world, "0 1", &group), SHOAL_ERR_INVALID, expected);
    EXPECT(shoal_group_find(NULL, "world", &group), SHOAL_ERR_INVALID, "group_find: world is NULL");
    EXPECT(shoal_group_find(NULL, NULL, &group), SHOAL_ERR_INVALID, "group_find: world is NULL");
    CHECK_OK(shoal_world_close(world));
}

TEST(ranks_that_are_refused)
{
    static const char long_tag[] = "0123456789012345678901234567890123456789012345678901234567890123456789";
    const struct {
        const int *ranks;
        int n_ranks;
        const char *tag;
        const char *words;
    } bad[] = {
        {NULL, 2, NULL, "a group needs ranks: ranks is NULL, n_ranks is 2"},
        {NULL, 0, NULL, "ranks is NULL, n_ranks is 0"},
        {INTS(1), 0, NULL, "a group needs ranks: ranks is given, n_ranks is 0"},
        {INTS(1), -1, NULL, "n_ranks is -1"},
        {INTS(0, 1, 2, 3, 0), 5, NULL, "n_ranks is 5, but the world has 4 ranks"},
        {INTS(1, 4), 2, NULL, "rank 4 of group [1,4] is outside of the world of 4 ranks"},
        {INTS(1, -1), 2, NULL, "rank -1 of group [1,-1] is outside"},
        {INTS(1, 2, 1), 3, NULL, "rank 1 is twice in group [1,2,1]"},
        {INTS(2, 3), 2, NULL, "rank 1 is not in group [2,3]: only members can make it"},
        {INTS(1), 1, "\t", "tag: character 0 (0x09) is not printable ASCII"},
        {INTS(1), 1, long_tag, "more than 64 characters"},
    };
    shoal_world *world = open_fake(4, 1);
    REQUIRE(world);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        EXPECT(shoal_group_create(world, bad[i].ranks, bad[i].n_ranks, bad[i].tag, &group), SHOAL_ERR_INVALID,
               bad[i].words);
    }
    EXPECT(shoal_group_create(NULL, INTS(1), 1, NULL, &group), SHOAL_ERR_INVALID, "world is NULL");
    CHECK_OK(shoal_world_close(world));
}

TEST(rank_lists_that_are_refused)
{
    const struct {
        const int *const *lists;
        const int *n_ranks;
        int n_lists;
        const char *tag;
        const char *words;
    } bad[] = {
        {NULL, INTS(1), 1, NULL, "group_create_lists: lists is NULL"},
        {LISTS(INTS(1)), NULL, 1, NULL, "group_create_lists: n_ranks is NULL"},
        {LISTS(INTS(1)), INTS(1), 0, NULL, "n_lists is 0, at least 1 expected"},
        {LISTS(INTS(1)), INTS(1), -3, NULL, "n_lists is -3"},
        {LISTS(INTS(1), NULL), INTS(1, 1), 2, NULL, "lists[1] is NULL"},
        {LISTS(INTS(1), INTS(0)), INTS(0, 0), 2, NULL, "list 0 has length 0: a group needs ranks"},
        {LISTS(NULL), INTS(0), 1, NULL, "list 0 has length 0"},
        {LISTS(INTS(1)), INTS(-1), 1, NULL, "list 0 has length -1"},
        {LISTS(INTS(1), INTS(2, 3), INTS(0)), INTS(1, 2, 1), 3, NULL,
         "group sizes must be identical: list 0 has length 1, list 1 has length 2"},
        {LISTS(INTS(0, 1), INTS(2)), INTS(2, 0), 2, NULL,
         "group sizes must be identical: list 0 has length 2, list 1 has length 0"},
        {LISTS(INTS(0, 2), INTS(3, 4)), INTS(2, 2), 2, NULL,
         "rank 4 in list 1 is outside of the world of 4 ranks"},
        {LISTS(INTS(-1, 1)), INTS(2), 1, NULL, "rank -1 in list 0 is outside"},
        {LISTS(INTS(0, 2), INTS(3, 3)), INTS(2, 2), 2, NULL, "rank 3 is twice in list 1"},
        {LISTS(INTS(0, 1), INTS(1, 2)), INTS(2, 2), 2, NULL, "rank 1 is in list 0 and in list 1"},
        /* Also where it is not the caller that is twice: what is wrong is wrong on every rank. */
        {LISTS(INTS(0, 1), INTS(3, 2), INTS(2, 3)), INTS(2, 2, 2), 3, NULL,
         "rank 2 is in list 1 and in list 2"},
        {LISTS(INTS(0, 1, 2, 3, 0)), INTS(5), 1, NULL, "rank 0 is twice in list 0"},
        {LISTS(INTS(0), INTS(2), INTS(3)), INTS(1, 1, 1), 3, NULL, "rank 1 is in none of the 3 lists"},
        {LISTS(INTS(0, 1)), INTS(2), 1, "\x01", "group_create_lists: tag: character 0 (0x01)"},
    };
    shoal_world *world = open_fake(4, 1);
    REQUIRE(world);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        EXPECT(
            shoal_group_create_lists(world, bad[i].lists, bad[i].n_ranks, bad[i].n_lists, bad[i].tag, &group),
            SHOAL_ERR_INVALID, bad[i].words);
    }
    EXPECT(shoal_group_create_lists(NULL, LISTS(INTS(1)), INTS(1), 1, NULL, &group), SHOAL_ERR_INVALID,
           "group_create_lists: world is NULL");
    CHECK_OK(shoal_world_close(world));
}

struct inherited {
    shoal_world *world;
};

static void ask_of_inherited(void *context)
{
    static const char words[] = "is a fork of the process that opened the world";
    const struct inherited *inherited = context;
    shoal_world *world = inherited->world;
    EXPECT(shoal_group_find(world, "world", &group), SHOAL_ERR_STATE, words);
    EXPECT(shoal_group_find(world, "", &group), SHOAL_ERR_STATE, words);
    EXPECT(shoal_group_find(world, NULL, &group), SHOAL_ERR_STATE, words);
    EXPECT(shoal_group_create(world, INTS(1, 0), 2, NULL, &group), SHOAL_ERR_STATE, words);
    EXPECT(shoal_group_create_lists(world, LISTS(INTS(0, 1)), INTS(2), 1, NULL, &group), SHOAL_ERR_STATE,
           words);
    CHECK_STRING(shoal_group_name(shoal_world_group(world)), "world");
}

TEST(a_forked_child_has_no_groups)
{
    struct inherited inherited = {.world = open_fake(2, 0)};
    REQUIRE(inherited.world);
    test_in_child(ask_of_inherited, &inherited);
    CHECK_OK(shoal_world_close(inherited.world));
}
