/* SPDX-License-Identifier: MIT */
/*
 * The group argument: what each way to say it gives, that the same said otherwise is the same group, on every thread
 * and in any order. The first part is the cases that PyTorch has for it, on four ranks.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/group/group.h"
#include "fixtures/groups.h"
#include "fixtures/mesh_checks.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/collective.h"
#include "shoal/ops.h"
#include "shoal/scope.h"

#define LISTS(...) ((const int *const[]){__VA_ARGS__})

/* A group that says it is of these ranks also talks to them. */
static void check_talks(shoal_group *group, const int *ranks, int n_ranks)
{
    check_group_ranks(group, ranks, n_ranks);
    int32_t mine = shoal_world_rank(shoal_group_world(group));
    int32_t all[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    if (group && CHECK_OK(shoal_group_all_gather(group, &mine, all, 1, SHOAL_I32))) {
        for (int i = 0; i < n_ranks; i++) {
            CHECK_INT(all[i], ranks[i]);
        }
    }
}

/* Whatever says it, it is this group; and its name does. */
static void check_same(shoal_group *asked, shoal_group *expected)
{
    if (!asked) {
        test_failed(__FILE__, __LINE__, "no group: %s", shoal_error_text());
        return;
    }
    CHECK(asked == expected);
    CHECK(group_of_name(shoal_group_world(asked), shoal_group_name(asked)) == asked);
}

/* The cases of PyTorch --------------------------------------------------------------------------------- */

TEST_RANKS(expand_1d_rank_list, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *plain = group_of_ranks(world, INTS(0, 1, 2, 3), 4, "");
    CHECK_STRING(plain->tag, "");
    check_talks(plain, INTS(0, 1, 2, 3), 4);
    shoal_group *tagged = group_of_ranks(world, INTS(0, 1, 2, 3), 4, "bla");
    CHECK_STRING(tagged->tag, "bla");
    check_talks(tagged, INTS(0, 1, 2, 3), 4);
    CHECK(plain != tagged);
    check_same(group_of_ranks(world, INTS(0, 1, 2, 3), 4, NULL), plain);
    shoal_group *reversed = group_of_ranks(world, INTS(3, 2, 1, 0), 4, "");
    CHECK(reversed != plain);
    check_talks(reversed, INTS(3, 2, 1, 0), 4);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(expand_2d_rank_list, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    const int *const halves[] = {INTS(0, 1), INTS(2, 3)};
    shoal_group *half = group_of_lists(world, halves, INTS(2, 2), 2, "bla");
    CHECK_STRING(half->tag, "bla");
    check_talks(half, halves[self->rank / 2], 2);
    check_same(group_of_ranks(world, halves[self->rank / 2], 2, "bla"), half);
    /* Lists in another order are the same groups; ranks in another order are not. */
    check_same(group_of_lists(world, LISTS(halves[1], halves[0]), INTS(2, 2), 2, "bla"), half);
    shoal_group *swapped = group_of_lists(world, LISTS(INTS(1, 0), INTS(3, 2)), INTS(2, 2), 2, "bla");
    CHECK(swapped != half);
    CHECK_INT(shoal_group_rank(swapped), 1 - self->rank % 2);
    /* One list is enough where all ranks are in it. */
    check_same(group_of_lists(world, LISTS(INTS(0, 1, 2, 3)), INTS(4), 1, NULL), shoal_world_group(world));
    CHECK(!group_of_lists(world, LISTS(INTS(0), INTS(1, 2, 3)), INTS(1, 3), 2, ""));
    CHECK_ERROR_TEXT("group sizes must be identical: list 0 has length 1, list 1 has length 3");
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(expand_process_group, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *all = shoal_world_group(world);
    CHECK_STRING(shoal_group_name(all), "world");
    check_same(group_of_name(world, shoal_group_name(all)), all);
    /* A tag of its own is a lane of its own over the same ranks. */
    shoal_group *lane = group_of_name(world, "world/bla");
    CHECK(lane != all);
    CHECK_STRING(lane->tag, "bla");
    check_talks(lane, INTS(0, 1, 2, 3), 4);
    check_same(group_of_ranks(world, INTS(0, 1, 2, 3), 4, "bla"), lane);
    shoal_group *block = NULL;
    REQUIRE_OK(shoal_group_create_blocks(world, 2, NULL, &block));
    CHECK_STRING(shoal_group_name(block), self->rank < 2 ? "0,1" : "2,3");
    check_same(group_of_name(world, self->rank < 2 ? "0,1" : "2,3"), block);
    CHECK_INT(shoal_group_n_ranks(block), 2);
    shoal_group *alone = NULL;
    REQUIRE_OK(shoal_group_create(world, &self->rank, 1, "my_pg", &alone));
    char name[32];
    (void)snprintf(name, sizeof name, "%d/my_pg", self->rank);
    CHECK_STRING(shoal_group_name(alone), name);
    CHECK_STRING(group_of_name(world, name)->tag, "my_pg");
    check_talks(group_of_name(world, name), &self->rank, 1);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(expand_device_mesh, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_mesh *mesh = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(4), 1, NULL, &mesh));
    shoal_group *group = shoal_mesh_group(mesh, 0);
    CHECK(group == shoal_mesh_group(mesh, 0));
    check_same(shoal_mesh_group(mesh, 0), group);
    check_same(shoal_mesh_group(mesh, -1), group);
    check_talks(group, INTS(0, 1, 2, 3), 4);
    shoal_mesh_free(mesh);
    /* The group does not end with the mesh. */
    check_talks(group, INTS(0, 1, 2, 3), 4);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(expand_device_mesh_tuple, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_mesh *mesh = NULL;
    shoal_mesh *slice = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 2), 2, NAMES("dp", "tp"), &mesh));
    int column = self->rank % 2;
    int row = self->rank / 2;
    check_talks(shoal_mesh_group(mesh, 0), INTS(column, column + 2), 2);
    check_talks(shoal_mesh_group(mesh, 1), INTS(2 * row, 2 * row + 1), 2);
    check_same(shoal_mesh_group(mesh, -2), shoal_mesh_group(mesh, 0));
    CHECK_STRING(shoal_group_name(shoal_mesh_group(mesh, 0)), column ? "1,3/mesh/dp" : "0,2/mesh/dp");
    check_same(group_of_name(world, column ? "1,3/mesh/dp" : "0,2/mesh/dp"), shoal_mesh_group(mesh, 0));
    REQUIRE_OK(shoal_mesh_slice(mesh, NAMES("tp"), 1, &slice));
    check_same(shoal_mesh_group(slice, 0), shoal_mesh_group(mesh, 1));
    shoal_mesh_free(slice);
    shoal_mesh_free(mesh);
    CHECK_OK(shoal_world_close(world));
}

