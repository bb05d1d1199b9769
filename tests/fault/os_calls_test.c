/* SPDX-License-Identifier: MIT */
/*
 * Every request to the system fails once (base/os/fault.h), while a world is opened, used in every way that needs the
 * system, and closed; then on one of two ranks, while they open and close a world. Whatever fails, calls return, with a status and a text; nothing is lost (the harness counts
 * blocks, descriptors and threads); all ranks have a world or none; and the next world works.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/os/fault.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/store.h"
#include "shoal/window.h"
#include "shoal/work.h"

static void check_outcome(shoal_status status)
{
    if (status != SHOAL_OK) {
        CHECK(status < 0);
        CHECK(shoal_error_text()[0] != '\0');
    }
}

static void transfer(shoal_group *group)
{
    float sent = 3;
    float received = 0;
    int n_ranks = shoal_group_n_ranks(group);
    const shoal_transfer transfers[2] = {{.direction = SHOAL_SEND,
                                          .buffer = &sent,
                                          .count = 1,
                                          .dtype = SHOAL_F32,
                                          .peer = (shoal_group_rank(group) + 1) % n_ranks},
                                         {.direction = SHOAL_RECV,
                                          .buffer = &received,
                                          .count = 1,
                                          .dtype = SHOAL_F32,
                                          .peer = (shoal_group_rank(group) + n_ranks - 1) % n_ranks}};
    shoal_work *work = NULL;
    shoal_status status = shoal_group_transfer_start(group, transfers, 2, &work);
    check_outcome(status);
    if (status == SHOAL_OK) {
        status = shoal_work_wait(work, -1);
        check_outcome(status);
        CHECK(status != SHOAL_OK || received == 3);
        shoal_work_free(work);
    }
}

static void reduce(shoal_group *group)
{
    static const float ones[100000] = {1};
    static float sum[100000];
    shoal_work *work = NULL;
    shoal_status status = shoal_group_all_reduce_start(group, ones, sum, 100000, SHOAL_F32, SHOAL_SUM, &work);
    check_outcome(status);
    if (status == SHOAL_OK) {
        check_outcome(shoal_work_wait(work, -1));
        shoal_work_free(work);
    }
}

static void use(shoal_world *world)
{
    shoal_group *group = shoal_world_group(world);
    shoal_group *tagged = NULL;
    shoal_symmetric *symmetric = NULL;
    shoal_symmetric *growing = NULL;
    shoal_window *window = NULL;
    check_outcome(shoal_group_barrier(group));
    check_outcome(shoal_store_set(shoal_world_store(world), "key", "value", 5));
    transfer(group);
    reduce(group);
    shoal_status status = shoal_group_create_blocks(world, shoal_world_n_ranks(world), "tag", &tagged);
    check_outcome(status);
    if (status == SHOAL_OK) {
        check_outcome(shoal_symmetric_create(tagged, 10000, &symmetric));
        check_outcome(shoal_window_create(tagged, 10000, &window));
        status = shoal_symmetric_reserve(tagged, 10000, 30000, &growing);
        check_outcome(status);
    }
    if (status == SHOAL_OK) {
        check_outcome(shoal_symmetric_grow(tagged, growing, 30000));
    }
    shoal_symmetric_free(growing);
    shoal_window_free(window);
    shoal_symmetric_free(symmetric);
}

static bool run_world(const struct rank *self, int round, double startup_timeout_s)
{
    struct rank_key key = rank_key(self, round);
    shoal_world_options options = rank_world_options(self, &key);
    options.startup_timeout_s = startup_timeout_s;
    shoal_world *world = NULL;
    shoal_status status = shoal_world_open(&options, &world);
    check_outcome(status);
    if (status != SHOAL_OK) {
        CHECK(!world);
        return false;
    }
    /* What fails on one rank alone, another waits for until its deadline: too long for so many rounds. */
    if (self->n_ranks == 1) {
        use(world);
    }
    check_outcome(shoal_world_close(world));
    return true;
}

/* In the harness's shared memory: what ranks tell each other. */
struct talk {
    _Atomic int is_over;
    _Atomic int has_world[2];
};

static void sweep(struct rank *self, int code)
{
    struct talk *talk = self->shared;
    /* A rank that fails before it has met the others is waited for. */
    double startup_timeout_s = 0.5 * test_time_scale();
    bool is_over = false;
    for (int round = 1; !is_over; round++) {
        bool is_victim = self->rank == self->n_ranks - 1;
        if (is_victim) {
            os_fault_arm((uint64_t)round, code);
        }
        test_barrier(self);
        atomic_store(&talk->has_world[self->rank], run_world(self, code * 100000 + round, startup_timeout_s));
        test_barrier(self);
        if (is_victim) {
            if (test_has_failed()) {
                printf("call %d, %s, with errno %d\n", round, os_fault_name(), code);
            }
            atomic_store(&talk->is_over, os_fault_count() < (uint64_t)round);
            os_fault_arm(0, 0);
        }
        CHECK_INT(atomic_load(&talk->has_world[0]), atomic_load(&talk->has_world[self->n_ranks - 1]));
        test_barrier(self);
        is_over = atomic_load(&talk->is_over);
    }
    CHECK(run_world(self, code * 100000, 0));
}

TEST_PROCESSES(every_call_of_one_rank, 1)
{
    sweep(self, EMFILE);
    sweep(self, ENOMEM);
}

TEST_PROCESSES(every_call_of_the_second_rank, 2)
{
    sweep(self, EMFILE);
}

/* What the system refuses to a rank fails the call for all, and the others read whose trouble it was. */
TEST_PROCESSES(the_rank_in_trouble_is_named, 2)
{
    static float values[100000];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    int n_failed = 0;
    for (int number = 1; number <= 6 && !test_has_failed(); number++) {
        char tag[16];
        shoal_group *group = NULL;
        (void)snprintf(tag, sizeof tag, "call %d", number);
        REQUIRE_OK(shoal_group_create(world, (const int[]){0, 1}, 2, tag, &group));
        REQUIRE_OK(shoal_group_barrier(group));
        if (self->rank == 1) {
            os_fault_arm((uint64_t)number, ENOMEM);
        }
        shoal_status status = shoal_group_all_reduce(group, values, values, 100000, SHOAL_F32, SHOAL_SUM);
        os_fault_arm(0, 0);
        if (status != SHOAL_OK) {
            CHECK(status == SHOAL_ERR_SYSTEM || status == SHOAL_ERR_NO_MEMORY);
            CHECK_ERROR_TEXT("rank 1: ");
            n_failed++;
        }
        CHECK_OK(shoal_group_close(group));
    }
    CHECK(n_failed > 0);
    CHECK_OK(shoal_world_close(world));
}
