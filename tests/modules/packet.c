/* SPDX-License-Identifier: MIT */
/*
 * The smallest endpoint that is complete: one Unix socket of packets (SOCK_SEQPACKET) between each two ranks of a machine. The
 * kernel keeps messages whole and in order, so that a message is one call of send and one of recv. docs/extending.md explains it;
 * tests run collectives over it. It trusts whoever connects, and asks for progress instead of being told: a real one has
 * wait and wake, as src/transport/socket has.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "transport/message/endpoint.h"
#include "transport/module.h"

/* How often a rank that waits looks around. */
#define LOOK_MS 10

static const struct transport_services *services;

/* Messages in the order in which they were handed over; the first is the next to move. */
struct queue {
    struct endpoint_message *first;
    struct endpoint_message **end;
};

struct peer {
    int fd; /* -1: this rank itself, or none yet */
    struct queue sending;
    struct queue receiving;
    char failure[120]; /* "": none */
};

struct endpoint {
    const struct transport_world *world;
    struct peer *peers; /* by rank */
};

/* Queues ------------------------------------------------------------------------------------------------- */

static void append(struct queue *queue, struct endpoint_message *message)
{
    *queue->end = message;
    queue->end = &message->next;
}

static bool take_out(struct queue *queue, const struct endpoint_message *message)
{
    for (struct endpoint_message **at = &queue->first; *at; at = &(*at)->next) {
        if (*at == message) {
            *at = message->next;
            queue->end = queue->end == &message->next ? at : queue->end;
            return true;
        }
    }
    return false;
}

/* The first message has ended. */
static void end_first(struct queue *queue, enum endpoint_state state)
{
    struct endpoint_message *message = queue->first;
    (void)take_out(queue, message);
    message->state = state;
}

/* A peer that cannot be reached: all that is on its way has failed, and all that comes. */
static void fail_peer(struct peer *peer, const char *why)
{
    (void)snprintf(peer->failure, sizeof peer->failure, "%s", why);
    while (peer->sending.first) {
        end_first(&peer->sending, ENDPOINT_FAILED);
    }
    while (peer->receiving.first) {
        end_first(&peer->receiving, ENDPOINT_FAILED);
    }
}

/* Moving ------------------------------------------------------------------------------------------------- */

/* BEGIN move: docs/extending.md shows this part. */
static void send_now(struct peer *peer)
{
    while (peer->sending.first) {
        struct endpoint_message *message = peer->sending.first;
        if (send(peer->fd, message->data, message->bytes, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
            end_first(&peer->sending, ENDPOINT_DONE);
        } else if (errno == EAGAIN || errno == EINTR) {
            return;
        } else {
            fail_peer(peer, strerror(errno));
        }
    }
}

static void receive_now(struct peer *peer)
{
    while (peer->receiving.first) {
        struct endpoint_message *message = peer->receiving.first;
        ssize_t bytes = recv(peer->fd, message->data, message->bytes, MSG_DONTWAIT | MSG_TRUNC);
        if (bytes > 0 && (size_t)bytes <= message->bytes) {
            message->bytes = (size_t)bytes;
            end_first(&peer->receiving, ENDPOINT_DONE);
        } else if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        } else {
            fail_peer(peer, bytes == 0  ? "the connection was closed"
                            : bytes > 0 ? "a message is longer than the room for it"
                                        : strerror(errno));
        }
    }
}

static void packet_progress(struct endpoint *endpoint)
{
    for (int i = 0; i < endpoint->world->n_ranks; i++) {
        if (i != endpoint->world->rank) {
            receive_now(&endpoint->peers[i]);
            send_now(&endpoint->peers[i]);
        }
    }
}
/* END move */

static void packet_isend(struct endpoint *endpoint, int rank, struct endpoint_message *message,
                         const void *data, size_t bytes)
{
    struct peer *peer = &endpoint->peers[rank];
    *message = (struct endpoint_message){.data = (char *)(uintptr_t)data, .bytes = bytes};
    if (peer->failure[0]) {
        message->state = ENDPOINT_FAILED;
        return;
    }
    append(&peer->sending, message);
    send_now(peer);
}

