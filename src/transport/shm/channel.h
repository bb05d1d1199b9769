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
#include "device/device.h"
#include "transport/fingerprint.h"
#include "sharedmem/flag.h"
#include "sharedmem/regions.h"
#include "transport/shm/algorithm.h"
#include "transport/shm/oneshot.h"
#include "transport/transport.h"

/* Two lines: processors fetch them in pairs. */
#define SHM_LINE 128
#define SHM_SLOTS 8
/* Details that fit on the first two lines of a slot, behind the places. */
#define SHM_FEW_DETAILS 4
/* Parts of a list that `direct` can carry: their places lie in the slot's data. */
#define SHM_LIST_PLACES (SHM_SLOT_BYTES / sizeof(struct region_place))
/* A half of a rank's staging, and of its results. */
#define SHM_HALF_BYTES ((size_t)256 * 1024)

struct shm_slot {
    /* A flag (flag.h): how many collectives this rank had entered when it last wrote this slot. */
    _Alignas(SHM_LINE) _Atomic uint32_t entered;
    uint32_t algorithm; /* enum shm_algorithm, as this rank picked it */
    struct fingerprint fingerprint;
    /* On the second line. Only `direct` reads the places. */
    _Alignas(64) struct region_place send;
    struct region_place recv;
    /* The details of a purpose if they are few. Processors fetch the two lines together. */
    int64_t few_details[SHM_FEW_DETAILS];
    /* What the call is for (transport/purpose.h). Details are read if the fingerprint says that there are more than a
       few, words only for an error text. */
    _Alignas(SHM_LINE) int64_t details[FINGERPRINT_DETAILS];
    char words[PURPOSE_WORDS_BYTES];
    _Alignas(SHM_LINE) char data[SHM_SLOT_BYTES];
};

/* A word of a rank's memory that peers read, to find out whether they can. */
struct shm_offer {
    int64_t process;  /* 0 if this rank does not offer its memory */
    uint64_t address; /* in that process */
    uint64_t word[2]; /* random: what they must find there */
};

/* The counters of one rank, each on lines of its own. All only grow (flag.h). */
struct shm_rank {
    _Alignas(
        SHM_LINE) _Atomic uint32_t done; /* collectives whose slots this rank has read for the last time */
    /* Steps of direct, single and window collectives that this rank is through with. */
    _Alignas(SHM_LINE) _Atomic uint32_t wrote;
    _Alignas(SHM_LINE) _Atomic uint32_t filled;    /* rounds whose data lies in this rank's half */
    _Alignas(SHM_LINE) _Atomic uint32_t reduced;   /* rounds whose part this rank has reduced */
    _Alignas(SHM_LINE) _Atomic uint32_t taken;     /* rounds of which this rank has read everything */
    _Alignas(SHM_LINE) _Atomic uint32_t processor; /* no counter: where this rank last waited (base/wait.h) */
    /* Only `single` uses these. The offer is made before this rank's first collective, can_read is written once in the life
       of the group, has_read in every collective. */
    _Alignas(SHM_LINE) struct shm_offer offer;
    uint32_t can_read; /* this rank can read the memory of all peers */
    uint32_t has_read; /* it has read what it needs in this collective; 0 if the system has refused */
    /* The rank's staging in memory of a device: whether it is there, and the others' is mapped (device.c), and what the
       others need to map it. */
    _Alignas(SHM_LINE) _Atomic uint32_t shared;
    char descriptor[DEVICE_SHARE_BYTES];
    struct shm_slot slots[SHM_SLOTS];
};

/* Whether the ranks of a group can read each other's memory; all of them have the same answer. */
enum shm_reading {
    SHM_READING_UNKNOWN, /* until the first collective that would use it */
    SHM_READING_WORKS,
    SHM_READING_REFUSED /* for good */
};

enum shm_failure_state {
    SHM_FINE = 0,
    SHM_FAILING = 1, /* a rank is writing the reason; if it dies meanwhile, the state stays like this */
    SHM_FAILED = 2
};

struct shm_segment {
    _Alignas(SHM_LINE) _Atomic uint32_t failure_state;
    int32_t status;
    int64_t failed_ns; /* when the reason was written */
    char text[ERROR_TEXT_BYTES];
    struct shm_rank ranks[];
};

