/* SPDX-License-Identifier: MIT */
/* Which thread carries the entries in line: drivers, waiters and the lane's thread. lane/line.h explains these. */
#include "comm/lane/line.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/fp_mode.h"
#include "base/os/os.h"
#include "base/trace.h"
#include "base/try.h"
#include "base/wait.h"
#include "base/waited.h"
#include "comm/lane/trace.h"

/* Waking ----------------------------------------------------------------------------------------------- */

/*
 * Releases the mutex, then wakes. A waiter's word is set last, because its stack may be gone right after. A wake-up at
 * an address that no longer belongs to a waiter only makes some other sleeper look again and go back to sleep.
 */
void line_unlock(struct lane *lane, struct wakes *wakes)
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

void line_ring(struct lane *lane, struct wakes *wakes)
{
    if (lane->is_thread_asleep) {
        lane->is_thread_asleep = false;
        /* Release: pairs with the acquire in base/wait.c; the thread then takes the mutex. */
        atomic_fetch_add_explicit(&lane->bell, 1, memory_order_release);
        wakes->has_thread = true;
    }
}

/* Nobody carries anything. */
bool line_is_free(struct lane *lane)
{
    /* Acquire: pairs with the release by which a call that ran alone leaves; the channel is ours then. */
    return !lane->is_driven && !(atomic_load_explicit(&lane->gate, memory_order_acquire) & GATE_ALONE);
}

/* Whether a thread may carry an entry. A queued one has to be run to its end, so only a thread that has the time
   may. */
static bool may_carry(const struct entry *entry, int64_t until_ns)
{
    return entry->state == ENTRY_POSTED || until_ns >= entry->collective->deadline_ns;
}

/* Finds a waiter that can carry the head of the line, so that every hand-over makes progress. */
static struct waiter **choose_waiter(struct lane *lane)
{
    for (struct waiter **link = &lane->waiters; *link; link = &(*link)->next) {
        if (may_carry(lane->head, (*link)->until_ns)) {
            return link;
        }
    }
    return NULL;
}

/* Whether entries must be carried although no thread waits for them. */
static bool is_needed(const struct lane *lane)
{
    return lane->n_queued + lane->n_watched > 0;
}

/*
 * Called after driving, or after running alone. Opens the gate, or makes sure that another thread continues. Posted
 * entries that nobody waits for or watches are left as they are, because no peer needs them.
 */
void line_settle(struct lane *lane, struct wakes *wakes)
{
    if (!line_is_free(lane)) {
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
    } else if (is_needed(lane)) {
        line_ring(lane, wakes);
    }
}

/* The line ------------------------------------------------------------------------------------------ */

void line_append(struct lane *lane, struct entry *entry)
{
    if (lane->tail) {
        lane->tail->next = entry;
    } else {
        lane->head = entry;
    }
    lane->tail = entry;
    lane->n_queued += entry->state == ENTRY_QUEUED;
    lane->n_watched += entry->state == ENTRY_POSTED && entry->is_watched;
    /* Relaxed: pairs with nothing; the caller knows what it has issued. */
    atomic_fetch_add_explicit(&lane->n_unfinished, 1, memory_order_relaxed);
}

/* Driving ---------------------------------------------------------------------------------------------- */

/* Ends an entry, and tells everybody but the waiters of this lane, which are told under the mutex. begin_ticks: when
   a thread began to carry it, or 0 if nobody asked for that. */
static void end_entry(struct lane *lane, struct entry *entry, uint64_t begin_ticks, shoal_status status)
{
    if (status != SHOAL_OK) {
        status = transport_check_status(lane->part.peers->transport, "run", status);
    }
    /* Acquire: pairs with the release in lane.c. The channel has what the peers are told. */
    if (status == SHOAL_ERR_PEER && atomic_load_explicit(&lane->is_cancelled, memory_order_acquire)) {
        status = error_set(SHOAL_ERR_CANCELLED, "%s", lane->cancelled_text);
    }
    uint64_t end_ticks = clock_ticks();
    recorder_end(entry->record, entry->collective, status, end_ticks);
    uint64_t last_ticks = begin_ticks != 0 ? end_ticks - begin_ticks : 0;
    waited_carried(end_ticks - entry->carried_ticks - last_ticks, end_ticks);
    if (trace_is_on()) {
        bool is_posted = entry->state == ENTRY_POSTED;
        lane_trace_call(lane, entry->collective,
                        &(struct lane_times){.begin_ticks = is_posted ? entry->issue_ticks : begin_ticks,
                                             .end_ticks = end_ticks,
                                             .carried_ticks = entry->carried_ticks + last_ticks});
    }
    /* Before anybody can know of the end: a thread that has waited for all entries must count none. Release: pairs
       with the acquire in lane_n_unfinished. */
    atomic_fetch_sub_explicit(&lane->n_unfinished, 1, memory_order_release);
    if (status != SHOAL_OK) {
        lane->part.calls->report(lane->part.group);
    }
    if (entry->work) {
        completion_finish(&entry->work->base.completion, status);
        return;
    }
    entry->status = status;
    if (status != SHOAL_OK) {
        (void)snprintf(entry->text, ERROR_TEXT_BYTES, "%s", shoal_error_text());
    }
}

