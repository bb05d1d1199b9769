/* SPDX-License-Identifier: MIT */
/*
 * shoal_group_close: what it frees, what outlives it, and members that do something else.
 *
 * SHOAL_TEST_GROUPS (default 1000): how many groups the last test makes, uses and closes.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixtures/rank_world.h"
#include "fixtures/reading.h"
#include "harness/test.h"
#include "shoal/shoal.h"

#define N_RANKS 3

static const int everybody[N_RANKS] = {0, 1, 2};

static shoal_group *make(shoal_world *world, const char *tag)
{
    shoal_group *group = NULL;
    CHECK_OK(shoal_group_create(world, everybody, N_RANKS, tag, &group));
    return group;
}

static shoal_status sum(shoal_group *group, float *value)
{
    return shoal_group_all_reduce(group, value, value, 1, SHOAL_F32, SHOAL_SUM);
}

/* Again and again under one name: each is a group of its own, and counts from 0. */
TEST_RANKS(the_same_ranks_and_tag_are_a_new_group, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int i = 0; i < 5; i++) {
        shoal_group *group = make(world, "again");
        REQUIRE(group);
        CHECK_INT(shoal_group_sequence(group), 0);
        for (int k = 0; k <= i; k++) {
            float value = (float)(self->rank + i);
            CHECK_OK(sum(group, &value));
            CHECK_DOUBLE((double)value, 3 + 3 * i);
        }
        CHECK_OK(shoal_group_close(group));
        CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_STATE);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Never used before: closing connects. */
TEST_RANKS(a_group_that_nobody_used, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    CHECK_OK(shoal_group_close(make(world, "unused")));
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* Works end before the group does, and can be asked afterwards; so can those that were started last. */
TEST_RANKS(works_end_first_and_can_be_asked_later, N_RANKS)
{
    enum {
        N_WORKS = 40
    };
    static float values[N_RANKS][N_WORKS];
    float *mine = values[self->rank];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, "works");
    REQUIRE(group);
    shoal_work *works[N_WORKS];
    for (int i = 0; i < N_WORKS; i++) {
        mine[i] = (float)i;
        REQUIRE_OK(
            shoal_group_all_reduce_start(group, &mine[i], &mine[i], 1, SHOAL_F32, SHOAL_SUM, &works[i]));
    }
    CHECK_OK(shoal_group_close(group));
    for (int i = 0; i < N_WORKS; i++) {
        CHECK(shoal_work_test(works[i]));
        CHECK_OK(shoal_work_wait(works[i], 0));
        CHECK_DOUBLE((double)mine[i], 3 * i);
        shoal_work_free(works[i]);
    }
    CHECK_OK(shoal_world_close(world));
}

/* A send that was started is taken by its peer; a receive that nobody sends to is cancelled. */
TEST_RANKS(transfers_end_with_the_group, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, "transfers");
    REQUIRE(group);
    int next = (self->rank + 1) % N_RANKS;
    int before = (self->rank + N_RANKS - 1) % N_RANKS;
    enum {
        COUNT = 200000
    };
    static int32_t buffers[N_RANKS][2][COUNT];
    int32_t *out = buffers[self->rank][0];
    int32_t *in = buffers[self->rank][1];
    out[COUNT - 1] = self->rank;
    shoal_work *works[3];
    int32_t never = 0;
    REQUIRE_OK(shoal_group_send_start(group, out, COUNT, SHOAL_I32, next, 0, &works[0]));
    REQUIRE_OK(shoal_group_recv_start(group, in, COUNT, SHOAL_I32, before, 0, &works[1]));
    REQUIRE_OK(shoal_group_recv_start(group, &never, 1, SHOAL_I32, before, 1, &works[2]));
    CHECK_OK(shoal_work_wait(works[1], -1));
    CHECK_OK(shoal_group_close(group));
    CHECK_STRING(shoal_error_text(), "");
    CHECK_INT(in[COUNT - 1], before);
    CHECK_OK(shoal_work_wait(works[0], 0));
    CHECK_STATUS(shoal_work_wait(works[2], 0), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("the group was closed before the transfer had ended");
    for (int i = 0; i < 3; i++) {
        shoal_work_free(works[i]);
    }
    CHECK_STATUS(shoal_group_send(group, &never, 1, SHOAL_I32, next, 0), SHOAL_ERR_STATE);
    CHECK_OK(shoal_world_close(world));
}

