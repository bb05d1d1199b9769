/* SPDX-License-Identifier: MIT */
/* What the files of this layer know of a world. */
#ifndef COMM_GROUP_WORLD_H
#define COMM_GROUP_WORLD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/fork.h"
#include "bootstrap/alive/liveness.h"
#include "comm/group/owned.h"
#include "shoal/world.h"

struct channel;
struct client;  /* bootstrap/server/client.h: connections to the servers of all ranks */
struct groups;  /* comm/group/group.c: the groups there are, by ranks and tag */
struct regions; /* sharedmem/regions.h */
struct server;  /* bootstrap/server/server.c: what this rank answers to others */
struct transport;
struct transports;
struct watch;
struct work_count;

struct shoal_world {
    uint32_t n_forks; /* fork_count when it was opened */
    int rank;
    int n_ranks;
    const char *launcher;
    const struct transport *transport; /* what was asked for; NULL if it is chosen for each group */
    bool has_peers;
    bool may_spin;                 /* no more ranks on this host than processors */
    bool is_driven;                /* only the thread that opened the world makes progress: mpi_progress */
    bool has_ended_well;           /* all ranks have closed */
    struct transports *transports; /* comm/group/transports.h */
    const struct mpi_start *mpi_start; /* comm/group/start_mpi.h; NULL if the world does not use MPI */
    struct mpi *mpi;
    uint64_t mpi_number; /* counts the worlds of this process on MPI; the same on all ranks */
    pthread_t opener;    /* the thread that drives the world */
    double timeout_s;    /* of an operation */
    double close_timeout_s;
    double startup_timeout_s;
    struct members *members; /* NULL in a world without peers */
    /* The page that this rank has made for its host; outlives the server; NULL if there is none. */
    struct members *page;
    struct server *server;
    struct watch *watch;       /* bootstrap/alive/watch.h; NULL if no rank can be on another host */
    struct client *client;     /* NULL in a world without peers */
    struct shoal_store *store; /* rank 0's */
    struct groups *groups;
    struct regions *regions;
    struct owned_list ending;    /* objects whose threads use groups: ended before the groups */
    shoal_status ending_failure; /* the first failure of one of these */
    char ending_text[ERROR_TEXT_BYTES];
    struct owned_list owned;   /* meshes, symmetric memory, windows: ended after the groups, before regions */
    struct shoal_group *group; /* all ranks */
    struct work_count *works;  /* comm/lane/work.h */
    uint64_t run;              /* a number that its ranks share; 0 in a world without peers */
};

/* SHOAL_ERR_STATE in a process that was forked off the one that opened the world. */
static inline shoal_status world_check_process(const struct shoal_world *world)
{
    return fork_check(world->n_forks);
}

/* SHOAL_OK while the rank is alive and has its world open. Otherwise SHOAL_ERR_PEER, with a text that names rank and
   process. */
static inline shoal_status world_check_rank(struct shoal_world *world, int rank)
{
    return world->members ? members_check(world->members, rank) : SHOAL_OK;
}

#endif
