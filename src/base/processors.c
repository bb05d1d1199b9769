/* SPDX-License-Identifier: MIT */
/*
 * How many processors ranks may use: those they are bound to, less what control groups take away. And how busy the
 * processors are, from /proc/loadavg: in "0.20 0.18 0.12 3/346 2165", 3 threads are running or could run.
 */
#include "base/processors.h"

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/control_groups.h"
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

/* The limit of one group; of version 2, or of version 1. */
static int read_limit(const char *group)
{
    char text[64];
    char period[64];
    if (control_groups_read(group, "cpu.max", text, sizeof text)) {
        return processors_parse_limit(text);
    }
    bool is_old = control_groups_read(group, "cpu.cfs_quota_us", text, sizeof text) &&
                  control_groups_read(group, "cpu.cfs_period_us", period, sizeof period);
    return is_old ? processors_parse_old_limit(text, period) : INT_MAX;
}

static void take_lowest(void *context, const char *group)
{
    int *limit = context;
    int own = read_limit(group);
    *limit = own < *limit ? own : *limit;
}

/* Returns INT_MAX if no control group limits this process, or the system does not say so. */
static int read_group_limit(void)
{
    int limit = INT_MAX;
    control_groups_walk("cpu", take_lowest, &limit);
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
    return os_read_text("/proc/loadavg", text, sizeof text) ? processors_parse_running(text) : 0;
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
