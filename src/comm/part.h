/* SPDX-License-Identifier: MIT */
/*
 * What the parts of a group (its lane, its point to point) know of the group they belong to. Parts do not see the group
 * itself: it calls them, and what they must tell it goes by `calls`, which are made while connecting and when something
 * has failed, but not in a collective that goes well, unless the group has point to point as well.
 */
#ifndef COMM_PART_H
#define COMM_PART_H

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
    /* SHOAL_OK, or why the group has failed: the first reason that one of its parts or its parent knows. Never connects. */
    shoal_status (*failure)(struct shoal_group *group);
    /* A call has failed, or has found the group failed, with the thread's error text, which stays. */
    void (*report)(struct shoal_group *group);
    /* One operation has failed, with the thread's error text, which stays; the group may go on. */
    void (*note)(struct shoal_group *group);
    /* Every call on the group fails from now on, on all members. Never blocks. */
    void (*poison)(struct shoal_group *group, shoal_status status, const char *text);
};

/*
 * The group has one; each part keeps a copy, and a reference of the group, because the works of a part may outlive both:
 * texts name the group.
 */
struct part {
    struct closable *closable; /* the group's */
    const struct transport_peers *peers;
    struct recorder *recorder;
    struct work_count *works;
    uint32_t n_forks;                 /* the world's */
    bool is_world;                    /* the group of all ranks: texts need not say which */
    const _Atomic(struct p2p *) *p2p; /* the group's; NULL there: point to point was never used */
    const struct part_calls *calls;
    struct shoal_group *group; /* what the calls are given */
};

/* The time that an operation has that starts now. */
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
 * The right to connect a part, which another thread may have for as long as its own call may take. With SHOAL_OK the
 * caller has the mutex; otherwise the deadline has passed, or the group has failed.
 */
shoal_status part_lock_to_connect(const struct part *part, pthread_mutex_t *mutex, int64_t deadline_ns);

#endif