static void packet_irecv(struct endpoint *endpoint, int rank, struct endpoint_message *message, void *data,
                         size_t room)
{
    struct peer *peer = &endpoint->peers[rank];
    *message = (struct endpoint_message){.data = data, .bytes = room};
    if (peer->failure[0]) {
        message->state = ENDPOINT_FAILED;
        return;
    }
    append(&peer->receiving, message);
}

static enum endpoint_state packet_test(struct endpoint *endpoint, struct endpoint_message *message)
{
    (void)endpoint;
    return message->state;
}

static bool packet_cancel(struct endpoint *endpoint, int rank, struct endpoint_message *message)
{
    struct peer *peer = &endpoint->peers[rank];
    if (!take_out(&peer->sending, message)) {
        (void)take_out(&peer->receiving, message);
    }
    return true;
}

static const char *packet_failure(struct endpoint *endpoint, int rank)
{
    return endpoint->peers[rank].failure[0] ? endpoint->peers[rank].failure : NULL;
}

/* Opening and closing ------------------------------------------------------------------------------------ */

static shoal_status fail_system(const char *what)
{
    return services->set_error(SHOAL_ERR_SYSTEM, "packet: %s: %s", what, strerror(errno));
}

/* A socket with a name that the kernel chooses, which goes to everybody as a control message. */
static shoal_status listen_and_tell(const struct transport_world *world, int fd)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof name;
    char key[32];
    (void)snprintf(key, sizeof key, "packet/%d", world->rank);
    if (bind(fd, (struct sockaddr *)&name, sizeof name.sun_family) != 0 || listen(fd, world->n_ranks) != 0 ||
        getsockname(fd, (struct sockaddr *)&name, &bytes) != 0) {
        return fail_system("no socket to listen on");
    }
    return world->set(world->context, key, &name, bytes);
}

/* To a lower rank: says who it is. */
static shoal_status connect_to(struct endpoint *endpoint, int rank, int64_t deadline_ns)
{
    const struct transport_world *world = endpoint->world;
    struct sockaddr_un name;
    size_t bytes = 0;
    char key[32];
    (void)snprintf(key, sizeof key, "packet/%d", rank);
    shoal_status status = world->get(world->context, key, &name, sizeof name, deadline_ns, &bytes);
    if (status != SHOAL_OK) {
        return status;
    }
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    endpoint->peers[rank].fd = fd;
    if (fd < 0 || connect(fd, (struct sockaddr *)&name, (socklen_t)bytes) != 0 ||
        send(fd, &world->rank, sizeof world->rank, MSG_NOSIGNAL) < 0) {
        return fail_system("no connection");
    }
    return SHOAL_OK;
}

/* Whether all higher ranks that have not connected yet still live. */
static shoal_status check_missing(const struct endpoint *endpoint)
{
    const struct transport_world *world = endpoint->world;
    shoal_status status = SHOAL_OK;
    for (int i = world->rank + 1; status == SHOAL_OK && i < world->n_ranks; i++) {
        status = endpoint->peers[i].fd < 0 ? world->check_rank(world->context, i) : SHOAL_OK;
    }
    return status;
}

