/* SPDX-License-Identifier: MIT */
/* A group's shared memory: connecting, failing, waiting for a peer. */
#include "transport/shm/channel.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/try.h"
#include "base/wait.h"
#include "transport/segment.h"

/* What a peer that is writing its reason gets before it counts as dead at it. */
#define REASON_SECONDS 0.1

/* The state once nobody is writing any more. */
static uint32_t read_failure_state(struct shm_segment *shared)
{
    /* Acquire: pairs with the release in tell_peers. */
    uint32_t state = atomic_load_explicit(&shared->failure_state, memory_order_acquire);
    if (state == SHM_FAILING) {
        struct wait_options options = {.deadline_ns = clock_deadline_after(REASON_SECONDS),
                                       .is_shared = true,
                                       .what = "the reason of a failure"};
        (void)wait_while_equal(&shared->failure_state, SHM_FAILING, &options);
        state = atomic_load_explicit(&shared->failure_state, memory_order_acquire);
    }
    return state;
}

shoal_status shm_failure(struct shm_channel *channel)
{
    /* Acquire: pairs with the release in keep_reason. */
    if (atomic_load_explicit(&channel->has_failed, memory_order_acquire)) {
        return error_set(channel->status, "%s", channel->text);
    }
    if (!channel->shared) {
        return SHOAL_OK;
    }
    uint32_t state = read_failure_state(channel->shared);
    if (state == SHM_FINE) {
        return SHOAL_OK;
    }
    if (state == SHM_FAILING) {
        return error_set(SHOAL_ERR_PEER, "another rank of the group has failed");
    }
    /* Copied, and ended here: what a peer wrote is not trusted to be a string. */
    char text[ERROR_TEXT_BYTES];
    memcpy(text, channel->shared->text, sizeof text);
    text[sizeof text - 1] = '\0';
    shoal_status status = (shoal_status)channel->shared->status;
    bool is_failure = status < SHOAL_OK && status >= SHOAL_ERR_INTERNAL; /* nor to be a status */
    return error_set(is_failure ? status : SHOAL_ERR_PEER, "%s", text);
}

static void keep_reason(struct shm_channel *channel, shoal_status status, const char *text)
{
    (void)pthread_mutex_lock(&channel->failure_lock);
    /* Relaxed: only changed under the lock. */
    if (!atomic_load_explicit(&channel->has_failed, memory_order_relaxed)) {
        channel->status = status;
        (void)snprintf(channel->text, sizeof channel->text, "%s", text);
        /* Release: pairs with the acquire in shm_failure. */
        atomic_store_explicit(&channel->has_failed, true, memory_order_release);
    }
    (void)pthread_mutex_unlock(&channel->failure_lock);
}

static void tell_peers(struct shm_segment *shared, shoal_status status, const char *text)
{
    uint32_t expected = SHM_FINE;
    /* Relaxed: only decides who writes. */
    if (!atomic_compare_exchange_strong_explicit(&shared->failure_state, &expected, SHM_FAILING,
                                                 memory_order_relaxed, memory_order_relaxed)) {
        return;
    }
    shared->status = status;
    (void)snprintf(shared->text, sizeof shared->text, "%s", text);
    /* Release: pairs with the acquire in shm_failure. */
    atomic_store_explicit(&shared->failure_state, SHM_FAILED, memory_order_release);
    wait_wake_all(&shared->failure_state, /*is_shared=*/true);
}

void shm_fail(struct shm_channel *channel, shoal_status status, const char *text)
{
    if (channel->shared) {
        tell_peers(channel->shared, status, text);
    }
    keep_reason(channel, status, text);
}

struct liveness {
    struct shm_channel *channel;
    struct shm_counters counters;
    uint32_t target;
};

shoal_status shm_check_members(struct shm_channel *channel, struct shm_counters counters, uint32_t target)
{
    const struct transport_peers *peers = channel->base.peers;
    for (int i = 0; i < channel->n_ranks; i++) {
        /* Who has come as far may go: nothing more is needed of it. */
        if (i != channel->rank && !flag_has_reached(shm_counter(counters, i), target)) {
            TRY(peers->check_member(peers->context, i));
        }
    }
    return SHOAL_OK;
}

static shoal_status look_around(void *context)
{
    struct liveness *liveness = context;
    TRY(shm_failure(liveness->channel));
    return shm_check_members(liveness->channel, liveness->counters, liveness->target);
}

