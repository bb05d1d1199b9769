/* SPDX-License-Identifier: MIT */
/*
 * What the parts of a group (its lane, its point to point) know of the group. They do not see the group itself: it
 * calls them, and they report to it through `calls`. These are made while connecting and when something has failed. A
 * successful collective makes none, unless the group also uses point to point.
 */
#ifndef COMM_LANE_PART_H
#define COMM_LANE_PART_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "transport/transport.h"

struct closable; /* base/closable.h */
struct p2p;
struct recorder;
struct shoal_group;
struct work_count;

struct part_calls {
    /* SHOAL_OK, or why the group has failed: the first reason that one of its parts or its parent knows. Never
       connects. */
    shoal_status (*failure)(struct shoal_group *group);
    /* Called when a call has failed, or has found the group failed. Uses the thread's error text, and keeps it. */
    void (*report)(struct shoal_group *group);
    /* Called when one operation has failed, and the group may go on. Uses the thread's error text, and keeps it. */
    void (*note)(struct shoal_group *group);
    /* Makes every call on the group fail from now on, on all members. Never blocks. */
    void (*poison)(struct shoal_group *group, shoal_status status, const char *text);
    /* SHOAL_OK, or SHOAL_ERR_PEER with a text that names it: this member has died, not only left. */
    shoal_status (*check_death)(struct shoal_group *group, int group_rank);
};

/*
 * The group has one. Each part keeps a copy of it, and a reference to the group, because works of a part may outlive
 * both and their error texts name the group.
 */
struct part {
    struct closable *closable; /* the group's */
    const struct transport_peers *peers;
    struct recorder *recorder;
    struct work_count *works;
    uint32_t n_forks;                 /* the world's */
    bool is_world;                    /* the group of all ranks: error texts do not name it */
    const _Atomic(struct p2p *) *p2p; /* the group's; NULL there: point to point was never used */
    const struct part_calls *calls;
    struct shoal_group *group; /* the argument of `calls` */
};

/* How many seconds an operation has that starts now. */
static inline double part_timeout(const struct part *part)
{
    /* Relaxed: a number that stands for itself. */
    return atomic_load_explicit(part->peers->timeout_s, memory_order_relaxed);
}

static inline int64_t part_deadline(const struct part *part)
{
    return clock_deadline_after(part_timeout(part));
}

/*
 * Takes the mutex that allows a thread to connect a part. Another thread may hold it for as long as its own call may
 * take. If this fails, the deadline has passed or the group has failed, and the caller does not have the mutex.
 */
shoal_status part_lock_to_connect(const struct part *part, pthread_mutex_t *mutex, int64_t deadline_ns);

/*
 * Call when a call could not be issued, because its part could not be connected or has no thread. The reason is the
 * thread's error text, which is kept; returns the status. A failure that reaches no further than its call
 * (SHOAL_REACH_CALL) stays this call's: the program may call again, and the others wait for that. After any other the
 * program goes on with another call, which must not meet the call that the others are still in. So the group has
 * failed, on all members.
 */
shoal_status part_fail_unissued(const struct part *part, shoal_status status);

#endif
