/* SPDX-License-Identifier: MIT */
/*
 * What ends a test that does not end by itself: a thread that waits for the deadline of the running test, and
 * handlers that name the test when the program crashes. A thread and not a timer signal, because sanitizers
 * put signals off while a thread is in a system call they do not know.
 */
#include "harness/harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "harness/test.h"

static pthread_t watchdog;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static bool is_running;  /* under the lock */
static bool is_watching; /* under the lock */
static bool has_started; /* main thread only */

static const int crash_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
#define N_CRASH_SIGNALS (sizeof crash_signals / sizeof crash_signals[0])
static struct sigaction former_actions[N_CRASH_SIGNALS];

static void end_program(void)
{
    char unfinished[256];
    harness_list_unfinished(unfinished, sizeof unfinished);
    harness_print("FAIL %s: the deadline passed%s%s\n", harness_name(),
                  unfinished[0] ? "; ranks that had not finished:" : "", unfinished);
    harness_print("seed %llu: repeat with SHOAL_TEST_SEED=%llu\n", (unsigned long long)harness_seed(),
                  (unsigned long long)harness_seed());
    _exit(1);
}

static void *watch(void *unused)
{
    (void)pthread_mutex_lock(&lock);
    is_watching = true;
    (void)pthread_cond_signal(&changed);
    while (is_running) {
        int64_t deadline_ns = atomic_load(&harness_control()->deadline_ns);
        if (harness_now_ns() >= deadline_ns) {
            end_program();
        }
        struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                                 .tv_nsec = deadline_ns % 1000000000};
        (void)pthread_cond_timedwait(&changed, &lock, &until);
    }
    (void)pthread_mutex_unlock(&lock);
    return unused;
}

/*
 * Returns when the thread runs. A test may fork at once, and a fork while a thread is being started copies the locks
 * that its start holds: the address sanitizer's allocator was locked in the child for ever.
 */
void harness_watchdog_begin(void)
{
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    is_running = true;
    is_watching = false;
    has_started = pthread_create(&watchdog, NULL, watch, NULL) == 0;
    if (!has_started) {
        test_failed(__FILE__, __LINE__, "the thread that watches the deadline could not be started");
        return;
    }
    (void)pthread_mutex_lock(&lock);
    while (!is_watching) {
        (void)pthread_cond_wait(&changed, &lock);
    }
    (void)pthread_mutex_unlock(&lock);
}

void harness_watchdog_end(void)
{
    if (has_started) {
        (void)pthread_mutex_lock(&lock);
        is_running = false;
        (void)pthread_cond_signal(&changed);
        (void)pthread_mutex_unlock(&lock);
        (void)pthread_join(watchdog, NULL);
        (void)pthread_cond_destroy(&changed);
        has_started = false;
    }
}

void harness_watchdog_poke(void)
{
    (void)pthread_mutex_lock(&lock);
    if (is_running) {
        (void)pthread_cond_signal(&changed);
    }
    (void)pthread_mutex_unlock(&lock);
}

static void write_text(const char *text)
{
    ssize_t written = write(STDOUT_FILENO, text, strlen(text));
    (void)written;
}

/* Says which test it was, then hands over to the former handler. */
static void report_crash(int number, siginfo_t *info, void *unused)
{
    (void)unused;
    write_text("FAIL ");
    write_text(harness_name());
    write_text(": the program crashed here");
    int rank = harness_thread_rank();
    if (rank >= 0 && rank < HARNESS_MAX_RANKS) {
        char digits[] = {' ', 'r', 'a', 'n', 'k', ' ', (char)('0' + rank / 10), (char)('0' + rank % 10),
                         '\0'};
        write_text(digits);
    }
    write_text("\n");
    for (size_t i = 0; i < N_CRASH_SIGNALS; i++) {
        if (crash_signals[i] == number) {
            (void)sigaction(number, &former_actions[i], NULL);
        }
    }
    /* A faulting instruction comes again by itself; a signal that was sent (abort) does not. */
    if (info->si_code <= 0) {
        (void)raise(number);
    }
}

void harness_catch_crashes(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = report_crash;
    action.sa_flags = SA_ONSTACK | SA_SIGINFO;
    for (size_t i = 0; i < N_CRASH_SIGNALS; i++) {
        (void)sigaction(crash_signals[i], &action, &former_actions[i]);
    }
}
