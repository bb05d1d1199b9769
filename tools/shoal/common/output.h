/* SPDX-License-Identifier: MIT */
/*
 * Files that commands write as a whole. All such options (--report, --out, --output, --svg, --dot, --graph) write here, so
 * that they treat a name in the same way: symbolic links are followed and stay; a directory, a device, a pipe or a
 * socket is refused and stays, too; readers see either the old file or the whole new one.
 */
#ifndef COMMON_OUTPUT_H
#define COMMON_OUTPUT_H

#include "checkpoint/io/file.h"
#include "shoal/status.h"

#include <stdio.h>

/* Must stay where it is while it is open. */
struct tool_output {
    FILE *stream;     /* to print to */
    struct file file; /* beside its place until it is whole */
    int code;         /* errno of the first write that failed; 0 if none has */
};

/* Errors name the path, and say why it cannot be written. */
shoal_status tool_output_open(const char *path, struct tool_output *output_out);

/* The file takes its place, unless something could not be written: that is the error. Closes it in any case. */
shoal_status tool_output_commit(struct tool_output *output);

/* Closes it; nothing of it is left. */
void tool_output_drop(struct tool_output *output);

/* Whether the file could be written later: the first error that tool_output_open would find. Nothing is left. */
shoal_status tool_output_check(const char *path);

#endif
