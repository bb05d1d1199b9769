/* SPDX-License-Identifier: MIT */
/* TCP connections that have not proved yet that they know the token. Nothing here waits. */
#include "bootstrap/net/strangers.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/wait.h"
#include "bootstrap/net/hello.h"
#include "bootstrap/net/socket.h"
#include "bootstrap/net/tcp.h"

/* How long a stranger may take for its hello: normally, and when all places are taken. */
#define HELLO_NS INT64_C(10000000000)
#define HELLO_LEAST_NS INT64_C(1000000000)
/* How long nobody is accepted after descriptors ran out. */
#define DEAF_NS 50000000

struct stranger {
    int fd; /* -1 if the place is free */
    enum door door;
    int64_t since_ns;
    struct hello_head greeting;
    struct hello hello;
    size_t have;
};

struct doorway {
    _Atomic int listener; /* -1 if it is closed; read by strangers_shut_door on another thread */
    struct proof_key key;
};

struct strangers {
    struct doorway doors[N_DOORS];
    struct stranger places[STRANGERS_MOST];
    size_t n_strangers;
    int64_t deaf_until_ns;
    struct strangers_rejected rejected;
};

struct strangers *strangers_create(void)
{
    struct strangers *strangers = mem_alloc_zeroed(1, sizeof *strangers);
    if (strangers) {
        for (int i = 0; i < N_DOORS; i++) {
            strangers->doors[i].listener = -1;
        }
        for (int i = 0; i < STRANGERS_MOST; i++) {
            strangers->places[i].fd = -1;
        }
        strangers->deaf_until_ns = INT64_MIN;
    }
    return strangers;
}

static void leave(struct strangers *strangers, struct stranger *stranger)
{
    stranger->fd = -1;
    strangers->n_strangers--;
}

static void turn_away(struct strangers *strangers, struct stranger *stranger)
{
    (void)close(stranger->fd);
    leave(strangers, stranger);
}

void strangers_open_door(struct strangers *strangers, enum door door, int listener,
                         const struct proof_key *key)
{
    strangers->doors[door].key = *key;
    strangers->doors[door].listener = listener;
}

void strangers_close_door(struct strangers *strangers, enum door door)
{
    if (!strangers || strangers->doors[door].listener < 0) {
        return;
    }
    (void)close(strangers->doors[door].listener);
    strangers->doors[door].listener = -1;
    for (int i = 0; i < STRANGERS_MOST; i++) {
        struct stranger *stranger = &strangers->places[i];
        if (stranger->fd >= 0 && stranger->door == door) {
            turn_away(strangers, stranger);
        }
    }
}

/* The server's thread polls the listener and sees that it was shut down. Only that thread closes it, so the
   descriptor is not reused before. */
void strangers_shut_door(struct strangers *strangers, enum door door)
{
    if (strangers && strangers->doors[door].listener >= 0) {
        (void)shutdown(strangers->doors[door].listener, SHUT_RDWR);
    }
}

void strangers_free(struct strangers *strangers)
{
    if (strangers) {
        for (int i = 0; i < N_DOORS; i++) {
            strangers_close_door(strangers, (enum door)i);
        }
        mem_free(strangers);
    }
}

/* Polling ----------------------------------------------------------------------------------------------- */

/* When the stranger is turned away. If all places are taken, that is sooner: others wait in the kernel's queue. */
static int64_t patience_ns(const struct strangers *strangers, const struct stranger *stranger)
{
    return stranger->since_ns + (strangers->n_strangers == STRANGERS_MOST ? HELLO_LEAST_NS : HELLO_NS);
}

size_t strangers_list(struct strangers *strangers, struct pollfd *polled)
{
    if (!strangers) {
        return 0;
    }
    bool is_open = strangers->n_strangers < STRANGERS_MOST && clock_now_ns() >= strangers->deaf_until_ns;
    for (int i = 0; i < N_DOORS; i++) {
        polled[i] = (struct pollfd){.fd = is_open ? strangers->doors[i].listener : -1, .events = POLLIN};
    }
    if (strangers->n_strangers == 0) {
        return N_DOORS;
    }
    for (int i = 0; i < STRANGERS_MOST; i++) {
        polled[N_DOORS + i] = (struct pollfd){.fd = strangers->places[i].fd, .events = POLLIN};
    }
    return STRANGERS_POLLED;
}

int64_t strangers_expire(struct strangers *strangers)
{
    int64_t next_ns = DEADLINE_NEVER;
    if (!strangers) {
        return next_ns;
    }
    int64_t now_ns = clock_now_ns();
    if (strangers->deaf_until_ns > now_ns) {
        next_ns = strangers->deaf_until_ns;
    }
    for (int i = 0; i < STRANGERS_MOST && strangers->n_strangers > 0; i++) {
        struct stranger *stranger = &strangers->places[i];
        int64_t until_ns = patience_ns(strangers, stranger);
        if (stranger->fd >= 0 && now_ns >= until_ns) {
            turn_away(strangers, stranger);
        } else if (stranger->fd >= 0 && until_ns < next_ns) {
            next_ns = until_ns;
        }
    }
    return next_ns;
}

