/* SPDX-License-Identifier: MIT */
/*
 * Groups: which are the same, who may make them, and what the collectives say of wrong arguments. On the fake
 * transport, where a world of any size is one process.
 */
#include "comm/group/group.h"

#include <stdatomic.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "fixtures/descriptor_calls.h"
#include "harness/test.h"
#include "shoal/window.h"

static shoal_world *open_fake(int rank, int n_ranks)
{
    shoal_world *world = NULL;
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = n_ranks, .rank = rank, .transport = "fake"};
    CHECK_OK(shoal_world_open(&options, &world));
    return world;
}

static shoal_group *create(shoal_world *world, const int *ranks, int n_ranks, const char *tag)
{
    shoal_group *group = NULL;
    CHECK_OK(shoal_group_create(world, ranks, n_ranks, tag, &group));
    return group;
}

/* Identity --------------------------------------------------------------------------------------------- */

TEST(same_ranks_and_tag_are_the_same_group)
{
    shoal_world *world = open_fake(1, 4);
    REQUIRE(world);
    static const int forward[] = {0, 1};
    static const int backward[] = {1, 0};
    shoal_group *group = create(world, forward, 2, NULL);
    CHECK(create(world, forward, 2, "") == group);
    CHECK(create(world, forward, 2, "other") != group);
    shoal_group *reversed = create(world, backward, 2, NULL);
    CHECK(reversed != group);
    CHECK_INT(shoal_group_rank(group), 1);
    CHECK_INT(shoal_group_rank(reversed), 0);
    CHECK_INT(shoal_group_n_ranks(group), 2);
    CHECK_STRING(create(world, forward, 2, "other")->tag, "other");
    CHECK(shoal_group_world(group) == world);
    CHECK_STRING(shoal_group_name(group), "0,1");
    static const int all[] = {0, 1, 2, 3};
    CHECK(create(world, all, 4, NULL) == shoal_world_group(world));
    CHECK_OK(shoal_world_close(world));
}

TEST(a_closed_group_is_a_new_one)
{
    shoal_world *world = open_fake(0, 2);
    REQUIRE(world);
    static const int ranks[] = {1, 0};
    shoal_group *group = create(world, ranks, 2, "x");
    CHECK_OK(shoal_group_barrier(group));
    CHECK(create(world, ranks, 2, "x") == group);
    CHECK_OK(shoal_group_close(group));
    /* The handle is still known as closed. */
    CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("group [1,0] tag \"x\": it was closed");
    CHECK_STATUS(shoal_group_close(group), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_group_error(group), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_group_abort(group, "late"), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_group_set_timeout(group, 1), SHOAL_ERR_STATE);
    CHECK_INT(shoal_group_sequence(group), 0);
    shoal_group *again = create(world, ranks, 2, "x");
    CHECK(again != group);
    CHECK_INT(shoal_group_sequence(again), 0);
    CHECK_OK(shoal_group_barrier(again));
    CHECK_OK(shoal_world_close(world));
}

