/* SPDX-License-Identifier: MIT */
/*
 * Waiting for a 32-bit word to change: awake for a while where that can help, then asleep on the futex.
 *
 * How long a thread stays awake decides more than the time of one wake-up. The scheduler sees only threads that want to
 * run. Two ranks that hand a word to and fro and sleep in between are never both runnable: one processor is enough for
 * them, so once they have met on one (another program has started, or keeps the other processor busy) they stay there,
 * and every exchange costs a wake-up and a switch, 10 us instead of 1. Ranks that stay awake are two runnable threads,
 * which the scheduler moves apart as soon as a processor is free.
 *
 * So a thread that may spin, because its host has no more ranks than processors, waits in three steps:
 *
 *   1. It spins for up to AWAKE_NS. If the other side last waited on the same processor, it yields instead: the other
 *      side can run only if this thread lets it.
 *   2. It stays awake for as long as it has credit, and yields now and then to whoever else wants the processor. This
 *      outlasts the time that the other side is kept off its processor by another program. Sleeping then would make
 *      this processor idle, and the scheduler would bring the other side here: both would be on one processor again.
 *   3. It sleeps.
 *
 * Credit bounds what step 2 costs. A wait of at most SHORT_NS earns EARNED_NS, and staying awake in step 2 takes what it
 * lasts; there is never more than CREDIT_NS. So a thread that exchanges small messages all the time can outlast a time
 * slice of another program, while one that waits for computation of its peers, which takes milliseconds, has nothing to
 * spend and sleeps after AWAKE_NS. Over any time, processor time in step 2 is at most EARNED_NS for each short wait.
 *
 * Background threads (wait_set_background) only make step 1, and that only while processors are free. Threads with
 * something to do meanwhile (wait_set_meanwhile) leave out step 2.
 *
 * Where no processor is free, because another program keeps one busy, the scheduler has no reason to move ranks apart
 * that share one. A rank that finds this again and again moves by itself (neighbours.h).
 *
 * No wake-up is lost: the kernel compares the word with the expected value and goes to sleep in one step, and
 * the other side changes the word before it wakes. Every return from the kernel, for whatever reason, leads
 * back to reading the word, so signals and stray wake-ups only cost a turn of the loop.
 */
#include "base/wait.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/neighbours.h"
#include "base/os/os.h"
#include "base/processors.h"

/* For waits inside of a process, where the other side is a thread beside this one: about what a futex wake costs. */
#define SPIN_NS 4000
/* For waits between ranks. It is longer than a wake-up takes: ranks that run the same program arrive close together, and
   both a sleep and a wake-up cost the fast path of the next operation its warm caches. */
#define AWAKE_NS 50000
/* Longer than the time slices of Linux, which are up to 4 ms at 250 ticks a second. */
#define CREDIT_NS 5000000
#define EARNED_NS 5000
/* Ten times what an exchange by sleeps takes, so that these earn credit, too. */
#define SHORT_NS 100000
/* A rank moves away from a peer when it has found one on its processor so many times, and not more often than once in
   MOVE_NS. Moving takes some tens of microseconds. */
#define MOVE_TURNS 32
#define MOVE_NS 4000000
#define MOVE_CREDIT_NS 100000
/* Reads between two looks at the clock, which costs about as much as they do, and between two yields. */
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

/* Reads some times, with pauses: true as soon as the word has changed. */
static bool has_changed_soon(_Atomic uint32_t *word, uint32_t value)
{
    for (int i = 0; i < SPIN_READS; i++) {
        relax_cpu();
        if (has_changed(word, value)) {
            return true;
        }
    }
    return false;
}

bool wait_spin_while_equal_for(_Atomic uint32_t *word, uint32_t value, int64_t spin_ns)
{
    if (has_changed(word, value)) {
        return true;
    }
    if (spin_ns <= 0) {
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
        if (has_changed_soon(word, value)) {
            return true;
        }
    } while (clock_now_ns() < end_ns);
    return false;
}

