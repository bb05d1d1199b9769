/* SPDX-License-Identifier: MIT */
/* Sleeping on words and descriptors: futexes and eventfds. Who waits, and for how long, is base/wait.c's business. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/os/fault.h"
#include "base/os/os.h"

_Static_assert(sizeof(_Atomic uint32_t) == 4, "the kernel's futex word has 32 bits");

int os_sleep_on_word(_Atomic uint32_t *word, uint32_t value, int64_t until_ns, bool is_shared)
{
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000), .tv_nsec = until_ns % 1000000000};
    /* The bitset form takes an instant of the monotonic clock, so interrupted sleeps need no arithmetic. */
    int operation = FUTEX_WAIT_BITSET | (is_shared ? 0 : FUTEX_PRIVATE_FLAG);
    if (os_fault("sleep")) {
        return -1;
    }
    long result = syscall(SYS_futex, word, operation, value, until_ns == INT64_MAX ? NULL : &until, NULL,
                          FUTEX_BITSET_MATCH_ANY);
    return result == 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT ? 0 : -1;
}

void os_wake_all(_Atomic uint32_t *word, bool is_shared)
{
    /* Fails only for an address that is no memory, which the caller has just written to. */
    (void)syscall(SYS_futex, word, FUTEX_WAKE | (is_shared ? 0 : FUTEX_PRIVATE_FLAG), INT_MAX, NULL, NULL, 0);
}

void os_yield(void)
{
    (void)sched_yield(); /* never fails on Linux */
}

int os_event(void)
{
    return os_fault("event") ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

bool os_is_event(int fd)
{
    static const char wanted[] = "anon_inode:[eventfd]";
    char path[32];
    char target[sizeof wanted];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n_bytes = readlink(path, target, sizeof target);
    if (n_bytes < 0) { /* it is closed, or there is no /proc */
        return fcntl(fd, F_GETFD) >= 0;
    }
    return n_bytes == sizeof wanted - 1 && memcmp(target, wanted, sizeof wanted - 1) == 0;
}

void os_event_set(int fd)
{
    uint64_t one = 1;
    /* A counter that is not full takes it. */
    ssize_t written = write(fd, &one, sizeof one);
    (void)written;
}
