/* SPDX-License-Identifier: MIT */
#include "comm/lane/trace.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/label.h"
#include "base/trace.h"
#include "comm/lane/line.h"
#include "transport/collective.h"

static struct trace_event event_of(const struct lane *lane, const struct collective *collective)
{
    const struct purpose *purpose = collective->purpose;
    return (struct trace_event){.bytes = collective_bytes(collective, lane->part.peers->n_ranks),
                                .name = label_of(collective_rows[collective->kind].name),
                                .unit = purpose ? purpose->label : 0};
}

/* "group [0,1], lane fsdp gather" */
static uint32_t find_track(struct lane *lane)
{
    if (lane->track == 0) {
        char name[LABEL_MAX_CHARS + 1];
        (void)snprintf(name, sizeof name, "group %s", transport_group_name(lane->part.peers));
        lane->track = label_of(name);
    }
    return lane->track;
}

void lane_trace_call(struct lane *lane, const struct collective *collective, const struct lane_times *times)
{
    struct trace_event event = event_of(lane, collective);
    event.begin_ticks = times->begin_ticks > lane->end_ticks ? times->begin_ticks : lane->end_ticks;
    event.end_ticks = times->end_ticks;
    event.carried_ticks = times->carried_ticks;
    event.track = find_track(lane);
    event.kind = TRACE_COLLECTIVE;
    lane->end_ticks = times->end_ticks;
    trace_write(&event);
}

void lane_trace_wait(const struct lane *lane, const struct collective *collective, uint64_t begin_ticks)
{
    if (trace_is_on()) {
        struct trace_event event = event_of(lane, collective);
        event.begin_ticks = begin_ticks;
        event.end_ticks = clock_ticks();
        event.kind = TRACE_WAIT;
        trace_write(&event);
    }
}
