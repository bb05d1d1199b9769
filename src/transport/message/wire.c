/* SPDX-License-Identifier: MIT */
/*
 * Frames to the endpoint and back, and the thread that makes progress. The lock orders everything: whoever rings a bell has
 * done what it rings for under the lock, and whoever looks takes the lock.
 */
#include "transport/message/wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/completion.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/wait.h"

/* How long the thread sleeps at most while nothing wakes it. */
#define LOOK_NS INT64_C(100000000)
/*
 * Between two looks at an endpoint that cannot tell when there is something to do: soon after something came, later, and
 * while those who wait look themselves.
 */
#define NAP_NS INT64_C(100000)
#define LONG_NAP_NS INT64_C(1000000)
#define FLUSH_NAP_NS INT64_C(20000)
/* How long a call that has ended waits until all that it sent was begun: somebody keeps everybody from it. */
#define BEGIN_SECONDS 10.0
#define NAPS_BEFORE_LONG 200
/* How long closing tries to get rid of what was sent, and how long a rank has to answer a fence. */
#define FLUSH_SECONDS 2.0
/* What a rank that left without a fence may still have sent gets this long. */
#define LAST_WORDS_NS INT64_C(1000000000)
/* Frames of the longest message that are kept for later. */
#define SPARE_FRAMES 32
/* Frames of calls with little data are kept too: each collective needs two for every peer. */
#define CALL_FRAME_BYTES ((size_t)512)
#define SPARE_CALL_FRAMES 64
/*
 * Messages on their way at once, to a rank and from it. A library that hands over long messages only after both sides have
 * agreed needs several, so that one moves while others agree; each receive has a frame of the longest message. What has
 * `wait` reads and writes a stream, which needs no more than one.
 */
#define DEPTH 2
#define DEEP_RANKS 8
_Static_assert(DEPTH <= ENDPOINT_IN_FLIGHT, "what an endpoint has room for");
#define PEER_TEXT_BYTES 256

/* Another rank. */
struct peer {
    struct frame *receiving; /* for its next messages, in their order */
    struct frame *last_receiving;
    int n_receiving;
    struct frame *first; /* to be sent; the first n_sending of them are on their way */
    struct frame *last;
    struct frame *waiting; /* the first of those that are not; NULL: none */
    int n_sending;
    bool is_settled;  /* nothing was sent since the last fence */
    bool is_silent;   /* it has not answered a fence in time: no other is waited for until it does */
    int32_t n_fences; /* that were sent; wraps */
    int32_t n_passed; /* that were answered */
    bool is_fenced;   /* its last frame was a fence, or it has sent none */
    int64_t left_ns;  /* when it was first said to have left its world, or to be dead; 0: not yet */
    bool is_drained;  /* nothing of it was there to be read since then */
    bool is_gone;
    int64_t gone_ns;
    char text[PEER_TEXT_BYTES];
};

struct wire {
    const struct endpoint_kind *kind;
    const struct transport_world *world;
    struct wire_user user;
    int64_t open_deadline_ns;
    struct completion opened;
    pthread_t thread;
    pthread_mutex_t lock; /* of all below */
    struct endpoint *endpoint;
    bool is_closing;
    bool must_wake;     /* something was handed over that only the thread may send */
    struct peer *peers; /* by rank */
    size_t frame_bytes; /* of the longest payload */
    int depth;          /* messages to a rank, and from it, that are on their way at once */
    struct frame *spare;
    int n_spare;
    struct frame *spare_calls;
    int n_spare_calls;
    _Atomic uint32_t passed; /* changes with every fence that was answered, or cannot be */
    /* Of an endpoint that has to be polled. */
    _Atomic int n_pollers;  /* threads that wait and look themselves */
    _Atomic uint32_t pokes; /* changes when the thread should look at once */
    unsigned n_naps;        /* of the thread since something came last */
    uint64_t n_received;    /* messages; under the lock */
    bool has_given_up;      /* the thread's */
};

void wire_lock(struct wire *wire)
{
    (void)pthread_mutex_lock(&wire->lock);
}

