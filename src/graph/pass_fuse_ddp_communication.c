/* SPDX-License-Identifier: MIT */
/* fuse_ddp_communication: the passes of the option ddp_passes, each observed, drawn and linted for itself. */
#include <stdio.h>

#include "base/try.h"
#include "graph/passes.h"

#define DEFAULT_PASSES "fuse_ddp_with_concat_op,schedule_comm_wait"

struct driver {
    struct shoal_graph *graph;
    const shoal_pass_options *options;
    shoal_pass_report *report;
    unsigned n_run;
};

static shoal_status run_part(void *context, const char *name, size_t bytes)
{
    struct driver *driver = context;
    const struct pass *pass = NULL;
    struct pass_changes changes; /* the driver's observer has seen them, too */
    char label[64];
    TRY(pass_find(name, bytes, &pass));
    (void)snprintf(label, sizeof(label), "fuse_ddp_communication_pass_%u", driver->n_run++);
    return pass_run(driver->graph, pass, label, driver->options, driver->report, &changes);
}

shoal_status pass_fuse_ddp_communication(shoal_graph *graph, const shoal_pass_options *options,
                                         shoal_pass_report *report, void *context)
{
    struct driver driver = {.graph = graph, .options = options, .report = report};
    (void)context;
    return pass_each_name(options->ddp_passes ? options->ddp_passes : DEFAULT_PASSES, run_part, &driver);
}
