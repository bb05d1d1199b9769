/* SPDX-License-Identifier: MIT */
/* fuse_ddp_communication: the passes of the option ddp_passes, each observed, drawn and linted for itself. */
#include <stdio.h>

#include "graph/passes/passes.h"

#define DEFAULT_PASSES "fuse_ddp_with_concat_op,schedule_comm_wait"

struct driver {
    const struct pass_services *services;
    struct shoal_graph *graph;
    const shoal_pass_options *options;
    shoal_pass_report *report;
    unsigned n_run;
};

static shoal_status run_part(void *context, const char *name, size_t bytes)
{
    struct driver *driver = context;
    char label[64];
    (void)snprintf(label, sizeof(label), "fuse_ddp_communication_pass_%u", driver->n_run++);
    return driver->services->run(driver->graph, name, bytes, label, driver->options, driver->report);
}

shoal_status pass_fuse_ddp_communication(shoal_graph *graph, const shoal_pass_options *options,
                                         shoal_pass_report *report, void *context)
{
    struct driver driver = {.services = context, .graph = graph, .options = options, .report = report};
    return pass_each_name(options->ddp_passes ? options->ddp_passes : DEFAULT_PASSES, run_part, &driver);
}
