/* SPDX-License-Identifier: MIT */
/* The error that names members that did not make a call. */
#include "transport/missing.h"

#include <stdio.h>

#include "harness/test.h"

#define N_RANKS 100

static int world_ranks[N_RANKS];

static struct missing_members begin(struct transport_peers *peers)
{
    for (int i = 0; i < N_RANKS; i++) {
        world_ranks[i] = 1000 + i;
    }
    *peers = (struct transport_peers){.n_ranks = N_RANKS, .world_ranks = world_ranks, .key = "all"};
    return (struct missing_members){.peers = peers};
}

TEST(one_member_and_how_far_it_came)
{
    const struct collective barrier = {.kind = COLLECTIVE_BARRIER};
    struct transport_peers peers;
    struct missing_members missing = begin(&peers);
    missing_add(&missing, 3);
    CHECK_STATUS(missing_fail(&missing, &barrier, 0), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("on group all: the deadline passed and rank 1003 did not call it; rank 1003 has called "
                     "nothing on this group");
    CHECK_STATUS(missing_fail(&missing, &barrier, 8), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("rank 1003 called #7 last on this group");
}

TEST(several_members)
{
    const struct collective barrier = {.kind = COLLECTIVE_BARRIER};
    struct transport_peers peers;
    struct missing_members missing = begin(&peers);
    missing_add(&missing, 1);
    missing_add(&missing, 4);
    CHECK_STATUS(missing_fail(&missing, &barrier, 1), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("and ranks 1001, 1004 did not call it; rank 1001 called #0 last on this group");
}

TEST(more_members_than_a_text_has_room_for)
{
    const struct collective barrier = {.kind = COLLECTIVE_BARRIER};
    struct transport_peers peers;
    struct missing_members missing = begin(&peers);
    for (int i = 1; i < N_RANKS; i++) {
        missing_add(&missing, i);
    }
    CHECK_STATUS(missing_fail(&missing, &barrier, 1), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("and ranks 1001, 1002, ");
    CHECK_INT(missing.n_missing, N_RANKS - 1);
    char words[40];
    (void)snprintf(words, sizeof words, " and %d more did not call it", N_RANKS - 1 - missing.n_named);
    CHECK(missing.n_named > 1 && missing.n_named < N_RANKS - 1);
    CHECK_ERROR_TEXT(words);
}
