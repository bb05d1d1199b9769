/* SPDX-License-Identifier: MIT */
/*
 * What a binding of another language does with works: it starts them, gives them up unfinished, and hears of their end by
 * callbacks that own the buffers; each call has a deadline of its own. From several threads on several groups at once.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/wait.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

enum {
    N_RANKS = 3,
    N_THREADS = 3
};

static const int everybody[N_RANKS] = {0, 1, 2};

/* Sleeps until callbacks have counted so far, without a call on a work. False when it took too long, or went further. */
static bool await_count(_Atomic uint32_t *count, uint32_t wanted)
{
    struct wait_options options = {.deadline_ns = clock_deadline_after(20 * test_time_scale())};
    uint32_t seen;
    while ((seen = atomic_load(count)) < wanted) {
        if (wait_while_equal(count, seen, &options) != SHOAL_OK) {
            return false;
        }
    }
    return seen == wanted;
}

static void count_up(_Atomic uint32_t *count)
{
    atomic_fetch_add(count, 1);
    wait_wake_all(count, /*is_shared=*/false);
}

static shoal_group *make(shoal_world *world, int n_ranks, const char *tag)
{
    shoal_group *group = NULL;
    CHECK_OK(shoal_group_create(world, everybody, n_ranks, tag, &group));
    return group;
}

/* What callbacks saw. */
struct ends {
    _Atomic uint32_t n_done;
    _Atomic uint32_t n_released;
    _Atomic int last_status;
    char text[512];
    pthread_t thread;
};

static void note_done(void *context, shoal_status status)
{
    struct ends *ends = context;
    atomic_store(&ends->last_status, (int)status);
    (void)snprintf(ends->text, sizeof ends->text, "%s", shoal_error_text());
    ends->thread = pthread_self();
    count_up(&ends->n_done);
}

static void note_release(void *context)
{
    struct ends *ends = context;
    CHECK(atomic_load(&ends->n_done) > atomic_load(&ends->n_released)); /* it comes second */
    count_up(&ends->n_released);
}

static shoal_collective sum_call(float *values, size_t count, struct ends *ends)
{
    shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(values, values, count, SHOAL_F32, SHOAL_SUM);
    call.on_done = note_done;
    call.release = note_release;
    call.context = ends;
    return call;
}

/* Threads ---------------------------------------------------------------------------------------------- */

struct session {
    struct rank *self;
    shoal_group *group;
    int index;
    int n_calls;
    struct test_random random;
    _Atomic uint32_t n_done;
    _Atomic uint32_t n_released;
    _Atomic uint32_t n_wrong;
};

/* One operation with its buffer, which belongs to it until the release. */
struct operation {
    struct session *session;
    size_t count;
    float expected;
    bool is_done;
    float values[];
};

static void operation_done(void *context, shoal_status status)
{
    struct operation *operation = context;
    bool is_right = status == SHOAL_OK && !operation->is_done &&
                    operation->values[0] == operation->expected &&
                    operation->values[operation->count - 1] == operation->expected;
    operation->is_done = true;
    atomic_fetch_add(&operation->session->n_wrong, is_right ? 0 : 1);
    count_up(&operation->session->n_done);
}

static void operation_release(void *context)
{
    struct operation *operation = context;
    struct session *session = operation->session;
    atomic_fetch_add(&session->n_wrong, operation->is_done ? 0 : 1);
    memset(operation->values, 0, operation->count * sizeof(float));
    free(operation);
    count_up(&session->n_released);
}

static struct operation *create_operation(struct session *session, int number)
{
    static const size_t counts[] = {1, 3, 100, 1000, 20000};
    size_t count = counts[test_random_below(&session->random, sizeof counts / sizeof counts[0])];
    struct operation *operation = calloc(1, sizeof *operation + count * sizeof(float));
    if (!operation) {
        test_failed(__FILE__, __LINE__, "no memory");
        return NULL;
    }
    operation->session = session;
    operation->count = count;
    operation->expected = (float)(N_RANKS * (number % 1000));
    for (size_t i = 0; i < count; i++) {
        operation->values[i] = (float)(number % 1000);
    }
    return operation;
}