/* Memory of one rank that data goes through. halves: its data; results: what it has reduced. */
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
    /* So many collectives are done on all ranks, as far as this rank has seen; only grows. Touched under the lane's
       lock, or while nothing else runs. */
    uint32_t known_done;
    /* Rounds of staging so far; the same on all ranks. Touched by run only. */
    uint32_t rounds;
    /* Steps that have used `wrote`; the same on all ranks. Touched by run only. */
    uint32_t n_wrote;
    /* For `single`. Touched by run only; post, which looks at `reading`, is not called meanwhile. */
    enum shm_reading reading;
    int64_t *processes; /* n_ranks: those of the peers, once reading works */
    uint64_t word[2];   /* what the own offer points at */
    /* When finish checks for deaths again. Short waits end before they would check by themselves. */
    _Atomic int64_t look_ns;
    struct shm_device *device; /* transport/shm/device.c; NULL until a call has buffers of a device */
    const void **sources;      /* n_ranks: the sources of a reduction */
    const char **peers;        /* n_ranks: memory of peers that is read */
    char **targets;            /* n_ranks: memory of peers that is written */
    /* The first failure seen here. Written under the mutex, read after has_failed was seen. */
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

/* In a slot of `single`: the addresses of the blocks that this rank gives, in its process, behind the counts of an
   all_to_all_v. A block for each rank, or one for all. */
static inline uint64_t *shm_addresses(const struct shm_channel *channel, int rank, uint32_t sequence)
{
    return (uint64_t *)(void *)shm_slot(channel, rank, sequence)->data + channel->n_ranks;
}

struct shm_device;

/* The staging segment, made at first use. */
shoal_status shm_open_staging(struct shm_channel *channel, int64_t deadline_ns);

/* Whether another rank, or this one, has failed the channel with this text. */
bool shm_was_told(struct shm_channel *channel, const char *text);
/* Fails the channel, here and for the peers. The first reason is kept. */
void shm_fail(struct shm_channel *channel, shoal_status status, const char *text);
/* SHOAL_OK, or why this channel has failed; does not look at its parent, as shm_failure does. */
shoal_status shm_own_failure(struct shm_channel *channel);

static inline shoal_status shm_failure(struct shm_channel *channel)
{
    shoal_status status = shm_own_failure(channel);
    return status == SHOAL_OK ? transport_check_parent(channel->base.peers) : status;
}

/*
 * The same, for a rank that waits for a peer. If another rank's deadline has passed, the text says for whom this rank
 * waited: that rank may have waited for this one, which in turn waits for a third.
 */
shoal_status shm_failure_in_wait(struct shm_channel *channel, int peer);

/* Functions of the transport's table. */
shoal_status shm_channel_failure(struct channel *base);
void shm_channel_poison(struct channel *base, shoal_status status, const char *text);

/* One counter, which every rank has: the address of rank 0's, and the bytes from one to the next. */
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
 * Waits until a counter of a peer has reached the target, or until `until_ns`. Also returns if the group has failed, or
 * if a member has died whose counter has not reached the target: the peer may be waiting for that member. Failures have
 * a text of the group; the caller makes that of a timeout.
 */
shoal_status shm_wait(struct shm_channel *channel, int peer, struct shm_counters counters, uint32_t target,
                      int64_t until_ns);
/* SHOAL_ERR_PEER if a rank whose counter has not reached the target has died or left. */
shoal_status shm_check_members(struct shm_channel *channel, struct shm_counters counters, uint32_t target);

/* meet.c ----------------------------------------------------------------------------------------------- */

/* Whether the slot of the next collective is free; no waiting. */
bool shm_has_slot(struct shm_channel *channel, uint32_t sequence);
shoal_status shm_wait_slot(struct shm_channel *channel, const struct collective *collective);

/* Writes fingerprint and places into the slot; `enter` then shows it to the peers. */
void shm_write_slot(struct shm_channel *channel, const struct collective *collective);
void shm_enter(struct shm_channel *channel, uint32_t sequence);

/* A rank that has not entered the collective; -1 if all have. */
int shm_first_missing(struct shm_channel *channel, uint32_t sequence);
bool shm_have_all_entered(struct shm_channel *channel, uint32_t sequence);
/* Waits until all have entered. On a timeout the text names those who have not. */
shoal_status shm_wait_entered(struct shm_channel *channel, const struct collective *collective,
                              int64_t until_ns);
