/* SPDX-License-Identifier: MIT */
/* What the files of this layer know of a world. */
#ifndef COMM_WORLD_H
#define COMM_WORLD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/owned.h"
#include "shoal/world.h"

struct channel;
struct groups;  /* comm/group.c: the groups there are, by ranks and tag */
struct members; /* comm/members.c: the page that says who lives */
struct regions; /* transport/regions.h */
struct segment; /* transport/segment.h */
struct server;  /* comm/server.c: what this rank answers to others */
struct stores;  /* comm/store.c: connections to the servers of all ranks */
struct transport;
struct work_count;

struct shoal_world {
    uint32_t n_forks; /* world_n_forks when it was opened */
    int rank;
    int n_ranks;
    const char *launcher;
    const struct transport *transport;
    double timeout_s; /* of an operation */
    double close_timeout_s;
    double startup_timeout_s;
    bool may_spin;           /* no more ranks on this host than processors */
    struct members *members; /* NULL: a world without peers */
    struct members *page;    /* of rank 0, which made it; outlives the server */
    struct server *server;
    struct stores *stores;
    struct shoal_store *store; /* rank 0's */
    struct groups *groups;
    struct regions *regions;
    struct owned_list owned;   /* meshes, symmetric memory, windows: ended after the groups, before regions */
    struct shoal_group *group; /* all ranks */
    struct work_count *works;  /* comm/work.h */
};

/*
 * Forks between the process that opened the first world and this one. A child has none of a world's threads and is not
 * its rank: what it inherited refuses to work, or two processes would act as one rank.
 */
extern _Atomic uint32_t world_n_forks;

/* Cheap enough for every call: `n_forks` is a world's, or a copy. */
static inline bool world_is_inherited(uint32_t n_forks)
{
    /* Relaxed: it changes in a child only, before anything else runs there. */
    return atomic_load_explicit(&world_n_forks, memory_order_relaxed) != n_forks;
}

/* SHOAL_ERR_STATE. */
shoal_status world_fail_inherited(void);

static inline shoal_status world_check_process(const struct shoal_world *world)
{
    return world_is_inherited(world->n_forks) ? world_fail_inherited() : SHOAL_OK;
}

/* SHOAL_OK while the rank lives and has its world open; otherwise SHOAL_ERR_PEER, naming rank and process. */
shoal_status world_check_rank(struct shoal_world *world, int rank);

/*
 * Shared memory under a name, held by the server of world rank `holder`: made, zeroed, by whoever asks first.
 * Blocks only for that server, which answers whatever its rank is doing. SHOAL_ERR_MISMATCH when it exists with
 * another size.
 */
shoal_status world_open_segment(struct shoal_world *world, int holder, const char *name, size_t bytes,
                                int64_t deadline_ns, struct segment **segment_out);

/* The server forgets the segment; who has mapped it keeps it. The next to ask for the name gets a new one. */
shoal_status world_drop_segment(struct shoal_world *world, int holder, const char *name, int64_t deadline_ns);

#endif
