/* SPDX-License-Identifier: MIT */
/* Worlds: opening in every way, options, closing, ranks as threads, no memory. */
#include "shoal/world.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/wait.h"
#include "comm/group/world.h"
#include "fixtures/rank_world.h"
#include "fixtures/world_segment.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/log.h"
#include "shoal/store.h"
#include "shoal/window.h"
#include "sharedmem/segment.h"

/* A number that no earlier world of the running program had. */
static int next_round(struct rank *self)
{
    static _Atomic int n_rounds;
    int *round = (int *)((char *)self->shared + TEST_SHARED_BYTES - sizeof(int));
    test_barrier(self);
    if (self->rank == 0) {
        *round = ++n_rounds;
    }
    test_barrier(self);
    return *round;
}

static int count_fds(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) {
        count++;
    }
    (void)closedir(folder);
    return count;
}

static int exchange_alone(void *context, const void *in, void *out_all, size_t bytes)
{
    memcpy(out_all, in, bytes);
    return 0;
}

static void use_and_close(shoal_world *world, struct rank *self)
{
    CHECK_INT(shoal_world_rank(world), self->rank);
    CHECK_INT(shoal_world_n_ranks(world), self->n_ranks);
    CHECK_INT(shoal_group_n_ranks(shoal_world_group(world)), self->n_ranks);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    for (int i = 0; i < self->n_ranks; i++) {
        CHECK_OK(world_check_rank(world, i));
    }
    /* Nobody leaves before all have looked. */
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}

/* Opening ----------------------------------------------------------------------------------------------- */

TEST_RANKS(opens_and_closes, 4)
{
    int n_fds = count_fds();
    for (int i = 0; i < 5; i++) {
        struct rank_key key = rank_key(self, next_round(self));
        shoal_world_options options = rank_world_options(self, &key);
        shoal_world *world = NULL;
        REQUIRE_OK(shoal_world_open(&options, &world));
        CHECK_STRING(world->launcher, "options");
        use_and_close(world, self);
    }
    test_barrier(self);
    if (self->is_process) {
        CHECK_INT(count_fds(), n_fds);
        CHECK_INT(segment_mapped_bytes(), 0);
    }
}

/* The name is free again once all have arrived, whatever the worlds do after that. */
TEST_RANKS(one_key_serves_worlds_one_after_the_other, 3)
{
    struct rank_key key = rank_key(self, next_round(self));
    shoal_world_options options = rank_world_options(self, &key);
    shoal_world *worlds[3] = {NULL};
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(shoal_world_open(&options, &worlds[i]));
    }
    for (int i = 0; i < 3; i++) {
        use_and_close(worlds[i], self);
    }
}

TEST_RANKS(ranks_may_come_in_any_order, 4)
{
    for (int first = 0; first < self->n_ranks; first++) {
        struct rank_key key = rank_key(self, next_round(self));
        shoal_world_options options = rank_world_options(self, &key);
        if (self->rank == first) {
            wait_sleep(30000000);
        }
        shoal_world *world = NULL;
        REQUIRE_OK(shoal_world_open(&options, &world));
        use_and_close(world, self);
    }
}

TEST(a_world_of_one)
{
    shoal_world *world = NULL;
    shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 1};
    REQUIRE_OK(shoal_world_open(&options, &world));
    CHECK_INT(shoal_world_rank(world), 0);
    CHECK_INT(shoal_world_n_ranks(world), 1);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
    CHECK_OK(shoal_world_close(NULL));
    CHECK_INT(shoal_world_rank(NULL), -1);
    CHECK_INT(shoal_world_n_ranks(NULL), 0);
    CHECK(shoal_world_group(NULL) == NULL);
    CHECK(shoal_world_store(NULL) == NULL);
}

