/* SPDX-License-Identifier: MIT */
/*
 * Lanes: issuing collectives, by way of the line or without it, connecting, failing, freeing. docs/design/lanes.md
 * has the rules and the argument; lane/line.h names the pieces.
 */
#include "comm/lane/lane.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/callback.h"
#include "base/clock.h"
#include "base/closable.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/trace.h"
#include "base/try.h"
#include "base/wait.h"
#include "base/waited.h"
#include "comm/lane/line.h"
#include "comm/lane/uses.h"
#include "comm/lane/trace.h"
#include "comm/lane/part.h"
#include "comm/lane/recorder.h"
#include "comm/lane/work.h"
#include "device/stream.h"

/* A deadline may be computed from a reading of the clock that is this old: 22 us where the counter runs at 3 GHz, half
   a millisecond at the 122 MHz of some ARM processors. */
#define CLOCK_FRESH_TICKS 65536

/* How long lane_free waits for threads that a poisoned channel should have let go at once. */
#define LEAVE_SECONDS 10.0

/* Connecting ------------------------------------------------------------------------------------------- */

static shoal_status local_failure(struct lane *lane)
{
    /* Acquire: pairs with the release in lane_poison. */
    if (!atomic_load_explicit(&lane->has_local_failure, memory_order_acquire)) {
        return SHOAL_OK;
    }
    return error_set(lane->local_status, "%s", lane->local_text);
}

/* Makes the channel visible to all threads. If the group has failed here meanwhile, the channel is poisoned first. */
static void show_channel(struct lane *lane, struct channel *channel)
{
    (void)pthread_mutex_lock(&lane->mutex);
    /* Relaxed: only changed under the mutex. */
    if (atomic_load_explicit(&lane->has_local_failure, memory_order_relaxed)) {
        channel->transport->poison(channel, lane->local_status, lane->local_text);
    }
    /* Release: pairs with the acquire in find_channel. */
    atomic_store_explicit(&lane->channel, channel, memory_order_release);
    (void)pthread_mutex_unlock(&lane->mutex);
}

/* Under connect_mutex. */
static shoal_status connect_once(struct lane *lane, int64_t deadline_ns)
{
    if (atomic_load_explicit(&lane->channel, memory_order_relaxed)) {
        return SHOAL_OK;
    }
    FAIL_POINT("lane connect");
    struct channel *channel = NULL;
    const struct transport_peers *peers = lane->part.peers;
    const struct transport *transport = peers->transport;
    shoal_status status = transport->connect(peers, deadline_ns, &channel);
    status = transport_check_status(transport, "connect", status);
    if (status == SHOAL_OK && (!channel || !channel->transport)) {
        status = error_set(SHOAL_ERR_INTERNAL, "transport %s: connect returned no channel%s", transport->name,
                           channel ? " of a transport" : "");
    }
    if (status != SHOAL_OK) {
        return error_prefix(status, "connecting group %s", transport_group_name(peers));
    }
    LOG(SHOAL_LOG_DEBUG, "rank %d connected to group %s over %s", peers->world_ranks[peers->rank],
        transport_group_name(peers), transport->name);
    show_channel(lane, channel);
    return SHOAL_OK;
}

static struct channel *find_channel(struct lane *lane)
{
    /* Acquire: pairs with the release in connect_once. */
    return atomic_load_explicit(&lane->channel, memory_order_acquire);
}

/* The thread's error text is the reason. */
static __attribute__((noinline, cold)) void report_failure(struct lane *lane)
{
    lane->part.calls->report(lane->part.group);
}

/* A call has found its group failed, perhaps by another rank. This rank's flight record is written too, and the text
   says that the failure came before this call. */
static __attribute__((noinline, cold)) shoal_status fail_call(struct lane *lane, shoal_status status)
{
    static const char prefix[] = "the group has failed before";
    report_failure(lane);
    /* The reason may have come from another lane with these words. */
    bool is_said = strncmp(shoal_error_text(), prefix, sizeof prefix - 1) == 0;
    return is_said ? status : error_prefix(status, "%s", prefix);
}

