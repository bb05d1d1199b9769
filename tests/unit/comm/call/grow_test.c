/* SPDX-License-Identifier: MIT */
/* Symmetric memory that grows: addresses and contents stay, pages come with each growth, and what is refused changes nothing. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixtures/rank_world.h"
#include "fixtures/world_allocations.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/window.h"
#include "shoal/work.h"

#if defined(__SANITIZE_THREAD__)
#define HAS_THREAD_SANITIZER 1
#else
#define HAS_THREAD_SANITIZER 0
#endif

#define RESERVE_BYTES ((size_t)8 << 20)

static unsigned char byte_of(int rank, size_t i)
{
    return (unsigned char)(1 + (size_t)rank * 31 + i % 101);
}

static bool is_filled(const unsigned char *block, int rank, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        if (block[i] != byte_of(rank, i)) {
            return false;
        }
    }
    return true;
}

static bool is_zero(const unsigned char *block, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        if (block[i] != 0) {
            return false;
        }
    }
    return true;
}

/* Checks all blocks up to `old`, and the rest of them, which is new; fills this rank's. Collective. */
static void check_blocks(shoal_group *group, shoal_symmetric *symmetric, size_t old, size_t bytes)
{
    int rank = shoal_group_rank(group);
    unsigned char *own = shoal_symmetric_data(symmetric);
    CHECK_INT(shoal_symmetric_bytes(symmetric), bytes);
    for (int peer = 0; peer < shoal_group_n_ranks(group); peer++) {
        const unsigned char *block = shoal_symmetric_peer(symmetric, peer);
        CHECK(is_filled(block, peer, 0, old) && is_zero(block, old, bytes));
    }
    CHECK_OK(shoal_group_barrier(group));
    for (size_t i = old; i < bytes; i++) {
        own[i] = byte_of(rank, i);
    }
    CHECK_OK(shoal_group_barrier(group));
}

/* The sum of what lies at the end of all blocks, which is new: collectives find it at the peers. */
static void check_sum(shoal_group *group, shoal_symmetric *symmetric, size_t bytes)
{
    const size_t count = bytes / 2 / sizeof(float);
    int n_ranks = shoal_group_n_ranks(group);
    float *data = (float *)((char *)shoal_symmetric_data(symmetric) + bytes - count * sizeof(float));
    for (size_t i = 0; i < count; i++) {
        data[i] = (float)((shoal_group_rank(group) + 1) * (int)(i % 100));
    }
    CHECK_OK(shoal_group_all_reduce(group, data, data, count, SHOAL_F32, SHOAL_SUM));
    for (size_t i = 0; i < count; i++) {
        if (data[i] != (float)(n_ranks * (n_ranks + 1) / 2 * (int)(i % 100))) {
            CHECK_INT(data[i], n_ranks * (n_ranks + 1) / 2 * (int)(i % 100));
            return;
        }
    }
}

static void grow_group(shoal_group *group)
{
    /* Within a page, over its end, by nothing, and to all that was reserved. */
    static const size_t sizes[] = {100, 4097, 4097, 300000, RESERVE_BYTES};
    shoal_symmetric *symmetric = NULL;
    size_t bytes = 5;
    REQUIRE_OK(shoal_symmetric_reserve(group, bytes, RESERVE_BYTES, &symmetric));
    const void *own = shoal_symmetric_data(symmetric);
    const void *last = shoal_symmetric_peer(symmetric, shoal_group_n_ranks(group) - 1);
    check_blocks(group, symmetric, 0, bytes);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CHECK_OK(shoal_symmetric_grow(group, symmetric, sizes[i]));
        CHECK(shoal_symmetric_data(symmetric) == own);
        CHECK(shoal_symmetric_peer(symmetric, shoal_group_n_ranks(group) - 1) == last);
        check_blocks(group, symmetric, bytes, sizes[i]);
        bytes = sizes[i];
    }
    check_sum(group, symmetric, bytes);
    CHECK_OK(shoal_group_barrier(group));
    shoal_symmetric_free(symmetric);
}