/* The same calls on all ranks, by the seed; what becomes of the work is each rank's own affair. */
static void *run_session(void *context)
{
    struct session *session = context;
    struct test_random own = test_random_begin((uint64_t)(100 + session->self->rank));
    for (int i = 0; i < session->n_calls; i++) {
        struct operation *operation = create_operation(session, i);
        if (!operation) {
            return NULL;
        }
        shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(operation->values, operation->values,
                                                            operation->count, SHOAL_F32, SHOAL_SUM);
        call.on_done = operation_done;
        call.release = operation_release;
        call.context = operation;
        call.timeout_s = (10 + session->index) * test_time_scale();
        shoal_work *work = NULL;
        uint64_t fate = test_random_below(&own, 4);
        if (!CHECK_OK(shoal_group_collective_start(session->group, &call, fate == 0 ? NULL : &work))) {
            free(operation);
            return NULL;
        }
        if (fate == 1) {
            (void)shoal_work_test(work);
        } else if (fate == 2) {
            CHECK_OK(shoal_work_wait(work, -1));
        }
        shoal_work_free(work); /* unfinished or not */
    }
    return NULL;
}

TEST_RANKS(works_of_three_threads_on_three_groups, N_RANKS)
{
    static struct session all_sessions[N_RANKS][N_THREADS];
    struct session *sessions = all_sessions[self->rank];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    pthread_t threads[N_THREADS];
    for (int t = 0; t < N_THREADS; t++) {
        char tag[16];
        (void)snprintf(tag, sizeof tag, "thread %d", t);
        sessions[t] = (struct session){.self = self,
                                       .group = make(world, N_RANKS, tag),
                                       .index = t,
                                       .n_calls = 400,
                                       .random = test_random_begin((uint64_t)t)};
        REQUIRE(pthread_create(&threads[t], NULL, run_session, &sessions[t]) == 0);
    }
    for (int t = 0; t < N_THREADS; t++) {
        (void)pthread_join(threads[t], NULL);
    }
    for (int t = 0; t < N_THREADS; t++) {
        CHECK(await_count(&sessions[t].n_released, (uint32_t)sessions[t].n_calls));
        CHECK_INT(atomic_load(&sessions[t].n_done), sessions[t].n_calls);
        CHECK_INT(atomic_load(&sessions[t].n_wrong), 0);
    }
    for (int t = 0; t < N_THREADS; t++) {
        CHECK_OK(shoal_group_close(sessions[t].group));
    }
    CHECK_OK(shoal_world_close(world));
}

/* Closing with everything still in flight: every buffer is released once, before close returns. */
TEST_RANKS(a_world_that_is_closed_at_once, N_RANKS)
{
    static struct session all_sessions[N_RANKS];
    struct session *session = &all_sessions[self->rank];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    *session = (struct session){.self = self,
                                .group = make(world, N_RANKS, "at once"),
                                .n_calls = 100,
                                .random = test_random_begin(1)};
    (void)run_session(session);
    CHECK_OK(shoal_world_close(world));
    CHECK_INT(atomic_load(&session->n_released), session->n_calls);
    CHECK_INT(atomic_load(&session->n_done), session->n_calls);
}

/* Ends ------------------------------------------------------------------------------------------------- */

/* Small and large, nobody waits: what was posted ends too. */
TEST_RANKS(callbacks_come_although_nobody_waits, 2)
{
    static struct ends all_ends[2];
    static float all_values[2][20000];
    struct ends *ends = &all_ends[self->rank];
    *ends = (struct ends){0};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *all = shoal_world_group(world);
    float *values = all_values[self->rank];
    for (int i = 0; i < 6; i++) {
        values[0] = 1;
        shoal_collective call = sum_call(values, i % 2 ? 20000 : 1, ends);
        CHECK_OK(shoal_group_collective_start(all, &call, NULL));
        CHECK(await_count(&ends->n_released, (uint32_t)i + 1));
        CHECK_DOUBLE((double)values[0], 2);
        CHECK_INT(atomic_load(&ends->last_status), SHOAL_OK);
        CHECK_STRING(ends->text, "");
    }
    CHECK_OK(shoal_world_close(world));
    CHECK_INT(atomic_load(&ends->n_done), 6);
}

