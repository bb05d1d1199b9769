/* SPDX-License-Identifier: MIT */
/* Messages over TCP: a head with the length, then the bytes. Sockets never block; epoll says when they would not. */
#include "transport/socket/socket.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "transport/socket/system.h"

#define MAGIC 0x4c4f4853u
#define EVENTS_AT_ONCE 32
/* Between two looks whether the peer's kernel has what was sent. */
#define CLOSE_NAP_NS 1000000

/* Failing ------------------------------------------------------------------------------------------------ */

static void end_all(struct endpoint_message **first)
{
    while (*first) {
        struct endpoint_message *message = *first;
        *first = message->next;
        message->state = ENDPOINT_FAILED;
    }
}

/* A child that was forked may have the socket too: closing alone would neither end it nor take it out of the poll set. */
static __attribute__((format(printf, 2, 3))) void fail(struct connection *connection, const char *format, ...)
{
    va_list arguments;
    if (connection->has_failed) {
        return;
    }
    va_start(arguments, format);
    (void)vsnprintf(connection->text, sizeof connection->text, format, arguments);
    va_end(arguments);
    connection->has_failed = true;
    if (connection->events != 0) {
        (void)epoll_ctl(connection->poll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
    }
    (void)shutdown(connection->fd, SHUT_RDWR);
    (void)close(connection->fd);
    connection->fd = -1;
    end_all(&connection->sending);
    end_all(&connection->receiving);
}

static const char *socket_failure(struct endpoint *endpoint, int rank)
{
    const struct connection *connection = &endpoint->connections[rank];
    return connection->has_failed ? connection->text : NULL;
}

/* Lists of messages -------------------------------------------------------------------------------------- */

static void append(struct endpoint_message **first, struct endpoint_message **last,
                   struct endpoint_message *message)
{
    if (*first) {
        (*last)->next = message;
    } else {
        *first = message;
    }
    *last = message;
}

static void end_first(struct endpoint_message **first)
{
    struct endpoint_message *message = *first;
    *first = message->next;
    message->state = ENDPOINT_DONE;
}

static bool take_out(struct endpoint_message **first, struct endpoint_message **last,
                     struct endpoint_message *message)
{
    struct endpoint_message *before = NULL;
    for (struct endpoint_message **place = first; *place; place = &(*place)->next) {
        if (*place == message) {
            *place = message->next;
            *last = *last == message ? before : *last;
            return true;
        }
        before = *place;
    }
    return false;
}

/* Moving ------------------------------------------------------------------------------------------------- */

/* A socket for which nothing is to be done is not polled: its end would be an event that nobody takes. */
static void watch(struct endpoint *endpoint, int rank)
{
    struct connection *connection = &endpoint->connections[rank];
    uint32_t events =
        (connection->receiving ? EPOLLIN : 0u) | (connection->sending ? (uint32_t)EPOLLOUT : 0u);
    if (connection->fd < 0 || events == connection->events) {
        return;
    }
    struct epoll_event event = {.events = events, .data = {.u32 = (uint32_t)rank}};
    int operation = events == 0 ? EPOLL_CTL_DEL : connection->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (epoll_ctl(endpoint->poll_fd, operation, connection->fd, &event) != 0) {
        fail(connection, "its socket cannot be watched: %s", strerror(errno));
        return;
    }
    connection->events = events;
}

static bool is_later(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/* Writes what can be written now. */
static void send_now(struct connection *connection)
{
    while (connection->sending) {
        struct endpoint_message *message = connection->sending;
        if (message->moved == 0 && connection->sent_head_bytes == 0) {
            connection->sent_head = (struct wire_head){.magic = MAGIC, .bytes = (uint32_t)message->bytes};
        }
        struct iovec parts[2] = {
            {(char *)&connection->sent_head + connection->sent_head_bytes,
             sizeof connection->sent_head - connection->sent_head_bytes},
            {message->data + message->moved, message->bytes - message->moved},
        };
        ssize_t sent = system_send(connection->fd, parts, 2);
        if (sent < 0) {
            int error = errno;
            if (!is_later(error)) {
                fail(connection, "writing to its socket: %s", strerror(error));
            }
            return;
        }
        size_t of_head = (size_t)sent < parts[0].iov_len ? (size_t)sent : parts[0].iov_len;
        connection->sent_head_bytes += of_head;
        message->moved += (size_t)sent - of_head;
        if (connection->sent_head_bytes == sizeof connection->sent_head && message->moved == message->bytes) {
            connection->sent_head_bytes = 0;
            end_first(&connection->sending);
        }
    }
}

/* Returns false if nothing more can be read now. *bytes_out counts what was read. */
static bool receive_into(struct connection *connection, void *buffer, size_t bytes, size_t *bytes_out)
{
    ssize_t received = bytes > 0 ? system_receive(connection->fd, buffer, bytes) : 0;
    if (received > 0 || bytes == 0) {
        *bytes_out += (size_t)received;
        return true;
    }
    int error = received < 0 ? errno : 0;
    bool is_between = connection->received_head_bytes == 0;
    if (received == 0) {
        fail(connection, "%s",
             is_between ? "it closed the connection" : "the connection was cut in the middle of a message");
    } else if (!is_later(error)) {
        fail(connection, "reading from its socket%s: %s", is_between ? "" : " in the middle of a message",
             strerror(error));
    }
    return false;
}

static bool is_head_good(struct connection *connection, const struct endpoint_message *message)
{
    const struct wire_head *head = &connection->received_head;
    if (head->magic == MAGIC && head->bytes <= message->bytes) {
        return true;
    }
    fail(connection, "received data is not a message: magic %x, %u bytes", head->magic, head->bytes);
    return false;
}

/* Reads what can be read now, one message at most. */
static void receive_now(struct connection *connection)
{
    struct endpoint_message *message = connection->receiving;
    while (connection->received_head_bytes < sizeof connection->received_head) {
        char *at = (char *)&connection->received_head + connection->received_head_bytes;
        if (!receive_into(connection, at, sizeof connection->received_head - connection->received_head_bytes,
                          &connection->received_head_bytes)) {
            return;
        }
    }
    if (!is_head_good(connection, message)) {
        return;
    }
    size_t bytes = connection->received_head.bytes;
    while (message->moved < bytes) {
        if (!receive_into(connection, message->data + message->moved, bytes - message->moved,
                          &message->moved)) {
            return;
        }
    }
    message->bytes = bytes;
    connection->received_head_bytes = 0;
    end_first(&connection->receiving);
}

static void socket_isend(struct endpoint *endpoint, int rank, struct endpoint_message *message,
                         const void *data, size_t bytes)
{
    struct connection *connection = &endpoint->connections[rank];
    /* Never written to: one type serves both directions. */
    *message = (struct endpoint_message){.data = (char *)data, .bytes = bytes};
    if (connection->has_failed) {
        message->state = ENDPOINT_FAILED;
        return;
    }
    bool is_first = !connection->sending;
    append(&connection->sending, &connection->last_sending, message);
    if (is_first) {
        send_now(connection);
    }
    watch(endpoint, rank);
}

static void socket_irecv(struct endpoint *endpoint, int rank, struct endpoint_message *message, void *data,
                         size_t room)
{
    struct connection *connection = &endpoint->connections[rank];
    *message = (struct endpoint_message){.data = data, .bytes = room};
    if (connection->has_failed) {
        message->state = ENDPOINT_FAILED;
        return;
    }
    append(&connection->receiving, &connection->last_receiving, message);
    watch(endpoint, rank);
}

static enum endpoint_state socket_test(struct endpoint *endpoint, struct endpoint_message *message)
{
    return message->state;
}

/* Half a message that is received is only lost: what this rank has sent must still arrive, so the connection stays. */
static bool socket_cancel(struct endpoint *endpoint, int rank, struct endpoint_message *message)
{
    struct connection *connection = &endpoint->connections[rank];
    bool is_half = message == connection->sending && (message->moved > 0 || connection->sent_head_bytes > 0);
    if (!take_out(&connection->sending, &connection->last_sending, message)) {
        (void)take_out(&connection->receiving, &connection->last_receiving, message);
    }
    if (is_half) {
        fail(connection, "a message was cancelled after a part of it was sent");
    }
    return true;
}

static void drain_bell(struct endpoint *endpoint)
{
    uint64_t count;
    if (read(endpoint->bell_fd, &count, sizeof count) < 0) {
        return; /* it was drained already */
    }
}

/* Returns false if there may be more events. */
static bool handle_events(struct endpoint *endpoint)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    int n_events = epoll_wait(endpoint->poll_fd, events, EVENTS_AT_ONCE, 0);
    for (int i = 0; i < n_events; i++) {
        int rank = (int)events[i].data.u32;
        if (rank == endpoint->world->rank) {
            drain_bell(endpoint);
            continue;
        }
        struct connection *connection = &endpoint->connections[rank];
        /* What was received before an error is still read: the error comes after it. */
        if (connection->receiving && !connection->has_failed) {
            receive_now(connection);
        }
        if (connection->sending && !connection->has_failed) {
            send_now(connection);
        }
        watch(endpoint, rank);
    }
    return n_events < EVENTS_AT_ONCE;
}

/* Every connection that is ready comes up: epoll gives those that it has given before after the others. */
static void socket_progress(struct endpoint *endpoint)
{
    int n_left = endpoint->world->n_ranks;
    while (n_left > 0 && !handle_events(endpoint)) {
        n_left -= EVENTS_AT_ONCE;
    }
}

static void socket_wait(struct endpoint *endpoint, int64_t until_ns)
{
    int64_t left_ms = (until_ns - socket_services->now_ns() + 999999) / 1000000;
    system_wait(endpoint->poll_fd, left_ms < 0 ? 0 : left_ms > 1000 ? 1000 : (int)left_ms);
}

static void socket_wake(struct endpoint *endpoint)
{
    uint64_t one = 1;
    if (write(endpoint->bell_fd, &one, sizeof one) < 0) {
        return; /* it is full of wakes already */
    }
}

/* Opening and closing ------------------------------------------------------------------------------------ */

/* Whether the peer's kernel has everything; true too when it cannot be known. */
static bool has_arrived(const struct connection *connection)
{
    int n_bytes = 0;
    return connection->fd < 0 || ioctl(connection->fd, SIOCOUTQ, &n_bytes) != 0 || n_bytes == 0;
}

static void socket_close(struct endpoint *endpoint, int64_t deadline_ns)
{
    int n_ranks = endpoint->connections ? endpoint->world->n_ranks : 0;
    for (int i = 0; i < n_ranks; i++) {
        if (endpoint->connections[i].fd >= 0) {
            (void)shutdown(endpoint->connections[i].fd, SHUT_WR);
        }
    }
    for (int i = 0; i < n_ranks; i++) {
        struct connection *connection = &endpoint->connections[i];
        while (!has_arrived(connection) && socket_services->now_ns() < deadline_ns) {
            socket_services->sleep(CLOSE_NAP_NS);
        }
        if (connection->fd >= 0) {
            (void)close(connection->fd);
        }
    }
    if (endpoint->poll_fd >= 0) {
        (void)close(endpoint->poll_fd);
    }
    if (endpoint->bell_fd >= 0) {
        (void)close(endpoint->bell_fd);
    }
    socket_services->free(endpoint->connections);
    socket_services->free(endpoint);
}

static shoal_status prepare(struct endpoint *endpoint, int64_t deadline_ns)
{
    endpoint->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    endpoint->bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (endpoint->poll_fd < 0 || endpoint->bell_fd < 0) {
        return socket_services->set_error(SHOAL_ERR_SYSTEM,
                                          "the descriptors to watch sockets with could not be created: %s",
                                          strerror(errno));
    }
    struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = (uint32_t)endpoint->world->rank}};
    if (epoll_ctl(endpoint->poll_fd, EPOLL_CTL_ADD, endpoint->bell_fd, &event) != 0) {
        return socket_services->set_error(SHOAL_ERR_SYSTEM, "a descriptor cannot be watched: %s",
                                          strerror(errno));
    }
    for (int i = 0; i < endpoint->world->n_ranks; i++) {
        endpoint->connections[i].poll_fd = endpoint->poll_fd;
    }
    return socket_meet(endpoint, deadline_ns);
}