static void unlock(struct wire *wire)
{
    (void)pthread_mutex_unlock(&wire->lock);
}

static void wake_thread(struct wire *wire)
{
    if (wire->kind->wake) {
        wire->kind->wake(wire->endpoint);
    } else {
        /* Relaxed: the thread takes the lock when it looks. */
        atomic_fetch_add_explicit(&wire->pokes, 1, memory_order_relaxed);
        wait_wake_all(&wire->pokes, /*is_shared=*/false);
    }
}

void wire_unlock(struct wire *wire)
{
    bool must_wake = wire->must_wake;
    wire->must_wake = false;
    unlock(wire);
    if (must_wake) {
        wake_thread(wire);
    }
}

/* Frames ------------------------------------------------------------------------------------------------ */

size_t wire_frame_bytes(const struct wire *wire)
{
    return wire->frame_bytes;
}

struct frame *wire_new_frame(struct wire *wire, size_t bytes)
{
    size_t room = bytes <= CALL_FRAME_BYTES    ? CALL_FRAME_BYTES
                  : bytes <= FRAME_SMALL_BYTES ? bytes
                                               : wire->frame_bytes;
    struct frame *frame = NULL;
    if (room == wire->frame_bytes && wire->spare) {
        frame = wire->spare;
        wire->spare = frame->next;
        wire->n_spare--;
    } else if (room == CALL_FRAME_BYTES && wire->spare_calls) {
        frame = wire->spare_calls;
        wire->spare_calls = frame->next;
        wire->n_spare_calls--;
    } else {
        frame = mem_alloc_aligned(sizeof *frame + room, 64);
    }
    if (frame) {
        memset(frame, 0, sizeof *frame);
        frame->room = room;
        frame->head.bytes = (uint32_t)bytes;
    }
    return frame;
}

void wire_free_frame(struct wire *wire, struct frame *frame)
{
    if (frame && frame->room == wire->frame_bytes && wire->n_spare < SPARE_FRAMES) {
        frame->next = wire->spare;
        wire->spare = frame;
        wire->n_spare++;
        return;
    }
    if (frame && frame->room == CALL_FRAME_BYTES && wire->n_spare_calls < SPARE_CALL_FRAMES) {
        frame->next = wire->spare_calls;
        wire->spare_calls = frame;
        wire->n_spare_calls++;
        return;
    }
    mem_free(frame);
}

void wire_free_frames(struct wire *wire, struct frame *first)
{
    while (first) {
        struct frame *frame = first;
        first = frame->next;
        wire_free_frame(wire, frame);
    }
}

static void note_passed(struct wire *wire)
{
    /* Release is not needed: who waits looks at the peers under the lock. */
    atomic_fetch_add_explicit(&wire->passed, 1, memory_order_relaxed);
    wait_wake_all(&wire->passed, /*is_shared=*/false);
}

/* A peer that is gone ----------------------------------------------------------------------------------- */

static void lose_peer(struct wire *wire, int rank, const char *text)
{
    struct peer *peer = &wire->peers[rank];
    if (peer->is_gone) {
        return;
    }
    peer->is_gone = true;
    peer->gone_ns = clock_now_ns();
    (void)snprintf(peer->text, sizeof peer->text, "%s", text);
    LOG(SHOAL_LOG_INFO, "rank %d: rank %d cannot be reached: %s", wire->world->rank, rank, peer->text);
    note_passed(wire);
    wire->user.lose(wire->user.context);
}

static void lose_failed_peer(struct wire *wire, int rank)
{
    const char *text = wire->kind->failure(wire->endpoint, rank);
    lose_peer(wire, rank, text ? text : "no reason was given");
}

shoal_status wire_check_rank(struct wire *wire, int rank, int64_t *since_ns_out)
{
    char text[PEER_TEXT_BYTES];
    wire_lock(wire);
    const struct peer *peer = &wire->peers[rank];
    bool is_gone = peer->is_gone;
    *since_ns_out = peer->gone_ns;
    (void)snprintf(text, sizeof text, "%s", peer->text);
    unlock(wire);
    return is_gone ? error_set(SHOAL_ERR_PEER, "rank %d cannot be reached: %s", rank, text) : SHOAL_OK;
}

