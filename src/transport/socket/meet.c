/* SPDX-License-Identifier: MIT */
/*
 * How the ranks of a world find and connect to each other. Every rank listens on a port of its own and publishes its
 * address and a secret token by control messages. A rank connects to all ranks before it and accepts those after it.
 * Whoever connects must show the token of the rank it connects to; others are refused. The waits form no circle: a rank
 * accepts after it has connected, so rank 0 accepts first, then rank 1, and so on.
 *
 * A rank that fails here publishes that in place of its address, so that nobody waits for it.
 */
#include "transport/socket/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define TOKEN_BYTES 16
/* Between two looks whether the peers live. */
#define LOOK_MS 100
#define ADDRESS_BYTES 256
#define GONE_BYTES 480
/* How long the death of a rank whose connection fails may take to be noticed, and between two looks. */
#define DEATH_SECONDS 0.5
#define DEATH_NAP_NS INT64_C(10000000)
/* Connections that have not shown a token yet. */
#define STRANGERS_MOST 64
/* What a stranger has to show its token when others wait for its place. */
#define STRANGER_NS INT64_C(2000000000)

/* What a rank shows to the one it connects to. */
struct hello {
    char magic[8];
    uint32_t rank;
    uint32_t n_ranks;
    unsigned char token[TOKEN_BYTES];
};
static const char hello_magic[8] = "shoalT1";
static const char welcome[8] = "welcome";

struct stranger {
    int fd; /* -1 if there is none */
    int64_t deadline_ns;
    size_t n_bytes;
    struct hello hello;
};

/* How this rank can be reached. */
struct listener {
    int fd;
    char host[64];
    int port;
    unsigned char token[TOKEN_BYTES];
};

#define FAIL(...) socket_services->set_error(SHOAL_ERR_SYSTEM, __VA_ARGS__)

/* Listening ---------------------------------------------------------------------------------------------- */

static shoal_status choose_host(const struct transport_world *world, char *host, size_t bytes)
{
    const char *wanted = socket_services->variable("SOCKET_ADDRESS");
    if (*wanted == '\0' && world->address) {
        wanted = world->address;
    } else if (*wanted == '\0' && world->n_hosts > 1) {
        return socket_services->set_error(
            SHOAL_ERR_INVALID,
            "the ranks are on %d hosts: set SHOAL_TRANSPORT_SOCKET_ADDRESS on each to an "
            "address of the interface to use",
            world->n_hosts);
    }
    (void)snprintf(host, bytes, "%s", *wanted != '\0' ? wanted : "127.0.0.1");
    return SHOAL_OK;
}

/* Numeric addresses only: names could mean another interface on every rank. */
static shoal_status resolve(const char *host, int port, struct addrinfo **address_out)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    char service[16];
    (void)snprintf(service, sizeof service, "%d", port);
    int error = getaddrinfo(host, service, &hints, address_out);
    return error == 0
               ? SHOAL_OK
               : socket_services->set_error(
                     SHOAL_ERR_INVALID, "\"%.60s\" (SHOAL_TRANSPORT_SOCKET_ADDRESS) is not an address: %s",
                     host, gai_strerror(error));
}

static shoal_status find_port(struct listener *listener)
{
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof bound;
    char service[16] = "";
    if (getsockname(listener->fd, (struct sockaddr *)&bound, &bytes) != 0 ||
        getnameinfo((struct sockaddr *)&bound, bytes, NULL, 0, service, sizeof service, NI_NUMERICSERV) !=
            0 ||
        sscanf(service, "%d", &listener->port) != 1) {
        return FAIL("getsockname failed: %s", strerror(errno));
    }
    return SHOAL_OK;
}

static shoal_status listen_at(struct listener *listener, int n_ranks)
{
    struct addrinfo *address = NULL;
    shoal_status status = resolve(listener->host, 0, &address);
    if (status != SHOAL_OK) {
        return status;
    }
    listener->fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool is_listening = listener->fd >= 0 && bind(listener->fd, address->ai_addr, address->ai_addrlen) == 0 &&
                        listen(listener->fd, n_ranks + STRANGERS_MOST) == 0;
    int error = errno;
    freeaddrinfo(address);
    if (!is_listening) {
        return FAIL("listening at %s: %s", listener->host, strerror(error));
    }
    if (getrandom(listener->token, sizeof listener->token, 0) != (ssize_t)sizeof listener->token) {
        return FAIL("no random numbers for the token: %s", strerror(errno));
    }
    return find_port(listener);
}

/* Waiting ------------------------------------------------------------------------------------------------ */