/* One higher rank, in the order in which they come. The listening socket does not block. */
static shoal_status accept_one(struct endpoint *endpoint, int listening_fd, int64_t deadline_ns)
{
    shoal_status gone = SHOAL_OK;
    for (;;) {
        int fd = accept4(listening_fd, NULL, NULL, SOCK_CLOEXEC);
        int rank = -1;
        if (fd >= 0 && recv(fd, &rank, sizeof rank, 0) == sizeof rank && rank > endpoint->world->rank &&
            rank < endpoint->world->n_ranks && endpoint->peers[rank].fd < 0) {
            endpoint->peers[rank].fd = fd;
            return SHOAL_OK;
        }
        if (fd >= 0) {
            (void)close(fd);
        } else if (errno != EAGAIN) {
            return fail_system("nobody can be accepted");
        }
        if (gone != SHOAL_OK) {
            return gone; /* a rank may connect and leave at once: what it left behind was looked for again */
        }
        gone = check_missing(endpoint);
        if (gone == SHOAL_OK && services->now_ns() >= deadline_ns) {
            return services->set_error(SHOAL_ERR_TIMEOUT, "packet: not all ranks have connected");
        }
        if (gone == SHOAL_OK) {
            struct pollfd listening = {.fd = listening_fd, .events = POLLIN};
            (void)poll(&listening, 1, LOOK_MS);
        }
    }
}

static shoal_status meet(struct endpoint *endpoint, int listening_fd, int64_t deadline_ns)
{
    shoal_status status = listen_and_tell(endpoint->world, listening_fd);
    for (int i = 0; status == SHOAL_OK && i < endpoint->world->rank; i++) {
        status = connect_to(endpoint, i, deadline_ns);
    }
    for (int i = endpoint->world->rank + 1; status == SHOAL_OK && i < endpoint->world->n_ranks; i++) {
        status = accept_one(endpoint, listening_fd, deadline_ns);
    }
    return status;
}

/* What the kernel has taken reaches the peer although this end is closed. */
static void packet_close(struct endpoint *endpoint, int64_t deadline_ns)
{
    for (int i = 0; i < endpoint->world->n_ranks; i++) {
        struct peer *peer = &endpoint->peers[i];
        while (peer->fd >= 0 && peer->sending.first && services->now_ns() < deadline_ns) {
            struct pollfd sending = {.fd = peer->fd, .events = POLLOUT};
            (void)poll(&sending, 1, LOOK_MS);
            send_now(peer);
        }
        if (peer->fd >= 0) {
            (void)close(peer->fd);
        }
    }
    services->free(endpoint->peers);
    services->free(endpoint);
}

static shoal_status packet_open(const struct transport_world *world, int64_t deadline_ns,
                                struct endpoint **endpoint_out)
{
    struct endpoint *endpoint = services->alloc_zeroed(1, sizeof *endpoint);
    struct peer *peers = services->alloc_zeroed((size_t)world->n_ranks, sizeof *peers);
    if (!endpoint || !peers) {
        services->free(endpoint);
        services->free(peers);
        return SHOAL_ERR_NO_MEMORY;
    }
    *endpoint = (struct endpoint){.world = world, .peers = peers};
    for (int i = 0; i < world->n_ranks; i++) {
        peers[i].fd = -1;
        peers[i].sending.end = &peers[i].sending.first;
        peers[i].receiving.end = &peers[i].receiving.first;
    }
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    shoal_status status = fd >= 0 ? meet(endpoint, fd, deadline_ns) : fail_system("no socket");
    if (fd >= 0) {
        (void)close(fd);
    }
    if (status != SHOAL_OK) {
        packet_close(endpoint, 0);
        return status;
    }
    *endpoint_out = endpoint;
    return SHOAL_OK;
}

/* BEGIN kind: docs/extending.md shows this part. */
static const struct endpoint_kind packet_kind = {
    .struct_size = sizeof(struct endpoint_kind),
    .name = "packet",
    .doc = "packets over Unix sockets, between the ranks of one machine",
    .any_thread = true,
    .open = packet_open,
    .close = packet_close,
    .isend = packet_isend,
    .irecv = packet_irecv,
    .test = packet_test,
    .cancel = packet_cancel,
    .progress = packet_progress,
    .failure = packet_failure,
};

const struct transport *shoal_transport_module(const struct transport_services *given)
{
    if (!transport_services_fit(given)) {
        return NULL;
    }
    services = given;
    return services->message_transport(&packet_kind);
}
/* END kind */
