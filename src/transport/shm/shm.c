/* SPDX-License-Identifier: MIT */
/* The transport's table: connecting, and passing a collective to its algorithm. No other file of this folder depends on
   this one. */
#include <stdio.h>

#include "base/clock.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/try.h"
#include "base/wait.h"
#include "sharedmem/segment.h"
#include "device/stream.h"
#include "transport/shm/channel.h"
#include "transport/shm/device.h"
#include "transport/shm/stream.h"

/* Connecting ------------------------------------------------------------------------------------------- */

static size_t segment_size(int n_ranks)
{
    return sizeof(struct shm_segment) + (size_t)n_ranks * sizeof(struct shm_rank);
}

static void shm_disconnect(struct channel *base)
{
    struct shm_channel *channel = (struct shm_channel *)base;
    shm_close_device(channel);
    segment_unref(channel->staging_segment);
    segment_unref(channel->segment);
    (void)pthread_mutex_destroy(&channel->failure_lock);
    mem_free(channel->sources);
    mem_free(channel->peers);
    mem_free(channel->targets);
    mem_free(channel->processes);
    mem_free(channel);
}

static shoal_status open_memory(struct shm_channel *channel, int64_t deadline_ns)
{
    size_t n_ranks = (size_t)channel->n_ranks;
    channel->sources = mem_alloc_zeroed(n_ranks, sizeof *channel->sources);
    channel->peers = mem_alloc_zeroed(n_ranks, sizeof *channel->peers);
    channel->targets = mem_alloc_zeroed(n_ranks, sizeof *channel->targets);
    channel->processes = mem_alloc_zeroed(n_ranks, sizeof *channel->processes);
    if (!channel->sources || !channel->peers || !channel->targets || !channel->processes) {
        return SHOAL_ERR_NO_MEMORY;
    }
    if (channel->n_ranks == 1) {
        return SHOAL_OK;
    }
    FAIL_POINT("shm connect");
    const struct transport_peers *peers = channel->base.peers;
    TRY(peers->open_segment(peers->context, "slots", segment_size(channel->n_ranks), deadline_ns,
                            &channel->segment));
    channel->shared = segment_base(channel->segment);
    segment_touch(channel->segment,
                  offsetof(struct shm_segment, ranks) + (size_t)channel->rank * sizeof(struct shm_rank),
                  sizeof(struct shm_rank));
    shm_offer_memory(channel);
    return SHOAL_OK;
}

static shoal_status shm_connect(const struct transport_peers *peers, int64_t deadline_ns,
                                struct channel **channel_out)
{
    struct shm_channel *channel = mem_alloc_zeroed(1, sizeof *channel);
    if (!channel) {
        return SHOAL_ERR_NO_MEMORY;
    }
    channel->base = (struct channel){.transport = &transport_shm, .peers = peers};
    channel->rank = peers->rank;
    channel->n_ranks = peers->n_ranks;
    (void)pthread_mutex_init(&channel->failure_lock, NULL);
    shoal_status status = open_memory(channel, deadline_ns);
    if (status != SHOAL_OK) {
        shm_disconnect(&channel->base);
        return status;
    }
    *channel_out = &channel->base;
    return SHOAL_OK;
}

/* Collectives ------------------------------------------------------------------------------------------ */

static enum shm_algorithm pick(struct shm_channel *channel, const struct collective *collective)
{
    struct shm_algorithm_query query = {
        .kind = collective->kind,
        .n_ranks = channel->n_ranks,
        .slot_bytes = shm_oneshot_bytes(collective, channel->n_ranks),
    };
    enum shm_algorithm algorithm = shm_algorithm_pick(&query, NULL);
    /* Nothing but the choice between staged, direct and single depends on where memory lies (preferences.def). */
    if (algorithm == SHM_ALGORITHM_STAGED) {
        query.bytes = collective_bytes(collective, channel->n_ranks);
        query.is_readable = shm_is_readable(channel, collective);
        struct region_place send;
        struct region_place recv;
        query.is_symmetric = shm_find_places(channel, collective, &send, &recv);
        algorithm = shm_algorithm_pick(&query, NULL);
    }
    return algorithm;
}

