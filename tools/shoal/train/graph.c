/* SPDX-License-Identifier: MIT */
/* Writes the graph of a compiled step before and after passes, for `shoal opt`. */
#include "train/graph.h"
#include "common/output.h"

#include "base/error.h"
#include "base/try.h"
#include "shoal/graph.h"

#include <errno.h>
#include <stdio.h>

static int put(void *context, const char *text, size_t bytes)
{
    return fwrite(text, 1, bytes, context) == bytes ? 0 : -1;
}

static shoal_status fail(const char *path, int code)
{
    return error_set(SHOAL_ERR_SYSTEM, "--graph: %s: %s", path, error_errno_text(code));
}

static shoal_status write_graph(const char *path, const shoal_graph *graph)
{
    struct tool_output output;
    shoal_status status = tool_output_open(path, &output);
    if (status != SHOAL_OK) {
        return error_prefix(status, "--graph");
    }
    status = shoal_graph_print(graph, put, output.stream);
    if (status != SHOAL_OK && status != SHOAL_ERR_CANCELLED) { /* cancelled by put: the file is why */
        tool_output_drop(&output);
        return status;
    }
    status = tool_output_commit(&output);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "--graph");
}

shoal_status train_graph_write_before(struct train_job *job, shoal_step_function step)
{
    shoal_graph *graph = NULL;
    TRY(shoal_capture(step, job, job->inputs, job->n_sets * job->n_inputs, job->n_sets, &graph));
    shoal_status status = job->rank == 0 ? write_graph(job->options->graph, graph) : SHOAL_OK;
    shoal_graph_free(graph);
    return status;
}

shoal_status train_graph_write_after(const struct train_job *job)
{
    char path[4096];
    if (job->rank != 0) {
        return SHOAL_OK;
    }
    int n_chars = snprintf(path, sizeof path, "%s.after", job->options->graph);
    if (n_chars < 0 || (size_t)n_chars >= sizeof path) {
        return fail(job->options->graph, ENAMETOOLONG);
    }
    return write_graph(path, shoal_compiled_graph(job->compiled));
}
