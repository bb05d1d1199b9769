/* SPDX-License-Identifier: MIT */
/* The ranks' side of the meeting of start-up. */
#include "bootstrap/rendezvous.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/try.h"
#include "base/wait.h"
#include "bootstrap/environment.h"
#include "base/hash.h"
#include "bootstrap/request.h"
#include "bootstrap/server.h"

/* Between two attempts to find rank 0: short at first, when it is just about to come. */
#define FIRST_NAP_NS 500000
#define LAST_NAP_NS 20000000
/* What rank 0's server gets to say who is missing, once this rank's time is over. */
#define GRACE_NS 1000000000

_Static_assert(ENVIRONMENT_RANKS_MAX * sizeof(struct card_short) <= FRAME_PAYLOAD_BYTES_MAX,
               "the cards of the largest world fit into an answer");

void rendezvous_name(const char *key, char name[SOCKET_NAME_BYTES])
{
    uint64_t user = geteuid();
    size_t bytes = strlen(key);
    (void)snprintf(name, SOCKET_NAME_BYTES, "shoal-meet-%016" PRIx64 "%016" PRIx64,
                   hash_bytes(user * 2, key, bytes), hash_bytes(user * 2 + 1, key, bytes));
}

/* Exchange ---------------------------------------------------------------------------------------------- */

static shoal_status check_cards(const struct card *cards, const struct card *mine)
{
    for (int rank = 0; rank < mine->n_ranks; rank++) {
        TRY(card_check(&cards[rank], rank, mine));
    }
    if (memcmp(&cards[mine->rank], mine, sizeof *mine) != 0) {
        return error_set(SHOAL_ERR_MISMATCH,
                         "start-up: exchange gave back another card at place %d than rank "
                         "%d had given: two ranks with one number?",
                         mine->rank, mine->rank);
    }
    return SHOAL_OK;
}

shoal_status rendezvous_exchange(shoal_exchange exchange, void *context, const struct card *card,
                                 struct card *cards_out)
{
    memset(cards_out, 0, (size_t)card->n_ranks * sizeof *card);
    error_clear();
    int result = exchange(context, card, cards_out, sizeof *card);
    if (result != 0) {
        char why[ERROR_TEXT_BYTES];
        (void)snprintf(why, sizeof why, "%s", shoal_error_text());
        return error_set(SHOAL_ERR_SYSTEM, "start-up: exchange returned %d%s%.300s", result, *why ? ": " : "",
                         why);
    }
    return check_cards(cards_out, card);
}

/* Entering ---------------------------------------------------------------------------------------------- */

/*
 * Takes the meeting if this is rank 0. A second rank 0 finds the name taken, and goes on as a guest: so that both
 * hear of each other.
 */
static shoal_status host_if_due(struct rendezvous *rendezvous)
{
    if (!rendezvous->host) {
        return SHOAL_OK;
    }
    shoal_status status = server_host_meeting(rendezvous->host, rendezvous->name, rendezvous->page_fd);
    if (status == SHOAL_ERR_STATE) {
        error_clear();
        return SHOAL_OK;
    }
    TRY(status);
    TRY(server_start(rendezvous->host));
    rendezvous->host = NULL;
    return SHOAL_OK;
}

static shoal_status find_host(struct rendezvous *rendezvous)
{
    int64_t start_ns = clock_now_ns();
    int64_t nap_ns = FIRST_NAP_NS;
    for (;;) {
        TRY(host_if_due(rendezvous));
        TRY(socket_connect(rendezvous->name, &rendezvous->fd));
        if (rendezvous->fd >= 0) {
            return SHOAL_OK;
        }
        int64_t now_ns = clock_now_ns();
        if (now_ns >= rendezvous->deadline_ns) {
            return error_set(
                SHOAL_ERR_TIMEOUT, "start-up: rank %d of %d waited %.1f s for rank 0, which did not come",
                rendezvous->card->rank, rendezvous->card->n_ranks, (double)(now_ns - start_ns) * 1e-9);
        }
        int64_t left_ns = rendezvous->deadline_ns - now_ns;
        wait_sleep(nap_ns < left_ns ? nap_ns : left_ns);
        nap_ns = nap_ns * 2 < LAST_NAP_NS ? nap_ns * 2 : LAST_NAP_NS;
    }
}