/* There two groups without a tag differ; here the same ranks without a tag are the same group. */
TEST_RANKS(pg_creation_with_tag, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    int first = self->rank / 2 * 2;
    const int *ranks = INTS(first, first + 1);
    shoal_group *blu = group_of_ranks(world, ranks, 2, "blu");
    shoal_group *blu2 = group_of_ranks(world, ranks, 2, "blu2");
    shoal_group *plain = group_of_ranks(world, ranks, 2, NULL);
    check_same(group_of_ranks(world, ranks, 2, "blu"), blu);
    CHECK(blu != blu2 && blu != plain && blu2 != plain);
    check_same(group_of_ranks(world, ranks, 2, NULL), plain);
    check_talks(plain, ranks, 2);
    check_talks(blu2, ranks, 2);
    check_talks(blu, ranks, 2);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(pg_lookup_roundtrip, 4)
{
    static const char *const tags[] = {"blu", "blu2", NULL, ""};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        shoal_group *group = NULL;
        REQUIRE_OK(shoal_group_create_blocks(world, 2, tags[i], &group));
        int ranks[2] = {shoal_group_world_rank(group, 0), shoal_group_world_rank(group, 1)};
        check_same(group_of_ranks(world, ranks, 2, group->tag), group);
        check_same(group_of_name(world, shoal_group_name(group)), group);
    }
    CHECK_OK(shoal_world_close(world));
}

