/* SPDX-License-Identifier: MIT */
/*
 * The thread that makes progress, and who else does; opening, closing and settling. The lock orders everything: whoever
 * rings a bell has done what it rings for under the lock, and whoever looks takes the lock.
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
/* If the endpoint does not say another time. */
#define PATIENCE_SECONDS 2.0
/* How long closing waits for the application's lock; after a death there is nothing left to send. */
#define LOCKED_SECONDS 5.0
#define GIVEN_UP_SECONDS 0.5
/* What a rank that left without a fence may still have sent gets this long. */
#define LAST_WORDS_NS INT64_C(1000000000)
/*
 * What lies in the network when a deadline has passed is taken until nothing has come for a moment, for so long at most
 * while more comes, and for so long at most while nobody may make progress or the thread gets no processor.
 */
#define QUIET_NS INT64_C(50000000)
#define CATCH_UP_NS INT64_C(300000000)
#define CATCH_UP_TURN_NS INT64_C(500000000)
/* In larger worlds fewer messages are on their way to each rank. */
#define DEEP_RANKS 8

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

double wire_patience_s(const struct wire *wire)
{
    return wire->kind->patience_s > 0 ? wire->kind->patience_s : PATIENCE_SECONDS;
}

/* Until when a rank that does nothing is waited for, from now on. */
static int64_t patience_end_ns(struct wire *wire)
{
    int64_t end_ns = clock_deadline_after(wire_patience_s(wire));
    wire_lock(wire); /* of a wire that is abandoned, the world may be gone */
    /* Relaxed: an instant that stands for itself. */
    int64_t closing_ns =
        wire->is_abandoned ? 0 : atomic_load_explicit(&wire->world->closing_ns, memory_order_relaxed);
    unlock(wire);
    return closing_ns != 0 && closing_ns < end_ns ? closing_ns : end_ns;
}

/* Who is there ------------------------------------------------------------------------------------------ */

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

/* Progress ---------------------------------------------------------------------------------------------- */

/* Makes progress once, if this caller may. *is_sending_out: something is in line to be sent. */
static bool take_turn(struct wire *wire, enum endpoint_caller caller, bool *is_sending_out)
{
    const struct endpoint_kind *kind = wire->kind;
    if (kind->enter && !kind->enter(wire->endpoint, caller)) {
        return false;
    }
    wire_lock(wire);
    *is_sending_out = !wire->is_abandoned && wire_push(wire);
    wire->n_turns++;
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

void wire_catch_up(struct wire *wire)
{
    int64_t now_ns = clock_now_ns();
    int64_t start_ns = now_ns;
    int64_t quiet_ns = now_ns + QUIET_NS;
    wire_lock(wire);
    uint64_t n_turns = wire->n_turns;
    uint64_t n_received = wire->n_received;
    unlock(wire);
    wake_thread(wire);
    bool has_turned = false;
    while ((!has_turned && now_ns < start_ns + CATCH_UP_TURN_NS) ||
           (now_ns < quiet_ns && now_ns < start_ns + CATCH_UP_NS)) {
        if (wire_is_polled(wire)) {
            (void)wire_poll(wire, /*is_driver=*/false);
        }
        wait_sleep(FLUSH_NAP_NS);
        now_ns = clock_now_ns();
        wire_lock(wire);
        has_turned = wire->n_turns != n_turns;
        quiet_ns = wire->n_received != n_received ? now_ns + QUIET_NS : quiet_ns;
        n_received = wire->n_received;
        unlock(wire);
    }
}

void wire_poke(struct wire *wire)
{
    wake_thread(wire);
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

/* Nobody can be reached any more. `reason` is for the callers of this rank, `why` for what they ask of a rank later. */
static void end_endpoint(struct wire *wire, const char *reason, const char *why, int dead)
{
    wire_lock(wire);
    if (!atomic_load(&wire->has_given_up)) {
        atomic_store(&wire->has_given_up, true);
        wire->user.give_up(wire->user.context, reason);
        wire->kind->give_up(wire->endpoint, why);
        if (dead >= 0) {
            wire_lose_peer(wire, dead, "it has died");
        }
        for (int rank = 0; rank < wire->world->n_ranks; rank++) {
            if (rank != wire->world->rank) {
                wire_lose_failed_peer(wire, rank);
            }
        }
        wire_give_back_all(wire);
    }
    unlock(wire);
}

void wire_give_up(struct wire *wire, const char *why)
{
    LOG(SHOAL_LOG_WARN, "rank %d: transport %s is given up: %s", wire->world->rank, wire->kind->name, why);
    end_endpoint(wire, why, why, /*dead=*/-1);
}

/* Death, where it ends the endpoint. */
static void give_up(struct wire *wire, int dead)
{
    char text[PEER_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "rank %d has died", dead);
    /* The control plane's text says more, and is the one that all ranks have. */
    bool is_told = wire->world->check_rank(wire->world->context, dead) != SHOAL_OK;
    end_endpoint(wire, is_told ? shoal_error_text() : text, text, dead);
    error_clear();
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

/* Sends what is left, for a moment at most, and closes the endpoint. */
static void finish(struct wire *wire, enum endpoint_caller caller)
{
    const struct endpoint_kind *kind = wire->kind;
    /* Where a message that was begun cannot be dropped without giving up the endpoint, it gets its time in any case. */
    int64_t flush_ns = kind->give_up ? clock_deadline_after(wire_patience_s(wire)) : patience_end_ns(wire);
    bool is_sending = true;
    while (take_turn(wire, caller, &is_sending) && is_sending && clock_now_ns() < flush_ns) {
        if (kind->wait) {
            kind->wait(wire->endpoint, flush_ns);
        } else {
            wait_sleep(NAP_NS);
        }
    }
    bool has_entered = !kind->enter || kind->enter(wire->endpoint, caller);
    if (!has_entered && kind->give_up) {
        kind->give_up(wire->endpoint, "the world was closed by a thread that may not call");
    }
    wire_lock(wire);
    wire_drop_messages(wire);
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
                                  error_thread_text(error));
}

/* With many ranks one must do. */
static int choose_depth(int n_ranks)
{
    int depth = WIRE_DEPTH * DEEP_RANKS / n_ranks;
    return depth < 1 ? 1 : depth > WIRE_DEPTH ? WIRE_DEPTH : depth;
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
        if (must_send && wire_send_number(wire, rank, FRAME_FENCE, peer->n_fences + 1)) {
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
    int64_t deadline_ns = patience_end_ns(wire);
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
