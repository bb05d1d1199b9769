/* SPDX-License-Identifier: MIT */
/*
 * all_to_all through the staging halves, in so many rounds that ranks write where they have just read (docs/design/shm.md),
 * before and after other kinds that use the same halves in another way. Every element has a value of its own.
 */
#include <stdlib.h>
#include <string.h>

#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/group.h"

#define N_TURNS 12
/* Of one block, in elements of 4 bytes: up to some ten rounds. */
#define MOST ((size_t)200000)

struct exchange {
    shoal_group *group;
    int rank;
    int n_ranks;
    uint32_t *send;
    uint32_t *recv;
    size_t *send_counts;
    size_t *recv_counts;
};

static uint32_t value_of(int turn, int from, int to, size_t i)
{
    return (uint32_t)(i * 2654435761u) ^ (uint32_t)(turn << 20) ^ (uint32_t)(from << 8) ^ (uint32_t)to;
}

/* The same for everybody who asks; sometimes one has nothing. */
static size_t count_of(int turn, int from, int to)
{
    size_t count = MOST / (size_t)(1 + (turn * 7 + from * 3 + to * 5) % 11);
    return (turn + from + to) % 5 == 0 ? 0 : count;
}

static void check_block(const uint32_t *block, size_t count, int turn, int from, int to)
{
    for (size_t i = 0; i < count; i++) {
        if (block[i] != value_of(turn, from, to, i)) {
            test_failed(__FILE__, __LINE__, "turn %d: element %zu of %zu from rank %d to rank %d is wrong",
                        turn, i, count, from, to);
            return;
        }
    }
}

static void write_block(uint32_t *block, size_t count, int turn, int from, int to)
{
    for (size_t i = 0; i < count; i++) {
        block[i] = value_of(turn, from, to, i);
    }
}

static void exchange_equal(struct exchange *e, int turn)
{
    size_t count = MOST / (size_t)(1 + turn % 4);
    bool is_in_place = turn % 3 == 2;
    uint32_t *send = is_in_place ? e->recv : e->send;
    for (int to = 0; to < e->n_ranks; to++) {
        write_block(send + (size_t)to * count, count, turn, e->rank, to);
    }
    CHECK_OK(shoal_group_all_to_all(e->group, send, e->recv, count, SHOAL_U32));
    for (int from = 0; from < e->n_ranks; from++) {
        check_block(e->recv + (size_t)from * count, count, turn, from, e->rank);
    }
}

static void exchange_uneven(struct exchange *e, int turn)
{
    uint32_t *block = e->send;
    for (int peer = 0; peer < e->n_ranks; peer++) {
        e->send_counts[peer] = count_of(turn, e->rank, peer);
        e->recv_counts[peer] = count_of(turn, peer, e->rank);
        write_block(block, e->send_counts[peer], turn, e->rank, peer);
        block += e->send_counts[peer];
    }
    CHECK_OK(shoal_group_all_to_all_v(e->group, e->send, e->send_counts, e->recv, e->recv_counts, SHOAL_U32));
    block = e->recv;
    for (int from = 0; from < e->n_ranks; from++) {
        check_block(block, e->recv_counts[from], turn, from, e->rank);
        block += e->recv_counts[from];
    }
}

/* Everybody reads what everybody wrote into the halves: a late reader of the turn before would see it. */
static void gather(struct exchange *e, int turn)
{
    size_t count = MOST / (size_t)(1 + turn % 3);
    write_block(e->send, count, turn, e->rank, 0);
    CHECK_OK(shoal_group_all_gather(e->group, e->send, e->recv, count, SHOAL_U32));
    for (int from = 0; from < e->n_ranks; from++) {
        check_block(e->recv + (size_t)from * count, count, turn, from, 0);
    }
}

static void exchange_in_turns(struct rank *self)
{
    size_t n_ranks = (size_t)self->n_ranks;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    struct exchange e = {.group = shoal_world_group(world),
                         .rank = self->rank,
                         .n_ranks = self->n_ranks,
                         .send = malloc(n_ranks * MOST * sizeof(uint32_t)),
                         .recv = malloc(n_ranks * MOST * sizeof(uint32_t)),
                         .send_counts = malloc(n_ranks * sizeof(size_t)),
                         .recv_counts = malloc(n_ranks * sizeof(size_t))};
    REQUIRE(e.send && e.recv && e.send_counts && e.recv_counts);
    for (int turn = 0; turn < N_TURNS && !test_has_failed(); turn++) {
        static void (*const kinds[])(struct exchange *, int) = {exchange_equal,  exchange_equal, gather,
                                                                exchange_uneven, exchange_equal, gather};
        kinds[turn % 6](&e, turn);
    }
    free(e.send);
    free(e.recv);
    free(e.send_counts);
    free(e.recv_counts);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(two_ranks, 2)
{
    exchange_in_turns(self);
}

TEST_RANKS(three_ranks, 3)
{
    exchange_in_turns(self);
}

TEST_RANKS(five_ranks, 5)
{
    exchange_in_turns(self);
}
