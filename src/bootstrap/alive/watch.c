/* SPDX-License-Identifier: MIT */
/*
 * Watching ranks on other hosts.
 *
 * One lock protects all links and every change of a state. It is never held while a thread waits, or while a function
 * is called that may come back here. States are read without it: the reason of a death is stored before the state
 * becomes DEAD (release), and whoever reads DEAD (acquire) may read the reason. States change from ALIVE to LEFT or
 * DEAD, once.
 */
#include "bootstrap/alive/watch.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
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
#include "base/status.h"
#include "base/try.h"
#include "base/wait.h"
#include "bootstrap/net/card.h"
#include "bootstrap/net/link.h"
#include "bootstrap/net/request.h"
#include "bootstrap/net/tcp.h"

/* The longest time between two heartbeats that this rank sends. It is shorter if heartbeat_ns is short. */
#define BEAT_NS INT64_C(1000000000)
#define BEATS_PER_HEARTBEAT 5
/* How many frames of one rank are read before the others have their turn. */
#define FRAMES_PER_TURN 16
/* Between two checks whether the listener has returned. */
#define NAP_NS 200000

/* Messages on a link: the op of a frame. */
enum word {
    WORD_ALIVE, /* a heartbeat */
    WORD_LEFT,  /* the sender needs nothing more from the other */
    WORD_DIED,  /* number: a rank that is dead */
    WORD_GONE,  /* the sender takes the other for dead, and ends the connection */
    WORD_FAILED /* number: a status; payload: a name and a reason, both with a zero byte at the end */
};

/* How a rank is known to be dead. */
enum reason {
    REASON_ENDED,
    REASON_SILENT,
    REASON_TOLD,
    REASON_GIVEN_UP
};

struct peer {
    bool is_watched;
    int pid;
    _Atomic uint32_t state; /* enum member_state */
    enum reason reason;
    int told_by;
    int64_t heard_ns;
    bool has_ended;       /* its side of the link has ended; it may still read */
    _Atomic bool is_gone; /* its process has ended, after it had left */
    struct link link;
};

struct watch {
    struct watch_options options;
    void (*change)(void *context);
    void *change_context;
    pthread_mutex_t lock;
    int wake; /* eventfd */
    _Atomic uint32_t n_taken;
    bool has_left;
    bool is_kept;    /* ranks that have left are still watched: watch_keep */
    bool is_telling; /* options.hear is being called */
    bool is_judging; /* silence counts: watch_judge */
    bool is_ending;
    bool is_running;
    pthread_t thread;
    int64_t next_beat_ns;
    int64_t last_turn_ns;
    bool has_lost_wake;    /* used by the thread */
    struct pollfd *polled; /* the wake, and one per rank */
    struct peer peers[];
};

/* States ------------------------------------------------------------------------------------------------ */

bool watch_has(const struct watch *watch, int rank)
{
    return watch && watch->peers[rank].is_watched;
}

enum member_state watch_state(const struct watch *watch, int rank)
{
    /* Acquire: pairs with the release that changed it. */
    return (enum member_state)atomic_load_explicit(&watch->peers[rank].state, memory_order_acquire);
}

int watch_pid(const struct watch *watch, int rank)
{
    return watch->peers[rank].pid;
}

void watch_explain(const struct watch *watch, int rank, char *text, size_t bytes)
{
    const struct peer *peer = &watch->peers[rank];
    switch (peer->reason) {
    case REASON_SILENT:
        (void)snprintf(
            text, bytes,
            "sent no heartbeat for %.1f s (SHOAL_HEARTBEAT): it is stopped, or its host cannot be reached",
            (double)watch->options.heartbeat_ns * 1e-9);
        break;
    case REASON_TOLD:
        (void)snprintf(text, bytes, "died or cannot be reached, as rank %d reports", peer->told_by);
        break;
    case REASON_GIVEN_UP:
        (void)snprintf(text, bytes, "considers this rank dead, and closed the connection");
        break;
    case REASON_ENDED:
    default:
        (void)snprintf(text, bytes, "died or exited without closing its world");
        break;
    }
}