/* Works that were started without functions can be asked about later, also when they have ended. */
TEST_RANKS(asked_about_later, 2)
{
    static struct ends all_ends[2][3];
    struct ends *ends = all_ends[self->rank];
    memset(ends, 0, sizeof all_ends[0]);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *all = shoal_world_group(world);
    float value = 1;
    int32_t out = self->rank;
    int32_t in = -1;
    shoal_work *works[3];
    REQUIRE_OK(shoal_group_all_reduce_start(all, &value, &value, 1, SHOAL_F32, SHOAL_SUM, &works[0]));
    CHECK_OK(shoal_work_on_done(works[0], note_done, ends));
    CHECK(await_count(&ends->n_done, 1));
    CHECK_OK(shoal_work_on_done(works[0], note_done, ends)); /* now */
    CHECK_INT(atomic_load(&ends->n_done), 2);
    CHECK(pthread_equal(ends->thread, pthread_self()));
    REQUIRE_OK(shoal_group_recv_start(all, &in, 1, SHOAL_I32, 1 - self->rank, 0, &works[1]));
    CHECK_OK(shoal_work_on_done(works[1], note_done, &ends[1]));
    REQUIRE_OK(shoal_group_send_start(all, &out, 1, SHOAL_I32, 1 - self->rank, 0, &works[2]));
    CHECK_OK(shoal_work_on_done(works[2], note_done, &ends[2]));
    shoal_work_free(works[1]);
    CHECK(await_count(&ends[1].n_done, 1));
    CHECK(await_count(&ends[2].n_done, 1));
    CHECK_INT(in, 1 - self->rank);
    CHECK_STATUS(shoal_work_on_done(NULL, note_done, ends), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_work_on_done(works[0], NULL, ends), SHOAL_ERR_INVALID);
    shoal_work_free(works[0]);
    shoal_work_free(works[2]);
    CHECK_OK(shoal_world_close(world));
}

/* Of a group that has failed on another rank, of which this one may hear only now: then it asks again. */
static void close_failed(shoal_group *group)
{
    shoal_status status = shoal_group_close(group);
    if (status != SHOAL_OK && rank_hears_by_messages()) {
        status = shoal_group_close(group);
    }
    CHECK_OK(status);
}

/* A deadline, an abort, a closed group: told with the status and its text, and then the buffers are free. */
TEST_RANKS(failures_call_back_too, 2)
{
    static struct ends all_ends[2][3];
    struct ends *ends = all_ends[self->rank];
    memset(ends, 0, sizeof all_ends[0]);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *late = make(world, 2, "late");
    shoal_group *aborted = make(world, 2, "aborted");
    CHECK_OK(shoal_group_barrier(late));
    CHECK_OK(shoal_group_barrier(aborted));
    float values[2] = {0};
    if (self->rank == 0) {
        shoal_collective call = sum_call(&values[0], 1, &ends[0]);
        call.timeout_s = 0.2;
        CHECK_OK(shoal_group_collective_start(late, &call, NULL));
        CHECK(await_count(&ends[0].n_released, 1));
        CHECK_INT(atomic_load(&ends[0].last_status), SHOAL_ERR_TIMEOUT);
        CHECK(strstr(ends[0].text, "0.2 s passed (timeout_s of the call) and rank 1 did not call it") !=
              NULL);
        call = sum_call(&values[1], 1, &ends[1]);
        CHECK_OK(shoal_group_collective_start(aborted, &call, NULL));
        CHECK_OK(shoal_group_abort(aborted, "enough"));
        CHECK(await_count(&ends[1].n_released, 1));
        CHECK_INT(atomic_load(&ends[1].last_status), SHOAL_ERR_CANCELLED);
        CHECK(strstr(ends[1].text, "aborted by rank 0: enough") != NULL);
        /* Not started, not called. */
        call = sum_call(&values[1], 1, &ends[2]);
        CHECK_STATUS(shoal_group_collective_start(aborted, &call, NULL), SHOAL_ERR_CANCELLED);
        CHECK_INT(atomic_load(&ends[2].n_done), 0);
        CHECK_INT(atomic_load(&ends[2].n_released), 0);
    }
    test_barrier(self);
    close_failed(late);
    close_failed(aborted);
    CHECK_OK(shoal_world_close(world));
    for (int i = 0; i < 2; i++) {
        CHECK_INT(atomic_load(&ends[i].n_done), self->rank == 0);
        CHECK_INT(atomic_load(&ends[i].n_released), self->rank == 0);
    }
}

