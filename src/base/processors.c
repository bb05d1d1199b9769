/* SPDX-License-Identifier: MIT */
/*
 * How many processors ranks may use: those they are bound to, less what control groups take away. And how busy the
 * processors are, from /proc/loadavg: in "0.20 0.18 0.12 3/346 2165", 3 threads are running or could run.
 */
#include "base/processors.h"

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/os/os.h"

/* Opening and reading the file takes some microseconds. */
#define ANSWER_LASTS_NS 1000000

/* Control groups --------------------------------------------------------------------------------------- */

static int divide(long quota, long period)
{
    if (quota <= 0 || period <= 0 || quota / period >= INT_MAX) {
        return INT_MAX;
    }
    return quota >= period ? (int)(quota / period) : 1;
}

int processors_parse_limit(const char *text)
{
    char *end;
    long quota = strtol(text, &end, 10);
    return end != text && *end == ' ' ? divide(quota, strtol(end, NULL, 10)) : INT_MAX;
}

int processors_parse_old_limit(const char *quota, const char *period)
{
    return divide(strtol(quota, NULL, 10), strtol(period, NULL, 10));
}

/* Reads a small file; false: there is none. */
static bool read_file(const char *path, char *text, size_t bytes)
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

static bool read_group_file(const char *group, const char *name, char *text, size_t bytes)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", group, name);
    return length > 0 && (size_t)length < sizeof path && read_file(path, text, bytes);
}

/* The limit of one group; of version 2, or of version 1. */
static int read_limit(const char *group)
{
    char text[64];
    char period[64];
    if (read_group_file(group, "cpu.max", text, sizeof text)) {
        return processors_parse_limit(text);
    }
    bool is_old = read_group_file(group, "cpu.cfs_quota_us", text, sizeof text) &&
                  read_group_file(group, "cpu.cfs_period_us", period, sizeof period);
    return is_old ? processors_parse_old_limit(text, period) : INT_MAX;
}

/* The lowest limit of a group and of those that it lies in. `root` is where the groups are mounted; in a container that
   is often the group itself, whose path is not there. */
static int find_lowest_limit(const char *root, const char *path, int limit)
{
    char group[PATH_MAX];
    int length = snprintf(group, sizeof group, "%s%s", root, path);
    size_t root_length = strlen(root);
    if (length < 0 || (size_t)length >= sizeof group) {
        return limit;
    }
    for (;;) {
        int own = read_limit(group);
        limit = own < limit ? own : limit;
        if (strlen(group) <= root_length) {
            return limit;
        }
        *strrchr(group, '/') = '\0';
    }
}

/* Whether a line of /proc/self/cgroup, such as "4:cpu,cpuacct:/a/b" or "0::/a/b", is about processor time. */
static bool has_processor_time(const char *controllers, const char *end)
{
    for (const char *at = controllers; at < end;) {
        size_t length = strcspn(at, ",:");
        if (length == 3 && strncmp(at, "cpu", 3) == 0) {
            return true;
        }
        at += length + 1;
    }
    return controllers == end;
}

/* INT_MAX: no control group limits this process, or the system does not say so. */
static int read_group_limit(void)
{
    static const char *const roots[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"};
    char text[4096];
    int limit = INT_MAX;
    if (!read_file("/proc/self/cgroup", text, sizeof text)) {
        return INT_MAX;
    }
    for (char *line = text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) {
            *next++ = '\0';
        }
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path || !has_processor_time(controllers + 1, path)) {
            continue;
        }
        for (size_t i = 0; i < sizeof roots / sizeof roots[0]; i++) {
            limit = find_lowest_limit(roots[i], path + 1, limit);
        }
    }
    return limit;
}

/* Ranks ------------------------------------------------------------------------------------------------- */

bool processors_suffice(int n_ranks)
{
    return os_n_processors() >= n_ranks && read_group_limit() >= n_ranks;
}

bool processors_suffice_beside(const int32_t *processes, int n_ranks)
{
    struct cores_set own;
    size_t n_words = sizeof own.words / sizeof own.words[0];
    if (os_get_processors(0, own.words, n_words) != 0) {
        return processors_suffice(n_ranks);
    }
    int n_sharing = 0;
    for (int i = 0; i < n_ranks; i++) {
        struct cores_set theirs;
        bool is_known =
            processes[i] != getpid() && os_get_processors(processes[i], theirs.words, n_words) == 0;
        uint64_t common = !is_known;
        for (size_t k = 0; is_known && k < n_words; k++) {
            common |= own.words[k] & theirs.words[k];
        }
        n_sharing += common != 0;
    }
    return cores_set_count(&own) >= n_sharing && read_group_limit() >= n_ranks;
}

/* Running threads --------------------------------------------------------------------------------------- */

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
    return read_file("/proc/loadavg", text, sizeof text) ? processors_parse_running(text) : 0;
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
