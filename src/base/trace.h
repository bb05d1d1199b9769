/* SPDX-License-Identifier: MIT */
/*
 * Recording what happens when, for shoal/trace.h. All layers may record:
 *
 *     uint64_t begin = trace_begin();
 *     ...
 *     trace_end(begin, TRACE_OP, op->name);
 *
 * Off, that is one relaxed load and a test of a local variable. On, the event goes into the ring of its thread: two
 * readings of the counter, a look-up of the name, and seven stores; nothing is allocated after the thread's first
 * event.
 *
 * docs/design/trace.md has the whole; trace.c the memory order.
 */
#ifndef BASE_TRACE_H
#define BASE_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

enum trace_kind {
#define TRACE_KIND(NAME, category, is_instant) TRACE_##NAME,
#include "base/trace_kinds.def"
#undef TRACE_KIND
    TRACE_KIND_COUNT
};

/* One event. Times are clock_ticks. */
struct trace_event {
    uint64_t begin_ticks;
    uint64_t end_ticks;
    /* Of a collective: how long a thread of this rank carried it; 0 if it is not told. */
    uint64_t carried_ticks;
    uint64_t bytes; /* that a collective moves; of a step its number; 0 if it is not told */
    uint32_t name;  /* base/label.h, here and below */
    uint32_t unit;  /* what it belongs to: the unit of a gather; 0 if it belongs to nothing */
    uint32_t track; /* a lane, on which it is shown instead of on its thread; 0 if there is none */
    uint32_t kind;
};

enum {
    TRACE_UNKNOWN, /* nobody has asked the environment yet */
    TRACE_OFF,
    TRACE_ON,
    TRACE_PAUSED /* for the moment in which the rings are copied: who records waits */
};
/* Read it with trace_is_on. */
extern _Atomic uint32_t trace_state;

/* Reads SHOAL_TRACE, once, and starts if it is set. Whether a trace runs. */
bool trace_resolve(void);

static inline bool trace_is_on(void)
{
    /* Relaxed: a guess, which trace_write verifies. */
    uint32_t state = atomic_load_explicit(&trace_state, memory_order_relaxed);
    return state != TRACE_OFF && (state == TRACE_ON || trace_resolve());
}

/* Now, or 0 while nothing is traced: trace_end then does nothing. */
static inline uint64_t trace_begin(void)
{
    return trace_is_on() ? clock_ticks() : 0;
}

/* Records an event of the calling thread. One that began before the trace is left out. */
void trace_write(const struct trace_event *event);

void trace_write_named(uint64_t begin_ticks, enum trace_kind kind, const char *name);

static inline void trace_end(uint64_t begin_ticks, enum trace_kind kind, const char *name)
{
    if (begin_ticks != 0) {
        trace_write_named(begin_ticks, kind, name);
    }
}

/* Says that the step that shoal_trace_step began ends here, for programs that do something else between two steps. What
   follows belongs to no step until the next one begins. */
void trace_step_end(void);

/* Worlds ------------------------------------------------------------------------------------------------- */

/*
 * Says that the calling thread is rank `rank` of `n_ranks`, whose traces go into one file. `run` is a number that these
 * ranks share and that no other run has; 0 means that the rank is alone.
 */
void trace_world_opened(int rank, int n_ranks, uint64_t run);
/* The number by which the file of a trace tells runs apart ("run" in its header): that of the above, or, if there was
   none, one of this process and its trace. */
uint64_t trace_run(void);
/* As often as trace_world_opened. The last one writes what there is. */
void trace_world_closed(void);

/* Events of the calling thread are those of this rank: for threads that work for one. */
void trace_set_rank(int rank);

#endif
