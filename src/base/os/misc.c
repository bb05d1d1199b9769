/* SPDX-License-Identifier: MIT */
/* Descriptors, names, small files, random numbers, processors, threads. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

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

bool os_read_text(const char *path, char *text, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t n_read = read(fd, text, bytes - 1);
    (void)close(fd);
    text[n_read > 0 ? n_read : 0] = '\0';
    return n_read > 0;
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

int os_get_processors(int64_t thread, uint64_t *words, size_t n_words)
{
    cpu_set_t allowed;
    if (os_fault("processors") || sched_getaffinity((pid_t)thread, sizeof allowed, &allowed) != 0) {
        return -1;
    }
    memset(words, 0, n_words * sizeof words[0]);
    for (size_t i = 0; i < n_words * 64 && i < CPU_SETSIZE; i++) {
        words[i / 64] |= (uint64_t)(CPU_ISSET(i, &allowed) != 0) << (i % 64);
    }
    return 0;
}

int os_processor(void)
{
    return sched_getcpu();
}

int os_set_processors(int64_t thread, const uint64_t *words, size_t n_words)
{
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    for (size_t i = 0; i < n_words * 64 && i < CPU_SETSIZE; i++) {
        if (words[i / 64] >> (i % 64) & 1) {
            CPU_SET(i, &allowed);
        }
    }
    return os_fault("processors") ? -1 : sched_setaffinity((pid_t)thread, sizeof allowed, &allowed);
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
