/* SPDX-License-Identifier: MIT */
/*
 * Frames to the endpoint and back, and the thread that makes progress. The lock orders everything: whoever rings a bell has
 * done what it rings for under the lock, and whoever looks takes the lock.
 */
#include "transport/message/wire_state.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
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
/* How long a call that has ended waits at most until all that it sent was begun: somebody keeps everybody from it. */
#define BEGIN_SECONDS 10.0
/* So much of it also after the deadline of the call: it has ended well, and what it sent is needed. */
#define BEGIN_LATE_NS INT64_C(10000000)
#define NAPS_BEFORE_LONG 200
/* How long closing tries to get rid of what was sent, and how long a rank has to answer a fence. */
#define FLUSH_SECONDS 2.0
/* How long closing waits for the application's lock; after a death there is nothing left to send. */
#define LOCKED_SECONDS 5.0
#define GIVEN_UP_SECONDS 0.5
/* What a rank that left without a fence may still have sent gets this long. */
#define LAST_WORDS_NS INT64_C(1000000000)
/*
 * Messages on their way at once, to a rank and from it. A library that hands over long messages only after both sides have
 * agreed needs several, so that one moves while others agree; each receive has a frame of the longest message. What has
 * `wait` reads and writes a stream, which needs no more than one.
 */
#define DEPTH 2
#define DEEP_RANKS 8
_Static_assert(DEPTH <= ENDPOINT_IN_FLIGHT, "what an endpoint has room for");
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
    *is_sending_out = !wire->is_abandoned && push(wire);
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
    bool is_any = wire->kind->has_noted && wire->kind->has_noted(wire->endpoint);
    for (int rank = 0; rank < wire->world->n_ranks && !is_any; rank++) {
        is_any = wire->peers[rank].waiting && !wire->peers[rank].is_gone;
    }
    return is_any;
}

static enum endpoint_turns turns_of(const struct wire *wire)
{
    return wire->kind->turns ? wire->kind->turns(wire->endpoint) : ENDPOINT_TURNS_FREE;
}

void wire_flush(struct wire *wire, int64_t deadline_ns)
{
    bool is_any = turns_of(wire) != ENDPOINT_TURNS_FREE;
    int64_t end_ns = 0;
    while (is_any) {
        wire_lock(wire);
        is_any = has_unbegun(wire);
        unlock(wire);
        if (is_any && !wire_poll(wire, /*is_driver=*/false)) {
            wake_thread(wire);
            wait_sleep(FLUSH_NAP_NS);
        }
        int64_t now_ns = clock_now_ns();
        if (end_ns == 0) {
            int64_t last_ns = clock_deadline_after(BEGIN_SECONDS);
            end_ns = deadline_ns < now_ns ? now_ns + BEGIN_LATE_NS : deadline_ns;
            end_ns = end_ns < last_ns ? end_ns : last_ns;
        }
        if (is_any && now_ns >= end_ns) {
            LOG(SHOAL_LOG_WARN, "rank %d: transport %s was kept from sending: peers may wait",
                wire->world->rank, wire->kind->name);
            return;
        }
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
    if (atomic_load(&wire->has_given_up)) {
        unlock(wire);
        error_clear();
        return;
    }
    atomic_store(&wire->has_given_up, true);
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
}

/* Where a death ends the endpoint. */
static void look_for_deaths(struct wire *wire)
{
    const struct transport_world *world = wire->world;
    bool must_look = wire->kind->give_up && world->is_dead;
    for (int rank = 0; must_look && rank < world->n_ranks && !atomic_load(&wire->has_given_up); rank++) {
        if (rank != world->rank && world->is_dead(world->context, rank)) {
            give_up(wire, rank);
        }
    }
}

static void drop_messages(struct wire *wire)
{
    for (int rank = 0; rank < wire->n_peers; rank++) {
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
    if (clock_now_ns() >= *look_ns) {
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

static void free_memory(struct wire *wire)
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

/* The last thing that the thread does. */
static void end_thread(struct wire *wire)
{
    wire_lock(wire);
    bool must_free = wire->is_released;
    atomic_store(&wire->has_ended, 1);
    wait_wake_all(&wire->has_ended, /*is_shared=*/false);
    unlock(wire);
    if (must_free) {
        free_memory(wire);
    }
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
    if (!wire->kind->any_thread || turns_of(wire) == ENDPOINT_TURNS_LOCKED) {
        finish(wire, ENDPOINT_THREAD);
    }
    end_thread(wire);
    return NULL;
}

/* Opening and closing ----------------------------------------------------------------------------------- */

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
    wire->n_peers = world->n_ranks;
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
    free_memory(wire);
    return status;
}

/*
 * The application's lock may be kept for ever, by a thread that waits in the library for a rank that has died. Then the wire's
 * thread does not end in time. It ends when it gets the lock.
 */
static void await_end(struct wire *wire)
{
    double seconds = atomic_load(&wire->has_given_up) ? GIVEN_UP_SECONDS : LOCKED_SECONDS;
    struct wait_options options = {.deadline_ns = clock_deadline_after(seconds), .what = "the lock of MPI"};
    if (wait_while_equal(&wire->has_ended, 0, &options) == SHOAL_OK) {
        return;
    }
    error_clear();
    wire_lock(wire);
    wire->is_abandoned = atomic_load(&wire->has_ended) == 0;
    if (wire->is_abandoned) {
        LOG(SHOAL_LOG_WARN,
            "rank %d: the world is closed while the application keeps the lock of transport %s",
            wire->world->rank, wire->kind->name);
    }
    if (wire->is_abandoned && wire->kind->give_up) {
        wire->kind->give_up(wire->endpoint, "the world was closed while the application kept its lock");
    }
    unlock(wire);
}

void wire_stop(struct wire *wire)
{
    bool is_locked = turns_of(wire) == ENDPOINT_TURNS_LOCKED;
    look_for_deaths(wire);
    wire_lock(wire);
    wire->is_closing = true;
    wake_thread(wire); /* under the lock: once the thread has seen that it must end, the endpoint is gone */
    unlock(wire);
    if (is_locked) {
        await_end(wire);
    }
    if (wire->is_abandoned) {
        return;
    }
    (void)pthread_join(wire->thread, NULL);
    if (wire->kind->any_thread && !is_locked) {
        finish(wire, ENDPOINT_CLOSER);
    }
    wire->must_wake = false;
}

void wire_free(struct wire *wire)
{
    if (!wire->is_abandoned) {
        free_memory(wire);
        return;
    }
    pthread_t thread = wire->thread;
    wire_lock(wire);
    bool has_ended = atomic_load(&wire->has_ended) != 0;
    wire->is_released = true;
    unlock(wire);
    if (!has_ended) {
        (void)pthread_detach(thread);
        return;
    }
    (void)pthread_join(thread, NULL);
    free_memory(wire);
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