static void grow_world(struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    grow_group(shoal_world_group(world));
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(one_rank_grows, 1)
{
    grow_world(self);
}

TEST_RANKS(two_ranks_grow, 2)
{
    grow_world(self);
}

TEST_RANKS(four_ranks_grow, 4)
{
    grow_world(self);
}

/* Blocks are numbered by the group that the memory was made for; another group of the same ranks lets it grow. */
TEST_RANKS(other_groups, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *all = shoal_world_group(world);
    shoal_group *turned = NULL;
    shoal_group *pair = NULL;
    shoal_symmetric *symmetric = NULL;
    REQUIRE_OK(shoal_group_create(world, (const int[]){2, 0, 1}, 3, "turned", &turned));
    REQUIRE_OK(shoal_symmetric_reserve(all, 10, 100000, &symmetric));
    check_blocks(all, symmetric, 0, 10);
    CHECK_OK(shoal_symmetric_grow(turned, symmetric, 50000));
    check_blocks(all, symmetric, 10, 50000);
    CHECK_OK(shoal_symmetric_grow(all, symmetric, 100000));
    if (self->rank < 2) {
        REQUIRE_OK(shoal_group_create(world, (const int[]){0, 1}, 2, "pair", &pair));
        CHECK_STATUS(shoal_symmetric_grow(pair, symmetric, 100000), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("symmetric_grow: group ");
        CHECK_ERROR_TEXT("does not have the ranks that have blocks");
    }
    CHECK_OK(shoal_world_close(world));
}

TEST(without_peers)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 16, .rank = 3, .key = "fake", .transport = "fake"};
    shoal_world *world = NULL;
    shoal_symmetric *symmetric = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_group *group = shoal_world_group(world);
    REQUIRE_OK(shoal_symmetric_reserve(group, 10, 100000, &symmetric));
    unsigned char *own = shoal_symmetric_data(symmetric);
    CHECK(shoal_symmetric_peer(symmetric, 15) == own);
    memset(own, 7, 10);
    CHECK_OK(shoal_symmetric_grow(group, symmetric, 100000));
    CHECK(shoal_symmetric_data(symmetric) == own && own[9] == 7 && is_zero(own, 10, 100000));
    memset(own, 7, 100000);
    CHECK_STATUS(shoal_symmetric_grow(group, symmetric, 100001), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("symmetric_grow: 100001 bytes are more than the 100000 that were reserved");
    CHECK_STATUS(shoal_symmetric_grow(group, symmetric, 99999), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_symmetric_reserve(group, 2, 1, &symmetric), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_symmetric_reserve(group, 2, SIZE_MAX, &symmetric), SHOAL_ERR_NO_MEMORY);
    CHECK_OK(shoal_world_close(world));
}

/* Pages --------------------------------------------------------------------------------------------------- */

/* Whether the descriptor is of memory that grows. */
static bool is_growing(int fd)
{
    char path[64];
    char target[64] = "";
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return readlink(path, target, sizeof target - 1) > 0 && strstr(target, "memfd:shoal:growing") != NULL;
}

/* How many pages of such memory of this process have been committed. Asked by the path: the server may close its own
   descriptor meanwhile. */
static int64_t count_committed(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        char path[64];
        struct stat found;
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (is_growing(fd) && stat(path, &found) == 0) {
            return (int64_t)found.st_blocks * 512 / sysconf(_SC_PAGESIZE);
        }
    }
    return -1;
}

