/* SPDX-License-Identifier: MIT */
/*
 * shoal_group_close at bad moments: twice, with other threads in the group, from callbacks of what it cancels, with memory
 * alive, and with a member that is killed in the middle of it.
 *
 * SHOAL_TEST_KILLS_IN_CLOSE (default 20): how often a member is killed.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixtures/rank_world.h"
#include "fixtures/reading.h"
#include "harness/test.h"
#include "shoal/shoal.h"

enum {
    N_RANKS = 3,
    N_ROUNDS = 30
};

static const int everybody[N_RANKS] = {0, 1, 2};

static shoal_group *make(shoal_world *world, int n_ranks, const char *tag)
{
    shoal_group *group = NULL;
    CHECK_OK(shoal_group_create(world, everybody, n_ranks, tag, &group));
    return group;
}

/* Twice -------------------------------------------------------------------------------------------------- */

TEST_RANKS(one_rank_closes_twice, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int i = 0; i < N_ROUNDS; i++) {
        shoal_group *group = make(world, N_RANKS, "twice");
        REQUIRE(group);
        CHECK_OK(shoal_group_close(group));
        if (self->rank == i % N_RANKS) {
            CHECK_STATUS(shoal_group_close(group), SHOAL_ERR_STATE);
            CHECK_ERROR_TEXT("group [0,1,2] tag \"twice\": it was closed");
        }
    }
    CHECK_STATUS(shoal_group_close(shoal_world_group(world)), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("the world's own group is closed with the world");
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_group_close(NULL));
    CHECK_OK(shoal_world_close(world));
}

struct closer {
    shoal_group *group;
    shoal_status status;
};

static void *close_it(void *context)
{
    struct closer *closer = context;
    closer->status = shoal_group_close(closer->group);
    return NULL;
}

/* One of them closes it. */
TEST_RANKS(two_threads_close_at_once, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int i = 0; i < N_ROUNDS; i++) {
        struct closer closers[2];
        pthread_t threads[2];
        shoal_group *group = make(world, 2, "threads");
        REQUIRE(group);
        CHECK_OK(shoal_group_barrier(group));
        for (int k = 0; k < 2; k++) {
            closers[k] = (struct closer){.group = group};
            REQUIRE(pthread_create(&threads[k], NULL, close_it, &closers[k]) == 0);
        }
        for (int k = 0; k < 2; k++) {
            REQUIRE(pthread_join(threads[k], NULL) == 0);
        }
        CHECK(closers[0].status == SHOAL_OK || closers[1].status == SHOAL_OK);
        CHECK(closers[0].status == SHOAL_ERR_STATE || closers[1].status == SHOAL_ERR_STATE);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Other threads ------------------------------------------------------------------------------------------- */

static void *await_well(void *context)
{
    shoal_status status = SHOAL_ERR_TIMEOUT;
    while (status == SHOAL_ERR_TIMEOUT) {
        status = shoal_work_wait(context, 0.0001);
    }
    CHECK_OK(status);
    return NULL;
}

/* Who waits for a collective may be the one that carries it, and the close's own calls, while the group goes. */
TEST_RANKS(threads_that_wait_for_collectives, 2)
{
    enum {
        N_THREADS = 3,
        COUNT = 3000
    };
    static float values[2][N_THREADS][COUNT];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int i = 0; i < N_ROUNDS; i++) {
        shoal_group *group = make(world, 2, "collectives");
        shoal_work *works[N_THREADS];
        pthread_t threads[N_THREADS];
        REQUIRE(group);
        for (int k = 0; k < N_THREADS; k++) {
            float *mine = values[self->rank][k];
            size_t count = k == 1 ? COUNT : 1;
            REQUIRE_OK(
                shoal_group_all_reduce_start(group, mine, mine, count, SHOAL_F32, SHOAL_SUM, &works[k]));
            REQUIRE(pthread_create(&threads[k], NULL, await_well, works[k]) == 0);
        }
        CHECK_OK(shoal_group_close(group));
        for (int k = 0; k < N_THREADS; k++) {
            REQUIRE(pthread_join(threads[k], NULL) == 0);
            shoal_work_free(works[k]);
        }
    }
    CHECK_OK(shoal_world_close(world));
}

static void *receive_in_vain(void *context)
{
    int32_t never = 0;
    CHECK_STATUS(shoal_group_recv(context, &never, 1, SHOAL_I32, 0, 3), SHOAL_ERR_CANCELLED);
    return NULL;
}

/* A blocking receive of another thread ends with the group. */
TEST_RANKS(a_thread_that_receives, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, 2, "receives");
    REQUIRE(group);
    CHECK_OK(shoal_group_barrier(group));
    pthread_t thread;
    if (self->rank == 1) {
        REQUIRE(pthread_create(&thread, NULL, receive_in_vain, group) == 0);
        test_pause(0.3); /* it must have called: nobody may come to a group that is being closed */
    }
    CHECK_OK(shoal_group_close(group));
    CHECK(self->rank == 0 || pthread_join(thread, NULL) == 0);
    CHECK_OK(shoal_group_barrier(
        shoal_world_group(world))); /* else the receive may end because the other is gone */
    CHECK_OK(shoal_world_close(world));
}

