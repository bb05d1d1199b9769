/* SPDX-License-Identifier: MIT */
/*
 * The server's thread: one poll loop over listeners and connections. A connection has one request at a time; it is
 * read only while nothing waits to be sent to it, so what a client can make the server keep is bounded by one
 * request, one answer, and what it stores on purpose.
 */
#include "bootstrap/server/server.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fp_mode.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/try.h"
#include "base/wait.h"
#include "bootstrap/server/answers.h"
#include "bootstrap/net/connection.h"
#include "bootstrap/server/meeting.h"
#include "bootstrap/net/strangers.h"
#include "bootstrap/net/tcp.h"

/* How many requests of one client are answered before the others have their turn. */
#define REQUESTS_PER_TURN 16
#define ACCEPTS_PER_TURN 64
/* How long nobody is accepted after descriptors ran out. */
#define DEAF_NS 50000000
/* How long clients wait for descriptors to be free again, before they are refused with a reason. */
#define PATIENCE_NS 1000000000
/* How long a failed meeting stays open, so that ranks that arrive late are told. */
#define LINGER_NS 1000000000
/* The longest sleep of the thread. If the program closes descriptors that it did not open, the thread cannot be woken
   by one, and finds out by itself that it must end. */
#define NAP_NS 500000000

static void close_fd(int fd)
{
    if (fd >= 0) {
        (void)close(fd);
    }
}

/* Serving ----------------------------------------------------------------------------------------------- */

static void serve_connection(struct server *server, struct connection *connection)
{
    for (int i = 0; i < REQUESTS_PER_TURN && connection_may_read(connection); i++) {
        if (!connection_read_request(connection)) {
            return;
        }
        answer_request(server, connection);
    }
}

/* Accepting --------------------------------------------------------------------------------------------- */

/* Sends the thread's error text as the answer and closes the connection. */
static void refuse_connection(int fd, shoal_status status)
{
    struct connection refused = {.fd = fd};
    connection_fail(&refused, status);
    mem_free(refused.output);
    (void)close(fd);
}

#define N_FIXED 3 /* wake, listener, meeting_listener: polled beside the connections */

/* Makes room to poll one more connection, so that the loop itself never needs memory. */
static shoal_status reserve_polled(struct server *server)
{
    return mem_grow((void **)&server->polled, &server->polled_capacity,
                    N_FIXED + STRANGERS_POLLED + server->n_connections + 1, sizeof(struct pollfd));
}

static void add_connection(struct server *server, int fd, bool is_remote)
{
    struct connection *connection = mem_alloc(sizeof(*connection));
    if (!connection || reserve_polled(server) != SHOAL_OK) {
        mem_free(connection);
        refuse_connection(fd, SHOAL_ERR_NO_MEMORY);
        return;
    }
    *connection =
        (struct connection){.fd = fd, .is_remote = is_remote, .joined_rank = -1, .next = server->connections};
    server->connections = connection;
    server->n_connections++;
}

/* Takes a TCP connection whose client has proved that it knows the token. */
static void admit(void *context, int fd)
{
    add_connection(context, fd, /*is_remote=*/true);
}

static void open_spare(struct server *server)
{
    if (server->spare < 0) {
        server->spare = os_duplicate(server->wake);
    }
}

/* Tells the first client in line why it is not accepted (the thread's error text). The spare descriptor is closed to
   make room for its connection. If descriptors are free again by now, the client is accepted. */
static void refuse_first(struct server *server, int listener)
{
    char why[ERROR_TEXT_BYTES];
    int fd = -1;
    (void)snprintf(why, sizeof why, "%s", shoal_error_text());
    close_fd(server->spare);
    server->spare = -1;
    /* This fails if another thread has taken the descriptor. */
    bool is_accepted = socket_accept(listener, &fd) == SHOAL_OK && fd >= 0;
    open_spare(server);
    if (is_accepted && server->spare >= 0) {
        add_connection(server, fd, /*is_remote=*/false); /* a spare was free too: descriptors are back */
    } else if (is_accepted) {
        shoal_status status =
            error_set(SHOAL_ERR_SYSTEM, "the server thread of rank %d cannot accept a connection: %s",
                      server->card.rank, why);
        refuse_connection(fd, status);
        open_spare(server);
    }
}

