/* SPDX-License-Identifier: MIT */
/*
 * Sends requests to servers. A connection carries one request at a time, so that a call that waits delays no other:
 * each call takes an idle connection to the server, or makes one, and leaves it for later calls.
 */
#include "bootstrap/server/client.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/fork.h"
#include "base/mem.h"
#include "base/try.h"
#include "base/wait.h"
#include "bootstrap/net/card.h"
#include "bootstrap/alive/liveness.h"
#include "bootstrap/net/request.h"
#include "bootstrap/net/socket.h"
#include "bootstrap/net/tcp.h"
#include "bootstrap/alive/watch.h"

/* Idle connections that are kept per server. */
#define IDLE_MAX 4
/* Between two attempts to connect to a server. */
#define NAP_NS 1000000
/* How long to wait for the death of a rank to show, after its connection was lost. */
#define VERDICT_NS 50000000

struct pool {
    int n_idle;
    int idle[IDLE_MAX];
};

struct client {
    uint32_t n_forks; /* fork_count when it was made */
    int n_ranks;
    struct card *cards;
    struct members *members;
    struct watch *watch;  /* NULL if all ranks are on one host */
    pthread_mutex_t lock; /* over the pools */
    struct pool pools[];  /* one per rank */
};

shoal_status client_create(struct card *cards, int n_ranks, struct client **client_out)
{
    struct client *client = mem_alloc_zeroed(1, sizeof(*client) + (size_t)n_ranks * sizeof(struct pool));
    if (!client) {
        return SHOAL_ERR_NO_MEMORY;
    }
    client->n_forks = fork_count();
    client->n_ranks = n_ranks;
    client->cards = cards;
    (void)pthread_mutex_init(&client->lock, NULL);
    *client_out = client;
    return SHOAL_OK;
}

void client_set_members(struct client *client, struct members *members)
{
    client->members = members;
}

void client_set_watch(struct client *client, struct watch *watch)
{
    client->watch = watch;
}

void client_free(struct client *client)
{
    if (!client) {
        return;
    }
    for (int rank = 0; rank < client->n_ranks; rank++) {
        struct pool *pool = &client->pools[rank];
        while (pool->n_idle > 0) {
            (void)close(pool->idle[--pool->n_idle]);
        }
    }
    (void)pthread_mutex_destroy(&client->lock);
    mem_free(client->cards);
    mem_free(client);
}

/* Connections ------------------------------------------------------------------------------------------- */

void client_keep(struct client *client, int holder, int fd)
{
    struct pool *pool = &client->pools[holder];
    (void)pthread_mutex_lock(&client->lock);
    bool is_kept = pool->n_idle < IDLE_MAX;
    if (is_kept) {
        pool->idle[pool->n_idle++] = fd;
    }
    (void)pthread_mutex_unlock(&client->lock);
    if (!is_kept) {
        (void)close(fd);
    }
}

static int take_idle(struct client *client, int holder)
{
    struct pool *pool = &client->pools[holder];
    (void)pthread_mutex_lock(&client->lock);
    int fd = pool->n_idle > 0 ? pool->idle[--pool->n_idle] : -1;
    (void)pthread_mutex_unlock(&client->lock);
    return fd;
}

/* The rank whose server is asked, and for how long. A rank that is closing its world still answers; only death ends
   it. */
struct holder {
    struct client *client;
    int rank;
    const struct client_wait *wait;
    bool was_ended; /* the caller's own check has ended the wait */
};

static shoal_status check_caller(struct holder *holder)
{
    const struct client_wait *wait = holder->wait;
    shoal_status status = wait->check ? wait->check(wait->check_context) : SHOAL_OK;
    holder->was_ended = status != SHOAL_OK;
    return status;
}

static shoal_status check_holder(void *context)
{
    struct holder *holder = context;
    struct members *members = holder->client->members;
    TRY(check_caller(holder));
    return members_state(members, holder->rank) == MEMBER_DEAD ? members_check(members, holder->rank)
                                                               : SHOAL_OK;
}

/* The connection is lost. A process that dies closes one descriptor after the other, so its death may show a moment
   later. */
static shoal_status fail_gone(const struct holder *holder)
{
    int64_t until_ns = clock_now_ns() + VERDICT_NS;
    do {
        TRY(members_check(holder->client->members, holder->rank));
        wait_sleep(NAP_NS);
    } while (clock_now_ns() < until_ns);
    return error_set(SHOAL_ERR_PEER, "the server thread of rank %d has ended", holder->rank);
}