/* Takes the head off the line, after it has ended. */
static void pop_head(struct lane *lane, struct wakes *wakes)
{
    struct entry *entry = lane->head;
    lane->head = entry->next;
    if (!lane->head) {
        lane->tail = NULL;
    }
    lane->n_queued -= entry->state == ENTRY_QUEUED;
    lane->n_watched -= entry->state == ENTRY_POSTED && entry->is_watched;
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

/* Carries the head to its end, without the mutex meanwhile. False if this caller cannot end it now. */
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
    line_unlock(lane, wakes);
    bool is_pending = false;
    shoal_status status;
    uint64_t begin_ticks = is_queued || trace_is_on() ? clock_ticks() : waited_begin();
    if (is_queued) {
        recorder_start(entry->record, collective, begin_ticks);
        status = channel->transport->run(channel, collective);
    } else {
        status = channel->transport->finish(channel, collective, until_ns, &is_pending);
    }
    if (!is_pending) {
        end_entry(lane, entry, begin_ticks, status);
    } else if (begin_ticks != 0) {
        entry->carried_ticks += clock_ticks() - begin_ticks;
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
           (goal->kind == GOAL_NEEDED && !is_needed(lane));
}

/* With the mutex, on a lane that is free. */
void line_drive(struct lane *lane, const struct goal *goal, struct wakes *wakes)
{
    lane->is_driven = true;
    while (!is_reached(lane, goal) && carry_head(lane, goal->until_ns, wakes)) {
    }
    lane->is_driven = false;
    line_settle(lane, wakes);
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

/* Sleeps until the waiter is woken, without the mutex meanwhile. False if the time was up first. */
static bool sleep_for_turn(struct lane *lane, const struct goal *goal, struct wakes *wakes)
{
    struct waiter waiter = {.is_listed = true, .target = goal->target, .until_ns = goal->until_ns};
    struct wait_options options = {.deadline_ns = goal->until_ns,
                                   .may_spin = lane->part.peers->may_spin,
                                   .what = "an operation to finish"};
    list_waiter(lane, &waiter);
    line_unlock(lane, wakes);
    shoal_status status = wait_while_equal(&waiter.is_woken, 0, &options);
    (void)pthread_mutex_lock(&lane->mutex);
    if (waiter.is_listed) {
        unlist_waiter(lane, &waiter);
        error_clear();
        return false;
    }
    /* The waiter was taken off, but its word is not set yet. That happens in a moment, and the word is on this
       stack. */
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
void line_await(struct lane *lane, const struct goal *goal, struct wakes *wakes)
{
    do {
        if (line_is_free(lane)) {
            line_drive(lane, goal, wakes);
        }
    } while (goal->target->state != ENTRY_ENDED && has_time(goal) && sleep_for_turn(lane, goal, wakes));
}

/* The lane's thread ------------------------------------------------------------------------------------ */

static void *run_thread(void *context)
{
    struct lane *lane = context;
    struct goal goal = {.kind = GOAL_NEEDED, .until_ns = DEADLINE_NEVER};
    struct wait_options options = {.deadline_ns = DEADLINE_NEVER, .what = "work"};
    struct wakes wakes = {0};
    const struct transport_peers *peers = lane->part.peers;
    fp_mode_set_default();
    wait_set_background();
    trace_set_rank(peers->world_ranks[peers->rank]);
    (void)pthread_mutex_lock(&lane->mutex);
    while (!lane->must_stop) {
        if (is_needed(lane) && line_is_free(lane)) {
            line_drive(lane, &goal, &wakes);
            continue;
        }
        lane->is_thread_asleep = true;
        /* Relaxed: it changes under the mutex only. */
        uint32_t seen = atomic_load_explicit(&lane->bell, memory_order_relaxed);
        line_unlock(lane, &wakes);
        (void)wait_while_equal(&lane->bell, seen, &options);
        (void)pthread_mutex_lock(&lane->mutex);
    }
    line_unlock(lane, &wakes);
    return NULL;
}

/* With the mutex. */
shoal_status line_need_thread(struct lane *lane)
{
    if (lane->has_thread) {
        return SHOAL_OK;
    }
    FAIL_POINT("lane thread");
    int code = os_start_thread(&lane->thread, run_thread, lane);
    if (code != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "the thread of group %s could not be created: %s",
                         transport_group_name(lane->part.peers), error_thread_text(code));
    }
    (void)pthread_setname_np(lane->thread, "shoal-lane");
    lane->has_thread = true;
    return SHOAL_OK;
}

shoal_status line_watch(struct lane *lane, struct entry *entry, struct wakes *wakes)
{
    if (entry->state == ENTRY_ENDED || entry->is_watched) {
        return SHOAL_OK;
    }
    TRY(line_need_thread(lane));
    entry->is_watched = true;
    lane->n_watched += entry->state == ENTRY_POSTED;
    if (line_is_free(lane)) {
        line_ring(lane, wakes);
    }
    return SHOAL_OK;
}