/* An operation that the peer never calls ends with the world, once. */
TEST_RANKS(a_world_that_is_closed_before_the_end, 2)
{
    static struct ends all_ends[2];
    struct ends *ends = &all_ends[self->rank];
    *ends = (struct ends){0};
    struct rank_key key = rank_key(self, 0);
    shoal_world_options options = rank_world_options(self, &key);
    options.close_timeout_s = 2 * test_time_scale();
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    float value = 0;
    if (self->rank == 0) {
        shoal_collective call = sum_call(&value, 1, ends);
        CHECK_OK(shoal_group_collective_start(shoal_world_group(world), &call, NULL));
    }
    (void)CHECK_OK(shoal_world_close(world));
    CHECK_INT(atomic_load(&ends->n_done), self->rank == 0);
    CHECK_INT(atomic_load(&ends->n_released), self->rank == 0);
    CHECK(self->rank == 1 || atomic_load(&ends->last_status) != SHOAL_OK);
}

/* In callbacks ------------------------------------------------------------------------------------------ */

struct chain {
    shoal_group *group;
    shoal_group *other;
    shoal_work *own;
    float value;
    float extra;
    _Atomic uint32_t n_done;
    _Atomic uint32_t n_started;
    shoal_status blocked;
    shoal_status waited;
    shoal_status elsewhere;
};

enum {
    CHAIN_LENGTH = 50
};

/* Starts the next, tries what it must not, and what it may. */
static void go_on(void *context, shoal_status status)
{
    struct chain *chain = context;
    uint32_t n_done = atomic_load(&chain->n_done);
    if (n_done == 0) {
        chain->blocked =
            shoal_group_all_reduce(chain->group, &chain->extra, &chain->extra, 1, SHOAL_F32, SHOAL_SUM);
        chain->elsewhere = shoal_group_barrier(chain->other);
    }
    if (status == SHOAL_OK && n_done + 1 < CHAIN_LENGTH) {
        shoal_collective call =
            SHOAL_COLLECTIVE_ALL_REDUCE(&chain->value, &chain->value, 1, SHOAL_F32, SHOAL_MAX);
        call.on_done = go_on;
        call.context = chain;
        shoal_work *work = NULL;
        if (shoal_group_collective_start(chain->group, &call, &work) == SHOAL_OK) {
            if (n_done == 0) {
                chain->waited = shoal_work_wait(work, -1);
                (void)shoal_work_test(work);
            }
            shoal_work_free(work);
            count_up(&chain->n_started);
        }
    }
    count_up(&chain->n_done);
}

TEST_RANKS(what_a_callback_may_do, 2)
{
    static struct chain all_chains[2];
    struct chain *chain = &all_chains[self->rank];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    *chain = (struct chain){
        .group = make(world, 2, "chain"), .other = make(world, 2, "other"), .value = (float)self->rank};
    shoal_collective call =
        SHOAL_COLLECTIVE_ALL_REDUCE(&chain->value, &chain->value, 1, SHOAL_F32, SHOAL_MAX);
    call.on_done = go_on;
    call.context = chain;
    CHECK_OK(shoal_group_collective_start(chain->group, &call, NULL));
    CHECK(await_count(&chain->n_done, CHAIN_LENGTH));
    CHECK_INT(atomic_load(&chain->n_started), CHAIN_LENGTH - 1);
    CHECK_DOUBLE((double)chain->value, 1);
    CHECK_INT(chain->blocked, SHOAL_ERR_STATE);
    CHECK_INT(chain->waited, SHOAL_ERR_STATE);
    CHECK_INT(chain->elsewhere, SHOAL_ERR_STATE);
    CHECK_INT(shoal_group_sequence(chain->group), CHAIN_LENGTH);
    CHECK_INT(shoal_group_sequence(chain->other), 0);
    CHECK_OK(shoal_world_close(world));
}

/* What would wait for other ranks, on this group or another: refused before anything has happened. */
struct refusals {
    shoal_group *groups[2];
    shoal_work *works[2]; /* a barrier on the first, a receive on the second, neither of which can end */
    shoal_work *ended;
    int32_t in;
    int32_t out;
    _Atomic uint32_t n_done;
};

