/* SPDX-License-Identifier: MIT */
/*
 * How busy the processors are, from /proc/loadavg: in "0.20 0.18 0.12 3/346 2165", 3 threads are running or could run.
 */
#include "base/processors.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/os/os.h"

/* Opening and reading the file takes some microseconds. */
#define ANSWER_LASTS_NS 1000000

bool processors_suffice(int n_ranks)
{
    return os_n_processors() >= n_ranks;
}

long processors_parse_running(const char *text)
{
    for (int i = 0; text && i < 3; i++) { /* past the averages */
        text = strchr(text, ' ');
        text = text ? text + 1 : NULL;
    }
    char *end;
    long n_running = text ? strtol(text, &end, 10) : 0;
    return text && *end == '/' && n_running > 0 ? n_running : 0;
}

static long count_running(void)
{
    char text[128];
    int fd = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    ssize_t bytes = read(fd, text, sizeof text - 1);
    (void)close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    return processors_parse_running(text);
}

bool processors_are_free(void)
{
    static _Thread_local int64_t asked_ns = INT64_MIN;
    static _Thread_local bool are_free = true;
    int64_t now_ns = clock_now_ns();
    if (asked_ns == INT64_MIN || now_ns - asked_ns > ANSWER_LASTS_NS) {
        asked_ns = now_ns;
        are_free = count_running() <= sysconf(_SC_NPROCESSORS_ONLN);
    }
    return are_free;
}
