/* SPDX-License-Identifier: MIT */
/* Windows on 1 to 4 ranks: generations, readers that take their time, mistakes, lifetimes. */
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "fixtures/rank_world.h"
#include "fixtures/world_allocations.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/window.h"
#include "sharedmem/segment.h"

#define SHARD 500 /* elements of each rank */
#define MAX_RANKS 4

static float value_at(int rank, uint64_t generation, size_t i)
{
    return (float)((uint64_t)rank * 1000 + generation * 7 + i % 64);
}

static shoal_window_piece shard_piece(float *shard, int rank, uint64_t generation)
{
    for (size_t i = 0; i < SHARD; i++) {
        shard[i] = value_at(rank, generation, i);
    }
    return (shoal_window_piece){.data = shard,
                                .count = SHARD,
                                .data_dtype = SHOAL_F32,
                                .window_dtype = SHOAL_F32,
                                .offset = (size_t)rank * SHARD * sizeof(float)};
}

static void check_generation(const shoal_window *window, int n_ranks, uint64_t generation)
{
    const float *data = shoal_window_data(window);
    for (int rank = 0; rank < n_ranks; rank++) {
        size_t i = 0;
        while (i < SHARD && data[(size_t)rank * SHARD + i] == value_at(rank, generation, i)) {
            i++;
        }
        CHECK_INT(i, SHARD);
    }
}

static shoal_window *create_window(shoal_world *world)
{
    shoal_window *window = NULL;
    size_t bytes = (size_t)shoal_world_n_ranks(world) * SHARD * sizeof(float);
    if (CHECK_OK(shoal_window_create(shoal_world_group(world), bytes, &window))) {
        CHECK_INT(shoal_window_bytes(window), bytes);
        CHECK_INT((uintptr_t)shoal_window_data(window) % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
    }
    return window;
}

/* Generations ------------------------------------------------------------------------------------------ */

static void go_through_generations(struct rank *self)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_window *window = create_window(world);
    REQUIRE(window != NULL);
    float shard[SHARD];
    for (uint64_t generation = 1; generation <= 40 && !test_has_failed(); generation++) {
        shoal_window_piece piece = shard_piece(shard, self->rank, generation);
        if (generation % 2) {
            CHECK_OK(shoal_window_gather(window, &piece, 1, generation));
        } else {
            shoal_work *work = NULL;
            REQUIRE_OK(shoal_window_gather_start(window, &piece, 1, generation, &work));
            CHECK_OK(shoal_work_wait(work, -1));
            shoal_work_free(work);
        }
        check_generation(window, self->n_ranks, generation);
        CHECK_OK(shoal_window_release(window));
    }
    shoal_window_free(window);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(one_rank_goes_through_generations, 1)
{
    go_through_generations(self);
}

TEST_RANKS(two_ranks_go_through_generations, 2)
{
    go_through_generations(self);
}

TEST_RANKS(three_ranks_go_through_generations, 3)
{
    go_through_generations(self);
}

TEST_RANKS(four_ranks_go_through_generations, 4)
{
    go_through_generations(self);
}

/* The last rank keeps reading the first generation while all the others have begun the second one. */
TEST_RANKS(a_slow_reader_is_waited_for, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_window *window = create_window(world);
    REQUIRE(window != NULL);
    bool is_slow = self->rank == self->n_ranks - 1;
    float first[SHARD];
    float second[SHARD];
    shoal_window_piece piece = shard_piece(first, self->rank, 1);
    REQUIRE_OK(shoal_window_gather(window, &piece, 1, 1));
    piece = shard_piece(second, self->rank, 2);
    shoal_work *work = NULL;
    if (!is_slow) {
        CHECK_OK(shoal_window_release(window));
    }
    /* Even the slow one can start the next: its own write waits for its own release. */
    REQUIRE_OK(shoal_window_gather_start(window, &piece, 1, 2, &work));
    test_barrier(self);
    CHECK(!shoal_work_test(work));
    CHECK_STATUS(shoal_work_wait(work, 0.05), SHOAL_ERR_TIMEOUT);
    if (is_slow) {
        check_generation(window, self->n_ranks, 1);
    }
    test_barrier(self);
    if (is_slow) {
        check_generation(window, self->n_ranks, 1);
        CHECK_OK(shoal_window_release(window));
    }
    CHECK_OK(shoal_work_wait(work, -1));
    check_generation(window, self->n_ranks, 2);
    CHECK_OK(shoal_window_release(window));
    shoal_work_free(work);
    shoal_window_free(window);
    CHECK_OK(shoal_world_close(world));
}

/* As a sharded model does it: while one window is read, the next is gathered. */
TEST_RANKS(two_windows_take_turns, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_window *windows[2] = {create_window(world), create_window(world)};
    REQUIRE(windows[0] != NULL && windows[1] != NULL);
    float shards[2][SHARD];
    shoal_work *works[2] = {NULL, NULL};
    shoal_window_piece piece = shard_piece(shards[0], self->rank, 0);
    REQUIRE_OK(shoal_window_gather_start(windows[0], &piece, 1, 0, &works[0]));
    for (uint64_t step = 0; step < 60 && !test_has_failed(); step++) {
        size_t now = step % 2;
        size_t next = 1 - now;
        piece = shard_piece(shards[next], self->rank, step + 1);
        REQUIRE_OK(shoal_window_gather_start(windows[next], &piece, 1, step + 1, &works[next]));
        CHECK_OK(shoal_work_wait(works[now], -1));
        shoal_work_free(works[now]);
        check_generation(windows[now], self->n_ranks, step);
        CHECK_OK(shoal_window_release(windows[now]));
    }
    CHECK_OK(shoal_work_wait(works[0], -1));
    shoal_work_free(works[0]);
    shoal_window_free(windows[0]);
    /* The other is left to the world. */
    CHECK_OK(shoal_world_close(world));
}

/* A release on another thread lets a gather go on that was started before. */
static void *release_later(void *context)
{
    CHECK_OK(shoal_window_release(context));
    return NULL;
}

TEST_RANKS(another_thread_may_release, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_window *window = create_window(world);
    REQUIRE(window != NULL);
    float shards[2][SHARD];
    shoal_window_piece piece = shard_piece(shards[0], self->rank, 1);
    REQUIRE_OK(shoal_window_gather(window, &piece, 1, 0));
    piece = shard_piece(shards[1], self->rank, 2);
    shoal_work *work = NULL;
    REQUIRE_OK(shoal_window_gather_start(window, &piece, 1, 0, &work));
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, release_later, window), 0);
    CHECK_OK(shoal_work_wait(work, -1));
    CHECK_INT(pthread_join(thread, NULL), 0);
    check_generation(window, self->n_ranks, 2);
    shoal_work_free(work);
    shoal_window_free(window);
    CHECK_OK(shoal_world_close(world));
}

