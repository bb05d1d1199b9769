/* SPDX-License-Identifier: MIT */
/* Noting signals. The handler uses atomics and system calls only. */
#include "train/interrupt.h"
#include "run/hold.h"
#include "run/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

static const int numbers[TRAIN_N_SIGNALS] = {SIGINT, SIGTERM, SIGUSR1};
static struct sigaction before[TRAIN_N_SIGNALS];
static bool is_taken[TRAIN_N_SIGNALS];
static bool is_launched;
static bool speaks; /* for all processes */
static int hold_fd = -1;
static _Atomic int noted;
static struct run_senders senders;

static int64_t now_ns(void)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* What the signal did before; raised in its handler, it arrives when that returns. */
static void let_through(int number)
{
    for (size_t i = 0; i < TRAIN_N_SIGNALS; i++) {
        if (numbers[i] == number) {
            (void)sigaction(number, &before[i], NULL);
        }
    }
    (void)raise(number);
}

/* Some launchers pass on to ranks what the terminal has sent them already: that is not a second signal. */
static void note(int number, siginfo_t *about, void *context)
{
    (void)context;
    int code = errno;
    int seen = 0;
    (void)atomic_compare_exchange_strong(&noted, &seen, number);
    if (run_senders_note(&senders, run_sender_of(about->si_code, about->si_pid), now_ns())) {
        let_through(number);
    }
    errno = code;
}

/* Launchers also end a rank because another one has failed, which says why: other launchers than ours by SIGTERM. */
static bool was_asked(int number)
{
    return !is_launched || (hold_fd >= 0 ? run_hold_was_asked(hold_fd) : number != SIGTERM);
}

/* Of the process that speaks for all. */
static void end_early(int number)
{
    static const char text[] = "shoal train: interrupted before the first step\n";
    int code = errno;
    int seen = 0;
    if (atomic_compare_exchange_strong(&noted, &seen, number) && was_asked(number)) {
        (void)!write(STDERR_FILENO, text, sizeof text - 1);
    }
    let_through(number);
    errno = code;
}

static void give_back(void)
{
    for (size_t i = 0; i < TRAIN_N_SIGNALS; i++) {
        if (is_taken[i]) {
            (void)sigaction(numbers[i], &before[i], NULL);
        }
    }
}

static void take(void)
{
    for (size_t i = 0; i < TRAIN_N_SIGNALS; i++) {
        struct sigaction action = {.sa_handler = end_early};
        (void)sigemptyset(&action.sa_mask);
        is_taken[i] = sigaction(numbers[i], NULL, &before[i]) == 0 && before[i].sa_handler != SIG_IGN;
        if (is_taken[i] && speaks) {
            (void)sigaction(numbers[i], &action, NULL);
        }
    }
}

void train_interrupt_prepare(const struct tool_place *place)
{
    is_launched = place->is_launched;
    speaks = place->rank == 0;
    hold_fd = run_hold_find();
    take();
    run_signals_unblock();
}

shoal_status train_interrupt_around(shoal_status (*start)(void *context), void *context)
{
    give_back();
    shoal_status status = start(context);
    take();
    return status;
}

void train_interrupt_begin(void)
{
    atomic_store(&noted, 0);
    for (size_t i = 0; i < RUN_N_SENDERS; i++) {
        atomic_store(&senders.first_ns[i], 0);
    }
    run_hold_take();
    for (size_t i = 0; i < TRAIN_N_SIGNALS; i++) {
        struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_RESTART | SA_SIGINFO};
        struct sigaction now = {.sa_handler = SIG_DFL};
        (void)sigemptyset(&action.sa_mask);
        if (is_taken[i] && sigaction(numbers[i], &action, &now) == 0 && now.sa_handler != end_early) {
            before[i] = now; /* somebody has put it there since */
        }
    }
}

void train_interrupt_tell(double told[TRAIN_N_SIGNALS])
{
    int number = atomic_load(&noted);
    for (size_t i = 0; i < TRAIN_N_SIGNALS; i++) {
        told[i] = numbers[i] == number ? 1.0 : 0.0;
    }
}

int train_interrupt_find(const double told[TRAIN_N_SIGNALS])
{
    for (size_t i = 0; i < TRAIN_N_SIGNALS; i++) {
        if (told[i] > 0.0) {
            return numbers[i];
        }
    }
    return 0;
}

int train_interrupt_noted(void)
{
    return atomic_load(&noted);
}

void train_interrupt_end(bool has_ended)
{
    give_back();
    if (has_ended) {
        return;
    }
    run_hold_release();
    int number = atomic_load(&noted);
    if (number != 0) {
        (void)raise(number);
    }
}
