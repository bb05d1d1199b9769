/* SPDX-License-Identifier: MIT */
/*
 * The meeting of all ranks at start-up, as rank 0's server keeps it: who has come, who is ready, and the first
 * thing that went wrong. It knows no sockets; the server tells everybody what became of it.
 */
#ifndef BOOTSTRAP_MEETING_H
#define BOOTSTRAP_MEETING_H

#include <stdbool.h>

#include "base/error.h"
#include "bootstrap/card.h"
#include "shoal/status.h"

struct meeting {
    struct card_short *cards; /* of those who came */
    unsigned char *places;    /* enum place */
    int n_ranks;
    int n_ready;
    struct card host;     /* rank 0's own, to compare with */
    shoal_status failure; /* the first; SHOAL_OK while all is well */
    char text[ERROR_TEXT_BYTES];
};

shoal_status meeting_create(const struct card *host, struct meeting **meeting_out);
void meeting_free(struct meeting *meeting); /* NULL is allowed */

/* All return false when the meeting has failed, perhaps just now: failure and text say why. */
bool meeting_come(struct meeting *meeting, const struct card *card);
bool meeting_is_ready(struct meeting *meeting, int rank);
/* A rank's connection has gone, or it says that it gives up: why may be empty. */
void meeting_lose(struct meeting *meeting, int rank, shoal_status status, const char *why);

bool meeting_is_complete(const struct meeting *meeting);

#endif
