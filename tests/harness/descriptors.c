/* SPDX-License-Identifier: MIT */
/*
 * Open descriptors: each test must end with those it began with. They are named by what they lead to, so that a
 * number that was closed and opened again is no leak, and one that was kept says what it is.
 */
#include "harness/harness.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/test.h"

/* More open ones than this are not looked at. */
#define DESCRIPTORS_MAX 4096
#define NAME_BYTES 128

static unsigned char was_open[DESCRIPTORS_MAX];
static size_t n_at_begin;

/* Calls `visit` for every open descriptor except the one this needs itself; returns how many. */
static size_t visit_descriptors(void (*visit)(int descriptor))
{
    DIR *folder = opendir("/proc/self/fd");
    size_t count = 0;
    if (!folder) {
        return 0;
    }
    for (struct dirent *entry; (entry = readdir(folder));) {
        char *end;
        long descriptor = strtol(entry->d_name, &end, 10);
        if (end == entry->d_name || descriptor == dirfd(folder)) {
            continue;
        }
        count++;
        if (visit) {
            visit((int)descriptor);
        }
    }
    (void)closedir(folder);
    return count;
}

size_t test_open_descriptors(void)
{
    return visit_descriptors(NULL);
}

static void note(int descriptor)
{
    if (descriptor < DESCRIPTORS_MAX) {
        was_open[descriptor] = 1;
    }
}

static void name_new_one(int descriptor)
{
    if (descriptor >= DESCRIPTORS_MAX || was_open[descriptor]) {
        return;
    }
    char path[64];
    char name[NAME_BYTES];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    ssize_t bytes = readlink(path, name, sizeof name - 1);
    name[bytes > 0 ? bytes : 0] = '\0';
    test_failed(__FILE__, __LINE__, "descriptor %d was left open: %s", descriptor, name);
}

void harness_descriptors_begin(void)
{
    memset(was_open, 0, sizeof was_open);
    n_at_begin = visit_descriptors(note);
}

void harness_descriptors_end(void)
{
    size_t n_now = test_open_descriptors();
    if (n_now > n_at_begin) {
        (void)visit_descriptors(name_new_one);
    } else if (n_now < n_at_begin) {
        test_failed(__FILE__, __LINE__, "%zu descriptors were closed that this test had not opened",
                    n_at_begin - n_now);
    }
}