TEST(what_cannot_be_closed)
{
    shoal_world *world = open_fake(0, 2);
    REQUIRE(world);
    CHECK_OK(shoal_group_close(NULL));
    CHECK_STATUS(shoal_group_close(shoal_world_group(world)), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("the world's own group is closed with the world");
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

TEST(ranks_of_group_and_world)
{
    shoal_world *world = open_fake(5, 8);
    REQUIRE(world);
    static const int ranks[] = {7, 5, 2};
    shoal_group *group = create(world, ranks, 3, NULL);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(shoal_group_world_rank(group, i), ranks[i]);
        CHECK_INT(shoal_group_rank_of(group, ranks[i]), i);
    }
    CHECK_INT(shoal_group_world_rank(group, -1), -1);
    CHECK_INT(shoal_group_world_rank(group, 3), -1);
    CHECK_INT(shoal_group_rank_of(group, 0), -1);
    CHECK_INT(shoal_group_rank_of(group, 100), -1);
    CHECK_OK(shoal_world_close(world));
}

TEST(blocks_cut_the_world)
{
    shoal_world *world = open_fake(4, 6);
    REQUIRE(world);
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_group_create_blocks(world, 2, NULL, &group));
    CHECK_STRING(shoal_group_name(group), "4,5");
    REQUIRE_OK(shoal_group_create_blocks(world, 3, "t", &group));
    CHECK_STRING(shoal_group_name(group), "3,4,5/t");
    REQUIRE_OK(shoal_group_create_blocks(world, 6, NULL, &group));
    CHECK(group == shoal_world_group(world));
    static const int wrong[] = {0, -1, 4, 7, INT_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_STATUS(shoal_group_create_blocks(world, wrong[i], NULL, &group), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("a world of 6");
    }
    CHECK_OK(shoal_world_close(world));
}

/* Names of segments are kept short. */
TEST(long_lists_of_ranks_have_short_keys)
{
    enum {
        N_RANKS = 5000
    };
    shoal_world *world = open_fake(0, N_RANKS);
    REQUIRE(world);
    int *ranks = malloc(N_RANKS * sizeof *ranks);
    REQUIRE(ranks);
    for (int i = 0; i < N_RANKS; i++) {
        ranks[i] = i;
    }
    shoal_group *longer = create(world, ranks, N_RANKS, "t");
    CHECK(strlen(longer->key) < 200);
    CHECK(longer != create(world, ranks, N_RANKS - 1, "t"));
    ranks[N_RANKS - 1] = N_RANKS - 2;
    ranks[N_RANKS - 2] = N_RANKS - 1;
    shoal_group *swapped = create(world, ranks, N_RANKS, "t");
    CHECK(swapped != longer);
    CHECK(strcmp(swapped->key, longer->key) != 0);
    ranks[0] = 4000;
    CHECK_STATUS(shoal_group_create(world, ranks, N_RANKS, "t", &swapped), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("rank 4000 is twice in group [4000,1,2,");
    CHECK_ERROR_TEXT("...");
    free(ranks);
    CHECK_OK(shoal_world_close(world));
}

/* Bad input -------------------------------------------------------------------------------------------- */

struct bad_list {
    const int *ranks;
    int n_ranks;
    const char *words;
};

TEST(lists_that_are_no_group)
{
    const struct bad_list bad[] = {
        {NULL, 1, "ranks is NULL, n_ranks is 1"},
        {(const int[]){1}, 0, "n_ranks is 0"},
        {(const int[]){1}, -5, "n_ranks is -5"},
        {(const int[]){0, 1, 2, 3}, 4, "group_create: n_ranks is 4, but the world has 3 ranks"},
        {(const int[]){1, 3}, 2, "rank 3 of group [1,3] is outside of the world of 3 ranks"},
        {(const int[]){-1, 1}, 2, "rank -1 of group [-1,1]"},
        {(const int[]){1, 0, 1}, 3, "rank 1 is twice in group [1,0,1]"},
        {(const int[]){2, 0}, 2, "rank 1 is not in group [2,0]"},
    };
    shoal_world *world = open_fake(1, 3);
    REQUIRE(world);
    shoal_group *group = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_STATUS(shoal_group_create(world, bad[i].ranks, bad[i].n_ranks, NULL, &group),
                     SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(bad[i].words);
    }
    CHECK(!group);
    static const int own[] = {1};
    CHECK_STATUS(shoal_group_create(NULL, own, 1, NULL, &group), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("world is NULL");
    CHECK_STATUS(shoal_group_create(world, own, 1, NULL, NULL), SHOAL_ERR_INVALID);
    char tag[66];
    memset(tag, 'a', sizeof tag);
    tag[65] = '\0';
    CHECK_STATUS(shoal_group_create(world, own, 1, tag, &group), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("more than 64 characters");
    tag[64] = '\0';
    CHECK_OK(shoal_group_create(world, own, 1, tag, &group));
    CHECK_STATUS(shoal_group_create(world, own, 1, "a\nb", &group), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("character 1 (0x0a)");
    CHECK_OK(shoal_world_close(world));
}

TEST(timeouts_are_changed)
{
    shoal_world *world = open_fake(0, 2);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_set_timeout(group, 50));
    CHECK_DOUBLE(shoal_group_timeout(group), 50);
    CHECK_OK(shoal_group_set_timeout(group, 23));
    CHECK_DOUBLE(shoal_group_timeout(group), 23);
    static const double wrong[] = {0, -1, 1.1e9, 1e300, (double)INFINITY, -(double)INFINITY, (double)NAN};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char words[96];
        (void)snprintf(words, sizeof words,
                       "group_set_timeout: seconds is %g, more than 0 and at most 1e+09 expected", wrong[i]);
        CHECK_STATUS(shoal_group_set_timeout(group, wrong[i]), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(words);
    }
    CHECK_DOUBLE(shoal_group_timeout(group), 23);
    CHECK_STATUS(shoal_group_set_timeout(NULL, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("group_set_timeout: group is NULL");
    CHECK_OK(shoal_group_set_timeout(group, 1e9));
    CHECK_OK(shoal_group_barrier(group));
    CHECK_OK(shoal_world_close(world));
}

TEST(abort_fails_every_later_call)
{
    shoal_world *world = open_fake(1, 2);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    static const int ranks[] = {0, 1};
    shoal_group *other = create(world, ranks, 2, "other");
    CHECK_OK(shoal_group_error(group));
    CHECK_OK(shoal_group_abort(group, "had enough"));
    CHECK_OK(shoal_group_abort(group, "once more"));
    CHECK_STATUS(shoal_group_error(group), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("aborted by rank 1: had enough");
    CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("had enough");
    CHECK_OK(shoal_group_barrier(other));
    CHECK_OK(shoal_group_abort(other, NULL));
    CHECK_STATUS(shoal_group_error(other), SHOAL_ERR_CANCELLED);
    CHECK_STATUS(shoal_group_abort(NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_group_error(NULL), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_world_close(world));
}

/* Arguments of collectives ----------------------------------------------------------------------------- */

/* Each call is wrong in one way; none moves the sequence. */
TEST(wrong_arguments_change_nothing)
{
    shoal_world *world = open_fake(1, 4);
    REQUIRE(world);
    shoal_group *g = shoal_world_group(world);
    float a[64] = {0};
    float b[64] = {0};
    size_t counts[4] = {1, 2, 3, 4};
    size_t huge[4] = {1, SIZE_MAX / 16, SIZE_MAX / 12, 1};
    shoal_work *work = NULL;
#define EXPECT(call, expected, words) EXPECT_OF(shoal_group_##call, expected, words)
#define EXPECT_OF(call, expected, words) \
    do {                                 \
        CHECK_STATUS(call, expected);    \
        CHECK_ERROR_TEXT(words);         \
    } while (0)
    EXPECT(barrier(NULL), SHOAL_ERR_INVALID, "barrier: group is NULL");
    EXPECT(barrier_start(g, NULL), SHOAL_ERR_INVALID, "barrier: work_out is NULL");
    EXPECT(all_reduce(NULL, a, b, 4, SHOAL_F32, SHOAL_SUM), SHOAL_ERR_INVALID, "group is NULL");
    EXPECT(all_reduce(g, NULL, b, 4, SHOAL_F32, SHOAL_SUM), SHOAL_ERR_INVALID,
           "all_reduce: send is NULL, but has 16 bytes");
    EXPECT(all_reduce(g, a, NULL, 4, SHOAL_F32, SHOAL_SUM), SHOAL_ERR_INVALID, "recv is NULL");
    EXPECT(all_reduce(g, a, b, 4, (shoal_dtype)99, SHOAL_SUM), SHOAL_ERR_INVALID, "99 is not a dtype");
    EXPECT(all_reduce(g, a, b, 4, (shoal_dtype)0, SHOAL_SUM), SHOAL_ERR_INVALID, "0 is not a dtype");
    EXPECT(all_reduce(g, a, b, 4, SHOAL_F32, (shoal_reduce_op)77), SHOAL_ERR_INVALID,
           "77 is not a reduce operator");
    EXPECT(all_reduce(g, a, b, 4, SHOAL_F32, SHOAL_BAND), SHOAL_ERR_UNSUPPORTED,
           "all_reduce: reduce operator band");
    EXPECT(all_reduce(g, a, b, 4, SHOAL_F32, SHOAL_PREMUL_SUM), SHOAL_ERR_INVALID, "needs a factor");
    EXPECT_OF(group_all_reduce_premul(g, a, b, 4, SHOAL_I32, 2), SHOAL_ERR_UNSUPPORTED, "premul_sum");
    EXPECT(all_reduce(g, a, a + 1, 4, SHOAL_F32, SHOAL_SUM), SHOAL_ERR_INVALID,
           "all_reduce: send and recv overlap; they may only be the same buffer");
    EXPECT(all_reduce(g, a, b, SIZE_MAX / 2, SHOAL_F32, SHOAL_SUM), SHOAL_ERR_INVALID, "more than memory");
    EXPECT(all_gather(g, a, b, SIZE_MAX / 16, SHOAL_F32), SHOAL_ERR_INVALID, "more than memory");
    EXPECT(broadcast(g, a, 4, SHOAL_F32, -1), SHOAL_ERR_INVALID,
           "broadcast: root -1 is outside of the group of 4");
    EXPECT(broadcast(g, a, 4, SHOAL_F32, 4), SHOAL_ERR_INVALID, "root 4");
    EXPECT(broadcast(g, NULL, 4, SHOAL_F32, 0), SHOAL_ERR_INVALID, "NULL");
    EXPECT(reduce(g, a, NULL, 4, SHOAL_F32, SHOAL_SUM, 1), SHOAL_ERR_INVALID, "recv is NULL");
    EXPECT(reduce(g, a, b, 4, SHOAL_F32, SHOAL_SUM, 9), SHOAL_ERR_INVALID, "root 9");
    EXPECT(all_gather(g, a, a, 4, SHOAL_F32), SHOAL_ERR_INVALID, "this rank's block of recv");
    EXPECT(reduce_scatter(g, a, a, 4, SHOAL_F32, SHOAL_SUM), SHOAL_ERR_INVALID, "this rank's block of send");
    EXPECT(all_to_all(g, a, a + 1, 4, SHOAL_F32), SHOAL_ERR_INVALID, "overlap");
    EXPECT(gather(g, a, NULL, 4, SHOAL_F32, 1), SHOAL_ERR_INVALID, "recv is NULL, but has 64 bytes");
    EXPECT(scatter(g, NULL, b, 4, SHOAL_F32, 1), SHOAL_ERR_INVALID, "send is NULL, but has 64 bytes");
    EXPECT(all_gather_v(g, a, b, NULL, SHOAL_F32), SHOAL_ERR_INVALID, "all_gather_v: counts is NULL");
    EXPECT(all_gather_v(g, a, a, counts, SHOAL_F32), SHOAL_ERR_INVALID,
           "all_gather_v: send and recv overlap");
    EXPECT(all_gather_v(g, a, b, huge, SHOAL_F32), SHOAL_ERR_INVALID, "counts[2]");
    EXPECT(reduce_scatter_v(g, a, b, NULL, SHOAL_F32, SHOAL_SUM), SHOAL_ERR_INVALID, "counts is NULL");
    EXPECT(all_to_all_v(g, a, NULL, b, counts, SHOAL_F32), SHOAL_ERR_INVALID, "send_counts is NULL");
    EXPECT(all_to_all_v(g, a, counts, b, NULL, SHOAL_F32), SHOAL_ERR_INVALID, "recv_counts is NULL");
    EXPECT(all_to_all_v(g, a, counts, a, counts, SHOAL_F32), SHOAL_ERR_INVALID,
           "all_to_all_v: send and recv overlap");
    EXPECT_OF(group_all_reduce_list(g, NULL, 1, SHOAL_F32, SHOAL_SUM), SHOAL_ERR_INVALID,
              "the list of parts is empty");
    EXPECT_OF(group_all_reduce_list(g, (shoal_part[]){{a, b, 1, SHOAL_CPU}}, 0, SHOAL_F32, SHOAL_SUM),
              SHOAL_ERR_INVALID, "n_parts is 0");
    EXPECT_OF(group_all_reduce_list(g, (shoal_part[]){{a, b, 1, SHOAL_CPU}, {NULL, b + 1, 1, SHOAL_CPU}}, 2,
                                    SHOAL_F32, SHOAL_SUM),
              SHOAL_ERR_INVALID, "part 1: all_reduce: send is NULL");
    EXPECT_OF(group_all_gather_list(g, (shoal_part[]){{NULL, b, 1, SHOAL_CPU}}, 1, SHOAL_F32),
              SHOAL_ERR_INVALID, "part 0: all_gather: send is NULL");
    shoal_collective call = SHOAL_COLLECTIVE_BROADCAST(b, 1, SHOAL_F32, 8);
    EXPECT(collective_start(g, &call, &work), SHOAL_ERR_INVALID, "root 8");
    EXPECT(collective_start(g, &call, NULL), SHOAL_ERR_INVALID, "root 8");
    call.root = 0;
    EXPECT(collective_start(g, &call, NULL), SHOAL_ERR_INVALID,
           "work_out is NULL; only shoal_group_collective_start with on_done or release needs none");
    EXPECT(collective(NULL, &call), SHOAL_ERR_INVALID, "group is NULL");
    EXPECT(collective(g, NULL), SHOAL_ERR_INVALID, "shoal_collective");
    EXPECT(gather_v(g, a, b, NULL, SHOAL_F32, 0), SHOAL_ERR_INVALID, "gather_v: counts is NULL");
    EXPECT(gather_v(g, a, NULL, counts, SHOAL_F32, 1), SHOAL_ERR_INVALID, "recv is NULL, but has 40 bytes");
    EXPECT(scatter_v(g, NULL, b, counts, SHOAL_F32, 1), SHOAL_ERR_INVALID, "send is NULL, but has 40 bytes");
    EXPECT(scatter_v(g, a, b, counts, SHOAL_F32, -2), SHOAL_ERR_INVALID, "root -2");
    /* What one part writes, no other may touch. */
    EXPECT_OF(group_all_reduce_list(g, (shoal_part[]){{a, a, 4, SHOAL_CPU}, {a, a, 4, SHOAL_CPU}}, 2,
                                    SHOAL_F32, SHOAL_SUM),
              SHOAL_ERR_INVALID, "parts 0 and 1 overlap");
    EXPECT_OF(
        group_all_reduce_list(
            g,
            (shoal_part[]){{a + 8, a + 8, 4, SHOAL_CPU}, {b, b, 4, SHOAL_CPU}, {a + 5, a + 5, 4, SHOAL_CPU}},
            3, SHOAL_F32, SHOAL_SUM),
        SHOAL_ERR_INVALID, "parts 0 and 2 overlap");
    EXPECT_OF(group_all_reduce_list(g, (shoal_part[]){{a, b, 4, SHOAL_CPU}, {b + 3, a + 8, 4, SHOAL_CPU}}, 2,
                                    SHOAL_F32, SHOAL_SUM),
              SHOAL_ERR_INVALID, "parts 0 and 1 overlap");
    EXPECT_OF(group_reduce_scatter_list(g, (shoal_part[]){{a, a + 8, 8, SHOAL_CPU}, {a + 6, b, 4, SHOAL_CPU}},
                                        2, SHOAL_F32, SHOAL_SUM),
              SHOAL_ERR_INVALID, "parts 0 and 1 overlap");
#undef EXPECT
#undef EXPECT_OF
    CHECK(!work);
    CHECK_INT(shoal_group_sequence(g), 0);
    CHECK_OK(shoal_world_close(world));
}

TEST(transfers_that_overlap)
{
    shoal_world *world = open_fake(1, 4);
    REQUIRE(world);
    shoal_group *g = shoal_world_group(world);
    float a[16] = {0};
    shoal_transfer transfers[] = {{SHOAL_SEND, a, 4, SHOAL_F32, 0, 0},
                                  {SHOAL_SEND, a + 2, 4, SHOAL_F32, 2, 0},
                                  {SHOAL_RECV, a + 6, 4, SHOAL_F32, 0, 0}};
    CHECK_OK(shoal_group_transfer(g, transfers, 3));
    transfers[2].buffer = a + 5;
    CHECK_STATUS(shoal_group_transfer(g, transfers, 3), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("transfers 1 and 2 overlap");
    transfers[1] = (shoal_transfer){SHOAL_RECV, a + 5, 4, SHOAL_F32, 2, 0};
    CHECK_STATUS(shoal_group_transfer(g, transfers, 3), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("transfers 1 and 2 overlap");
    CHECK_OK(shoal_world_close(world));
}

/* Parts that only read the same, or touch, do not disturb each other; many parts are checked like few. */
TEST(lists_that_share_what_they_read)
{
    enum {
        N_MANY = 100
    };
    shoal_world *world = open_fake(1, 4);
    REQUIRE(world);
    shoal_group *g = shoal_world_group(world);
    float a[4 * N_MANY] = {0};
    float b[4 * N_MANY] = {0};
    shoal_part parts[N_MANY];
    CHECK_OK(group_all_reduce_list(
        g, (shoal_part[]){{a, b, 4, SHOAL_CPU}, {a, b + 4, 4, SHOAL_CPU}, {a + 2, b + 8, 4, SHOAL_CPU}}, 3,
        SHOAL_F32, SHOAL_SUM));
    CHECK_OK(group_all_reduce_list(
        g, (shoal_part[]){{b, b, 0, SHOAL_CPU}, {b, b, 4, SHOAL_CPU}, {b + 4, b + 4, 4, SHOAL_CPU}}, 3,
        SHOAL_F32, SHOAL_SUM));
    for (size_t i = 0; i < N_MANY; i++) { /* backwards, so that they have to be sorted */
        float *place = a + 4 * (N_MANY - 1 - i);
        parts[i] = (shoal_part){.send = place, .recv = place, .count = 4};
    }
    CHECK_OK(group_all_reduce_list(g, parts, N_MANY, SHOAL_F32, SHOAL_SUM));
    parts[N_MANY - 1].count = 5; /* the lowest reaches into the next */
    CHECK_STATUS(group_all_reduce_list(g, parts, N_MANY, SHOAL_F32, SHOAL_SUM), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("parts 98 and 99 overlap");
    CHECK_OK(shoal_world_close(world));
}

/* Where send and recv may coincide, and what may be NULL. */
TEST(allowed_arguments_are_taken)
{
    shoal_world *world = open_fake(2, 4);
    REQUIRE(world);
    shoal_group *g = shoal_world_group(world);
    float a[64] = {0};
    float b[64] = {0};
    size_t counts[4] = {1, 2, 3, 4};
    size_t none[4] = {0};
    shoal_part parts[40];
    for (int i = 0; i < 40; i++) {
        parts[i] = (shoal_part){NULL, &b[i], 1, SHOAL_CPU};
    }
    CHECK_OK(shoal_group_all_reduce(g, a, a, 64, SHOAL_F32, SHOAL_AVG));
    CHECK_OK(group_all_reduce_premul(g, a, a, 64, SHOAL_F32, 0.5));
    CHECK_OK(group_reduce_scatter_premul(g, a, b, 16, SHOAL_F32, 0.5));
    CHECK_OK(shoal_group_all_reduce(g, a, a + 32, 32, SHOAL_F32, SHOAL_SUM));
    CHECK_OK(shoal_group_all_reduce(g, NULL, NULL, 0, SHOAL_F32, SHOAL_SUM));
    CHECK_OK(shoal_group_reduce(g, a, NULL, 4, SHOAL_F32, SHOAL_SUM, 1));
    CHECK_OK(shoal_group_reduce(g, a, a, 4, SHOAL_F32, SHOAL_SUM, 2));
    CHECK_OK(shoal_group_all_gather(g, b + 2 * 16, b, 16, SHOAL_F32));
    CHECK_OK(shoal_group_reduce_scatter(g, b, b + 2 * 16, 16, SHOAL_F32, SHOAL_MAX));
    CHECK_OK(shoal_group_all_to_all(g, b, b, 16, SHOAL_F32));
    CHECK_OK(shoal_group_gather(g, a, NULL, 16, SHOAL_F32, 3));
    CHECK_OK(shoal_group_gather(g, b + 2 * 16, b, 16, SHOAL_F32, 2));
    CHECK_OK(shoal_group_scatter(g, NULL, a, 16, SHOAL_F32, 3));
    CHECK_OK(shoal_group_scatter(g, b, b + 2 * 16, 16, SHOAL_F32, 2));
    CHECK_OK(shoal_group_all_gather_v(g, b + 3, b, counts, SHOAL_F32));
    CHECK_OK(shoal_group_all_gather_v(g, NULL, NULL, none, SHOAL_F32));
    CHECK_OK(shoal_group_reduce_scatter_v(g, b, b + 3, counts, SHOAL_F32, SHOAL_SUM));
    CHECK_OK(shoal_group_all_to_all_v(g, a, counts, b, none, SHOAL_F32));
    CHECK_OK(group_broadcast_list(g, parts, 40, SHOAL_F32, 0));
    CHECK_OK(group_all_gather_list(g, (shoal_part[]){{a, b, 2, SHOAL_CPU}, {a, b + 8, 1, SHOAL_CPU}}, 2,
                                   SHOAL_F32));
    CHECK_OK(group_reduce_scatter_list(g, (shoal_part[]){{a, b, 2, SHOAL_CPU}}, 1, SHOAL_F32, SHOAL_SUM));
    CHECK_INT(shoal_group_sequence(g), 21);
    CHECK_OK(shoal_world_close(world));
}

TEST(null_groups_have_no_ranks)
{
    CHECK_INT(shoal_group_rank(NULL), -1);
    CHECK_INT(shoal_group_n_ranks(NULL), 0);
    CHECK_STRING(shoal_group_name(NULL), "");
    CHECK(!shoal_group_world(NULL));
    CHECK_INT(shoal_group_rank_of(NULL, 0), -1);
    CHECK_INT(shoal_group_world_rank(NULL, 0), -1);
    CHECK_INT(shoal_group_sequence(NULL), 0);
    CHECK(!shoal_work_test(NULL));
    CHECK_STATUS(shoal_work_wait(NULL, 1), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("work_wait: work is NULL");
    shoal_work_free(NULL);
}

static void count_end(void *context, shoal_status status)
{
    (void)status;
    atomic_fetch_add((_Atomic int *)context, 1);
}

static shoal_status make_groups(void *context)
{
    shoal_world *world = NULL;
    shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 3, .transport = "fake"};
    shoal_status status = shoal_world_open(&options, &world);
    if (status != SHOAL_OK) {
        return status;
    }
    int n_asked = 0;
    _Atomic int n_ends = 0;
    shoal_group *group = NULL;
    shoal_work *work = NULL;
    status = shoal_group_create_blocks(world, 1, "tag", &group);
    if (status == SHOAL_OK) {
        status = shoal_group_barrier_start(group, &work);
    }
    if (status == SHOAL_OK) {
        status = shoal_work_on_done(work, count_end, &n_ends);
        n_asked += status == SHOAL_OK;
    }
    shoal_work_free(work);
    shoal_collective call = SHOAL_COLLECTIVE_BARRIER;
    call.on_done = count_end;
    call.context = &n_ends;
    if (status == SHOAL_OK) {
        status = shoal_group_collective_start(group, &call, NULL);
        n_asked += status == SHOAL_OK;
    }
    if (status == SHOAL_OK) {
        status = shoal_group_close(group);
    }
    shoal_status closed = shoal_world_close(world);
    CHECK_INT(atomic_load(&n_ends), n_asked);
    return status != SHOAL_OK ? status : closed;
}

TEST(allocations_may_fail)
{
    CHECK(test_sweep_allocations(make_groups, NULL) > 0);
}
