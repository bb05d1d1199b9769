/* SPDX-License-Identifier: MIT */
/*
 * Lanes. docs/design/lanes.md has the rules and the argument; in short:
 *
 *   gate     one word: how many collectives were issued, and two bits. ALONE: a blocking call found the lane empty
 *            and runs without an entry. LINE: there are entries or a driver, and the mutex decides.
 *   entries  what is unfinished, in order; those that were posted come before those that are queued.
 *   driver   the one thread that carries entries, from the head: a waiter, a blocking call, or the lane's thread.
 *            Who stops driving, with entries left that somebody needs, wakes one who goes on (settle).
 */
#include "comm/lane.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/try.h"
#include "base/wait.h"
#include "comm/group.h"
#include "comm/recorder.h"
#include "comm/work.h"
#include "comm/world.h"

#define GATE_ALONE ((uint64_t)1)
#define GATE_LINE ((uint64_t)2)
#define GATE_ONE ((uint64_t)4) /* one collective more */
#define GATE_SHIFT 2

/* So old may a reading of the clock be that a deadline is computed from: some 60 microseconds on most machines. */
#define CLOCK_FRESH_TICKS 65536

/* How long lane_free waits for threads that a poisoned channel should have let go at once. */
#define LEAVE_SECONDS 10.0

enum entry_state {
    ENTRY_QUEUED, /* to be run */
    ENTRY_POSTED, /* to be finished */
    ENTRY_ENDED   /* no longer in line */
};

struct entry {
    struct collective *collective;
    struct lane_work *work; /* NULL: a blocking call's, on its stack */
    struct entry *next;
    enum entry_state state; /* under the mutex, except that the driver may read what only it changes */
    struct record_handle record;
    /* Of a blocking call: what became of it. */
    shoal_status status;
    char *text; /* ERROR_TEXT_BYTES */
};

/* A thread that sleeps until its entry has ended or it is its turn to drive; on its stack. */
struct waiter {
    _Atomic uint32_t is_woken;
    bool is_listed; /* under the mutex; once it is not, the word will be set by whoever took it off */
    struct entry *target;
    int64_t until_ns;
    struct waiter *next;
};

/* Who is to be woken after the mutex was left. */
struct wakes {
    struct waiter *waiters;
    bool has_thread;
};

struct lane {
    /* First what an unhindered blocking call touches. */
    _Atomic uint64_t gate;
    struct channel *_Atomic channel; /* NULL until connected */
    struct shoal_group *group;
    /* When the clock was last read by a call that ran alone, who is the only one to touch these. */
    uint64_t read_ticks;
    int64_t read_ns;
    _Atomic uint32_t references;   /* the group's, and one per work */
    _Atomic uint32_t n_unfinished; /* entries */

    pthread_mutex_t mutex; /* over everything below */
    struct entry *head;
    struct entry *tail;
    uint32_t n_queued; /* entries that are queued */
    bool is_driven;
    struct waiter *waiters; /* in the order in which they came */
    /* The lane's thread, made when a work is queued. It sleeps on the bell. */
    bool has_thread;
    bool is_thread_asleep;
    bool must_stop;
    pthread_t thread;
    _Atomic uint32_t bell;

    pthread_mutex_t connect_mutex;
    _Atomic bool has_local_failure; /* poisoned, but could not connect to say so */
    shoal_status local_status;
    char local_text[ERROR_TEXT_BYTES];
};

struct lane_work {
    struct shoal_work base;
    struct lane *lane;
    struct entry entry;
    struct collective collective; /* what it points to follows, in the same block */
};

/* What a driver wants. */
struct goal {
    enum {
        GOAL_ENTRY,  /* until `target` has ended */
        GOAL_QUEUED, /* until nothing is queued: the lane's thread */
        GOAL_ALL
    } kind;
    struct entry *target;
    int64_t until_ns; /* 0: only what is ready */
};

/* Waking ----------------------------------------------------------------------------------------------- */

/*
 * Leaves the mutex, then wakes. A waiter's word is set last, because its stack may be gone right after; waking
 * an address that is no longer a waiter's wakes at most somebody who looks again and goes back to sleep.
 */