/* Nobody has waited for the receives: what was sent before the close arrives, however late their thread is. */
TEST_RANKS(receives_that_were_sent_to_end_well, 2)
{
    enum {
        N_ROUNDS = 50,
        N_MESSAGES = 16,
        N_TAGS = 4,
        COUNT = 5000
    };
    static int32_t buffers[2][2][N_MESSAGES][COUNT];
    int32_t(*out)[COUNT] = buffers[self->rank][0];
    int32_t(*in)[COUNT] = buffers[self->rank][1];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    int peer = 1 - self->rank;
    for (int i = 0; i < N_ROUNDS && !test_has_failed(); i++) {
        shoal_group *group = NULL;
        shoal_work *works[2][N_MESSAGES];
        REQUIRE_OK(shoal_group_create(world, everybody, 2, "sent", &group));
        for (int k = 0; k < N_MESSAGES; k++) {
            out[k][COUNT - 1] = 100 * i + k;
            REQUIRE_OK(
                shoal_group_recv_start(group, in[k], COUNT, SHOAL_I32, peer, k % N_TAGS, &works[0][k]));
        }
        for (int k = 0; k < N_MESSAGES; k++) {
            REQUIRE_OK(
                shoal_group_send_start(group, out[k], COUNT, SHOAL_I32, peer, k % N_TAGS, &works[1][k]));
        }
        CHECK_OK(shoal_group_close(group));
        for (int k = 0; k < N_MESSAGES; k++) {
            CHECK_OK(shoal_work_wait(works[0][k], 0));
            CHECK_OK(shoal_work_wait(works[1][k], 0));
            CHECK_INT(in[k][COUNT - 1], 100 * i + k);
            shoal_work_free(works[0][k]);
            shoal_work_free(works[1][k]);
        }
        test_barrier(self); /* a world that is closed would fail the other rank's */
    }
    CHECK_OK(shoal_world_close(world));
}

/* With many short waits, each of which may be the one that sees the end. */
static void *await_cancelled(void *context)
{
    shoal_status status = SHOAL_ERR_TIMEOUT;
    while (status == SHOAL_ERR_TIMEOUT) {
        status = shoal_work_wait(context, 0.0001);
    }
    CHECK_STATUS(status, SHOAL_ERR_CANCELLED);
    return NULL;
}

/* Threads that wait for works return, and use nothing of the group after it was freed. */
TEST_RANKS(threads_that_wait_while_the_group_is_closed, 2)
{
    enum {
        N_ROUNDS = 50,
        N_THREADS = 3
    };
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int i = 0; i < N_ROUNDS; i++) {
        int32_t never = 0;
        shoal_group *group = NULL;
        shoal_work *works[N_THREADS];
        pthread_t threads[N_THREADS];
        REQUIRE_OK(shoal_group_create(world, everybody, 2, "waits", &group));
        for (int k = 0; k < N_THREADS; k++) {
            REQUIRE_OK(shoal_group_recv_start(group, &never, 1, SHOAL_I32, 1 - self->rank, k, &works[k]));
            REQUIRE(pthread_create(&threads[k], NULL, await_cancelled, works[k]) == 0);
        }
        CHECK_OK(shoal_group_close(group));
        for (int k = 0; k < N_THREADS; k++) {
            REQUIRE(pthread_join(threads[k], NULL) == 0);
            shoal_work_free(works[k]);
        }
    }
    CHECK_OK(shoal_world_close(world));
}