void watch_set_change(struct watch *watch, void (*change)(void *context), void *context)
{
    (void)pthread_mutex_lock(&watch->lock);
    watch->change = change;
    watch->change_context = context;
    (void)pthread_mutex_unlock(&watch->lock);
}

/* This and all functions up to "The thread" are called under the lock. */
static void set_state(struct watch *watch, int rank, enum member_state state)
{
    /* Release: pairs with the acquire in watch_state. */
    atomic_store_explicit(&watch->peers[rank].state, state, memory_order_release);
    if (watch->change) {
        watch->change(watch->change_context);
    }
}

static bool is_alive(const struct watch *watch, int rank)
{
    return watch->peers[rank].is_watched && watch_state(watch, rank) == MEMBER_ALIVE;
}

/* Declares a rank dead, and tells all others. They are not told if that rank has only given up this one (WORD_GONE). */
static void bury(struct watch *watch, int rank, enum reason reason, int told_by)
{
    struct peer *peer = &watch->peers[rank];
    if (!is_alive(watch, rank)) {
        return;
    }
    peer->reason = reason;
    peer->told_by = told_by;
    set_state(watch, rank, MEMBER_DEAD);
    char text[160];
    watch_explain(watch, rank, text, sizeof text);
    LOG(SHOAL_LOG_WARN, "rank %d (process %d) %s", rank, peer->pid, text);
    if (reason == REASON_SILENT || reason == REASON_TOLD) {
        link_send(&peer->link, WORD_GONE, 0, NULL, 0);
    }
    link_close(&peer->link);
    for (int other = 0; other < watch->options.n_ranks && reason != REASON_GIVEN_UP; other++) {
        if (is_alive(watch, other)) {
            link_send(&watch->peers[other].link, WORD_DIED, rank, NULL, 0);
        }
    }
}

/* Notes that the process of a rank that has left has ended, if such ranks are still watched. */
static void note_gone(struct watch *watch, int rank)
{
    if (watch->is_kept && watch_state(watch, rank) == MEMBER_LEFT) {
        /* Relaxed: it stands for itself. */
        atomic_store_explicit(&watch->peers[rank].is_gone, true, memory_order_relaxed);
    }
}

/* Listening --------------------------------------------------------------------------------------------- */

static bool is_failure(const struct link *link)
{
    shoal_status status = (shoal_status)link->header.status;
    size_t name_bytes = strlen(link->payload);
    return status != SHOAL_OK && status_is_known(status) && name_bytes > 0 &&
           name_bytes < CONNECTION_SMALL_BYTES && name_bytes + 1 <= link->header.bytes;
}

/* Calls options.hear without the lock, because it may call the watch to tell others. Only this thread touches the frame
   meanwhile. */
static void pass_on(struct watch *watch, const struct link *link)
{
    const char *name = link->payload;
    const char *text = name + strlen(name) + 1;
    watch->is_telling = true;
    (void)pthread_mutex_unlock(&watch->lock);
    watch->options.hear(watch->options.hear_context, name, (shoal_status)link->header.status,
                        text[0] ? text : "no reason was given");
    (void)pthread_mutex_lock(&watch->lock);
    watch->is_telling = false;
}

static void hear_word(struct watch *watch, int rank)
{
    struct link *link = &watch->peers[rank].link;
    int32_t number = link->header.status;
    switch ((enum word)link->header.op) {
    case WORD_LEFT:
        if (is_alive(watch, rank)) {
            set_state(watch, rank, MEMBER_LEFT);
        }
        break;
    case WORD_DIED:
        /* bury ignores ranks that are not watched: those of this host, and this rank itself. */
        if (number >= 0 && number < watch->options.n_ranks) {
            bury(watch, number, REASON_TOLD, rank);
        }
        break;
    case WORD_GONE:
        bury(watch, rank, REASON_GIVEN_UP, rank);
        break;
    case WORD_FAILED:
        if (watch->options.hear && is_failure(link)) {
            pass_on(watch, link);
        }
        break;
    case WORD_ALIVE:
    default:
        break;
    }
}