static void unlock_and_wake(struct lane *lane, struct wakes *wakes)
{
    (void)pthread_mutex_unlock(&lane->mutex);
    for (struct waiter *waiter = wakes->waiters; waiter;) {
        struct waiter *next = waiter->next;
        /* Release: pairs with the acquire in base/wait.c. (What the waiter reads then, it reads under the mutex.) */
        atomic_store_explicit(&waiter->is_woken, 1, memory_order_release);
        wait_wake_all(&waiter->is_woken, /*is_shared=*/false);
        waiter = next;
    }
    if (wakes->has_thread) {
        wait_wake_all(&lane->bell, /*is_shared=*/false);
    }
    *wakes = (struct wakes){0};
}

/* `link` points to the waiter. */
static void take_off_waiter(struct waiter **link, struct wakes *wakes)
{
    struct waiter *waiter = *link;
    *link = waiter->next;
    waiter->is_listed = false;
    waiter->next = wakes->waiters;
    wakes->waiters = waiter;
}

static void ring(struct lane *lane, struct wakes *wakes)
{
    if (lane->is_thread_asleep) {
        lane->is_thread_asleep = false;
        /* Release: pairs with the acquire in base/wait.c; the thread then takes the mutex. */
        atomic_fetch_add_explicit(&lane->bell, 1, memory_order_release);
        wakes->has_thread = true;
    }
}

/* Nobody carries anything. */
static bool is_free(struct lane *lane)
{
    /* Acquire: pairs with the release by which a call that ran alone leaves; the channel is ours then. */
    return !lane->is_driven && !(atomic_load_explicit(&lane->gate, memory_order_acquire) & GATE_ALONE);
}

/* Running can not be left half way: only one who has the time may run a queued entry. */
static bool may_carry(const struct entry *entry, int64_t until_ns)
{
    return entry->state == ENTRY_POSTED || until_ns >= entry->collective->deadline_ns;
}

/* One who can carry the head, so that every hand-over gets something done. */
static struct waiter **choose_waiter(struct lane *lane)
{
    for (struct waiter **link = &lane->waiters; *link; link = &(*link)->next) {
        if (may_carry(lane->head, (*link)->until_ns)) {
            return link;
        }
    }
    return NULL;
}

/*
 * After driving, or after running alone: opens the gate, or sees to it that somebody goes on. Posted entries that
 * nobody waits for are left as they are: no peer needs them.
 */
static void settle(struct lane *lane, struct wakes *wakes)
{
    if (!is_free(lane)) {
        return;
    }
    if (!lane->head) {
        /* Release: pairs with the acquire of the next call that runs alone. */
        atomic_fetch_and_explicit(&lane->gate, ~GATE_LINE, memory_order_release);
        return;
    }
    struct waiter **link = choose_waiter(lane);
    if (link) {
        take_off_waiter(link, wakes);
    } else if (lane->n_queued > 0) {
        ring(lane, wakes);
    }
}

/* Driving ---------------------------------------------------------------------------------------------- */

static int64_t deadline_at(const struct lane *lane, int64_t now_ns)
{
    /* Relaxed: a number that stands for itself. */
    double seconds = atomic_load_explicit(&lane->group->timeout_s, memory_order_relaxed);
    return seconds < 4e9 ? now_ns + (int64_t)(seconds * 1e9) : DEADLINE_NEVER;
}

/* Tells everybody but the waiters of this lane, who are told under the mutex. */
static void end_entry(struct lane *lane, struct entry *entry, shoal_status status)
{
    recorder_end(entry->record, entry->collective, status, clock_ticks());
    if (status != SHOAL_OK) {
        recorder_report_failure(lane->group);
    }
    /* Before anybody can know of the end, so that who has waited for all finds none. Release: pairs with the
       acquire in lane_n_unfinished. */
    atomic_fetch_sub_explicit(&lane->n_unfinished, 1, memory_order_release);
    if (entry->work) {
        completion_finish(&entry->work->base.completion, status);
        return;
    }
    entry->status = status;
    if (status != SHOAL_OK) {
        (void)snprintf(entry->text, ERROR_TEXT_BYTES, "%s", shoal_error_text());
    }
}

