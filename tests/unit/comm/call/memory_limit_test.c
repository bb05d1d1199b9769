/* SPDX-License-Identifier: MIT */
/*
 * Shared memory in a control group with a limit. Pages are committed when memory is made, so that too much is refused by an
 * error then: what was given can be written to the last byte, without SIGBUS and without the OOM killer.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/window.h"
#include "shoal/world.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define HAS_SANITIZER 1
#else
#define HAS_SANITIZER 0
#endif

#define MIB ((size_t)1 << 20)
#define LIMIT_BYTES (192 * MIB)
#define PIECE_BYTES (16 * MIB)
#define MOST_PIECES 16 /* more than the limit allows */

/* A group below this process's own, in which a limit can be set. */
struct control_group {
    char path[2048];
    const char *limit_file;
};

static bool write_text(const char *folder, const char *name, const char *text)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    if (!file) {
        return false;
    }
    bool is_written = fputs(text, file) >= 0;
    return fclose(file) == 0 && is_written;
}

/* The rest of the line of /proc/self/cgroup that has `mark` in it. */
static bool find_own(const char *mark, char *path, size_t bytes)
{
    char line[1024];
    bool is_found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && !is_found && fgets(line, sizeof line, file)) {
        char *at = strstr(line, mark);
        is_found = at != NULL;
        if (is_found) {
            line[strcspn(line, "\n")] = '\0';
            (void)snprintf(path, bytes, "%s", at + strlen(mark));
        }
    }
    if (file) {
        (void)fclose(file);
    }
    return is_found;
}

static bool make_group(const char *root, const char *mark, const char *limit_file,
                       struct control_group *group)
{
    char own[1024];
    char limit[64];
    if (!find_own(mark, own, sizeof own)) {
        return false;
    }
    (void)snprintf(group->path, sizeof group->path, "%s%s/shoal-test-%d", root, own, (int)getpid());
    group->limit_file = limit_file;
    (void)snprintf(limit, sizeof limit, "%zu", LIMIT_BYTES);
    if (mkdir(group->path, 0755) != 0) {
        return false;
    }
    if (!write_text(group->path, limit_file, limit)) {
        (void)rmdir(group->path);
        return false;
    }
    return true;
}

/* Both versions of control groups, as sharedmem/free_memory.c knows them. */
static bool make_any_group(struct control_group *group)
{
    return make_group("/sys/fs/cgroup/memory", ":memory:", "memory.limit_in_bytes", group) ||
           make_group("/sys/fs/cgroup", "0::", "memory.max", group);
}

static size_t take_pieces(shoal_group *group, shoal_symmetric *pieces[MOST_PIECES])
{
    size_t n_pieces = 0;
    shoal_status status = SHOAL_OK;
    while (status == SHOAL_OK && n_pieces < MOST_PIECES) {
        status = shoal_symmetric_create(group, PIECE_BYTES, &pieces[n_pieces]);
        if (status == SHOAL_OK) {
            memset(shoal_symmetric_data(pieces[n_pieces]), 1, PIECE_BYTES);
            n_pieces++;
        }
    }
    CHECK_STATUS(status, SHOAL_ERR_NO_MEMORY);
    CHECK(strstr(shoal_error_text(), "shared memory") && strstr(shoal_error_text(), "GiB are free"));
    return n_pieces;
}

/* One block that grows by pieces, with addresses for more than the limit allows. */
static void grow_by_pieces(shoal_group *group)
{
    shoal_symmetric *memory = NULL;
    size_t bytes = 0;
    REQUIRE_OK(shoal_symmetric_reserve(group, 0, 64 * LIMIT_BYTES, &memory));
    shoal_status status = SHOAL_OK;
    while (status == SHOAL_OK && bytes < MOST_PIECES * PIECE_BYTES) {
        status = shoal_symmetric_grow(group, memory, bytes + PIECE_BYTES);
        if (status == SHOAL_OK) {
            memset((char *)shoal_symmetric_data(memory) + bytes, 1, PIECE_BYTES);
            bytes += PIECE_BYTES;
        }
    }
    CHECK_STATUS(status, SHOAL_ERR_NO_MEMORY);
    CHECK(strstr(shoal_error_text(), "shared memory") && strstr(shoal_error_text(), "GiB are free"));
    CHECK(bytes >= 4 * PIECE_BYTES);
    CHECK_INT(shoal_symmetric_bytes(memory), bytes);
    shoal_symmetric_free(memory);
}

static void fill_the_group(void *context)
{
    const struct control_group *group = context;
    char number[32];
    struct rank self = {.rank = 0, .n_ranks = 1};
    shoal_symmetric *pieces[MOST_PIECES];
    shoal_symmetric *whole = NULL;
    (void)snprintf(number, sizeof number, "%d", (int)getpid());
    REQUIRE(write_text(group->path, "cgroup.procs", number));
    shoal_world *world = rank_world_open(&self, 0);
    REQUIRE(world);
    shoal_group *all = shoal_world_group(world);
    CHECK_STATUS(shoal_symmetric_create(all, 2 * LIMIT_BYTES, &whole), SHOAL_ERR_NO_MEMORY);
    CHECK(strstr(shoal_error_text(), "GiB are free"));
    /* Twice: what is freed can be had again. */
    for (int i = 0; i < 2; i++) {
        size_t n_pieces = take_pieces(all, pieces);
        CHECK(n_pieces >= 4);
        for (size_t k = 0; k < n_pieces; k++) {
            shoal_symmetric_free(pieces[k]);
        }
    }
    grow_by_pieces(all);
    CHECK_OK(shoal_world_close(world));
}

TEST(memory_that_a_control_group_refuses)
{
    struct control_group group;
    if (HAS_SANITIZER) {
        test_skip("what a sanitizer itself takes would not fit");
        return;
    }
    if (!make_any_group(&group)) {
        test_skip("no control group for memory can be made below this process's own");
        return;
    }
    test_in_child(fill_the_group, &group);
    CHECK(rmdir(group.path) == 0);
}