/* How much a group of one rank copies within _start; more is left to the lane's thread. */
#define LOCAL_POST_BYTES ((size_t)64 * 1024)

static bool shm_post(struct channel *base, struct collective *collective)
{
    struct shm_channel *channel = (struct shm_channel *)base;
    if (collective->device != SHOAL_CPU) {
        return false; /* whoever runs it waits for the device */
    }
    collective->algorithm = (int)pick(channel, collective);
    if (collective->algorithm == SHM_ALGORITHM_LOCAL) {
        /* The caller of _start must not be kept long, and never wait for a release. */
        return collective_bytes(collective, 1) <= LOCAL_POST_BYTES && !shm_local_must_wait(collective) &&
               shm_local_run(channel, collective) == SHOAL_OK;
    }
    if (collective->algorithm != SHM_ALGORITHM_ONESHOT || !shm_has_slot(channel, collective->sequence)) {
        return false;
    }
    shm_oneshot_fill(channel, collective);
    shm_write_slot(channel, collective);
    shm_enter(channel, collective->sequence);
    return true;
}

/* A caller that only tests never sleeps, so no wait checks the group for it: finish does (check_pending). */
static bool is_time_to_look(struct shm_channel *channel, const struct collective *collective)
{
    int64_t now_ns = clock_now_ns();
    /* Relaxed: an instant that stands for itself. */
    return now_ns >= collective->deadline_ns ||
           now_ns >= atomic_load_explicit(&channel->look_ns, memory_order_relaxed);
}

static bool shm_is_ready(struct channel *base, const struct collective *collective)
{
    struct shm_channel *channel = (struct shm_channel *)base;
    return collective->algorithm == SHM_ALGORITHM_LOCAL ||
           shm_have_all_entered(channel, collective->sequence) ||
           atomic_load_explicit(&channel->has_failed, memory_order_acquire) ||
           atomic_load_explicit(&channel->shared->failure_state, memory_order_acquire) != SHM_FINE ||
           is_time_to_look(channel, collective);
}

static shoal_status finish_oneshot(struct shm_channel *channel, struct collective *collective,
                                   int64_t until_ns)
{
    TRY(shm_wait_entered(channel, collective, until_ns));
    TRY(shm_compare(channel, collective));
    FAIL_POINT("shm deliver");
    TRY(shm_oneshot_deliver(channel, collective));
    shm_done(channel, collective->sequence);
    if (channel->n_ranks > 2) { /* with one peer the prefetches cost more time than they save */
        shm_oneshot_fetch_next(channel, collective);
    }
    return SHOAL_OK;
}

/* Fails the channel with a collective that failed, because the counters of the ranks no longer agree. Returns the first
   reason of the channel: ranks that differ in one call often differ in those that follow. */
static shoal_status conclude(struct shm_channel *channel, shoal_status status)
{
    if (status == SHOAL_OK) {
        return SHOAL_OK;
    }
    if (!shm_was_told(channel, shoal_error_text())) { /* what another rank has said names that one */
        (void)transport_name_rank(channel->base.peers, status);
    }
    shm_fail(channel, status, shoal_error_text());
    return shm_failure(channel);
}

/*
 * Returns SHOAL_OK while the collective may still finish. Waits of short turns, or of none, are too short to check the
 * group during them, so it is done here: after each turn for failures, which is cheap, and now and then for deaths.
 * (Also, the group may have failed by another rank's timeout, which must not be taken for the caller's.)
 */
static shoal_status check_pending(struct shm_channel *channel, const struct collective *collective)
{
    int missing = shm_first_missing(channel, collective->sequence);
    TRY(missing < 0 ? shm_failure(channel) : shm_failure_in_wait(channel, missing));
    int64_t now_ns = clock_now_ns();
    bool is_late = now_ns >= collective->deadline_ns;
    /* Relaxed, both: an instant that stands for itself. */
    if (!is_late && now_ns < atomic_load_explicit(&channel->look_ns, memory_order_relaxed)) {
        return SHOAL_OK;
    }
    atomic_store_explicit(&channel->look_ns, now_ns + WAIT_LIVENESS_NS, memory_order_relaxed);
    /* A death says more than a deadline that has passed. */
    TRY(shm_check_members(channel, shm_entered_counters(channel, collective->sequence),
                          (collective->sequence + 1) & FLAG_MASK));
    return is_late ? shm_wait_entered(channel, collective, collective->deadline_ns) : SHOAL_OK;
}

