/* SPDX-License-Identifier: MIT */
/*
 * How much is left of the machine's memory and of the limits on this process. Control groups of both versions are read,
 * from the process's own group up to the root, because any of them may have a limit.
 */
#include "base/free_memory.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES 8192
#define PATH_BYTES 1024

/* Where a version of control groups says things. */
struct group_version {
    const char *line; /* what stands before the path in /proc/self/cgroup */
    const char *root;
    const char *limit_file;
    const char *usage_file;
    const char *cache_name; /* in memory.stat: pages that files stand behind, and those that none does */
    const char *shared_name;
};

static const struct group_version versions[] = {
    {.line = "0::",
     .root = "/sys/fs/cgroup",
     .limit_file = "memory.max",
     .usage_file = "memory.current",
     .cache_name = "file ",
     .shared_name = "shmem "},
    {.line = ":memory:",
     .root = "/sys/fs/cgroup/memory",
     .limit_file = "memory.limit_in_bytes",
     .usage_file = "memory.usage_in_bytes",
     .cache_name = "total_cache ",
     .shared_name = "total_shmem "},
};

/* As much of a file as fits, ended; false when there is none. */
static bool read_text(const char *path, char text[FILE_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t bytes = read(fd, text, FILE_BYTES - 1);
    (void)close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    return bytes > 0;
}

/* The digits at the beginning of a text, after spaces; false when there are none ("max"). */
static bool parse_number(const char *text, uint64_t *number_out)
{
    while (*text == ' ') {
        text++;
    }
    if (*text < '0' || *text > '9') {
        return false;
    }
    uint64_t number = 0;
    for (; *text >= '0' && *text <= '9'; text++) {
        number = number * 10 + (uint64_t)(*text - '0');
    }
    *number_out = number;
    return true;
}

/* The number after a name that begins a line; 0 when there is none. */
static uint64_t find_number(const char *text, const char *name)
{
    uint64_t number = 0;
    for (const char *at = text; (at = strstr(at, name)) != NULL; at += strlen(name)) {
        if (at == text || at[-1] == '\n') {
            (void)parse_number(at + strlen(name), &number);
            return number;
        }
    }
    return 0;
}

static bool read_group_file(const struct group_version *version, const char *group, const char *name,
                            char text[FILE_BYTES])
{
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s%s/%s", version->root, group, name);
    return length > 0 && (size_t)length < sizeof path && read_text(path, text);
}

/* What one group's limit leaves: the cache of files counts as used, but gives way. */
static uint64_t left_of_group(const struct group_version *version, const char *group)
{
    char text[FILE_BYTES];
    uint64_t limit;
    uint64_t usage;
    if (!read_group_file(version, group, version->limit_file, text) || !parse_number(text, &limit) ||
        !read_group_file(version, group, version->usage_file, text) || !parse_number(text, &usage)) {
        return UINT64_MAX;
    }
    if (read_group_file(version, group, "memory.stat", text)) {
        uint64_t cache = find_number(text, version->cache_name);
        uint64_t shared = find_number(text, version->shared_name);
        uint64_t reclaimable = cache > shared ? cache - shared : 0;
        usage = usage > reclaimable ? usage - reclaimable : 0;
    }
    return limit > usage ? limit - usage : 0;
}

/* The path of this process's group: the rest of the line that has `version->line` in it. */
static bool find_group(const struct group_version *version, char group[FILE_BYTES])
{
    char text[FILE_BYTES];
    if (!read_text("/proc/self/cgroup", text)) {
        return false;
    }
    const char *line = strstr(text, version->line);
    if (!line) {
        return false;
    }
    line += strlen(version->line);
    size_t length = strcspn(line, "\n");
    memcpy(group, line, length);
    group[length] = '\0';
    return true;
}

static uint64_t left_of_groups(const struct group_version *version)
{
    char group[FILE_BYTES];
    if (!find_group(version, group)) {
        return UINT64_MAX;
    }
    uint64_t left = UINT64_MAX;
    for (;;) {
        char *last = strrchr(group, '/');
        if (last && last[1] == '\0') {
            *last = '\0';
        }
        uint64_t here = left_of_group(version, group);
        left = here < left ? here : left;
        last = strrchr(group, '/');
        if (!last) {
            return left;
        }
        *last = '\0';
    }
}

uint64_t free_memory_bytes(void)
{
    char text[FILE_BYTES];
    uint64_t left = UINT64_MAX;
    if (read_text("/proc/meminfo", text)) {
        uint64_t kib = find_number(text, "MemAvailable:");
        left = kib > 0 ? kib * 1024 : UINT64_MAX;
    }
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        uint64_t here = left_of_groups(&versions[i]);
        left = here < left ? here : left;
    }
    return left == UINT64_MAX ? left : left - left / 16;
}
