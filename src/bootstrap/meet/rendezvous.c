/* SPDX-License-Identifier: MIT */
/* The ranks' side of the meeting of start-up. */
#include "bootstrap/meet/rendezvous.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/try.h"
#include "base/wait.h"
#include "bootstrap/meet/environment.h"
#include "base/hash.h"
#include "bootstrap/net/request.h"
#include "bootstrap/server/server.h"
#include "bootstrap/net/tcp.h"

/* Between two attempts to find rank 0: short at first, because it is often just about to start. */
#define FIRST_NAP_NS 500000
#define LAST_NAP_NS 20000000
/* How long rank 0's server may take to say which ranks are missing, after this rank's deadline. */
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

/* Checks that the card at this rank's place is its own: no other rank has its token. */
static shoal_status check_own_card(const struct card *card, const struct card *mine)
{
    if (memcmp(card->token, mine->token, sizeof mine->token) != 0) {
        return error_set(SHOAL_ERR_MISMATCH,
                         "start-up: exchange did not return at index %d what rank %d gave: two ranks have "
                         "the same number, or exchange does not return the blocks in rank order",
                         mine->rank, mine->rank);
    }
    return SHOAL_OK;
}

static shoal_status check_cards(const struct card *cards, const struct card *mine)
{
    for (int rank = 0; rank < mine->n_ranks; rank++) {
        TRY(card_check(&cards[rank], rank, mine));
    }
    return check_own_card(&cards[mine->rank], mine);
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
 * Hosts the meeting if this is rank 0. If another rank 0 has taken the name already, this one joins its meeting as a
 * guest, so that both get an error that names the conflict.
 */
static shoal_status host_if_due(struct rendezvous *rendezvous)
{
    if (!rendezvous->host) {
        return SHOAL_OK;
    }
    shoal_status status = server_host_meeting(rendezvous->host, rendezvous->name, rendezvous->page_fd);
    if (status == SHOAL_OK && !rendezvous->name) {
        status = server_open_address(rendezvous->host, &rendezvous->address, &rendezvous->key);
    }
    if (status == SHOAL_ERR_STATE) {
        error_clear();
        return SHOAL_OK;
    }
    TRY(status);
    TRY(server_start(rendezvous->host));
    rendezvous->host = NULL;
    return SHOAL_OK;
}

/* Makes one attempt to connect to rank 0: on this host, then over the network. */
static shoal_status try_to_connect(struct rendezvous *rendezvous)
{
    bool is_own = rendezvous->card->rank == 0 && !rendezvous->name && !rendezvous->host;
    char own_name[SOCKET_NAME_BYTES];
    card_server_name(rendezvous->card, own_name);
    const char *name = is_own ? own_name : rendezvous->name;
    rendezvous->is_tcp = false;
    if (name) {
        TRY(socket_connect(name, &rendezvous->fd));
    }
    if (rendezvous->fd >= 0 || is_own || !address_is_known(&rendezvous->address)) {
        return SHOAL_OK;
    }
    const struct socket_wait wait = {.deadline_ns = rendezvous->deadline_ns,
                                     .what = "the server thread of rank 0 to answer"};
    shoal_status status = tcp_connect(&rendezvous->address, &rendezvous->key, &wait, &rendezvous->fd);
    rendezvous->is_tcp = rendezvous->fd >= 0;
    /* A timeout means that this rank's deadline has passed: find_host reports it. */
    if (status != SHOAL_OK && status != SHOAL_ERR_TIMEOUT) {
        return error_prefix(status, "start-up");
    }
    return SHOAL_OK;
}

/* Rank 0 was not found. The error text of the last attempt says why. */
static shoal_status fail_alone(const struct rendezvous *rendezvous, int64_t waited_ns)
{
    char where[ADDRESS_TEXT_BYTES];
    char at[ERROR_TEXT_BYTES] = "";
    if (address_is_known(&rendezvous->address)) {
        (void)snprintf(at, sizeof at, " (at %s; last: %.300s)", address_text(&rendezvous->address, where),
                       shoal_error_text());
    }
    return error_set(
        SHOAL_ERR_TIMEOUT,
        "start-up: rank %d of %d waited %.1f s (startup_timeout_s) for rank 0, which did not arrive%s",
        rendezvous->card->rank, rendezvous->card->n_ranks, (double)waited_ns * 1e-9, at);
}

static shoal_status find_host(struct rendezvous *rendezvous)
{
    int64_t start_ns = clock_now_ns();
    int64_t nap_ns = FIRST_NAP_NS;
    for (;;) {
        TRY(host_if_due(rendezvous));
        TRY(try_to_connect(rendezvous));
        if (rendezvous->fd >= 0) {
            error_clear();
            return SHOAL_OK;
        }
        int64_t now_ns = clock_now_ns();
        if (now_ns >= rendezvous->deadline_ns) {
            return fail_alone(rendezvous, now_ns - start_ns);
        }
        int64_t left_ns = rendezvous->deadline_ns - now_ns;
        wait_sleep(nap_ns < left_ns ? nap_ns : left_ns);
        nap_ns = nap_ns * 2 < LAST_NAP_NS ? nap_ns * 2 : LAST_NAP_NS;
    }
}

/* Asks rank 0's server who leads this rank's host. The page comes along if rank 0 does, and the server is on this
   host. */
static shoal_status ask_for_leader(struct rendezvous *rendezvous, struct request *request,
                                   struct card_leader *leader_out, struct frame *frame_out)
{
    struct socket_wait wait = {.deadline_ns = rendezvous->deadline_ns, .what = "rank 0 to let this rank in"};
    shoal_status status = request_perform(rendezvous->fd, request, &wait, frame_out);
    if (status == SHOAL_ERR_PEER && !request->was_answered) {
        return error_prefix(status, "start-up: rank 0 exited, or has all its ranks already");
    }
    TRY(status);
    if (frame_out->header.bytes != sizeof *leader_out) {
        frame_clear(frame_out);
        return error_set(SHOAL_ERR_SYSTEM, "start-up: rank 0 answered %u bytes, %zu expected",
                         frame_out->header.bytes, sizeof *leader_out);
    }
    memcpy(leader_out, frame_out->payload, sizeof *leader_out);
    return SHOAL_OK;
}

/* Takes the descriptor of a page out of a frame. */
static shoal_status take_page(struct frame *frame, int *page_fd_out)
{
    shoal_status status = frame_check_fd(frame, "the shared memory with the states of the ranks");
    if (status == SHOAL_OK) {
        *page_fd_out = frame->fd;
        frame->fd = -1;
    }
    frame_clear(frame);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "start-up");
}