/* SHOAL_OK, or why the group has failed, here or in point to point. Never connects, so it does not wait. */
static shoal_status find_failure(struct lane *lane)
{
    TRY(lane_failure(lane));
    /* Relaxed: only whether point to point is there is used. */
    bool has_p2p = atomic_load_explicit(lane->part.p2p, memory_order_relaxed) != NULL;
    return has_p2p ? lane->part.calls->failure(lane->part.group) : SHOAL_OK;
}

/* Called when a call that ran alone has failed. */
static __attribute__((noinline, cold)) shoal_status fail_run(struct lane *lane, shoal_status status)
{
    status = transport_check_status(lane->part.peers->transport, "run", status);
    report_failure(lane);
    return status;
}

static shoal_status connect_lane(struct lane *lane, int64_t deadline_ns)
{
    TRY(part_lock_to_connect(&lane->part, &lane->connect_mutex, deadline_ns));
    /* Another thread may have failed to connect meanwhile. */
    shoal_status status = find_failure(lane);
    if (status == SHOAL_OK) {
        status = connect_once(lane, deadline_ns);
    }
    (void)pthread_mutex_unlock(&lane->connect_mutex);
    return status;
}

/* Connects if need be; SHOAL_OK only while the group can be used. */
static shoal_status open_channel(struct lane *lane, const struct collective *collective)
{
    shoal_status failure = find_failure(lane);
    if (failure == SHOAL_OK && !find_channel(lane)) {
        int64_t deadline_ns = collective->timeout_s > 0.0 ? clock_deadline_after(collective->timeout_s)
                                                          : part_deadline(&lane->part);
        shoal_status status = connect_lane(lane, deadline_ns);
        if (status != SHOAL_OK) {
            return part_fail_unissued(&lane->part, status);
        }
        failure = lane_failure(lane);
    }
    return failure == SHOAL_OK ? SHOAL_OK : fail_call(lane, failure);
}

/* Issuing ---------------------------------------------------------------------------------------------- */

/*
 * Returns the deadline of a call that begins now. Reading the clock costs as much as everything else in a lane, so a
 * reading is used again for a short time.
 */
static int64_t find_deadline(const struct lane *lane, const struct collective *collective,
                             struct lane_clock *clock, uint64_t now_ticks)
{
    if (now_ticks - clock->read_ticks >= CLOCK_FRESH_TICKS) {
        clock->read_ticks = now_ticks;
        clock->read_ns = clock_now_ns();
    }
    double seconds = collective->timeout_s > 0.0 ? collective->timeout_s : part_timeout(&lane->part);
    return seconds < 4e9 ? clock->read_ns + (int64_t)(seconds * 1e9) : DEADLINE_NEVER;
}

/* With the mutex, on a connected lane: the next in line, posted if the channel takes it. */
static shoal_status issue(struct lane *lane, struct entry *entry, struct wakes *wakes)
{
    struct channel *channel = find_channel(lane);
    struct collective *collective = entry->collective;
    if (entry->is_watched) {
        TRY(line_need_thread(lane));
    }
    /* From here on no call can start to run alone. Acquire: as in is_free. */
    uint64_t gate = atomic_fetch_or_explicit(&lane->gate, GATE_LINE, memory_order_acquire);
    uint64_t sequence = gate >> GATE_SHIFT;
    uint64_t now_ticks = clock_ticks();
    collective->sequence = (uint32_t)sequence;
    collective->deadline_ns = find_deadline(lane, collective, &lane->line_clock, now_ticks);
    collective->algorithm = -1;
    bool may_post = lane->n_queued == 0 && !(gate & GATE_ALONE);
    bool is_posted = may_post && channel->transport->post(channel, collective);
    entry->state = is_posted ? ENTRY_POSTED : ENTRY_QUEUED;
    entry->issue_ticks = now_ticks;
    if (entry->work && !is_posted) {
        shoal_status status = line_need_thread(lane);
        if (status != SHOAL_OK) {
            line_settle(lane, wakes);
            return status;
        }
    }
    /* Relaxed: while LINE is set only who has the mutex changes the count. */
    atomic_fetch_add_explicit(&lane->gate, GATE_ONE, memory_order_relaxed);
    entry->record = recorder_issue(lane->part.recorder, sequence + 1, collective, lane->part.peers->n_ranks,
                                   is_posted ? RECORD_POSTED : RECORD_QUEUED, now_ticks, 0);
    line_append(lane, entry);
    if (entry->work && (!is_posted || entry->is_watched) && line_is_free(lane)) {
        line_ring(lane, wakes);
    }
    return SHOAL_OK;
}

