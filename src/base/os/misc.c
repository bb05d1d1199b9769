/* SPDX-License-Identifier: MIT */
/* Descriptors, names, random numbers, processors, threads. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/random.h>

#include "base/os/fault.h"
#include "base/os/os.h"

int os_duplicate(int fd)
{
    return os_fault("duplicate") ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

int os_exchange_names(const char *a, const char *b)
{
    return os_fault("exchange") ? -1 : renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

bool os_random(void *bytes, size_t n_bytes)
{
    return !os_fault("random") && getrandom(bytes, n_bytes, 0) == (ssize_t)n_bytes;
}

int os_n_processors(void)
{
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : INT_MAX;
}

int os_start_thread(pthread_t *thread_out, void *(*run)(void *context), void *context)
{
    sigset_t all;
    sigset_t before;
    if (os_fault("thread")) {
        return errno;
    }
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(thread_out, NULL, run, context);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}
