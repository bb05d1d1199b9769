/* SPDX-License-Identifier: MIT */
/* sink_waits: waits come as late as they can, behind everything that does not need them. */
#include "graph/passes/list_schedule.h"
#include "graph/passes/passes.h"

shoal_status pass_sink_waits(shoal_graph *graph, const shoal_pass_options *options, shoal_pass_report *report,
                             void *context)
{
    (void)report;
    (void)context;
    return list_schedule_run(graph, &(struct list_schedule){.sinks_waits = true}, options);
}
