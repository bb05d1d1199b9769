/* SPDX-License-Identifier: MIT */
/* How much is left of the machine's memory and of the limits on this process. */
#include "base/free_memory.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/control_groups.h"
#include "base/os/os.h"

#define FILE_BYTES 8192

/* Where a version of control groups says things. */
struct group_version {
    const char *limit_file;
    const char *usage_file;
    const char *cache_name; /* in memory.stat: pages that files stand behind, and those that none does */
    const char *shared_name;
};

static const struct group_version versions[] = {
    {.limit_file = "memory.max",
     .usage_file = "memory.current",
     .cache_name = "file ",
     .shared_name = "shmem "},
    {.limit_file = "memory.limit_in_bytes",
     .usage_file = "memory.usage_in_bytes",
     .cache_name = "total_cache ",
     .shared_name = "total_shmem "},
};

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

/* What one group's limit leaves: the cache of files counts as used, but gives way. */
static uint64_t left_of_group(const struct group_version *version, const char *group)
{
    char text[FILE_BYTES];
    uint64_t limit;
    uint64_t usage;
    if (!control_groups_read(group, version->limit_file, text, sizeof text) || !parse_number(text, &limit) ||
        !control_groups_read(group, version->usage_file, text, sizeof text) || !parse_number(text, &usage)) {
        return UINT64_MAX;
    }
    if (control_groups_read(group, "memory.stat", text, sizeof text)) {
        uint64_t cache = find_number(text, version->cache_name);
        uint64_t shared = find_number(text, version->shared_name);
        uint64_t reclaimable = cache > shared ? cache - shared : 0;
        usage = usage > reclaimable ? usage - reclaimable : 0;
    }
    return limit > usage ? limit - usage : 0;
}

static void take_least(void *context, const char *group)
{
    uint64_t *left = context;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        uint64_t here = left_of_group(&versions[i], group);
        *left = here < *left ? here : *left;
    }
}

uint64_t free_memory_bytes(void)
{
    char text[FILE_BYTES];
    uint64_t left = UINT64_MAX;
    if (os_read_text("/proc/meminfo", text, sizeof text)) {
        uint64_t kib = find_number(text, "MemAvailable:");
        left = kib > 0 ? kib * 1024 : UINT64_MAX;
    }
    control_groups_walk("memory", take_least, &left);
    return left == UINT64_MAX ? left : left - left / 16;
}