/* Makes one attempt. *fd_out is -1 if nobody listens there, or if too many connect at once. */
static shoal_status try_to_connect(struct holder *holder, int *fd_out)
{
    const struct card *card = &holder->client->cards[holder->rank];
    if (watch_has(holder->client->watch, holder->rank)) {
        const struct proof_key key = {{card->token[0], card->token[1]}};
        char what[64];
        (void)snprintf(what, sizeof what, "a connection to the server thread of rank %d", holder->rank);
        const struct socket_wait wait = {.deadline_ns = holder->wait->deadline_ns,
                                         .liveness = check_holder,
                                         .liveness_context = holder,
                                         .what = what};
        return tcp_connect(&card->address, &key, &wait, fd_out);
    }
    char name[SOCKET_NAME_BYTES];
    card_server_name(card, name);
    return socket_connect(name, fd_out);
}

static shoal_status connect_to(struct holder *holder, int *fd_out)
{
    for (;;) {
        TRY(try_to_connect(holder, fd_out));
        if (*fd_out >= 0) {
            return SHOAL_OK;
        }
        /* Nobody listens there, or too many connect at once. */
        TRY(members_check(holder->client->members, holder->rank));
        TRY(check_caller(holder));
        if (clock_now_ns() >= holder->wait->deadline_ns) {
            return error_set(SHOAL_ERR_TIMEOUT, "the server thread of rank %d cannot be reached",
                             holder->rank);
        }
        wait_sleep(NAP_NS);
    }
}

shoal_status client_perform(struct client *client, int rank, struct request *request,
                            const struct client_wait *bounds, const char *what, struct frame *frame_out)
{
    FAIL_POINT("store request");
    TRY(fork_check(client->n_forks));
    struct holder holder = {.client = client, .rank = rank, .wait = bounds};
    int fd = take_idle(client, rank);
    if (fd < 0) {
        TRY(connect_to(&holder, &fd));
    }
    struct socket_wait wait = {.deadline_ns = bounds->deadline_ns,
                               .liveness = check_holder,
                               .liveness_context = &holder,
                               .what = what};
    shoal_status status = request_perform(fd, request, &wait, frame_out);
    /* A server without memory or descriptors for a connection says so in its answer, and closes the connection. */
    bool may_be_closed = status == SHOAL_ERR_NO_MEMORY || status == SHOAL_ERR_SYSTEM;
    if (status == SHOAL_OK || (request->was_answered && !may_be_closed)) {
        client_keep(client, rank, fd);
        return status;
    }
    if (!socket_is_open(fd)) { /* the program has closed it, and may have the number for a file of its own */
        return error_prefix(status, "a request to rank %d", rank);
    }
    (void)close(fd);
    if (request->was_answered || holder.was_ended) {
        return status;
    }
    if (status == SHOAL_ERR_PEER) {
        return fail_gone(&holder);
    }
    return status == SHOAL_ERR_TIMEOUT ? error_prefix(status, "rank %d does not answer", rank) : status;
}

bool client_tell_failure(struct client *client, int rank, const char *name, shoal_status failure,
                         const char *text)
{
    if (watch_has(client->watch, rank)) {
        watch_tell_failure(client->watch, rank, name, failure, text);
        return true;
    }
    char server[SOCKET_NAME_BYTES];
    int fd;
    bool is_busy;
    card_server_name(&client->cards[rank], server);
    shoal_status status = socket_try_connect(server, &fd, &is_busy);
    if (is_busy) {
        status = error_set(SHOAL_ERR_SYSTEM, "too many messages wait for rank %d, which does not run", rank);
    }
    if (status != SHOAL_OK || fd < 0) {
        return status == SHOAL_OK; /* without a server there is nobody to tell */
    }
    struct request request = {.op = REQUEST_FAILED};
    request_add_number(&request, failure);
    request_add_bytes(&request, name, strlen(name));
    request_add_bytes(&request, text, strlen(text));
    /* No wait is needed: the buffer of a new socket has room for the message. */
    const struct socket_wait wait = {.deadline_ns = 0, .what = "a message to be taken"};
    (void)socket_send_frame(fd, (uint32_t)request.op, request.parts, request.n_parts, &wait);
    (void)close(fd);
    return true;
}
