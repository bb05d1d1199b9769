/* SPDX-License-Identifier: MIT */
/* A table of ranges, and a handler that looks a faulting address up in it. */
#include "base/explain_faults.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/options.h"

enum {
    MAX_RANGES = 256,
    TEXT_BYTES = 256
};

/*
 * The handler may interrupt any thread, so it takes no lock. `begin` is stored last (release) when a range is added and
 * read first (acquire) by the handler; it is 0 while the range is not there. A text may be half of an old one if it
 * changes while another thread faults: it ends at the last byte, which is never written.
 */
static struct range {
    _Atomic uintptr_t begin;
    _Atomic size_t bytes;
    char text[TEXT_BYTES];
} ranges[MAX_RANGES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const struct range *find_range(uintptr_t address)
{
    for (int i = 0; i < MAX_RANGES; i++) {
        /* Acquire: pairs with the release in explain_faults_add. */
        uintptr_t begin = atomic_load_explicit(&ranges[i].begin, memory_order_acquire);
        size_t bytes = atomic_load_explicit(&ranges[i].bytes, memory_order_relaxed);
        if (begin != 0 && address >= begin && address - begin < bytes) {
            return &ranges[i];
        }
    }
    return NULL;
}

/* The instruction is executed again afterwards, and the system's action follows. */
static void explain(int number, siginfo_t *info, void *context)
{
    (void)context;
    const struct range *range = find_range((uintptr_t)info->si_addr);
    bool is_write = number == SIGSEGV && info->si_code == SEGV_ACCERR;
    if (is_write && range && range->text[0]) {
        (void)!write(STDERR_FILENO, range->text, strnlen(range->text, TEXT_BYTES - 1));
    }
    (void)signal(number, SIG_DFL);
    /* A signal that was sent, and is no fault, would not come again. */
    if (info->si_code <= 0) {
        (void)kill(getpid(), number);
    }
}

static void take_signal(int number)
{
    struct sigaction before;
    struct sigaction action = {.sa_sigaction = explain, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    (void)sigemptyset(&action.sa_mask);
    if (sigaction(number, NULL, &before) == 0 && !(before.sa_flags & SA_SIGINFO) &&
        before.sa_handler == SIG_DFL) {
        (void)sigaction(number, &action, NULL);
    }
}

/* Under the lock. */
static bool begin(void)
{
    static bool has_begun;
    if (option_choice(OPTION_EXPLAIN_FAULTS) == 0) {
        return false;
    }
    if (!has_begun) {
        has_begun = true;
        take_signal(SIGSEGV);
    }
    return true;
}

int explain_faults_add(const void *data, size_t bytes)
{
    int found = EXPLAIN_FAULTS_NONE;
    (void)pthread_mutex_lock(&lock);
    bool is_on = data && bytes > 0 && begin();
    for (int i = 0; is_on && i < MAX_RANGES && found == EXPLAIN_FAULTS_NONE; i++) {
        if (atomic_load_explicit(&ranges[i].begin, memory_order_relaxed) == 0) {
            found = i;
            ranges[i].text[0] = '\0';
            atomic_store_explicit(&ranges[i].bytes, bytes, memory_order_relaxed);
            /* Release: pairs with the acquire in find_range. */
            atomic_store_explicit(&ranges[i].begin, (uintptr_t)data, memory_order_release);
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return found;
}

void explain_faults_name(int number, const char *text)
{
    if (number >= 0 && number < MAX_RANGES) {
        (void)snprintf(ranges[number].text, TEXT_BYTES - 1, "%s", text);
    }
}

void explain_faults_remove(int number)
{
    if (number >= 0 && number < MAX_RANGES) {
        atomic_store_explicit(&ranges[number].begin, 0, memory_order_relaxed);
    }
}
