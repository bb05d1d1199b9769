/* SPDX-License-Identifier: MIT */
/*
 * The one way to wait: for a 32-bit word to change. Spins briefly if the caller may, then sleeps on the
 * futex; always with a deadline, and asks a liveness callback now and then whether waiting still makes
 * sense. No other file may spin or sleep.
 */
#ifndef BASE_WAIT_H
#define BASE_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shoal/status.h"

struct neighbours;

struct wait_options {
    int64_t deadline_ns; /* absolute (base/clock.h) */
    bool is_shared;      /* the word lies in memory shared between processes */
    bool may_spin;       /* the caller has nothing better to do with its core */
    /* Optional. Anything but SHOAL_OK ends the wait with that status; it has set the error text. Called about
       every WAIT_LIVENESS_NS while the word has not changed; a change that it overlooks still counts. */
    shoal_status (*liveness)(void *context);
    void *liveness_context;
    const char *what; /* for the error text: "waited 2.0 s for <what>" */
    /* Optional: the ranks of the word's memory, and on which processors they wait. */
    const struct neighbours *neighbours;
};

#define WAIT_LIVENESS_NS 100000000 /* 100 ms */

/*
 * Returns once *word != value, with acquire order on the read that saw the change. SHOAL_ERR_TIMEOUT when
 * the deadline passes first.
 */
shoal_status wait_while_equal(_Atomic uint32_t *word, uint32_t value, const struct wait_options *options);

/*
 * Only the spinning part, for callers that announce a sleeper before they sleep (base/completion.c): true
 * with acquire order once *word != value, false after a few microseconds, at once on a single processor.
 */
bool wait_spin_while_equal(_Atomic uint32_t *word, uint32_t value);

/* Spins while *word == value, for as long as the caller says, on any number of processors; 0 or less only looks. */
bool wait_spin_while_equal_for(_Atomic uint32_t *word, uint32_t value, int64_t spin_ns);

/*
 * The part of a wait before sleeping, for callers that announce a sleeper before they sleep (sharedmem/flag.c). What it
 * does, and for how long, is said in wait.c. One wait may look at several values of its word:
 *
 *   struct wait_awake awake = wait_awake_begin(&options);
 *   while the word does not say what the caller waits for:
 *       if (!wait_stay_awake(&awake, word, value)) announce a sleeper, and sleep
 *   wait_awake_end(&awake);
 */
struct wait_awake {
    const struct wait_options *options;
    bool may_spin;
    int64_t begin_ns; /* 0 if the clock has not been read yet */
    int64_t now_ns;   /* the last look at the clock */
    int64_t spin_end_ns;
    int64_t end_ns;
};

struct wait_awake wait_awake_begin(const struct wait_options *options);
/* True with acquire order once *word != value; false when the thread should sleep. */
bool wait_stay_awake(struct wait_awake *awake, _Atomic uint32_t *word, uint32_t value);
/* The wait is over. The thread remembers how long it took. */
void wait_awake_end(struct wait_awake *awake);

/*
 * Says that the calling thread works beside threads that compute. For the rest of its life it spins only while
 * processors are free, so that it takes none from a thread that others wait for.
 */
void wait_set_background(void);

/* False where the calling thread should sleep at once. */
bool wait_should_spin(void);

/*
 * Sets a function that the calling thread calls about every 100 us while it waits, for work that no other thread may
 * do. The function must not wait. NULL removes it. Returns false if the thread already has such a function.
 */
bool wait_set_meanwhile(void (*function)(void *context), void *context);

/* Sleeps that long, or a little longer: for retries, where there is no word to wait for. */
void wait_sleep(int64_t ns);

/*
 * Asks until the answer is yes, for what changes no word: at first without pauses, then with pauses that grow to
 * WAIT_POLL_NS. Otherwise like wait_while_equal. A failure of `ask` ends the wait.
 */
typedef shoal_status wait_question(void *context, bool *is_so_out);
shoal_status wait_until(wait_question *ask, void *context, const struct wait_options *options);
#define WAIT_POLL_NS 200000

/* Lets another thread that can run have the processor; returns at once if there is none. For those who must poll. */
void wait_yield(void);

/* Wakes everybody asleep on the word; call after changing it. */
void wait_wake_all(_Atomic uint32_t *word, bool is_shared);

#endif