static void *close_aborted(void *context)
{
    CHECK_STATUS(shoal_group_close(context), SHOAL_ERR_CANCELLED);
    return NULL;
}

/* A close that waits, here for a send that nobody takes, is in no other's way. */
TEST_RANKS(another_group_is_closed_meanwhile, 2)
{
    enum {
        COUNT = 4000000
    };
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *slow = NULL;
    shoal_group *quick = NULL;
    REQUIRE_OK(shoal_group_create(world, everybody, 2, "slow", &slow));
    REQUIRE_OK(shoal_group_create(world, everybody, 2, "quick", &quick));
    CHECK_OK(shoal_group_barrier(slow));
    CHECK_OK(shoal_group_barrier(quick));
    CHECK_OK(shoal_group_set_timeout(quick, 5 * test_time_scale()));
    static int32_t buffers[2][COUNT];
    shoal_work *work = NULL;
    if (self->rank == 0) {
        REQUIRE_OK(shoal_group_send_start(slow, buffers[self->rank], COUNT, SHOAL_I32, 1, 0, &work));
    }
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, close_aborted, slow) == 0);
    test_pause(0.2);
    CHECK_OK(shoal_group_close(quick));
    test_barrier(self); /* both have closed it */
    CHECK_OK(shoal_group_abort(slow, "enough"));
    REQUIRE(pthread_join(thread, NULL) == 0);
    shoal_work_free(work);
    CHECK_OK(shoal_group_close(slow));
    CHECK_OK(shoal_world_close(world));
}

struct watch {
    shoal_group *group;
    double delay_s;
};

static void *abort_soon(void *context)
{
    const struct watch *watch = context;
    test_pause(watch->delay_s);
    shoal_status status = shoal_group_abort(watch->group, "watched");
    CHECK(status == SHOAL_OK || status == SHOAL_ERR_STATE);
    return NULL;
}

/* Whoever watches a group from another thread may abort it at any moment of its close. */
TEST_RANKS(a_thread_aborts_while_another_closes, 2)
{
    enum {
        N_ROUNDS = 60
    };
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int i = 0; i < N_ROUNDS; i++) {
        char tag[16];
        (void)snprintf(tag, sizeof tag, "%d", i);
        shoal_group *group = NULL;
        pthread_t thread;
        REQUIRE_OK(shoal_group_create(world, everybody, 2, tag, &group));
        /* An abort of the other rank may come first. */
        (void)!shoal_group_barrier(group);
        struct watch watch = {.group = group, .delay_s = 10e-6 * (i % 20)};
        REQUIRE(pthread_create(&thread, NULL, abort_soon, &watch) == 0);
        if (shoal_group_close(group) != SHOAL_OK) {
            CHECK_OK(shoal_group_close(group));
        }
        REQUIRE(pthread_join(thread, NULL) == 0);
    }
    CHECK_OK(shoal_world_close(world));
}

struct closer {
    shoal_group *group;
    shoal_status in_group;
    shoal_status in_world;
    _Atomic bool was_called;
};

static void close_in_callback(void *context, shoal_status status)
{
    struct closer *closer = context;
    CHECK(status == SHOAL_OK || status == SHOAL_ERR_CANCELLED);
    closer->in_group = shoal_group_close(closer->group);
    closer->in_world = shoal_world_close(shoal_group_world(closer->group));
    /* Release: the test reads the rest then. */
    atomic_store_explicit(&closer->was_called, true, memory_order_release);
}

static void await_callback(struct closer *closer)
{
    while (!atomic_load_explicit(&closer->was_called, memory_order_acquire)) {
        test_pause(0.001);
    }
    CHECK_INT(closer->in_group, SHOAL_ERR_STATE);
    CHECK_INT(closer->in_world, SHOAL_ERR_STATE);
}

