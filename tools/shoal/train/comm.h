/* SPDX-License-Identifier: MIT */
/*
 * How much time went into communication. The time that the program's thread spends waiting for communication, or
 * carrying it, is exposed; all other communication is hidden behind computation.
 */
#ifndef TRAIN_COMM_H
#define TRAIN_COMM_H

#include "shoal/world.h"

#include <stdint.h>

/* Of the calling thread since it began, in nanoseconds. */
struct train_waits {
    uint64_t begin_ticks;
    int64_t begin_ns;
};

/* Begins to compare ticks with time. */
struct train_waits train_waits_begin(void);
/* What the thread has spent in communication since it began. Needs some time between the two calls to be precise. */
int64_t train_waits_ns(const struct train_waits *waits);

/* How long gathers and reductions that began at since_ns or later were under way on this rank, in nanoseconds, as far as the
   library's record still has them; calls one after the other that overlap count twice. */
int64_t train_comm_ns(shoal_world *world, int64_t since_ns);

#endif