/*
 * Gets the page of this host from the server of the leader, a rank whose card says that it is on the same host. If
 * nobody has the leader's name here, it is on another host after all, and *page_fd_out is -1.
 */
static shoal_status ask_leader(const struct rendezvous *rendezvous, const struct card_leader *leader,
                               int *page_fd_out)
{
    char name[SOCKET_NAME_BYTES];
    int fd = -1;
    *page_fd_out = -1;
    card_token_name(leader->token, name);
    bool is_busy = true;
    while (is_busy) {
        TRY(socket_try_connect(name, &fd, &is_busy));
        if (is_busy && clock_now_ns() >= rendezvous->deadline_ns) {
            return error_set(SHOAL_ERR_TIMEOUT,
                             "start-up: rank %d, from which the ranks of this host get their shared memory, "
                             "did not accept a connection in time (startup_timeout_s)",
                             leader->rank);
        }
        if (is_busy) {
            wait_sleep(FIRST_NAP_NS);
        }
    }
    if (fd < 0) {
        return SHOAL_OK;
    }
    struct request request = {.op = REQUEST_PAGE};
    struct socket_wait wait = {.deadline_ns = rendezvous->deadline_ns,
                               .what = "the shared memory of this host"};
    struct frame frame;
    shoal_status status = request_perform(fd, &request, &wait, &frame);
    if (status == SHOAL_OK) {
        status = take_page(&frame, page_fd_out);
    }
    (void)close(fd);
    return status;
}

/* Asks rank 0's server for the next leader, after one that is not on this host. */
static shoal_status ask_for_next(struct rendezvous *rendezvous, struct card_leader *leader)
{
    struct request request = {.op = REQUEST_ELSEWHERE};
    request_add_number(&request, leader->rank);
    struct frame frame;
    TRY(ask_for_leader(rendezvous, &request, leader, &frame));
    frame_clear(&frame);
    return SHOAL_OK;
}

/* Asks the leaders that rank 0 names, one after the other, until one is on this host or this rank itself is the leader.
   Rank 0 names each rank at most once; one that is no rank of Shoal may answer anything, for ever. */
static shoal_status find_page(struct rendezvous *rendezvous, struct card_leader leader, int *page_fd_out)
{
    int n_ranks = rendezvous->card->n_ranks;
    for (int n_asked = 0; n_asked < n_ranks; n_asked++) {
        if (leader.rank == rendezvous->card->rank) {
            *page_fd_out = os_duplicate(rendezvous->page_fd);
            return *page_fd_out >= 0
                       ? SHOAL_OK
                       : error_set(SHOAL_ERR_SYSTEM, "start-up: the shared memory of this host: %s",
                                   error_errno_text(errno));
        }
        TRY(ask_leader(rendezvous, &leader, page_fd_out));
        if (*page_fd_out >= 0) {
            return SHOAL_OK;
        }
        if (clock_now_ns() >= rendezvous->deadline_ns) {
            return error_set(
                SHOAL_ERR_TIMEOUT,
                "start-up: rank %d did not find the rank from which it gets the shared memory of "
                "its host in time (startup_timeout_s)",
                rendezvous->card->rank);
        }
        TRY(ask_for_next(rendezvous, &leader));
    }
    return error_set(SHOAL_ERR_SYSTEM,
                     "start-up: rank 0 has named %d ranks that should be on the host of rank %d; none is",
                     n_ranks, rendezvous->card->rank);
}