bool wire_may_receive(struct wire *wire, int rank)
{
    wire_lock(wire);
    struct peer *peer = &wire->peers[rank];
    int64_t now_ns = clock_now_ns();
    if (peer->left_ns == 0) {
        peer->left_ns = now_ns;
        wire->must_wake = true; /* the thread looks for what it sent last */
    }
    bool may_receive =
        !peer->is_gone && !(peer->is_fenced && peer->is_drained) && now_ns < peer->left_ns + LAST_WORDS_NS;
    wire_unlock(wire);
    return may_receive;
}

/* Sending, under the lock -------------------------------------------------------------------------------- */

static struct frame *pop_sent(struct peer *peer)
{
    struct frame *frame = peer->first;
    peer->first = frame->next;
    peer->n_sending -= peer->n_sending > 0;
    peer->waiting = peer->waiting == frame ? frame->next : peer->waiting;
    return frame;
}

/* A frame that was on its way. One whose memory the endpoint does not give back is lost. */
static void drop_message(struct wire *wire, int rank, struct frame *frame)
{
    if (wire->kind->cancel(wire->endpoint, rank, &frame->message)) {
        wire_free_frame(wire, frame);
    }
}

/* Hands over as many as may be on their way. */
static void begin_sends(struct wire *wire, int rank)
{
    struct peer *peer = &wire->peers[rank];
    while (peer->waiting && peer->n_sending < wire->depth && !peer->is_gone) {
        struct frame *frame = peer->waiting;
        peer->waiting = frame->next;
        peer->n_sending++;
        wire->kind->isend(wire->endpoint, rank, &frame->message, &frame->head,
                          FRAME_HEAD_BYTES + frame->head.bytes);
    }
}

/* Sends what is in line for a rank. Nothing can be sent to one that is gone. */
static void send_frames(struct wire *wire, int rank)
{
    struct peer *peer = &wire->peers[rank];
    while (peer->first) {
        begin_sends(wire, rank);
        if (peer->n_sending == 0) {
            wire_free_frame(wire, pop_sent(peer)); /* it is gone */
            continue;
        }
        enum endpoint_state state = wire->kind->test(wire->endpoint, &peer->first->message);
        if (state == ENDPOINT_PENDING) {
            return;
        }
        struct frame *frame = pop_sent(peer);
        if (state == ENDPOINT_FAILED) {
            drop_message(wire, rank, frame);
            lose_failed_peer(wire, rank);
        } else {
            wire_free_frame(wire, frame);
        }
    }
}

/* What goes to other hosts is counted, message by message: every frame is one. */
static void count_frame(const struct transport_world *world, int rank, const struct frame *frame)
{
    if (world->sent_to_hosts && world->hosts[rank] != world->hosts[world->rank]) {
        /* Relaxed: a sum that orders nothing. */
        atomic_fetch_add_explicit(&world->sent_to_hosts[world->hosts[rank]],
                                  FRAME_HEAD_BYTES + frame->head.bytes, memory_order_relaxed);
    }
}

void wire_send(struct wire *wire, int rank, struct frame *frame)
{
    struct peer *peer = &wire->peers[rank];
    count_frame(wire->world, rank, frame);
    frame->next = NULL;
    if (peer->first) {
        peer->last->next = frame;
    } else {
        peer->first = frame;
    }
    peer->last = frame;
    peer->waiting = peer->waiting ? peer->waiting : frame;
    peer->is_settled =
        frame->head.type == FRAME_FENCE || (frame->head.type == FRAME_FENCE_PASSED && peer->is_settled);
    if (wire->kind->any_thread) {
        send_frames(wire, rank);
    } else {
        wire->must_wake = true;
    }
}

/* What came, under the lock ----------------------------------------------------------------------------- */

/* True unless there was no memory. */
static bool send_number(struct wire *wire, int rank, enum frame_type type, int32_t number)
{
    struct frame *frame = wire_new_frame(wire, 0);
    if (frame) {
        frame->head.type = type;
        frame->head.number = number;
        wire_send(wire, rank, frame);
    }
    return frame != NULL;
}

