/* SPDX-License-Identifier: MIT */
/*
 * What a transport offers: a channel per group, which carries its collectives in order.
 *
 * The lane (comm/lane.c) calls a channel like this, and no other way:
 *   post     under the lane's lock, in the order of sequences, while every earlier collective of the channel was
 *            posted too. Never blocks; false means "run it instead".
 *   finish   by one thread at a time, in order, for collectives that were posted; `post` of later ones may
 *            happen meanwhile on other threads.
 *   run      by one thread at a time, in order, for collectives that were not posted; nothing else is called
 *            meanwhile, except poison, failure and is_ready.
 * A failure of finish or run leaves the channel poisoned (it says so itself, on every member that can see it).
 */
#ifndef TRANSPORT_TRANSPORT_H
#define TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"
#include "transport/collective.h"

struct segment;
struct regions;

/*
 * What a channel knows of its group. Belongs to the group and outlives the channel. The functions may be called
 * from any thread.
 */
struct transport_peers {
    int rank; /* in the group */
    int n_ranks;
    const int *world_ranks; /* n_ranks of them */
    /* Text that is the same on all members and differs between groups: part of the names of segments. */
    const char *key;
    /* The group's, for people: [0,1] tag "x". NULL: the key will do. */
    const char *name;
    /* How long an operation that starts now may take; NULL: not known. For texts: each call has its own deadline. */
    const _Atomic double *timeout_s;
    /* Threads that wait may spin: there are processors enough for the ranks of this host. */
    bool may_spin;
    /* Symmetric memory of the world. */
    struct regions *regions;
    void *context;
    /* SHOAL_OK while the member can still do its part; otherwise SHOAL_ERR_PEER with a text that names it. */
    shoal_status (*check_member)(void *context, int group_rank);
    /*
     * Shared memory of the group under a name: made, zeroed, by whoever asks first, whatever the other members
     * are doing. All ask for the same size. One reference (transport/segment.h).
     */
    shoal_status (*open_segment)(void *context, const char *name, size_t bytes, int64_t deadline_ns,
                                 struct segment **segment_out);
};

/* A transport's channel begins with this. */
struct channel {
    const struct transport *transport;
    const struct transport_peers *peers;
};

struct transport {
    const char *name;
    const char *doc;
    /* Blocks for the members' process that holds the segments at most, not for their callers. */
    shoal_status (*connect)(const struct transport_peers *peers, int64_t deadline_ns,
                            struct channel **channel_out);
    /* No collective is unfinished, or the channel is poisoned and no thread is inside. */
    void (*disconnect)(struct channel *channel);
    bool (*post)(struct channel *channel, struct collective *collective);
    /* Whether finish would return without waiting. */
    bool (*is_ready)(struct channel *channel, const struct collective *collective);
    /*
     * Waits for the peers at most until `until_ns`; past it, and before the collective's own deadline,
     * SHOAL_ERR_TIMEOUT with *is_pending_out true: nothing has changed, finish can be called again.
     */
    shoal_status (*finish)(struct channel *channel, struct collective *collective, int64_t until_ns,
                           bool *is_pending_out);
    shoal_status (*run)(struct channel *channel, struct collective *collective);
    /* From now on every call of every member fails with this status and text; the first reason stays. */
    void (*poison)(struct channel *channel, shoal_status status, const char *text);
    /* SHOAL_OK, or the first reason, with its text set. Cheap: one load while all is well. */
    shoal_status (*failure)(struct channel *channel);
};

#define TRANSPORT(name, variable) extern const struct transport variable;
#include "transport/transports.def"
#undef TRANSPORT

/* The group's name, for texts. */
static inline const char *transport_group_name(const struct transport_peers *peers)
{
    return peers->name ? peers->name : peers->key;
}

/*
 * "all_reduce f32 sum count 8 #3 on group [0,1]: 30 s passed (SHOAL_TIMEOUT, shoal_group_set_timeout)": what a text
 * that says what did not happen begins with. Returns text.
 */
const char *transport_describe_timeout(const struct transport_peers *peers,
                                       const struct collective *collective, char *text, size_t text_bytes);

/* Rows of transports.def. NULL past the last. */
const struct transport *transport_at(size_t index);
/* SHOAL_ERR_INVALID with the names there are. */
shoal_status transport_find(const char *name, const struct transport **transport_out);

#endif
