/* SPDX-License-Identifier: MIT */
/* Symmetric memory on 1 to 4 ranks: who sees what, who frees when, and what is refused by all together. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/lane/handles.h"
#include "fixtures/rank_world.h"
#include "fixtures/world_allocations.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/window.h"
#include "sharedmem/segment.h"

static const size_t sizes[] = {1, 64, 4096, 4097, 100000};
#define N_SIZES (sizeof sizes / sizeof sizes[0])

static unsigned char byte_of(int rank, size_t i)
{
    return (unsigned char)(1 + (size_t)rank * 31 + i % 101);
}

/* Everybody fills its own block; all see all; then everybody writes into its neighbour's. */
static void share_blocks(shoal_group *group, size_t bytes)
{
    shoal_symmetric *symmetric = NULL;
    REQUIRE_OK(shoal_symmetric_create(group, bytes, &symmetric));
    int rank = shoal_group_rank(group);
    int n_ranks = shoal_group_n_ranks(group);
    unsigned char *own = shoal_symmetric_data(symmetric);
    CHECK_INT(shoal_symmetric_bytes(symmetric), bytes);
    CHECK_INT((uintptr_t)own % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
    CHECK(shoal_symmetric_peer(symmetric, rank) == own);
    CHECK(shoal_symmetric_peer(symmetric, -1) == NULL);
    CHECK(shoal_symmetric_peer(symmetric, n_ranks) == NULL);
    CHECK_ERROR_TEXT("is outside of the group of");
    for (size_t i = 0; i < bytes; i++) {
        if (own[i] != 0) {
            CHECK_INT(own[i], 0);
            break;
        }
        own[i] = byte_of(rank, i);
    }
    CHECK_OK(shoal_group_barrier(group));
    for (int peer = 0; peer < n_ranks; peer++) {
        const unsigned char *block = shoal_symmetric_peer(symmetric, peer);
        size_t i = 0;
        while (i < bytes && block[i] == byte_of(peer, i)) {
            i++;
        }
        CHECK_INT(i, bytes);
    }
    CHECK_OK(shoal_group_barrier(group));
    unsigned char *next = shoal_symmetric_peer(symmetric, (rank + 1) % n_ranks);
    next[bytes - 1] = (unsigned char)(200 + rank);
    CHECK_OK(shoal_group_barrier(group));
    CHECK_INT(own[bytes - 1], 200 + (rank + n_ranks - 1) % n_ranks);
    /* Free is local: a peer may still look at this rank's block, which it has mapped itself. */
    if (rank != 0) {
        CHECK_OK(shoal_group_barrier(group));
    }
    shoal_symmetric_free(symmetric);
    if (rank == 0) {
        CHECK_OK(shoal_group_barrier(group));
    }
}

static void share_with_all(struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (size_t i = 0; i < N_SIZES && !test_has_failed(); i++) {
        share_blocks(shoal_world_group(world), sizes[i]);
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(one_rank_shares_with_itself, 1)
{
    share_with_all(self);
}

TEST_RANKS(two_ranks_share, 2)
{
    share_with_all(self);
}

TEST_RANKS(three_ranks_share, 3)
{
    share_with_all(self);
}

TEST_RANKS(four_ranks_share, 4)
{
    share_with_all(self);
}

/* The order of the group counts, not that of the world; groups that overlap do not disturb each other. */
TEST_RANKS(groups_share_apart, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    const int pairs[2][2] = {{2, 0}, {3, 1}};
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_group_create(world, pairs[self->rank % 2], 2, "pair", &group));
    shoal_symmetric *mine = NULL;
    shoal_symmetric *all = NULL;
    REQUIRE_OK(shoal_symmetric_create(group, sizeof(int), &mine));
    REQUIRE_OK(shoal_symmetric_create(shoal_world_group(world), sizeof(int), &all));
    *(int *)shoal_symmetric_data(mine) = self->rank;
    *(int *)shoal_symmetric_data(all) = 10 + self->rank;
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    for (int i = 0; i < 2; i++) {
        CHECK_INT(*(int *)shoal_symmetric_peer(mine, i), pairs[self->rank % 2][i]);
    }
    for (int i = 0; i < 4; i++) {
        CHECK_INT(*(int *)shoal_symmetric_peer(all, i), 10 + i);
    }
    share_blocks(group, 5000);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    shoal_symmetric_free(mine);
    /* The other one is left to the world. */
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(collectives_take_symmetric_buffers, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    const size_t counts[] = {1, 1000, 70000};
    shoal_symmetric *send = NULL;
    shoal_symmetric *recv = NULL;
    REQUIRE_OK(shoal_symmetric_create(group, 70000 * sizeof(float), &send));
    REQUIRE_OK(shoal_symmetric_create(group, 70000 * sizeof(float), &recv));
    float *in = shoal_symmetric_data(send);
    float *out = shoal_symmetric_data(recv);
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < counts[k]; i++) {
            in[i] = (float)(i % 1000) * (float)(self->rank + 1);
        }
        CHECK_OK(shoal_group_all_reduce(group, in, out, counts[k], SHOAL_F32, SHOAL_SUM));
        size_t i = 0;
        while (i < counts[k] && out[i] == (float)(i % 1000) * 6) {
            i++;
        }
        CHECK_INT(i, counts[k]);
        /* In place. */
        CHECK_OK(shoal_group_all_reduce(group, in, in, counts[k], SHOAL_F32, SHOAL_SUM));
        CHECK_BYTES(in, out, counts[k] * sizeof(float));
    }
    CHECK_OK(shoal_group_barrier(group));
    shoal_symmetric_free(send);
    shoal_symmetric_free(recv);
    CHECK_OK(shoal_world_close(world));
}

enum {
    N_PARTS = 4
};

static const size_t part_counts[N_PARTS] = {3000, 0, 7, 20000};

static float part_value(int rank, size_t part, size_t i)
{
    return (float)((rank + 1) * (int)(part + 2)) + (float)(i % 500);
}

/* Parts one after the other, each rank beginning with another one. */
static void scatter_parts(shoal_group *group, float *memory, float *results)
{
    int rank = shoal_group_rank(group);
    int n_ranks = shoal_group_n_ranks(group);
    shoal_part parts[N_PARTS] = {{0}};
    for (size_t k = 0; k < N_PARTS; k++) {
        size_t part = (k + (size_t)rank) % N_PARTS;
        parts[part] = (shoal_part){memory, results, part_counts[part], SHOAL_CPU};
        for (size_t i = 0; i < part_counts[part] * (size_t)n_ranks; i++) {
            memory[i] = part_value(rank, part, i);
        }
        memory += part_counts[part] * (size_t)n_ranks;
        results += part_counts[part];
    }
    const shoal_collective call = {.struct_size = sizeof call,
                                   .kind = SHOAL_KIND_REDUCE_SCATTER,
                                   .dtype = SHOAL_F32,
                                   .reduce = SHOAL_SUM,
                                   .parts = parts,
                                   .n_parts = N_PARTS};
    CHECK_OK(shoal_group_collective(group, &call));
    for (size_t part = 0; part < N_PARTS; part++) {
        const float *found = parts[part].recv;
        for (size_t i = 0; i < part_counts[part]; i++) {
            float wanted = 0.0f;
            for (int peer = 0; peer < n_ranks; peer++) {
                wanted += part_value(peer, part, i + (size_t)rank * part_counts[part]);
            }
            if (found[i] != wanted) {
                CHECK_INT(found[i], wanted);
                return;
            }
        }
    }
}

/* Peers read a list's parts where each rank has them; one rank with ordinary memory is enough for all to take another way. */
TEST_RANKS(lists_take_symmetric_buffers, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    const size_t bytes = (size_t)23007 * 3 * sizeof(float);
    shoal_symmetric *symmetric = NULL;
    float *ordinary = malloc(bytes);
    float *results = malloc(bytes);
    REQUIRE(ordinary && results);
    REQUIRE_OK(shoal_symmetric_create(group, bytes, &symmetric));
    for (int round = 0; round < 20; round++) {
        bool is_ordinary = round % 5 == 4 && self->rank == 1;
        scatter_parts(group, is_ordinary ? ordinary : shoal_symmetric_data(symmetric), results);
    }
    CHECK_OK(shoal_group_barrier(group));
    shoal_symmetric_free(symmetric);
    free(ordinary);
    free(results);
    CHECK_OK(shoal_world_close(world));
}

/* Refused ---------------------------------------------------------------------------------------------- */

TEST_RANKS(different_sizes_are_refused_everywhere, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    shoal_symmetric *symmetric = NULL;
    CHECK_STATUS(shoal_symmetric_create(group, self->rank == 2 ? 4097 : 4096, &symmetric), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("symmetric_create: rank 0 asked for 4096 bytes, rank 2 for 4097");
    CHECK(symmetric == NULL);
    /* Nothing was broken by it. */
    CHECK_OK(shoal_group_error(group));
    share_blocks(group, 100);
    shoal_window *window = NULL;
    shoal_status status = self->rank == 1 ? shoal_window_create(group, 4096, &window)
                                          : shoal_symmetric_create(group, 4096, &symmetric);
    CHECK_STATUS(status, SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("rank 0 called symmetric_create, rank 1 called window_create");
    share_blocks(group, 100);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(too_much_is_refused_everywhere, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    shoal_symmetric *symmetric = NULL;
    shoal_window *window = NULL;
    CHECK_STATUS(shoal_symmetric_create(group, (size_t)1 << 50, &symmetric), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT("2251799813685248 bytes");
    CHECK_STATUS(shoal_symmetric_create(group, SIZE_MAX, &symmetric), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT("18446744073709551615 bytes for each of 2 ranks are more than memory can hold");
    CHECK_STATUS(shoal_window_create(group, (size_t)1 << 50, &window), SHOAL_ERR_NO_MEMORY);
    CHECK_STATUS(shoal_window_create(group, SIZE_MAX, &window), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT("18446744073709551615 bytes are more than memory can hold");
    share_blocks(group, 100);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(wrong_arguments_are_refused, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_symmetric *symmetric = NULL;
    CHECK_STATUS(shoal_symmetric_create(NULL, 8, &symmetric), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("group is NULL");
    CHECK_STATUS(shoal_symmetric_create(shoal_world_group(world), 8, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("symmetric_out is NULL");
    CHECK(shoal_symmetric_data(NULL) == NULL);
    CHECK(shoal_symmetric_peer(NULL, 0) == NULL);
    CHECK_INT(shoal_symmetric_bytes(NULL), 0);
    shoal_symmetric_free(NULL);
    /* Nothing at all is something: a block that nobody may touch. */
    REQUIRE_OK(shoal_symmetric_create(shoal_world_group(world), 0, &symmetric));
    CHECK(shoal_symmetric_data(symmetric) != NULL);
    CHECK_INT(shoal_symmetric_bytes(symmetric), 0);
    shoal_symmetric_free(symmetric);
    CHECK_OK(shoal_world_close(world));
}

/* Lifetimes -------------------------------------------------------------------------------------------- */

TEST_RANKS(what_is_freed_is_gone, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    share_blocks(group, 4096);
    test_barrier(self);
    size_t before = segment_mapped_bytes();
    test_barrier(self);
    for (int i = 0; i < 50 && !test_has_failed(); i++) {
        share_blocks(group, 4096 * (size_t)(1 + i % 3));
    }
    test_barrier(self);
    CHECK_INT(segment_mapped_bytes(), before);
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}

/* Each rank frees in an order of its own, and some is left. */
TEST_RANKS(any_order_of_freeing, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_symmetric *all[6] = {NULL};
    for (int i = 0; i < 6; i++) {
        REQUIRE_OK(shoal_symmetric_create(shoal_world_group(world), 64, &all[i]));
        *(int *)shoal_symmetric_data(all[i]) = i * 10 + self->rank;
    }
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    for (int i = 0; i < 5; i++) {
        int which = (i * (self->rank % 2 ? 1 : 5) + self->rank) % 6;
        int peer = (self->rank + i) % 4;
        CHECK_INT(*(int *)shoal_symmetric_peer(all[which], peer), which * 10 + peer);
        shoal_symmetric_free(all[which]);
    }
    CHECK_OK(shoal_world_close(world));
}

/* In two steps ------------------------------------------------------------------------------------------- */

/* A number that all members know. */
static uint32_t agree_on_number(shoal_group *group)
{
    uint32_t number = shoal_group_rank(group) == 0 ? symmetric_propose(group) : 0;
    CHECK_OK(shoal_group_broadcast(group, &number, 1, SHOAL_I32, 0));
    return number;
}

static void check_sum(shoal_group *group, float *data)
{
    int n_ranks = shoal_group_n_ranks(group);
    data[0] = (float)(1 + shoal_group_rank(group));
    CHECK_OK(shoal_group_all_reduce(group, data, data, 1, SHOAL_F32, SHOAL_SUM));
    CHECK_DOUBLE((double)data[0], n_ranks * (n_ranks + 1) / 2.0);
}

/* Members open it one after the other, the last one much later; what was written before is still there. */
TEST_RANKS(opened_alone_and_shared_together, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_symmetric *symmetric = NULL;
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    uint32_t number = agree_on_number(group);
    for (int turn = 0; turn < self->n_ranks; turn++) {
        if (turn == (self->rank + 1) % self->n_ranks) {
            REQUIRE_OK(symmetric_open_if_possible(group, number, 8192, &symmetric));
            ((float *)shoal_symmetric_data(symmetric))[7] = (float)self->rank;
        }
        test_barrier(self);
    }
    float *data = shoal_symmetric_data(symmetric);
    check_sum(group, data); /* ordinary memory */
    CHECK(!group_has_symmetric(group, data, 8192));
    CHECK_OK(symmetric_share(group, number, 8192, symmetric, SHOAL_OK));
    CHECK(group_has_symmetric(group, data, 8192));
    check_sum(group, data);
    for (int peer = 0; peer < self->n_ranks; peer++) {
        CHECK_DOUBLE((double)((const float *)shoal_symmetric_peer(symmetric, peer))[7], peer);
    }
    test_barrier(self);
    symmetric_discard(group, symmetric);
    CHECK_OK(shoal_world_close(world));
}

/* One without memory: all hear of it. Afterwards the number can be used again. */
TEST_RANKS(one_that_could_not_open_fails_all, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    uint32_t number = agree_on_number(group);
    for (int failing = 0; failing <= self->n_ranks; failing++) {
        shoal_symmetric *symmetric = NULL;
        shoal_status mine = failing == self->rank
                                ? error_set(SHOAL_ERR_NO_MEMORY, "full")
                                : symmetric_open_if_possible(group, number, 100, &symmetric);
        shoal_status status = symmetric_share(group, number, 100, symmetric, mine);
        CHECK_STATUS(status, failing < self->n_ranks ? SHOAL_ERR_NO_MEMORY : SHOAL_OK);
        if (failing < self->n_ranks) {
            char text[64];
            (void)snprintf(text, sizeof text, "symmetric_share: rank %d: full", failing);
            CHECK_ERROR_TEXT(text);
        }
        symmetric_discard(group, symmetric);
        test_barrier(self);
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(other_sizes_are_not_shared, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_symmetric *symmetric = NULL;
    size_t bytes = self->rank == 0 ? 100 : 101; /* as many pages */
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    uint32_t number = agree_on_number(group);
    CHECK_OK(symmetric_open_if_possible(group, number, bytes, &symmetric));
    CHECK_STATUS(symmetric_share(group, number, bytes, symmetric, SHOAL_OK), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("symmetric_share: rank 0 asked for 100 bytes, rank 1 for 101");
    symmetric_discard(group, symmetric);
    CHECK_OK(shoal_group_barrier(group));
    CHECK_OK(shoal_world_close(world));
}

TEST(without_peers_all_blocks_are_ones_own)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 16, .rank = 3, .key = "fake", .transport = "fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_symmetric *symmetric = NULL;
    REQUIRE_OK(shoal_symmetric_create(shoal_world_group(world), 10000, &symmetric));
    char *own = shoal_symmetric_data(symmetric);
    CHECK(shoal_symmetric_peer(symmetric, 0) == own);
    CHECK(shoal_symmetric_peer(symmetric, 15) == own);
    CHECK(shoal_symmetric_peer(symmetric, 16) == NULL);
    CHECK_INT(own[9999], 0);
    memset(own, 1, 10000);
    shoal_symmetric_free(symmetric);
    CHECK_STATUS(shoal_symmetric_create(shoal_world_group(world), SIZE_MAX, &symmetric), SHOAL_ERR_NO_MEMORY);
    REQUIRE_OK(shoal_symmetric_create(shoal_world_group(world), 10, &symmetric));
    CHECK_OK(shoal_world_close(world));
}

static shoal_status create_and_free(void *context)
{
    shoal_symmetric *symmetric = NULL;
    shoal_status status = shoal_symmetric_create(context, 5000, &symmetric);
    if (status == SHOAL_OK) {
        shoal_symmetric_free(symmetric);
    }
    return status;
}

TEST(allocations_may_fail)
{
    check_allocations_alone(create_and_free);
}

TEST_RANKS(allocations_may_fail_with_a_server, 1)
{
    check_allocations_with_server(self, create_and_free);
}
