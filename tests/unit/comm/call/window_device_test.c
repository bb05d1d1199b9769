/* SPDX-License-Identifier: MIT */
/*
 * Windows in memory of a device: what ops have been asked to read is read before it is overwritten or freed, and what
 * fails: other devices, calls of the device, work that hangs, ranks that die, transports without them.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixtures/rank_world.h"
#include "fixtures/test_device.h"
#include "harness/harness.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/scope.h"
#include "shoal/window.h"

enum {
    SHARD = 501 /* elements of each rank */
};

static shoal_device apart(void)
{
    shoal_device device = SHOAL_CPU;
    CHECK_OK(shoal_device_find("apart", &device));
    return device;
}

/* A window, and this rank's shard, in a scope of its own. */
struct gathered {
    struct rank *self;
    shoal_world *world;
    shoal_window *window;
    shoal_tensor *shard;
};

static shoal_status make_window(struct gathered *g)
{
    return shoal_window_create_on(shoal_world_group(g->world),
                                  (size_t)g->self->n_ranks * SHARD * sizeof(float), apart(), &g->window);
}

static bool begin(struct gathered *g, struct rank *self, int round)
{
    *g = (struct gathered){.self = self, .world = rank_world_open(self, round)};
    return g->world && CHECK_OK(make_window(g)) && CHECK_OK(shoal_scope_begin());
}

/* `is_failed`: the world may be closed with an error. */
static void end(struct gathered *g, bool is_failed)
{
    shoal_status ended = shoal_scope_end();
    CHECK(ended == SHOAL_OK || is_failed);
    shoal_window_free(g->window);
    shoal_status closed = shoal_world_close(g->world);
    CHECK(closed == SHOAL_OK || is_failed);
}

static double value_at(int rank, int generation)
{
    return rank * 1000.0 + generation * 7.0 + 1.0;
}

/* The shard of a generation is written by an op, which need not be done when the gather is issued. */
static shoal_window_piece make_shard(struct gathered *g, int generation)
{
    const int64_t shape = SHARD;
    struct address address = ADDRESS_NONE;
    double value = value_at(g->self->rank, generation);
    shoal_tensor *half = shoal_to_device(shoal_full(&shape, 1, value / 2, SHOAL_F32), apart());
    g->shard = shoal_add(half, half);
    CHECK(g->shard != NULL);
    CHECK_OK(tensor_address(g->shard, &address));
    return (shoal_window_piece){.data = address_pointer(address),
                                .count = SHARD,
                                .data_dtype = SHOAL_F32,
                                .window_dtype = SHOAL_F32,
                                .offset = (size_t)g->self->rank * SHARD * sizeof(float)};
}

static shoal_status gather(struct gathered *g, int generation)
{
    shoal_window_piece piece = make_shard(g, generation);
    return shoal_window_gather(g->window, &piece, 1, (uint64_t)generation);
}

static shoal_work *start(struct gathered *g, int generation)
{
    shoal_work *work = NULL;
    shoal_window_piece piece = make_shard(g, generation);
    CHECK_OK(shoal_window_gather_start(g->window, &piece, 1, (uint64_t)generation, &work));
    return work;
}

static void finish(shoal_work *work)
{
    CHECK_OK(shoal_work_wait(work, -1));
    shoal_work_free(work);
}

/* What an op reads of the window, sooner or later. */
static shoal_tensor *read_later(const struct gathered *g)
{
    const int64_t shape = (int64_t)g->self->n_ranks * SHARD;
    void *data = (void *)(uintptr_t)shoal_window_data(g->window);
    shoal_tensor *view = shoal_from_device_memory(apart(), data, &shape, 1, SHOAL_F32, NULL, NULL, NULL);
    return shoal_add_scalar(view, 0.5);
}

static void check_read(const struct gathered *g, const shoal_tensor *copy, int generation)
{
    const float *values = test_data(copy);
    REQUIRE(values != NULL);
    for (int rank = 0; rank < g->self->n_ranks; rank++) {
        float wanted = (float)value_at(rank, generation) + 0.5F;
        int i = 0;
        while (i < SHARD && values[rank * SHARD + i] == wanted) {
            i++;
        }
        if (i < SHARD) {
            test_failed(__FILE__, __LINE__, "generation %d, rank %d, element %d: %g, expected %g", generation,
                        rank, i, (double)values[rank * SHARD + i], (double)wanted);
            return;
        }
    }
}

/* Failures, with ranks as processes, before there are threads of the device ------------------------------- */

