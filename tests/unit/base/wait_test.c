/* SPDX-License-Identifier: MIT */
/* Waiting: wake-ups between threads and between processes, deadlines, liveness, signals, and no lost wake-up. */
#include "base/wait.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "harness/test.h"

static struct wait_options wait_long(void)
{
    return (struct wait_options){.deadline_ns = clock_deadline_after(30.0), .what = "the other side"};
}

TEST(changed_word_needs_no_wait)
{
    _Atomic uint32_t word = 5;
    struct wait_options options = {.deadline_ns = clock_now_ns() - 1};
    CHECK_OK(wait_while_equal(&word, 4, &options));
    options.deadline_ns = INT64_MIN;
    CHECK_OK(wait_while_equal(&word, 4, &options));
    CHECK(wait_spin_while_equal(&word, 4));
}

TEST(deadline_ends_the_wait)
{
    _Atomic uint32_t word = 5;
    struct wait_options options = {.deadline_ns = clock_deadline_after(0.05), .what = "rank 3"};
    CHECK_STATUS(wait_while_equal(&word, 5, &options), SHOAL_ERR_TIMEOUT);
    CHECK(clock_now_ns() >= options.deadline_ns);
    CHECK_ERROR_TEXT("waited ");
    CHECK_ERROR_TEXT(" s for rank 3");
    static const int64_t past[] = {0, -1, INT64_MIN};
    for (int i = 0; i < 3; i++) {
        options.deadline_ns = past[i];
        options.may_spin = i == 1;
        CHECK_STATUS(wait_while_equal(&word, 5, &options), SHOAL_ERR_TIMEOUT);
    }
    CHECK(!wait_spin_while_equal(&word, 5));
}

/* Two threads that hand a token to and fro: a wake-up that is lost once stops them for ever. */
#define N_TURNS 2000

struct ping_pong {
    _Atomic uint32_t turn;
    bool is_shared;
    bool may_spin;
    uint32_t plain; /* written in turns; the words must order it */
};

static void play(struct ping_pong *game, uint32_t parity)
{
    for (uint32_t turn = parity; turn < N_TURNS; turn += 2) {
        struct wait_options options = wait_long();
        options.is_shared = game->is_shared;
        options.may_spin = game->may_spin;
        /* The word is at my turn or just before it. No other read of it: the wait alone must order `plain`. */
        if (turn > 0 && !CHECK_OK(wait_while_equal(&game->turn, turn - 1, &options))) {
            return;
        }
        CHECK_INT(game->plain, turn);
        game->plain = turn + 1;
        atomic_store(&game->turn, turn + 1);
        wait_wake_all(&game->turn, game->is_shared);
    }
}

static void *play_second(void *game)
{
    play(game, 1);
    return NULL;
}

static void play_on_threads(bool may_spin)
{
    struct ping_pong game = {.may_spin = may_spin};
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, play_second, &game) == 0);
    play(&game, 0);
    REQUIRE(pthread_join(thread, NULL) == 0);
    CHECK_INT(game.plain, N_TURNS);
}

TEST(no_wake_up_is_lost_asleep)
{
    play_on_threads(false);
}

TEST(no_wake_up_is_lost_spinning)
{
    play_on_threads(true);
}

TEST_RANKS(ranks_wake_each_other, 2)
{
    struct ping_pong *game = self->shared;
    if (self->rank == 0) {
        game->is_shared = true;
    }
    test_barrier(self);
    play(game, (uint32_t)self->rank);
    test_barrier(self);
    CHECK_INT(game->plain, N_TURNS);
}

/* Liveness ---------------------------------------------------------------------------------------------- */

struct liveness {
    int n_calls;
    int fails_at; /* 0: never */
    int changes_at;
    _Atomic uint32_t *word;
};

static shoal_status look_around(void *context)
{
    struct liveness *liveness = context;
    liveness->n_calls++;
    if (liveness->n_calls == liveness->changes_at) {
        atomic_store(liveness->word, 1);
    }
    if (liveness->n_calls == liveness->fails_at) {
        return error_set(SHOAL_ERR_PEER, "rank 2 is gone");
    }
    return SHOAL_OK;
}

static shoal_status wait_with_liveness(struct liveness *liveness)
{
    _Atomic uint32_t word = 0;
    liveness->word = &word;
    struct wait_options options = wait_long();
    options.liveness = look_around;
    options.liveness_context = liveness;
    error_clear();
    return wait_while_equal(&word, 0, &options);
}

TEST(liveness_ends_the_wait)
{
    struct liveness liveness = {.fails_at = 2};
    CHECK_STATUS(wait_with_liveness(&liveness), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 2 is gone");
    CHECK_INT(liveness.n_calls, 2);
}

TEST(liveness_that_is_content_goes_on)
{
    /* Nobody wakes: the wait must look at the word by itself after the callback. */
    struct liveness liveness = {.changes_at = 3};
    CHECK_OK(wait_with_liveness(&liveness));
    CHECK_INT(liveness.n_calls, 3);
}

TEST(peer_that_did_its_part_and_died_has_done_its_part)
{
    struct liveness liveness = {.changes_at = 1, .fails_at = 1};
    CHECK_OK(wait_with_liveness(&liveness));
    CHECK_STRING(shoal_error_text(), "");
}

TEST(deadline_comes_before_liveness)
{
    struct liveness liveness = {.n_calls = 0};
    _Atomic uint32_t word = 0;
    struct wait_options options = {
        .deadline_ns = clock_deadline_after(0.001), .liveness = look_around, .liveness_context = &liveness};
    CHECK_STATUS(wait_while_equal(&word, 0, &options), SHOAL_ERR_TIMEOUT);
    CHECK_INT(liveness.n_calls, 0);
}

/* Signals ----------------------------------------------------------------------------------------------- */

static _Atomic int n_signals;

static void count_signal(int number)
{
    atomic_fetch_add(&n_signals, 1);
}

struct interrupted {
    pthread_t sleeper;
    _Atomic uint32_t word;
};

/* Interrupts the sleeper many times, then changes the word. */
static void *interrupt(void *context)
{
    struct interrupted *interrupted = context;
    for (int n_seen = 0; n_seen < 50; n_seen = atomic_load(&n_signals)) {
        (void)pthread_kill(interrupted->sleeper, SIGUSR1);
        sched_yield();
    }
    atomic_store(&interrupted->word, 1);
    wait_wake_all(&interrupted->word, /*is_shared=*/false);
    return NULL;
}

TEST(signals_do_not_end_the_wait)
{
    struct sigaction action;
    struct sigaction former;
    memset(&action, 0, sizeof action);
    action.sa_handler = count_signal;
    REQUIRE(sigaction(SIGUSR1, &action, &former) == 0);
    atomic_store(&n_signals, 0);
    struct interrupted interrupted = {.sleeper = pthread_self()};
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, interrupt, &interrupted) == 0);
    struct wait_options options = wait_long();
    CHECK_OK(wait_while_equal(&interrupted.word, 0, &options));
    REQUIRE(pthread_join(thread, NULL) == 0);
    CHECK(atomic_load(&n_signals) >= 50);
    REQUIRE(sigaction(SIGUSR1, &former, NULL) == 0);
}
