/* SPDX-License-Identifier: MIT */
/* raise_comms: starts come as early as they can, each directly behind what it needs. */
#include "graph/passes/list_schedule.h"
#include "graph/passes/passes.h"

shoal_status pass_raise_comms(shoal_graph *graph, const shoal_pass_options *options,
                              shoal_pass_report *report, void *context)
{
    (void)report;
    (void)context;
    return list_schedule_run(graph, &(struct list_schedule){.raises_starts = true}, options);
}