static void name_key(char *key, size_t bytes, int rank)
{
    (void)snprintf(key, bytes, "socket/%d", rank);
}

/*
 * Returns SHOAL_OK while the rank is alive, otherwise SHOAL_ERR_PEER. When one rank dies, others give up and leave,
 * too. So the error names all ranks that are gone; the one that died is among them.
 */
static shoal_status check_peer(const struct transport_world *world, int rank)
{
    shoal_status status = world->check_rank(world->context, rank);
    if (status == SHOAL_OK) {
        return SHOAL_OK;
    }
    char text[GONE_BYTES];
    int at = snprintf(text, sizeof text, "%s", socket_services->error_text());
    for (int other = 0; other < world->n_ranks && at < (int)sizeof text; other++) {
        if (other != rank && other != world->rank && world->check_rank(world->context, other) != SHOAL_OK) {
            at += snprintf(text + at, sizeof text - (size_t)at, "; %s", socket_services->error_text());
        }
    }
    return socket_services->set_error(status, "%s", text);
}

/* A rank that could not start says so in the place of its address. */
static shoal_status check_has_started(const char *address, int rank)
{
    return address[0] == '!'
               ? socket_services->set_error(SHOAL_ERR_PEER, "rank %d could not start: %s", rank, address + 1)
               : SHOAL_OK;
}

/* Checks whether a rank that is waited for has said that it could not start. */
static shoal_status look_again(const struct transport_world *world, int rank)
{
    char key[32];
    char text[ADDRESS_BYTES] = "";
    size_t bytes = 0;
    name_key(key, sizeof key, rank);
    shoal_status status = world->get(world->context, key, text, sizeof text - 1,
                                     socket_services->now_ns() + INT64_C(500000) * LOOK_MS, &bytes);
    socket_services->error_clear();
    return status == SHOAL_OK ? check_has_started(text, rank) : SHOAL_OK;
}

/* The status of a connection that was refused or cut: that of the rank's death or failure, if it is noticed soon. */
static shoal_status explain(const struct transport_world *world, int rank, shoal_status status)
{
    char text[GONE_BYTES];
    (void)snprintf(text, sizeof text, "%s", socket_services->error_text());
    int64_t deadline_ns = socket_services->deadline_after(DEATH_SECONDS);
    while (socket_services->now_ns() < deadline_ns) {
        shoal_status gone = check_peer(world, rank);
        gone = gone == SHOAL_OK ? look_again(world, rank) : gone;
        if (gone != SHOAL_OK) {
            return gone;
        }
        socket_services->sleep(DEATH_NAP_NS);
    }
    return socket_services->set_error(status, "%s", text);
}

/* A poll of more descriptors than the process may have fails, whichever they are. */
static shoal_status fail_poll(size_t n_polls, int error)
{
    struct rlimit limit = {0};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    return FAIL("polling %zu descriptors failed (RLIMIT_NOFILE is %llu): %s", n_polls,
                (unsigned long long)limit.rlim_cur, strerror(error));
}

/* Until something can be done, or until_ns; SHOAL_ERR_PEER when the rank that is waited for is gone. */
static shoal_status wait_for(const struct transport_world *world, struct pollfd *polls, size_t n_polls,
                             int rank, int64_t until_ns, int64_t deadline_ns)
{
    for (;;) {
        int n_ready = poll(polls, n_polls, LOOK_MS);
        if (n_ready < 0 && errno != EINTR && errno != EAGAIN) {
            return fail_poll(n_polls, errno);
        }
        /* Strangers may come without end: the deadline holds all the same. */
        if (n_ready > 0 && socket_services->now_ns() < deadline_ns) {
            return SHOAL_OK;
        }
        shoal_status status = check_peer(world, rank);
        status = status == SHOAL_OK ? look_again(world, rank) : status;
        if (status != SHOAL_OK) {
            return status;
        }
        if (socket_services->now_ns() >= deadline_ns) {
            return socket_services->set_error(
                SHOAL_ERR_TIMEOUT,
                "rank %d did not connect to rank %d in time (startup_timeout_s), or cannot be reached", rank,
                world->rank);
        }
        if (socket_services->now_ns() >= until_ns) {
            return SHOAL_OK;
        }
    }
}

/* Addresses ---------------------------------------------------------------------------------------------- */

static shoal_status publish(const struct transport_world *world, const char *text)
{
    char key[32];
    name_key(key, sizeof key, world->rank);
    return world->set(world->context, key, text, strlen(text));
}

