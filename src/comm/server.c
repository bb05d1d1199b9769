/* SPDX-License-Identifier: MIT */
/*
 * The server's thread: one poll loop over listeners and connections. A connection has one request at a time; it is
 * read only while nothing waits to be sent to it, so what a client can make the server keep is bounded by one
 * request, one answer, and what it stores on purpose.
 */
#include "comm/server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/try.h"
#include "base/wait.h"
#include "comm/connection.h"
#include "comm/meeting.h"

/* So many requests of one client before the others have their turn. */
#define REQUESTS_PER_TURN 16
#define ACCEPTS_PER_TURN 64
/* How long nobody is accepted after descriptors ran out. */
#define DEAF_NS 50000000
/* How long a meeting that failed is kept open for those who have not heard of it. */
#define LINGER_NS 1000000000

/* Connections ------------------------------------------------------------------------------------------- */

static void free_payload(struct connection *connection)
{
    if (connection->payload != connection->small) {
        mem_free(connection->payload);
    }
    connection->payload = NULL;
}

static void close_connection(struct connection *connection)
{
    (void)close(connection->fd);
    free_payload(connection);
    mem_free(connection->output);
    mem_free(connection);
}

/* What the socket does not take at once is kept. */
static void keep_output(struct connection *connection, const struct iovec *parts, size_t n_parts, size_t sent)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n_parts; i++) {
        bytes += parts[i].iov_len;
    }
    if (sent == bytes) {
        return;
    }
    connection->output = mem_alloc(bytes);
    if (!connection->output) {
        connection->is_broken = true;
        return;
    }
    size_t used = 0;
    for (size_t i = 0; i < n_parts; i++) {
        if (parts[i].iov_len > 0) {
            memcpy(connection->output + used, parts[i].iov_base, parts[i].iov_len);
            used += parts[i].iov_len;
        }
    }
    connection->output_bytes = bytes;
    connection->output_sent = sent;
}

/* Ready for the next request. */
static void forget_request(struct connection *connection)
{
    free_payload(connection);
    connection->header_have = 0;
    connection->payload_have = 0;
    connection->is_waiting = false;
}

void connection_answer(struct connection *connection, shoal_status status, const void *payload, size_t bytes,
                       int fd)
{
    struct frame_header header = {
        .magic = FRAME_MAGIC, .op = connection->header.op, .status = status, .bytes = (uint32_t)bytes};
    const struct iovec parts[2] = {{.iov_base = &header, .iov_len = sizeof header},
                                   {.iov_base = (void *)(uintptr_t)payload, .iov_len = bytes}};
    size_t sent = 0;
    /* One answer at a time; a second one could only be to a client that did not wait for the first. */
    enum socket_result result =
        connection->output ? SOCKET_GONE : socket_write_now(connection->fd, parts, 2, fd, &sent);
    /* A descriptor goes with the first byte or not at all: it was only lent. Nothing else waits in this socket, so
       there is room for it. */
    if (result == SOCKET_GONE || (result == SOCKET_LATER && fd >= 0)) {
        connection->is_broken = true;
    } else {
        keep_output(connection, parts, 2, sent);
    }
    forget_request(connection);
}

void connection_fail(struct connection *connection, shoal_status status)
{
    const char *text = shoal_error_text();
    connection_answer(connection, status, text, strlen(text), /*fd=*/-1);
}

static void send_output(struct connection *connection)
{
    const struct iovec part = {.iov_base = connection->output + connection->output_sent,
                               .iov_len = connection->output_bytes - connection->output_sent};
    size_t sent = 0;
    if (socket_write_now(connection->fd, &part, 1, /*passed_fd=*/-1, &sent) == SOCKET_GONE) {
        connection->is_broken = true;
        return;
    }
    connection->output_sent += sent;
    if (connection->output_sent == connection->output_bytes) {
        mem_free(connection->output);
        connection->output = NULL;
    }
}

/* Reading ----------------------------------------------------------------------------------------------- */

/* The header is there: makes room for the rest. */
static void begin_payload(struct connection *connection)
{
    const struct frame_header *header = &connection->header;
    if (!frame_header_is_good(header)) {
        LOG(SHOAL_LOG_WARN, "server dropped a client: no request, process %d",
            socket_peer_pid(connection->fd));
        connection->is_broken = true;
        return;
    }
    connection->payload =
        header->bytes < CONNECTION_SMALL_BYTES ? connection->small : mem_alloc((size_t)header->bytes + 1);
    if (!connection->payload) {
        /* What comes next can not be told apart any more. */
        connection_fail(connection, SHOAL_ERR_NO_MEMORY);
        connection->is_over = true;
    }
}