static shoal_status shm_finish(struct channel *base, struct collective *collective, int64_t until_ns,
                               bool *is_pending_out)
{
    struct shm_channel *channel = (struct shm_channel *)base;
    *is_pending_out = false;
    if (collective->algorithm == SHM_ALGORITHM_LOCAL) {
        return SHOAL_OK;
    }
    int64_t bound_ns = until_ns < collective->deadline_ns ? until_ns : collective->deadline_ns;
    shoal_status status = finish_oneshot(channel, collective, bound_ns);
    if (status == SHOAL_ERR_TIMEOUT) {
        shoal_status reason = check_pending(channel, collective);
        *is_pending_out = reason == SHOAL_OK && bound_ns < collective->deadline_ns;
        if (reason != SHOAL_OK) {
            status = reason;
        } else if (!*is_pending_out) {
            status = finish_oneshot(channel, collective, bound_ns); /* all have entered meanwhile */
        }
    }
    return *is_pending_out ? status : conclude(channel, status);
}

static shoal_status run_oneshot(struct shm_channel *channel, struct collective *collective)
{
    TRY(shm_wait_slot(channel, collective));
    FAIL_POINT("shm post");
    shm_oneshot_fill(channel, collective);
    shm_write_slot(channel, collective);
    shm_enter(channel, collective->sequence);
    FAIL_POINT("shm posted");
    return finish_oneshot(channel, collective, collective->deadline_ns);
}

/* The counts of an all_to_all_v lie in the slot (shm_write_slot). */
static shoal_status check_counts_fit(const struct shm_channel *channel, const struct collective *collective)
{
    int most = (int)(SHM_SLOT_BYTES / sizeof(uint64_t));
    if (collective->kind == COLLECTIVE_ALL_TO_ALL && collective->send_counts && channel->n_ranks > most) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "all_to_all_v: the group has %d ranks, at most %d expected",
                         channel->n_ranks, most);
    }
    return SHOAL_OK;
}

/* Ranks meet first, so that calls are compared before data moves. */
static shoal_status run_large(struct shm_channel *channel, struct collective *collective)
{
    TRY(check_counts_fit(channel, collective));
    TRY(shm_wait_slot(channel, collective));
    FAIL_POINT("shm meet");
    shm_write_slot(channel, collective);
    shm_enter(channel, collective->sequence);
    TRY(shm_wait_entered(channel, collective, collective->deadline_ns));
    TRY(shm_compare(channel, collective));
    FAIL_POINT("shm met");
    collective->algorithm = (int)shm_settle(channel, collective);
    if (collective->algorithm == SHM_ALGORITHM_SINGLE) {
        return shm_single_run(channel, collective);
    }
    return collective->algorithm == SHM_ALGORITHM_DIRECT ? shm_direct_run(channel, collective)
                                                         : shm_staged_run(channel, collective);
}

static enum shm_algorithm pick_on_device(struct shm_channel *channel, const struct collective *collective)
{
    struct region_place send;
    struct region_place recv;
    const struct shm_algorithm_query query = {.kind = collective->kind,
                                              .n_ranks = channel->n_ranks,
                                              .slot_bytes = SIZE_MAX, /* slots are host memory */
                                              .bytes = collective_bytes(collective, channel->n_ranks),
                                              .is_symmetric =
                                                  shm_find_places(channel, collective, &send, &recv)};
    return shm_algorithm_pick(&query, NULL);
}