/* "127.0.0.1 40123 0123...": host, port, token. */
static shoal_status publish_address(const struct transport_world *world, const struct listener *listener)
{
    char text[ADDRESS_BYTES];
    int at = snprintf(text, sizeof text, "%s %d ", listener->host, listener->port);
    for (size_t i = 0; i < TOKEN_BYTES; i++) {
        at += snprintf(text + at, sizeof text - (size_t)at, "%02x", listener->token[i]);
    }
    return publish(world, text);
}

static void publish_failure(const struct transport_world *world, shoal_status status)
{
    char reason[ADDRESS_BYTES];
    char text[ADDRESS_BYTES];
    (void)snprintf(reason, sizeof reason, "%s", socket_services->error_text());
    (void)snprintf(text, sizeof text, "!%.200s", reason);
    (void)publish(world, text);
    (void)socket_services->set_error(status, "%s", reason);
}

static bool parse_token(const char *text, unsigned char token[TOKEN_BYTES])
{
    for (size_t i = 0; i < TOKEN_BYTES; i++) {
        unsigned byte;
        if (sscanf(text + 2 * i, "%2x", &byte) != 1) {
            return false;
        }
        token[i] = (unsigned char)byte;
    }
    return true;
}

static shoal_status look_up(const struct transport_world *world, int rank, int64_t deadline_ns,
                            struct listener *listener)
{
    char key[32];
    char text[ADDRESS_BYTES];
    size_t bytes = 0;
    name_key(key, sizeof key, rank);
    shoal_status status = SHOAL_ERR_TIMEOUT;
    /* In turns: whoever died before it told its address never will. */
    while (status == SHOAL_ERR_TIMEOUT && socket_services->now_ns() < deadline_ns) {
        int64_t turn_ns = socket_services->now_ns() + INT64_C(1000000) * LOOK_MS;
        status = world->get(world->context, key, text, sizeof text - 1,
                            turn_ns < deadline_ns ? turn_ns : deadline_ns, &bytes);
        shoal_status peer = status == SHOAL_ERR_TIMEOUT ? check_peer(world, rank) : SHOAL_OK;
        status = peer == SHOAL_OK ? status : peer;
    }
    if (status == SHOAL_ERR_TIMEOUT) {
        (void)socket_services->set_error(
            status, "rank %d did not publish its address in time (startup_timeout_s)", rank);
    }
    if (status != SHOAL_OK) {
        return status;
    }
    text[bytes < sizeof text ? bytes : sizeof text - 1] = '\0';
    status = check_has_started(text, rank);
    if (status != SHOAL_OK) {
        return status;
    }
    char token[2 * TOKEN_BYTES + 1];
    if (sscanf(text, "%63s %d %32s", listener->host, &listener->port, token) != 3 ||
        strlen(token) != 2 * TOKEN_BYTES || !parse_token(token, listener->token)) {
        return FAIL("rank %d published an invalid address", rank);
    }
    return SHOAL_OK;
}

/* Connecting --------------------------------------------------------------------------------------------- */

static shoal_status begin_to_connect(const struct listener *peer, int rank, int *fd_out)
{
    struct addrinfo *address = NULL;
    shoal_status status = resolve(peer->host, peer->port, &address);
    if (status != SHOAL_OK) {
        return status;
    }
    *fd_out = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool is_begun = *fd_out >= 0 &&
                    (connect(*fd_out, address->ai_addr, address->ai_addrlen) == 0 || errno == EINPROGRESS);
    int error = errno;
    freeaddrinfo(address);
    return is_begun ? SHOAL_OK
                    : FAIL("connecting to rank %d at %s port %d: %s", rank, peer->host, peer->port,
                           strerror(error));
}

