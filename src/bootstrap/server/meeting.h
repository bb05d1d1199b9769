/* SPDX-License-Identifier: MIT */
/*
 * The meeting of all ranks at start-up, which rank 0's server keeps: which ranks have arrived, which are ready, and the
 * first failure. It does not know of sockets; the server sends the outcome to the ranks.
 */
#ifndef BOOTSTRAP_SERVER_MEETING_H
#define BOOTSTRAP_SERVER_MEETING_H

#include <stdbool.h>

#include "base/error.h"
#include "bootstrap/net/card.h"
#include "shoal/status.h"

#define MEETING_WHY_BYTES 320

struct meeting {
    struct card_short *cards; /* of the ranks that have arrived */
    uint64_t *claims;         /* the hosts that they claim to be on */
    unsigned char *places;    /* enum place */
    int *leaders;             /* the first rank of each host, in the order of arrival; rank 0 first */
    int n_leaders;
    bool is_second_round; /* on several hosts: all ranks have the cards, and connect to each other */
    /* The transport between hosts of the first rank that was ready in the second round. */
    int crossing_rank; /* -1 if there is nobody yet */
    char crossing[CARD_TRANSPORT_BYTES];
    char crossing_why[MEETING_WHY_BYTES];
    int n_ranks;
    int n_ready;
    struct card host;                 /* rank 0's, with which the others are compared */
    char rejected[MEETING_WHY_BYTES]; /* who came and was rejected; "" if there is nobody */
    shoal_status failure;             /* the first; SHOAL_OK while all is well */
    char text[ERROR_TEXT_BYTES];
};

shoal_status meeting_create(const struct card *host, struct meeting **meeting_out);
void meeting_free(struct meeting *meeting); /* NULL is allowed */

/* These functions return false if the meeting has failed, now or before: failure and text say why. */
bool meeting_come(struct meeting *meeting, const struct card *card);
/* In the second round all must cross hosts with the same transport; `why` is why a rank does not use one that comes
   first. */
bool meeting_is_ready(struct meeting *meeting, int rank, const char *crossing, const char *why);
/* Whether a rank may call meeting_is_elsewhere: it has arrived, is not ready, and `tried` is the leader that it was
   told. */
bool meeting_may_be_elsewhere(const struct meeting *meeting, int rank, int tried);
/*
 * Notes that a rank which has come is not on the host of the leader `tried`, although their cards say so. Its
 * cards[rank].leader becomes the next rank that may be on its host, or the rank itself.
 */
bool meeting_is_elsewhere(struct meeting *meeting, int rank, int tried);
/* Notes that clients came and were rejected before they could say which rank they are: `count` of them, and from where
   and why the last one. Ranks that are missed may be among them. */
void meeting_note_rejected(struct meeting *meeting, size_t count, const char *from, const char *why);
/* Fails the meeting because a rank's connection has ended, or because the rank gives up. `why` may be empty. */
void meeting_lose(struct meeting *meeting, int rank, shoal_status status, const char *why);

bool meeting_is_complete(const struct meeting *meeting);
/* Called when all ranks are ready. Returns true if there are several hosts, and all ranks have to be ready once more.
   May fail the meeting. */
bool meeting_begin_second_round(struct meeting *meeting);

#endif
