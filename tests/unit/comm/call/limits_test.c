/* SPDX-License-Identifier: MIT */
/*
 * Limits of a process: what the library cannot have because of one is an error that names the limit and its value, not a
 * signal and not a riddle, and what was there before goes on working.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/log.h"
#include "shoal/safetensors.h"
#include "shoal/window.h"
#include "shoal/world.h"

#if defined(__SANITIZE_THREAD__)
#define HAS_THREAD_SANITIZER 1
#else
#define HAS_THREAD_SANITIZER 0
#endif

/* Opens worlds, whose servers are threads, in a forked process: the thread sanitizer cannot follow those. */
static void run_in_child(void (*function)(void *), void *context)
{
    if (HAS_THREAD_SANITIZER) {
        test_skip("no threads in forked processes under the thread sanitizer");
        return;
    }
    test_in_child(function, context);
}

static struct rlimit lower_limit(__rlimit_resource_t resource, rlim_t value)
{
    struct rlimit before = {.rlim_cur = 0};
    CHECK(getrlimit(resource, &before) == 0);
    struct rlimit lowered = {.rlim_cur = value, .rlim_max = before.rlim_max};
    CHECK(setrlimit(resource, &lowered) == 0);
    return before;
}

/* The size of files ------------------------------------------------------------------------------------- */

/* This comes first: options are read once per process, and children inherit what was read. */

static void keep_message(void *context, shoal_log_level level, const char *message)
{
    char *kept = context;
    if (strstr(message, "flight record")) {
        (void)snprintf(kept, 512, "%s", message);
    }
}

static void dump_beyond_limit(void *context)
{
    char prefix[] = "/tmp/shoal-limits-XXXXXX";
    REQUIRE(mkdtemp(prefix));
    char setting[64];
    char path[64];
    (void)snprintf(setting, sizeof setting, "%s/record-", prefix);
    (void)snprintf(path, sizeof path, "%s/record-0.json", prefix);
    REQUIRE(setenv("SHOAL_DUMP", setting, 1) == 0);
    struct rank self = {.rank = 0, .n_ranks = 1};
    shoal_world *world = rank_world_open(&self, 0);
    REQUIRE(world != NULL);
    static char message[512];
    shoal_log_set(keep_message, message, SHOAL_LOG_ERROR);
    struct rlimit before = lower_limit(RLIMIT_FSIZE, 20);
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_abort(group, "for the record"));
    CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_CANCELLED);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(strstr(message, "RLIMIT_FSIZE of process ") != NULL);
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
    CHECK_OK(shoal_world_close(world));
    CHECK(unlink(path) == 0);
    CHECK(rmdir(prefix) == 0);
}

TEST(a_flight_record_beyond_the_size_of_files)
{
    run_in_child(dump_beyond_limit, NULL);
}

/* Several pages, so that a limit below a page and one beyond it can be too small. */
#define SOME_BYTES 100000