/* Runs a blocking call behind others, or on a lane that is not connected yet. */
static shoal_status run_in_line(struct lane *lane, struct collective *collective)
{
    TRY(open_channel(lane, collective));
    char text[ERROR_TEXT_BYTES];
    struct entry entry = {.collective = collective, .text = text};
    struct goal goal = {.kind = GOAL_ENTRY, .target = &entry, .until_ns = DEADLINE_NEVER};
    struct wakes wakes = {0};
    uint64_t begin_ticks = clock_ticks();
    (void)pthread_mutex_lock(&lane->mutex);
    /* Issuing fails only for want of a thread, which a blocking call does not need. */
    shoal_status status = issue(lane, &entry, &wakes);
    while (status == SHOAL_OK && entry.state != ENTRY_ENDED) {
        line_await(lane, &goal, &wakes);
    }
    line_unlock(lane, &wakes);
    waited_add(begin_ticks, clock_ticks());
    lane_trace_wait(lane, collective, begin_ticks);
    TRY(status);
    return entry.status == SHOAL_OK ? SHOAL_OK : error_set(entry.status, "%s", text);
}

/* Called if another call was issued while one ran alone. */
static __attribute__((noinline)) void settle_after_alone(struct lane *lane)
{
    struct wakes wakes = {0};
    (void)pthread_mutex_lock(&lane->mutex);
    line_settle(lane, &wakes);
    line_unlock(lane, &wakes);
}

static shoal_status run_alone(struct lane *lane, struct channel *channel, struct collective *collective,
                              uint64_t sequence)
{
    uint64_t now_ticks = clock_ticks();
    collective->sequence = (uint32_t)sequence;
    collective->deadline_ns = find_deadline(lane, collective, &lane->alone_clock, now_ticks);
    collective->algorithm = -1;
    struct record_handle record =
        recorder_issue(lane->part.recorder, sequence + 1, collective, lane->part.peers->n_ranks,
                       RECORD_RUNNING, now_ticks, now_ticks);
    shoal_status status = channel->transport->run(channel, collective);
    uint64_t end_ticks = clock_ticks();
    recorder_end(record, collective, status, end_ticks);
    waited_add(now_ticks, end_ticks);
    waited_carried(now_ticks, end_ticks);
    if (trace_is_on()) {
        lane_trace_call(lane, collective,
                        &(struct lane_times){.begin_ticks = now_ticks,
                                             .end_ticks = end_ticks,
                                             .carried_ticks = end_ticks - now_ticks});
        lane_trace_wait(lane, collective, now_ticks);
    }
    return status;
}

static inline shoal_status run_blocking(struct lane *lane, struct collective *collective)
{
    struct channel *channel = find_channel(lane);
    /* Relaxed: only a guess, which the exchange verifies. */
    uint64_t gate = atomic_load_explicit(&lane->gate, memory_order_relaxed);
    if (!channel || (gate & (GATE_ALONE | GATE_LINE))) {
        return run_in_line(lane, collective);
    }
    shoal_status failure = channel->transport->failure(channel);
    if (failure != SHOAL_OK) {
        return fail_call(lane, failure);
    }
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
    return status == SHOAL_OK ? SHOAL_OK : fail_run(lane, status);
}

