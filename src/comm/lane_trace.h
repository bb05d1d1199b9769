/* SPDX-License-Identifier: MIT */
/* Events of lanes in the trace (base/trace.h). */
#ifndef COMM_LANE_TRACE_H
#define COMM_LANE_TRACE_H

#include <stdint.h>

struct collective;
struct lane;

/* In clock_ticks. */
struct lane_times {
    uint64_t begin_ticks;   /* when it was posted, or when somebody began to carry it */
    uint64_t end_ticks;     /* when who carried it saw that it had ended */
    uint64_t carried_ticks; /* how much of that time a thread of this rank was busy with it */
};

/*
 * A collective that has ended, on the lane's own track, by whoever carried it last. Collectives of a lane end in their
 * order, and one that is posted behind another has to wait for it: its event begins when that one has ended, so that
 * events of a track do not overlap, which viewers do not accept. While something is traced.
 */
void lane_trace_call(struct lane *lane, const struct collective *collective, const struct lane_times *times);

/*
 * The calling thread had nothing to do from begin_ticks until now but wait for the collective, or carry it. Does
 * nothing while nothing is traced.
 */
void lane_trace_wait(const struct lane *lane, const struct collective *collective, uint64_t begin_ticks);

#endif