static void *watch(void *context)
{
    shoal_status status = SHOAL_OK;
    while (status == SHOAL_OK) {
        status = shoal_group_error(context);
    }
    CHECK_STATUS(status, SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("it was closed");
    return NULL;
}

/* A thread that looks all the time whether the group is well. */
TEST_RANKS(a_thread_that_watches, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int i = 0; i < 3 * N_ROUNDS; i++) {
        shoal_group *group = make(world, 2, "watched");
        REQUIRE(group);
        CHECK_OK(shoal_group_barrier(group));
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, watch, group) == 0);
        CHECK_OK(shoal_group_close(group));
        REQUIRE(pthread_join(thread, NULL) == 0);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Callbacks of what is cancelled --------------------------------------------------------------------------- */

struct retry {
    shoal_world *world;
    shoal_group *own;
    shoal_group *newer;
    shoal_group *older;
    int peer;
    int32_t value;
    _Atomic int n_called;
};

/* Starts all it can again, as a program that retries does: nothing may be lost or used after it was freed. */
static void try_again(void *context, shoal_status status)
{
    struct retry *retry = context;
    shoal_group *groups[3] = {retry->own, retry->newer, retry->older};
    CHECK(status != SHOAL_OK);
    for (int i = 0; i < 3; i++) {
        shoal_work *work = NULL;
        if (shoal_group_barrier_start(groups[i], &work) == SHOAL_OK) {
            shoal_work_free(work);
        }
        if (shoal_group_send_start(groups[i], &retry->value, 1, SHOAL_I32, retry->peer, 9, &work) ==
            SHOAL_OK) {
            shoal_work_free(work);
        }
    }
    shoal_group *made = NULL;
    CHECK(shoal_group_create(retry->world, everybody, 2, "made again", &made) == SHOAL_OK || !made);
    atomic_fetch_add(&retry->n_called, 1);
}

static void start_in_vain(struct retry *retry)
{
    static int32_t never;
    shoal_work *works[2];
    REQUIRE_OK(shoal_group_recv_start(retry->own, &never, 1, SHOAL_I32, retry->peer, 1, &works[0]));
    REQUIRE_OK(shoal_group_barrier_start(retry->own, &works[1]));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(shoal_work_on_done(works[i], try_again, retry));
        shoal_work_free(works[i]);
    }
}

TEST_RANKS(callbacks_that_start_while_the_world_is_closed, 2)
{
    static struct retry retries[2];
    struct retry *retry = &retries[self->rank];
    struct rank_key key = rank_key(self, 0);
    shoal_world_options options = rank_world_options(self, &key);
    options.close_timeout_s = 1 * test_time_scale();
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    *retry = (struct retry){.world = world, .peer = 1 - self->rank};
    retry->older = make(world, 2, "older");
    retry->own = make(world, 2, "own");
    retry->newer = make(world, 2, "newer");
    CHECK_OK(shoal_group_barrier(retry->older));
    CHECK_OK(shoal_group_barrier(retry->own));
    CHECK_OK(shoal_group_barrier(retry->newer));
    test_barrier(self);
    if (self->rank == 0) {
        start_in_vain(retry);
        (void)!shoal_world_close(world);
        CHECK_INT(atomic_load(&retry->n_called), 2);
    } else {
        test_pause(1.5 * test_time_scale()); /* until rank 0 has cancelled them */
        (void)!shoal_world_close(world);
    }
}