static void listen_to(struct watch *watch, int rank)
{
    struct peer *peer = &watch->peers[rank];
    for (int i = 0; i < FRAMES_PER_TURN && peer->link.fd >= 0; i++) {
        switch (link_read(&peer->link)) {
        case SOCKET_DONE:
            peer->heard_ns = clock_now_ns();
            hear_word(watch, rank);
            if (peer->link.fd >= 0) {
                link_forget(&peer->link);
            }
            break;
        case SOCKET_GONE:
            /* The link stays open: a rank that has left still waits to hear that this one leaves. */
            peer->has_ended = true;
            bury(watch, rank, REASON_ENDED, rank);
            note_gone(watch, rank);
            return;
        case SOCKET_LATER:
        default:
            return;
        }
    }
}

/* The thread -------------------------------------------------------------------------------------------- */

static int64_t beat_ns(const struct watch *watch)
{
    int64_t own_ns = watch->options.heartbeat_ns / BEATS_PER_HEARTBEAT;
    return own_ns < BEAT_NS ? own_ns : BEAT_NS;
}

/*
 * Sends a heartbeat to every rank that is not dead. A link that still has output pending gets no further heartbeat. A
 * rank that has left still gets them: it waits until all ranks have left, and must not take those that stay for dead.
 */
static void beat(struct watch *watch)
{
    for (int rank = 0; rank < watch->options.n_ranks; rank++) {
        struct link *link = &watch->peers[rank].link;
        bool is_there = watch->peers[rank].is_watched && watch_state(watch, rank) != MEMBER_DEAD;
        if (is_there && !link_has_output(link)) {
            link_send(link, WORD_ALIVE, 0, NULL, 0);
        } else {
            link_flush(link);
        }
    }
}

/*
 * Declares ranks dead that were silent for too long. The caller has read all input before. Silence is forgiven while
 * ranks still connect, and after this process itself did not run for a while.
 */
static void mark_silent_ranks_dead(struct watch *watch, int64_t now_ns)
{
    bool is_excused = !watch->is_judging || now_ns - watch->last_turn_ns > watch->options.heartbeat_ns / 2;
    for (int rank = 0; rank < watch->options.n_ranks; rank++) {
        struct peer *peer = &watch->peers[rank];
        if (is_excused) {
            peer->heard_ns = now_ns;
        } else if (now_ns - peer->heard_ns > watch->options.heartbeat_ns) {
            bury(watch, rank, REASON_SILENT, rank);
            note_gone(watch, rank);
        }
    }
}

static void list_polled(struct watch *watch)
{
    watch->polled[0] = (struct pollfd){.fd = watch->has_lost_wake ? -1 : watch->wake, .events = POLLIN};
    for (int rank = 0; rank < watch->options.n_ranks; rank++) {
        const struct peer *peer = &watch->peers[rank];
        short events = link_has_output(&peer->link) ? POLLIN | POLLOUT : POLLIN;
        /* A link whose other side has ended would always be ready. What is left to be sent goes out with the next
           heartbeat. */
        watch->polled[1 + rank] =
            (struct pollfd){.fd = peer->has_ended ? -1 : peer->link.fd, .events = events};
    }
}

static void serve_links(struct watch *watch)
{
    for (int rank = 0; rank < watch->options.n_ranks; rank++) {
        short events = watch->polled[1 + rank].revents;
        struct link *link = &watch->peers[rank].link;
        if (events & POLLOUT) {
            link_flush(link);
        }
        if (events & (POLLIN | POLLHUP | POLLERR | POLLNVAL)) {
            listen_to(watch, rank);
        }
    }
}