/* Pieces ----------------------------------------------------------------------------------------------- */

/* Rank 0 writes three pieces with casts, rank 1 one, rank 2 none. */
TEST_RANKS(pieces_differ_between_ranks, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_window *window = NULL;
    REQUIRE_OK(shoal_window_create(shoal_world_group(world), 64, &window));
    const float floats[] = {1.5f, -2.0f, 300.7f};
    const int32_t numbers[] = {70000, -1};
    const shoal_window_piece of_first[] = {
        {.data = floats, .count = 3, .data_dtype = SHOAL_F32, .window_dtype = SHOAL_I16, .offset = 1},
        {.data = numbers, .count = 2, .data_dtype = SHOAL_I32, .window_dtype = SHOAL_F64, .offset = 16},
        {.data = NULL, .count = 0, .data_dtype = SHOAL_U8, .window_dtype = SHOAL_U8, .offset = 64},
    };
    const shoal_window_piece of_second[] = {
        {.data = numbers, .count = 2, .data_dtype = SHOAL_I32, .window_dtype = SHOAL_I32, .offset = 56}};
    const shoal_window_piece *const pieces[] = {of_first, of_second, NULL};
    const size_t n_pieces[] = {3, 1, 0};
    REQUIRE_OK(shoal_window_gather(window, pieces[self->rank], n_pieces[self->rank], 9));
    const char *data = shoal_window_data(window);
    CHECK_BYTES(data + 1, ((const int16_t[]){1, -2, 300}), 6);
    CHECK_BYTES(data + 16, ((const double[]){70000, -1}), 16);
    CHECK_BYTES(data + 56, numbers, 8);
    CHECK_INT(data[0], 0);
    CHECK_OK(shoal_window_release(window));
    shoal_window_free(window);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(bad_pieces_are_refused, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_window *window = NULL;
    REQUIRE_OK(shoal_window_create(shoal_world_group(world), 100, &window));
    char byte = 1;
    const struct {
        shoal_window_piece piece;
        const char *words;
    } cases[] = {
        {{.data = &byte, .count = 26, .data_dtype = SHOAL_I8, .window_dtype = SHOAL_F32},
         "piece 1: 104 bytes at offset 0 do not fit into a window of 100"},
        {{.data = &byte, .count = 1, .data_dtype = SHOAL_I8, .window_dtype = SHOAL_I8, .offset = 100},
         "1 bytes at offset 100 do not fit"},
        {{.data = &byte, .count = 0, .data_dtype = SHOAL_I8, .window_dtype = SHOAL_I8, .offset = 101},
         "0 bytes at offset 101 do not fit"},
        {{.data = &byte, .count = 1, .data_dtype = SHOAL_I8, .window_dtype = SHOAL_I8, .offset = SIZE_MAX},
         "do not fit"},
        {{.data = &byte, .count = SIZE_MAX / 2, .data_dtype = SHOAL_I8, .window_dtype = SHOAL_F64},
         "are more than memory"},
        {{.data = &byte, .count = SIZE_MAX / 2, .data_dtype = SHOAL_F64, .window_dtype = SHOAL_I8},
         "are more than memory"},
        {{.data = NULL, .count = 1, .data_dtype = SHOAL_I8, .window_dtype = SHOAL_I8},
         "data is NULL, but count is 1"},
        {{.data = &byte, .count = 1, .data_dtype = (shoal_dtype)0, .window_dtype = SHOAL_I8},
         "data_dtype 0 is not a dtype"},
        {{.data = &byte, .count = 1, .data_dtype = SHOAL_I8, .window_dtype = (shoal_dtype)99},
         "window_dtype 99 is not a dtype"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const shoal_window_piece pieces[] = {
            {.data = &byte, .count = 1, .data_dtype = SHOAL_I8, .window_dtype = SHOAL_I8}, cases[i].piece};
        CHECK_STATUS(shoal_window_gather(window, pieces, 2, 0), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(cases[i].words);
        shoal_work *work = NULL;
        CHECK_STATUS(shoal_window_gather_start(window, pieces, 2, 0, &work), SHOAL_ERR_INVALID);
        CHECK(work == NULL);
    }
    CHECK_STATUS(shoal_window_gather(window, NULL, 1, 0), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("pieces is NULL, but n_pieces is 1");
    CHECK_STATUS(shoal_window_gather(NULL, NULL, 0, 0), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_window_gather_start(window, NULL, 0, 0, NULL), SHOAL_ERR_INVALID);
    shoal_window *none = NULL;
    CHECK_STATUS(shoal_window_create(NULL, 1, &none), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_window_create(shoal_world_group(world), 1, NULL), SHOAL_ERR_INVALID);
    CHECK(shoal_window_data(NULL) == NULL);
    CHECK_INT(shoal_window_bytes(NULL), 0);
    shoal_window_free(NULL);
    /* None of it began a generation. */
    CHECK_STATUS(shoal_window_release(window), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("nothing was gathered yet");
    CHECK_STATUS(shoal_window_release(NULL), SHOAL_ERR_INVALID);
    shoal_window_free(window);
    CHECK_OK(shoal_world_close(world));
}

/* States and agreement --------------------------------------------------------------------------------- */

TEST_RANKS(generations_are_released_once, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_window *window = create_window(world);
    REQUIRE(window != NULL);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(shoal_window_gather(window, NULL, 0, 0));
        CHECK_STATUS(shoal_window_gather(window, NULL, 0, 0), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("this rank has not released generation");
        CHECK_OK(shoal_window_release(window));
        CHECK_STATUS(shoal_window_release(window), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("released already");
    }
    shoal_window_free(window);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(labels_are_compared, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_group_create(world, (const int[]){0, 1}, 2, "labels", &group));
    shoal_window *window = NULL;
    REQUIRE_OK(shoal_window_create(group, 64, &window));
    CHECK_STATUS(shoal_window_gather(window, NULL, 0, (uint64_t)(40 + self->rank)), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("window_gather");
    CHECK_STATUS(shoal_group_error(group), SHOAL_ERR_MISMATCH);
    shoal_window_free(window);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(windows_are_told_apart, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_group_create(world, (const int[]){0, 1}, 2, "apart", &group));
    shoal_window *windows[2] = {NULL, NULL};
    REQUIRE_OK(shoal_window_create(group, 64, &windows[0]));
    REQUIRE_OK(shoal_window_create(group, 64, &windows[1]));
    CHECK_STATUS(shoal_window_gather(windows[self->rank], NULL, 0, 7), SHOAL_ERR_MISMATCH);
    shoal_window_free(windows[1]);
    shoal_window_free(windows[0]);
    CHECK_OK(shoal_world_close(world));
}

/* Each rank waits for a release that the other will make after its own gather. */
TEST_RANKS(gathers_that_wait_for_each_other_are_told_apart, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_window *windows[2] = {create_window(world), create_window(world)};
    REQUIRE(windows[0] && windows[1]);
    float shard[SHARD];
    shoal_window_piece piece = shard_piece(shard, self->rank, 1);
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(shoal_window_gather(windows[i], &piece, 1, 0));
    }
    REQUIRE_OK(shoal_window_release(windows[self->rank]));
    CHECK_STATUS(shoal_window_gather(windows[self->rank], &piece, 1, (uint64_t)self->rank),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("label 0");
    CHECK_ERROR_TEXT("label 1");
    shoal_window_free(windows[0]);
    shoal_window_free(windows[1]);
    (void)shoal_world_close(world); /* of a group that has failed */
}

TEST_RANKS(different_sizes_are_refused_everywhere, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_window *window = NULL;
    CHECK_STATUS(shoal_window_create(shoal_world_group(world), self->rank == 1 ? 10 : 20, &window),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("window_create: rank 0 asked for 20 bytes, rank 1 for 10");
    CHECK(window == NULL);
    window = create_window(world);
    CHECK_OK(shoal_window_gather(window, NULL, 0, 0));
    shoal_window_free(window);
    CHECK_OK(shoal_world_close(world));
}

/* Lifetimes -------------------------------------------------------------------------------------------- */

/* A rank that frees early takes nothing from those that still read. */
TEST_RANKS(freeing_is_local, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_window *window = create_window(world);
    REQUIRE(window != NULL);
    float shard[SHARD];
    shoal_window_piece piece = shard_piece(shard, self->rank, 5);
    REQUIRE_OK(shoal_window_gather(window, &piece, 1, 0));
    if (self->rank == 0) {
        shoal_window_free(window);
    }
    test_barrier(self);
    if (self->rank != 0) {
        check_generation(window, self->n_ranks, 5);
    }
    test_barrier(self);
    if (self->rank == 1) {
        shoal_window_free(window);
    }
    CHECK_OK(shoal_world_close(world));
}

TEST(without_peers_gathers_end_at_once)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 8, .rank = 7, .key = "fake", .transport = "fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_window *window = NULL;
    REQUIRE_OK(shoal_window_create(shoal_world_group(world), 64, &window));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(shoal_window_gather(window, NULL, 0, 0));
        CHECK_OK(shoal_window_release(window));
    }
    shoal_window_free(window);
    CHECK_STATUS(shoal_window_create(shoal_world_group(world), SIZE_MAX, &window), SHOAL_ERR_NO_MEMORY);
    REQUIRE_OK(shoal_window_create(shoal_world_group(world), 64, &window));
    CHECK_OK(shoal_world_close(world));
}

static shoal_status use_a_window(void *context)
{
    shoal_window *window = NULL;
    shoal_work *work = NULL;
    float number = 1;
    shoal_window_piece piece = {
        .data = &number, .count = 1, .data_dtype = SHOAL_F32, .window_dtype = SHOAL_BF16, .offset = 2};
    shoal_status status = shoal_window_create(context, 64, &window);
    if (status == SHOAL_OK) {
        status = shoal_window_gather_start(window, &piece, 1, 0, &work);
    }
    if (status == SHOAL_OK) {
        status = shoal_work_wait(work, -1);
    }
    if (status == SHOAL_OK) {
        status = shoal_window_release(window);
    }
    shoal_work_free(work);
    shoal_window_free(window);
    return status;
}

TEST(allocations_may_fail)
{
    check_allocations_alone(use_a_window);
}

TEST_RANKS(allocations_may_fail_with_a_server, 1)
{
    check_allocations_with_server(self, use_a_window);
}
