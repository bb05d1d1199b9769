/* SPDX-License-Identifier: MIT */
/*
 * Finds the shared memory that this process holds, as the kernel sees it: descriptors in /proc/self/fd and mappings in
 * /proc/self/maps of memory that the library named "shoal:..."; windows are named "shoal:window/...". The benchmark
 * does not rely on what the library reports about itself.
 */
#include "bench/fsdp.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_PREFIX "/memfd:shoal:"

struct list {
    char name[64];
    struct bench_fsdp_segment *segments;
    size_t n;
    size_t capacity;
};

/* Mapped twice, or mapped and open, it is still one. */
static void add(struct list *list, ino_t inode, size_t bytes)
{
    for (size_t i = 0; i < list->n; i++) {
        if (list->segments[i].inode == inode) {
            return;
        }
    }
    if (list->n < list->capacity) {
        list->segments[list->n++] = (struct bench_fsdp_segment){.inode = inode, .bytes = bytes};
    }
}

static void add_open(struct list *list)
{
    DIR *folder = opendir("/proc/self/fd");
    const struct dirent *entry;
    while (folder && (entry = readdir(folder)) != NULL) {
        char path[sizeof("/proc/self/fd/") + sizeof(entry->d_name)];
        char target[256];
        struct stat about;
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(path, target, sizeof(target) - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strncmp(target, list->name, strlen(list->name)) == 0 && stat(path, &about) == 0) {
            add(list, about.st_ino, (size_t)about.st_size);
        }
    }
    if (folder) {
        (void)closedir(folder);
    }
}

/* "begin-end rights offset device inode path": a mapping is of the whole. */
static void add_mapped(struct list *list)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof(line), maps)) {
        uint64_t begin;
        uint64_t end;
        uint64_t inode;
        const char *name = strstr(line, list->name);
        if (name && sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %" SCNu64, &begin, &end, &inode) == 3) {
            add(list, (ino_t)inode, (size_t)(end - begin));
        }
    }
    if (maps) {
        (void)fclose(maps);
    }
}

size_t bench_fsdp_find_segments(const char *name, struct bench_fsdp_segment *segments_out, size_t capacity)
{
    struct list list = {.segments = segments_out, .capacity = capacity};
    (void)snprintf(list.name, sizeof(list.name), NAME_PREFIX "%s", name);
    add_open(&list);
    add_mapped(&list);
    return list.n;
}
