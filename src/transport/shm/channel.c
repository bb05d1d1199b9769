/* SPDX-License-Identifier: MIT */
/* A group's shared memory: failing, waiting for a peer, staging. */
#include "transport/shm/channel.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail_point.h"
#include "base/neighbours.h"
#include "base/try.h"
#include "base/wait.h"
#include "sharedmem/segment.h"

/* How long a peer may take to write its reason; after that it is taken for dead. Writing takes a microsecond, but a
   machine with fewer cores than ranks has been seen to keep a writer from running for 0.1 s. */
#define REASON_SECONDS 1.0

/* Returns the state. If a peer is writing its reason, waits a moment for it to finish. */
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

shoal_status shm_own_failure(struct shm_channel *channel)
{
    /* Acquire: pairs with the release in keep_reason. */
    if (atomic_load_explicit(&channel->has_failed, memory_order_acquire)) {
        return error_set(channel->status, "%s", channel->text);
    }
    uint32_t state = channel->shared ? read_failure_state(channel->shared) : SHM_FINE;
    if (state == SHM_FINE) {
        return SHOAL_OK;
    }
    if (state == SHM_FAILING) {
        return error_set(SHOAL_ERR_PEER, "another rank of the group has failed, and gave no reason");
    }
    /* Copied, and ended here: what a peer wrote is not trusted to be a string. */
    char text[ERROR_TEXT_BYTES];
    memcpy(text, channel->shared->text, sizeof text);
    text[sizeof text - 1] = '\0';
    shoal_status status = (shoal_status)channel->shared->status;
    bool is_failure =
        status < SHOAL_OK && status >= SHOAL_ERR_INTERNAL; /* a peer wrote it: it may be anything */
    return error_set(is_failure ? status : SHOAL_ERR_PEER, "%s", text);
}

static void keep_reason(struct shm_channel *channel, shoal_status status, const char *text)
{
    (void)pthread_mutex_lock(&channel->failure_lock);
    /* Relaxed: only changed under the lock. */
    if (!atomic_load_explicit(&channel->has_failed, memory_order_relaxed)) {
        channel->status = status;
        (void)snprintf(channel->text, sizeof channel->text, "%s", text);
        /* Release: pairs with the acquire in shm_own_failure. */
        atomic_store_explicit(&channel->has_failed, true, memory_order_release);
    }
    (void)pthread_mutex_unlock(&channel->failure_lock);
}

/*
 * Whether another rank has given a reason that this rank should have seen: a rank that waits looks every
 * WAIT_LIVENESS_NS, unless its process is stopped. Ranks that fail at the same time keep their own reasons. The first may
 * name a rank that waits for a third one itself, and another knows that one.
 */
static bool has_overlooked(struct shm_segment *shared)
{
    return read_failure_state(shared) == SHM_FAILED &&
           clock_now_ns() - shared->failed_ns > 2 * (int64_t)WAIT_LIVENESS_NS;
}

/* Returns false if the reason that another rank has given before is this rank's, too. */
static bool tell_peers(struct shm_segment *shared, shoal_status status, const char *text)
{
    uint32_t expected = SHM_FINE;
    /* Relaxed: only decides who writes. */
    if (!atomic_compare_exchange_strong_explicit(&shared->failure_state, &expected, SHM_FAILING,
                                                 memory_order_relaxed, memory_order_relaxed)) {
        return !has_overlooked(shared);
    }
    shared->status = status;
    shared->failed_ns = clock_now_ns();
    (void)snprintf(shared->text, sizeof shared->text, "%s", text);
    /* Release: pairs with the acquire in read_failure_state. */
    atomic_store_explicit(&shared->failure_state, SHM_FAILED, memory_order_release);
    wait_wake_all(&shared->failure_state, /*is_shared=*/true);
    return true;
}

bool shm_was_told(struct shm_channel *channel, const char *text)
{
    return channel->shared && read_failure_state(channel->shared) == SHM_FAILED &&
           strncmp(channel->shared->text, text, sizeof channel->shared->text - 1) == 0;
}

