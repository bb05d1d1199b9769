/* SPDX-License-Identifier: MIT */
/* What the files of this layer know of a world. */
#ifndef COMM_WORLD_H
#define COMM_WORLD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/world.h"

struct channel;
struct groups;     /* comm/group.c: the groups there are, by ranks and tag */
struct members;    /* comm/members.c: the page that says who lives */
struct regions;    /* transport/regions.h */
struct segment;    /* transport/segment.h */
struct stores;     /* comm/store.c: this rank's server, and connections to those of others */
struct transport;

struct shoal_world {
    int rank;
    int n_ranks;
    const char *launcher;
    const struct transport *transport;
    double timeout_s; /* of an operation */
    double close_timeout_s;
    double startup_timeout_s;
    bool may_spin; /* no more ranks on this host than processors */
    struct members *members;
    struct stores *stores;
    struct shoal_store *store; /* rank 0's */
    struct groups *groups;
    struct regions *regions;
    struct shoal_group *group; /* all ranks */
    _Atomic uint64_t n_unawaited; /* works freed or left without anybody having waited for them */
};

/* SHOAL_OK while the rank lives and has its world open; otherwise SHOAL_ERR_PEER, naming rank and process. */
shoal_status world_check_rank(struct shoal_world *world, int rank);

/*
 * Shared memory under a name, held by the server of world rank `holder`: made, zeroed, by whoever asks first.
 * Blocks only for that server, which answers whatever its rank is doing. SHOAL_ERR_MISMATCH when it exists with
 * another size.
 */
shoal_status world_open_segment(struct shoal_world *world, int holder, const char *name, size_t bytes,
                                int64_t deadline_ns, struct segment **segment_out);

#endif
