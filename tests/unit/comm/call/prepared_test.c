/* SPDX-License-Identifier: MIT */
/* Collectives that are prepared once and started often: results, order among others, allocations, mistakes, ends. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

#include "comm/call/prepared.h"
#include "comm/lane/handles.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/window.h"

#define COUNT 300

static size_t n_rounds(size_t rounds)
{
    size_t scaled = (size_t)((double)rounds / test_time_scale());
    return scaled < 50 ? 50 : scaled;
}

static struct collective sum_of(float *buffer, size_t count, const struct purpose *purpose)
{
    return (struct collective){.kind = COLLECTIVE_ALL_REDUCE,
                               .dtype = SHOAL_F32,
                               .reduce = SHOAL_SUM,
                               .single = {buffer, buffer, count},
                               .purpose = purpose};
}

static void fill(float *buffer, size_t count, int rank, size_t round)
{
    for (size_t i = 0; i < count; i++) {
        buffer[i] = (float)((size_t)rank + round % 100 + i % 16);
    }
}

static bool is_sum(const float *buffer, size_t count, int n_ranks, size_t round)
{
    for (size_t i = 0; i < count; i++) {
        size_t expected = (size_t)n_ranks * (round % 100 + i % 16);
        for (int rank = 0; rank < n_ranks; rank++) {
            expected += (size_t)rank;
        }
        if (buffer[i] != (float)expected) {
            return false;
        }
    }
    return true;
}

/* Started often ---------------------------------------------------------------------------------------- */

/* Two prepared sums of different sizes, and between them ordinary calls of every form, in an order that the round decides. */
static void start_often(struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    static const size_t counts[2] = {COUNT, 9000};
    static _Thread_local float buffers[2][9000];
    static _Thread_local float other[COUNT];
    struct prepared *prepared[2] = {NULL, NULL};
    for (size_t k = 0; k < 2; k++) {
        struct collective call = sum_of(buffers[k], counts[k], NULL);
        REQUIRE_OK(prepared_create(group, &call, NULL, &prepared[k]));
    }
    size_t rounds = n_rounds(test_is_whole() ? 3000 : 1000);
    for (size_t round = 0; round < rounds && !test_has_failed(); round++) {
        shoal_work *work = NULL;
        for (size_t k = 0; k < 2; k++) {
            fill(buffers[k], counts[k], self->rank, round + k);
            CHECK_OK(prepared_start(prepared[k]));
            CHECK(prepared_is_running(prepared[k]));
        }
        fill(other, COUNT, self->rank, round);
        if (round % 3 == 0) {
            CHECK_OK(shoal_group_all_reduce(group, other, other, COUNT, SHOAL_F32, SHOAL_SUM));
        } else if (round % 3 == 1) {
            CHECK_OK(shoal_group_all_reduce_start(group, other, other, COUNT, SHOAL_F32, SHOAL_SUM, &work));
        }
        for (size_t k = 0; k < 2; k++) {
            size_t which = (k + round) % 2;
            CHECK_OK(prepared_wait(prepared[which]));
            CHECK(!prepared_is_running(prepared[which]));
            CHECK(is_sum(buffers[which], counts[which], self->n_ranks, round + which));
        }
        if (work) {
            CHECK_OK(shoal_work_wait(work, -1));
            shoal_work_free(work);
        }
        CHECK(round % 3 == 2 || is_sum(other, COUNT, self->n_ranks, round));
        fill(buffers[0], counts[0], self->rank, round);
        if (round % 5 == 0) {
            CHECK_OK(prepared_run(prepared[0]));
            CHECK(is_sum(buffers[0], counts[0], self->n_ranks, round));
        }
    }
    prepared_free(prepared[0]);
    prepared_free(prepared[1]);
    prepared_free(NULL);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(one_rank_starts_often, 1)
{
    start_often(self);
}

TEST_RANKS(two_ranks_start_often, 2)
{
    start_often(self);
}

TEST_RANKS(three_ranks_start_often, 3)
{
    start_often(self);
}

/* While another thread makes its own calls on another group, and the same works are started and waited for by turns. */
struct other_thread {
    shoal_group *group;
    size_t rounds;
};

static void *call_beside(void *context)
{
    const struct other_thread *other = context;
    for (size_t i = 0; i < other->rounds; i++) {
        int64_t number = 1;
        CHECK_OK(shoal_group_all_reduce(other->group, &number, &number, 1, SHOAL_I64, SHOAL_SUM));
        CHECK_INT(number, shoal_group_n_ranks(other->group));
    }
    return NULL;
}

TEST_RANKS(another_thread_calls_beside, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_group_create(world, (const int[]){0, 1}, 2, "beside", &group));
    float buffer[COUNT];
    struct prepared *prepared = NULL;
    struct collective call = sum_of(buffer, COUNT, NULL);
    REQUIRE_OK(prepared_create(shoal_world_group(world), &call, NULL, &prepared));
    struct other_thread other = {.group = group, .rounds = n_rounds(1000)};
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, call_beside, &other) == 0);
    for (size_t round = 0; round < other.rounds; round++) {
        fill(buffer, COUNT, self->rank, round);
        CHECK_OK(prepared_start(prepared));
        CHECK_OK(prepared_wait(prepared));
        CHECK(is_sum(buffer, COUNT, self->n_ranks, round));
    }
    (void)pthread_join(thread, NULL);
    prepared_free(prepared);
    CHECK_OK(shoal_world_close(world));
}

