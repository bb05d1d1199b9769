/* SPDX-License-Identifier: MIT */
/* Blocks against the plain meaning of the calls: every element of every block, cut anywhere. */
#include "transport/blocks.h"

#include <stdlib.h>
#include <string.h>

#include "harness/test.h"

#define MAX_PIECES 4
#define MAX_RANKS 5

struct example {
    struct collective collective;
    struct collective_piece pieces[MAX_PIECES];
    size_t counts[MAX_RANKS];
    uint16_t *buffers[MAX_PIECES]; /* send and receive buffer are one here; every element is unique */
    int n_ranks;
};

static const enum collective_kind kinds[] = {
    COLLECTIVE_BROADCAST,      COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE, COLLECTIVE_ALL_GATHER,
    COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALL_TO_ALL, COLLECTIVE_GATHER, COLLECTIVE_SCATTER,
};

/* From the table in blocks.h. */
static bool is_per_rank(enum collective_kind kind, enum block_side side)
{
    switch (kind) {
    case COLLECTIVE_ALL_TO_ALL:
        return true;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER:
        return side == BLOCK_RECV;
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_SCATTER:
        return side == BLOCK_SEND;
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_WINDOW_GATHER:
    case COLLECTIVE_COUNT:
        break;
    }
    return false;
}

static void make_example(struct example *example, struct test_random *random)
{
    memset(example, 0, sizeof *example);
    struct collective *collective = &example->collective;
    collective->kind = kinds[test_random_below(random, sizeof kinds / sizeof kinds[0])];
    collective->dtype = SHOAL_U16;
    collective->pieces = example->pieces;
    example->n_ranks = 1 + (int)test_random_below(random, MAX_RANKS);
    bool has_counts = test_random_below(random, 3) == 0;
    collective->n_pieces = has_counts ? 1 : 1 + test_random_below(random, MAX_PIECES);
    uint16_t next = 1;
    for (size_t i = 0; i < collective->n_pieces; i++) {
        size_t elements = 0;
        example->pieces[i].count = test_random_below(random, 4) == 0 ? 0 : test_random_below(random, 9);
        elements = example->pieces[i].count * (size_t)example->n_ranks;
        if (has_counts) {
            elements = 0;
            for (int rank = 0; rank < example->n_ranks; rank++) {
                example->counts[rank] = test_random_below(random, 7);
                elements += example->counts[rank];
            }
            collective->send_counts = example->counts;
            collective->recv_counts = example->counts;
        }
        example->buffers[i] = calloc(elements + 1, sizeof(uint16_t));
        for (size_t k = 0; k < elements; k++) {
            example->buffers[i][k] = next++;
        }
        example->pieces[i].send = example->buffers[i];
        example->pieces[i].recv = example->buffers[i];
    }
}

static void free_example(struct example *example)
{
    for (size_t i = 0; i < MAX_PIECES; i++) {
        free(example->buffers[i]);
    }
}

/* The block as the calls define it. */
static size_t list_block(const struct example *example, enum block_side side, int rank, uint16_t *elements)
{
    size_t n = 0;
    bool per_rank = is_per_rank(example->collective.kind, side);
    for (size_t i = 0; i < example->collective.n_pieces; i++) {
        size_t count = example->pieces[i].count;
        size_t offset = per_rank ? (size_t)rank * count : 0;
        if (example->collective.send_counts) {
            count = example->counts[rank];
            offset = 0;
            for (int k = 0; per_rank && k < rank; k++) {
                offset += example->counts[k];
            }
        }
        memcpy(elements + n, example->buffers[i] + offset, count * sizeof *elements);
        n += count;
    }
    return n;
}

static void check_block(const struct example *example, enum block_side side, int rank,
                        struct test_random *random)
{
    uint16_t expected[MAX_PIECES * 16];
    size_t n = list_block(example, side, rank, expected);
    CHECK_INT(block_elements(&example->collective, side, rank), n);
    CHECK(block_largest(&example->collective, side, example->n_ranks) >= n);
    uint16_t copied[MAX_PIECES * 16];
    for (size_t from = 0; from < n;) {
        size_t to = from + 1 + test_random_below(random, n - from);
        block_copy_out(&example->collective, side, rank, from, to, (char *)(copied + from));
        from = to;
    }
    CHECK_BYTES(copied, expected, n * sizeof expected[0]);
    /* Walked in small steps. */
    struct block_walk walk = block_walk_begin(&example->collective, side, rank, 0, n);
    struct block_run run;
    size_t at = 0;
    while ((run = block_walk_next(&walk, 1 + test_random_below(random, 3))).elements > 0) {
        CHECK_BYTES(run.data, expected + at, run.elements * sizeof expected[0]);
        at += run.elements;
    }
    CHECK_INT(at, n);
    /* And back in: the same elements to the same places change nothing. */
    block_copy_in(&example->collective, side, rank, 0, n, (const char *)expected, 0);
    uint16_t again[MAX_PIECES * 16];
    CHECK_INT(list_block(example, side, rank, again), n);
    CHECK_BYTES(again, expected, n * sizeof expected[0]);
}

TEST(blocks_are_what_the_calls_say)
{
    struct test_random random = test_random_begin(1);
    for (int i = 0; i < 3000 && !test_has_failed(); i++) {
        struct example example;
        make_example(&example, &random);
        for (int rank = 0; rank < example.n_ranks; rank++) {
            check_block(&example, BLOCK_SEND, rank, &random);
            check_block(&example, BLOCK_RECV, rank, &random);
        }
        free_example(&example);
    }
}