static bool hear_passed(struct wire *wire, int rank, int32_t number)
{
    wire->peers[rank].n_passed = number;
    wire->peers[rank].is_silent = false;
    note_passed(wire);
    return true;
}

/* Owns the frame. */
static void route(struct wire *wire, int rank, struct frame *frame)
{
    bool is_good = false;
    struct peer *peer = &wire->peers[rank];
    peer->is_fenced =
        frame->head.type == FRAME_FENCE || (frame->head.type == FRAME_FENCE_PASSED && peer->is_fenced);
    if (frame->head.type < FRAME_FENCE) {
        if (wire->user.receive(wire->user.context, wire, rank, frame)) {
            return;
        }
    } else if (frame->head.type == FRAME_FENCE) {
        is_good = send_number(wire, rank, FRAME_FENCE_PASSED, frame->head.number);
    } else if (frame->head.type == FRAME_FENCE_PASSED) {
        is_good = hear_passed(wire, rank, frame->head.number);
    }
    wire_free_frame(wire, frame);
    if (!is_good) {
        lose_peer(wire, rank, "a frame came that makes no sense, or there was no memory for it");
    }
}

/* Progress, under the lock ------------------------------------------------------------------------------ */

static void post_receives(struct wire *wire, int rank)
{
    struct peer *peer = &wire->peers[rank];
    while (peer->n_receiving < wire->depth && !peer->is_gone) {
        struct frame *frame = wire_new_frame(wire, wire->frame_bytes);
        if (!frame) {
            return;
        }
        *(peer->receiving ? &peer->last_receiving->next : &peer->receiving) = frame;
        peer->last_receiving = frame;
        peer->n_receiving++;
        wire->kind->irecv(wire->endpoint, rank, &frame->message, &frame->head,
                          FRAME_HEAD_BYTES + wire->frame_bytes);
    }
}

static struct frame *take_first_receive(struct peer *peer)
{
    struct frame *frame = peer->receiving;
    peer->receiving = frame->next;
    peer->n_receiving--;
    return frame;
}

static struct frame *take_last_receive(struct peer *peer)
{
    struct frame *before = NULL;
    struct frame *frame = peer->receiving;
    while (frame->next) {
        before = frame;
        frame = frame->next;
    }
    *(before ? &before->next : &peer->receiving) = NULL;
    peer->last_receiving = before;
    peer->n_receiving--;
    return frame;
}

/* Takes what has come from a rank, in the order in which it was sent. */
static void receive(struct wire *wire, int rank)
{
    struct peer *peer = &wire->peers[rank];
    post_receives(wire, rank);
    while (peer->receiving) {
        enum endpoint_state state = wire->kind->test(wire->endpoint, &peer->receiving->message);
        if (state == ENDPOINT_PENDING) {
            peer->is_drained = peer->left_ns != 0;
            return;
        }
        struct frame *frame = take_first_receive(peer);
        wire->n_received++;
        size_t bytes = frame->message.bytes;
        if (state == ENDPOINT_FAILED) {
            drop_message(wire, rank, frame);
            lose_failed_peer(wire, rank);
        } else if (peer->is_gone) {
            wire_free_frame(wire, frame); /* what it sent before made no sense */
        } else if (bytes < FRAME_HEAD_BYTES || frame->head.bytes != bytes - FRAME_HEAD_BYTES) {
            wire_free_frame(wire, frame);
            lose_peer(wire, rank, "a message came that is no frame");
        } else {
            route(wire, rank, frame);
        }
        post_receives(wire, rank);
    }
}

/* True while something is in line to be sent. */
static bool push(struct wire *wire)
{
    bool is_sending = false;
    wire->kind->progress(wire->endpoint);
    for (int rank = 0; rank < wire->world->n_ranks; rank++) {
        if (rank != wire->world->rank) {
            receive(wire, rank);
            send_frames(wire, rank);
            is_sending = is_sending || wire->peers[rank].first;
        }
    }
    return is_sending;
}