/* The call cannot be put behind the work of the device so far. The other ranks, which must not wait for it, are told
   whose device it is. */
static __attribute__((noinline, cold)) shoal_status fail_unmarked(struct lane *lane, shoal_status status)
{
    return part_fail_unissued(&lane->part, transport_name_rank(lane->part.peers, status));
}

/* The call comes behind the work of the device so far. */
static __attribute__((noinline)) shoal_status run_on_device(struct lane *lane, struct collective *collective)
{
    shoal_status status = stream_mark(collective->device, &collective->event);
    if (status != SHOAL_OK) {
        return fail_unmarked(lane, status);
    }
    status = run_blocking(lane, collective);
    stream_drop(collective->device, collective->event);
    return status;
}

shoal_status lane_run(struct lane *lane, struct collective *collective)
{
    FAIL_POINT("lane run");
    if (fork_is_child(lane->part.n_forks)) {
        return fork_fail();
    }
    if (callback_is_running()) {
        return callback_refuse(collective_rows[collective->kind].name);
    }
    return collective->device == SHOAL_CPU ? run_blocking(lane, collective) : run_on_device(lane, collective);
}

/* Works ------------------------------------------------------------------------------------------------ */

static void lane_unref(struct lane *lane)
{
    if (refcount_put(&lane->references)) {
        (void)pthread_mutex_destroy(&lane->mutex);
        (void)pthread_mutex_destroy(&lane->connect_mutex);
        closable_unref(lane->part.closable);
        mem_free(lane);
    }
}

static void destroy_work(struct completion *completion)
{
    struct lane_work *work = (struct lane_work *)completion;
    struct lane *lane = work->lane;
    stream_drop(work->collective.device, work->collective.event);
    work_release(&work->base);
    mem_free(work);
    lane_unref(lane);
}

static shoal_status push_work(struct completion *completion, int64_t until_ns)
{
    struct lane_work *work = (struct lane_work *)completion;
    TRY(work_check_process(&work->base));
    struct goal goal = {.kind = GOAL_ENTRY, .target = &work->entry, .until_ns = until_ns};
    struct wakes wakes = {0};
    uint64_t begin_ticks = until_ns != 0 ? trace_begin() : 0;
    (void)pthread_mutex_lock(&work->lane->mutex);
    line_await(work->lane, &goal, &wakes);
    line_unlock(work->lane, &wakes);
    if (begin_ticks != 0) {
        lane_trace_wait(work->lane, &work->collective, begin_ticks);
    }
    return SHOAL_OK;
}

static shoal_status watch_work(struct shoal_work *base)
{
    struct lane_work *work = (struct lane_work *)base;
    struct wakes wakes = {0};
    (void)pthread_mutex_lock(&work->lane->mutex);
    shoal_status status = line_watch(work->lane, &work->entry, &wakes);
    line_unlock(work->lane, &wakes);
    return status;
}

static const struct completion_kind lane_work_kind = {
    .destroy = destroy_work, .push = push_work, .awaited = work_note_awaited};