/* The entry has ended: it leaves the line. */
static void pop_head(struct lane *lane, struct wakes *wakes)
{
    struct entry *entry = lane->head;
    lane->head = entry->next;
    if (!lane->head) {
        lane->tail = NULL;
    }
    lane->n_queued -= entry->state == ENTRY_QUEUED;
    entry->state = ENTRY_ENDED;
    for (struct waiter **link = &lane->waiters; *link;) {
        if ((*link)->target == entry) {
            take_off_waiter(link, wakes);
        } else {
            link = &(*link)->next;
        }
    }
    if (entry->work) {
        completion_unref(&entry->work->base.completion);
    }
}

/* Ends the head, leaving the mutex meanwhile. False when it can not be ended by this caller now. */
static bool carry_head(struct lane *lane, int64_t until_ns, struct wakes *wakes)
{
    struct entry *entry = lane->head;
    struct collective *collective = entry->collective;
    struct channel *channel = atomic_load_explicit(&lane->channel, memory_order_relaxed);
    bool is_queued = entry->state == ENTRY_QUEUED;
    if (!may_carry(entry, until_ns)) {
        return false;
    }
    if (until_ns == 0 && !channel->transport->is_ready(channel, collective)) {
        return false;
    }
    unlock_and_wake(lane, wakes);
    bool is_pending = false;
    shoal_status status;
    if (is_queued) {
        recorder_start(entry->record, collective, clock_ticks());
        status = channel->transport->run(channel, collective);
    } else {
        status = channel->transport->finish(channel, collective, until_ns, &is_pending);
    }
    if (!is_pending) {
        end_entry(lane, entry, status);
    }
    (void)pthread_mutex_lock(&lane->mutex);
    if (!is_pending) {
        pop_head(lane, wakes);
    }
    return !is_pending;
}

static bool is_reached(const struct lane *lane, const struct goal *goal)
{
    return !lane->head || (goal->kind == GOAL_ENTRY && goal->target->state == ENTRY_ENDED) ||
           (goal->kind == GOAL_QUEUED && lane->n_queued == 0);
}

/* With the mutex, on a lane that is free. */
static void drive(struct lane *lane, const struct goal *goal, struct wakes *wakes)
{
    lane->is_driven = true;
    while (!is_reached(lane, goal) && carry_head(lane, goal->until_ns, wakes)) {
    }
    lane->is_driven = false;
    settle(lane, wakes);
}

/* Waiting ---------------------------------------------------------------------------------------------- */

static void list_waiter(struct lane *lane, struct waiter *waiter)
{
    struct waiter **link = &lane->waiters;
    while (*link) {
        link = &(*link)->next;
    }
    *link = waiter;
}

static void unlist_waiter(struct lane *lane, struct waiter *waiter)
{
    struct waiter **link = &lane->waiters;
    while (*link != waiter) {
        link = &(*link)->next;
    }
    *link = waiter->next;
}

/* Leaves the mutex meanwhile. False when the time was up first. */
static bool sleep_for_turn(struct lane *lane, const struct goal *goal, struct wakes *wakes)
{
    struct waiter waiter = {.is_listed = true, .target = goal->target, .until_ns = goal->until_ns};
    struct wait_options options = {.deadline_ns = goal->until_ns,
                                   .may_spin = lane->group->peers.may_spin,
                                   .what = "an operation to finish"};
    list_waiter(lane, &waiter);
    unlock_and_wake(lane, wakes);
    shoal_status status = wait_while_equal(&waiter.is_woken, 0, &options);
    (void)pthread_mutex_lock(&lane->mutex);
    if (waiter.is_listed) {
        unlist_waiter(lane, &waiter);
        error_clear();
        return false;
    }
    /* Taken off, but the word not set yet: it will be in a moment, and must not be on a dead stack. */
    options.deadline_ns = DEADLINE_NEVER;
    while (status != SHOAL_OK) {
        (void)pthread_mutex_unlock(&lane->mutex);
        status = wait_while_equal(&waiter.is_woken, 0, &options);
        (void)pthread_mutex_lock(&lane->mutex);
        error_clear();
    }
    return true;
}

static bool has_time(const struct goal *goal)
{
    return goal->until_ns == DEADLINE_NEVER || (goal->until_ns != 0 && clock_now_ns() < goal->until_ns);
}

/* With the mutex. Returns when the entry has ended or the time is up; drives where it can. */
static void await_entry(struct lane *lane, const struct goal *goal, struct wakes *wakes)
{
    do {
        if (is_free(lane)) {
            drive(lane, goal, wakes);
        }
    } while (goal->target->state != ENTRY_ENDED && has_time(goal) && sleep_for_turn(lane, goal, wakes));
}

