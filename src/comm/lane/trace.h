/* SPDX-License-Identifier: MIT */
/* Events of lanes in the trace (base/trace.h). */
#ifndef COMM_LANE_TRACE_H
#define COMM_LANE_TRACE_H

#include <stdint.h>

struct collective;
struct lane;

/* In clock_ticks. */
struct lane_times {
    uint64_t begin_ticks;   /* when it was posted, or when a thread began to carry it */
    uint64_t end_ticks;     /* when the thread that carried it saw its end */
    uint64_t carried_ticks; /* how much of that time a thread of this rank was busy with it */
};

/*
 * Records a collective that has ended, on the lane's own track. Called, while a trace runs, by the thread that carried
 * it last. Collectives of a lane end in order, and one that is posted behind another has to wait for it. So its event
 * begins when the previous one has ended: viewers do not accept events that overlap on a track.
 */
void lane_trace_call(struct lane *lane, const struct collective *collective, const struct lane_times *times);

/*
 * Records that from begin_ticks until now the calling thread only waited for the collective, or carried it. Does
 * nothing unless a trace runs.
 */
void lane_trace_wait(const struct lane *lane, const struct collective *collective, uint64_t begin_ticks);

#endif