static void sleep_until(struct watch *watch, int64_t until_ns)
{
    int64_t left_ns = until_ns - clock_now_ns();
    left_ns = left_ns < 0 ? 0 : left_ns;
    struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000), .tv_nsec = left_ns % 1000000000};
    if (ppoll(watch->polled, (nfds_t)watch->options.n_ranks + 1, &left, NULL) <= 0) {
        for (int i = 0; i <= watch->options.n_ranks; i++) {
            watch->polled[i].revents = 0;
        }
    }
    uint64_t n_wakes;
    if (watch->polled[0].revents & POLLNVAL) {
        watch->has_lost_wake = true; /* the program has closed it; the thread wakes up for its heartbeat */
    } else if (watch->polled[0].revents && read(watch->wake, &n_wakes, sizeof n_wakes) < 0) {
        return; /* the event was reset already */
    }
}

/* Makes one turn of the thread. Returns false if the thread shall end. */
static bool take_turn(struct watch *watch)
{
    list_polled(watch);
    int64_t until_ns = watch->next_beat_ns;
    if (watch->is_ending) {
        return false;
    }
    (void)pthread_mutex_unlock(&watch->lock);
    sleep_until(watch, until_ns);
    (void)pthread_mutex_lock(&watch->lock);
    serve_links(watch);
    int64_t now_ns = clock_now_ns();
    if (now_ns >= watch->next_beat_ns) {
        beat(watch);
        mark_silent_ranks_dead(watch, now_ns);
        watch->next_beat_ns = now_ns + beat_ns(watch);
    }
    watch->last_turn_ns = now_ns;
    return true;
}

static void *run_watch(void *argument)
{
    struct watch *watch = argument;
    fp_mode_set_default();
    (void)pthread_mutex_lock(&watch->lock);
    while (take_turn(watch)) {
    }
    (void)pthread_mutex_unlock(&watch->lock);
    return NULL;
}

/* Connecting -------------------------------------------------------------------------------------------- */

bool watch_take(struct watch *watch, int rank, int fd)
{
    struct peer *peer = &watch->peers[rank];
    (void)pthread_mutex_lock(&watch->lock);
    bool is_wanted = !watch->is_ending && peer->link.fd < 0 && watch_state(watch, rank) == MEMBER_ABSENT;
    if (is_wanted) {
        link_open(&peer->link, fd);
    }
    (void)pthread_mutex_unlock(&watch->lock);
    /* Release: pairs with the acquire in await_links; the link was opened before. */
    atomic_fetch_add_explicit(&watch->n_taken, 1, memory_order_release);
    wait_wake_all(&watch->n_taken, /*is_shared=*/false);
    return is_wanted;
}

static shoal_status connect_to(struct watch *watch, const struct card *card, const struct socket_wait *wait)
{
    char where[ADDRESS_TEXT_BYTES];
    const struct proof_key key = {{card->token[0], card->token[1]}};
    int fd = -1;
    TRY(tcp_connect(&card->address, &key, wait, &fd));
    if (fd < 0) {
        return error_prefix(SHOAL_ERR_PEER, "rank %d cannot be reached", card->rank);
    }
    struct request request = {.op = REQUEST_WATCH};
    request_add_number(&request, watch->options.rank);
    struct frame frame;
    shoal_status status = request_perform(fd, &request, wait, &frame);
    if (status != SHOAL_OK) {
        (void)close(fd);
        return error_prefix(status, "rank %d at %s", card->rank, address_text(&card->address, where));
    }
    frame_clear(&frame);
    (void)pthread_mutex_lock(&watch->lock);
    link_open(&watch->peers[card->rank].link, fd);
    (void)pthread_mutex_unlock(&watch->lock);
    return SHOAL_OK;
}