bool wait_spin_while_equal(_Atomic uint32_t *word, uint32_t value)
{
    return wait_spin_while_equal_for(word, value, has_several_cpus() ? SPIN_NS : 0);
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

/* Returns true if the thread has something to do while it waits, and has done it. */
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

/* Staying awake ---------------------------------------------------------------------------------------- */

/* How long this thread may stay awake beyond AWAKE_NS. */
static _Thread_local int64_t credit_ns;
/* How often this thread has found the other side of a wait on its processor, without a pause of MOVE_NS; when it did so
   last; and when it last moved for that. Of several peers only one may be there, so waits for others do not count. */
static _Thread_local int n_shared;
static _Thread_local int64_t shared_ns;
static _Thread_local int64_t moved_ns;

struct wait_awake wait_awake_begin(const struct wait_options *options)
{
    return (struct wait_awake){.options = options, .may_spin = options->may_spin && wait_should_spin()};
}

/* Whether the other side needs this processor. A rank that has been on one with its peer for a while moves away; only
   the one with the higher number, so that they do not move together. */
static bool is_peer_here(const struct wait_awake *awake)
{
    const struct neighbours *neighbours = awake->options->neighbours;
    if (!neighbours || !neighbours_meet(neighbours)) {
        return false;
    }
    n_shared = awake->now_ns - shared_ns > MOVE_NS ? 1 : n_shared + 1;
    shared_ns = awake->now_ns;
    bool may_move = !is_background && neighbours->rank > neighbours->peer && credit_ns > MOVE_CREDIT_NS &&
                    n_shared > MOVE_TURNS && awake->now_ns - moved_ns > MOVE_NS;
    if (may_move) {
        moved_ns = awake->now_ns;
        n_shared = 0;
        return !neighbours_move_apart(neighbours);
    }
    return true;
}

static void look_at_clock(struct wait_awake *awake)
{
    awake->now_ns = clock_now_ns();
    if (awake->begin_ns == 0) {
        int64_t deadline_ns = awake->options->deadline_ns;
        bool has_credit = !is_background && !meanwhile.function;
        awake->begin_ns = awake->now_ns;
        awake->spin_end_ns = awake->now_ns + AWAKE_NS;
        awake->end_ns = awake->spin_end_ns + (has_credit ? credit_ns : 0);
        awake->end_ns = deadline_ns < awake->end_ns ? deadline_ns : awake->end_ns;
    }
}

bool wait_stay_awake(struct wait_awake *awake, _Atomic uint32_t *word, uint32_t value)
{
    for (int i = 0; awake->may_spin && i < SPIN_FIRST_READS; i++) {
        if (has_changed(word, value)) {
            return true;
        }
    }
    if (!awake->may_spin) {
        return has_changed(word, value);
    }
    look_at_clock(awake);
    /* Most waits end here. Whether the peer needs this processor is asked only if they do not, or if it did lately: the
       question costs some tens of nanoseconds, and a peer on another processor has no use for it. */
    if (awake->now_ns - shared_ns > MOVE_NS && has_changed_soon(word, value)) {
        return true;
    }
    while (awake->now_ns < awake->end_ns) {
        if (is_peer_here(awake) || awake->now_ns >= awake->spin_end_ns) {
            os_yield();
        }
        if (has_changed_soon(word, value)) {
            return true;
        }
        look_at_clock(awake);
    }
    awake->may_spin = false;
    return has_changed(word, value);
}

void wait_awake_end(struct wait_awake *awake)
{
    /* Without a look at the clock the wait was short, or the thread might not spin. A thread that has slept has not
       looked since. */
    int64_t begin_ns = awake->begin_ns;
    int64_t awake_ns = begin_ns ? awake->now_ns - awake->spin_end_ns : 0;
    int64_t end_ns = begin_ns && !awake->may_spin ? clock_now_ns() : awake->now_ns;
    credit_ns -= awake_ns > 0 ? awake_ns : 0;
    credit_ns += end_ns - begin_ns <= SHORT_NS ? EARNED_NS : 0;
    credit_ns = credit_ns < 0 ? 0 : credit_ns > CREDIT_NS ? CREDIT_NS : credit_ns;
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

/* The pause after a number of questions: none, a yield (0), and then sleep. */
static void pause_after(int n_questions)
{
    const int n_yields = 64;
    const int64_t first_ns = 2000;
    if (n_questions < n_yields) {
        os_yield();
    } else {
        int n_doublings = n_questions - n_yields;
        wait_sleep(n_doublings < 7 ? first_ns << n_doublings : WAIT_POLL_NS);
    }
}

shoal_status wait_until(wait_question *ask, void *context, const struct wait_options *options)
{
    int64_t start_ns = clock_now_ns();
    int64_t liveness_ns = start_ns + WAIT_LIVENESS_NS;
    for (int n_questions = 0;; n_questions++) {
        bool is_so = false;
        shoal_status status = ask(context, &is_so);
        if (status != SHOAL_OK || is_so) {
            return status;
        }
        int64_t now_ns = clock_now_ns();
        if (now_ns >= options->deadline_ns) {
            return fail_with_timeout(now_ns - start_ns, options->what);
        }
        if (options->liveness && now_ns >= liveness_ns) {
            status = options->liveness(options->liveness_context);
            if (status != SHOAL_OK) {
                return status;
            }
            liveness_ns = now_ns + WAIT_LIVENESS_NS;
        }
        pause_after(n_questions);
    }
}

void wait_yield(void)
{
    os_yield();
}

void wait_wake_all(_Atomic uint32_t *word, bool is_shared)
{
    os_wake_all(word, is_shared);
}