/* Compares this rank's call with everybody's; all must have entered. SHOAL_ERR_MISMATCH has both calls in its text. */
shoal_status shm_compare(struct shm_channel *channel, const struct collective *collective);
/* Compares with the ranks that have entered so far: for a rank that waits for something else. */
shoal_status shm_compare_entered(struct shm_channel *channel, const struct collective *collective);
/*
 * Compares the counts of an all_to_all_v, which lie in the slots: SHOAL_ERR_MISMATCH if a peer sends another number than
 * this rank expects. *largest_out: elements of the largest block between any two ranks.
 */
shoal_status shm_compare_counts(struct shm_channel *channel, const struct collective *collective,
                                size_t *largest_out);
/* The algorithm for all ranks: direct or single if all can, otherwise staged. */
enum shm_algorithm shm_settle(struct shm_channel *channel, const struct collective *collective);
/* Says that this rank has read the slots of the collective for the last time: they may be written again. */
void shm_done(struct shm_channel *channel, uint32_t sequence);

/* This rank has made its last access to what peers share with it in this collective. */
void shm_raise_wrote(struct shm_channel *channel);
/* Waits until every peer has made its last access too. */
shoal_status shm_wait_wrote(struct shm_channel *channel, const struct collective *collective);

/* places.c ---------------------------------------------------------------------------------------------- */

/*
 * Finds where the buffers that peers must reach lie in symmetric memory. False if one of them is ordinary memory. For a
 * list it only says whether all parts lie in symmetric memory.
 */
bool shm_find_places(struct shm_channel *channel, const struct collective *collective,
                     struct region_place *send_out, struct region_place *recv_out);
/* Writes the places of a list's parts into the own slot, after shm_find_places has returned true. */
void shm_write_list_places(struct shm_channel *channel, const struct collective *collective);

/* Whether peers may read what this rank gives in the call where it lies. */
bool shm_is_readable(const struct shm_channel *channel, const struct collective *collective);
/* Writes the addresses of the blocks that this rank gives into its slot. */
void shm_write_addresses(struct shm_channel *channel, const struct collective *collective);

/* The algorithms, each in a file of its name ------------------------------------------------------------ */

void shm_oneshot_fill(struct shm_channel *channel, const struct collective *collective);
shoal_status shm_oneshot_deliver(struct shm_channel *channel, const struct collective *collective);
/* Prefetches what a peer that has entered has for this rank; and the own slot of the next collective, for writing. */
void shm_oneshot_fetch(struct shm_channel *channel, const struct collective *collective, int peer);
void shm_oneshot_fetch_next(struct shm_channel *channel, const struct collective *collective);

shoal_status shm_staged_run(struct shm_channel *channel, struct collective *collective);
shoal_status shm_direct_run(struct shm_channel *channel, struct collective *collective);
/* Runs the collective as staged where it turns out that ranks cannot read each other's memory. */
shoal_status shm_single_run(struct shm_channel *channel, struct collective *collective);
/* Says to the peers where they can try to read this rank's memory. Called while the channel is connected. */
void shm_offer_memory(struct shm_channel *channel);
shoal_status shm_window_run(struct shm_channel *channel, struct collective *collective);
shoal_status shm_local_run(struct shm_channel *channel, const struct collective *collective);
/* Whether shm_local_run would wait for the release of a window, which only its caller can do. */
bool shm_local_must_wait(const struct collective *collective);

/* Writes the pieces of this rank, which is `member` of the group, into the window, and lets the decoder do its part. */
shoal_status shm_window_write(const struct collective *collective, int member);
/* Calls the decoder, if there is one, for pieces of `member` that were written. */
shoal_status shm_window_decode(const struct collective *collective, int member);
/* Waits until the member has released the previous generation; on a device the other one is called, for all members and
   from the group's stream. */
shoal_status shm_window_wait_released(struct shm_channel *channel, const struct collective *collective,
                                      int member);
shoal_status shm_window_begin(struct shm_channel *channel, const struct collective *collective);
bool shm_window_is_released(const struct collective *collective, int member);
#endif
