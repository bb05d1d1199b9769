/* SPDX-License-Identifier: MIT */
/*
 * A word per rank that peers ring after they did something for which the rank may wait: docs/design/p2p.md.
 *
 * The word is rings * 2 + 1 while it is armed. Anybody may ring: one compare-and-exchange counts the ring and clears
 * the bit, and only if the bit was set there is a system call. A thread that wants to sleep reads the word first, then
 * looks at everything it waits for, then arms the word, which fails if it rang meanwhile, and sleeps while the word is
 * as it was armed. All of this changes one word, so no ring is lost, and nobody makes a system call if there is no
 * sleeper.
 *
 * Two threads of the rank may share this, one that arms and one that sleeps: a thread that sleeps on the word, whatever
 * its value was then, is woken by the first ring after anybody armed it.
 */
#ifndef TRANSPORT_DOORBELL_H
#define TRANSPORT_DOORBELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shoal/status.h"

struct doorbell {
    _Alignas(128) _Atomic uint32_t word; /* two lines: processors fetch them in pairs */
};

/*
 * Returns the word as it is now. Acquire: pairs with doorbell_ring, so that whoever looks afterwards sees what was done
 * before any ring that is counted in the word.
 */
static inline uint32_t doorbell_look(struct doorbell *bell)
{
    return atomic_load_explicit(&bell->word, memory_order_acquire);
}

/* Release: what the caller did before is seen by who looks at the bell after it. */
void doorbell_ring(struct doorbell *bell);

/* Rings, and wakes sleepers whether or not the bell was armed. */
void doorbell_alarm(struct doorbell *bell);

/* From now on a ring wakes. False when it rang since `*seen`; otherwise *seen is the word as it is now. */
bool doorbell_arm(struct doorbell *bell, uint32_t *seen);

/* Rings need not wake any more, if it did not ring since `*seen`. */
void doorbell_disarm(struct doorbell *bell, uint32_t *seen);

/* Returns when the word is no longer `seen` or `until_ns` has passed. */
void doorbell_sleep(struct doorbell *bell, uint32_t seen, int64_t until_ns);
/* Only spins; true when the word changed. */
bool doorbell_spin(struct doorbell *bell, uint32_t seen);

#endif
