/* SPDX-License-Identifier: MIT */
/*
 * A group's shared memory: docs/design/shm.md. What one rank writes is on cache lines of its own.
 *
 *   meeting     every collective, in order, has a slot of each rank: a fingerprint, perhaps data, and a flag that
 *               says how many collectives the rank has entered. Slot s % SHM_SLOTS is used again once all ranks
 *               have done with collective s.
 *   staging     a second segment, made when first needed: two halves per rank that data goes through in rounds,
 *               and two for partial results. The counters of rounds never start again, so that a half is free
 *               when the peers' counters say so, whatever collective used it before.
 */
#ifndef SHM_CHANNEL_H
#define SHM_CHANNEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "transport/fingerprint.h"
#include "sharedmem/flag.h"
#include "sharedmem/regions.h"
#include "transport/shm/algorithm.h"
#include "transport/shm/oneshot.h"
#include "transport/transport.h"

/* Two lines: processors fetch them in pairs. */
#define SHM_LINE 128
#define SHM_SLOTS 8
/* What is left of the two lines that a slot begins with. */
#define SHM_FEW_DETAILS 4
/* Parts of a list that `direct` can carry: their places lie in the slot's data. */
#define SHM_LIST_PLACES (SHM_SLOT_BYTES / sizeof(struct region_place))
/* A half of a rank's staging, and of its results. */
#define SHM_HALF_BYTES ((size_t)256 * 1024)

struct shm_slot {
    /* Collectives that this rank has entered, when this slot was last written: flag.h. */
    _Alignas(SHM_LINE) _Atomic uint32_t entered;
    uint32_t algorithm; /* what the rank picked */
    struct fingerprint fingerprint;
    /* On the second line: only `direct` reads the places. */
    _Alignas(64) struct region_place send;
    struct region_place recv;
    /* The details of a purpose, where they are few: processors fetch the two lines together. */
    int64_t few_details[SHM_FEW_DETAILS];
    /* What the call is for (transport/purpose.h). More details, read when the fingerprint says that there are; words, read
       by errors. */
    _Alignas(SHM_LINE) int64_t details[PURPOSE_DETAILS];
    char words[PURPOSE_WORDS_BYTES];
    _Alignas(SHM_LINE) char data[SHM_SLOT_BYTES];
};

/* The counters of one rank, each on lines of its own. All only grow (flag.h). */
struct shm_rank {
    _Alignas(
        SHM_LINE) _Atomic uint32_t done; /* collectives whose slots this rank has read for the last time */
    _Alignas(
        SHM_LINE) _Atomic uint32_t wrote; /* collectives, in direct and window: has written and read all */
    _Alignas(SHM_LINE) _Atomic uint32_t filled;  /* rounds whose data lies in this rank's half */
    _Alignas(SHM_LINE) _Atomic uint32_t reduced; /* rounds whose part this rank has reduced */
    _Alignas(SHM_LINE) _Atomic uint32_t taken;   /* rounds of which this rank has read everything */
    struct shm_slot slots[SHM_SLOTS];
};

enum shm_failure_state {
    SHM_FINE = 0,
    SHM_FAILING = 1, /* somebody writes the reason; if he dies at it, it stays like this */
    SHM_FAILED = 2
};

struct shm_segment {
    _Alignas(SHM_LINE) _Atomic uint32_t failure_state;
    int32_t status;
    char text[ERROR_TEXT_BYTES];
    struct shm_rank ranks[];
};

/* What data goes through. halves: a rank's data; results: what it reduced. */
struct shm_staging {
    _Alignas(SHM_LINE) char halves[2][SHM_HALF_BYTES];
    char results[2][SHM_HALF_BYTES];
};

struct shm_channel {
    struct channel base;
    int rank;
    int n_ranks;
    struct segment *segment;
    struct shm_segment *shared; /* NULL with one rank */
    struct segment *staging_segment;
    struct shm_staging *staging; /* by rank; NULL until needed */
    /* Collectives that this rank knows all peers to have done with; only grows. Touched under the lane's lock, or
       while nothing else runs. */
    uint32_t known_done;
    /* Rounds gone by in staging; the same on all ranks. Touched by run only. */
    uint32_t rounds;
    /* Collectives that have used `wrote`; likewise. */
    uint32_t n_wrote;
    /* When finish looks for deaths again that nobody waits long enough to notice. */
    _Atomic int64_t look_ns;
    const void **sources; /* n_ranks: of a reduction */
    const char **peers;   /* n_ranks: memory of peers */
    char **targets;       /* n_ranks: likewise, written */
    /* The first failure seen here; written under the mutex, read once has_failed. */
    pthread_mutex_t failure_lock;
    _Atomic bool has_failed;
    shoal_status status;
    char text[ERROR_TEXT_BYTES];
};

static inline struct shm_rank *shm_peer(const struct shm_channel *channel, int rank)
{
    return &channel->shared->ranks[rank];
}

static inline struct shm_slot *shm_slot(const struct shm_channel *channel, int rank, uint32_t sequence)
{
    return &channel->shared->ranks[rank].slots[sequence % SHM_SLOTS];
}

/* Where the send buffers of a list's parts lie, in a slot of `direct`. */
static inline struct region_place *shm_list_places(const struct shm_channel *channel, int rank,
                                                   uint32_t sequence)
{
    return (struct region_place *)(void *)shm_slot(channel, rank, sequence)->data;
}