/* Makes progress once, if this caller may. *is_sending_out: something is in line to be sent. */
static bool take_turn(struct wire *wire, enum endpoint_caller caller, bool *is_sending_out)
{
    const struct endpoint_kind *kind = wire->kind;
    if (kind->enter && !kind->enter(wire->endpoint, caller)) {
        return false;
    }
    wire_lock(wire);
    *is_sending_out = push(wire);
    unlock(wire);
    if (kind->leave) {
        kind->leave(wire->endpoint);
    }
    return true;
}

bool wire_is_polled(const struct wire *wire)
{
    return !wire->kind->wait;
}

bool wire_poll(struct wire *wire, bool is_driver)
{
    bool is_sending;
    return take_turn(wire, is_driver ? ENDPOINT_DRIVER : ENDPOINT_WAITER, &is_sending);
}

/* Under the lock: whether something was handed over that was not begun. */
static bool has_unbegun(struct wire *wire)
{
    bool is_any = wire->kind->has_noted(wire->endpoint);
    for (int rank = 0; rank < wire->world->n_ranks && !is_any; rank++) {
        is_any = wire->peers[rank].waiting && !wire->peers[rank].is_gone;
    }
    return is_any;
}

void wire_flush(struct wire *wire)
{
    int64_t deadline_ns = 0;
    bool is_any = wire->kind->has_noted != NULL;
    while (is_any) {
        wire_lock(wire);
        is_any = has_unbegun(wire);
        unlock(wire);
        if (is_any && !wire_poll(wire, /*is_driver=*/false)) {
            wake_thread(wire);
            wait_sleep(FLUSH_NAP_NS);
        }
        deadline_ns = is_any && deadline_ns == 0 ? clock_deadline_after(BEGIN_SECONDS) : deadline_ns;
        is_any = is_any && clock_now_ns() < deadline_ns;
    }
}

void wire_count_pollers(struct wire *wire, int change)
{
    /* Relaxed: it only says how long the thread may sleep. */
    atomic_fetch_add_explicit(&wire->n_pollers, change, memory_order_relaxed);
}

/* The thread sleeps until somebody pokes it, or it is time to look again. */
static void nap(struct wire *wire, uint32_t seen, bool is_new)
{
    wire->n_naps = is_new ? 0 : wire->n_naps + 1;
    /* Relaxed: as above. */
    bool is_long =
        wire->n_naps > NAPS_BEFORE_LONG || atomic_load_explicit(&wire->n_pollers, memory_order_relaxed) > 0;
    struct wait_options options = {.deadline_ns = clock_now_ns() + (is_long ? LONG_NAP_NS : NAP_NS),
                                   .what = "messages"};
    if (wait_while_equal(&wire->pokes, seen, &options) != SHOAL_OK) {
        error_clear();
    }
}

/* Death, where it ends the endpoint: nobody can be reached any more. */
static void give_up(struct wire *wire, int dead)
{
    char text[PEER_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "rank %d has died", dead);
    /* The control plane's text says more, and is the one that all ranks have. */
    bool is_told = wire->world->check_rank(wire->world->context, dead) != SHOAL_OK;
    wire_lock(wire);
    wire->user.give_up(wire->user.context, is_told ? shoal_error_text() : text);
    error_clear();
    wire->kind->give_up(wire->endpoint, text);
    lose_peer(wire, dead, "it has died");
    for (int rank = 0; rank < wire->world->n_ranks; rank++) {
        if (rank != wire->world->rank) {
            lose_failed_peer(wire, rank);
        }
    }
    unlock(wire);
    wire->has_given_up = true;
}

static void look_for_deaths(struct wire *wire)
{
    const struct transport_world *world = wire->world;
    for (int rank = 0; rank < world->n_ranks && !wire->has_given_up; rank++) {
        if (rank != world->rank && world->is_dead(world->context, rank)) {
            give_up(wire, rank);
        }
    }
}

