/* SPDX-License-Identifier: MIT */
/*
 * What users take for granted: a call that starts returns at once, lanes do not wait for each other, groups can be made
 * in any order and used from any thread, work may be forgotten, counts may be large.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "fixtures/rank_world.h"
#include "harness/harness.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/log.h"
#include "shoal/work.h"
#include "shoal/world.h"

enum {
    SMALL = 16,
    LARGE = 1 << 20
};

static const int both[2] = {0, 1};

static double seconds_since(int64_t then_ns)
{
    return (double)(clock_now_ns() - then_ns) * 1e-9;
}

/* Asynchrony ----------------------------------------------------------------------------------------------- */

/* Rank 1 is 300 ms late: rank 0's _start returns at once, and what it computes meanwhile is done before the end. */
static void start_before_a_late_rank(struct rank *self, size_t count)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *all = shoal_world_group(world);
    float *values = calloc(count, sizeof *values);
    REQUIRE(values);
    values[count - 1] = 1;
    CHECK_OK(shoal_group_barrier(all));
    test_barrier(self);
    if (self->rank == 1) {
        test_barrier(self); /* rank 0 has started, tested and computed */
    }
    int64_t start_ns = clock_now_ns();
    shoal_work *work;
    REQUIRE_OK(shoal_group_all_reduce_start(all, values, values, count, SHOAL_F32, SHOAL_SUM, &work));
    if (self->rank == 0) {
        CHECK(!shoal_work_test(work));
        /* Its own compute, on this thread. */
        volatile uint64_t state = 1;
        while (seconds_since(start_ns) < 0.1) {
            state = state * 3 + 1;
        }
        CHECK(!shoal_work_test(work));
        test_barrier(self);
    }
    CHECK_OK(shoal_work_wait(work, /*timeout_s=*/-1));
    shoal_work_free(work);
    CHECK_DOUBLE((double)values[count - 1], 2);
    free(values);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(start_returns_before_a_late_rank_comes, 2)
{
    start_before_a_late_rank(self, SMALL);
}

TEST_RANKS(start_returns_before_a_late_rank_comes_large, 2)
{
    start_before_a_late_rank(self, LARGE);
}