/* The first rank after this one that has not connected; n_ranks: none. */
static int find_missing(struct watch *watch)
{
    (void)pthread_mutex_lock(&watch->lock);
    int rank = watch->options.rank + 1;
    while (rank < watch->options.n_ranks &&
           (!watch->peers[rank].is_watched || watch->peers[rank].link.fd >= 0)) {
        rank++;
    }
    (void)pthread_mutex_unlock(&watch->lock);
    return rank;
}

static shoal_status await_links(struct watch *watch, const struct card *cards, const struct socket_wait *wait)
{
    char from[ADDRESS_TEXT_BYTES];
    char to[ADDRESS_TEXT_BYTES];
    struct wait_options options = {.deadline_ns = wait->deadline_ns,
                                   .liveness = wait->liveness,
                                   .liveness_context = wait->liveness_context,
                                   .what = wait->what};
    for (;;) {
        /* Acquire: pairs with the release in watch_take. Read before the search: a rank that connects later changes
           it. */
        uint32_t n_taken = atomic_load_explicit(&watch->n_taken, memory_order_acquire);
        int missing = find_missing(watch);
        if (missing == watch->options.n_ranks) {
            return SHOAL_OK;
        }
        shoal_status status = wait_while_equal(&watch->n_taken, n_taken, &options);
        if (status == SHOAL_ERR_TIMEOUT) {
            return error_set(status, "rank %d at %s has not connected to this rank at %s", missing,
                             address_host(&cards[missing].address, from),
                             address_text(&cards[watch->options.rank].address, to));
        }
        TRY(status);
    }
}

static shoal_status start(struct watch *watch)
{
    int64_t now_ns = clock_now_ns();
    for (int rank = 0; rank < watch->options.n_ranks; rank++) {
        struct peer *peer = &watch->peers[rank];
        peer->heard_ns = now_ns;
        if (peer->is_watched) {
            /* Release: pairs with the acquire in watch_state. */
            atomic_store_explicit(&peer->state, MEMBER_ALIVE, memory_order_release);
        }
    }
    watch->last_turn_ns = now_ns;
    watch->next_beat_ns = now_ns;
    int error = os_start_thread(&watch->thread, run_watch, watch);
    if (error != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "the thread that watches other hosts could not be created: %s",
                         error_thread_text(error));
    }
    watch->is_running = true;
    return SHOAL_OK;
}

shoal_status watch_open(struct watch *watch, const struct card *cards, const struct socket_wait *wait)
{
    int own = watch->options.rank;
    for (int rank = 0; rank < watch->options.n_ranks; rank++) {
        watch->peers[rank].is_watched = cards[rank].leader != cards[own].leader;
        watch->peers[rank].pid = cards[rank].pid;
    }
    for (int rank = 0; rank < own; rank++) {
        if (watch->peers[rank].is_watched) {
            TRY(connect_to(watch, &cards[rank], wait));
        }
    }
    TRY(await_links(watch, cards, wait));
    return start(watch);
}

void watch_judge(struct watch *watch)
{
    (void)pthread_mutex_lock(&watch->lock);
    watch->is_judging = true;
    (void)pthread_mutex_unlock(&watch->lock);
}

/* Telling ----------------------------------------------------------------------------------------------- */

void watch_tell_failure(struct watch *watch, int rank, const char *name, shoal_status failure,
                        const char *text)
{
    char payload[LINK_PAYLOAD_BYTES_MAX];
    int length = snprintf(payload, sizeof payload, "%.*s%c%.*s", CONNECTION_SMALL_BYTES - 1, name, '\0',
                          ERROR_TEXT_BYTES - 1, text);
    if (length < 0) {
        return;
    }
    (void)pthread_mutex_lock(&watch->lock);
    if (is_alive(watch, rank)) {
        link_send(&watch->peers[rank].link, WORD_FAILED, failure, payload, (size_t)length);
    }
    (void)pthread_mutex_unlock(&watch->lock);
    os_event_set(watch->wake); /* the thread sends what the socket has not taken yet */
}