shoal_status shm_wait(struct shm_channel *channel, int peer, struct shm_counters counters, uint32_t target,
                      int64_t until_ns)
{
    _Atomic uint32_t *flag = shm_counter(counters, peer);
    if (flag_has_reached(flag, target)) {
        return SHOAL_OK;
    }
    /* A channel that has failed already is not waited on until the first look around. What the peer did before it
       failed still counts: the flag is looked at again. */
    shoal_status status = shm_failure(channel);
    if (status != SHOAL_OK && !flag_has_reached(flag, target)) {
        return status;
    }
    if (status != SHOAL_OK) {
        error_clear();
        return SHOAL_OK;
    }
    struct liveness liveness = {.channel = channel, .counters = counters, .target = target};
    struct wait_options options = {
        .deadline_ns = until_ns,
        .is_shared = true,
        .may_spin = channel->base.peers->may_spin && until_ns > 0,
        .liveness = look_around,
        .liveness_context = &liveness,
        .what = "a peer",
    };
    return flag_wait(flag, target, &options);
}

static size_t segment_size(int n_ranks)
{
    return sizeof(struct shm_segment) + (size_t)n_ranks * sizeof(struct shm_rank);
}

shoal_status shm_open_staging(struct shm_channel *channel, int64_t deadline_ns)
{
    if (channel->staging) {
        return SHOAL_OK;
    }
    FAIL_POINT("shm staging");
    const struct transport_peers *peers = channel->base.peers;
    size_t bytes = (size_t)channel->n_ranks * sizeof(struct shm_staging);
    TRY(peers->open_segment(peers->context, "staging", bytes, deadline_ns, &channel->staging_segment));
    channel->staging = segment_base(channel->staging_segment);
    segment_touch(channel->staging_segment, (size_t)channel->rank * sizeof(struct shm_staging),
                  sizeof(struct shm_staging));
    return SHOAL_OK;
}

static void shm_disconnect(struct channel *base)
{
    struct shm_channel *channel = (struct shm_channel *)base;
    segment_unref(channel->staging_segment);
    segment_unref(channel->segment);
    (void)pthread_mutex_destroy(&channel->failure_lock);
    mem_free(channel->sources);
    mem_free(channel->peers);
    mem_free(channel->targets);
    mem_free(channel);
}