/* Two ranks start on two lanes in opposite order, and also wait in opposite order. */
static void cross_lanes(struct rank *self, size_t count)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *lanes[2];
    shoal_work *works[2];
    float *values[2];
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(shoal_group_create(world, both, 2, i == 0 ? "a" : "b", &lanes[i]));
        values[i] = calloc(count, sizeof(float));
        REQUIRE(values[i]);
    }
    for (int round = 0; round < 20 && !test_has_failed(); round++) {
        for (int i = 0; i < 2; i++) {
            int lane = i ^ self->rank;
            values[lane][0] = values[lane][count - 1] = (float)(lane + 1);
            REQUIRE_OK(shoal_group_all_reduce_start(lanes[lane], values[lane], values[lane], count, SHOAL_F32,
                                                    SHOAL_SUM, &works[lane]));
        }
        for (int i = 0; i < 2; i++) {
            int lane = i ^ self->rank ^ (round & 1);
            CHECK_OK(shoal_work_wait(works[lane], /*timeout_s=*/-1));
            shoal_work_free(works[lane]);
            CHECK_DOUBLE((double)values[lane][0], 2 * (lane + 1));
            CHECK_DOUBLE((double)values[lane][count - 1], 2 * (lane + 1));
        }
    }
    for (int i = 0; i < 2; i++) {
        free(values[i]);
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(lanes_in_opposite_order_both_finish, 2)
{
    cross_lanes(self, SMALL);
}

TEST_RANKS(lanes_in_opposite_order_both_finish_large, 2)
{
    cross_lanes(self, LARGE / 4);
}

/* Three in a ring, each on two lanes: everybody starts with the one its neighbour starts last. */
TEST_RANKS(lanes_in_a_ring_all_finish, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *lanes[2];
    shoal_work *works[2];
    static _Thread_local float values[2][20000];
    for (int i = 0; i < 2; i++) {
        int low = (self->rank + 2 * i) % 3;
        int pair[2] = {low, (low + 1) % 3};
        REQUIRE_OK(shoal_group_create(world, pair, 2, "ring", &lanes[i]));
        REQUIRE_OK(shoal_group_all_reduce_start(lanes[i], values[i], values[i], 20000, SHOAL_F32, SHOAL_SUM,
                                                &works[i]));
    }
    for (int i = 0; i < 2; i++) {
        CHECK_OK(shoal_work_wait(works[i], /*timeout_s=*/-1));
        shoal_work_free(works[i]);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Threads -------------------------------------------------------------------------------------------------- */

struct turn {
    shoal_group *groups[2];
    int n_rounds;
    int seed;
};

static void *take_turns(void *argument)
{
    struct turn *turn = argument;
    shoal_group *group = turn->groups[turn->seed];
    for (int i = 0; i < turn->n_rounds && !test_has_failed(); i++) {
        int32_t value = i * 3 + turn->seed;
        CHECK_OK(shoal_group_all_reduce(group, &value, &value, 1, SHOAL_I32, SHOAL_SUM));
        CHECK_INT(value, 2 * (i * 3 + turn->seed));
    }
    return NULL;
}

TEST_RANKS(two_groups_interleaved_from_two_threads, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    pthread_t threads[2];
    struct turn turns[2];
    shoal_group *groups[2];
    REQUIRE_OK(shoal_group_create(world, both, 2, "first", &groups[0]));
    REQUIRE_OK(shoal_group_create(world, both, 2, "second", &groups[1]));
    for (int i = 0; i < 2; i++) {
        int seed = i ^ self->rank;
        turns[i] = (struct turn){.groups = {groups[0], groups[1]}, .n_rounds = 2000, .seed = seed};
        REQUIRE(pthread_create(&threads[i], NULL, take_turns, &turns[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Groups --------------------------------------------------------------------------------------------------- */

TEST_RANKS(groups_are_made_in_any_order, 3)
{
    enum {
        N_GROUPS = 6
    };
    static const int members[N_GROUPS][3] = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2},
                                             {0, 1, 2}, {1, 2, 0}, {0, 2, 1}};
    static const char *const tags[N_GROUPS] = {"x", "x", "x", "y", "y", "z"};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *groups[N_GROUPS];
    for (int i = 0; i < N_GROUPS; i++) {
        int which = (i * (self->rank == 0 ? 1 : 5) + self->rank) % N_GROUPS;
        REQUIRE_OK(shoal_group_create(world, members[which], 3, tags[which], &groups[which]));
    }
    for (int i = 0; i < N_GROUPS; i++) {
        int32_t mine = 10 * i + self->rank;
        int32_t gathered[3];
        CHECK_OK(shoal_group_all_gather(groups[i], &mine, gathered, 1, SHOAL_I32));
        for (int r = 0; r < 3; r++) {
            CHECK_INT(gathered[r], 10 * i + members[i][r]);
        }
    }
    CHECK_OK(shoal_world_close(world));
}

/* Forgotten work ------------------------------------------------------------------------------------------- */

static _Atomic int n_warnings;

static void count_warnings(void *context, shoal_log_level level, const char *message)
{
    if (level == SHOAL_LOG_WARN) {
        atomic_fetch_add(&n_warnings, 1);
    }
}

/* Ten thousand that nobody waits for: all of them are done at the end, and each rank is told once. */
TEST_RANKS(ten_thousand_works_nobody_waits_for, 2)
{
    enum {
        N_WORKS = 10000
    };
    int32_t *values = calloc(N_WORKS, sizeof *values);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && values);
    if (self->is_process || self->rank == 0) {
        atomic_store(&n_warnings, 0);
        shoal_log_set(count_warnings, NULL, SHOAL_LOG_WARN);
    }
    test_barrier(self);
    shoal_group *all = shoal_world_group(world);
    for (int i = 0; i < N_WORKS && !test_has_failed(); i++) {
        shoal_work *work = NULL;
        values[i] = i;
        CHECK_OK(shoal_group_all_reduce_start(all, &values[i], &values[i], 1, SHOAL_I32, SHOAL_SUM, &work));
        shoal_work_free(work);
    }
    CHECK_OK(shoal_world_close(world));
    for (int i = 0; i < N_WORKS && !test_has_failed(); i++) {
        CHECK_INT(values[i], 2 * i);
    }
    test_barrier(self);
    CHECK_INT(atomic_load(&n_warnings), self->is_process ? 1 : 2);
    test_barrier(self);
    if (self->is_process || self->rank == 0) {
        shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
    }
    free(values);
}

/* Large counts --------------------------------------------------------------------------------------------- */

enum {
    PERIOD = 64 << 20,
    TAIL = 4097
};

/*
 * `bytes` of address space made of one block of PERIOD bytes again and again, and an end of its own: more than 4 GiB that
 * cost 64 MiB. What is written must repeat likewise.
 */
static unsigned char *map_long(size_t bytes, size_t *mapped_out)
{
    size_t n_repeats = bytes / PERIOD;
    int fd = memfd_create("test-long", MFD_CLOEXEC);
    size_t mapped = (n_repeats + 1) * PERIOD;
    if (fd < 0 || ftruncate(fd, 2L * PERIOD) != 0) {
        return NULL;
    }
    unsigned char *base = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool is_good = base != MAP_FAILED;
    for (size_t i = 0; is_good && i <= n_repeats; i++) {
        off_t offset = i == n_repeats ? PERIOD : 0;
        is_good = mmap(base + i * PERIOD, PERIOD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                       offset) != MAP_FAILED;
    }
    (void)close(fd);
    *mapped_out = mapped;
    return is_good ? base : NULL;
}

/* What lies at position i of `total`: it repeats, except for the last bytes, which are turned around. */
static unsigned char pattern(size_t i, size_t total)
{
    size_t inside = i % PERIOD;
    unsigned char value = (unsigned char)(inside ^ inside >> 8 ^ inside >> 16);
    return i >= total - TAIL ? (unsigned char)~value : value;
}

/* Positions [from, from + bytes) of `total`. */
static void fill_long(unsigned char *base, size_t from, size_t bytes, size_t total)
{
    for (size_t i = 0; i < PERIOD; i++) {
        base[i] = pattern(from + i, total);
    }
    for (size_t i = bytes / PERIOD * PERIOD; i < bytes; i++) {
        base[i] = pattern(from + i, total);
    }
}

static void check_long(const unsigned char *base, size_t total, const char *what)
{
    for (size_t i = 0; i < PERIOD; i++) {
        if (base[i] != pattern(i, total)) {
            test_failed(__FILE__, __LINE__, "%s: byte %zu is wrong", what, i);
            return;
        }
    }
    for (size_t i = total / PERIOD * PERIOD; i < total; i++) {
        if (base[i] != pattern(i, total)) {
            test_failed(__FILE__, __LINE__, "%s: byte %zu of %zu is wrong", what, i, total);
            return;
        }
    }
}

TEST_RANKS(counts_beyond_4_gib, 2)
{
    size_t bytes = ((size_t)1 << 32) + TAIL;
    size_t mapped;
    if (HARNESS_HAS_ASAN || HARNESS_HAS_TSAN) {
        test_skip("takes too long under a sanitizer");
        return;
    }
    if (self->is_process) {
        test_skip("once is enough");
        return;
    }
    test_deadline(120);
    unsigned char *buffer = map_long(bytes, &mapped);
    REQUIRE(buffer);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    CHECK_OK(shoal_group_set_timeout(shoal_world_group(world), 100));
    if (self->rank == 0) {
        fill_long(buffer, 0, bytes, bytes);
    }
    CHECK_OK(shoal_group_broadcast(shoal_world_group(world), buffer, bytes, SHOAL_U8, 0));
    check_long(buffer, bytes, "broadcast");
    CHECK_OK(shoal_world_close(world));
    (void)munmap(buffer, mapped);
}

/* A gather whose parts have 2 GiB and a little, and whose whole more than 4. */
TEST_RANKS(all_gather_beyond_4_gib, 2)
{
    size_t count = ((size_t)1 << 31) + TAIL;
    size_t recv_mapped;
    size_t send_mapped;
    if (HARNESS_HAS_ASAN || HARNESS_HAS_TSAN) {
        test_skip("takes too long under a sanitizer");
        return;
    }
    if (self->is_process) {
        test_skip("once is enough");
        return;
    }
    test_deadline(120);
    unsigned char *recv = map_long(2 * count, &recv_mapped);
    unsigned char *send = map_long(count, &send_mapped);
    REQUIRE(recv && send);
    fill_long(send, self->rank == 0 ? 0 : count, count, 2 * count);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    CHECK_OK(shoal_group_set_timeout(shoal_world_group(world), 100));
    CHECK_OK(shoal_group_all_gather(shoal_world_group(world), send, recv, count, SHOAL_U8));
    check_long(recv, 2 * count, "all_gather");
    CHECK_OK(shoal_world_close(world));
    (void)munmap(recv, recv_mapped);
    (void)munmap(send, send_mapped);
}