static shoal_status run_in_stream(struct shm_channel *channel, struct collective *collective)
{
    TRY(stream_follow(collective->device, collective->event));
    enum shm_algorithm algorithm = pick_on_device(channel, collective);
    collective->algorithm = (int)algorithm;
    if (algorithm == SHM_ALGORITHM_LOCAL) {
        TRY(shm_local_run(channel, collective));
    } else if (algorithm == SHM_ALGORITHM_WINDOW) {
        TRY(shm_window_run(channel, collective));
    } else {
        /* What goes from buffer to buffer is read by peers when this rank has entered. */
        TRY(algorithm == SHM_ALGORITHM_DIRECT ? shm_finish_work(channel, collective) : SHOAL_OK);
        TRY(run_large(channel, collective));
    }
    return shm_finish_work(channel, collective);
}

static shoal_status run_on_device(struct shm_channel *channel, struct collective *collective)
{
    const char *name = collective_rows[collective->kind].name;
    if (channel->n_ranks > 1 && algorithm_asked(&shm_algorithms, collective->kind) == SHM_ALGORITHM_ONESHOT) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "%s: SHOAL_ALGO asks for oneshot, which carries no buffers on device %s", name,
                         device_name(collective->device));
    }
    if (!device_has_data(collective->device)) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s: buffers on device %s, which has no data", name,
                         device_name(collective->device));
    }
    TRY(shm_enter_device(channel, collective));
    shoal_status status = run_in_stream(channel, collective);
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    shm_leave_device(channel, status == SHOAL_OK);
    return status == SHOAL_OK ? SHOAL_OK : error_set(status, "%s", text);
}

static shoal_status shm_run(struct channel *base, struct collective *collective)
{
    struct shm_channel *channel = (struct shm_channel *)base;
    TRY(shm_failure(channel));
    if (collective->device != SHOAL_CPU) {
        return conclude(channel, run_on_device(channel, collective));
    }
    enum shm_algorithm algorithm = pick(channel, collective);
    collective->algorithm = (int)algorithm;
    switch (algorithm) {
    case SHM_ALGORITHM_LOCAL:
        return conclude(channel, shm_local_run(channel, collective));
    case SHM_ALGORITHM_ONESHOT:
        return conclude(channel, run_oneshot(channel, collective));
    case SHM_ALGORITHM_WINDOW:
        return conclude(channel, shm_window_run(channel, collective));
    case SHM_ALGORITHM_DIRECT:
    case SHM_ALGORITHM_SINGLE:
    case SHM_ALGORITHM_STAGED:
        return conclude(channel, run_large(channel, collective));
    case SHM_ALGORITHM_COUNT:
        break;
    }
    return conclude(channel, error_set(SHOAL_ERR_INTERNAL, "no algorithm for %s",
                                       collective_rows[collective->kind].name));
}

/* Memory ----------------------------------------------------------------------------------------------- */

static shoal_status open_memory_together(const struct transport_peers *peers, const char *name, size_t bytes,
                                         int64_t deadline_ns, struct segment **segment_out)
{
    return peers->open_segment(peers->context, name, bytes, deadline_ns, segment_out);
}

static shoal_status drop_name(const struct transport_peers *peers, const char *name, int64_t deadline_ns)
{
    return peers->drop_segment(peers->context, name, deadline_ns);
}

static const struct transport_memory memory = {.has_symmetric = true,
                                               .has_windows = true,
                                               .is_on_devices = true,
                                               .open = open_memory_together,
                                               .drop = drop_name};

const struct transport transport_shm = {
    .struct_size = sizeof(struct transport),
    .interface = TRANSPORT_INTERFACE,
    .layout = TRANSPORT_LAYOUT,
    .name = "shm",
    .doc = "shared memory between the ranks of one machine, processes or threads",
    .has_peers = true,
    .is_one_host = true,
    .connect = shm_connect,
    .disconnect = shm_disconnect,
    .post = shm_post,
    .is_ready = shm_is_ready,
    .finish = shm_finish,
    .run = shm_run,
    .poison = shm_channel_poison,
    .failure = shm_channel_failure,
    .streams = &shm_stream_operations,
    .memory = &memory,
    .algorithms = &shm_algorithms,
};