shoal_status rendezvous_enter(struct rendezvous *rendezvous, int *page_fd_out)
{
    FAIL_POINT("rendezvous enter");
    rendezvous->fd = -1;
    TRY(find_host(rendezvous));
    struct request request = {.op = REQUEST_JOIN};
    request_add_bytes(&request, rendezvous->card, sizeof *rendezvous->card);
    struct card_leader leader;
    struct frame frame;
    TRY(ask_for_leader(rendezvous, &request, &leader, &frame));
    shoal_status status;
    if (leader.rank == 0 && !rendezvous->is_tcp) {
        status = take_page(&frame, page_fd_out);
    } else {
        frame_clear(&frame);
        status = find_page(rendezvous, leader, page_fd_out);
    }
    if (status != SHOAL_OK) {
        /* This rank has joined, so rank 0 and the others are told why it gives up. */
        rendezvous_give_up(rendezvous, status);
    }
    return status;
}

/* Completing -------------------------------------------------------------------------------------------- */

static shoal_status take_cards(const struct frame *frame, const struct card *mine, struct card *cards_out)
{
    size_t bytes = (size_t)mine->n_ranks * sizeof(struct card_short);
    if (frame->header.bytes != bytes) {
        return error_set(SHOAL_ERR_SYSTEM, "start-up: rank 0 sent %u bytes about the ranks, %zu expected",
                         frame->header.bytes, bytes);
    }
    /* The short form lacks what rank 0's server has found equal on all ranks. */
    for (int rank = 0; rank < mine->n_ranks; rank++) {
        struct card_short card;
        memcpy(&card, frame->payload + (size_t)rank * sizeof card, sizeof card);
        cards_out[rank] = *mine;
        memcpy(cards_out[rank].token, card.token, sizeof card.token);
        cards_out[rank].host = card.host;
        cards_out[rank].address = card.address;
        cards_out[rank].leader = card.leader;
        cards_out[rank].rank = card.rank;
        cards_out[rank].pid = card.pid;
        TRY(card_check(&cards_out[rank], rank, mine));
    }
    return check_own_card(&cards_out[mine->rank], mine);
}

static void hang_up(struct rendezvous *rendezvous)
{
    (void)close(rendezvous->fd);
    rendezvous->fd = -1;
}

/* This rank's time is over. Says so to rank 0's server, which tells all ranks who is missing. */
static shoal_status ask_who_is_missing(struct rendezvous *rendezvous, int64_t start_ns, struct frame *frame)
{
    char why[96];
    double waited_s = (double)(clock_now_ns() - start_ns) * 1e-9;
    (void)snprintf(why, sizeof why, "waited %.1f s (startup_timeout_s) for all ranks", waited_s);
    struct request request = {.op = REQUEST_GIVE_UP};
    request_add_number(&request, SHOAL_ERR_TIMEOUT);
    request_add_bytes(&request, why, strlen(why));
    struct socket_wait wait = {.deadline_ns = clock_now_ns() + GRACE_NS,
                               .what = "the server thread of rank 0"};
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
                               .what = "all ranks to arrive"};
    const char *crossing = rendezvous->crossing ? rendezvous->crossing : "";
    const char *why = rendezvous->crossing_why ? rendezvous->crossing_why : "";
    struct request request = {.op = REQUEST_READY};
    request_add_bytes(&request, crossing, strlen(crossing));
    request_add_bytes(&request, why, strlen(why));
    struct frame frame;
    shoal_status status = request_perform(rendezvous->fd, &request, &wait, &frame);
    if (status == SHOAL_ERR_PEER && !request.was_answered) {
        return error_prefix(status, "start-up: rank 0 exited");
    }
    bool is_late = status == SHOAL_ERR_TIMEOUT && !request.was_answered;
    if (is_late) {
        status = ask_who_is_missing(rendezvous, start_ns, &frame);
    }
    TRY(status);
    status = cards_out ? take_cards(&frame, rendezvous->card, cards_out) : SHOAL_OK;
    frame_clear(&frame);
    if (is_late) {
        /* All ranks arrived at the last moment after all. The server has one request too many on this connection. */
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
    struct socket_wait wait = {.deadline_ns = clock_now_ns() + GRACE_NS,
                               .what = "the server thread of rank 0"};
    struct frame frame;
    if (request_perform(rendezvous->fd, &request, &wait, &frame) == SHOAL_OK) {
        frame_clear(&frame);
    }
    /* The error text is this rank's own reason again. */
    (void)error_set(status, "%s", why + strlen("gives up: "));
}