/* There "" finds a group whatever its tag; here it means the group that has none. A group keeps its own. */
TEST_RANKS(pg_lookup_with_tag, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    int first = self->rank / 2 * 2;
    const int *ranks = INTS(first, first + 1);
    shoal_group *blu = group_of_ranks(world, ranks, 2, "blu");
    shoal_group *bar = group_of_ranks(world, ranks, 2, "bar");
    shoal_group *plain = group_of_ranks(world, ranks, 2, "");
    int of_bar[2] = {shoal_group_world_rank(bar, 0), shoal_group_world_rank(bar, 1)};
    check_same(group_of_ranks(world, of_bar, 2, "blu"), blu);
    check_same(group_of_ranks(world, of_bar, 2, ""), plain);
    CHECK(plain != blu && plain != bar);
    shoal_mesh *mesh = NULL;
    REQUIRE_OK(shoal_mesh_from_groups(&blu, 1, "cpu", NULL, NULL, 1, NULL, &mesh));
    CHECK_STRING(shoal_mesh_group(mesh, 0)->tag, "blu");
    check_same(shoal_mesh_group(mesh, 0), blu);
    shoal_mesh_free(mesh);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(find_or_create_pg, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *found = group_of_lists(world, LISTS(INTS(0, 1), INTS(2, 3)), INTS(2, 2), 2, "blu");
    shoal_group *made = NULL;
    REQUIRE_OK(shoal_group_create_blocks(world, 2, "blu", &made));
    check_same(found, made);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(find_root_pg, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *all = shoal_world_group(world);
    check_same(group_of_ranks(world, INTS(0, 1, 2, 3), 4, ""), all);
    check_same(group_of_name(world, ""), all);
    check_same(group_of_name(world, "world"), all);
    check_same(group_of_name(world, "0,1,2,3"), all);
    check_talks(all, INTS(0, 1, 2, 3), 4);
    CHECK_OK(shoal_world_close(world));
}

static double first_element(shoal_tensor *tensor)
{
    const double *data = tensor ? shoal_data(tensor) : NULL;
    return data ? data[0] : -1;
}

/* In the place of an argument, as collectives on tensors take it. */
TEST_RANKS(any_way_to_say_it_serves_a_collective, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_mesh *line = NULL;
    shoal_mesh *square = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(4), 1, NULL, &line));
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 2), 2, NULL, &square));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *power = shoal_full((const int64_t[]){3}, 1, 1 << self->rank, SHOAL_F64);
    const int *const pairs[] = {INTS(0, 3), INTS(2, 1)};
    shoal_tensor *of_all = shoal_all_reduce(power, SHOAL_SUM, group_of_name(world, "world"));
    shoal_tensor *of_line = shoal_all_reduce(power, SHOAL_SUM, shoal_mesh_group(line, 0));
    shoal_tensor *of_column = shoal_all_reduce(power, SHOAL_SUM, shoal_mesh_group(square, 0));
    shoal_tensor *of_pair =
        shoal_all_reduce(power, SHOAL_SUM, group_of_lists(world, pairs, INTS(2, 2), 2, "pair"));
    shoal_tensor *of_ranks =
        shoal_all_reduce(power, SHOAL_SUM, group_of_ranks(world, INTS(3, 1, 0, 2), 4, NULL));
    CHECK_DOUBLE(first_element(of_all), 15);
    CHECK_DOUBLE(first_element(of_line), 15);
    CHECK_DOUBLE(first_element(of_column), self->rank % 2 ? 2 + 8 : 1 + 4);
    CHECK_DOUBLE(first_element(of_pair), self->rank % 3 == 0 ? 1 + 8 : 2 + 4);
    CHECK_DOUBLE(first_element(of_ranks), 15);
    CHECK_OK(shoal_scope_end());
    shoal_mesh_free(square);
    shoal_mesh_free(line);
    CHECK_OK(shoal_world_close(world));
}

/* Orders and threads ----------------------------------------------------------------------------------- */

