/* SPDX-License-Identifier: MIT */
/* What a thread has recorded, and how it becomes events of the file. */
#ifndef BASE_TRACE_RING_H
#define BASE_TRACE_RING_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/trace.h"

/* How deep ranges of the program are recorded. */
#define TRACE_MOST_RANGES 64

/* The last `capacity` events of a thread, and its open ranges. Only that thread writes, and who writes the file reads while it cannot. */
struct trace_ring {
    struct trace_ring *next;
    _Atomic int rank; /* TRACE_NO_RANK: the process's */
    uint32_t number;  /* of the thread, from 1 */
    char thread_name[16];
    uint64_t n_events;  /* ever */
    uint64_t n_written; /* of them: in the file, or dropped */
    uint64_t capacity;
    struct trace_range {
        uint64_t begin_ticks; /* 0: began outside the session */
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

/* Two instants at which clock and counter were read. */
struct trace_scale {
    uint64_t begin_ticks;
    int64_t begin_ns;
    uint64_t now_ticks;
    int64_t now_ns;
};

/* What the file is told of this process. */
struct trace_process {
    struct trace_ring *rings;
    struct trace_scale scale;
    int rank;        /* of threads that have none of their own */
    int n_ranks;     /* 0: no world was opened */
    uint64_t n_lost; /* events of threads that got no ring */
};

/* Clock and counter, read as close together as possible. */
void trace_read_clocks(uint64_t *ticks_out, int64_t *ns_out);

struct trace_sink;
/* Writes what is new in the rings, and notes that it was. */
void trace_put_process(struct trace_sink *sink, struct trace_process *process);

#endif