void shm_fail(struct shm_channel *channel, shoal_status status, const char *text)
{
    char own[ERROR_TEXT_BYTES]; /* the text may be this thread's error text, which waiting sets */
    (void)snprintf(own, sizeof own, "%s", text);
    if (!channel->shared || tell_peers(channel->shared, status, own)) {
        keep_reason(channel, status, own);
    }
}

shoal_status shm_failure_in_wait(struct shm_channel *channel, int peer)
{
    shoal_status status = shm_failure(channel);
    /* Acquire: pairs with the release in keep_reason. */
    if (status != SHOAL_ERR_TIMEOUT || atomic_load_explicit(&channel->has_failed, memory_order_acquire)) {
        return status;
    }
    char text[ERROR_TEXT_BYTES];
    const int *world_ranks = channel->base.peers->world_ranks;
    (void)snprintf(text, sizeof text, "%s; rank %d waited for rank %d", shoal_error_text(),
                   world_ranks[channel->rank], world_ranks[peer]);
    keep_reason(channel, status, text);
    return shm_own_failure(channel);
}

shoal_status shm_channel_failure(struct channel *base)
{
    return shm_failure((struct shm_channel *)base);
}

void shm_channel_poison(struct channel *base, shoal_status status, const char *text)
{
    struct shm_channel *channel = (struct shm_channel *)base;
    /* If a peer has given a reason before, that one stays the first. */
    if (shm_own_failure(channel) == SHOAL_OK) {
        shm_fail(channel, status, text);
    }
}

struct liveness {
    struct shm_channel *channel;
    int peer; /* for which this rank waits */
    struct shm_counters counters;
    uint32_t target;
};

shoal_status shm_check_members(struct shm_channel *channel, struct shm_counters counters, uint32_t target)
{
    const struct transport_peers *peers = channel->base.peers;
    for (int i = 0; i < channel->n_ranks; i++) {
        /* A rank that has reached the target may leave or die: nothing more is needed of it. It may also have done so
           between the look at its flag and the look at the rank. */
        if (i == channel->rank || flag_has_reached(shm_counter(counters, i), target)) {
            continue;
        }
        shoal_status status = peers->check_member(peers->context, i);
        if (status != SHOAL_OK && !flag_has_reached(shm_counter(counters, i), target)) {
            return status;
        }
        if (status != SHOAL_OK) {
            error_clear();
        }
    }
    return SHOAL_OK;
}

static shoal_status look_around(void *context)
{
    struct liveness *liveness = context;
    TRY(shm_failure_in_wait(liveness->channel, liveness->peer));
    return shm_check_members(liveness->channel, liveness->counters, liveness->target);
}

shoal_status shm_wait(struct shm_channel *channel, int peer, struct shm_counters counters, uint32_t target,
                      int64_t until_ns)
{
    _Atomic uint32_t *flag = shm_counter(counters, peer);
    if (flag_has_reached(flag, target)) {
        return SHOAL_OK;
    }
    /* If the channel has failed already, return now and not after the first 100 ms. What the peer did before the
       failure still counts, so the flag is read once more. */
    shoal_status status = shm_failure(channel);
    if (status != SHOAL_OK && !flag_has_reached(flag, target)) {
        return status;
    }
    if (status != SHOAL_OK) {
        error_clear();
        return SHOAL_OK;
    }
    struct liveness liveness = {.channel = channel, .peer = peer, .counters = counters, .target = target};
    struct neighbours neighbours = {.first = channel->shared ? &shm_peer(channel, 0)->processor : NULL,
                                    .stride = sizeof(struct shm_rank),
                                    .n_ranks = channel->n_ranks,
                                    .rank = channel->rank,
                                    .peer = peer};
    struct wait_options options = {
        .deadline_ns = until_ns,
        .is_shared = true,
        .may_spin = channel->base.peers->may_spin && until_ns > 0,
        .liveness = look_around,
        .liveness_context = &liveness,
        .what = "a peer",
        .neighbours = channel->shared ? &neighbours : NULL, /* a rank alone shares no memory */
    };
    return flag_wait(flag, target, &options);
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