/* Reads what is there of one request; true when it is complete. */
static bool read_request(struct connection *connection)
{
    size_t received = 0;
    while (connection->header_have < sizeof connection->header) {
        enum socket_result result =
            socket_read_now(connection->fd, (char *)&connection->header + connection->header_have,
                            sizeof connection->header - connection->header_have, &received);
        if (result != SOCKET_DONE) {
            connection->is_broken = result == SOCKET_GONE;
            return false;
        }
        connection->header_have += received;
        if (connection->header_have == sizeof connection->header) {
            begin_payload(connection);
        }
    }
    if (connection->is_broken || connection->is_over) {
        return false;
    }
    while (connection->payload_have < connection->header.bytes) {
        enum socket_result result =
            socket_read_now(connection->fd, connection->payload + connection->payload_have,
                            connection->header.bytes - connection->payload_have, &received);
        if (result != SOCKET_DONE) {
            connection->is_broken = result == SOCKET_GONE;
            return false;
        }
        connection->payload_have += received;
    }
    connection->payload[connection->header.bytes] = '\0';
    return true;
}

static bool may_read(const struct connection *connection)
{
    return !connection->output && !connection->is_waiting && !connection->is_over && !connection->is_broken;
}

static void serve_connection(struct server *server, struct connection *connection)
{
    for (int i = 0; i < REQUESTS_PER_TURN && may_read(connection); i++) {
        if (!read_request(connection)) {
            return;
        }
        answer_request(server, connection);
    }
}

/* Accepting --------------------------------------------------------------------------------------------- */

/* Without memory for it, it is told so and closed. */
static void refuse_connection(int fd)
{
    struct connection refused = {.fd = fd};
    connection_fail(&refused, SHOAL_ERR_NO_MEMORY);
    mem_free(refused.output);
    (void)close(fd);
}

#define N_FIXED 3 /* wake, listener, meeting_listener: polled beside the connections */

/* Room to poll one more: the loop itself never needs memory. */
static shoal_status reserve_polled(struct server *server)
{
    return mem_grow((void **)&server->polled, &server->polled_capacity, N_FIXED + server->n_connections + 1,
                    sizeof(struct pollfd));
}

static void add_connection(struct server *server, int fd)
{
    struct connection *connection = mem_alloc(sizeof(*connection));
    if (!connection || reserve_polled(server) != SHOAL_OK) {
        mem_free(connection);
        refuse_connection(fd);
        return;
    }
    *connection = (struct connection){.fd = fd, .joined_rank = -1, .next = server->connections};
    server->connections = connection;
    server->n_connections++;
}

static void accept_connections(struct server *server, int listener)
{
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd;
        if (socket_accept(listener, &fd) != SHOAL_OK) {
            /* Most likely too many descriptors: others may close some. */
            LOG(SHOAL_LOG_WARN, "server accepts nobody for a while: %s", shoal_error_text());
            server->deaf_until_ns = clock_now_ns() + DEAF_NS;
            return;
        }
        if (fd < 0) {
            return;
        }
        add_connection(server, fd);
    }
}

/* The loop ---------------------------------------------------------------------------------------------- */

/* True when something was: that may have ended others. */
static bool close_what_ended(struct server *server)
{
    size_t n_before = server->n_connections;
    struct connection **link = &server->connections;
    while (*link) {
        struct connection *connection = *link;
        if (connection->is_broken || (connection->is_over && !connection->output)) {
            *link = connection->next;
            server->n_connections--;
            answer_loss(server, connection);
            close_connection(connection);
        } else {
            link = &connection->next;
        }
    }
    return server->n_connections != n_before;
}

/* Those whose time is over are told; returns when the next one's is. */
static int64_t serve_deadlines(struct server *server)
{
    int64_t now_ns = clock_now_ns();
    int64_t next_ns = server->deaf_until_ns > now_ns ? server->deaf_until_ns : DEADLINE_NEVER;
    for (struct connection *connection = server->connections; connection; connection = connection->next) {
        if (connection->is_waiting && now_ns >= connection->wait_until_ns) {
            answer_too_late(server, connection);
        } else if (connection->is_waiting && connection->wait_until_ns < next_ns) {
            next_ns = connection->wait_until_ns;
        }
    }
    return next_ns;
}

/* Fills server->polled; returns how many. */
static size_t list_polled(struct server *server)
{
    bool is_deaf = clock_now_ns() < server->deaf_until_ns;
    struct pollfd *polled = server->polled;
    /* poll leaves out negative descriptors. */
    polled[0] = (struct pollfd){.fd = server->wake, .events = POLLIN};
    polled[1] = (struct pollfd){.fd = is_deaf ? -1 : server->listener, .events = POLLIN};
    polled[2] = (struct pollfd){.fd = is_deaf ? -1 : server->meeting_listener, .events = POLLIN};
    size_t i = N_FIXED;
    for (struct connection *connection = server->connections; connection; connection = connection->next) {
        short events = connection->output ? POLLOUT : 0;
        events = may_read(connection) ? POLLIN : events;
        polled[i++] = (struct pollfd){.fd = connection->fd, .events = events};
    }
    return i;
}