/* The lane's thread ------------------------------------------------------------------------------------ */

static void *run_thread(void *context)
{
    struct lane *lane = context;
    struct goal goal = {.kind = GOAL_QUEUED, .until_ns = DEADLINE_NEVER};
    struct wait_options options = {.deadline_ns = DEADLINE_NEVER, .what = "work"};
    struct wakes wakes = {0};
    (void)pthread_mutex_lock(&lane->mutex);
    while (!lane->must_stop) {
        if (lane->n_queued > 0 && is_free(lane)) {
            drive(lane, &goal, &wakes);
            continue;
        }
        lane->is_thread_asleep = true;
        /* Relaxed: it changes under the mutex only. */
        uint32_t seen = atomic_load_explicit(&lane->bell, memory_order_relaxed);
        unlock_and_wake(lane, &wakes);
        (void)wait_while_equal(&lane->bell, seen, &options);
        (void)pthread_mutex_lock(&lane->mutex);
    }
    unlock_and_wake(lane, &wakes);
    return NULL;
}

/* With the mutex. Signals are the program's threads' business. */
static shoal_status need_thread(struct lane *lane)
{
    if (lane->has_thread) {
        return SHOAL_OK;
    }
    FAIL_POINT("lane thread");
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&lane->thread, NULL, run_thread, lane);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "thread of group %s: %s", lane->group->key, strerror(code));
    }
    (void)pthread_setname_np(lane->thread, "shoal-lane");
    lane->has_thread = true;
    return SHOAL_OK;
}

/* Connecting ------------------------------------------------------------------------------------------- */

static shoal_status local_failure(struct lane *lane)
{
    /* Acquire: pairs with the release in lane_poison. */
    if (!atomic_load_explicit(&lane->has_local_failure, memory_order_acquire)) {
        return SHOAL_OK;
    }
    return error_set(lane->local_status, "%s", lane->local_text);
}

/* Under connect_mutex. A failure is this call's alone: nothing was issued, and the next call tries again. */
static shoal_status connect_once(struct lane *lane)
{
    if (atomic_load_explicit(&lane->channel, memory_order_relaxed)) {
        return SHOAL_OK;
    }
    TRY(local_failure(lane));
    FAIL_POINT("lane connect");
    struct channel *channel = NULL;
    shoal_status status =
        lane->group->world->transport->connect(&lane->group->peers, group_deadline(lane->group), &channel);
    if (status != SHOAL_OK) {
        return error_prefix(status, "connecting group %s", lane->group->key);
    }
    /* Release: pairs with the acquire in find_channel. */
    atomic_store_explicit(&lane->channel, channel, memory_order_release);
    return SHOAL_OK;
}

static struct channel *find_channel(struct lane *lane)
{
    /* Acquire: pairs with the release in connect_once. */
    return atomic_load_explicit(&lane->channel, memory_order_acquire);
}

/* Connects if need be; SHOAL_OK only while the group can be used. */
static shoal_status open_channel(struct lane *lane)
{
    if (!find_channel(lane)) {
        (void)pthread_mutex_lock(&lane->connect_mutex);
        shoal_status status = connect_once(lane);
        (void)pthread_mutex_unlock(&lane->connect_mutex);
        TRY(status);
    }
    return lane_failure(lane);
}

/* Issuing ---------------------------------------------------------------------------------------------- */

static void append(struct lane *lane, struct entry *entry)
{
    if (lane->tail) {
        lane->tail->next = entry;
    } else {
        lane->head = entry;
    }
    lane->tail = entry;
    lane->n_queued += entry->state == ENTRY_QUEUED;
    /* Relaxed: pairs with nothing; the caller knows what it has issued. */
    atomic_fetch_add_explicit(&lane->n_unfinished, 1, memory_order_relaxed);
}