/* The staging segment, made at first use. */
shoal_status shm_open_staging(struct shm_channel *channel, int64_t deadline_ns);

/* Keeps the first reason, here and for the peers. */
void shm_fail(struct shm_channel *channel, shoal_status status, const char *text);
/* Without the parent. */
shoal_status shm_own_failure(struct shm_channel *channel);

static inline shoal_status shm_failure(struct shm_channel *channel)
{
    shoal_status status = shm_own_failure(channel);
    return status == SHOAL_OK ? transport_check_parent(channel->base.peers) : status;
}

/* Of the transport's table. */
shoal_status shm_channel_failure(struct channel *base);
void shm_channel_poison(struct channel *base, shoal_status status, const char *text);

/* The same counter of every rank: rank 0's, and the bytes from one to the next. */
struct shm_counters {
    _Atomic uint32_t *first;
    size_t stride;
};

static inline _Atomic uint32_t *shm_counter(struct shm_counters counters, int rank)
{
    return (_Atomic uint32_t *)(void *)((char *)counters.first + (size_t)rank * counters.stride);
}

/* One of struct shm_rank: shm_counters_of(channel, taken). */
#define shm_counters_of(channel, member) \
    ((struct shm_counters){.first = &shm_peer((channel), 0)->member, .stride = sizeof(struct shm_rank)})

static inline struct shm_counters shm_entered_counters(const struct shm_channel *channel, uint32_t sequence)
{
    return (struct shm_counters){.first = &shm_slot(channel, 0, sequence)->entered,
                                 .stride = sizeof(struct shm_rank)};
}

/*
 * Waits for a counter of a peer, until `until_ns`. It notices failures of the group and deaths: of the peer, and of
 * every member that has not come as far itself, because a late peer will have to wait for those. The caller describes
 * failures.
 */
shoal_status shm_wait(struct shm_channel *channel, int peer, struct shm_counters counters, uint32_t target,
                      int64_t until_ns);
/* SHOAL_ERR_PEER when a rank that has not come as far cannot come any more. */
shoal_status shm_check_members(struct shm_channel *channel, struct shm_counters counters, uint32_t target);

/* meet.c ----------------------------------------------------------------------------------------------- */

/* Whether the slot of the next collective is free; no waiting. */
bool shm_has_slot(struct shm_channel *channel, uint32_t sequence);
shoal_status shm_wait_slot(struct shm_channel *channel, const struct collective *collective);

/* Writes fingerprint and places into the slot; `enter` then shows it to the peers. */
void shm_write_slot(struct shm_channel *channel, const struct collective *collective);
void shm_enter(struct shm_channel *channel, uint32_t sequence);

bool shm_have_all_entered(struct shm_channel *channel, uint32_t sequence);
/* Until all have entered; on a timeout the text names those who have not. */
shoal_status shm_wait_entered(struct shm_channel *channel, const struct collective *collective,
                              int64_t until_ns);
/* SHOAL_ERR_MISMATCH with both calls in full. All have entered. */
shoal_status shm_compare(struct shm_channel *channel, const struct collective *collective);
/* The same with those who have entered so far, for who waits for something else meanwhile. */
shoal_status shm_compare_entered(struct shm_channel *channel, const struct collective *collective);
/* What all ranks can do: direct only if all picked it. */
enum shm_algorithm shm_settle(struct shm_channel *channel, const struct collective *collective);
/* The peers may write over what this rank has read. */
void shm_done(struct shm_channel *channel, uint32_t sequence);

/* This rank has made its last access to what peers share with it in this collective. */
void shm_raise_wrote(struct shm_channel *channel);
/* Until every peer has said so too. */
shoal_status shm_wait_wrote(struct shm_channel *channel, const struct collective *collective);

/* places.c ---------------------------------------------------------------------------------------------- */

/* Symmetric places of the buffers that peers must reach; false when one is ordinary memory. Of a list: only whether. */
bool shm_find_places(struct shm_channel *channel, const struct collective *collective,
                     struct region_place *send_out, struct region_place *recv_out);
/* Those of a list's parts into the own slot. They were all found. */
void shm_write_list_places(struct shm_channel *channel, const struct collective *collective);

/* Ways to travel, each in a file of its name ------------------------------------------------------------ */

void shm_oneshot_fill(struct shm_channel *channel, const struct collective *collective);
shoal_status shm_oneshot_deliver(struct shm_channel *channel, const struct collective *collective);
/* Asks for what a peer that has entered has for this rank; and, at the end, for the own slot of the next collective.
   Hints. */
void shm_oneshot_fetch(struct shm_channel *channel, const struct collective *collective, int peer);
void shm_oneshot_fetch_next(struct shm_channel *channel, const struct collective *collective);

shoal_status shm_staged_run(struct shm_channel *channel, struct collective *collective);
shoal_status shm_direct_run(struct shm_channel *channel, struct collective *collective);
shoal_status shm_window_run(struct shm_channel *channel, struct collective *collective);
shoal_status shm_local_run(struct shm_channel *channel, const struct collective *collective);
/* Whether it would wait: for the release of a window, which only the caller can do. */
bool shm_local_must_wait(const struct collective *collective);

/* Shared by them. */
void shm_window_write(const struct collective *collective);
/* Until the member has released the generation before. */
shoal_status shm_window_wait_released(struct shm_channel *channel, const struct collective *collective,
                                      int member);
bool shm_window_is_released(const struct collective *collective, int member);
#endif
