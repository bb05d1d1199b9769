/* SPDX-License-Identifier: MIT */
/* The meeting of start-up: which ranks have arrived, and on which host each of them is. */
#include "bootstrap/server/meeting.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/rank_list.h"
#include "base/text.h"

enum place {
    PLACE_EMPTY = 0,
    PLACE_CAME,
    PLACE_READY
};

shoal_status meeting_create(const struct card *host, struct meeting **meeting_out)
{
    struct meeting *meeting = mem_alloc_zeroed(1, sizeof(*meeting));
    if (!meeting) {
        return SHOAL_ERR_NO_MEMORY;
    }
    meeting->host = *host;
    meeting->n_ranks = host->n_ranks;
    meeting->crossing_rank = -1;
    meeting->cards = mem_alloc_zeroed((size_t)host->n_ranks, sizeof(struct card_short));
    meeting->places = mem_alloc_zeroed((size_t)host->n_ranks, 1);
    meeting->claims = mem_alloc_zeroed((size_t)host->n_ranks, sizeof *meeting->claims);
    meeting->leaders = mem_alloc_zeroed((size_t)host->n_ranks, sizeof *meeting->leaders);
    if (!meeting->cards || !meeting->places || !meeting->claims || !meeting->leaders) {
        meeting_free(meeting);
        return SHOAL_ERR_NO_MEMORY;
    }
    /* Rank 0 leads its host from the beginning: other ranks of the host may arrive before it. */
    meeting->leaders[meeting->n_leaders++] = 0;
    meeting->claims[0] = host->claim;
    memcpy(meeting->cards[0].token, host->token, sizeof host->token);
    *meeting_out = meeting;
    return SHOAL_OK;
}

void meeting_free(struct meeting *meeting)
{
    if (meeting) {
        mem_free(meeting->cards);
        mem_free(meeting->places);
        mem_free(meeting->claims);
        mem_free(meeting->leaders);
        mem_free(meeting);
    }
}

/* Fails the meeting, with the thread's error text as the reason. Returns false. */
static bool fail(struct meeting *meeting, shoal_status status)
{
    if (meeting->failure == SHOAL_OK) {
        meeting->failure = status;
        (void)snprintf(meeting->text, sizeof meeting->text, "%s", shoal_error_text());
    }
    return false;
}

/* Gives the rank the first leader, from number `at` on, that claims to be on the same host. If there is none, the rank
   becomes the leader of a host of its own. */
static bool find_leader(struct meeting *meeting, int rank, int at)
{
    struct card_short *card = &meeting->cards[rank];
    while (at < meeting->n_leaders && meeting->claims[meeting->leaders[at]] != meeting->claims[rank]) {
        at++;
    }
    if (at < meeting->n_leaders) {
        card->leader = meeting->leaders[at];
        return true;
    }
    if (!address_is_known(&card->address) || !address_is_known(&meeting->host.address)) {
        char how[96];
        (void)snprintf(how, sizeof how, "rank %d is on another host than rank %d", rank, meeting->host.rank);
        return fail(meeting, card_fail_several_hosts(how));
    }
    card->leader = rank;
    meeting->leaders[meeting->n_leaders++] = rank;
    return true;
}

bool meeting_may_be_elsewhere(const struct meeting *meeting, int rank, int tried)
{
    int leader = meeting->cards[rank].leader;
    return meeting->places[rank] == PLACE_CAME && tried == leader && leader != rank;
}

bool meeting_is_elsewhere(struct meeting *meeting, int rank, int tried)
{
    if (meeting->failure != SHOAL_OK) {
        return false;
    }
    int at = 0;
    while (at < meeting->n_leaders && meeting->leaders[at] != tried) {
        at++;
    }
    return find_leader(meeting, rank, at + 1);
}

bool meeting_come(struct meeting *meeting, const struct card *card)
{
    if (meeting->failure != SHOAL_OK) {
        return false;
    }
    shoal_status status = card_check_kind(card, &meeting->host);
    if (status != SHOAL_OK) {
        return fail(meeting, status);
    }
    if (meeting->places[card->rank] != PLACE_EMPTY) {
        return fail(meeting,
                    error_set(SHOAL_ERR_MISMATCH,
                              "start-up: two ranks say they are rank %d of %d: processes %d and %d",
                              card->rank, meeting->n_ranks, meeting->cards[card->rank].pid, card->pid));
    }
    meeting->places[card->rank] = PLACE_CAME;
    meeting->cards[card->rank] = (struct card_short){.token = {card->token[0], card->token[1]},
                                                     .host = card->host,
                                                     .address = card->address,
                                                     .rank = card->rank,
                                                     .pid = card->pid};
    meeting->claims[card->rank] = card->claim;
    return find_leader(meeting, card->rank, 0);
}