/* With the mutex, on a connected lane: the next in line, posted if the channel takes it. */
static shoal_status issue(struct lane *lane, struct entry *entry, struct wakes *wakes)
{
    struct channel *channel = find_channel(lane);
    struct collective *collective = entry->collective;
    /* From here on no call can start to run alone. Acquire: as in is_free. */
    uint64_t gate = atomic_fetch_or_explicit(&lane->gate, GATE_LINE, memory_order_acquire);
    uint64_t sequence = gate >> GATE_SHIFT;
    collective->sequence = (uint32_t)sequence;
    collective->deadline_ns = deadline_at(lane, clock_now_ns());
    collective->algorithm = -1;
    bool may_post = lane->n_queued == 0 && !(gate & GATE_ALONE);
    bool is_posted = may_post && channel->transport->post(channel, collective);
    entry->state = is_posted ? ENTRY_POSTED : ENTRY_QUEUED;
    if (entry->work && !is_posted) {
        shoal_status status = need_thread(lane);
        if (status != SHOAL_OK) {
            settle(lane, wakes);
            return status;
        }
    }
    /* Relaxed: while LINE is set only who has the mutex changes the count. */
    atomic_fetch_add_explicit(&lane->gate, GATE_ONE, memory_order_relaxed);
    entry->record =
        recorder_issue(lane->group->recorder, sequence + 1, collective, lane->group->peers.n_ranks,
                       is_posted ? RECORD_POSTED : RECORD_QUEUED, clock_ticks(), 0);
    append(lane, entry);
    if (entry->work && !is_posted && is_free(lane)) {
        ring(lane, wakes);
    }
    return SHOAL_OK;
}

/* Behind others, or with the lane not connected yet. */
static shoal_status run_in_line(struct lane *lane, struct collective *collective)
{
    TRY(open_channel(lane));
    char text[ERROR_TEXT_BYTES];
    struct entry entry = {.collective = collective, .text = text};
    struct goal goal = {.kind = GOAL_ENTRY, .target = &entry, .until_ns = DEADLINE_NEVER};
    struct wakes wakes = {0};
    (void)pthread_mutex_lock(&lane->mutex);
    /* Fails only for want of a thread, which a blocking call does not need. */
    shoal_status status = issue(lane, &entry, &wakes);
    while (status == SHOAL_OK && entry.state != ENTRY_ENDED) {
        await_entry(lane, &goal, &wakes);
    }
    unlock_and_wake(lane, &wakes);
    TRY(status);
    return entry.status == SHOAL_OK ? SHOAL_OK : error_set(entry.status, "%s", text);
}

/* Somebody came while a call ran alone. */
static __attribute__((noinline)) void settle_after_alone(struct lane *lane)
{
    struct wakes wakes = {0};
    (void)pthread_mutex_lock(&lane->mutex);
    settle(lane, &wakes);
    unlock_and_wake(lane, &wakes);
}

/* The deadline of a call that runs alone. Reading the clock costs as much as all the rest of the lane does. */
static int64_t deadline_alone(struct lane *lane, uint64_t now_ticks)
{
    if (now_ticks - lane->read_ticks >= CLOCK_FRESH_TICKS) {
        lane->read_ticks = now_ticks;
        lane->read_ns = clock_now_ns();
    }
    return deadline_at(lane, lane->read_ns);
}

static shoal_status run_alone(struct lane *lane, struct channel *channel, struct collective *collective,
                              uint64_t sequence)
{
    uint64_t now_ticks = clock_ticks();
    collective->sequence = (uint32_t)sequence;
    collective->deadline_ns = deadline_alone(lane, now_ticks);
    collective->algorithm = -1;
    struct record_handle record =
        recorder_issue(lane->group->recorder, sequence + 1, collective, lane->group->peers.n_ranks,
                       RECORD_RUNNING, now_ticks, now_ticks);
    shoal_status status = channel->transport->run(channel, collective);
    recorder_end(record, collective, status, clock_ticks());
    return status;
}

shoal_status lane_run(struct lane *lane, struct collective *collective)
{
    FAIL_POINT("lane run");
    struct channel *channel = find_channel(lane);
    /* Relaxed: only a guess, which the exchange verifies. */
    uint64_t gate = atomic_load_explicit(&lane->gate, memory_order_relaxed);
    if (!channel || (gate & (GATE_ALONE | GATE_LINE))) {
        return run_in_line(lane, collective);
    }
    TRY(channel->transport->failure(channel));
    /* Acquire: pairs with the release of whoever used the channel before. */
    if (!atomic_compare_exchange_strong_explicit(&lane->gate, &gate, (gate + GATE_ONE) | GATE_ALONE,
                                                 memory_order_acquire, memory_order_relaxed)) {
        return run_in_line(lane, collective);
    }
    shoal_status status = run_alone(lane, channel, collective, gate >> GATE_SHIFT);
    /* Release: pairs with the acquire of whoever uses the channel next. */
    gate = atomic_fetch_and_explicit(&lane->gate, ~GATE_ALONE, memory_order_release);
    if (gate & GATE_LINE) {
        settle_after_alone(lane);
    }
    if (status != SHOAL_OK) {
        recorder_report_failure(lane->group);
    }
    return status;
}