static void check_refused(shoal_group *group, const char *limit)
{
    shoal_symmetric *symmetric = NULL;
    shoal_window *window = NULL;
    CHECK_STATUS(shoal_symmetric_create(group, SOME_BYTES, &symmetric), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT(limit);
    CHECK_STATUS(shoal_window_create(group, SOME_BYTES, &window), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT(limit);
    CHECK(symmetric == NULL);
    CHECK(window == NULL);
}

static void open_alone(void *context)
{
    const rlim_t *value = context;
    char limit[64];
    struct rlimit before = lower_limit(RLIMIT_FSIZE, *value);
    (void)snprintf(limit, sizeof limit, "(RLIMIT_FSIZE of process %d is %d bytes)", (int)getpid(),
                   (int)*value);
    struct rank self = {.rank = 0, .n_ranks = 1};
    struct rank_key key = rank_key(&self, 0);
    shoal_world_options options = rank_world_options(&self, &key);
    shoal_world *world = NULL;
    CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT(limit);
    CHECK_ERROR_TEXT("shared memory \"world\" of ");
    CHECK(world == NULL);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK_OK(shoal_world_open(&options, &world));
    CHECK_OK(shoal_world_close(world));
}

TEST(a_world_beyond_the_size_of_files)
{
    for (rlim_t value = 0; value <= 100; value += 100) {
        run_in_child(open_alone, &value);
    }
}

/* All ranks ask under a limit that is gone afterwards, on every rank. */
static void ask_under_limit(struct rank *self, shoal_group *group, rlim_t value)
{
    char limit[64];
    struct rlimit before;
    (void)snprintf(limit, sizeof limit, "is %d bytes)", (int)value);
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    test_barrier(self);
    (void)lower_limit(RLIMIT_FSIZE, value);
    test_barrier(self);
    check_refused(group, limit);
    test_barrier(self);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    test_barrier(self);
}

TEST_RANKS(memory_beyond_the_size_of_files, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    /* Before the first call it is the group's own memory that is refused. */
    ask_under_limit(self, group, 10);
    CHECK_ERROR_TEXT("\"slots of group world\"");
    CHECK_OK(shoal_group_barrier(group));
    ask_under_limit(self, group, 10);
    CHECK_ERROR_TEXT("window/");
    ask_under_limit(self, group, SOME_BYTES / 2);
    shoal_symmetric *symmetric = NULL;
    CHECK_OK(shoal_symmetric_create(group, SOME_BYTES, &symmetric));
    shoal_symmetric_free(symmetric);
    CHECK_OK(shoal_group_barrier(group));
    CHECK_OK(shoal_world_close(world));
}

/* Descriptors ------------------------------------------------------------------------------------------- */

#define MAX_FILES 64

/* So many descriptors more, and none beyond. Returns the limit that was. */
static struct rlimit leave_descriptors(int n_left)
{
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK(next >= 0);
    (void)close(next);
    return lower_limit(RLIMIT_NOFILE, (rlim_t)(next + n_left));
}

/* Files until there are no descriptors left; with their number. */
static int use_descriptors(int files[MAX_FILES])
{
    int n_files = 0;
    while (n_files < MAX_FILES && (files[n_files] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) {
        n_files++;
    }
    CHECK(n_files < MAX_FILES && errno == EMFILE);
    return n_files;
}

static void close_files(const int *files, int n_files)
{
    for (int i = 0; i < n_files; i++) {
        (void)close(files[i]);
    }
}

static void open_with_few(void *context)
{
    double startup_s = 2 * test_time_scale();
    struct rank self = {.rank = 0, .n_ranks = 2};
    struct rank_key key = rank_key(&self, 0);
    shoal_world_options options = rank_world_options(&self, &key);
    options.startup_timeout_s = startup_s;
    shoal_world *world = NULL;
    shoal_status status = SHOAL_ERR_SYSTEM;
    int n_left = 0;
    for (; status == SHOAL_ERR_SYSTEM && n_left < 32; n_left++) {
        struct rlimit before = leave_descriptors(n_left);
        status = shoal_world_open(&options, &world);
        CHECK(world == NULL);
        if (status == SHOAL_ERR_SYSTEM) {
            CHECK_ERROR_TEXT("Too many open files (RLIMIT_NOFILE of process ");
        }
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    }
    /* With enough it is the other rank that is missing. */
    CHECK_STATUS(status, SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("rank 1");
    CHECK(n_left > 5);
}

/* Whatever it is that lacks a descriptor on the way: files of /proc, sockets, memory, what comes through a socket. */
TEST(a_first_rank_without_descriptors)
{
    run_in_child(open_with_few, NULL);
}

TEST_PROCESSES(a_second_rank_without_descriptors, 2)
{
    bool *is_open = self->shared;
    /* With fewer it gets no further than the first rank, and nobody hears of it. */
    for (int n_left = 4; n_left < 32 && !*is_open; n_left++) {
        struct rank_key key = rank_key(self, n_left);
        shoal_world_options options = rank_world_options(self, &key);
        shoal_world *world = NULL;
        if (self->rank == 0) {
            if (shoal_world_open(&options, &world) != SHOAL_OK) {
                CHECK_ERROR_TEXT("rank 1 (process ");
                CHECK_ERROR_TEXT("Too many open files (RLIMIT_NOFILE of process ");
            }
        } else {
            struct rlimit before = leave_descriptors(n_left);
            shoal_status status = shoal_world_open(&options, &world);
            if (status != SHOAL_OK) {
                CHECK_STATUS(status, SHOAL_ERR_SYSTEM);
                CHECK_ERROR_TEXT("Too many open files (RLIMIT_NOFILE of process ");
            }
            CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
            *is_open = status == SHOAL_OK;
            CHECK(!*is_open || n_left > 4);
        }
        test_barrier(self);
        CHECK((world != NULL) == *is_open);
        if (world) {
            CHECK_OK(shoal_world_close(world));
        }
        test_barrier(self);
    }
    CHECK(*is_open);
}

/*
 * Rank 1 has no descriptors left when rank 0 asks it for the memory of their group: rank 0 must hear whose fault it is, long
 * before its deadline. Their group has failed, which rank 1 hears or, if its server could not take the message, finds out at
 * its own deadline. Other groups work once there are some.
 */
TEST_PROCESSES(who_can_not_be_asked_says_why, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = NULL;
    int files[MAX_FILES];
    int n_files = 0;
    const int ranks[2] = {1, 0};
    CHECK_OK(shoal_group_create(world, ranks, 2, NULL, &group));
    test_barrier(self);
    if (self->rank == 1) {
        struct rlimit before = leave_descriptors(20);
        n_files = use_descriptors(files);
        test_barrier(self);
        /* Rank 0 asks. */
        test_barrier(self);
        close_files(files, n_files);
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
        test_barrier(self);
    } else {
        test_barrier(self);
        CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_SYSTEM);
        CHECK_ERROR_TEXT("the server thread of rank 1 cannot accept a connection: accept: Too many open "
                         "files (RLIMIT_NOFILE of process ");
        test_barrier(self);
        test_barrier(self);
    }
    CHECK_OK(shoal_group_set_timeout(group, 0.5 * test_time_scale()));
    shoal_status status = shoal_group_barrier(group);
    CHECK(status == SHOAL_ERR_SYSTEM || (status == SHOAL_ERR_TIMEOUT && self->rank == 1));
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* Rank 1 has none left to connect, nor to say so. It does when it has some again and finds the group failed. */
TEST_PROCESSES(who_could_not_tell_tells_later, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = NULL;
    const int ranks[2] = {0, 1};
    CHECK_OK(shoal_group_create(world, ranks, 2, "new", &group));
    test_barrier(self);
    if (self->rank == 1) {
        struct rlimit before = leave_descriptors(0);
        CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_SYSTEM);
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    }
    CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("Too many open files");
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* A rank that has none gets none for memory that others have made. */
TEST_PROCESSES(memory_without_descriptors, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_barrier(group));
    test_barrier(self);
    shoal_symmetric *symmetric = NULL;
    struct rlimit before;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    if (self->rank == 1) {
        (void)leave_descriptors(0);
    }
    shoal_status status = shoal_symmetric_create(group, 10000, &symmetric);
    CHECK_STATUS(status, SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("Too many open files (RLIMIT_NOFILE of process ");
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    test_barrier(self);
    CHECK_OK(shoal_symmetric_create(group, 10000, &symmetric));
    shoal_symmetric_free(symmetric);
    CHECK_OK(shoal_world_close(world));
}

static void open_file(void *context)
{
    shoal_safetensors *file = NULL;
    struct rlimit before = leave_descriptors(0);
    CHECK_STATUS(shoal_safetensors_open("/proc/self/exe", &file), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("/proc/self/exe: Too many open files (RLIMIT_NOFILE of process ");
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST(files_without_descriptors)
{
    test_in_child(open_file, NULL);
}