/* "socket on rank 2 (why)" */
static void describe_crossing(int rank, const char *crossing, const char *why, char *text, size_t bytes)
{
    (void)snprintf(text, bytes, "%s on rank %d%s%s%s", crossing[0] ? crossing : "nothing", rank,
                   why[0] ? " (" : "", why, why[0] ? ")" : "");
}

static bool compare_crossing(struct meeting *meeting, int rank, const char *crossing, const char *why)
{
    if (meeting->crossing_rank < 0) {
        meeting->crossing_rank = rank;
        (void)snprintf(meeting->crossing, sizeof meeting->crossing, "%s", crossing);
        (void)snprintf(meeting->crossing_why, sizeof meeting->crossing_why, "%s", why);
        return true;
    }
    if (strcmp(meeting->crossing, crossing) == 0) {
        return true;
    }
    char first[MEETING_WHY_BYTES + CARD_TRANSPORT_BYTES + 32];
    char second[sizeof first];
    bool is_before = meeting->crossing_rank < rank;
    describe_crossing(meeting->crossing_rank, meeting->crossing, meeting->crossing_why,
                      is_before ? first : second, sizeof first);
    describe_crossing(rank, crossing, why, is_before ? second : first, sizeof first);
    return fail(meeting, error_set(SHOAL_ERR_MISMATCH,
                                   "start-up: ranks would use different transports between hosts: %s, %s",
                                   first, second));
}

bool meeting_is_ready(struct meeting *meeting, int rank, const char *crossing, const char *why)
{
    if (meeting->failure != SHOAL_OK) {
        return false;
    }
    if (meeting->is_second_round && !compare_crossing(meeting, rank, crossing, why)) {
        return false;
    }
    if (meeting->places[rank] == PLACE_CAME) {
        meeting->places[rank] = PLACE_READY;
        meeting->n_ready++;
    }
    return true;
}

bool meeting_is_complete(const struct meeting *meeting)
{
    return meeting->failure == SHOAL_OK && meeting->n_ready == meeting->n_ranks;
}

bool meeting_begin_second_round(struct meeting *meeting)
{
    if (meeting->n_leaders == 1 || meeting->is_second_round) {
        return false;
    }
    for (int rank = 0; rank < meeting->n_ranks; rank++) {
        struct card_short *card = &meeting->cards[rank];
        if (!address_is_known(&card->address)) {
            return fail(meeting,
                        error_set(SHOAL_ERR_SYSTEM,
                                  "start-up: the ranks are on %d hosts, and rank %d could not listen on "
                                  "the network",
                                  meeting->n_leaders, rank));
        }
        /* Different hosts may have made the same claim. With the leader they get different numbers. */
        card->host = hash_bytes(card->host, &card->leader, sizeof card->leader);
        meeting->places[rank] = PLACE_CAME;
    }
    meeting->n_ready = 0;
    meeting->is_second_round = true;
    return true;
}

static bool is_missing(void *context, int rank)
{
    const struct meeting *meeting = context;
    return meeting->places[rank] == PLACE_EMPTY;
}

static bool is_late(void *context, int rank)
{
    const struct meeting *meeting = context;
    return meeting->places[rank] == PLACE_CAME;
}

void meeting_note_rejected(struct meeting *meeting, size_t count, const char *from, const char *why)
{
    struct text text = text_begin(meeting->rejected, sizeof meeting->rejected);
    if (count == 1) {
        text_add(&text, "; a connection from %s was rejected: %s", from, why);
    } else if (count > 1) {
        text_add(&text, "; %zu connections were rejected, the last from %s: %s", count, from, why);
    }
}

void meeting_lose(struct meeting *meeting, int rank, shoal_status status, const char *why)
{
    if (meeting->failure != SHOAL_OK || meeting_is_complete(meeting)) {
        return;
    }
    if (status != SHOAL_ERR_TIMEOUT) {
        (void)fail(meeting, error_set(status, "start-up: rank %d (process %d) %s", rank,
                                      meeting->cards[rank].pid, why));
        return;
    }
    char missing[RANK_LIST_BYTES];
    char late[RANK_LIST_BYTES];
    int n_missing = rank_list_write(missing, meeting->n_ranks, is_missing, meeting);
    int n_late = rank_list_write(late, meeting->n_ranks, is_late, meeting);
    char text[2 * RANK_LIST_BYTES + 64] = "";
    if (n_missing > 0) {
        (void)snprintf(text, sizeof text, "; %s did not arrive", missing);
    }
    if (n_late > 0) {
        size_t used = strlen(text);
        (void)snprintf(text + used, sizeof text - used, "; %s arrived, but did not finish start-up", late);
    }
    (void)fail(meeting, error_set(SHOAL_ERR_TIMEOUT, "start-up: rank %d %s%s%s", rank, why, text,
                                  n_missing > 0 ? meeting->rejected : ""));
}