static void describe_work(struct shoal_work *base, char *text, size_t bytes)
{
    struct lane_work *work = (struct lane_work *)base;
    char call[128];
    (void)snprintf(text, bytes, "%s on group %s", collective_describe(&work->collective, call, sizeof call),
                   transport_group_name(work->lane->part.peers));
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

/* How many bytes a purpose takes behind a work; a multiple of eight. */
static size_t purpose_bytes(const struct purpose *purpose)
{
    if (!purpose) {
        return 0;
    }
    bool has_words = purpose->words && !purpose->has_lasting_words;
    size_t words_bytes = has_words ? strnlen(purpose->words, PURPOSE_WORDS_BYTES - 1) + 1 : 0;
    return sizeof *purpose + purpose->n_details * sizeof purpose->details[0] + (words_bytes + 7) / 8 * 8;
}

static const struct purpose *copy_purpose(char **end, const struct purpose *purpose)
{
    if (!purpose) {
        return NULL;
    }
    struct purpose *copy = (struct purpose *)(void *)*end;
    *copy = *purpose;
    *end += sizeof *copy;
    copy->details = copy_array(end, purpose->details, purpose->n_details * sizeof purpose->details[0]);
    if (purpose->words && !purpose->has_lasting_words) {
        size_t length = strnlen(purpose->words, PURPOSE_WORDS_BYTES - 1);
        copy->words = *end;
        memcpy(*end, purpose->words, length);
        (*end)[length] = '\0';
        *end += (length + 8) / 8 * 8;
    }
    return copy;
}

/* Makes a work with copies of everything that the collective points to. Elements of all arrays are multiples of
   eight bytes. */
static struct lane_work *create_work(struct lane *lane, const struct collective *collective)
{
    size_t n_ranks = (size_t)lane->part.peers->n_ranks;
    size_t pieces_bytes = collective->n_pieces > 1 ? collective->n_pieces * sizeof *collective->pieces : 0;
    size_t counts_bytes = collective->send_counts ? n_ranks * sizeof *collective->send_counts : 0;
    size_t send_blocks_bytes = collective->send_blocks ? n_ranks * sizeof *collective->send_blocks : 0;
    size_t recv_blocks_bytes = collective->recv_blocks ? n_ranks * sizeof *collective->recv_blocks : 0;
    size_t window_bytes = collective->n_window_pieces * sizeof *collective->window_pieces;
    struct lane_work *work = mem_alloc(sizeof *work + pieces_bytes + 2 * counts_bytes + send_blocks_bytes +
                                       recv_blocks_bytes + window_bytes + purpose_bytes(collective->purpose));
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
    copy->send_blocks = copy_array(&end, collective->send_blocks, send_blocks_bytes);
    copy->recv_blocks = copy_array(&end, collective->recv_blocks, recv_blocks_bytes);
    copy->window_pieces = copy_array(&end, collective->window_pieces, window_bytes);
    copy->purpose = copy_purpose(&end, collective->purpose);
    work->lane = lane;
    refcount_get(&lane->references);
    work->entry = (struct entry){.collective = copy, .work = work};
    work_init(&work->base, lane->part.works, &lane_work_kind);
    work->base.describe = describe_work;
    work->base.watch = watch_work;
    return work;
}

shoal_status lane_start(struct lane *lane, const struct collective *collective,
                        const struct work_hooks *hooks, struct shoal_work **work_out)
{
    FAIL_POINT("lane start");
    TRY(fork_check(lane->part.n_forks));
    TRY(callback_check_capture(collective_rows[collective->kind].name));
    TRY(open_channel(lane, collective));
    struct lane_work *work = create_work(lane, collective);
    if (!work) {
        return SHOAL_ERR_NO_MEMORY;
    }
    /* The work has the event, and drops it. */
    shoal_status status = stream_mark(collective->device, &work->collective.event);
    if (status != SHOAL_OK) {
        work_forget(&work->base);
        completion_unref(&work->base.completion);
        return fail_unmarked(lane, status);
    }
    struct wakes wakes = {0};
    (void)completion_ref(&work->base.completion); /* the line's */
    if (hooks) {
        work->entry.is_watched = true;
        work_listen(&work->base, &work->listener, hooks);
    }
    (void)pthread_mutex_lock(&lane->mutex);
    status = issue(lane, &work->entry, &wakes);
    line_unlock(lane, &wakes);
    if (status != SHOAL_OK) {
        work_forget(&work->base);
        completion_unref(&work->base.completion);
        completion_unref(&work->base.completion);
        return part_fail_unissued(&lane->part, status);
    }
    *work_out = &work->base;
    return SHOAL_OK;
}

/* Prepared works ---------------------------------------------------------------------------------------- */

struct lane_work *lane_prepare(struct lane *lane, const struct collective *collective)
{
    struct lane_work *work = create_work(lane, collective);
    if (work) {
        work_forget(&work->base);
        completion_finish(&work->base.completion, SHOAL_OK);
        work->entry.state = ENTRY_ENDED;
    }
    return work;
}

struct shoal_work *lane_prepared_work(struct lane_work *work)
{
    return &work->base;
}

struct collective *lane_prepared_call(struct lane_work *work)
{
    return &work->collective;
}

/*
 * Called with the mutex. The caller has seen that the last issue of the work has ended. The driver announces that
 * before it takes the entry off the line, and may still be in between. When the entry is off, under this mutex, the
 * line's reference is gone too, and nobody but the caller uses the work.
 */
static void await_leaving(struct lane *lane, struct entry *entry, struct wakes *wakes)
{
    struct goal goal = {.kind = GOAL_ENTRY, .target = entry, .until_ns = DEADLINE_NEVER};
    while (entry->state != ENTRY_ENDED) {
        line_await(lane, &goal, wakes);
    }
}

/* With the mutex. */
static shoal_status issue_again(struct lane_work *work, struct wakes *wakes)
{
    await_leaving(work->lane, &work->entry, wakes);
    work_rearm(&work->base);
    work->entry = (struct entry){.collective = &work->collective, .work = work};
    (void)completion_ref(&work->base.completion); /* the line's */
    shoal_status status = issue(work->lane, &work->entry, wakes);
    if (status != SHOAL_OK) {
        work->entry.state = ENTRY_ENDED;
        work_forget(&work->base);
        completion_unref(&work->base.completion);
        completion_finish(&work->base.completion, status);
    }
    return status;
}

shoal_status lane_issue_again(struct lane_work *work)
{
    struct lane *lane = work->lane;
    FAIL_POINT("lane start");
    TRY(fork_check(lane->part.n_forks));
    TRY(callback_check_capture(collective_rows[work->collective.kind].name));
    TRY(open_channel(lane, &work->collective));
    struct wakes wakes = {0};
    (void)pthread_mutex_lock(&lane->mutex);
    shoal_status status = issue_again(work, &wakes);
    line_unlock(lane, &wakes);
    return status == SHOAL_OK ? SHOAL_OK : part_fail_unissued(&lane->part, status);
}

/* The lane as a whole ---------------------------------------------------------------------------------- */

struct lane *lane_create(const struct part *part)
{
    struct lane *lane = mem_alloc_zeroed(1, sizeof *lane);
    if (!lane) {
        return NULL;
    }
    lane->part = *part;
    closable_ref(part->closable);
    atomic_init(&lane->references, 1);
    /* With default attributes they cannot fail on Linux. */
    (void)pthread_mutex_init(&lane->mutex, NULL);
    (void)pthread_mutex_init(&lane->connect_mutex, NULL);
    return lane;
}

static void stop_thread(struct lane *lane)
{
    struct wakes wakes = {0};
    (void)pthread_mutex_lock(&lane->mutex);
    lane->must_stop = true;
    line_ring(lane, &wakes);
    line_unlock(lane, &wakes);
    if (lane->has_thread) {
        (void)pthread_join(lane->thread, NULL);
    }
}

bool lane_drain(struct lane *lane, int64_t until_ns)
{
    struct goal goal = {.kind = GOAL_ALL, .until_ns = until_ns};
    struct wakes wakes = {0};
    (void)pthread_mutex_lock(&lane->mutex);
    if (line_is_free(lane)) {
        line_drive(lane, &goal, &wakes);
    }
    bool is_idle = !lane->head && line_is_free(lane);
    line_unlock(lane, &wakes);
    return is_idle;
}

/* Waits until no thread is inside the channel. It is poisoned, so they leave within a moment. */
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

bool lane_is_in_call(struct lane *lane)
{
    (void)pthread_mutex_lock(&lane->mutex);
    /* Relaxed: a call that begins or ends at this moment might as well do so later. */
    bool is_in_call = atomic_load_explicit(&lane->gate, memory_order_relaxed) & GATE_ALONE;
    for (const struct entry *entry = lane->head; entry; entry = entry->next) {
        is_in_call = is_in_call || !entry->work;
    }
    (void)pthread_mutex_unlock(&lane->mutex);
    return is_in_call;
}

/* Ends what is unfinished, for this rank and for the others. */
static void cancel(struct lane *lane, struct channel *channel, const char *what, const char *told)
{
    char text[sizeof lane->cancelled_text];
    (void)snprintf(text, sizeof text, "the %s before the operation had ended", what);
    if (!told) {
        channel->transport->poison(channel, SHOAL_ERR_CANCELLED, text);
        return;
    }
    memcpy(lane->cancelled_text, text, sizeof text);
    /* Release: pairs with the acquire in line.c, by a thread that ends an operation because of the poison. */
    atomic_store_explicit(&lane->is_cancelled, true, memory_order_release);
    channel->transport->poison(channel, SHOAL_ERR_PEER, told);
}

void lane_free(struct lane *lane, const char *what, const char *told)
{
    if (!lane) {
        return;
    }
    struct channel *channel = find_channel(lane);
    /* Collectives for which the peers have done their part still end successfully. */
    if (!lane_drain(lane, 0)) {
        cancel(lane, channel, what, told);
    }
    stop_thread(lane);
    if (!drain_poisoned(lane)) {
        LOG(SHOAL_LOG_ERROR, "group %s: a thread still uses it; its memory is not freed",
            transport_group_name(lane->part.peers));
        return;
    }
    if (channel) {
        channel->transport->disconnect(channel);
    }
    lane_unref(lane);
}

struct shoal_work *lane_find_work(struct lane *lane, const struct work_search *search)
{
    struct shoal_work *found = NULL;
    if (lane_n_unfinished(lane) == 0) {
        return NULL;
    }
    (void)pthread_mutex_lock(&lane->mutex);
    for (const struct entry *entry = lane->head; entry && !found; entry = entry->next) {
        struct shoal_work *work = entry->work ? &entry->work->base : NULL;
        /* An entry may still be in line for a moment when its work has ended. */
        if (work && !completion_is_finished(&work->completion) &&
            collective_is_wanted(entry->collective, lane->part.peers, search)) {
            (void)completion_ref(&work->completion);
            found = work;
        }
    }
    (void)pthread_mutex_unlock(&lane->mutex);
    return found;
}

uint64_t lane_sequence(struct lane *lane)
{
    /* Relaxed: the caller's own calls are counted; calls of other threads have no order with this one. */
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
    if (channel) {
        return channel->transport->failure(channel);
    }
    TRY(local_failure(lane));
    return transport_check_parent(lane->part.peers);
}

/* The first reason stays. Returns the channel, if there is one: it keeps the reason then. */
static struct channel *keep_local_failure(struct lane *lane, shoal_status status, const char *text)
{
    (void)pthread_mutex_lock(&lane->mutex);
    /* Relaxed, both: only changed under the mutex. */
    struct channel *channel = atomic_load_explicit(&lane->channel, memory_order_relaxed);
    if (!channel && !atomic_load_explicit(&lane->has_local_failure, memory_order_relaxed)) {
        lane->local_status = status;
        (void)snprintf(lane->local_text, sizeof lane->local_text, "%s", text);
        /* Release: pairs with the acquire in local_failure. */
        atomic_store_explicit(&lane->has_local_failure, true, memory_order_release);
    }
    (void)pthread_mutex_unlock(&lane->mutex);
    return channel;
}

void lane_poison(struct lane *lane, shoal_status status, const char *text)
{
    char copy[ERROR_TEXT_BYTES]; /* the text may be the thread's own */
    (void)snprintf(copy, sizeof copy, "%s", text);
    struct channel *channel = keep_local_failure(lane, status, copy);
    if (channel) {
        channel->transport->poison(channel, status, copy);
    }
}