static shoal_status socket_open(const struct transport_world *world, int64_t deadline_ns,
                                struct endpoint **endpoint_out)
{
    struct endpoint *endpoint = socket_services->alloc_zeroed(1, sizeof *endpoint);
    if (!endpoint) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *endpoint = (struct endpoint){.world = world, .poll_fd = -1, .bell_fd = -1};
    endpoint->connections =
        socket_services->alloc_zeroed((size_t)world->n_ranks, sizeof *endpoint->connections);
    for (int i = 0; endpoint->connections && i < world->n_ranks; i++) {
        endpoint->connections[i].fd = -1;
    }
    shoal_status status = endpoint->connections ? prepare(endpoint, deadline_ns) : SHOAL_ERR_NO_MEMORY;
    if (status != SHOAL_OK) {
        socket_close(endpoint, 0);
        return status;
    }
    *endpoint_out = endpoint;
    return SHOAL_OK;
}

const struct endpoint_kind socket_kind = {
    .struct_size = sizeof(struct endpoint_kind),
    .name = SOCKET_NAME,
    .doc = "TCP between the ranks, over loopback or a chosen interface",
    .any_thread = true,
    .open = socket_open,
    .close = socket_close,
    .isend = socket_isend,
    .irecv = socket_irecv,
    .test = socket_test,
    .cancel = socket_cancel,
    .progress = socket_progress,
    .wait = socket_wait,
    .wake = socket_wake,
    .failure = socket_failure,
};