/* Lists, counts and purposes are copied; buffers may be exchanged. */
TEST_RANKS(what_is_given_is_copied, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    float data[2][4] = {{0}};
    float others[2][4] = {{0}};
    struct prepared *list = NULL;
    struct prepared *counted = NULL;
    float gathered[3] = {0};
    float mine[2] = {(float)(10 * self->rank), (float)(10 * self->rank + 1)};
    {
        struct collective_piece pieces[2] = {{data[0], data[0], 4}, {data[1], data[1], 4}};
        char words[] = "some words";
        struct purpose purpose = {.id = PURPOSE_FUNCTIONAL, .words = words};
        struct collective call = {.kind = COLLECTIVE_ALL_REDUCE,
                                  .dtype = SHOAL_F32,
                                  .reduce = SHOAL_SUM,
                                  .pieces = pieces,
                                  .n_pieces = 2,
                                  .purpose = &purpose};
        REQUIRE_OK(prepared_create(shoal_world_group(world), &call, NULL, &list));
        size_t counts[2] = {1, 2};
        struct collective gather = {.kind = COLLECTIVE_ALL_GATHER,
                                    .dtype = SHOAL_F32,
                                    .single = {mine, gathered, 0},
                                    .send_counts = counts,
                                    .recv_counts = counts};
        REQUIRE_OK(prepared_create(shoal_world_group(world), &gather, NULL, &counted));
        memset(pieces, 0, sizeof pieces);
        memset(words, 'x', sizeof words - 1);
        memset(counts, 0, sizeof counts);
    }
    for (size_t round = 0; round < 20; round++) {
        float(*buffers)[4] = round % 2 ? others : data;
        for (size_t k = 0; k < 2; k++) {
            fill(buffers[k], 4, self->rank, round + k);
            prepared_set_buffers(list, k, buffers[k], buffers[k]);
        }
        CHECK_OK(prepared_start(list));
        CHECK_OK(prepared_start(counted));
        CHECK_OK(prepared_wait(list));
        CHECK(is_sum(buffers[0], 4, 2, round) && is_sum(buffers[1], 4, 2, round + 1));
        CHECK_OK(prepared_wait(counted));
        CHECK_BYTES(gathered, ((const float[]){0, 10, 11}), sizeof gathered);
    }
    prepared_free(list);
    prepared_free(counted);
    CHECK_OK(shoal_world_close(world));
}

/* Windows ---------------------------------------------------------------------------------------------- */