TEST_RANKS(pages_come_with_growth, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    shoal_symmetric *symmetric = NULL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    REQUIRE_OK(shoal_symmetric_reserve(group, 3 * page, 200 * page, &symmetric));
    CHECK_INT(count_committed(), 2 * 3);
    test_barrier(self);
    CHECK_OK(shoal_symmetric_grow(group, symmetric, 5 * page + 1));
    CHECK_INT(count_committed(), 2 * 6);
    test_barrier(self);
    /* What is refused takes no pages, also if it is one rank that refuses it, and another one had taken them. */
    CHECK_STATUS(shoal_symmetric_grow(group, symmetric, 201 * page), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_symmetric_grow(group, symmetric, (100 + (size_t)self->rank) * page),
                 SHOAL_ERR_INVALID);
    shoal_work *work = NULL;
    if (self->rank == 1) {
        CHECK_OK(shoal_group_barrier_start(group, &work));
    } else {
        CHECK_OK(shoal_group_barrier(group));
    }
    CHECK_STATUS(shoal_symmetric_grow(group, symmetric, 100 * page), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("symmetric_grow: rank 1: ");
    if (work) {
        CHECK_OK(shoal_work_wait(work, -1));
        shoal_work_free(work);
    }
    test_barrier(self);
    CHECK_INT(count_committed(), 2 * 6);
    test_barrier(self);
    CHECK_OK(shoal_symmetric_grow(group, symmetric, 200 * page));
    CHECK_INT(count_committed(), 2 * 200);
    CHECK_OK(shoal_world_close(world));
}

/* Refused ------------------------------------------------------------------------------------------------- */

#define CHECK_REFUSED(call, status, text) \
    do {                                  \
        CHECK_STATUS(call, status);       \
        CHECK_ERROR_TEXT(text);           \
    } while (0)

TEST_RANKS(sizes_that_are_refused, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    shoal_symmetric *symmetric = NULL;
    shoal_symmetric *fixed = NULL;
    shoal_symmetric *none = NULL;
    bool deviates = self->rank == 2;
    CHECK_REFUSED(shoal_symmetric_reserve(group, 101, 100, &none), SHOAL_ERR_INVALID,
                  "symmetric_reserve: 101 bytes are more than reserve_bytes, 100");
    CHECK_REFUSED(shoal_symmetric_reserve(group, deviates ? 2 : 1, 100, &none), SHOAL_ERR_INVALID,
                  "symmetric_reserve: rank 0 asked for 1 bytes, rank 2 for 2");
    CHECK_REFUSED(shoal_symmetric_reserve(group, 1, deviates ? 101 : 100, &none), SHOAL_ERR_INVALID,
                  "symmetric_reserve: reserve_bytes is 100 on rank 0, and 101 on rank 2");
    CHECK_REFUSED(shoal_symmetric_reserve(group, 1, SIZE_MAX, &none), SHOAL_ERR_NO_MEMORY,
                  "18446744073709551615 bytes for each of 3 ranks are more than memory can hold");
    CHECK_REFUSED(deviates ? shoal_symmetric_create(group, 1, &none)
                           : shoal_symmetric_reserve(group, 1, 100, &none),
                  SHOAL_ERR_INVALID, "rank 0 called symmetric_reserve, rank 2 called symmetric_create");
    CHECK(none == NULL);

    REQUIRE_OK(shoal_symmetric_reserve(group, 1000, 100000, &symmetric));
    REQUIRE_OK(shoal_symmetric_create(group, 1000, &fixed));
    check_blocks(group, symmetric, 0, 1000);
    CHECK_REFUSED(shoal_symmetric_grow(group, symmetric, 100001), SHOAL_ERR_INVALID,
                  "100001 bytes are more than the 100000 that were reserved");
    CHECK_REFUSED(shoal_symmetric_grow(group, symmetric, 999), SHOAL_ERR_INVALID,
                  "999 bytes are less than the 1000 that a block has");
    CHECK_REFUSED(shoal_symmetric_grow(group, symmetric, deviates ? 3000 : 2000), SHOAL_ERR_INVALID,
                  "symmetric_grow: rank 0 asked for 2000 bytes, rank 2 for 3000");
    CHECK_REFUSED(shoal_symmetric_grow(group, deviates ? fixed : symmetric, 1000), SHOAL_ERR_INVALID,
                  "symmetric_grow: the number of the symmetric memory is ");
    CHECK_REFUSED(deviates ? shoal_symmetric_create(group, 2000, &none)
                           : shoal_symmetric_grow(group, symmetric, 2000),
                  SHOAL_ERR_INVALID, "rank 0 called symmetric_grow, rank 2 called symmetric_create");
    CHECK_REFUSED(shoal_symmetric_grow(group, fixed, 1001), SHOAL_ERR_INVALID,
                  "1001 bytes are more than the 1000 that were reserved");
    CHECK_OK(shoal_symmetric_grow(group, fixed, 1000));
    CHECK_REFUSED(shoal_symmetric_grow(NULL, symmetric, 2000), SHOAL_ERR_INVALID, "group is NULL");
    CHECK_REFUSED(shoal_symmetric_grow(group, NULL, 2000), SHOAL_ERR_INVALID, "symmetric is NULL");
    CHECK_REFUSED(shoal_symmetric_reserve(NULL, 1, 2, &none), SHOAL_ERR_INVALID, "group is NULL");
    CHECK_REFUSED(shoal_symmetric_reserve(group, 1, 2, NULL), SHOAL_ERR_INVALID, "symmetric_out is NULL");
    /* Nothing has changed, and nothing is broken. */
    CHECK_INT(shoal_symmetric_bytes(symmetric), 1000);
    CHECK_OK(shoal_group_error(group));
    CHECK_OK(shoal_symmetric_grow(group, symmetric, 100000));
    check_blocks(group, symmetric, 1000, 100000);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(no_bytes_at_first, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    shoal_symmetric *symmetric = NULL;
    REQUIRE_OK(shoal_symmetric_reserve(group, 0, 9000, &symmetric));
    CHECK_INT(shoal_symmetric_bytes(symmetric), 0);
    CHECK_OK(shoal_symmetric_grow(group, symmetric, 0));
    CHECK_OK(shoal_symmetric_grow(group, symmetric, 9000));
    check_blocks(group, symmetric, 0, 9000);
    CHECK_OK(shoal_world_close(world));
}

/* A small collective that one rank has started ends when that rank asks for it, which it does after the growth. */
TEST_RANKS(work_in_flight, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    shoal_symmetric *symmetric = NULL;
    shoal_work *work = NULL;
    REQUIRE_OK(shoal_symmetric_reserve(group, 4096, 100000, &symmetric));
    float *data = shoal_symmetric_data(symmetric);
    data[0] = 1.0f;
    if (self->rank == 0) {
        CHECK_OK(shoal_group_all_reduce_start(group, data, data, 1, SHOAL_F32, SHOAL_SUM, &work));
    } else {
        CHECK_OK(shoal_group_all_reduce(group, data, data, 1, SHOAL_F32, SHOAL_SUM));
    }
    CHECK_REFUSED(shoal_symmetric_grow(group, symmetric, 50000), SHOAL_ERR_STATE,
                  "symmetric_grow: rank 0: 1 collectives of group ");
    CHECK_INT(shoal_symmetric_bytes(symmetric), 4096);
    if (work) {
        CHECK_OK(shoal_work_wait(work, -1));
        shoal_work_free(work);
    }
    CHECK_DOUBLE((double)data[0], 2.0);
    CHECK_OK(shoal_symmetric_grow(group, symmetric, 50000));
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(more_than_there_is, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    shoal_symmetric *symmetric = NULL;
    const size_t reserve_bytes = (size_t)1 << 44; /* of addresses */
    if (HAS_THREAD_SANITIZER) {
        test_skip("the thread sanitizer does not leave so many addresses");
        CHECK_OK(shoal_world_close(world));
        return;
    }
    REQUIRE_OK(shoal_symmetric_reserve(group, 4096, reserve_bytes, &symmetric));
    check_blocks(group, symmetric, 0, 4096);
    CHECK_STATUS(shoal_symmetric_grow(group, symmetric, reserve_bytes), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT("symmetric_grow: rank 0: shared memory \"symmetric\" of 35184372080640 bytes");
    CHECK_ERROR_TEXT("GiB are free");
    CHECK_INT(shoal_symmetric_bytes(symmetric), 4096);
    CHECK_OK(shoal_symmetric_grow(group, symmetric, 10000));
    check_blocks(group, symmetric, 4096, 10000);
    CHECK_OK(shoal_world_close(world));
}

/* One rank makes an ordinary call instead, with as many bytes as ranks compare: neither takes the other's for its own. */
TEST_RANKS(another_call_of_the_same_size, 2)
{
    enum {
        N_CALLS = 4,
        BYTES = 32
    };
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_symmetric *grown = NULL;
    CHECK_OK(shoal_symmetric_reserve(shoal_world_group(world), 8, RESERVE_BYTES, &grown));
    for (int i = 0; i < N_CALLS && !test_has_failed(); i++) {
        const int ranks[2] = {0, 1};
        unsigned char mine[BYTES] = {0};
        unsigned char all[2 * BYTES];
        char tag[16];
        (void)snprintf(tag, sizeof tag, "call %d", i);
        shoal_group *group = NULL;
        shoal_symmetric *symmetric = NULL;
        shoal_window *window = NULL;
        REQUIRE_OK(shoal_group_create(world, ranks, 2, tag, &group));
        shoal_status status;
        if (self->rank == 1) {
            status = shoal_group_all_gather(group, mine, all, BYTES, SHOAL_U8);
        } else if (i == 0) {
            status = shoal_symmetric_create(group, 64, &symmetric);
        } else if (i == 1) {
            status = shoal_symmetric_reserve(group, 64, 128, &symmetric);
        } else if (i == 2) {
            status = shoal_symmetric_grow(group, grown, 64);
        } else {
            status = shoal_window_create(group, 64, &window);
        }
        CHECK_STATUS(status, SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("rank 1 called all_gather u8 count 32");
        static const char *const names[N_CALLS] = {"symmetric_create", "symmetric_reserve", "symmetric_grow",
                                                   "window_create"};
        CHECK_ERROR_TEXT(names[i]);
    }
    shoal_symmetric_free(grown);
    CHECK_OK(shoal_world_close(world));
}

TEST_PROCESSES(a_rank_dies, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    shoal_symmetric *symmetric = NULL;
    REQUIRE_OK(shoal_symmetric_reserve(group, 1000, 100000, &symmetric));
    check_blocks(group, symmetric, 0, 1000);
    test_expect_death(2, SIGKILL);
    if (self->rank == 2) {
        (void)raise(SIGKILL);
    }
    CHECK_STATUS(shoal_symmetric_grow(group, symmetric, 50000), SHOAL_ERR_PEER);
    CHECK_INT(shoal_symmetric_bytes(symmetric), 1000);
    CHECK(is_filled(shoal_symmetric_peer(symmetric, 2), 2, 0, 1000));
    (void)shoal_world_close(world);
}

/* A program that closes descriptors which it does not know: the memory stays, and what took their numbers is not touched. */
static void close_descriptors(void *context)
{
    struct rank self = {.rank = 0, .n_ranks = 1};
    shoal_world *world = rank_world_open(&self, 0);
    shoal_symmetric *symmetric = NULL;
    int others[256];
    (void)context;
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_symmetric_reserve(shoal_world_group(world), 10, 100000, &symmetric));
    for (int fd = 3; fd < 256; fd++) {
        others[fd] = is_growing(fd) ? dup2(STDERR_FILENO, fd) : -1;
    }
    CHECK_STATUS(shoal_symmetric_grow(shoal_world_group(world), symmetric, 50000), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("its descriptor was closed by the program");
    memset(shoal_symmetric_data(symmetric), 1, 10);
    shoal_symmetric_free(symmetric);
    int n_kept = 0;
    for (int fd = 3; fd < 256; fd++) {
        if (others[fd] >= 0) {
            CHECK(close(fd) == 0); /* was not closed by the library */
            n_kept++;
        }
    }
    CHECK(n_kept > 0);
    CHECK_OK(shoal_world_close(world));
}

TEST(descriptors_that_the_program_closes)
{
    if (HAS_THREAD_SANITIZER) {
        test_skip("no threads in forked processes under the thread sanitizer");
        return;
    }
    test_in_child(close_descriptors, NULL);
}

static shoal_status grow_and_free(void *context)
{
    shoal_symmetric *symmetric = NULL;
    shoal_status status = shoal_symmetric_reserve(context, 5000, 20000, &symmetric);
    if (status == SHOAL_OK) {
        status = shoal_symmetric_grow(context, symmetric, 20000);
        shoal_symmetric_free(symmetric);
    }
    return status;
}

TEST(allocations_may_fail)
{
    check_allocations_alone(grow_and_free);
}

TEST_RANKS(allocations_may_fail_with_a_server, 1)
{
    check_allocations_with_server(self, grow_and_free);
}