/* Nothing counts groups, so that ranks which ask in different orders, in different ways, still meet. */
TEST_RANKS(groups_are_asked_for_in_any_order, 4)
{
    enum {
        N_GROUPS = 5
    };
    static const int members[N_GROUPS][4] = {
        {0, 1, 2, 3}, {3, 2, 1, 0}, {0, 1, 2, 3}, {1, 3, 0, 2}, {2, 0, 1, 3}};
    static const char *const tags[N_GROUPS] = {"", "", "x", "x", "y/z"};
    static const char *const names[N_GROUPS] = {"0,1,2,3", "3,2,1,0", "0,1,2,3/x", "1,3,0,2/x",
                                                "2,0,1,3/y/z"};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *groups[N_GROUPS];
    for (int i = 0; i < N_GROUPS; i++) {
        int which = (i * (1 + self->rank) + self->rank) % N_GROUPS;
        groups[which] = self->rank % 2 ? group_of_name(world, names[which])
                                       : group_of_ranks(world, members[which], 4, tags[which]);
    }
    for (int i = 0; i < N_GROUPS; i++) {
        check_talks(groups[i], members[i], 4);
        check_same(group_of_name(world, names[i]), groups[i]);
    }
    CHECK_OK(shoal_world_close(world));
}

/* The order of ranks counts: two ranks that list them differently wait in two groups, and each hears for whom. */
TEST_RANKS(ranks_in_another_order_never_meet, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = group_of_name(world, self->rank ? "1,0/x" : "0,1/x");
    REQUIRE(group);
    CHECK_OK(shoal_group_set_timeout(group, 0.3));
    CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT(self->rank ? "[1,0]" : "[0,1]");
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

struct lookup {
    shoal_world *world;
    const char *name;
    pthread_barrier_t *barrier;
    shoal_group *found;
    shoal_status status;
    int32_t sum;
    pthread_t thread;
};

static void *look_up(void *context)
{
    struct lookup *lookup = context;
    (void)pthread_barrier_wait(lookup->barrier);
    lookup->found = group_of_name(lookup->world, lookup->name);
    return NULL;
}

static void *look_up_and_reduce(void *context)
{
    struct lookup *lookup = context;
    int32_t one = 1;
    lookup->found = group_of_name(lookup->world, lookup->name);
    lookup->status = shoal_group_all_reduce(lookup->found, &one, &lookup->sum, 1, SHOAL_I32, SHOAL_SUM);
    return NULL;
}

/* Made on one thread, known and usable on another. */
TEST_RANKS(threading, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = group_of_ranks(world, INTS(2, 0, 3, 1), 4, "thread");
    REQUIRE(group);
    struct lookup lookup = {.world = world, .name = shoal_group_name(group)};
    REQUIRE(pthread_create(&lookup.thread, NULL, look_up_and_reduce, &lookup) == 0);
    CHECK_INT(pthread_join(lookup.thread, NULL), 0);
    CHECK(lookup.found == group);
    CHECK_STATUS(lookup.status, SHOAL_OK);
    CHECK_INT(lookup.sum, 4);
    check_talks(group, INTS(2, 0, 3, 1), 4);
    CHECK_OK(shoal_world_close(world));
}

/* Several threads ask at once for what is not there yet: one group comes of it. */
TEST(threads_that_ask_at_once_get_one_group)
{
    enum {
        N_THREADS = 4,
        N_ROUNDS = 25
    };
    shoal_world *world = open_fake(6, 3);
    REQUIRE(world);
    pthread_barrier_t barrier;
    REQUIRE(pthread_barrier_init(&barrier, NULL, N_THREADS) == 0);
    for (int round = 0; round < N_ROUNDS; round++) {
        struct lookup lookups[N_THREADS];
        char name[32];
        (void)snprintf(name, sizeof name, "5,3,0/%d", round);
        for (int i = 0; i < N_THREADS; i++) {
            lookups[i] = (struct lookup){.world = world, .name = name, .barrier = &barrier};
            CHECK_INT(pthread_create(&lookups[i].thread, NULL, look_up, &lookups[i]), 0);
        }
        for (int i = 0; i < N_THREADS; i++) {
            CHECK_INT(pthread_join(lookups[i].thread, NULL), 0);
            CHECK(lookups[i].found && lookups[i].found == lookups[0].found);
        }
    }
    (void)pthread_barrier_destroy(&barrier);
    CHECK_OK(shoal_world_close(world));
}

/* Names ------------------------------------------------------------------------------------------------ */

/* Tags may be made of what names are made of. */
TEST(every_name_is_of_one_group)
{
    static const char *const tags[] = {"",    "/",       "//",    "a",     "a/",        "/a",         "a/b",
                                       "0,1", "world",   ",",     "1",     " ranks ",   "2 ranks 00", "slots",
                                       "~",   "world/a", "mesh/", "0,1/a", "p2p/0/1/0", "\"%s%n\\"};
    static const int lists[][3] = {{0, 1, 2}, {1, 0, 2}, {1, 12, 2}, {11, 2, 1}};
    enum {
        N_TAGS = sizeof tags / sizeof *tags,
        N_LISTS = sizeof lists / sizeof *lists,
        N_ALL = N_TAGS * (2 * N_LISTS + 1)
    };
    shoal_world *world = open_fake(13, 1);
    REQUIRE(world);
    shoal_group *groups[N_ALL];
    int n = 0;
    for (int t = 0; t < N_TAGS; t++) {
        for (int l = 0; l < N_LISTS; l++) {
            groups[n++] = group_of_ranks(world, lists[l], 3, tags[t]);
            groups[n++] = group_of_ranks(world, lists[l], l == 0 ? 2 : (l == 1 ? 1 : 3), tags[t]);
        }
        char name[64];
        (void)snprintf(name, sizeof name, "world/%s", tags[t]);
        groups[n++] = group_of_name(world, name);
    }
    for (int i = 0; i < n; i++) {
        check_same(groups[i], groups[i]);
        for (int k = 0; k < i; k++) {
            CHECK((groups[i] == groups[k]) ==
                  (strcmp(shoal_group_name(groups[i]), shoal_group_name(groups[k])) == 0));
        }
    }
    CHECK_STRING(shoal_group_name(NULL), "");
    CHECK_OK(shoal_world_close(world));
}

/* What is not written as shoal_group_name writes it, and says the same. */
TEST(other_ways_to_write_a_name)
{
    shoal_world *world = open_fake(3, 1);
    REQUIRE(world);
    shoal_group *group = group_of_ranks(world, INTS(0, 1), 2, NULL);
    check_same(group_of_name(world, "0,1/"), group);
    check_same(group_of_name(world, "00,01"), group);
    check_same(group_of_name(world, "world/"), shoal_world_group(world));
    check_same(group_of_name(world, "0,1,2/"), shoal_world_group(world));
    check_same(group_of_name(world, "0,1,2/world"), group_of_name(world, "world/world"));
    CHECK_OK(shoal_world_close(world));
    world = open_fake(1, 0);
    REQUIRE(world);
    check_same(group_of_name(world, "0"), shoal_world_group(world));
    CHECK_STRING(shoal_group_name(group_of_name(world, "0/t")), "world/t");
    CHECK_OK(shoal_world_close(world));
}

/* first,...,last/tag */
static char *write_long_name(int first, int last, const char *tag)
{
    size_t bytes = 8 * (size_t)(last - first + 1) + strlen(tag) + 2;
    char *name = malloc(bytes);
    size_t used = 0;
    for (int rank = first; name && rank <= last; rank++) {
        used += (size_t)snprintf(name + used, bytes - used, "%s%d", rank > first ? "," : "", rank);
    }
    if (name) {
        (void)snprintf(name + used, bytes - used, "%s%s", tag[0] ? "/" : "", tag);
    }
    return name;
}

TEST(many_ranks_have_a_hash_for_a_name)
{
    enum {
        N_RANKS = 3000
    };
    static const char *const tags[] = {"", "t"};
    shoal_world *world = open_fake(N_RANKS, 1);
    shoal_world *other = open_fake(N_RANKS, 1);
    REQUIRE(world && other);
    CHECK_STRING(shoal_group_name(shoal_world_group(world)), "world");
    for (int i = 0; i < 2; i++) {
        char *text = write_long_name(1, N_RANKS - 1, tags[i]);
        char *all = write_long_name(0, N_RANKS - 1, tags[i]);
        REQUIRE(text && all);
        shoal_group *group = group_of_name(world, text);
        CHECK_INT(shoal_group_n_ranks(group), N_RANKS - 1);
        CHECK_INT(strncmp(shoal_group_name(group), "2999 ranks ", 11), 0);
        check_same(group_of_name(world, text), group);
        check_same(group_of_name(world, all), group_of_name(world, i ? "world/t" : "world"));
        /* A hash says nothing to who has not made the group. */
        CHECK(!group_of_name(other, shoal_group_name(group)));
        CHECK_ERROR_TEXT("\" is not a group of this rank yet, and the name has only a hash of its ranks");
        CHECK(group_of_name(other, text) != NULL);
        CHECK_STRING(shoal_group_name(group_of_name(other, text)), shoal_group_name(group));
        CHECK(group_of_name(other, shoal_group_name(group)) != NULL);
        free(text);
        free(all);
    }
    CHECK_OK(shoal_world_close(other));
    CHECK_OK(shoal_world_close(world));
}

/* Any text is either refused with a reason or a group that its own name finds again. */
TEST(random_names)
{
    static const char alphabet[] = "0123,,,/ world-+.\t\x80";
    struct test_random random = test_random_begin(1);
    shoal_world *world = open_fake(4, 1);
    REQUIRE(world);
    int n_good = 0;
    for (int i = 0; i < 20000; i++) {
        char name[10] = "";
        size_t length = test_random_below(&random, sizeof name);
        size_t n_kinds = i % 2 ? 8 : sizeof alphabet - 1;
        for (size_t k = 0; k < length; k++) {
            name[k] = alphabet[test_random_below(&random, n_kinds)];
        }
        shoal_group *group = group_of_name(world, name);
        if (group) {
            n_good++;
            check_same(group, group);
        } else {
            CHECK(shoal_error_text()[0]);
        }
    }
    CHECK(n_good > 100);
    CHECK_OK(shoal_world_close(world));
}

/* Memory ----------------------------------------------------------------------------------------------- */

static void ask_for_all(shoal_world *world, const shoal_mesh *mesh)
{
    CHECK(group_of_name(world, "0,2/x") != NULL);
    CHECK(group_of_name(world, "00,2/x") != NULL);
    CHECK(group_of_name(world, "0,1,2,3") != NULL);
    CHECK(group_of_name(world, "world") != NULL);
    CHECK(group_of_ranks(world, INTS(3, 0), 2, "x") != NULL);
    CHECK(group_of_lists(world, LISTS(INTS(1, 3), INTS(2, 0)), INTS(2, 2), 2, NULL) != NULL);
    CHECK(shoal_mesh_group(mesh, 1) != NULL);
    CHECK(!group_of_name(world, "1,3"));
}

/* Groups are kept, so that only the first question may cost memory. */
TEST(asking_again_and_again_costs_no_memory)
{
    shoal_world *world = open_fake(4, 0);
    REQUIRE(world);
    shoal_mesh *mesh = NULL;
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, INTS(2, 2), 2, NULL, &mesh));
    ask_for_all(world, mesh);
    size_t n_blocks = test_live_blocks();
    for (int i = 0; i < 10000; i++) {
        ask_for_all(world, mesh);
    }
    CHECK_INT(test_live_blocks(), n_blocks);
    shoal_mesh_free(mesh);
    CHECK_OK(shoal_world_close(world));
}

static shoal_status ask_with_little_memory(void *context)
{
    shoal_world *world = NULL;
    shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 3, .transport = "fake"};
    shoal_status status = shoal_world_open(&options, &world);
    if (status != SHOAL_OK) {
        return status;
    }
    status = shoal_scope_begin();
    if (status == SHOAL_OK) {
        (void)group_of_name(world, "2,0/x");
        (void)group_of_name(world, "world/x");
        (void)group_of_ranks(world, INTS(0, 1), 2, NULL);
        (void)group_of_lists(world, LISTS(INTS(1), INTS(0)), INTS(1, 1), 2, NULL);
        status = shoal_scope_end();
    }
    shoal_status closed = shoal_world_close(world);
    return status != SHOAL_OK ? status : closed;
}

TEST(allocations_may_fail)
{
    CHECK(test_sweep_allocations(ask_with_little_memory, NULL) > 0);
}