static void gather_often(struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    if (!group_has_windows(group, SHOAL_CPU)) {
        CHECK_OK(shoal_world_close(world));
        return;
    }
    shoal_window *window = NULL;
    REQUIRE_OK(shoal_window_create(group, 64, &window));
    int32_t mine[2] = {0, 0};
    shoal_window_piece piece = {.data = &mine[0],
                                .count = 1,
                                .data_dtype = SHOAL_I32,
                                .window_dtype = SHOAL_I32,
                                .offset = 4 * (size_t)self->rank};
    struct collective call = {
        .kind = COLLECTIVE_WINDOW_GATHER, .window_pieces = &piece, .n_window_pieces = 1};
    struct prepared *prepared = NULL;
    REQUIRE_OK(prepared_create(group, &call, window, &prepared));
    size_t rounds = n_rounds(1000);
    for (size_t round = 0; round < rounds && !test_has_failed(); round++) {
        int32_t *from = &mine[round % 2];
        *from = (int32_t)round + self->rank;
        prepared_set_window_data(prepared, 0, from);
        CHECK_OK(prepared_start(prepared));
        CHECK_OK(prepared_wait(prepared));
        const int32_t *data = shoal_window_data(window);
        for (int rank = 0; rank < self->n_ranks; rank++) {
            CHECK_INT(data[rank], (int32_t)round + rank);
        }
        CHECK_OK(shoal_window_release(window));
        if (round % 7 == 0) { /* an ordinary one takes a generation too */
            piece.data = from;
            CHECK_OK(shoal_window_gather(window, &piece, 1, 0));
            CHECK_OK(shoal_window_release(window));
        }
    }
    prepared_free(prepared);
    shoal_window_free(window);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(two_ranks_gather_often, 2)
{
    gather_often(self);
}

TEST_RANKS(three_ranks_gather_often, 3)
{
    gather_often(self);
}

TEST_RANKS(a_window_belongs_to_its_group, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    if (!group_has_windows(shoal_world_group(world), SHOAL_CPU)) {
        CHECK_OK(shoal_world_close(world));
        return;
    }
    shoal_group *other = NULL;
    shoal_window *window = NULL;
    struct prepared *prepared = NULL;
    REQUIRE_OK(shoal_group_create(world, (const int[]){0}, 1, "other", &other));
    REQUIRE_OK(shoal_window_create(other, 64, &window));
    struct collective call = {.kind = COLLECTIVE_WINDOW_GATHER};
    CHECK_STATUS(prepared_create(shoal_world_group(world), &call, window, &prepared), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("another group");
    shoal_window_free(window);
    CHECK_OK(shoal_world_close(world));
}

/* Allocations ------------------------------------------------------------------------------------------ */

TEST_RANKS(a_start_allocates_nothing, 2)
{
    if (rank_hears_by_messages()) {
        test_skip("messages are allocated");
        return;
    }
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    static _Thread_local float buffers[2][9000];
    struct prepared *prepared[2] = {NULL, NULL};
    for (size_t k = 0; k < 2; k++) {
        struct collective call = sum_of(buffers[k], k == 0 ? 16 : 9000, NULL);
        REQUIRE_OK(prepared_create(shoal_world_group(world), &call, NULL, &prepared[k]));
    }
    /* What a lane and its transport keep is made by the first calls. */
    for (size_t round = 0; round < 220; round++) {
        if (round == 20) {
            test_barrier(self);
            if (self->is_process || self->rank == 0) {
                test_fail_allocation(1, /*is_lasting=*/true);
            }
            test_barrier(self);
        }
        for (size_t k = 0; k < 2; k++) {
            fill(buffers[k], 9000, self->rank, round);
            CHECK_OK(prepared_start(prepared[k]));
        }
        for (size_t k = 0; k < 2; k++) {
            CHECK_OK(prepared_wait(prepared[k]));
            CHECK(is_sum(buffers[k], 16, 2, round));
        }
    }
    test_barrier(self);
    CHECK_INT(test_count_allocations(), 0);
    test_barrier(self);
    test_fail_allocation(0, false);
    prepared_free(prepared[0]);
    prepared_free(prepared[1]);
    CHECK_OK(shoal_world_close(world));
}

static shoal_status prepare_and_run(void *context)
{
    float buffer[4] = {1, 2, 3, 4};
    struct purpose purpose = {.id = PURPOSE_FUNCTIONAL, .words = "of a test"};
    struct collective call = sum_of(buffer, 4, &purpose);
    struct prepared *prepared = NULL;
    shoal_status status = prepared_create(context, &call, NULL, &prepared);
    if (status == SHOAL_OK) {
        status = prepared_start(prepared);
    }
    if (status == SHOAL_OK) {
        status = prepared_wait(prepared);
    }
    prepared_free(prepared);
    return status;
}

TEST(allocations_may_fail)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 8, .rank = 7, .key = "fake", .transport = "fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    REQUIRE_OK(prepare_and_run(shoal_world_group(world)));
    CHECK_INT(test_sweep_allocations(prepare_and_run, shoal_world_group(world)), 2);
    CHECK_OK(shoal_world_close(world));
}

/* Mistakes --------------------------------------------------------------------------------------------- */

TEST_RANKS(mistakes_are_refused, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    float buffer[4] = {0};
    struct prepared *prepared = NULL;
    struct collective call = sum_of(NULL, 4, NULL);
    CHECK_STATUS(prepared_create(group, &call, NULL, &prepared), SHOAL_ERR_INVALID);
    call = sum_of(buffer, 4, NULL);
    CHECK_STATUS(prepared_create(NULL, &call, NULL, &prepared), SHOAL_ERR_INVALID);
    call.dtype = (shoal_dtype)99;
    CHECK_STATUS(prepared_create(group, &call, NULL, &prepared), SHOAL_ERR_INVALID);
    CHECK(prepared == NULL);
    call = sum_of(buffer, 4, NULL);
    REQUIRE_OK(prepared_create(group, &call, NULL, &prepared));
    CHECK_OK(prepared_wait(prepared)); /* nothing was started */
    CHECK_OK(prepared_start(prepared));
    CHECK_STATUS(prepared_start(prepared), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("not waited for yet");
    CHECK_STATUS(prepared_run(prepared), SHOAL_ERR_STATE);
    CHECK_OK(prepared_wait(prepared));
    CHECK_OK(prepared_wait(prepared));
    CHECK_OK(prepared_run(prepared));
    prepared_free(prepared);
    CHECK_OK(shoal_world_close(world));
}

/* The difference is told to both, by the call it is in, and every later start. */
TEST_RANKS(a_difference_is_told, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_group_create(world, (const int[]){0, 1}, 2, "different", &group));
    float buffer[8] = {0};
    struct prepared *same = NULL;
    struct prepared *prepared = NULL;
    struct purpose purpose = {
        .id = PURPOSE_FUNCTIONAL, .root = 7, .unit = (uint32_t)self->rank, .words = "thing"};
    struct collective call = sum_of(buffer, 4, NULL);
    REQUIRE_OK(prepared_create(group, &call, NULL, &same));
    call = sum_of(buffer + 4, 4, &purpose);
    REQUIRE_OK(prepared_create(group, &call, NULL, &prepared));
    for (int i = 0; i < 10; i++) {
        CHECK_OK(prepared_start(same));
        CHECK_OK(prepared_wait(same));
    }
    CHECK_OK(prepared_start(prepared));
    CHECK_STATUS(prepared_wait(prepared), SHOAL_ERR_MISMATCH);
    CHECK_STATUS(prepared_wait(prepared), SHOAL_ERR_MISMATCH); /* the outcome stays */
    CHECK(!prepared_is_running(prepared));
    CHECK_STATUS(prepared_start(same), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("failed before");
    CHECK(!prepared_is_running(same));
    CHECK_OK(prepared_wait(same));
    CHECK_STATUS(prepared_run(same), SHOAL_ERR_MISMATCH);
    prepared_free(prepared);
    prepared_free(same);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(a_peer_that_does_not_come_is_waited_for_until_the_deadline, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_group_create(world, (const int[]){0, 1}, 2, "late", &group));
    float buffer[4] = {0};
    struct prepared *prepared = NULL;
    struct collective call = sum_of(buffer, 4, NULL);
    REQUIRE_OK(prepared_create(group, &call, NULL, &prepared));
    CHECK_OK(prepared_start(prepared));
    CHECK_OK(prepared_wait(prepared));
    REQUIRE_OK(shoal_group_set_timeout(group, 0.1));
    if (self->rank == 0) {
        CHECK_OK(prepared_start(prepared));
        CHECK_STATUS(prepared_wait(prepared), SHOAL_ERR_TIMEOUT);
    }
    test_barrier(self);
    prepared_free(prepared);
    CHECK_OK(shoal_world_close(world));
}

TEST_PROCESSES(a_peer_that_dies_is_told, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    float buffer[4] = {0};
    struct prepared *prepared = NULL;
    struct collective call = sum_of(buffer, 4, NULL);
    REQUIRE_OK(prepared_create(shoal_world_group(world), &call, NULL, &prepared));
    for (int i = 0; i < 50; i++) {
        CHECK_OK(prepared_start(prepared));
        CHECK_OK(prepared_wait(prepared));
    }
    test_expect_death(2, SIGKILL);
    if (self->rank == 2) {
        (void)raise(SIGKILL);
    }
    shoal_status status = SHOAL_OK;
    while (status == SHOAL_OK) {
        status = prepared_start(prepared);
        if (status == SHOAL_OK) {
            status = prepared_wait(prepared);
        }
    }
    CHECK_INT(status, SHOAL_ERR_PEER);
    prepared_free(prepared);
    (void)shoal_world_close(world);
}

/* Ends ------------------------------------------------------------------------------------------------- */

/* Freed while it runs: it ends first, so that the peer, which waits, gets its sum. */
TEST_RANKS(freeing_ends_what_runs, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    float buffer[4] = {1, 1, 1, 1};
    for (int i = 0; i < 20; i++) {
        struct prepared *prepared = NULL;
        struct collective call = sum_of(buffer, 4, NULL);
        REQUIRE_OK(prepared_create(group, &call, NULL, &prepared));
        fill(buffer, 4, self->rank, (size_t)i);
        CHECK_OK(prepared_start(prepared));
        prepared_free(prepared);
        CHECK(is_sum(buffer, 4, 2, (size_t)i));
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(a_closed_group_is_told, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_group_create(world, (const int[]){0, 1}, 2, "closed", &group));
    float buffer[4] = {0};
    struct prepared *prepared = NULL;
    struct collective call = sum_of(buffer, 4, NULL);
    REQUIRE_OK(prepared_create(group, &call, NULL, &prepared));
    CHECK_OK(prepared_start(prepared));
    CHECK_OK(prepared_wait(prepared));
    CHECK_OK(shoal_group_close(group));
    CHECK_STATUS(prepared_start(prepared), SHOAL_ERR_STATE);
    CHECK_STATUS(prepared_run(prepared), SHOAL_ERR_STATE);
    CHECK_OK(shoal_world_close(world));
    CHECK_STATUS(prepared_start(prepared), SHOAL_ERR_STATE);
    prepared_free(prepared);
}

/* The world ends first what is in flight; the prepared one then has that outcome. */
TEST_RANKS(a_world_may_end_before_it, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    float buffer[4] = {0};
    struct prepared *prepared = NULL;
    struct collective call = sum_of(buffer, 4, NULL);
    REQUIRE_OK(prepared_create(shoal_world_group(world), &call, NULL, &prepared));
    CHECK_OK(prepared_start(prepared));
    test_barrier(self);
    (void)shoal_world_close(world);
    (void)prepared_wait(prepared);
    CHECK(!prepared_is_running(prepared));
    prepared_free(prepared);
}

static void start_in_child(void *context)
{
    CHECK_STATUS(prepared_start(context), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("fork");
}

TEST_RANKS(a_forked_child_may_not_start, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    float buffer[4] = {0};
    struct prepared *prepared = NULL;
    struct collective call = sum_of(buffer, 4, NULL);
    REQUIRE_OK(prepared_create(shoal_world_group(world), &call, NULL, &prepared));
    CHECK_OK(prepared_start(prepared));
    CHECK_OK(prepared_wait(prepared));
    if (!self->is_process) {
        test_in_child(start_in_child, prepared);
    }
    prepared_free(prepared);
    CHECK_OK(shoal_world_close(world));
}
