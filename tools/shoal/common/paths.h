/* SPDX-License-Identifier: MIT */
/*
 * The files of a command line, before any of them is written: an output that is another of them would destroy it, or be
 * destroyed. All commands that write files ask here.
 */
#ifndef COMMON_PATHS_H
#define COMMON_PATHS_H

#include <stdbool.h>
#include <stddef.h>

struct tool_path {
    const char *name; /* of an output its option, "--log"; of an input what it is, "the data" */
    const char *path; /* NULL if there is none */
    bool is_output;
};

/*
 * Whether every output is a file of its own. If one is not, returns false, and `text` says which. Files that exist are
 * compared by device and inode, so links count; others by their paths, without links and dots. What exists and is no
 * regular file, such as /dev/null, may be there several times.
 */
bool tool_paths_are_apart(const struct tool_path *paths, size_t n_paths, char *text, size_t bytes);

/* The same for a command of one process: says on standard error what is wrong. */
bool tool_paths_check(const struct tool_path *paths, size_t n_paths);

#endif
