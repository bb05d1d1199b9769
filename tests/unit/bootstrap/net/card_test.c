/* SPDX-License-Identifier: MIT */
/* Cards: ranks of one machine that pretend to be on several hosts. */
#include "bootstrap/net/card.h"

#include <stdlib.h>

#include "harness/test.h"

static struct card make_card(int rank, int n_ranks, const char *hosts)
{
    struct card card = {0};
    if (hosts) {
        (void)setenv("SHOAL_PRETEND_HOSTS", hosts, 1);
    } else {
        (void)unsetenv("SHOAL_PRETEND_HOSTS");
    }
    CHECK_OK(card_create(rank, n_ranks, "", &card));
    (void)unsetenv("SHOAL_PRETEND_HOSTS");
    return card;
}

TEST(ranks_are_on_the_hosts_of_the_list)
{
    static const char hosts[] = "a,b,a,aa";
    struct card cards[4];
    for (int rank = 0; rank < 4; rank++) {
        cards[rank] = make_card(rank, 4, hosts);
        CHECK(cards[rank].claim == cards[0].claim); /* where they meet */
        CHECK_OK(card_check(&cards[rank], rank, &cards[0]));
    }
    CHECK(cards[0].host == cards[2].host);
    CHECK(cards[0].host != cards[1].host && cards[0].host != cards[3].host && cards[1].host != cards[3].host);
    CHECK(cards[0].host != make_card(0, 4, NULL).host);
    /* A list may be longer than the world, as for a program that opens smaller ones. */
    CHECK(make_card(0, 1, hosts).host == cards[0].host);
    CHECK(make_card(0, 2, "").host == make_card(1, 2, NULL).host);
}

TEST(every_rank_needs_a_name)
{
    static const struct {
        const char *hosts;
        const char *words;
    } rows[] = {{"a,b", "SHOAL_PRETEND_HOSTS is \"a,b\", which has no name for rank 2 of 3"},
                {"a,,b", "no name for rank 1 of 3"},
                {",a,b", "no name for rank 0 of 3"},
                {"a,b,", "no name for rank 2 of 3"},
                {"a", "no name for rank 1 of 3"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct card card = {.rank = 77};
        (void)setenv("SHOAL_PRETEND_HOSTS", rows[i].hosts, 1);
        CHECK_STATUS(card_create(0, 3, "", &card), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(rows[i].words);
        CHECK_INT(card.rank, 77);
    }
    (void)unsetenv("SHOAL_PRETEND_HOSTS");
}

TEST(ranks_pretend_alike)
{
    struct card mine = make_card(0, 2, "a,b");
    const char *others[] = {NULL, "a,a", "a,b,b"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct card card = make_card(1, 2, others[i]);
        CHECK_STATUS(card_check(&card, 1, &mine), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("SHOAL_PRETEND_HOSTS is not the same on rank 1");
        CHECK_ERROR_TEXT("and rank 0");
        CHECK_STATUS(card_check(&mine, 0, &card), SHOAL_ERR_MISMATCH);
    }
}