static void serve_events(struct server *server)
{
    const struct pollfd *polled = server->polled + N_FIXED;
    /* New ones come before the others in the list: they are accepted after this walk. */
    for (struct connection *connection = server->connections; connection; connection = connection->next) {
        short events = (polled++)->revents;
        if (events & POLLOUT && connection->output) {
            send_output(connection);
        }
        if (events & POLLIN) {
            serve_connection(server, connection);
        } else if (events & (POLLHUP | POLLERR | POLLNVAL)) {
            connection->is_broken = true;
        }
    }
}

/* Sleeps until something happens or until_ns; false when the server shall end. */
static bool wait_for_events(struct server *server, int64_t until_ns)
{
    size_t count = list_polled(server);
    int64_t left_ns = until_ns - clock_now_ns();
    left_ns = left_ns < 0 ? 0 : left_ns;
    struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000), .tv_nsec = left_ns % 1000000000};
    if (ppoll(server->polled, count, until_ns == DEADLINE_NEVER ? NULL : &left, NULL) <= 0) {
        return true;
    }
    if (server->polled[0].revents) {
        return false;
    }
    short own_events = server->polled[1].revents;
    short meeting_events = server->polled[2].revents;
    serve_events(server);
    if (own_events) {
        accept_connections(server, server->listener);
    }
    if (meeting_events && server->meeting_listener >= 0) {
        accept_connections(server, server->meeting_listener);
    }
    return true;
}

static void *run_server(void *argument)
{
    struct server *server = argument;
    bool goes_on = true;
    while (goes_on) {
        int64_t until_ns = serve_deadlines(server);
        while (close_what_ended(server)) {
        }
        goes_on = wait_for_events(server, until_ns);
    }
    return NULL;
}

/* Beginning and end ------------------------------------------------------------------------------------- */

shoal_status server_create(const struct card *card, struct server **server_out)
{
    struct server *server = mem_alloc(sizeof(*server));
    if (!server) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *server = (struct server){
        .card = *card, .listener = -1, .meeting_listener = -1, .page_fd = -1, .deaf_until_ns = INT64_MIN};
    server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    shoal_status status = SHOAL_OK;
    if (server->wake < 0) {
        status = error_set(SHOAL_ERR_SYSTEM, "no eventfd for the server: %s", strerror(errno));
        goto free_server;
    }
    TRY_GOTO(status, reserve_polled(server), free_server);
    char name[SOCKET_NAME_BYTES];
    card_server_name(card, name);
    TRY_GOTO(status, socket_listen(name, &server->listener), free_server);
    *server_out = server;
    return SHOAL_OK;

free_server:
    server_free(server);
    return status;
}

shoal_status server_host_meeting(struct server *server, const char *name, int page_fd)
{
    if (!server->meeting) {
        TRY(meeting_create(&server->card, &server->meeting));
    }
    server->page_fd = page_fd;
    return name ? socket_listen(name, &server->meeting_listener) : SHOAL_OK;
}

shoal_status server_start(struct server *server)
{
    /* Signals are the application's: none of its handlers runs on our thread. */
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&server->thread, NULL, run_server, server);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "no thread for the server: %s", strerror(error));
    }
    server->is_running = true;
    return SHOAL_OK;
}

void server_linger(struct server *server)
{
    if (!server->is_running || !server->meeting) {
        return;
    }
    struct wait_options options = {.deadline_ns = clock_now_ns() + LINGER_NS, .what = "ranks to come"};
    uint32_t n_ranks = (uint32_t)server->card.n_ranks;
    shoal_status status = SHOAL_OK;
    uint32_t n_joins = 0;
    /* Relaxed: the number stands for itself. */
    while (status == SHOAL_OK &&
           (n_joins = atomic_load_explicit(&server->n_joins, memory_order_relaxed)) < n_ranks) {
        status = wait_while_equal(&server->n_joins, n_joins, &options);
    }
}

static void end_thread(struct server *server)
{
    if (server->is_running) {
        uint64_t one = 1;
        /* A fresh counter takes it: it can not fail. */
        ssize_t written = write(server->wake, &one, sizeof one);
        (void)written;
        (void)pthread_join(server->thread, NULL);
    }
}

static void close_fd(int fd)
{
    if (fd >= 0) {
        (void)close(fd);
    }
}

void server_free(struct server *server)
{
    if (!server) {
        return;
    }
    end_thread(server);
    while (server->connections) {
        struct connection *connection = server->connections;
        server->connections = connection->next;
        close_connection(connection);
    }
    close_fd(server->listener);
    close_fd(server->meeting_listener);
    close_fd(server->wake);
    entries_clear(&server->values);
    entries_clear(&server->segments);
    meeting_free(server->meeting);
    mem_free(server->polled);
    mem_free(server);
}