TEST(the_environment_is_read_at_each_opening)
{
    static const char *const others[] = {"RANK",         "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                         "SLURM_PROCID", "PMI_SIZE",   "OMPI_COMM_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        (void)unsetenv(others[i]);
    }
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(NULL, &world));
    CHECK_STRING(world->launcher, "alone");
    CHECK_OK(shoal_world_close(world));
    (void)setenv("SHOAL_RANK", "0", 1);
    (void)setenv("SHOAL_RANKS", "1", 1);
    CHECK_STATUS(shoal_world_open(NULL, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("SHOAL_KEY|SHOAL_ADDRESS is not");
    (void)setenv("SHOAL_KEY", "some", 1);
    REQUIRE_OK(shoal_world_open(NULL, &world));
    CHECK_STRING(world->launcher, "SHOAL");
    CHECK_OK(shoal_world_close(world));
    (void)unsetenv("SHOAL_RANK");
    (void)unsetenv("SHOAL_RANKS");
    (void)unsetenv("SHOAL_KEY");
}

TEST(a_fake_world_has_any_size)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 100000, .rank = 77777, .transport = "fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    CHECK_INT(shoal_world_rank(world), 77777);
    CHECK_INT(shoal_world_n_ranks(world), 100000);
    CHECK_OK(world_check_rank(world, 5));
    CHECK_STATUS(shoal_store_set(shoal_world_store(world), "k", "v", 1), SHOAL_ERR_UNSUPPORTED);
    struct segment *segment = NULL;
    REQUIRE_OK(world_open_segment(world, 3, "any", 100, clock_deadline_after(1), &segment));
    segment_unref(segment);
    CHECK_OK(shoal_world_close(world));
}

TEST(options_are_checked)
{
    shoal_world *world = NULL;
    shoal_world_options good = {.struct_size = sizeof good, .n_ranks = 2, .rank = 1, .key = "k"};
    CHECK_STATUS(shoal_world_open(&good, NULL), SHOAL_ERR_INVALID);
    shoal_world_options bad = good;
    bad.n_ranks = -1;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("n_ranks is -1");
    bad.n_ranks = 5000;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    bad.n_ranks = 1;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("rank is 1, 0 to 0 expected");
    bad = good;
    bad.rank = -3;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    bad = good;
    bad.key = NULL;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("neither key nor exchange is given");
    bad.n_ranks = 0;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("rank is given, but n_ranks is 0");
    bad.exchange = exchange_alone;
    bad.rank = 0; /* as on every other rank */
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("exchange is given, but n_ranks is 0");
    bad = good;
    bad.transport = "smoke";
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("smoke");
    bad = good;
    bad.startup_timeout_s = -1;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    bad = good;
    bad.timeout_s = 0.0 / 0.0;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    bad.timeout_s = 1e300;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("timeout_s is 1e+300, 0 (the default) to 1e+09 expected");
    bad = good;
    bad.struct_size = 3;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    static char key[2000];
    memset(key, 'k', sizeof key - 1);
    bad = good;
    bad.key = key;
    CHECK_STATUS(shoal_world_open(&bad, &world), SHOAL_ERR_INVALID);
    CHECK(world == NULL);
}

/* Closing ----------------------------------------------------------------------------------------------- */

