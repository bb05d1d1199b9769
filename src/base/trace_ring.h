/* SPDX-License-Identifier: MIT */
/* What a thread has recorded, and how it becomes events of the file. */
#ifndef BASE_TRACE_RING_H
#define BASE_TRACE_RING_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/trace.h"

/* How deep ranges of the program are recorded. */
#define TRACE_MOST_RANGES 64

/*
 * The last `capacity` events of a thread, and its open ranges. Only that thread writes them. Whoever writes the file
 * reads them while the thread is kept from recording.
 */
struct trace_ring {
    struct trace_ring *next;
    _Atomic int rank; /* TRACE_NO_RANK: the process's */
    uint32_t number;  /* of the thread, from 1 */
    char thread_name[16];
    uint64_t n_events;  /* ever */
    uint64_t n_written; /* of them: in the file, or dropped */
    /* Of a copy: what it is of, and how many were dropped before its first event. */
    struct trace_ring *source;
    uint64_t n_dropped;
    uint64_t capacity;
    struct trace_range {
        uint64_t begin_ticks; /* 0 if it began outside the session */
        uint32_t name;
    } ranges[TRACE_MOST_RANGES];
    struct trace_event events[];
};
#define TRACE_NO_RANK (-1)

static inline void trace_ring_add(struct trace_ring *ring, const struct trace_event *event)
{
    ring->events[ring->n_events % ring->capacity] = *event;
    ring->n_events++;
}

/* The first event that is neither in the file nor dropped. */
static inline uint64_t trace_ring_first(const struct trace_ring *ring)
{
    uint64_t n_new = ring->n_events - ring->n_written;
    return ring->n_events - (n_new > ring->capacity ? ring->capacity : n_new);
}

/* An instant at which clock and counter were read. */
struct trace_instant {
    uint64_t ticks;
    int64_t ns;
};

/*
 * Three instants: when the session began, when the file was last written, and now. Ticks between them are converted to
 * nanoseconds by interpolation, so that events before and after a write of the file fit together.
 */
struct trace_scale {
    struct trace_instant begin;
    struct trace_instant last;
    struct trace_instant now;
};

/* What the file is told of this process. */
struct trace_process {
    struct trace_ring *rings;
    struct trace_scale scale;
    int rank;        /* of threads that have none of their own */
    int n_ranks;     /* 0 if no world was opened */
    uint64_t n_lost; /* events of threads that got no ring */
};

/* Clock and counter, read as close together as possible. */
struct trace_instant trace_read_clocks(void);

struct trace_sink;
/* Writes what is new in the rings, and notes that it was. */
void trace_put_process(struct trace_sink *sink, struct trace_process *process);

#endif
