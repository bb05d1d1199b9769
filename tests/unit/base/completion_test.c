/* SPDX-License-Identifier: MIT */
/* Completions: before and after the end, many waiters and listeners, and the races between them. */
#include "base/completion.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "harness/test.h"

#define N_WAITERS 4
#define N_LISTENERS 3
#define N_ROUNDS 300

/* What the completion is embedded in, as a work will be. */
struct work {
    struct completion completion;
    int *n_destroyed;
    int result; /* plain memory that the finishing thread writes */
};

static void destroy_work(struct completion *completion)
{
    struct work *work = (struct work *)completion;
    ++*work->n_destroyed;
    mem_free(work);
}

static const struct completion_kind work_kind = {.destroy = destroy_work};

static struct work *create_work(int *n_destroyed)
{
    struct work *work = mem_alloc(sizeof *work);
    if (work) {
        completion_init(&work->completion, &work_kind);
        work->n_destroyed = n_destroyed;
        work->result = 0;
    }
    return work;
}

TEST(success_before_anybody_waits)
{
    struct completion *completion = completion_create();
    REQUIRE(completion != NULL);
    CHECK(!completion_is_finished(completion));
    completion_finish(completion, SHOAL_OK);
    CHECK(completion_is_finished(completion));
    CHECK_OK(completion_result(completion));
    /* A deadline in the past does not matter once it is over. */
    CHECK_OK(completion_wait(completion, 0));
    completion_unref(completion);
}

TEST(failure_keeps_its_text)
{
    struct completion *completion = completion_create();
    REQUIRE(completion != NULL);
    completion_finish(completion, error_set(SHOAL_ERR_PEER, "rank %d is gone", 7));
    for (int i = 0; i < 3; i++) {
        error_clear();
        CHECK_STATUS(completion_wait(completion, DEADLINE_NEVER), SHOAL_ERR_PEER);
        CHECK_STRING(shoal_error_text(), "rank 7 is gone");
    }
    completion_unref(completion);
}

TEST(failure_without_text_still_says_something)
{
    struct completion *completion = completion_create();
    REQUIRE(completion != NULL);
    error_clear();
    completion_finish(completion, SHOAL_ERR_CANCELLED);
    CHECK_STATUS(completion_result(completion), SHOAL_ERR_CANCELLED);
    CHECK_STRING(shoal_error_text(), shoal_status_message(SHOAL_ERR_CANCELLED));
    completion_unref(completion);
}

TEST(failure_without_memory_for_its_text_keeps_its_status)
{
    struct completion *completion = completion_create();
    REQUIRE(completion != NULL);
    test_fail_allocation(1, /*is_lasting=*/true);
    completion_finish(completion, error_set(SHOAL_ERR_PEER, "rank 7 is gone"));
    test_fail_allocation(0, false);
    CHECK_STATUS(completion_result(completion), SHOAL_ERR_PEER);
    CHECK_STRING(shoal_error_text(), shoal_status_message(SHOAL_ERR_PEER));
    completion_unref(completion);
}

TEST(wait_ends_at_the_deadline)
{
    struct completion *completion = completion_create();
    REQUIRE(completion != NULL);
    CHECK_STATUS(completion_wait(completion, clock_deadline_after(0.02)), SHOAL_ERR_TIMEOUT);
    CHECK_STATUS(completion_wait(completion, 0), SHOAL_ERR_TIMEOUT);
    CHECK(!completion_is_finished(completion));
    /* Somebody has slept on it; that must not change the end. */
    completion_finish(completion, SHOAL_OK);
    CHECK_OK(completion_wait(completion, 0));
    completion_unref(completion);
}

TEST(destroy_runs_once_at_the_last_reference)
{
    int n_destroyed = 0;
    struct work *work = create_work(&n_destroyed);
    REQUIRE(work != NULL);
    CHECK(completion_ref(&work->completion) == &work->completion);
    completion_finish(&work->completion, error_set(SHOAL_ERR_SYSTEM, "with a text to free"));
    completion_unref(&work->completion);
    CHECK_INT(n_destroyed, 0);
    completion_unref(&work->completion);
    CHECK_INT(n_destroyed, 1);
    CHECK(completion_ref(NULL) == NULL);
    completion_unref(NULL);
}