/* Serving ----------------------------------------------------------------------------------------------- */

/* Returns true if all bytes were sent. The buffer of a new socket has room for a few. */
static bool send_bytes(int fd, const void *bytes, size_t n_bytes)
{
    const struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n_bytes};
    size_t sent = 0;
    return socket_write_now(fd, &part, 1, /*passed_fd=*/-1, &sent) == SOCKET_DONE && sent == n_bytes;
}

/* Accepts one connection. Returns false if there is none, or no place for it. */
static bool accept_one(struct strangers *strangers, enum door door)
{
    struct stranger *stranger = strangers->places;
    while (stranger < strangers->places + STRANGERS_MOST && stranger->fd >= 0) {
        stranger++;
    }
    int fd = -1;
    if (stranger == strangers->places + STRANGERS_MOST) {
        return false;
    }
    if (tcp_accept(strangers->doors[door].listener, &fd) != SHOAL_OK) {
        LOG(SHOAL_LOG_WARN, "the server thread accepts no connections from the network for a while: %s",
            shoal_error_text());
        strangers->deaf_until_ns = clock_now_ns() + DEAF_NS;
        return false;
    }
    if (fd < 0) {
        return false;
    }
    *stranger = (struct stranger){.fd = fd, .door = door, .since_ns = clock_now_ns()};
    strangers->n_strangers++;
    if (!hello_greet(&stranger->greeting) ||
        !send_bytes(fd, &stranger->greeting, sizeof stranger->greeting)) {
        turn_away(strangers, stranger);
    }
    return true;
}

static void note_rejected(struct strangers *strangers, int fd, const char *why)
{
    struct sockaddr_storage system = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof system;
    char from[ADDRESS_TEXT_BYTES];
    bool is_known = getpeername(fd, (struct sockaddr *)&system, &bytes) == 0;
    strangers->rejected = (struct strangers_rejected){
        .count = strangers->rejected.count + 1, .from = address_from_system(&system), .why = why};
    LOG(SHOAL_LOG_WARN, "a connection from %s was rejected: %s",
        is_known ? address_host(&strangers->rejected.from, from) : "the network", why);
}

struct strangers_rejected strangers_get_rejected(const struct strangers *strangers)
{
    return strangers ? strangers->rejected : (struct strangers_rejected){.count = 0};
}

/* Checks a complete hello, answers it, and admits the stranger or turns it away. */
static void answer_hello(struct strangers *strangers, struct stranger *stranger,
                         void (*admit)(void *context, int fd), void *context)
{
    struct welcome welcome =
        hello_judge(&stranger->greeting, &stranger->hello, &strangers->doors[stranger->door].key);
    bool is_told = send_bytes(stranger->fd, &welcome, sizeof welcome);
    if (welcome.verdict == HELLO_WELCOME && is_told) {
        int fd = stranger->fd;
        leave(strangers, stranger);
        admit(context, fd);
        return;
    }
    if (welcome.verdict == HELLO_WRONG_TOKEN) {
        note_rejected(strangers, stranger->fd, "it does not have the token of this job");
    } else if (is_told) {
        note_rejected(strangers, stranger->fd,
                      "it has another version of the library, or another byte order");
    }
    turn_away(strangers, stranger);
}

static void hear(struct strangers *strangers, struct stranger *stranger, void (*admit)(void *context, int fd),
                 void *context)
{
    size_t received = 0;
    enum socket_result result = socket_read_now(stranger->fd, (char *)&stranger->hello + stranger->have,
                                                sizeof stranger->hello - stranger->have, &received);
    stranger->have += received;
    /* A client that does not begin with the magic is turned away at once; one that is only slow has its time. */
    size_t n_known = stranger->have < sizeof stranger->hello.head.magic ? stranger->have
                                                                        : sizeof stranger->hello.head.magic;
    if (result == SOCKET_GONE || memcmp(stranger->hello.head.magic, HELLO_MAGIC, n_known) != 0) {
        turn_away(strangers, stranger);
    } else if (stranger->have == sizeof stranger->hello) {
        answer_hello(strangers, stranger, admit, context);
    }
}

void strangers_serve(struct strangers *strangers, const struct pollfd *polled,
                     void (*admit)(void *context, int fd), void *context)
{
    if (!strangers) {
        return;
    }
    /* strangers_list lists the places only if one was taken. New ones are taken below, after this loop. */
    for (int i = 0; i < STRANGERS_MOST && strangers->n_strangers > 0; i++) {
        if (strangers->places[i].fd >= 0 && polled[N_DOORS + i].revents != 0) {
            hear(strangers, &strangers->places[i], admit, context);
        }
    }
    for (int i = 0; i < N_DOORS; i++) {
        short events = polled[i].revents;
        if ((events & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
            strangers_close_door(strangers, (enum door)i);
        } else if (events != 0 && strangers->doors[i].listener >= 0) {
            while (accept_one(strangers, (enum door)i)) {
            }
        }
    }
}
