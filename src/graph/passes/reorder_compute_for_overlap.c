/* SPDX-License-Identifier: MIT */
/* reorder_compute_for_overlap: starts come early, with compute behind them that covers their time, and waits late. */
#include "graph/passes/list_schedule.h"
#include "graph/passes/passes.h"

shoal_status pass_reorder_compute_for_overlap(shoal_graph *graph, const shoal_pass_options *options,
                                              shoal_pass_report *report, void *context)
{
    (void)report;
    (void)context;
    return list_schedule_run(
        graph, &(struct list_schedule){.raises_starts = true, .sinks_waits = true, .covers_starts = true},
        options);
}