TEST(unfinished_completions_can_be_dropped)
{
    completion_unref(completion_create());
}

static shoal_status create_and_drop(void *context)
{
    struct completion *completion = completion_create();
    if (!completion) {
        return SHOAL_ERR_NO_MEMORY;
    }
    completion_unref(completion);
    return SHOAL_OK;
}

TEST(create_survives_a_lack_of_memory)
{
    CHECK_INT(test_sweep_allocations(create_and_drop, NULL), 1);
}

/* Listeners --------------------------------------------------------------------------------------------- */

struct listener {
    struct completion_listener base;
    int *order;  /* counts the calls */
    int called;  /* what it counted */
    int n_calls; /* of this listener */
};

static void note_call(struct completion_listener *base, struct completion *completion)
{
    struct listener *listener = (struct listener *)base;
    CHECK(completion_is_finished(completion));
    listener->n_calls++;
    listener->called = ++*listener->order;
}

struct notice_counter {
    struct completion_listener base;
    int n_notices;
};

static void count_notice(struct completion_listener *listener, struct completion *completion)
{
    (void)completion;
    ((struct notice_counter *)listener)->n_notices++;
}

/* Each time it ends as if it were new, whatever came of it before. */
TEST(an_ended_one_can_be_armed_again)
{
    int n_destroyed = 0;
    struct work *work = create_work(&n_destroyed);
    REQUIRE(work != NULL);
    for (int round = 0; round < 3; round++) {
        struct notice_counter listener = {.base = {.notify = count_notice}};
        completion_listen(&work->completion, &listener.base);
        CHECK(!completion_test(&work->completion));
        CHECK_INT(listener.n_notices, 0);
        shoal_status status = round == 1 ? error_set(SHOAL_ERR_TIMEOUT, "too late") : SHOAL_OK;
        completion_finish(&work->completion, status);
        error_clear();
        CHECK_INT(listener.n_notices, 1);
        CHECK_STATUS(completion_wait(&work->completion, 0), status);
        CHECK_STRING(shoal_error_text(), round == 1 ? "too late" : "");
        completion_rearm(&work->completion);
    }
    completion_unref(&work->completion);
    CHECK_INT(n_destroyed, 1);
}

TEST(listeners_run_newest_first)
{
    int order = 0;
    struct listener listeners[N_LISTENERS];
    struct completion *completion = completion_create();
    REQUIRE(completion != NULL);
    for (int i = 0; i < N_LISTENERS; i++) {
        listeners[i] = (struct listener){.base = {.notify = note_call}, .order = &order};
        completion_listen(completion, &listeners[i].base);
    }
    CHECK_INT(order, 0);
    completion_finish(completion, SHOAL_OK);
    CHECK_INT(order, N_LISTENERS);
    for (int i = 0; i < N_LISTENERS; i++) {
        CHECK_INT(listeners[i].called, N_LISTENERS - i);
        CHECK_INT(listeners[i].n_calls, 1);
    }
    completion_unref(completion);
}

TEST(late_listener_is_called_at_once)
{
    int order = 0;
    struct listener listener = {.base = {.notify = note_call}, .order = &order};
    struct completion *completion = completion_create();
    REQUIRE(completion != NULL);
    completion_finish(completion, SHOAL_OK);
    completion_listen(completion, &listener.base);
    CHECK_INT(listener.n_calls, 1);
    completion_unref(completion);
}

/* Frees itself and drops the reference it held: nothing may be touched after the call. */
static void free_listener(struct completion_listener *listener, struct completion *completion)
{
    mem_free(listener);
    completion_unref(completion);
}