/* The threads of streams and lanes cannot end themselves, be the group well or failed. */
TEST_RANKS(callbacks_cannot_close, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_group_create(world, everybody, 2, "callbacks", &group));
    struct closer transfer = {.group = group};
    struct closer barrier = {.group = group};
    int32_t value = 0;
    shoal_work *work = NULL;
    REQUIRE_OK(shoal_group_recv_start(group, &value, 1, SHOAL_I32, 1 - self->rank, 0, &work));
    CHECK_OK(shoal_work_on_done(work, close_in_callback, &transfer));
    shoal_work_free(work);
    test_barrier(self);
    int32_t sent = 7;
    CHECK_OK(shoal_group_send(group, &sent, 1, SHOAL_I32, 1 - self->rank, 0));
    await_callback(&transfer);
    CHECK_INT(value, 7);
    test_barrier(self);    /* an abort ends the transfers that it finds */
    if (self->rank == 0) { /* alone: it ends with the abort, and a failed group is closed alone */
        CHECK_OK(shoal_group_barrier_start(group, &work));
        CHECK_OK(shoal_work_on_done(work, close_in_callback, &barrier));
        shoal_work_free(work);
        CHECK_OK(shoal_group_abort(group, NULL));
        await_callback(&barrier);
    }
    test_barrier(self);
    if (shoal_group_close(group) != SHOAL_OK) { /* rank 1 may hear of the abort only now */
        CHECK_OK(shoal_group_close(group));
    }
    CHECK_STRING(shoal_error_text(), "");
    CHECK_OK(shoal_world_close(world));
}

/* Symmetric memory stays shared memory, also of another group's collectives; a window can be read and freed. */
TEST_RANKS(memory_outlives_its_group, N_RANKS)
{
    enum {
        COUNT = 50000
    };
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, "memory");
    REQUIRE(group);
    shoal_symmetric *symmetric = NULL;
    shoal_window *window = NULL;
    shoal_status status = shoal_symmetric_create(group, COUNT * sizeof(float), &symmetric);
    if (status == SHOAL_ERR_UNSUPPORTED) { /* the transport has none */
        CHECK_OK(shoal_group_close(group));
        CHECK_OK(shoal_world_close(world));
        return;
    }
    REQUIRE_OK(status);
    REQUIRE_OK(shoal_window_create(group, 16 * N_RANKS, &window));
    char own[16];
    (void)snprintf(own, sizeof own, "of rank %d", self->rank);
    shoal_window_piece piece = {own, sizeof own, SHOAL_U8, SHOAL_U8, 16 * (size_t)self->rank};
    REQUIRE_OK(shoal_window_gather(window, &piece, 1, 0));
    CHECK_OK(shoal_group_close(group));
    float *data = shoal_symmetric_data(symmetric);
    for (size_t i = 0; i < COUNT; i++) {
        data[i] = (float)self->rank;
    }
    shoal_group *all = shoal_world_group(world);
    CHECK_OK(shoal_group_all_reduce(all, data, data, COUNT, SHOAL_F32, SHOAL_SUM));
    CHECK_DOUBLE((double)data[COUNT - 1], 3);
    CHECK_DOUBLE((double)((float *)shoal_symmetric_peer(symmetric, 0))[0], 3);
    CHECK_STRING((const char *)shoal_window_data(window) + 16, "of rank 1");
    CHECK_STATUS(shoal_window_gather(window, &piece, 1, 0), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("it was closed");
    CHECK_STATUS(shoal_window_release(window), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_window_create(group, 16, &window), SHOAL_ERR_STATE);
    shoal_symmetric *refused = NULL;
    CHECK_STATUS(shoal_symmetric_create(group, 16, &refused), SHOAL_ERR_STATE);
    shoal_window_free(window);
    CHECK_OK(shoal_group_barrier(all)); /* before anybody frees what a peer still reads */
    shoal_symmetric_free(symmetric);
    CHECK_OK(shoal_world_close(world));
}

