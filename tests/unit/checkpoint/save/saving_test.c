/* SPDX-License-Identifier: MIT */
/* Saves in the background: the values of their start, whatever the program does until their end. */
/* Sanitizers take long for large ones, which save_test has. */
#define STATE_LARGE_ROWS 50

#include <errno.h>

#include "comm/lane/handles.h"
#include "fixtures/file_faults.h"
#include "fixtures/rank_world.h"
#include "fixtures/saved_state.h"
#include "fixtures/shared_directory.h"
#include "shoal/checkpoint.h"

/* Everything that the program may do once a save has started: change, use the group, free the list. */
static void spoil(struct state *state, shoal_group *group)
{
    for (size_t i = 0; i < STATE_N_TENSORS; i++) {
        memset(state->parts[i], 0xEE,
               (size_t)state_count(&state_tensors[i]) * shoal_dtype_bytes(state_tensors[i].dtype));
    }
    state->epoch = -1;
    state->loss = 0;
    state->run[0] = '\0';
    state_close(state);
    for (int i = 0; i < 20; i++) {
        int64_t sum = 1;
        CHECK_OK(shoal_group_all_reduce(group, &sum, &sum, 1, SHOAL_I64, SHOAL_SUM));
        CHECK_INT(sum, shoal_group_n_ranks(group));
    }
}

static void start_and_spoil(struct rank *self, shoal_checkpoint_format format)
{
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, (int)format);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    options.format = format;
    options.keep = 2;
    for (int round = 0; round < 3; round++) {
        struct state state;
        shoal_checkpoint_saving *saving = NULL;
        state_open(&state, self->rank, self->n_ranks, round);
        options.step = round;
        REQUIRE_OK(shoal_checkpoint_save_start(group, directory, state.items, &options, &saving));
        spoil(&state, group);
        CHECK_OK(shoal_checkpoint_save_wait(saving));
    }
    if (self->rank == 0) {
        CHECK(access(inside(directory, "step-000000000"), F_OK) != 0);
        state_check(inside(directory, "step-000000001"), 1, 1);
        state_check(inside(directory, "step-000000002"), 2, 2);
    }
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}

TEST_RANKS(values_of_the_start_in_pieces, 3)
{
    start_and_spoil(self, SHOAL_CHECKPOINT_PIECES);
}

TEST_RANKS(values_of_the_start_whole, 3)
{
    start_and_spoil(self, SHOAL_CHECKPOINT_WHOLE);
}

TEST_RANKS(one_rank_alone, 1)
{
    start_and_spoil(self, SHOAL_CHECKPOINT_WHOLE);
}

/* A second one waits, or fails on all ranks; which of these happens is a race only for the one that fails. */
TEST_RANKS(a_second_start, 2)
{
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    struct state state;
    shoal_checkpoint_saving *savings[6] = {NULL};
    int64_t n_refused = 0;
    state_open(&state, self->rank, self->n_ranks, 4);
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    for (options.step = 0; options.step < 3; options.step++) {
        CHECK_OK(
            shoal_checkpoint_save_start(group, directory, state.items, &options, &savings[options.step]));
    }
    options.fails_if_busy = true;
    for (; options.step < 6; options.step++) {
        shoal_status status =
            shoal_checkpoint_save_start(group, directory, state.items, &options, &savings[options.step]);
        if (status != SHOAL_OK) {
            CHECK_INT(status, SHOAL_ERR_STATE);
            CHECK_ERROR_TEXT("is under way on this group");
            CHECK(!savings[options.step]);
            n_refused++;
        }
    }
    int64_t most = n_refused;
    CHECK_OK(shoal_group_all_reduce(group, &most, &most, 1, SHOAL_I64, SHOAL_MAX));
    CHECK_INT(most, n_refused); /* ranks agree on it */
    for (int i = 0; i < 6; i++) {
        CHECK_OK(shoal_checkpoint_save_wait(savings[i]));
    }
    for (int i = 0; i < 3 && self->rank == 0; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "step-%09d", i);
        state_check(inside(directory, name), i, 4);
    }
    state_close(&state);
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}

TEST_RANKS(closing_the_world_ends_it_first, 3)
{
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    struct state state;
    shoal_checkpoint_saving *saving = NULL;
    state_open(&state, self->rank, self->n_ranks, 4);
    REQUIRE_OK(shoal_checkpoint_save_start(shoal_world_group(world), directory, state.items, NULL, &saving));
    CHECK_OK(shoal_world_close(world));
    CHECK(shoal_checkpoint_save_test(saving));
    CHECK_OK(shoal_checkpoint_save_wait(saving));
    if (self->rank == 0) {
        state_check(inside(directory, "step-000000000"), 0, 4);
    }
    state_close(&state);
    remove_directory(self, directory);
}

/* One save in the background, for which nobody waits before the world is closed. */
static shoal_status start_and_close(struct rank *self, int round, const char *directory, uint64_t number,
                                    shoal_checkpoint_saving **saving_out)
{
    int code = ENOSPC;
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    shoal_world *world = rank_world_open(self, round);
    struct state state;
    state_open(&state, self->rank, self->n_ranks, 4);
    options.step = round;
    fail_point_count_only_requests(true);
    fail_point_arm(number, file_faults_give_code, &code);
    shoal_status started =
        shoal_checkpoint_save_start(shoal_world_group(world), directory, state.items, &options, saving_out);
    shoal_status status = shoal_world_close(world);
    CHECK(started == SHOAL_OK || status == SHOAL_OK);
    state_close(&state);
    return status;
}