static void drop_messages(struct wire *wire)
{
    for (int rank = 0; rank < wire->world->n_ranks; rank++) {
        struct peer *peer = &wire->peers[rank];
        /* The last first: what comes goes to the first that is left. */
        while (peer->receiving) {
            drop_message(wire, rank, take_last_receive(peer));
        }
        while (peer->n_sending > 0) {
            drop_message(wire, rank, pop_sent(peer));
        }
        wire_free_frames(wire, peer->first);
        *peer = (struct peer){.is_gone = true};
    }
}

/* Sends what is left, for a moment at most, and closes the endpoint. */
static void finish(struct wire *wire, enum endpoint_caller caller)
{
    const struct endpoint_kind *kind = wire->kind;
    int64_t flush_ns = clock_deadline_after(FLUSH_SECONDS);
    bool is_sending = true;
    while (take_turn(wire, caller, &is_sending) && is_sending && clock_now_ns() < flush_ns) {
        if (kind->wait) {
            kind->wait(wire->endpoint, flush_ns);
        } else {
            wait_sleep(NAP_NS);
        }
    }
    bool has_entered = !kind->enter || kind->enter(wire->endpoint, caller);
    if (!has_entered) {
        kind->give_up(wire->endpoint, "the world was closed by a thread that may not call");
    }
    wire_lock(wire);
    drop_messages(wire);
    unlock(wire);
    if (has_entered && kind->leave) {
        kind->leave(wire->endpoint);
    }
    kind->close(wire->endpoint, flush_ns);
}

/* What the thread does between its turns. */
static void rest(struct wire *wire, uint32_t seen, uint64_t *n_before, int64_t *look_ns)
{
    if (wire->kind->give_up && wire->world->is_dead && clock_now_ns() >= *look_ns) {
        look_for_deaths(wire);
        *look_ns = clock_now_ns() + LOOK_NS;
    }
    if (wire->kind->wait) {
        wire->kind->wait(wire->endpoint, clock_now_ns() + LOOK_NS);
        return;
    }
    wire_lock(wire);
    bool is_new = wire->n_received != *n_before;
    *n_before = wire->n_received;
    unlock(wire);
    nap(wire, seen, is_new);
}

static bool is_closing(struct wire *wire)
{
    wire_lock(wire);
    bool is_closing = wire->is_closing;
    unlock(wire);
    return is_closing;
}

static void *run_thread(void *context)
{
    struct wire *wire = context;
    shoal_status status = wire->kind->open(wire->world, wire->open_deadline_ns, &wire->endpoint);
    completion_finish(&wire->opened, status);
    if (status != SHOAL_OK) {
        return NULL;
    }
    int64_t look_ns = 0;
    uint64_t n_before = 0;
    while (!is_closing(wire)) {
        /* Relaxed: see wake_thread. Read before the turn, so that no poke is lost. */
        uint32_t seen = atomic_load_explicit(&wire->pokes, memory_order_relaxed);
        bool is_sending;
        (void)take_turn(wire, ENDPOINT_THREAD, &is_sending);
        if (!is_closing(wire)) {
            rest(wire, seen, &n_before, &look_ns);
        }
    }
    if (!wire->kind->any_thread) {
        finish(wire, ENDPOINT_THREAD);
    }
    return NULL;
}

/* Opening and closing ----------------------------------------------------------------------------------- */

void wire_free(struct wire *wire)
{
    struct frame *spares[] = {wire->spare, wire->spare_calls};
    for (size_t i = 0; i < sizeof spares / sizeof spares[0]; i++) {
        while (spares[i]) {
            struct frame *frame = spares[i];
            spares[i] = frame->next;
            mem_free(frame);
        }
    }
    (void)pthread_mutex_destroy(&wire->lock);
    mem_free(wire->opened.text);
    mem_free(wire->peers);
    mem_free(wire);
}

static shoal_status start_thread(struct wire *wire)
{
    int error = os_start_thread(&wire->thread, run_thread, wire);
    return error == 0 ? SHOAL_OK
                      : error_set(SHOAL_ERR_SYSTEM, "the thread of transport %s: %s", wire->kind->name,
                                  error_errno_text(error));
}

/* With many ranks one must do. */
static int choose_depth(int n_ranks)
{
    int depth = DEPTH * DEEP_RANKS / n_ranks;
    return depth < 1 ? 1 : depth > DEPTH ? DEPTH : depth;
}

