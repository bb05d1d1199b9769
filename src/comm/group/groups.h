/* SPDX-License-Identifier: MIT */
/* All groups of a world: made by comm/group/group.c, walked by comm/world/dump.c. */
#ifndef COMM_GROUP_GROUPS_H
#define COMM_GROUP_GROUPS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/group/group.h"

/* How many closed groups are kept, so that calls with their handles get an error. */
#define GROUPS_CLOSED_KEPT 64
/* How many failures of groups are remembered that this rank does not have. */
#define GROUPS_NEWS_KEPT 1024

struct abandon_note;
struct call_note;
struct world_call;

/* How a group ends. */
struct group_ending {
    const char *what;   /* "group was closed": what has happened to operations that are unfinished */
    const char *reason; /* "it was closed": why the handle cannot be used any more */
    const char *told;   /* what peers are told of these operations, as SHOAL_ERR_PEER; NULL means `what` */
    bool is_abandoned;  /* this rank leaves alone: groups_begin_abandon has succeeded */
};

struct groups {
    pthread_mutex_t mutex;
    struct shoal_group *first; /* newest first; links do not change while somebody walks */
    uint32_t n_walkers;
    struct shoal_group *closed[GROUPS_CLOSED_KEPT]; /* a reference to each; a ring */
    size_t n_closed;
    _Atomic uint64_t n_generations;          /* how many were proposed */
    void (*dump)(struct shoal_world *world); /* see groups_create */
    _Atomic bool was_dumped;                 /* SHOAL_DUMP: once in a world */
    bool is_closed;
    struct news *news; /* failures of groups that this rank has not made yet, or has closed; newest first */
    size_t n_news;
    struct world_call *calls; /* calls that are being made (calls.h) */
    struct call_note *notes;  /* calls that other ranks have given up; newest first */
    uint32_t n_calls;         /* world_next_call */
    /* group/abandoned.c: */
    struct abandon_note *abandon_notes; /* members that have abandoned groups that this rank has not made */
    size_t n_abandon_notes;
    struct shoal_group *abandoned; /* by this rank, whose names it has to drop when the others have, too */
    _Atomic size_t n_ready;        /* how many of them all have abandoned */
    uint64_t *names;               /* of groups that this rank has abandoned: hashes, two of each */
    size_t n_names;                /* numbers there */
    size_t n_begun;                /* for which there is room, by groups_begin_abandon */
    size_t names_capacity;
};

/* Returns the first group, to be followed by `next` without the mutex. No group is freed until groups_end_walk. */
struct shoal_group *groups_walk(struct groups *groups);
void groups_end_walk(struct groups *groups);

/*
 * Calls `visit` for the group and the lanes over it, newest first, until it fails. Only the thread that may remove
 * these groups may call it. `visit` may take long: other groups can be closed meanwhile.
 */
shoal_status groups_each_of(struct shoal_group *ancestor,
                            shoal_status (*visit)(struct shoal_group *group, int64_t deadline_ns),
                            int64_t deadline_ns);

/*
 * Takes the group and the lanes over it off the list and frees them; their handles return SHOAL_ERR_STATE from now on.
 * If another thread is walking the list until the deadline, it returns SHOAL_ERR_TIMEOUT and has changed nothing.
 */
shoal_status groups_remove(struct groups *groups, struct shoal_group *ancestor,
                           const struct group_ending *ending, int64_t deadline_ns);

/* Under the mutex: false once the group is being freed. */
static inline bool groups_has(const struct groups *groups, const struct shoal_group *group)
{
    const struct shoal_group *listed = groups->first;
    while (listed && listed != group) {
        listed = listed->next;
    }
    return listed != NULL;
}

/* In calls.c; called on the server's thread. False if the message is not about a call. */
bool calls_hear(struct groups *groups, const char *key, shoal_status status, const char *text);
void calls_forget(struct groups *groups);

/* In group/abandoned.c ---------------------------------------------------------------------------------- */

/* Allocates what groups_keep_abandoned needs. If that is not called then, groups_cancel_abandon gives it back. */
shoal_status groups_begin_abandon(struct groups *groups);
void groups_cancel_abandon(struct groups *groups);
/* Under the mutex, when the group and the lanes over it are off the list: remembers its name for good, and takes a
   reference to all of them, if this rank has to drop their names later. */
void groups_keep_abandoned(struct groups *groups, struct shoal_group *group, struct shoal_group *family);
/* Under the mutex: SHOAL_ERR_STATE if this rank has abandoned a group of this name. */
shoal_status groups_check_abandoned(const struct groups *groups, const struct shoal_group *group);
/* Tells the other members that this rank has abandoned the group. SHOAL_ERR_SYSTEM: not all could be told. */
shoal_status group_tell_abandoned(const struct shoal_group *group);
/* Drops the names of groups that all members have abandoned, by group_drop_names. */
void groups_sweep_abandoned(struct groups *groups,
                            shoal_status (*drop_names)(struct shoal_group *group, int64_t deadline_ns));
/* Called on the server's thread. False if the message is not about that. */
bool abandoned_hear(struct groups *groups, const char *key);
/* Under the mutex: another member says that a group has failed. False if this rank has not abandoned it. */
bool groups_hear_abandoned_failed(struct groups *groups, const char *key);
/* Under the mutex, of a group that is new here: members that have abandoned it. */
void groups_tell_abandoned(struct groups *groups, struct shoal_group *group);
/* Under the mutex, when a group is freed that was closed by all members: keeps what groups_tell_abandoned needs when
   the group is made again. */
void groups_keep_marks(struct groups *groups, const struct shoal_group *group);
void groups_forget_abandoned(struct groups *groups);

/* In group/failure.c: takes failures that other members report to this rank's server (bootstrap/server/server.h). */
void groups_hear(void *groups, const char *key, shoal_status status, const char *text);
/* Under the mutex: fails a group that is new here, if another member has reported its failure before. */
void groups_tell_news(struct groups *groups, struct shoal_group *group);
void groups_forget_news(struct groups *groups);
/* Under the mutex, when a group is freed: remembers a failure that other members have reported. */
void groups_keep_heard(struct groups *groups, struct shoal_group *group);
/* Remembers the failure, so that a group that is made again with these ranks and this tag has failed too. */
void groups_keep_failure(struct groups *groups, const struct shoal_group *group, shoal_status status,
                         const char *text);

#endif
