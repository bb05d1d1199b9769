/* SPDX-License-Identifier: MIT */
/* Writing the trace when a signal ends the process: trace_signal.h. */
#include "base/trace_signal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/os/os.h"
#include "base/wait.h"

static const int numbers[] = {SIGHUP, SIGINT, SIGTERM};
#define N_NUMBERS (sizeof numbers / sizeof numbers[0])

/* What the thread finds instead of the number of a signal when it is to end. */
#define NEWS_END UINT32_MAX

static _Atomic uint32_t news; /* 0 if there is none */
static _Atomic int owner;     /* the process that has the thread */
static void (*write_file)(void);
static pthread_t thread;
static bool has_thread;
static bool is_taken[N_NUMBERS];

static void set_action(int number, void (*handler)(int))
{
    /* Calls that it interrupts go on. */
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(number, &action, NULL);
}

/* The signal does now what it would have done without a trace. */
static void let_through(int number)
{
    set_action(number, SIG_DFL);
    (void)kill(getpid(), number);
}

/* Asynchronous: only atomics and system calls. */
static void note_signal(int number)
{
    int code = errno;
    uint32_t seen = 0;
    if (getpid() != atomic_load(&owner)) {
        let_through(number); /* a child that was forked off just now */
    } else if (atomic_compare_exchange_strong(&news, &seen, (uint32_t)number)) {
        wait_wake_all(&news, /*is_shared=*/false);
    } else if (seen == NEWS_END || number == SIGINT) {
        let_through(number); /* who presses Ctrl-C twice does not want to wait for a file */
    }
    errno = code;
}

static void *watch(void *context)
{
    (void)context;
    struct wait_options options = {.deadline_ns = DEADLINE_NEVER, .what = "a signal"};
    while (wait_while_equal(&news, 0, &options) != SHOAL_OK) {
    }
    uint32_t found = atomic_load(&news);
    if (found != NEWS_END) {
        sigset_t only;
        write_file();
        (void)sigemptyset(&only);
        (void)sigaddset(&only, (int)found);
        (void)pthread_sigmask(SIG_UNBLOCK, &only, NULL);
        let_through((int)found);
    }
    return NULL;
}

static int start_thread(void)
{
    atomic_store(&news, 0);
    atomic_store(&owner, (int)getpid());
    int code = os_start_thread(&thread, watch, NULL);
    if (code == 0) {
        (void)pthread_setname_np(thread, "shoal-trace");
        has_thread = true;
    }
    return code;
}

int trace_signal_take(void (*write)(void))
{
    struct sigaction action;
    write_file = write;
    int code = has_thread ? 0 : start_thread();
    for (size_t i = 0; i < N_NUMBERS && code == 0; i++) {
        bool is_default = sigaction(numbers[i], NULL, &action) == 0 && !(action.sa_flags & SA_SIGINFO) &&
                          action.sa_handler == SIG_DFL;
        if (is_default) {
            set_action(numbers[i], note_signal);
            is_taken[i] = true;
        }
    }
    return code;
}

static void end_thread(void)
{
    uint32_t none = 0;
    /* Otherwise a signal is being handled, and the process ends in a moment. */
    if (has_thread && atomic_compare_exchange_strong(&news, &none, NEWS_END)) {
        wait_wake_all(&news, /*is_shared=*/false);
        (void)pthread_join(thread, NULL);
        has_thread = false;
    }
}

void trace_signal_release(void)
{
    struct sigaction action;
    for (size_t i = 0; i < N_NUMBERS; i++) {
        /* A handler that the program has put there since is its own. */
        if (is_taken[i] && sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler == note_signal) {
            set_action(numbers[i], SIG_DFL);
        }
        is_taken[i] = false;
    }
    end_thread();
}

void trace_signal_forget(void)
{
    has_thread = false;
    trace_signal_release();
}