/* Works ------------------------------------------------------------------------------------------------ */

static void lane_unref(struct lane *lane)
{
    if (refcount_put(&lane->references)) {
        (void)pthread_mutex_destroy(&lane->mutex);
        (void)pthread_mutex_destroy(&lane->connect_mutex);
        mem_free(lane);
    }
}

static void destroy_work(struct completion *completion)
{
    struct lane_work *work = (struct lane_work *)completion;
    struct lane *lane = work->lane;
    mem_free(work);
    lane_unref(lane);
}

static void push_work(struct shoal_work *base, int64_t until_ns)
{
    struct lane_work *work = (struct lane_work *)base;
    struct goal goal = {.kind = GOAL_ENTRY, .target = &work->entry, .until_ns = until_ns};
    struct wakes wakes = {0};
    (void)pthread_mutex_lock(&work->lane->mutex);
    await_entry(work->lane, &goal, &wakes);
    unlock_and_wake(work->lane, &wakes);
}

/* Copies an array to *end and moves that on. */
static const void *copy_array(char **end, const void *array, size_t bytes)
{
    if (!array || bytes == 0) {
        return NULL;
    }
    char *copy = *end;
    memcpy(copy, array, bytes);
    *end += bytes;
    return copy;
}

/* With all that the collective points to; elements of all arrays are multiples of eight bytes. */
static struct lane_work *create_work(struct lane *lane, const struct collective *collective)
{
    size_t n_ranks = (size_t)lane->group->peers.n_ranks;
    size_t pieces_bytes = collective->n_pieces > 1 ? collective->n_pieces * sizeof *collective->pieces : 0;
    size_t counts_bytes = collective->send_counts ? n_ranks * sizeof *collective->send_counts : 0;
    size_t window_bytes = collective->n_window_pieces * sizeof *collective->window_pieces;
    struct lane_work *work = mem_alloc(sizeof *work + pieces_bytes + 2 * counts_bytes + window_bytes);
    if (!work) {
        return NULL;
    }
    char *end = (char *)(work + 1);
    struct collective *copy = &work->collective;
    *copy = *collective;
    if (collective->n_pieces == 1) {
        copy->single = collective->pieces[0];
        copy->pieces = &copy->single;
    } else {
        copy->pieces = copy_array(&end, collective->pieces, pieces_bytes);
    }
    copy->send_counts = copy_array(&end, collective->send_counts, counts_bytes);
    copy->recv_counts = copy_array(&end, collective->recv_counts, counts_bytes);
    copy->window_pieces = copy_array(&end, collective->window_pieces, window_bytes);
    work->lane = lane;
    refcount_get(&lane->references);
    work->entry = (struct entry){.collective = copy, .work = work};
    work_init(&work->base, lane->group->world, destroy_work, push_work);
    return work;
}

shoal_status lane_start(struct lane *lane, const struct collective *collective, struct shoal_work **work_out)
{
    FAIL_POINT("lane start");
    TRY(open_channel(lane));
    struct lane_work *work = create_work(lane, collective);
    if (!work) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct wakes wakes = {0};
    (void)completion_ref(&work->base.completion); /* the line's */
    (void)pthread_mutex_lock(&lane->mutex);
    shoal_status status = issue(lane, &work->entry, &wakes);
    unlock_and_wake(lane, &wakes);
    if (status != SHOAL_OK) {
        work_forget(&work->base);
        completion_unref(&work->base.completion);
        completion_unref(&work->base.completion);
        return status;
    }
    *work_out = &work->base;
    return SHOAL_OK;
}

/* The lane as a whole ---------------------------------------------------------------------------------- */

