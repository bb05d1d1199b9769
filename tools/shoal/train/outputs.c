/* SPDX-License-Identifier: MIT */
/* The table of the files of a training. */
#include "train/outputs.h"
#include "common/paths.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* A path with %p, %h or %r is one for each process, host or rank. */
static const char *find_trace(const struct train_options *options)
{
    return options->trace && !strchr(options->trace, '%') ? options->trace : NULL;
}

bool train_outputs_are_apart(const struct train_options *options, char *text, size_t bytes)
{
    char after[PATH_MAX] = "";
    if (options->graph) {
        (void)snprintf(after, sizeof after, "%s.after", options->graph);
    }
    const struct tool_path paths[] = {
        {"--trace", find_trace(options), true},
        {options->has_own_log ? "the log of --report" : "--log", options->log, true},
        {"--report", options->report, true},
        {"--checkpoint", options->checkpoint, true},
        {"--graph", options->graph, true},
        {"--graph", after[0] ? after : NULL, true},
        {"the data", options->tokens ? options->tokens : options->data, false},
        {"the data of --val", options->val_fraction > 0.0 ? NULL : options->val, false},
    };
    return tool_paths_are_apart(paths, sizeof paths / sizeof paths[0], text, bytes);
}
