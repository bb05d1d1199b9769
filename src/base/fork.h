/* SPDX-License-Identifier: MIT */
/*
 * Recognizes forked children. A child has none of its parent's threads and is not its rank: if objects that it
 * inherited worked, two processes would act as one rank. An object that must refuse to work there keeps the
 * fork_count() of the time when it was made, and asks fork_is_child at every call.
 */
#ifndef BASE_FORK_H
#define BASE_FORK_H

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

/* SHOAL_ERR_STATE, naming the process. */
shoal_status fork_fail(void);

static inline shoal_status fork_check(uint32_t count)
{
    return fork_is_child(count) ? fork_fail() : SHOAL_OK;
}

#endif