static shoal_status finish_to_connect(const struct transport_world *world, const struct listener *peer,
                                      int rank, int fd, int64_t deadline_ns)
{
    struct pollfd poll_out = {.fd = fd, .events = POLLOUT};
    shoal_status status = wait_for(world, &poll_out, 1, rank, INT64_MAX, deadline_ns);
    if (status != SHOAL_OK) {
        return status;
    }
    int error = 0;
    socklen_t bytes = sizeof error;
    (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    struct hello hello = {.rank = (uint32_t)world->rank, .n_ranks = (uint32_t)world->n_ranks};
    memcpy(hello.magic, hello_magic, sizeof hello.magic);
    memcpy(hello.token, peer->token, sizeof hello.token);
    /* A new socket has room for it. */
    if (error != 0 || send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello) {
        return FAIL("connecting to rank %d at %s port %d: %s", rank, peer->host, peer->port,
                    strerror(error != 0 ? error : errno));
    }
    return SHOAL_OK;
}

static shoal_status await_welcome(const struct transport_world *world, int rank, int fd, int64_t deadline_ns)
{
    char answer[sizeof welcome];
    size_t n_bytes = 0;
    while (n_bytes < sizeof answer) {
        struct pollfd poll_in = {.fd = fd, .events = POLLIN};
        shoal_status status = wait_for(world, &poll_in, 1, rank, INT64_MAX, deadline_ns);
        if (status != SHOAL_OK) {
            return status;
        }
        ssize_t received = recv(fd, answer + n_bytes, sizeof answer - n_bytes, 0);
        if (received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR)) {
            return socket_services->set_error(SHOAL_ERR_PEER, "rank %d rejected the connection", rank);
        }
        n_bytes += received > 0 ? (size_t)received : 0;
    }
    return memcmp(answer, welcome, sizeof welcome) == 0
               ? SHOAL_OK
               : socket_services->set_error(
                     SHOAL_ERR_PEER, "the process at the address of rank %d is not a rank of this job", rank);
}

static shoal_status connect_to(struct endpoint *endpoint, int rank, int64_t deadline_ns)
{
    struct listener peer;
    int *fd = &endpoint->connections[rank].fd;
    shoal_status status = look_up(endpoint->world, rank, deadline_ns, &peer);
    status = status == SHOAL_OK ? begin_to_connect(&peer, rank, fd) : status;
    status = status == SHOAL_OK ? finish_to_connect(endpoint->world, &peer, rank, *fd, deadline_ns) : status;
    status = status == SHOAL_OK ? await_welcome(endpoint->world, rank, *fd, deadline_ns) : status;
    return status == SHOAL_OK ? SHOAL_OK : explain(endpoint->world, rank, status);
}

/* Accepting ---------------------------------------------------------------------------------------------- */