/* Refuses clients in line while there are no descriptors. Stops when one can be accepted. */
static void refuse_waiting(struct server *server, int listener)
{
    for (int i = 0; i < ACCEPTS_PER_TURN && server->spare >= 0; i++) {
        int fd = -1;
        refuse_first(server, listener);
        if (socket_accept(listener, &fd) == SHOAL_OK) {
            if (fd >= 0) {
                add_connection(server, fd, /*is_remote=*/false);
            }
            return;
        }
    }
}

/* Called after accept has failed, most likely for want of descriptors: accepts nobody for a while. */
static void turn_deaf(struct server *server, int listener)
{
    int64_t now_ns = clock_now_ns();
    if (server->deaf_until_ns < now_ns - PATIENCE_NS) {
        LOG(SHOAL_LOG_WARN, "the server thread accepts no connections for a while: %s", shoal_error_text());
        server->deaf_since_ns = now_ns;
    } else if (now_ns - server->deaf_since_ns >= PATIENCE_NS) {
        refuse_waiting(server, listener);
    }
    server->deaf_until_ns = now_ns + DEAF_NS;
}

static void accept_connections(struct server *server, int listener)
{
    open_spare(server);
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd;
        if (socket_accept(listener, &fd) != SHOAL_OK) {
            turn_deaf(server, listener);
            return;
        }
        if (fd < 0) {
            return;
        }
        server->deaf_until_ns = INT64_MIN;
        add_connection(server, fd, /*is_remote=*/false);
    }
}

/* The loop ---------------------------------------------------------------------------------------------- */

/* Closes connections that are to be closed. True if there was one: its end may have changed others. */
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
            connection_close(connection);
        } else {
            link = &connection->next;
        }
    }
    return server->n_connections != n_before;
}

/* Answers requests whose time is over. Returns when the next one's is. */
static int64_t serve_deadlines(struct server *server)
{
    int64_t now_ns = clock_now_ns();
    int64_t next_ns = strangers_expire(server->strangers);
    if (server->deaf_until_ns > now_ns && server->deaf_until_ns < next_ns) {
        next_ns = server->deaf_until_ns;
    }
    for (struct connection *connection = server->connections; connection; connection = connection->next) {
        if (connection->is_waiting && now_ns >= connection->wait_until_ns) {
            answer_too_late(server, connection);
        } else if (connection->is_waiting && connection->wait_until_ns < next_ns) {
            next_ns = connection->wait_until_ns;
        }
    }
    return next_ns;
}

/* Fills server->polled. Returns how many entries it has. */
static size_t list_polled(struct server *server)
{
    bool is_deaf = clock_now_ns() < server->deaf_until_ns;
    struct pollfd *polled = server->polled;
    /* poll ignores negative descriptors. */
    polled[0] = (struct pollfd){.fd = server->wake, .events = POLLIN};
    polled[1] = (struct pollfd){.fd = is_deaf ? -1 : server->listener, .events = POLLIN};
    polled[2] = (struct pollfd){.fd = is_deaf ? -1 : server->meeting_listener, .events = POLLIN};
    size_t i = N_FIXED;
    for (struct connection *connection = server->connections; connection; connection = connection->next) {
        short events = connection->output ? POLLOUT : 0;
        events = connection_may_read(connection) ? POLLIN : events;
        polled[i++] = (struct pollfd){.fd = connection->fd, .events = events};
    }
    return i + strangers_list(server->strangers, polled + i);
}