shoal_status wire_open(const struct endpoint_kind *kind, const struct transport_world *world,
                       int64_t deadline_ns, const struct wire_user *user, struct wire **wire_out)
{
    struct wire *wire = mem_alloc_zeroed(1, sizeof *wire);
    struct peer *peers = mem_alloc_zeroed((size_t)world->n_ranks, sizeof *peers);
    if (!wire || !peers || pthread_mutex_init(&wire->lock, NULL) != 0) {
        mem_free(wire);
        mem_free(peers);
        return SHOAL_ERR_NO_MEMORY;
    }
    wire->kind = kind;
    wire->world = world;
    wire->user = *user;
    wire->peers = peers;
    wire->open_deadline_ns = deadline_ns;
    wire->depth = kind->wait ? 1 : choose_depth(world->n_ranks);
    wire->frame_bytes =
        (kind->message_bytes ? kind->message_bytes : ENDPOINT_MESSAGE_BYTES) - FRAME_HEAD_BYTES;
    for (int rank = 0; rank < world->n_ranks; rank++) {
        peers[rank].is_settled = true;
        peers[rank].is_fenced = true;
    }
    completion_init(&wire->opened, NULL);
    shoal_status status = start_thread(wire);
    if (status == SHOAL_OK) {
        /* The thread ends it at the deadline of open at the latest. */
        status = completion_wait(&wire->opened, DEADLINE_NEVER);
        if (status == SHOAL_OK) {
            *wire_out = wire;
            return SHOAL_OK;
        }
        (void)pthread_join(wire->thread, NULL);
    }
    wire_free(wire);
    return status;
}

void wire_stop(struct wire *wire)
{
    wire_lock(wire);
    wire->is_closing = true;
    wake_thread(wire); /* under the lock: once the thread has seen that it must end, the endpoint is gone */
    unlock(wire);
    (void)pthread_join(wire->thread, NULL);
    if (wire->kind->any_thread) {
        finish(wire, ENDPOINT_CLOSER);
    }
}

/* Settling ----------------------------------------------------------------------------------------------- */

/* Under the lock: whether a rank still has to answer. */
static bool is_awaited(const struct peer *peer)
{
    return !peer->is_gone && !peer->is_silent && peer->n_passed != peer->n_fences;
}

static void send_fences(struct wire *wire)
{
    for (int rank = 0; rank < wire->world->n_ranks; rank++) {
        struct peer *peer = &wire->peers[rank];
        bool must_send = rank != wire->world->rank && !peer->is_settled && !peer->is_gone;
        if (must_send && send_number(wire, rank, FRAME_FENCE, peer->n_fences + 1)) {
            peer->n_fences++;
        }
    }
}

static bool must_await(struct wire *wire, bool is_over)
{
    bool is_any = false;
    for (int rank = 0; rank < wire->world->n_ranks; rank++) {
        struct peer *peer = &wire->peers[rank];
        peer->is_silent = peer->is_silent || (is_over && is_awaited(peer));
        is_any = is_any || is_awaited(peer);
    }
    return is_any;
}

void wire_settle(struct wire *wire)
{
    int64_t deadline_ns = clock_deadline_after(FLUSH_SECONDS);
    wire_lock(wire);
    send_fences(wire);
    wire_unlock(wire);
    for (;;) {
        uint32_t seen = atomic_load_explicit(&wire->passed, memory_order_relaxed);
        wire_lock(wire);
        bool is_any = must_await(wire, clock_now_ns() >= deadline_ns);
        unlock(wire);
        if (!is_any) {
            return;
        }
        /* Where somebody has to look, that may be this thread's business alone. */
        int64_t until_ns = deadline_ns;
        if (wire_is_polled(wire) && wire_poll(wire, /*is_driver=*/false)) {
            until_ns = clock_now_ns() + NAP_NS;
        }
        struct wait_options options = {.deadline_ns = until_ns, .what = "answers to a fence"};
        if (wait_while_equal(&wire->passed, seen, &options) != SHOAL_OK) {
            error_clear();
        }
    }
}