TEST_PROCESSES(other_devices_are_refused_everywhere, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_device beside = SHOAL_CPU;
    shoal_window *window = NULL;
    REQUIRE(world);
    REQUIRE_OK(shoal_device_find("beside", &beside));
    const shoal_device others[] = {SHOAL_CPU, beside};
    const char *const words[] = {"rank 0 asked for memory of device apart, rank 1 for that of cpu",
                                 "rank 0 asked for memory of device apart, rank 1 for that of beside"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        shoal_device device = self->rank == 1 ? others[i] : apart();
        CHECK_STATUS(shoal_window_create_on(shoal_world_group(world), 64, device, &window),
                     SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(words[i]);
    }
    CHECK_STATUS(shoal_window_create_on(shoal_world_group(world), 64, SHOAL_META, &window),
                 SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("window_create: device meta has no data");
    CHECK_STATUS(shoal_window_create_on(shoal_world_group(world), 64, (shoal_device)99, &window),
                 SHOAL_ERR_INVALID);
    CHECK(window == NULL);
    for (size_t bytes = 0; bytes <= 64; bytes += 64) {
        REQUIRE_OK(shoal_window_create_on(shoal_world_group(world), bytes, apart(), &window));
        CHECK_OK(shoal_window_gather(window, NULL, 0, 0));
        shoal_window_free(window);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Each call of the device that making a window makes, on the rank that makes the memory and on one that maps it. */
TEST_PROCESSES(a_call_of_the_device_fails_while_a_window_is_made, 3)
{
    if (HARNESS_HAS_TSAN) {
        test_skip("nothing orders the work of a device that has failed");
        return;
    }
    for (int round = 0; round < 12; round++) {
        shoal_window *window = NULL;
        shoal_world *world = rank_world_open(self, round);
        REQUIRE(world);
        bool is_it = self->rank == round % 2;
        (void)apart();
        atomic_store(&test_apart()->fail_at, is_it ? 1 + round / 2 : 0);
        shoal_status status = shoal_window_create_on(shoal_world_group(world), 100000, apart(), &window);
        bool has_failed = atomic_exchange(&test_apart()->fail_at, 0) == 0 && is_it;
        if (status == SHOAL_OK) {
            CHECK(window != NULL);
            shoal_window_free(window);
        } else {
            char words[64];
            (void)snprintf(words, sizeof words, "window_create: rank %d: device apart", round % 2);
            CHECK_INT(status, SHOAL_ERR_SYSTEM);
            CHECK(window == NULL);
            CHECK_ERROR_TEXT(words);
            CHECK(has_failed || !is_it);
        }
        test_forget_failure();
        CHECK_OK(shoal_group_barrier(shoal_world_group(world))); /* the group can be used */
        CHECK_OK(shoal_world_close(world));
    }
}

TEST_PROCESSES(a_device_that_fails_before_a_release, 2)
{
    if (HARNESS_HAS_TSAN) {
        test_skip("nothing orders the work of a device that has failed");
        return;
    }
    struct gathered g;
    REQUIRE(begin(&g, self, 0));
    CHECK_OK(gather(&g, 1));
    shoal_work *work = start(&g, 2);
    test_barrier(self);
    if (self->rank == 1) {
        atomic_store(&test_apart()->fail_at, 1);
        CHECK_STATUS(shoal_window_release(g.window), SHOAL_ERR_SYSTEM);
        CHECK_ERROR_TEXT("device apart has failed");
    } else {
        CHECK_OK(shoal_window_release(g.window));
    }
    shoal_status status = shoal_work_wait(work, -1);
    CHECK(status == SHOAL_ERR_SYSTEM || status == SHOAL_ERR_PEER);
    shoal_work_free(work);
    test_barrier(self);
    test_forget_failure();
    end(&g, true);
}

TEST_PROCESSES(reads_that_do_not_end, 2)
{
    struct gathered g;
    REQUIRE(begin(&g, self, 0));
    CHECK_OK(gather(&g, 1));
    CHECK_OK(shoal_group_set_timeout(shoal_world_group(g.world), 0.5));
    if (self->rank == 1) {
        atomic_store(&test_apart()->held_stream, stream_compute(apart()));
        (void)read_later(&g);
    }
    CHECK_OK(shoal_window_release(g.window));
    shoal_work *work = start(&g, 2);
    CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_TIMEOUT);
    shoal_work_free(work);
    atomic_store(&test_apart()->held_stream, NULL);
    end(&g, true);
}

TEST_PROCESSES(a_rank_dies_before_it_releases, 3)
{
    struct gathered g;
    REQUIRE(begin(&g, self, 0));
    CHECK_OK(gather(&g, 1));
    test_expect_death(2, SIGKILL);
    if (self->rank == 2) {
        (void)kill(getpid(), SIGKILL);
    }
    CHECK_OK(shoal_window_release(g.window));
    CHECK_STATUS(gather(&g, 2), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 2");
    end(&g, true);
}

TEST_PROCESSES(transports_without_them, 2)
{
    if (!rank_hears_by_messages()) {
        test_skip("ranks share memory");
        return;
    }
    shoal_window *window = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    CHECK_STATUS(shoal_window_create_on(shoal_world_group(world), 64, apart(), &window),
                 SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("which has no windows on device apart");
    CHECK_OK(shoal_world_close(world));
}

/* With ranks as threads, too ------------------------------------------------------------------------------- */

static void go_through_generations(struct rank *self)
{
    enum {
        N_GENERATIONS = 20
    };
    shoal_tensor *copies[N_GENERATIONS];
    struct gathered g;
    REQUIRE(begin(&g, self, 0));
    for (int i = 0; i < N_GENERATIONS && !test_has_failed(); i++) {
        if (i % 3 == 0) {
            CHECK_OK(gather(&g, i));
        } else {
            finish(start(&g, i));
        }
        copies[i] = read_later(&g);
        CHECK_OK(shoal_window_release(g.window));
    }
    for (int i = 0; i < N_GENERATIONS && !test_has_failed(); i++) {
        check_read(&g, copies[i], i);
    }
    end(&g, false);
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

/* Every rank starts the next gather before it has released, and releases before its op has read. */
TEST_RANKS(gathers_that_start_before_the_release, 3)
{
    struct gathered g;
    REQUIRE(begin(&g, self, 0));
    CHECK_OK(gather(&g, 0));
    for (int i = 0; i < 20 && !test_has_failed(); i++) {
        shoal_work *work = start(&g, i + 1);
        shoal_tensor *copy = read_later(&g);
        CHECK_OK(shoal_window_release(g.window));
        finish(work);
        check_read(&g, copy, i);
    }
    end(&g, false);
}

/* As long as the op of one rank has not read, nobody has the next generation. */
TEST_PROCESSES(an_op_that_reads_late_is_waited_for, 3)
{
    struct gathered g;
    shoal_tensor *copy = NULL;
    REQUIRE(begin(&g, self, 0));
    CHECK_OK(gather(&g, 0));
    shoal_window_piece piece = make_shard(&g, 1);
    shoal_work *work = NULL;
    test_finish(apart());
    REQUIRE_OK(shoal_window_gather_start(g.window, &piece, 1, 1, &work));
    if (self->rank == 1) {
        atomic_store(&test_apart()->held_stream, stream_compute(apart()));
        copy = read_later(&g);
    }
    CHECK_OK(shoal_window_release(g.window));
    CHECK_STATUS(shoal_work_wait(work, 0.1), SHOAL_ERR_TIMEOUT);
    test_barrier(self);
    CHECK(!shoal_work_test(work));
    test_barrier(self);
    atomic_store(&test_apart()->held_stream, NULL);
    finish(work);
    if (copy) {
        check_read(&g, copy, 0);
    }
    copy = read_later(&g);
    check_read(&g, copy, 1);
    end(&g, false);
}

/* The memory stays until the op has read it, even if another window is made meanwhile. */
TEST_RANKS(a_window_is_replaced_while_it_is_read, 3)
{
    struct gathered g;
    REQUIRE(begin(&g, self, 0));
    for (int i = 0; i < 10 && !test_has_failed(); i++) {
        CHECK_OK(gather(&g, i));
        shoal_tensor *copy = read_later(&g);
        shoal_window_free(g.window); /* not released either */
        g.window = NULL;
        CHECK_OK(make_window(&g));
        check_read(&g, copy, i);
    }
    end(&g, false);
}

/* Pieces are converted, some ranks have none, and the bytes that nobody writes are zero. */
TEST_RANKS(pieces_are_converted, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_window *window = NULL;
    REQUIRE(world);
    REQUIRE_OK(shoal_window_create_on(shoal_world_group(world), 64, apart(), &window));
    REQUIRE_OK(shoal_scope_begin());
    const float floats[] = {1.5F, -2.0F, 300.0F};
    struct address address = ADDRESS_NONE;
    shoal_tensor *there = shoal_to_device(
        shoal_from_memory((void *)(uintptr_t)floats, (const int64_t[]){3}, 1, SHOAL_F32, NULL, NULL, NULL),
        apart());
    CHECK_OK(tensor_address(there, &address));
    const shoal_window_piece pieces[] = {{.data = address_pointer(address),
                                          .count = 3,
                                          .data_dtype = SHOAL_F32,
                                          .window_dtype = SHOAL_BF16,
                                          .offset = 2},
                                         {.data = address_pointer(address),
                                          .count = 2,
                                          .data_dtype = SHOAL_F32,
                                          .window_dtype = SHOAL_F64,
                                          .offset = 16}};
    REQUIRE_OK(shoal_window_gather(window, pieces, self->rank == 0 ? 2 : 0, 9));
    const char *data = test_reach(apart(), address_of(shoal_window_data(window)), 64);
    CHECK_BYTES(data, ((const uint16_t[]){0, 0x3fc0, 0xc000, 0x4396}), 8);
    CHECK_BYTES(data + 16, ((const double[]){1.5, -2.0, 0.0}), 24);
    CHECK_OK(shoal_window_release(window));
    CHECK_OK(shoal_scope_end());
    shoal_window_free(window);
    CHECK_OK(shoal_world_close(world));
}