/* Another call in its place: a mismatch on all, that names both, and nothing was freed. */
TEST_RANKS(a_member_that_goes_on_is_a_mismatch, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, "deviates");
    REQUIRE(group);
    float value = 1;
    CHECK_OK(sum(group, &value));
    shoal_status status = self->rank == 1 ? sum(group, &value) : shoal_group_close(group);
    CHECK_STATUS(status, SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("shoal_group_close of group [0,1,2] tag \"deviates\"");
    CHECK_ERROR_TEXT("all_reduce");
    CHECK_STATUS(shoal_group_error(group), SHOAL_ERR_MISMATCH);
    /* A failed group is closed alone; its name stays failed, another one is fine. */
    CHECK_OK(shoal_group_close(group));
    group = make(world, "deviates");
    REQUIRE(group);
    CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("the group has failed before");
    CHECK_OK(shoal_group_close(group));
    group = make(world, "deviates once more");
    CHECK_OK(shoal_group_barrier(group));
    CHECK_OK(shoal_group_close(group));
    CHECK_OK(shoal_world_close(world));
}

/* Closing different groups: nobody comes to either, and both say who is missing. */
TEST_RANKS(members_that_close_different_groups, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *groups[2];
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(shoal_group_create(world, everybody, 2, i == 0 ? "one" : "two", &groups[i]));
        CHECK_OK(shoal_group_barrier(groups[i]));
        CHECK_OK(shoal_group_set_timeout(groups[i], 0.5));
    }
    CHECK_STATUS(shoal_group_close(groups[self->rank]), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("shoal_group_close of group [0,1] tag");
    CHECK_ERROR_TEXT(self->rank == 0 ? "rank 1 did not call it" : "rank 0 did not call it");
    test_barrier(self); /* both have failed, which this rank may hear of only now */
    for (int i = 0; i < 2; i++) {
        shoal_status status = shoal_group_close(groups[i]);
        CHECK_OK(status == SHOAL_ERR_TIMEOUT ? shoal_group_close(groups[i]) : status);
    }
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* What FSDP has on a group goes with it, but not while a model is sharded over it. */
TEST_RANKS(a_group_that_a_model_uses, N_RANKS)
{
    static const int64_t shape[1] = {30};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int i = 0; i < 3; i++) {
        shoal_group *group = make(world, "model");
        REQUIRE(group);
        shoal_fsdp *fsdp = NULL;
        int param;
        float values[30] = {(float)i};
        REQUIRE_OK(shoal_fsdp_create(group, NULL, &fsdp));
        REQUIRE_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, shape, values, &param));
        CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
        CHECK_STATUS(shoal_group_close(group), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT(
            "is used by 1 sharded or replicated model or background save: free it or wait for it first");
        CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
        shoal_fsdp_free(fsdp);
        CHECK_OK(shoal_group_close(group));
    }
    CHECK_OK(shoal_world_close(world));
}

/* The mesh keeps the handle, which says that it is closed. */
TEST_RANKS(a_group_of_a_mesh, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_mesh *mesh = NULL;
    static const int shape[2] = {2, 2};
    REQUIRE_OK(shoal_mesh_create(world, "cpu", NULL, shape, 2, NULL, &mesh));
    shoal_group *group = shoal_mesh_group(mesh, 1);
    CHECK_OK(shoal_group_barrier(group));
    CHECK_OK(shoal_group_close(group));
    for (int i = 0; i < 70; i++) { /* more than are kept */
        shoal_group *other = NULL;
        char tag[16];
        (void)snprintf(tag, sizeof tag, "%d", i);
        REQUIRE_OK(shoal_group_create_blocks(world, 2, tag, &other));
        CHECK_OK(shoal_group_close(other));
    }
    CHECK(shoal_mesh_group(mesh, 1) == group);
    CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("it was closed");
    CHECK_OK(shoal_world_close(world));
}