static shoal_status open_memory(struct shm_channel *channel, int64_t deadline_ns)
{
    size_t n_ranks = (size_t)channel->n_ranks;
    channel->sources = mem_alloc_zeroed(n_ranks, sizeof *channel->sources);
    channel->peers = mem_alloc_zeroed(n_ranks, sizeof *channel->peers);
    channel->targets = mem_alloc_zeroed(n_ranks, sizeof *channel->targets);
    if (!channel->sources || !channel->peers || !channel->targets) {
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

static enum algorithm_id pick(struct shm_channel *channel, const struct collective *collective)
{
    struct algorithm_query query = {
        .kind = collective->kind,
        .n_ranks = channel->n_ranks,
        .slot_bytes = shm_oneshot_bytes(collective, channel->n_ranks),
    };
    enum algorithm_id algorithm = algorithm_pick(&query, NULL);
    /* Nothing but the choice between staged and direct depends on symmetric memory (preferences.def). */
    if (algorithm == ALGORITHM_STAGED) {
        struct region_place send;
        struct region_place recv;
        query.is_symmetric = shm_find_places(channel, collective, &send, &recv);
        algorithm = algorithm_pick(&query, NULL);
    }
    return algorithm;
}

/* What a single rank copies within _start; more is left to the lane's thread. */
#define LOCAL_POST_BYTES ((size_t)64 * 1024)

static bool shm_post(struct channel *base, struct collective *collective)
{
    struct shm_channel *channel = (struct shm_channel *)base;
    collective->algorithm = (int)pick(channel, collective);
    if (collective->algorithm == ALGORITHM_LOCAL) {
        /* Not more than a caller of _start may be kept with; and never what has to wait for a release. */
        return collective_bytes(collective, 1) <= LOCAL_POST_BYTES && !shm_local_must_wait(collective) &&
               shm_local_run(channel, collective) == SHOAL_OK;
    }
    if (collective->algorithm != ALGORITHM_ONESHOT || !shm_has_slot(channel, collective->sequence)) {
        return false;
    }
    shm_write_slot(channel, collective);
    shm_oneshot_fill(channel, collective);
    shm_enter(channel, collective->sequence);
    return true;
}

/* Who only tests never sleeps until somebody looks around: then finish does (check_pending). */
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
    return collective->algorithm == ALGORITHM_LOCAL || shm_have_all_entered(channel, collective->sequence) ||
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
    return SHOAL_OK;
}

/* A collective that failed has failed for all: the ranks' counters have parted. */
static shoal_status conclude(struct shm_channel *channel, shoal_status status)
{
    if (status != SHOAL_OK) {
        shm_fail(channel, status, shoal_error_text());
    }
    return status;
}

/*
 * SHOAL_OK when what could not be finished yet may still be. Waits of short turns, or of none, are too short for
 * anybody to look around in them, so it is done here: after each for what costs nothing, now and then for deaths.
 * (Also, the group may have failed by somebody else's timeout, which must not be taken for the caller's.)
 */
static shoal_status check_pending(struct shm_channel *channel, const struct collective *collective)
{
    TRY(shm_failure(channel));
    int64_t now_ns = clock_now_ns();
    if (now_ns >= collective->deadline_ns) {
        return shm_wait_entered(channel, collective, collective->deadline_ns);
    }
    /* Relaxed, both: an instant that stands for itself. */
    if (now_ns < atomic_load_explicit(&channel->look_ns, memory_order_relaxed)) {
        return SHOAL_OK;
    }
    atomic_store_explicit(&channel->look_ns, now_ns + WAIT_LIVENESS_NS, memory_order_relaxed);
    return shm_check_members(channel, shm_entered_counters(channel, collective->sequence),
                             (collective->sequence + 1) & FLAG_MASK);
}

static shoal_status shm_finish(struct channel *base, struct collective *collective, int64_t until_ns,
                               bool *is_pending_out)
{
    struct shm_channel *channel = (struct shm_channel *)base;
    *is_pending_out = false;
    if (collective->algorithm == ALGORITHM_LOCAL) {
        return SHOAL_OK;
    }
    int64_t bound_ns = until_ns < collective->deadline_ns ? until_ns : collective->deadline_ns;
    shoal_status status = finish_oneshot(channel, collective, bound_ns);
    if (status == SHOAL_ERR_TIMEOUT && bound_ns < collective->deadline_ns) {
        shoal_status reason = check_pending(channel, collective);
        *is_pending_out = reason == SHOAL_OK;
        status = *is_pending_out ? status : reason;
    }
    return *is_pending_out ? status : conclude(channel, status);
}

static shoal_status run_oneshot(struct shm_channel *channel, struct collective *collective)
{
    TRY(shm_wait_slot(channel, collective));
    FAIL_POINT("shm post");
    shm_write_slot(channel, collective);
    shm_oneshot_fill(channel, collective);
    shm_enter(channel, collective->sequence);
    FAIL_POINT("shm posted");
    return finish_oneshot(channel, collective, collective->deadline_ns);
}

/* The counts of an all_to_all_v lie in the slot (shm_write_slot). */
static shoal_status check_counts_fit(const struct shm_channel *channel, const struct collective *collective)
{
    int most = (int)(ALGORITHM_SLOT_BYTES / sizeof(uint64_t));
    if (collective->kind == COLLECTIVE_ALL_TO_ALL && collective->send_counts && channel->n_ranks > most) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "all_to_all_v over %d ranks: at most %d", channel->n_ranks,
                         most);
    }
    return SHOAL_OK;
}

/* Meets first, so that what everybody calls is compared before data moves. */
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
    return collective->algorithm == ALGORITHM_DIRECT ? shm_direct_run(channel, collective)
                                                     : shm_staged_run(channel, collective);
}

static shoal_status shm_run(struct channel *base, struct collective *collective)
{
    struct shm_channel *channel = (struct shm_channel *)base;
    TRY(shm_failure(channel));
    enum algorithm_id algorithm = pick(channel, collective);
    collective->algorithm = (int)algorithm;
    switch (algorithm) {
    case ALGORITHM_LOCAL:
        return conclude(channel, shm_local_run(channel, collective));
    case ALGORITHM_ONESHOT:
        return conclude(channel, run_oneshot(channel, collective));
    case ALGORITHM_WINDOW:
        return conclude(channel, shm_window_run(channel, collective));
    case ALGORITHM_DIRECT:
    case ALGORITHM_STAGED:
        return conclude(channel, run_large(channel, collective));
    case ALGORITHM_COUNT:
        break;
    }
    return conclude(channel, error_set(SHOAL_ERR_INTERNAL, "no algorithm for %s",
                                       collective_rows[collective->kind].name));
}

static void shm_poison(struct channel *base, shoal_status status, const char *text)
{
    shm_fail((struct shm_channel *)base, status, text);
}

static shoal_status shm_channel_failure(struct channel *base)
{
    return shm_failure((struct shm_channel *)base);
}

const struct transport transport_shm = {
    .name = "shm",
    .doc = "shared memory between the ranks of one machine, processes or threads",
    .connect = shm_connect,
    .disconnect = shm_disconnect,
    .post = shm_post,
    .is_ready = shm_is_ready,
    .finish = shm_finish,
    .run = shm_run,
    .poison = shm_poison,
    .failure = shm_channel_failure,
};