static void serve_events(struct server *server)
{
    const struct pollfd *polled = server->polled + N_FIXED;
    /* New connections are put at the head of the list, so they are accepted after this walk. */
    for (struct connection *connection = server->connections; connection; connection = connection->next) {
        short events = (polled++)->revents;
        if (events & POLLOUT && connection->output) {
            connection_send_output(connection);
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
    left_ns = left_ns < 0 ? 0 : left_ns > NAP_NS ? NAP_NS : left_ns;
    struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000), .tv_nsec = left_ns % 1000000000};
    int n_ready = ppoll(server->polled, count, &left, NULL);
    /* Acquire: pairs with the release in end_thread. */
    if (atomic_load_explicit(&server->must_end, memory_order_acquire)) {
        return false;
    }
    if (n_ready <= 0) {
        return true;
    }
    if (server->polled[0].revents) {
        return false; /* the descriptor is not ours any more: see server_check */
    }
    short own_events = server->polled[1].revents;
    short meeting_events = server->polled[2].revents;
    serve_events(server);
    /* Strangers come after the connections. One that is admitted may make server->polled move, so their part is
       copied. */
    struct pollfd strangers[STRANGERS_POLLED];
    size_t n_strangers = count - N_FIXED - server->n_connections;
    memcpy(strangers, server->polled + N_FIXED + server->n_connections, n_strangers * sizeof *strangers);
    strangers_serve(server->strangers, strangers, admit, server);
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
    fp_mode_set_default();
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
    *server = (struct server){.card = *card,
                              .listener = -1,
                              .meeting_listener = -1,
                              .page_fd = -1,
                              .spare = -1,
                              .deaf_until_ns = INT64_MIN};
    server->wake = os_event();
    shoal_status status = SHOAL_OK;
    if (server->wake < 0) {
        status = error_set(SHOAL_ERR_SYSTEM, "the eventfd of the server thread could not be created: %s",
                           error_errno_text(errno));
        goto free_server;
    }
    open_spare(server);
    if (server->spare < 0) {
        status =
            error_set(SHOAL_ERR_SYSTEM, "a spare descriptor of the server thread could not be opened: %s",
                      error_errno_text(errno));
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

shoal_status server_open_network(struct server *server, int listener, int page_fd, struct watch *watch)
{
    server->strangers = strangers_create();
    if (!server->strangers) {
        (void)close(listener);
        return SHOAL_ERR_NO_MEMORY;
    }
    const struct proof_key key = {{server->card.token[0], server->card.token[1]}};
    strangers_open_door(server->strangers, DOOR_OWN, listener, &key);
    server->page_fd = page_fd;
    server->watch = watch;
    return SHOAL_OK;
}

shoal_status server_open_address(struct server *server, const struct address *address,
                                 const struct proof_key *key)
{
    struct address bound = *address;
    struct address any = address_any(/*family=*/6, address->port);
    int listener = -1;
    shoal_status status = tcp_listen(&bound, &listener);
    if (status == SHOAL_ERR_SYSTEM && memcmp(&bound, &any, sizeof any) == 0) {
        bound = address_any(/*family=*/4, address->port); /* a machine without IPv6 */
        status = tcp_listen(&bound, &listener);
    }
    TRY(status);
    strangers_open_door(server->strangers, DOOR_MEETING, listener, key);
    return SHOAL_OK;
}

void server_close_network(struct server *server)
{
    strangers_shut_door(server->strangers, DOOR_OWN);
}

void server_set_hearer(struct server *server,
                       void (*hear)(void *context, const char *name, shoal_status status, const char *text),
                       void *context)
{
    server->hear = hear;
    server->hear_context = context;
}

shoal_status server_start(struct server *server)
{
    /* os_start_thread blocks all signals: no handler of the application runs on this thread. */
    int error = os_start_thread(&server->thread, run_server, server);
    if (error != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "the server thread could not be created: %s",
                         error_thread_text(error));
    }
    server->is_running = true;
    return SHOAL_OK;
}

void server_linger(struct server *server)
{
    if (!server->is_running || !server->meeting) {
        return;
    }
    struct wait_options options = {.deadline_ns = clock_now_ns() + LINGER_NS, .what = "ranks to arrive"};
    uint32_t n_ranks = (uint32_t)server->card.n_ranks;
    shoal_status status = SHOAL_OK;
    uint32_t n_joins = 0;
    /* Relaxed: the number stands for itself. */
    while (status == SHOAL_OK &&
           (n_joins = atomic_load_explicit(&server->n_joins, memory_order_relaxed)) < n_ranks) {
        status = wait_while_equal(&server->n_joins, n_joins, &options);
    }
}

shoal_status server_check(const struct server *server)
{
    return os_is_event(server->wake) && os_socket_is_listening(server->listener)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_STATE,
                           "the program has closed descriptors of the library, which rank %d needs to "
                           "answer others: do not close descriptors that you did not open while a world is "
                           "open",
                           server->card.rank);
}

static void end_thread(struct server *server)
{
    if (server->is_running) {
        /* Release: pairs with the acquire in wait_for_events. */
        atomic_store_explicit(&server->must_end, true, memory_order_release);
        if (server_check(server) ==
            SHOAL_OK) { /* otherwise the number may be that of a file of the program */
            os_event_set(server->wake);
        }
        (void)pthread_join(server->thread, NULL);
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
        connection_close(connection);
    }
    close_fd(server->listener);
    close_fd(server->meeting_listener);
    close_fd(server->wake);
    close_fd(server->spare);
    strangers_free(server->strangers);
    entries_clear(&server->values);
    entries_clear(&server->segments);
    meeting_free(server->meeting);
    mem_free(server->polled);
    mem_free(server);
}