/* Whoever went away again is no failure. A process that has no room for a connection will not get it by itself. */
static shoal_status accept_stranger(int listener_fd, struct stranger *strangers)
{
    for (size_t i = 0; i < STRANGERS_MOST; i++) {
        if (strangers[i].fd < 0) {
            strangers[i] = (struct stranger){
                .fd = accept4(listener_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK),
                .deadline_ns = socket_services->now_ns() + STRANGER_NS,
            };
            bool has_no_room = strangers[i].fd < 0 &&
                               (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
            return has_no_room ? FAIL("accepting a connection: %s", strerror(errno)) : SHOAL_OK;
        }
    }
    return SHOAL_OK;
}

static void turn_away(struct stranger *stranger)
{
    socket_services->log(SHOAL_LOG_WARN, "a connection without the token of the job was rejected");
    (void)close(stranger->fd);
    stranger->fd = -1;
}

/* Returns the rank that shows a good token and is not here yet; -1 if there is none. */
static int find_rank(const struct endpoint *endpoint, const struct listener *listener,
                     const struct hello *hello)
{
    const struct transport_world *world = endpoint->world;
    bool is_good = memcmp(hello->magic, hello_magic, sizeof hello->magic) == 0 &&
                   hello->n_ranks == (uint32_t)world->n_ranks && hello->rank < hello->n_ranks &&
                   hello->rank > (uint32_t)world->rank &&
                   memcmp(hello->token, listener->token, TOKEN_BYTES) == 0;
    return is_good && endpoint->connections[hello->rank].fd < 0 ? (int)hello->rank : -1;
}

/* Reads what a stranger says; once it has said all, it is a peer or turned away. */
static void hear_stranger(struct endpoint *endpoint, const struct listener *listener,
                          struct stranger *stranger)
{
    char *at = (char *)&stranger->hello + stranger->n_bytes;
    ssize_t received = recv(stranger->fd, at, sizeof stranger->hello - stranger->n_bytes, 0);
    bool is_later = received < 0 && (errno == EAGAIN || errno == EINTR);
    stranger->n_bytes += received > 0 ? (size_t)received : 0;
    if (stranger->n_bytes < sizeof stranger->hello && (received > 0 || is_later)) {
        return;
    }
    int rank =
        stranger->n_bytes == sizeof stranger->hello ? find_rank(endpoint, listener, &stranger->hello) : -1;
    if (rank >= 0 && send(stranger->fd, welcome, sizeof welcome, MSG_NOSIGNAL) == (ssize_t)sizeof welcome) {
        endpoint->connections[rank].fd = stranger->fd;
        stranger->fd = -1;
    } else {
        turn_away(stranger);
    }
}

static int find_missing(const struct endpoint *endpoint)
{
    int rank = endpoint->world->rank + 1;
    while (rank < endpoint->world->n_ranks && endpoint->connections[rank].fd >= 0) {
        rank++;
    }
    return rank;
}

/*
 * Whom to poll: the listener, then the strangers, up to the last place that is taken. poll refuses more entries than
 * the process may have descriptors, also if they are empty. Returns true if there is a place for one more; otherwise
 * *until_ns_out is when one may be made.
 */
static bool list_polls(const struct listener *listener, const struct stranger *strangers,
                       struct pollfd *polls, size_t *n_polls_out, int64_t *until_ns_out)
{
    bool has_room = false;
    *n_polls_out = 1;
    *until_ns_out = INT64_MAX;
    for (size_t i = 0; i < STRANGERS_MOST; i++) {
        bool is_there = strangers[i].fd >= 0;
        has_room = has_room || !is_there;
        if (is_there && strangers[i].deadline_ns < *until_ns_out) {
            *until_ns_out = strangers[i].deadline_ns;
        }
        *n_polls_out = is_there ? i + 2 : *n_polls_out;
        polls[i + 1] = (struct pollfd){.fd = strangers[i].fd, .events = POLLIN};
    }
    polls[0] = (struct pollfd){.fd = has_room ? listener->fd : -1, .events = POLLIN};
    return has_room;
}

/* One round of accepting and listening to strangers. Who has said nothing goes when its place is needed. */
static shoal_status accept_some(struct endpoint *endpoint, const struct listener *listener,
                                struct stranger *strangers, int missing, int64_t deadline_ns)
{
    struct pollfd polls[1 + STRANGERS_MOST];
    size_t n_polls;
    int64_t until_ns;
    bool has_room = list_polls(listener, strangers, polls, &n_polls, &until_ns);
    shoal_status status =
        wait_for(endpoint->world, polls, n_polls, missing, has_room ? INT64_MAX : until_ns, deadline_ns);
    if (status != SHOAL_OK) {
        return status;
    }
    for (size_t i = 1; i < n_polls; i++) {
        struct stranger *stranger = &strangers[i - 1];
        if (polls[i].fd >= 0 && polls[i].revents != 0) {
            hear_stranger(endpoint, listener, stranger);
        } else if (polls[i].fd >= 0 && !has_room && socket_services->now_ns() >= stranger->deadline_ns) {
            turn_away(stranger);
        }
    }
    return polls[0].revents != 0 ? accept_stranger(listener->fd, strangers) : SHOAL_OK;
}

static shoal_status accept_all(struct endpoint *endpoint, const struct listener *listener,
                               int64_t deadline_ns)
{
    struct stranger strangers[STRANGERS_MOST];
    shoal_status status = SHOAL_OK;
    int missing;
    for (size_t i = 0; i < STRANGERS_MOST; i++) {
        strangers[i].fd = -1;
    }
    while (status == SHOAL_OK && (missing = find_missing(endpoint)) < endpoint->world->n_ranks) {
        status = accept_some(endpoint, listener, strangers, missing, deadline_ns);
    }
    for (size_t i = 0; i < STRANGERS_MOST; i++) {
        if (strangers[i].fd >= 0) {
            (void)close(strangers[i].fd);
        }
    }
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- */

static shoal_status meet(struct endpoint *endpoint, struct listener *listener, int64_t deadline_ns)
{
    const struct transport_world *world = endpoint->world;
    shoal_status status = choose_host(world, listener->host, sizeof listener->host);
    status = status == SHOAL_OK ? listen_at(listener, world->n_ranks) : status;
    status = status == SHOAL_OK ? publish_address(world, listener) : status;
    for (int rank = 0; status == SHOAL_OK && rank < world->rank; rank++) {
        status = connect_to(endpoint, rank, deadline_ns);
    }
    status = status == SHOAL_OK ? accept_all(endpoint, listener, deadline_ns) : status;
    for (int rank = 0; status == SHOAL_OK && rank < world->n_ranks; rank++) {
        int one = 1; /* frames are short, and somebody waits for each */
        if (rank != world->rank) {
            (void)setsockopt(endpoint->connections[rank].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        }
    }
    return status;
}

shoal_status socket_meet(struct endpoint *endpoint, int64_t deadline_ns)
{
    if (endpoint->world->n_ranks == 1) {
        return SHOAL_OK;
    }
    struct listener listener = {.fd = -1};
    shoal_status status = meet(endpoint, &listener, deadline_ns);
    if (status != SHOAL_OK) {
        publish_failure(endpoint->world, status);
    }
    if (listener.fd >= 0) {
        (void)close(listener.fd);
    }
    return status;
}
