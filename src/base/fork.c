/* SPDX-License-Identifier: MIT */
/* Counting forks. */
#include "base/fork.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

_Atomic uint32_t fork_counter;

static pthread_once_t is_watched = PTHREAD_ONCE_INIT;
static int watch_error;

static void count_fork(void)
{
    /* Relaxed: the only thread of a new process. */
    atomic_fetch_add_explicit(&fork_counter, 1, memory_order_relaxed);
}

static void watch(void)
{
    watch_error = pthread_atfork(NULL, NULL, count_fork);
}

shoal_status fork_watch(void)
{
    (void)pthread_once(&is_watched, watch);
    return watch_error == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_NO_MEMORY, "pthread_atfork failed: %s", strerror(watch_error));
}

shoal_status fork_fail(void)
{
    return error_set(SHOAL_ERR_STATE,
                     "process %d is a fork of the process that opened the world, and cannot use it; open a "
                     "world after the fork",
                     (int)getpid());
}
