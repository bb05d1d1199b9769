/* SPDX-License-Identifier: MIT */
/*
 * Waiting for a 32-bit word to change: a few microseconds of spinning where that can help, then the futex.
 *
 * No wake-up is lost: the kernel compares the word with the expected value and goes to sleep in one step, and
 * the other side changes the word before it wakes. Every return from the kernel, for whatever reason, leads
 * back to reading the word, so signals and stray wake-ups only cost a turn of the loop.
 */
#include "base/wait.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/os/os.h"
#include "base/processors.h"

/* About what a futex wake and a switch to the woken thread cost: spinning longer cannot win. */
#define SPIN_NS 4000
/* Reads between two looks at the clock, which costs about as much as they do. */
#define SPIN_READS 16
/* Reads before the first pause. */
#define SPIN_FIRST_READS 32

static void relax_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    /* yield does nothing on most cores; isb takes a few tens of nanoseconds, like pause. */
    __asm__ volatile("isb" ::: "memory");
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* On one processor spinning only keeps the other side from running. Counted once: asking the kernel each
   time would cost more than the spinning saves. */
static bool has_several_cpus(void)
{
    static _Atomic int n_cpus_known;
    /* Relaxed, here and below: the number stands for itself. It is the first waiting thread's: one that is pinned
       to a processor alone keeps the others from spinning, which costs time, not correctness. */
    int n_cpus = atomic_load_explicit(&n_cpus_known, memory_order_relaxed);
    if (n_cpus == 0) {
        n_cpus = os_n_processors();
        atomic_store_explicit(&n_cpus_known, n_cpus, memory_order_relaxed);
    }
    return n_cpus > 1;
}

/* Acquire: pairs with the store, at least release, by which the other side changes the word. */
static bool has_changed(_Atomic uint32_t *word, uint32_t value)
{
    return atomic_load_explicit(word, memory_order_acquire) != value;
}

bool wait_spin_while_equal_for(_Atomic uint32_t *word, uint32_t value, int64_t spin_ns)
{
    if (has_changed(word, value)) {
        return true;
    }
    if (spin_ns <= 0 || !has_several_cpus()) {
        return false;
    }
    /* What comes within some tens of nanoseconds is not kept waiting by a clock or a pause. */
    for (int i = 0; i < SPIN_FIRST_READS; i++) {
        if (has_changed(word, value)) {
            return true;
        }
    }
    int64_t end_ns = clock_now_ns() + spin_ns;
    do {
        for (int i = 0; i < SPIN_READS; i++) {
            relax_cpu();
            if (has_changed(word, value)) {
                return true;
            }
        }
    } while (clock_now_ns() < end_ns);
    return false;
}

bool wait_spin_while_equal(_Atomic uint32_t *word, uint32_t value)
{
    return wait_spin_while_equal_for(word, value, SPIN_NS);
}

static _Thread_local bool is_background;

void wait_set_background(void)
{
    is_background = true;
}

bool wait_should_spin(void)
{
    return !is_background || processors_are_free();
}

/* What the thread does while it waits. */
#define MEANWHILE_NS 100000
static _Thread_local struct {
    void (*function)(void *context);
    void *context;
    bool is_inside;
} meanwhile;

bool wait_set_meanwhile(void (*function)(void *context), void *context)
{
    if (function && meanwhile.function) {
        return false;
    }
    meanwhile.function = function;
    meanwhile.context = context;
    return true;
}

/* True: the thread has something to do while it waits, and has done it. */
static bool do_meanwhile(void)
{
    if (!meanwhile.function || meanwhile.is_inside) {
        return false;
    }
    meanwhile.is_inside = true;
    meanwhile.function(meanwhile.context);
    meanwhile.is_inside = false;
    return true;
}

static void sleep_ns(int64_t ns)
{
    struct timespec rest = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = ns % 1000000000};
    while (ns > 0 && clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, &rest) == EINTR) {
    }
}

void wait_sleep(int64_t ns)
{
    int64_t end_ns = clock_now_ns() + ns;
    while (ns > MEANWHILE_NS && do_meanwhile()) {
        sleep_ns(MEANWHILE_NS);
        ns = end_ns - clock_now_ns();
    }
    sleep_ns(ns);
}

static shoal_status fail_with_timeout(int64_t waited_ns, const char *what)
{
    return error_set(SHOAL_ERR_TIMEOUT, "waited %.1f s for %s", (double)waited_ns * 1e-9,
                     what ? what : "a change");
}

/* The slow half: asleep, with the deadline and the liveness callback. */
static shoal_status sleep_while_equal(_Atomic uint32_t *word, uint32_t value,
                                      const struct wait_options *options)
{
    int64_t start_ns = clock_now_ns();
    int64_t now_ns = start_ns;
    int64_t liveness_ns = options->liveness ? start_ns + WAIT_LIVENESS_NS : DEADLINE_NEVER;
    while (!has_changed(word, value)) {
        if (now_ns >= options->deadline_ns) {
            return fail_with_timeout(now_ns - start_ns, options->what);
        }
        if (now_ns >= liveness_ns) {
            shoal_status status = options->liveness(options->liveness_context);
            if (status != SHOAL_OK && !has_changed(word, value)) {
                return status;
            }
            /* A peer may do its part and die: its part was done. The text of the callback is then void. */
            if (status != SHOAL_OK) {
                error_clear();
                return SHOAL_OK;
            }
            liveness_ns = clock_now_ns() + WAIT_LIVENESS_NS;
        }
        int64_t until_ns = options->deadline_ns < liveness_ns ? options->deadline_ns : liveness_ns;
        if (do_meanwhile() && until_ns > now_ns + MEANWHILE_NS) {
            until_ns = now_ns + MEANWHILE_NS;
        }
        if (os_sleep_on_word(word, value, until_ns, options->is_shared) != 0) {
            return error_set(SHOAL_ERR_SYSTEM, "futex wait: %s", strerror(errno));
        }
        now_ns = clock_now_ns();
    }
    return SHOAL_OK;
}

shoal_status wait_while_equal(_Atomic uint32_t *word, uint32_t value, const struct wait_options *options)
{
    if (has_changed(word, value)) {
        return SHOAL_OK;
    }
    if (options->may_spin && wait_spin_while_equal(word, value)) {
        return SHOAL_OK;
    }
    return sleep_while_equal(word, value, options);
}

void wait_yield(void)
{
    (void)sched_yield();
}

void wait_wake_all(_Atomic uint32_t *word, bool is_shared)
{
    os_wake_all(word, is_shared);
}