shoal_status rendezvous_enter(struct rendezvous *rendezvous, int *page_fd_out)
{
    FAIL_POINT("rendezvous enter");
    rendezvous->fd = -1;
    TRY(find_host(rendezvous));
    struct request request = {.op = REQUEST_JOIN};
    request_add_bytes(&request, rendezvous->card, sizeof *rendezvous->card);
    struct socket_wait wait = {.deadline_ns = rendezvous->deadline_ns, .what = "rank 0 to let this rank in"};
    struct frame frame;
    shoal_status status = request_perform(rendezvous->fd, &request, &wait, &frame);
    if (status == SHOAL_ERR_PEER && !request.was_answered) {
        return error_prefix(status, "start-up: rank 0 has ended, or its world was complete");
    }
    TRY(status);
    status = frame_check_fd(&frame, "the page of the world");
    if (status != SHOAL_OK) {
        frame_clear(&frame);
        status = error_prefix(status, "start-up");
        /* Rank 0 has let this rank in: it, and the others, hear why it leaves. */
        rendezvous_give_up(rendezvous, status);
        return status;
    }
    *page_fd_out = frame.fd;
    frame.fd = -1;
    frame_clear(&frame);
    return SHOAL_OK;
}

/* Completing -------------------------------------------------------------------------------------------- */

static shoal_status take_cards(const struct frame *frame, const struct card *mine, struct card *cards_out)
{
    size_t bytes = (size_t)mine->n_ranks * sizeof(struct card_short);
    if (frame->header.bytes != bytes) {
        return error_set(SHOAL_ERR_SYSTEM, "start-up: %u bytes of cards, %zu expected", frame->header.bytes,
                         bytes);
    }
    /* Rank 0's server has compared everything that is not in the short form. */
    for (int rank = 0; rank < mine->n_ranks; rank++) {
        struct card_short card;
        memcpy(&card, frame->payload + (size_t)rank * sizeof card, sizeof card);
        cards_out[rank] = *mine;
        memcpy(cards_out[rank].token, card.token, sizeof card.token);
        cards_out[rank].host = card.host;
        cards_out[rank].rank = card.rank;
        cards_out[rank].pid = card.pid;
    }
    return check_cards(cards_out, mine);
}

static void hang_up(struct rendezvous *rendezvous)
{
    (void)close(rendezvous->fd);
    rendezvous->fd = -1;
}

/* Our time is over: tells rank 0's server, which tells everybody, who is missing. */
static shoal_status ask_who_is_missing(struct rendezvous *rendezvous, int64_t start_ns, struct frame *frame)
{
    char why[64];
    double waited_s = (double)(clock_now_ns() - start_ns) * 1e-9;
    (void)snprintf(why, sizeof why, "waited %.1f s for all to come", waited_s);
    struct request request = {.op = REQUEST_GIVE_UP};
    request_add_number(&request, SHOAL_ERR_TIMEOUT);
    request_add_bytes(&request, why, strlen(why));
    struct socket_wait wait = {.deadline_ns = clock_now_ns() + GRACE_NS, .what = "rank 0's server"};
    shoal_status status = request_perform(rendezvous->fd, &request, &wait, frame);
    if (status == SHOAL_ERR_TIMEOUT && !request.was_answered) {
        return error_set(status, "start-up: rank %d %s; rank 0 does not answer", rendezvous->card->rank, why);
    }
    return status;
}

shoal_status rendezvous_complete(struct rendezvous *rendezvous, shoal_status (*liveness)(void *context),
                                 void *liveness_context, struct card *cards_out)
{
    FAIL_POINT("rendezvous complete");
    int64_t start_ns = clock_now_ns();
    struct socket_wait wait = {.deadline_ns = rendezvous->deadline_ns,
                               .liveness = liveness,
                               .liveness_context = liveness_context,
                               .what = "all ranks to come"};
    struct request request = {.op = REQUEST_READY};
    struct frame frame;
    shoal_status status = request_perform(rendezvous->fd, &request, &wait, &frame);
    if (status == SHOAL_ERR_PEER && !request.was_answered) {
        return error_prefix(status, "start-up: rank 0 has ended");
    }
    bool is_late = status == SHOAL_ERR_TIMEOUT && !request.was_answered;
    if (is_late) {
        status = ask_who_is_missing(rendezvous, start_ns, &frame);
    }
    TRY(status);
    status = take_cards(&frame, rendezvous->card, cards_out);
    frame_clear(&frame);
    if (is_late) {
        /* All came in the last moment. The server will find a request too many on this connection. */
        hang_up(rendezvous);
    }
    return status;
}

void rendezvous_give_up(struct rendezvous *rendezvous, shoal_status status)
{
    if (rendezvous->fd < 0) {
        return;
    }
    char why[ERROR_TEXT_BYTES];
    (void)snprintf(why, sizeof why, "gives up: %s", shoal_error_text());
    struct request request = {.op = REQUEST_GIVE_UP};
    request_add_number(&request, status);
    request_add_bytes(&request, why, strlen(why));
    struct socket_wait wait = {.deadline_ns = clock_now_ns() + GRACE_NS, .what = "rank 0's server"};
    struct frame frame;
    if (request_perform(rendezvous->fd, &request, &wait, &frame) == SHOAL_OK) {
        frame_clear(&frame);
    }
    /* The reason stays this rank's own. */
    (void)error_set(status, "%s", why + strlen("gives up: "));
}
