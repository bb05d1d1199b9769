/* SPDX-License-Identifier: MIT */
/* Events of lanes in the trace (base/trace.h). All of these do nothing while nothing is traced. */
#ifndef COMM_LANE_TRACE_H
#define COMM_LANE_TRACE_H

#include <stdint.h>

struct collective;
struct lane;

/*
 * A collective that was carried from begin_ticks to end_ticks, on the lane's own track. By whoever carries it, so that events of
 * a track do not overlap. One that was posted is carried when somebody waits for it: in between nothing happens.
 */
void lane_trace_call(struct lane *lane, const struct collective *collective, uint64_t begin_ticks,
                     uint64_t end_ticks);

/* The calling thread had nothing to do from begin_ticks until now but wait for the collective, or carry it. */
void lane_trace_wait(const struct lane *lane, const struct collective *collective, uint64_t begin_ticks);

#endif