void watch_leave(struct watch *watch)
{
    (void)pthread_mutex_lock(&watch->lock);
    for (int rank = 0; rank < watch->options.n_ranks && !watch->has_left; rank++) {
        link_send(&watch->peers[rank].link, WORD_LEFT, 0, NULL, 0);
        if (!watch->is_kept) {
            link_end(&watch->peers[rank].link);
        }
    }
    watch->has_left = true;
    (void)pthread_mutex_unlock(&watch->lock);
    os_event_set(watch->wake);
}

void watch_keep(struct watch *watch)
{
    (void)pthread_mutex_lock(&watch->lock);
    watch->is_kept = true;
    (void)pthread_mutex_unlock(&watch->lock);
}

bool watch_is_gone(const struct watch *watch, int rank)
{
    /* Relaxed: it stands for itself. */
    return atomic_load_explicit(&watch->peers[rank].is_gone, memory_order_relaxed) ||
           watch_state(watch, rank) == MEMBER_DEAD;
}

void watch_hush(struct watch *watch)
{
    if (!watch) {
        return;
    }
    (void)pthread_mutex_lock(&watch->lock);
    watch->options.hear = NULL;
    while (watch->is_telling) {
        (void)pthread_mutex_unlock(&watch->lock);
        wait_sleep(NAP_NS);
        (void)pthread_mutex_lock(&watch->lock);
    }
    (void)pthread_mutex_unlock(&watch->lock);
}

/* Beginning and end ------------------------------------------------------------------------------------- */

shoal_status watch_create(const struct watch_options *options, struct watch **watch_out)
{
    size_t n_ranks = (size_t)options->n_ranks;
    struct watch *watch = mem_alloc_zeroed(1, sizeof *watch + n_ranks * sizeof(struct peer));
    if (!watch) {
        return SHOAL_ERR_NO_MEMORY;
    }
    watch->options = *options;
    for (size_t rank = 0; rank < n_ranks; rank++) {
        watch->peers[rank].link.fd = -1;
    }
    watch->wake = os_event();
    watch->polled = mem_alloc((n_ranks + 1) * sizeof *watch->polled);
    if (watch->wake < 0 || !watch->polled) {
        shoal_status status =
            watch->polled
                ? error_set(SHOAL_ERR_SYSTEM,
                            "the eventfd of the thread that watches other hosts could not be created: %s",
                            error_errno_text(errno))
                : SHOAL_ERR_NO_MEMORY;
        if (watch->wake >= 0) {
            (void)close(watch->wake);
        }
        mem_free(watch->polled);
        mem_free(watch);
        return status;
    }
    (void)pthread_mutex_init(&watch->lock, NULL);
    *watch_out = watch;
    return SHOAL_OK;
}

/* Reads what is left. If a socket is closed with unread input, TCP resets the connection, and what was sent may be
   lost. */
static void drain(struct link *link)
{
    char bytes[256];
    size_t received;
    while (link->fd >= 0 && socket_read_now(link->fd, bytes, sizeof bytes, &received) == SOCKET_DONE) {
    }
}

void watch_stop(struct watch *watch)
{
    if (!watch) {
        return;
    }
    watch_leave(watch);
    (void)pthread_mutex_lock(&watch->lock);
    watch->is_ending = true;
    for (int rank = 0; rank < watch->options.n_ranks; rank++) {
        link_end(&watch->peers[rank].link);
    }
    (void)pthread_mutex_unlock(&watch->lock);
    if (watch->is_running) {
        os_event_set(watch->wake);
        (void)pthread_join(watch->thread, NULL);
        watch->is_running = false;
    }
    for (int rank = 0; rank < watch->options.n_ranks; rank++) {
        drain(&watch->peers[rank].link);
        link_close(&watch->peers[rank].link);
    }
}

void watch_free(struct watch *watch)
{
    if (!watch) {
        return;
    }
    watch_stop(watch);
    (void)close(watch->wake);
    (void)pthread_mutex_destroy(&watch->lock);
    mem_free(watch->polled);
    mem_free(watch);
}