TEST_RANKS(who_does_not_close_is_named, 3)
{
    struct rank_key key = rank_key(self, next_round(self));
    shoal_world_options options = rank_world_options(self, &key);
    options.close_timeout_s = 0.2;
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    test_barrier(self);
    if (self->rank == 0) {
        CHECK_STATUS(shoal_world_close(world), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("closing the world: ranks 1 and 2 did not close it in time (close_timeout_s of "
                         "shoal_world_options)");
        world = NULL;
    }
    test_barrier(self);
    /* Rank 0's store has gone with it. */
    if (self->rank != 0) {
        CHECK_STATUS(shoal_store_set(shoal_world_store(world), "k", "v", 1), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 0 (process ");
    }
    test_barrier(self);
    if (self->rank == 1) {
        CHECK_STATUS(shoal_world_close(world), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 2 did not close it");
    }
    test_barrier(self);
    /* Thread ranks share the descriptors of the page: rank 2 must still be there for everybody. */
    if (self->rank == 2) {
        CHECK_OK(world_check_rank(world, 2));
        CHECK_OK(shoal_world_close(world));
    }
    test_barrier(self);
}

struct heard {
    int n_warnings;
    char text[256];
};

static void listen_to_log(void *context, shoal_log_level level, const char *message)
{
    struct heard *heard = context;
    if (strstr(message, "never waited for")) {
        heard->n_warnings++;
        (void)snprintf(heard->text, sizeof heard->text, "%s", message);
    }
}

TEST(work_that_nobody_waited_for_is_told_once)
{
    struct heard heard = {.n_warnings = 0};
    shoal_log_set(listen_to_log, &heard, SHOAL_LOG_WARN);
    shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 1};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    float value = 1;
    for (int i = 0; i < 3; i++) {
        shoal_work *work = NULL;
        CHECK_OK(shoal_group_all_reduce_start(shoal_world_group(world), &value, &value, 1, SHOAL_F32,
                                              SHOAL_SUM, &work));
        if (i == 0) {
            CHECK_OK(shoal_work_wait(work, -1));
        }
        shoal_work_free(work);
    }
    CHECK_OK(shoal_world_close(world));
    shoal_log_set(NULL, NULL, SHOAL_LOG_WARN);
    CHECK_INT(heard.n_warnings, 1);
    CHECK(strstr(heard.text, "never waited for 2 operations") != NULL);
}

/* A large all_reduce that one rank starts and leaves alone still ends well for the other. */
TEST_RANKS(closing_finishes_what_was_started, 2)
{
    enum {
        COUNT = 1 << 20
    };
    struct rank_key key = rank_key(self, next_round(self));
    shoal_world_options options = rank_world_options(self, &key);
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    float *values = calloc(COUNT, sizeof *values);
    REQUIRE(values != NULL);
    values[COUNT - 1] = 1;
    shoal_group *group = shoal_world_group(world);
    if (self->rank == 0) {
        shoal_work *work = NULL;
        CHECK_OK(shoal_group_all_reduce_start(group, values, values, COUNT, SHOAL_F32, SHOAL_SUM, &work));
        shoal_work_free(work);
    } else {
        wait_sleep(300000000);
        CHECK_OK(shoal_group_all_reduce(group, values, values, COUNT, SHOAL_F32, SHOAL_SUM));
        CHECK(values[COUNT - 1] == 2.0f);
    }
    CHECK_OK(shoal_world_close(world));
    CHECK(values[COUNT - 1] == 2.0f);
    free(values);
}

/* Ranks as threads -------------------------------------------------------------------------------------- */

static shoal_status add_ranks(shoal_world *world, void *context)
{
    _Atomic int *sum = context;
    *sum += 1 + shoal_world_rank(world);
    int value = shoal_world_rank(world);
    shoal_status status =
        shoal_group_all_reduce(shoal_world_group(world), &value, &value, 1, SHOAL_I32, SHOAL_SUM);
    CHECK_INT(value, 0 + 1 + 2 + 3 + 4);
    return status;
}

static shoal_status fail_on_three(shoal_world *world, void *context)
{
    if (shoal_world_rank(world) >= 3) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "rank %d does not want to", shoal_world_rank(world));
    }
    return SHOAL_OK;
}

TEST(ranks_run_as_threads)
{
    _Atomic int sum = 0;
    CHECK_OK(shoal_world_run_threads(5, add_ranks, (void *)&sum));
    CHECK_INT(sum, 15);
    CHECK_STATUS(shoal_world_run_threads(5, fail_on_three, NULL), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("does not want to");
    CHECK_STATUS(shoal_world_run_threads(0, add_ranks, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_world_run_threads(2, NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_INT(segment_mapped_bytes(), 0);
}

/* The others fail only because rank 2 has left. */
static shoal_status fail_on_two(shoal_world *world, void *context)
{
    if (shoal_world_rank(world) == 2) {
        return error_set(SHOAL_ERR_INVALID, "no file to read");
    }
    return shoal_group_barrier(shoal_world_group(world));
}

TEST(ranks_as_threads_tell_the_cause)
{
    CHECK_STATUS(shoal_world_run_threads(3, fail_on_two, NULL), SHOAL_ERR_INVALID);
    CHECK_STRING(shoal_error_text(), "rank 2: no file to read");
}

static shoal_status count_ranks(shoal_world *world, void *context)
{
    int64_t sum = 0;
    return shoal_store_add(shoal_world_store(world), "n", 1, &sum);
}

TEST(many_ranks)
{
    CHECK_OK(shoal_world_run_threads(32, count_ranks, NULL));
}

/* Forks ------------------------------------------------------------------------------------------------- */

struct inherited {
    shoal_world *world;
    shoal_window *window;
    shoal_work *work; /* pending */
};

static int write_nothing(void *context, const char *text, size_t bytes)
{
    return 0;
}

static void use_what_was_inherited(void *context)
{
    struct inherited *inherited = context;
    shoal_world *world = inherited->world;
    shoal_group *group = shoal_world_group(world);
    shoal_work *work = NULL;
    shoal_group *other = NULL;
    shoal_symmetric *symmetric = NULL;
    char byte = 0;
    CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("is a fork of the process that opened the world");
    CHECK_STATUS(shoal_group_barrier_start(group, &work), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_group_send(group, &byte, 1, SHOAL_U8, 0, 0), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_group_recv_start(group, &byte, 1, SHOAL_U8, 0, 0, &work), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_group_abort(group, NULL), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_group_error(group), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_group_create(world, (const int[]){0}, 1, "x", &other), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_store_set(shoal_world_store(world), "k", "v", 1), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_symmetric_create(group, 8, &symmetric), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_window_gather(inherited->window, NULL, 0, 0), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_window_release(inherited->window), SHOAL_ERR_STATE);
    CHECK(!shoal_work_test(inherited->work));
    CHECK_STATUS(shoal_work_wait(inherited->work, 0), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_world_dump(world, write_nothing, NULL), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_world_close(world), SHOAL_ERR_STATE);
}

TEST(a_forked_child_is_no_rank)
{
    shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 1};
    struct inherited inherited = {NULL, NULL, NULL};
    REQUIRE_OK(shoal_world_open(&options, &inherited.world));
    shoal_group *group = shoal_world_group(inherited.world);
    REQUIRE_OK(shoal_window_create(group, 64, &inherited.window));
    char got = 0;
    char sent = 5;
    CHECK_OK(shoal_window_gather(inherited.window, NULL, 0, 0));
    CHECK_OK(shoal_group_recv_start(group, &got, 1, SHOAL_U8, 0, 7, &inherited.work));
    test_in_child(use_what_was_inherited, &inherited);
    /* Nothing of the parent's was touched. */
    CHECK_OK(shoal_group_barrier(group));
    CHECK_OK(shoal_group_send(group, &sent, 1, SHOAL_U8, 0, 7));
    CHECK_OK(shoal_work_wait(inherited.work, -1));
    CHECK_INT(got, 5);
    shoal_work_free(inherited.work);
    CHECK_OK(shoal_window_release(inherited.window));
    CHECK_OK(shoal_world_close(inherited.world));
}

static void open_own_world(void *context)
{
    shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 1, .transport = "fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

TEST(a_forked_child_may_open_a_world)
{
    open_own_world(NULL);
    test_in_child(open_own_world, NULL);
}

/* No memory --------------------------------------------------------------------------------------------- */

static shoal_status open_and_close(void *context)
{
    shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 1, .startup_timeout_s = 10};
    shoal_world *world = NULL;
    shoal_status status = shoal_world_open(&options, &world);
    return status == SHOAL_OK ? shoal_world_close(world) : status;
}

TEST(allocations_may_fail)
{
    int n_fds = count_fds();
    CHECK(test_sweep_allocations(open_and_close, NULL) > 10);
    CHECK_INT(count_fds(), n_fds);
    CHECK_INT(segment_mapped_bytes(), 0);
}

static shoal_status open_with_exchange(void *context)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 1, .exchange = exchange_alone, .startup_timeout_s = 10};
    shoal_world *world = NULL;
    shoal_status status = shoal_world_open(&options, &world);
    return status == SHOAL_OK ? shoal_world_close(world) : status;
}

TEST(allocations_may_fail_with_exchange)
{
    CHECK(test_sweep_allocations(open_with_exchange, NULL) > 10);
}