/* The others hear of it, and can free their parts. */
TEST_PROCESSES(a_member_that_dies_in_close, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, "dies");
    REQUIRE(group);
    CHECK_OK(shoal_group_barrier(group));
    test_barrier(self);
    if (self->rank == 1) {
        /* A rank that is late would hear of the death first, and close a group that has failed. */
        test_pause(0.3);
        test_expect_death(1, SIGKILL);
        (void)raise(SIGKILL);
    }
    CHECK_STATUS(shoal_group_close(group), SHOAL_ERR_PEER);
    CHECK_OK(shoal_group_close(group));
    static const int rest[2] = {0, 2};
    REQUIRE_OK(shoal_group_create(world, rest, 2, "dies", &group));
    CHECK_OK(shoal_group_barrier(group));
    CHECK_OK(shoal_group_close(group));
    CHECK_OK(shoal_world_close(world));
}

/* Many ------------------------------------------------------------------------------------------------- */

/* Everything that a group has: slots, staging, a thread, streams with theirs. Others end with the reader. */
static void use(shoal_group *group, int number)
{
    int rank = shoal_group_rank(group);
    int n_ranks = shoal_group_n_ranks(group);
    enum {
        COUNT = 5000
    };
    float few[4] = {(float)rank, 1, 2, 3};
    CHECK_OK(shoal_group_all_reduce(group, few, few, 4, SHOAL_F32, SHOAL_SUM));
    CHECK_DOUBLE((double)few[1], n_ranks);
    if (number % 4 == 0) {
        float *many = calloc(COUNT, sizeof *many);
        REQUIRE(many);
        shoal_work *work = NULL;
        REQUIRE_OK(shoal_group_all_reduce_start(group, many, many, COUNT, SHOAL_F32, SHOAL_SUM, &work));
        CHECK_OK(shoal_work_wait(work, -1));
        shoal_work_free(work);
        free(many);
    }
    if (number % 4 == 1) {
        int32_t in = -1;
        shoal_transfer transfers[2] = {
            {SHOAL_SEND, &number, 1, SHOAL_I32, (rank + 1) % n_ranks, number},
            {SHOAL_RECV, &in, 1, SHOAL_I32, (rank + n_ranks - 1) % n_ranks, number}};
        shoal_work *work = NULL;
        REQUIRE_OK(shoal_group_transfer_start(group, transfers, 2, &work));
        CHECK_OK(shoal_work_wait(work, -1));
        shoal_work_free(work);
        CHECK_INT(in, number);
    }
}

TEST_RANKS(many_groups_made_used_and_closed, N_RANKS)
{
    const char *text = getenv("SHOAL_TEST_GROUPS");
    long n_groups = text ? strtol(text, NULL, 10) : 1000;
    test_deadline(60 + (double)n_groups * 0.1);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    struct reading first = {0};
    /* The handles of the last groups are kept so that they can be told closed. */
    const struct growth allowed = {.n_blocks = 16, .resident_kib = 2048};
    long warm_up = n_groups < 400 ? n_groups / 2 : 200;
    for (long i = 0; i < n_groups && !test_has_failed(); i++) {
        char tag[32];
        test_progress((uint64_t)i, (uint64_t)n_groups);
        /* Half of them under a name that was used before. */
        (void)snprintf(tag, sizeof tag, "group %ld", i % 2 ? i : 0);
        shoal_group *group = NULL;
        int n_ranks = 2 + (int)(i % 2);
        if (self->rank < n_ranks) {
            REQUIRE_OK(shoal_group_create(world, everybody, n_ranks, tag, &group));
            use(group, (int)i);
            CHECK_OK(shoal_group_close(group));
        }
        if (i + 1 == warm_up || i + 1 == n_groups) {
            test_barrier(self);
            struct reading now = self->is_process || self->rank == 0 ? reading_take() : first;
            test_barrier(self);
            if (i + 1 == warm_up) {
                first = now;
            } else {
                reading_compare(&first, &now, &allowed);
            }
            if (self->rank == 0) {
                harness_print("%ld groups: resident %ld KiB, descriptors %zu, threads %zu, blocks %zu\n",
                              i + 1, now.resident_kib, now.n_descriptors, now.n_threads, now.n_blocks);
            }
        }
    }
    CHECK_OK(shoal_world_close(world));
}