/* The same for a group: the receive of rank 0 is cancelled by the close. */
TEST_RANKS(callbacks_that_start_while_the_group_is_closed, 2)
{
    static struct retry retries[2];
    static int32_t never[2];
    struct retry *retry = &retries[self->rank];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int i = 0; i < N_ROUNDS; i++) {
        char tag[16];
        (void)snprintf(tag, sizeof tag, "retry %d", i);
        *retry = (struct retry){.world = world, .peer = 1 - self->rank, .own = make(world, 2, tag)};
        retry->older = retry->newer = retry->own;
        CHECK_OK(shoal_group_barrier(retry->own));
        shoal_work *work = NULL;
        REQUIRE_OK(
            shoal_group_recv_start(retry->own, &never[self->rank], 1, SHOAL_I32, 1 - self->rank, 1, &work));
        CHECK_OK(shoal_work_on_done(work, try_again, retry));
        shoal_work_free(work);
        CHECK_OK(shoal_group_close(retry->own));
        CHECK_INT(atomic_load(&retry->n_called), 1);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Memory ------------------------------------------------------------------------------------------------- */

/* Of a group that has failed, and is closed by each rank alone: it stays readable, and is freed once. */
TEST_RANKS(memory_outlives_a_failed_group, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, 2, "memory");
    REQUIRE(group);
    shoal_symmetric *symmetric[2] = {NULL};
    shoal_status status = shoal_symmetric_create(group, 4096, &symmetric[0]);
    if (status != SHOAL_ERR_UNSUPPORTED) { /* the transport has it */
        REQUIRE_OK(status);
        REQUIRE_OK(shoal_symmetric_create(group, 8192, &symmetric[1])); /* the world frees this one */
        ((char *)shoal_symmetric_data(symmetric[0]))[0] = (char)('a' + self->rank);
        CHECK_OK(shoal_group_barrier(group));
    }
    CHECK_OK(shoal_group_abort(group, "enough"));
    CHECK_OK(shoal_group_close(group));
    if (symmetric[0]) {
        CHECK_INT(((char *)shoal_symmetric_peer(symmetric[0], 1 - self->rank))[0], 'a' + 1 - self->rank);
        CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
        shoal_symmetric_free(symmetric[0]);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Deaths ------------------------------------------------------------------------------------------------- */

enum {
    VICTIM = 1
};

/* In memory that all see. */
struct board {
    _Atomic int n_closing; /* the victim has come so far that it may be killed */
};

/* Makes, uses and closes groups until one fails. */
static shoal_status close_groups(shoal_world *world, struct board *board, shoal_group **group_out)
{
    for (int i = 0;; i++) {
        char tag[32];
        float value = 1;
        shoal_work *work = NULL;
        shoal_status status;
        (void)snprintf(tag, sizeof tag, "group %d", i % 2 ? i : 0);
        *group_out = make(world, N_RANKS, tag);
        if (i % 3 != 2 && (status = shoal_group_all_reduce(*group_out, &value, &value, 1, SHOAL_F32,
                                                           SHOAL_SUM)) != SHOAL_OK) {
            return status;
        }
        int next = (shoal_world_rank(world) + 1) % N_RANKS;
        if (i % 4 == 3 && (status = shoal_group_send_start(*group_out, everybody, 3, SHOAL_I32, next, 0,
                                                           &work)) != SHOAL_OK) {
            return status;
        }
        shoal_work_free(work);
        if (board) {
            atomic_store(&board->n_closing, i);
        }
        if ((status = shoal_group_close(*group_out)) != SHOAL_OK) {
            return status;
        }
    }
}

static shoal_world *open_round(struct rank *self, int round)
{
    struct rank_key key = rank_key(self, round);
    shoal_world_options options = rank_world_options(self, &key);
    shoal_world *world = NULL;
    CHECK_OK(shoal_world_open(&options, &world));
    return world;
}

static void kill_at_some_time(struct rank *self, int round, struct board *board, struct test_random *random)
{
    struct rank_key key = rank_key(self, round); /* of this process: the child's parent is another */
    pid_t child = fork();
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        shoal_world_options options = rank_world_options(self, &key);
        shoal_world *world = NULL;
        shoal_group *group = NULL;
        if (shoal_world_open(&options, &world) == SHOAL_OK) {
            (void)!close_groups(world, board, &group);
        }
        _exit(1);
    }
    REQUIRE(child > 0);
    while (atomic_load(&board->n_closing) < 3) {
        if (waitpid(child, NULL, WNOHANG) != 0) {
            test_failed(__FILE__, __LINE__, "the victim ended by itself");
            return;
        }
        test_pause(0.0005);
    }
    test_pause(1e-6 * (double)test_random_below(random, 3000));
    (void)kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
}

static void live_as_survivor(struct rank *self, int round)
{
    shoal_world *world = open_round(self, round);
    REQUIRE(world);
    shoal_group *group = NULL;
    CHECK_STATUS(close_groups(world, NULL, &group), SHOAL_ERR_PEER);
    CHECK_OK(shoal_group_close(group));
    static const int rest[2] = {0, 2};
    REQUIRE_OK(shoal_group_create(world, rest, 2, "rest", &group));
    CHECK_OK(shoal_group_barrier(group));
    CHECK_OK(shoal_group_close(group));
    (void)CHECK_OK(shoal_world_close(world));
}

TEST_PROCESSES(a_member_is_killed_while_groups_are_closed, N_RANKS)
{
    const char *text = getenv("SHOAL_TEST_KILLS_IN_CLOSE");
    long n_kills = text ? strtol(text, NULL, 10) : 20;
    struct board *board = self->shared;
    struct test_random random = test_random_begin(7);
    struct reading first = {0};
    test_deadline(60 + (double)n_kills * 2);
    for (int i = 0; i < n_kills && !test_has_failed(); i++) {
        atomic_store(&board->n_closing, 0);
        test_barrier(self);
        if (self->rank == VICTIM) {
            kill_at_some_time(self, i, board, &random);
        } else {
            live_as_survivor(self, i);
        }
        struct reading now = reading_take();
        if (i == 1) {
            first = now;
        } else if (i > 1) {
            const struct growth allowed = {.resident_kib = 4096};
            reading_compare(&first, &now, &allowed);
        }
        test_barrier(self);
    }
}
