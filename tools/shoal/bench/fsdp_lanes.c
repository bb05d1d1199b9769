/* SPDX-License-Identifier: MIT */
/* How much processor time the lanes' threads of this process have taken, as the kernel counts it in /proc/self/task. */
#include "bench/fsdp.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#define LANE_NAME "shoal-lane\n"

/* One line of a thread's file; false when there is none: threads come and go. */
static bool read_line(const char *thread, const char *file, char *line, int bytes)
{
    char path[300];
    (void)snprintf(path, sizeof(path), "/proc/self/task/%s/%s", thread, file);
    FILE *stream = fopen(path, "r");
    bool is_read = stream && fgets(line, bytes, stream);
    if (stream) {
        (void)fclose(stream);
    }
    return is_read;
}

int64_t bench_fsdp_lanes_ns(void)
{
    int64_t sum = 0;
    DIR *folder = opendir("/proc/self/task");
    const struct dirent *entry;
    while (folder && (entry = readdir(folder)) != NULL) {
        char line[128];
        long long time_ns;
        if (entry->d_name[0] != '.' && read_line(entry->d_name, "comm", line, sizeof(line)) &&
            strcmp(line, LANE_NAME) == 0 && read_line(entry->d_name, "schedstat", line, sizeof(line)) &&
            sscanf(line, "%lld", &time_ns) == 1) {
            sum += time_ns;
        }
    }
    if (folder) {
        (void)closedir(folder);
    }
    return sum;
}
