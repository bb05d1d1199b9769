/* SPDX-License-Identifier: MIT */
/* What the files of this layer know of a group. */
#ifndef COMM_GROUP_H
#define COMM_GROUP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shoal/group.h"
#include "transport/transport.h"

struct lane;
struct p2p; /* comm/p2p.c: the group's streams */
struct recorder;
struct shoal_world;

/* In a key: what stands for all ranks in order, and what lies between the number of many ranks and their hash. */
#define GROUP_KEY_WORLD "world"
#define GROUP_KEY_HASHED " ranks "

struct shoal_group {
    struct shoal_world *world;
    int *ranks; /* world ranks */
    char *tag;
    char *key;                    /* shoal_group_name: ranks and tag, the same on all members */
    char *name;                   /* for people: [0,1] tag "x" */
    struct transport_peers peers; /* rank and n_ranks of the group are here */
    struct lane *lane;
    struct recorder *recorder;
    struct p2p *_Atomic p2p; /* made at first use */
    _Atomic bool was_told;   /* the log, that it has failed */
    _Atomic double timeout_s;
    struct shoal_group *next; /* of the world's */
};

/* All groups of a world. */
struct groups *groups_create(void);
/* Every group is idle or poisoned; lanes are joined. */
void groups_free(struct groups *groups);

/* The deadline of an operation that starts now. */
int64_t group_deadline(const struct shoal_group *group);

/* SHOAL_OK, or the first reason, without connecting. */
shoal_status group_failure(struct shoal_group *group);
/* Poisons; connects if need be, for a moment at most. */
void group_poison(struct shoal_group *group, shoal_status status, const char *text);

#endif