TEST(listeners_may_free_themselves)
{
    int n_destroyed = 0;
    struct work *work = create_work(&n_destroyed);
    REQUIRE(work != NULL);
    for (int i = 0; i < N_LISTENERS; i++) {
        struct completion_listener *listener = mem_alloc(sizeof *listener);
        REQUIRE(listener != NULL);
        listener->notify = free_listener;
        completion_listen(completion_ref(&work->completion), listener);
    }
    completion_finish(&work->completion, SHOAL_OK);
    CHECK_INT(n_destroyed, 0);
    completion_unref(&work->completion);
    CHECK_INT(n_destroyed, 1);
}

/* Threads ----------------------------------------------------------------------------------------------- */

static void *wait_and_look(void *context)
{
    struct work *work = context;
    error_clear();
    CHECK_STATUS(completion_wait(&work->completion, clock_deadline_after(30.0)), SHOAL_ERR_TIMEOUT);
    CHECK_INT(work->result, 42);
    CHECK_STRING(shoal_error_text(), "the text of another thread");
    /* The last of all owners, whichever thread that is, destroys. */
    completion_unref(&work->completion);
    return NULL;
}

TEST(many_threads_wait)
{
    int n_destroyed = 0;
    for (int round = 0; round < N_ROUNDS && !test_has_failed(); round++) {
        struct work *work = create_work(&n_destroyed);
        REQUIRE(work != NULL);
        pthread_t threads[N_WAITERS];
        for (int i = 0; i < N_WAITERS; i++) {
            (void)completion_ref(&work->completion);
            REQUIRE(pthread_create(&threads[i], NULL, wait_and_look, work) == 0);
        }
        work->result = 42;
        completion_finish(&work->completion, error_set(SHOAL_ERR_TIMEOUT, "the text of another thread"));
        completion_unref(&work->completion);
        for (int i = 0; i < N_WAITERS; i++) {
            REQUIRE(pthread_join(threads[i], NULL) == 0);
        }
        CHECK_INT(n_destroyed, round + 1);
    }
}

static void *finish_work(void *context)
{
    struct work *work = context;
    work->result = 42;
    completion_finish(&work->completion, SHOAL_OK);
    completion_unref(&work->completion);
    return NULL;
}

/* Asking alone must order the result behind the answer, without a wait. */
TEST(polling_sees_the_result)
{
    int n_destroyed = 0;
    for (int round = 0; round < N_ROUNDS && !test_has_failed(); round++) {
        struct work *work = create_work(&n_destroyed);
        REQUIRE(work != NULL);
        pthread_t thread;
        (void)completion_ref(&work->completion);
        REQUIRE(pthread_create(&thread, NULL, finish_work, work) == 0);
        while (!completion_is_finished(&work->completion)) {
            (void)sched_yield();
        }
        CHECK_INT(work->result, 42);
        CHECK_OK(completion_result(&work->completion));
        completion_unref(&work->completion);
        REQUIRE(pthread_join(thread, NULL) == 0);
    }
    CHECK_INT(n_destroyed, N_ROUNDS);
}

struct counting_listener {
    struct completion_listener base;
    _Atomic int n_calls;
    int result_seen;
};

struct race {
    struct work *work;
    struct counting_listener listeners[N_LISTENERS];
};

static void count_call(struct completion_listener *base, struct completion *completion)
{
    struct counting_listener *listener = (struct counting_listener *)base;
    listener->result_seen = ((struct work *)completion)->result;
    atomic_fetch_add(&listener->n_calls, 1);
}

/* Listening, waiting and finishing at the same moment: every listener is called, once, with the result. */
TEST(listening_races_with_the_end)
{
    int n_destroyed = 0;
    for (int round = 0; round < N_ROUNDS && !test_has_failed(); round++) {
        struct race race = {.work = create_work(&n_destroyed)};
        REQUIRE(race.work != NULL);
        pthread_t thread;
        (void)completion_ref(&race.work->completion);
        REQUIRE(pthread_create(&thread, NULL, finish_work, race.work) == 0);
        for (int i = 0; i < N_LISTENERS; i++) {
            race.listeners[i].base.notify = count_call;
            completion_listen(&race.work->completion, &race.listeners[i].base);
        }
        CHECK_OK(completion_wait(&race.work->completion, clock_deadline_after(30.0)));
        CHECK_INT(race.work->result, 42);
        completion_unref(&race.work->completion);
        REQUIRE(pthread_join(thread, NULL) == 0);
        for (int i = 0; i < N_LISTENERS; i++) {
            CHECK_INT(atomic_load(&race.listeners[i].n_calls), 1);
            CHECK_INT(race.listeners[i].result_seen, 42);
        }
        CHECK_INT(n_destroyed, round + 1);
    }
}