static void check_refused(shoal_status status, const char *what)
{
    CHECK_STATUS(status, SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT(what);
    CHECK_ERROR_TEXT("was called in a callback and would have to wait");
}

static void wait_for_everything(void *context, shoal_status status)
{
    struct refusals *refusals = context;
    int32_t value = 0;
    CHECK_OK(status);
    for (int i = 0; i < 2; i++) {
        shoal_group *group = refusals->groups[i];
        int peer = 1 - shoal_group_rank(group);
        shoal_transfer both[2] = {{SHOAL_SEND, &refusals->out, 1, SHOAL_I32, peer, 7},
                                  {SHOAL_RECV, &value, 1, SHOAL_I32, peer, 7}};
        check_refused(shoal_group_barrier(group), "barrier");
        check_refused(shoal_group_send(group, &refusals->out, 1, SHOAL_I32, peer, 7), "send");
        check_refused(shoal_group_recv(group, &value, 1, SHOAL_I32, peer, 7), "recv");
        check_refused(shoal_group_transfer(group, both, 2), "transfer");
        check_refused(shoal_group_close(group), "group_close");
        check_refused(shoal_work_wait(refusals->works[i], -1), "a wait for an operation");
        check_refused(shoal_work_wait(refusals->works[i], 0), "a wait for an operation");
        CHECK(!shoal_work_test(refusals->works[i]));
    }
    check_refused(shoal_world_close(shoal_group_world(refusals->groups[0])), "world_close");
    CHECK_OK(shoal_work_wait(refusals->ended, -1));
    count_up(&refusals->n_done);
}

/* In callbacks of a collective, of a transfer, and of one that has ended before. */
TEST_RANKS(a_callback_cannot_wait, 2)
{
    static struct refusals all_refusals[2];
    struct refusals *refusals = &all_refusals[self->rank];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    *refusals =
        (struct refusals){.groups = {make(world, 2, "one"), make(world, 2, "two")}, .out = self->rank};
    int peer = 1 - self->rank;
    shoal_work *first = NULL;
    REQUIRE_OK(shoal_group_barrier_start(refusals->groups[0], &first));
    CHECK_OK(shoal_work_wait(first, -1));
    refusals->ended = first;
    test_barrier(self); /* from here on rank 0 alone, until its callbacks are done */
    shoal_work *sent = NULL;
    if (self->rank == 0) {
        REQUIRE_OK(shoal_group_barrier_start(refusals->groups[0], &refusals->works[0]));
        REQUIRE_OK(shoal_group_recv_start(refusals->groups[1], &refusals->in, 1, SHOAL_I32, peer, 0,
                                          &refusals->works[1]));
        CHECK_OK(shoal_work_on_done(first, wait_for_everything, refusals));
        CHECK_INT(atomic_load(&refusals->n_done), 1);
        REQUIRE_OK(shoal_group_send_start(refusals->groups[1], &refusals->out, 1, SHOAL_I32, peer, 1, &sent));
        CHECK_OK(shoal_work_on_done(sent, wait_for_everything, refusals));
        CHECK(await_count(&refusals->n_done, 2));
        shoal_work_free(sent);
        /* On a lane of its own, so that it can end while the barrier cannot. */
        shoal_group *alone = NULL;
        static const int self_only[1] = {0};
        REQUIRE_OK(shoal_group_create(world, self_only, 1, "alone", &alone));
        REQUIRE_OK(shoal_group_barrier_start(alone, &sent));
        CHECK_OK(shoal_work_on_done(sent, wait_for_everything, refusals));
        CHECK(await_count(&refusals->n_done, 3));
        shoal_work_free(sent);
    }
    test_barrier(self);
    if (self->rank == 1) {
        int32_t value = -1;
        CHECK_OK(shoal_group_barrier(refusals->groups[0]));
        CHECK_OK(shoal_group_send(refusals->groups[1], &refusals->out, 1, SHOAL_I32, peer, 0));
        CHECK_OK(shoal_group_recv(refusals->groups[1], &value, 1, SHOAL_I32, peer, 1));
        CHECK_INT(value, 0);
    }
    for (int i = 0; i < 2 && self->rank == 0; i++) { /* none of them came to harm */
        CHECK_OK(shoal_work_wait(refusals->works[i], -1));
        shoal_work_free(refusals->works[i]);
    }
    CHECK_INT(refusals->in, self->rank == 0 ? 1 : 0);
    shoal_work_free(first);
    CHECK_OK(shoal_group_barrier(refusals->groups[0]));
    CHECK_OK(shoal_group_barrier(refusals->groups[1]));
    CHECK_OK(shoal_world_close(world));
}

/* Two groups, each with a callback that waits for the other, whose thread is in its own callback. */
struct crossing {
    shoal_group *other;
    _Atomic uint32_t *n_inside;
    _Atomic uint32_t n_done;
    shoal_status status;
};

static void wait_for_other_group(void *context, shoal_status status)
{
    struct crossing *crossing = context;
    float value = 1;
    CHECK_OK(status);
    count_up(crossing->n_inside);
    while (atomic_load(crossing->n_inside) < 2) { /* both groups are in their callbacks */
        test_pause(0.001);
    }
    crossing->status = shoal_group_all_reduce(crossing->other, &value, &value, 1, SHOAL_F32, SHOAL_SUM);
    count_up(&crossing->n_done);
}

TEST_RANKS(callbacks_that_wait_for_each_other, 2)
{
    static struct crossing all_crossings[2][2];
    static _Atomic uint32_t all_inside[2];
    struct crossing *crossings = all_crossings[self->rank];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *groups[2] = {make(world, 2, "one"), make(world, 2, "two")};
    float values[2] = {1, 1};
    atomic_store(&all_inside[self->rank], 0);
    for (int i = 0; i < 2; i++) {
        crossings[i] = (struct crossing){.other = groups[1 - i], .n_inside = &all_inside[self->rank]};
        shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(&values[i], &values[i], 1, SHOAL_F32, SHOAL_SUM);
        call.on_done = wait_for_other_group;
        call.context = &crossings[i];
        CHECK_OK(shoal_group_collective_start(groups[i], &call, NULL));
    }
    for (int i = 0; i < 2; i++) {
        CHECK(await_count(&crossings[i].n_done, 1));
        CHECK_INT(crossings[i].status, SHOAL_ERR_STATE);
        CHECK_DOUBLE((double)values[i], 2);
        CHECK_OK(shoal_group_close(groups[i]));
    }
    CHECK_OK(shoal_world_close(world));
}

static shoal_status in_log;

static void wait_in_log(void *context, shoal_log_level level, const char *message)
{
    (void)level;
    (void)message;
    in_log = shoal_group_barrier(context);
}

/* The log must not call the library; if it does so all the same, it does not wait for itself. */
TEST(a_log_function_cannot_wait)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 2, .rank = 0, .transport = "fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    in_log = SHOAL_OK;
    shoal_log_set(wait_in_log, shoal_world_group(world), SHOAL_LOG_ERROR);
    shoal_log_write(SHOAL_LOG_ERROR, "something");
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
    CHECK_INT(in_log, SHOAL_ERR_STATE);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* The error text of the call that happens to end another's work stays its own. */
static void fail_something(void *context, shoal_status status)
{
    (void)status;
    struct ends *ends = context;
    CHECK_STATUS(shoal_group_barrier(NULL), SHOAL_ERR_INVALID);
    count_up(&ends->n_done);
}

TEST_RANKS(error_texts_stay_apart, 2)
{
    static struct ends all_ends[2];
    struct ends *ends = &all_ends[self->rank];
    *ends = (struct ends){0};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *all = shoal_world_group(world);
    for (int i = 0; i < 20; i++) {
        float value = 1;
        shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(&value, &value, 1, SHOAL_F32, SHOAL_SUM);
        call.on_done = fail_something;
        call.context = ends;
        CHECK_OK(shoal_group_collective_start(all, &call, NULL));
        CHECK_OK(shoal_group_barrier(all));
        CHECK_STRING(shoal_error_text(), "");
    }
    CHECK_OK(shoal_world_close(world));
    CHECK_INT(atomic_load(&ends->n_done), 20);
}

TEST(calls_that_wait_have_no_callbacks)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 2, .rank = 0, .transport = "fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_group *all = shoal_world_group(world);
    struct ends ends = {0};
    float value = 0;
    shoal_collective call = sum_call(&value, 1, &ends);
    CHECK_STATUS(shoal_group_collective(all, &call), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("all_reduce: on_done is given");
    call.on_done = NULL;
    CHECK_STATUS(shoal_group_collective(all, &call), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("release is given");
    call.release = NULL;
    CHECK_STATUS(shoal_group_collective(all, &call), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("context is given");
    shoal_work *work = NULL;
    CHECK_STATUS(shoal_group_collective_start(all, &call, &work), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("context is given, but neither on_done nor release");
    call = sum_call(&value, 1, &ends);
    CHECK_OK(shoal_group_collective_start(all, &call, &work));
    CHECK_OK(shoal_work_wait(work, -1));
    shoal_work_free(work);
    CHECK_OK(shoal_world_close(world));
    CHECK_INT(atomic_load(&ends.n_released), 1);
}
