/* SPDX-License-Identifier: MIT */
/*
 * How long the calling thread has been in communication: waiting for a collective, or carrying one itself. It does not
 * compute during that time, so this is exposed communication. It is always counted, in ticks of clock_ticks.
 *
 * A program that asks how much of its communication is hidden needs to know when that was, and when other threads
 * carried collectives. For it the intervals are kept in a ring of the process, from which it takes them after each
 * step. Until a program asks for that, each place that would record costs one load.
 */
#ifndef BASE_WAITED_H
#define BASE_WAITED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

/* Since the thread began. */
uint64_t waited_ticks(void);

/* The calling thread was in communication between these two instants of clock_ticks. */
void waited_add(uint64_t begin_ticks, uint64_t end_ticks);

/* Spans -------------------------------------------------------------------------------------------------- */

enum {
    WAITED_MAX_SPANS = 8192 /* that are kept until they are taken; then the oldest are lost */
};

struct waited_span {
    uint64_t begin_ticks;
    uint64_t end_ticks;
    bool is_wait; /* of the thread that asked for spans; otherwise a collective was carried, by any thread */
};

extern _Atomic bool waited_has_spans;

/* Now if spans are kept, otherwise 0: for a time that only waited_carried needs. */
static inline uint64_t waited_begin(void)
{
    /* Relaxed: a span more or less at the beginning does not matter. */
    return atomic_load_explicit(&waited_has_spans, memory_order_relaxed) ? clock_ticks() : 0;
}

/* Keeps spans from now on: waits of the calling thread, and collectives that are carried by any thread. Call it once
   per process; there is no end. */
void waited_keep_spans(void);

void waited_keep_carried(uint64_t begin_ticks, uint64_t end_ticks);

/* A thread was busy with a collective between these instants. */
static inline void waited_carried(uint64_t begin_ticks, uint64_t end_ticks)
{
    if (atomic_load_explicit(&waited_has_spans, memory_order_relaxed)) {
        waited_keep_carried(begin_ticks, end_ticks);
    }
}

/* Takes up to `most` spans that have ended since the last call, in about the order of their ends, and returns how many.
   One thread at a time. */
size_t waited_take_spans(struct waited_span *spans, size_t most);

#endif