/* Pushing ---------------------------------------------------------------------------------------------- */

struct pushed {
    struct completion completion;
    int n_pushes;
    int n_awaited;
    int64_t until_ns; /* of the last push */
    int finishes_at;  /* the push that finishes it; 0: none */
    shoal_status refusal;
};

static shoal_status push_pushed(struct completion *completion, int64_t until_ns)
{
    struct pushed *pushed = (struct pushed *)completion;
    pushed->until_ns = until_ns;
    if (pushed->refusal != SHOAL_OK) {
        return error_set(pushed->refusal, "not here");
    }
    if (++pushed->n_pushes == pushed->finishes_at) {
        completion_finish(completion, SHOAL_OK);
    }
    return SHOAL_OK;
}

static void note_pushed(struct completion *completion)
{
    ((struct pushed *)completion)->n_awaited++;
}

static void leave_pushed(struct completion *completion)
{
    (void)completion; /* on the stack */
}

static const struct completion_kind pushed_kind = {
    .destroy = leave_pushed, .push = push_pushed, .awaited = note_pushed};

TEST(a_waiter_pushes_first)
{
    struct pushed pushed = {.finishes_at = 1};
    completion_init(&pushed.completion, &pushed_kind);
    CHECK(completion_has_deadline(&pushed.completion));
    CHECK_OK(completion_wait(&pushed.completion, DEADLINE_NEVER));
    CHECK_INT(pushed.n_pushes, 1);
    CHECK(pushed.until_ns == DEADLINE_NEVER);
    CHECK_INT(pushed.n_awaited, 1);
    CHECK_OK(completion_wait(&pushed.completion, DEADLINE_NEVER));
    CHECK_INT(pushed.n_pushes, 1);
    completion_unref(&pushed.completion);
}

TEST(a_test_pushes_without_time)
{
    struct pushed pushed = {.finishes_at = 2};
    completion_init(&pushed.completion, &pushed_kind);
    CHECK(!completion_test(&pushed.completion));
    CHECK_INT(pushed.until_ns, 0);
    CHECK_INT(pushed.n_awaited, 0);
    CHECK(completion_test(&pushed.completion));
    CHECK(completion_test(&pushed.completion));
    CHECK_INT(pushed.n_pushes, 2);
    CHECK(pushed.n_awaited > 0);
    completion_unref(&pushed.completion);
}

TEST(a_push_that_does_not_end_it_leaves_a_wait)
{
    struct pushed pushed = {.finishes_at = 0};
    completion_init(&pushed.completion, &pushed_kind);
    CHECK_STATUS(completion_wait(&pushed.completion, clock_deadline_after(0.01)), SHOAL_ERR_TIMEOUT);
    CHECK_INT(pushed.n_awaited, 0);
    completion_finish(&pushed.completion, SHOAL_OK);
    completion_unref(&pushed.completion);
}

TEST(a_push_that_is_refused_is_the_answer)
{
    struct pushed pushed = {.refusal = SHOAL_ERR_STATE};
    completion_init(&pushed.completion, &pushed_kind);
    CHECK_STATUS(completion_wait(&pushed.completion, DEADLINE_NEVER), SHOAL_ERR_STATE);
    CHECK(!completion_test(&pushed.completion));
    CHECK_INT(pushed.n_awaited, 0);
    completion_finish(&pushed.completion, SHOAL_OK);
    completion_unref(&pushed.completion);
}
