/* SPDX-License-Identifier: MIT */
/*
 * More on its way than any buffer holds: large messages in both directions at once, thousands of tags that nobody reads
 * yet, many ranks, and a rank that stops for longer than its peers wait.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

static int32_t element(int rank, size_t i)
{
    return (int32_t)(i * 13 + (size_t)rank * 7 + 1);
}

static int32_t *make(int rank, size_t count)
{
    int32_t *data = malloc(count * sizeof *data);
    for (size_t i = 0; data && i < count; i++) {
        data[i] = element(rank, i);
    }
    return data;
}

static void check_elements(const int32_t *data, int rank, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (data[i] != element(rank, i)) {
            test_failed(__FILE__, __LINE__, "element %zu of %zu is %d", i, count, data[i]);
            return;
        }
    }
}

struct exchange {
    shoal_group *group;
    size_t count;
    int rank;
};

/* Collectives of another group, on a thread of their own, over the same connections. */
static void *exchange_all(void *context)
{
    const struct exchange *exchange = context;
    int32_t *out = make(exchange->rank, 2 * exchange->count);
    int32_t *in = malloc(2 * exchange->count * sizeof *in);
    if (out && in && CHECK_OK(shoal_group_all_to_all(exchange->group, out, in, exchange->count, SHOAL_I32))) {
        for (int from = 0; from < 2; from++) {
            const int32_t *block = in + (size_t)from * exchange->count;
            CHECK_INT(block[0], element(from, (size_t)exchange->rank * exchange->count));
        }
    }
    free(out);
    free(in);
    return NULL;
}

/* Both ranks send before either receives: 72 MiB each way, and collectives of another group beside them. */
TEST_RANKS(both_directions_are_full, 2)
{
    enum {
        COUNT = 18 << 20
    };
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    static const int both[2] = {0, 1};
    shoal_group *group = shoal_world_group(world);
    struct exchange exchange = {.count = COUNT / 8, .rank = self->rank};
    REQUIRE_OK(shoal_group_create(world, both, 2, "beside", &exchange.group));
    int32_t *out = make(self->rank, COUNT);
    int32_t *in = calloc(COUNT, sizeof *in);
    REQUIRE(out && in);
    pthread_t thread;
    shoal_work *work = NULL;
    REQUIRE_OK(shoal_group_send_start(group, out, COUNT, SHOAL_I32, 1 - self->rank, 3, &work));
    REQUIRE(pthread_create(&thread, NULL, exchange_all, &exchange) == 0);
    CHECK_OK(shoal_group_recv(group, in, COUNT, SHOAL_I32, 1 - self->rank, 3));
    CHECK_OK(shoal_work_wait(work, -1));
    shoal_work_free(work);
    REQUIRE(pthread_join(thread, NULL) == 0);
    check_elements(in, 1 - self->rank, COUNT);
    free(out);
    free(in);
    CHECK_OK(shoal_world_close(world));
}

/* All are sent before the first is received, and received from the last. */
TEST_RANKS(thousands_of_tags, 2)
{
    enum {
        N_TAGS = 1000, /* shared memory offers no more than 1022 */
        COUNT = 40
    };
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    int peer = 1 - self->rank;
    int32_t out[COUNT];
    int32_t in[COUNT];
    for (int tag = 0; tag < N_TAGS && !test_has_failed(); tag++) {
        for (size_t i = 0; i < COUNT; i++) {
            out[i] = element(self->rank + tag, i);
        }
        CHECK_OK(shoal_group_send(group, out, COUNT, SHOAL_I32, peer, tag));
    }
    CHECK_OK(shoal_group_barrier(group));
    for (int tag = N_TAGS - 1; tag >= 0 && !test_has_failed(); tag--) {
        CHECK_OK(shoal_group_recv(group, in, COUNT, SHOAL_I32, peer, tag));
        check_elements(in, peer + tag, COUNT);
    }
    CHECK_OK(shoal_world_close(world));
}

TEST_PROCESSES(sixteen_ranks, 16)
{
    enum {
        COUNT = 50000
    };
    test_deadline(120);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    int32_t *data = make(self->rank, COUNT);
    int32_t *all = calloc(16 * COUNT, sizeof *all);
    REQUIRE(data && all);
    CHECK_OK(shoal_group_all_gather(group, data, all, COUNT, SHOAL_I32));
    for (int from = 0; from < 16; from++) {
        check_elements(all + (size_t)from * COUNT, from, COUNT);
    }
    CHECK_OK(shoal_group_all_reduce(group, data, data, COUNT, SHOAL_I32, SHOAL_MAX));
    CHECK_INT(data[0], element(15, 0));
    free(data);
    free(all);
    CHECK_OK(shoal_world_close(world));
}

/* It goes on when the others have given up: it hears of that, and another group is fine. */
TEST_PROCESSES(a_rank_that_stops_for_too_long, 3)
{
    enum {
        COUNT = 2 << 20
    };
    static const int everybody[3] = {0, 1, 2};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = NULL;
    int32_t *data = make(self->rank, COUNT);
    REQUIRE(data);
    REQUIRE_OK(shoal_group_create(world, everybody, 3, "stopped", &group));
    CHECK_OK(shoal_group_barrier(group));
    CHECK_OK(shoal_group_set_timeout(group, 0.5 * test_time_scale()));
    test_barrier(self);
    if (self->rank == 0) {
        test_signal(1, SIGSTOP);
    }
    if (self->rank != 1) {
        CHECK_STATUS(shoal_group_all_reduce(group, data, data, COUNT, SHOAL_I32, SHOAL_SUM),
                     SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 1");
        test_pause(1.0);
    }
    if (self->rank == 0) {
        test_signal(1, SIGCONT);
    }
    test_barrier(self);
    if (self->rank == 1) {
        CHECK_STATUS(shoal_group_all_reduce(group, data, data, COUNT, SHOAL_I32, SHOAL_SUM),
                     SHOAL_ERR_TIMEOUT);
    }
    CHECK_OK(shoal_group_close(group));
    REQUIRE_OK(shoal_group_create(world, everybody, 3, "afterwards", &group));
    CHECK_OK(shoal_group_all_reduce(group, data, data, COUNT, SHOAL_I32, SHOAL_SUM));
    CHECK_OK(shoal_group_close(group));
    free(data);
    CHECK_OK(shoal_world_close(world));
}