struct lane *lane_create(struct shoal_group *group)
{
    struct lane *lane = mem_alloc_zeroed(1, sizeof *lane);
    if (!lane) {
        return NULL;
    }
    lane->group = group;
    atomic_init(&lane->references, 1);
    /* With default attributes they can not fail on Linux. */
    (void)pthread_mutex_init(&lane->mutex, NULL);
    (void)pthread_mutex_init(&lane->connect_mutex, NULL);
    return lane;
}

static void stop_thread(struct lane *lane)
{
    struct wakes wakes = {0};
    (void)pthread_mutex_lock(&lane->mutex);
    lane->must_stop = true;
    ring(lane, &wakes);
    unlock_and_wake(lane, &wakes);
    if (lane->has_thread) {
        (void)pthread_join(lane->thread, NULL);
    }
}

bool lane_drain(struct lane *lane, int64_t until_ns)
{
    struct goal goal = {.kind = GOAL_ALL, .until_ns = until_ns};
    struct wakes wakes = {0};
    (void)pthread_mutex_lock(&lane->mutex);
    if (is_free(lane)) {
        drive(lane, &goal, &wakes);
    }
    bool is_idle = !lane->head && is_free(lane);
    unlock_and_wake(lane, &wakes);
    return is_idle;
}

/* Other threads may still be inside; the channel is poisoned, so they leave within a moment. */
static bool drain_poisoned(struct lane *lane)
{
    int64_t deadline_ns = clock_deadline_after(LEAVE_SECONDS);
    while (!lane_drain(lane, DEADLINE_NEVER)) {
        if (clock_now_ns() >= deadline_ns) {
            return false;
        }
        struct wait_options options = {.deadline_ns = clock_deadline_after(0.01)};
        uint32_t seen = atomic_load_explicit(&lane->n_unfinished, memory_order_relaxed);
        (void)wait_while_equal(&lane->n_unfinished, seen, &options);
    }
    return true;
}

void lane_free(struct lane *lane)
{
    if (!lane) {
        return;
    }
    struct channel *channel = find_channel(lane);
    /* What the peers have done their part of still ends well. */
    if (!lane_drain(lane, 0)) {
        channel->transport->poison(channel, SHOAL_ERR_CANCELLED,
                                   "the world was closed before the operation had ended");
    }
    stop_thread(lane);
    if (!drain_poisoned(lane)) {
        LOG(SHOAL_LOG_ERROR, "group %s: a thread does not leave it; its memory is kept", lane->group->key);
        return;
    }
    if (channel) {
        channel->transport->disconnect(channel);
    }
    lane_unref(lane);
}

uint64_t lane_sequence(struct lane *lane)
{
    /* Relaxed: the caller's own calls are counted, others' stand in no order to this one. */
    return atomic_load_explicit(&lane->gate, memory_order_relaxed) >> GATE_SHIFT;
}

uint64_t lane_n_unfinished(struct lane *lane)
{
    /* Acquire: pairs with the release in end_entry. */
    uint64_t n_entries = atomic_load_explicit(&lane->n_unfinished, memory_order_acquire);
    uint64_t gate = atomic_load_explicit(&lane->gate, memory_order_relaxed);
    return n_entries + (gate & GATE_ALONE);
}

shoal_status lane_failure(struct lane *lane)
{
    struct channel *channel = find_channel(lane);
    return channel ? channel->transport->failure(channel) : local_failure(lane);
}

/* Under connect_mutex: the first reason stays. */
static void keep_local_failure(struct lane *lane, shoal_status status, const char *text)
{
    if (!atomic_load_explicit(&lane->has_local_failure, memory_order_relaxed)) {
        lane->local_status = status;
        (void)snprintf(lane->local_text, sizeof lane->local_text, "%s", text);
        /* Release: pairs with the acquire in local_failure. */
        atomic_store_explicit(&lane->has_local_failure, true, memory_order_release);
    }
}

void lane_poison(struct lane *lane, shoal_status status, const char *text)
{
    char copy[ERROR_TEXT_BYTES]; /* the text may be the thread's own */
    (void)snprintf(copy, sizeof copy, "%s", text);
    (void)pthread_mutex_lock(&lane->connect_mutex);
    if (connect_once(lane) != SHOAL_OK) {
        keep_local_failure(lane, status, copy);
    }
    (void)pthread_mutex_unlock(&lane->connect_mutex);
    struct channel *channel = find_channel(lane);
    if (channel) {
        channel->transport->poison(channel, status, copy);
    }
}
