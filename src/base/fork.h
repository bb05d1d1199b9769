/* SPDX-License-Identifier: MIT */
/*
 * Recognizes forked children. A child has none of its parent's threads and is not its rank: if objects that it
 * inherited worked, two processes would act as one rank. An object that must refuse to work there keeps the
 * fork_count() of the time when it was made, and asks fork_is_child at every call.
 *
 * A child may open worlds of its own. Locks of the whole process that it needs for that must be free in it, and what they
 * guard must be whole, although another thread of the parent may have been at work there: fork_hold.
 */
#ifndef BASE_FORK_H
#define BASE_FORK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shoal/status.h"

/* Forks between the process that called fork_watch first and this one. Read it with fork_count. */
extern _Atomic uint32_t fork_counter;

/* Counts forks from now on. Call it before the first fork_count that is kept; later calls do nothing. */
shoal_status fork_watch(void);

static inline uint32_t fork_count(void)
{
    /* Relaxed: it changes in a child only, before anything else runs there. */
    return atomic_load_explicit(&fork_counter, memory_order_relaxed);
}

/* Whether this process was forked off the one in which fork_count() was `count`. Cheap enough for every call. */
static inline bool fork_is_child(uint32_t count)
{
    return fork_count() != count;
}

/* Locks that are held while the process forks. A lock may be taken while one before it is held, not the other way. */
enum fork_place {
    FORK_MEMBERS,
    FORK_SEGMENTS,
    FORK_TESTS,
    FORK_PLACES
};

/*
 * Takes the lock before every fork, and gives it back afterwards, in both processes. For locks that are never held while
 * a function of the program runs, or while another process is waited for. Call it when the library is loaded, in a
 * constructor: a thread that has taken the lock before is not waited for.
 */
void fork_hold(enum fork_place place, pthread_mutex_t *lock);

/* SHOAL_ERR_STATE, naming the process. */
shoal_status fork_fail(void);

static inline shoal_status fork_check(uint32_t count)
{
    return fork_is_child(count) ? fork_fail() : SHOAL_OK;
}

#endif
