/* SPDX-License-Identifier: MIT */
/* Sets of processors, and how they are divided. */
#include "base/cores.h"

#include <stddef.h>
#include <string.h>

#include "base/os/os.h"
#include "harness/test.h"

#define N_WORDS (sizeof((struct cores_set *)0)->words / sizeof(uint64_t))

static struct cores_set read_set(const char *text)
{
    struct cores_set set = {{0}};
    CHECK(cores_set_parse(text, &set));
    return set;
}

static bool is_same(const struct cores_set *set, const char *text)
{
    struct cores_set expected = read_set(text);
    return memcmp(set, &expected, sizeof expected) == 0;
}

TEST(lists_are_read)
{
    struct cores_set set = read_set("0-3,8,1022-1023\n");
    CHECK_INT(cores_set_count(&set), 7);
    CHECK(cores_set_has(&set, 3) && cores_set_has(&set, 8) && cores_set_has(&set, 1023));
    CHECK(!cores_set_has(&set, 4) && !cores_set_has(&set, 1021));
}

TEST(what_is_no_list_changes_nothing)
{
    static const char *const texts[] = {"",   "\n", "x",   "-1",     "1-",   "3-1",
                                        "1,", ",1", "1 2", "0-1024", "1024", "1\n2"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct cores_set set = read_set("5");
        CHECK(!cores_set_parse(texts[i], &set));
        CHECK(is_same(&set, "5"));
    }
}

/* Two threads of a core are next to each other. */
static void ask_pairs(void *context, int processor, struct cores_set *set)
{
    (void)context;
    cores_set_add(set, processor & ~1);
    cores_set_add(set, processor | 1);
}

/* The second threads of eight cores come after all first ones. */
static void ask_halves(void *context, int processor, struct cores_set *set)
{
    (void)context;
    cores_set_add(set, processor % 8);
    cores_set_add(set, processor % 8 + 8);
}

static void ask_nobody(void *context, int processor, struct cores_set *set)
{
    (void)context;
    (void)processor;
    (void)set;
}

static void check_share(const char *allowed, cores_siblings siblings, int part, int n_parts,
                        const char *expected)
{
    struct cores_set set = read_set(allowed);
    struct cores_set share;
    REQUIRE(cores_divide(&set, siblings, NULL, part, n_parts, 2, &share));
    CHECK(is_same(&share, expected));
}

TEST(parts_have_whole_cores)
{
    check_share("0-15", ask_pairs, 0, 8, "0-1");
    check_share("0-15", ask_pairs, 7, 8, "14-15");
    check_share("0-15", ask_halves, 0, 8, "0,8");
    check_share("0-15", ask_halves, 7, 8, "7,15");
    check_share("0-15", ask_nobody, 3, 8, "6-7");
    check_share("0-15", ask_halves, 1, 2, "4-7,12-15");
    check_share("2,4-7,10", ask_pairs, 0, 2, "2,4-5");
    check_share("2,4-7,10", ask_pairs, 1, 2, "6-7,10");
    check_share("0-1023", ask_pairs, 511, 512, "1022-1023");
}

TEST(parts_differ_by_a_core_at_most)
{
    check_share("0-15", ask_pairs, 0, 3, "0-3");
    check_share("0-15", ask_pairs, 1, 3, "4-9");
    check_share("0-15", ask_pairs, 2, 3, "10-15");
}

TEST(too_few_are_not_divided)
{
    struct cores_set sixteen = read_set("0-15");
    struct cores_set share = read_set("5");
    CHECK(!cores_divide(&sixteen, ask_pairs, NULL, 0, 9, 1, &share));
    CHECK(!cores_divide(&sixteen, ask_pairs, NULL, 0, 8, 3, &share));
    CHECK(!cores_divide(&sixteen, ask_nobody, NULL, 0, 16, 2, &share));
    CHECK(cores_divide(&sixteen, ask_nobody, NULL, 15, 16, 1, &share));
    CHECK(is_same(&share, "15"));
}

/* Whatever the machine has: all parts together are what there was. */
TEST(the_system_tells_of_cores)
{
    struct cores_set allowed;
    struct cores_set share;
    struct cores_set all = {{0}};
    REQUIRE(os_get_processors(0, allowed.words, N_WORDS) == 0);
    CHECK_INT(cores_set_count(&allowed), os_n_processors());
    int n_parts = cores_divide(&allowed, cores_ask_system, NULL, 0, 2, 1, &share) ? 2 : 1;
    for (int i = 0; i < n_parts; i++) {
        REQUIRE(cores_divide(&allowed, cores_ask_system, NULL, i, n_parts, 1, &share));
        for (size_t k = 0; k < N_WORDS; k++) {
            CHECK(n_parts == 1 || (all.words[k] & share.words[k]) == 0);
            all.words[k] |= share.words[k];
        }
    }
    CHECK(memcmp(&all, &allowed, sizeof all) == 0);
}

TEST(a_thread_keeps_to_its_processors)
{
    struct cores_set before;
    struct cores_set one = {{0}};
    struct cores_set now;
    int first = 0;
    REQUIRE(os_get_processors(0, before.words, N_WORDS) == 0);
    while (!cores_set_has(&before, first)) {
        first++;
    }
    cores_set_add(&one, first);
    REQUIRE(os_set_processors(0, one.words, N_WORDS) == 0);
    CHECK_INT(os_n_processors(), 1);
    REQUIRE(os_get_processors(0, now.words, N_WORDS) == 0);
    CHECK(memcmp(&now, &one, sizeof one) == 0);
    REQUIRE(os_set_processors(0, before.words, N_WORDS) == 0);
    CHECK_INT(os_n_processors(), cores_set_count(&before));
}
