/* SPDX-License-Identifier: MIT */
/* All groups of a world: made by comm/group.c, walked by comm/dump.c, found by collective/group_argument.c. */
#ifndef COMM_GROUPS_H
#define COMM_GROUPS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "comm/group.h"

struct groups {
    pthread_mutex_t mutex;
    struct shoal_group *first; /* newest first; links never change before the world is closed */
    _Atomic bool was_dumped;   /* SHOAL_DUMP: once in a world */
};

/* To walk them by `next`, without the mutex. */
struct shoal_group *groups_first(struct groups *groups);

/* The one whose key this is, or NULL. */
struct shoal_group *groups_find(struct groups *groups, const char *key);

#endif