/* The last request that a save cannot do without is refused by the system, after the start. */
TEST_RANKS(closing_the_world_tells_of_a_failure, 1)
{
    const char *directory = share_directory(self);
    shoal_checkpoint_saving *saving = NULL;
    int round = 0;
    CHECK_OK(start_and_close(self, round++, directory, 0, &saving));
    uint64_t number = fail_point_passages();
    CHECK_OK(shoal_checkpoint_save_wait(saving));
    shoal_status status = SHOAL_OK;
    for (; number > 0 && status == SHOAL_OK; number--) {
        status = start_and_close(self, round++, directory, number, &saving);
        if (status == SHOAL_OK) {
            CHECK_OK(shoal_checkpoint_save_wait(saving));
        }
    }
    fail_point_arm(0, NULL, NULL);
    fail_point_count_only_requests(false);
    CHECK_INT(status, SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("the save of step ");
    CHECK_ERROR_TEXT(" in the background failed: ");
    CHECK_STATUS(shoal_checkpoint_save_wait(saving), SHOAL_ERR_SYSTEM);
    CHECK_ERROR_TEXT("checkpoint_save_wait: the save of step ");
    remove_directory(self, directory);
}

/* Ranks that have waited too long for each other in the background are no reason against the next save. */
TEST_RANKS(lanes_that_have_failed, 2)
{
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    struct state state;
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    shoal_checkpoint_saving *saving = NULL;
    state_open(&state, self->rank, self->n_ranks, 4);
    for (int i = 0; i < 8; i++) {
        char word[32] = "checkpoint";
        shoal_group *lane = NULL;
        if (i > 0) {
            (void)snprintf(word, sizeof word, "checkpoint %d", i);
        }
        if (i < 2 || i == 7) {
            options.step = i;
            REQUIRE_OK(shoal_checkpoint_save_start(group, directory, state.items, &options, &saving));
            CHECK_OK(shoal_checkpoint_save_wait(saving));
        }
        REQUIRE_OK(group_create_lane(group, 0, 2, word, &lane));
        if (self->rank == i % 2) { /* the other may not know of it yet */
            group_poison(lane, SHOAL_ERR_TIMEOUT, "late");
        }
    }
    saving = NULL;
    CHECK_STATUS(shoal_checkpoint_save_start(group, directory, state.items, &options, &saving),
                 SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("checkpoint_save_start: 8 saves in the background have failed on this group");
    CHECK(!saving);
    state_close(&state);
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}

TEST_RANKS(the_working_directory_may_change, 1)
{
    char before[PATH_MAX];
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && getcwd(before, sizeof before));
    struct state state;
    shoal_checkpoint_saving *saving = NULL;
    state_open(&state, self->rank, self->n_ranks, 4);
    REQUIRE(chdir(directory) == 0);
    CHECK_OK(shoal_checkpoint_save_start(shoal_world_group(world), "run", state.items, NULL, &saving));
    CHECK(chdir("/") == 0);
    CHECK_OK(shoal_checkpoint_save_wait(saving));
    state_check(inside(directory, "run/step-000000000"), 0, 4);
    CHECK(chdir(before) == 0);
    state_close(&state);
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}

TEST_RANKS(a_group_of_its_own, 3)
{
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    struct state state;
    state_open(&state, self->rank, self->n_ranks, 4);
    state.epoch = self->rank == 2 ? 4 : 99; /* that of the group's first rank counts */
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    /* Closed and made again: its lane is another one then. */
    for (int i = 0; i < 2; i++) {
        shoal_group *group = NULL;
        shoal_checkpoint_saving *saving = NULL;
        REQUIRE_OK(shoal_group_create(world, (const int[]){2, 0, 1}, 3, "savers", &group));
        options.step = i;
        CHECK_OK(shoal_checkpoint_save_start(group, directory, state.items, &options, &saving));
        CHECK_OK(shoal_checkpoint_save_wait(saving));
        CHECK_OK(shoal_group_close(group));
    }
    if (self->rank == 0) {
        state_check(inside(directory, "step-000000001"), 1, 4);
    }
    state_close(&state);
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}

TEST_RANKS(arguments_of_a_start, 2)
{
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    struct state state;
    shoal_checkpoint_saving *saving = NULL;
    state_open(&state, self->rank, self->n_ranks, 4);
    CHECK_STATUS(shoal_checkpoint_save_start(NULL, directory, state.items, NULL, &saving), SHOAL_ERR_INVALID);
    CHECK_STATUS(
        shoal_checkpoint_save_start(group, directory, state.items, NULL, self->rank == 1 ? NULL : &saving),
        SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("saving_out is NULL");
    CHECK_STATUS(
        shoal_checkpoint_save_start(group, directory, self->rank == 0 ? NULL : state.items, NULL, &saving),
        SHOAL_ERR_INVALID);
    CHECK(!saving);
    CHECK_OK(shoal_checkpoint_save_wait(NULL));
    CHECK(shoal_checkpoint_save_test(NULL));
    CHECK_OK(shoal_checkpoint_save_start(group, directory, state.items, NULL, &saving));
    CHECK_OK(shoal_checkpoint_save_wait(saving));
    saving = NULL;
    CHECK_STATUS(shoal_checkpoint_save_start(group, directory, state.items, NULL, &saving), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("exists already");
    CHECK(!saving);
    state_close(&state);
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}
