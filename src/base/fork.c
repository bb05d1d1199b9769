/* SPDX-License-Identifier: MIT */
/* Counting forks, and holding locks meanwhile. */
#include "base/fork.h"

#include <string.h>
#include <unistd.h>

#include "base/error.h"

_Atomic uint32_t fork_counter;

static pthread_once_t is_watched = PTHREAD_ONCE_INIT;
static int watch_error;

static _Atomic(pthread_mutex_t *) held[FORK_PLACES];

static void lock_all(void)
{
    for (int place = 0; place < FORK_PLACES; place++) {
        pthread_mutex_t *lock = atomic_load(&held[place]);
        if (lock) {
            (void)pthread_mutex_lock(lock);
        }
    }
}

static void unlock_all(void)
{
    for (int place = FORK_PLACES; place-- > 0;) {
        pthread_mutex_t *lock = atomic_load(&held[place]);
        if (lock) {
            (void)pthread_mutex_unlock(lock);
        }
    }
}

static void begin_child(void)
{
    unlock_all();
    /* Relaxed: the only thread of a new process. */
    atomic_fetch_add_explicit(&fork_counter, 1, memory_order_relaxed);
}

static void watch(void)
{
    watch_error = pthread_atfork(lock_all, unlock_all, begin_child);
}

void fork_hold(enum fork_place place, pthread_mutex_t *lock)
{
    (void)pthread_once(&is_watched, watch); /* if it fails, fork_watch says so when a world is opened */
    atomic_store(&held[place], lock);
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
