/* SPDX-License-Identifier: MIT */
/*
 * Completion of the tool's command lines in shells, made from the tables of the commands (common/options.h): nothing is
 * written twice. `shoal --completion SHELL` prints what the build installs.
 */
#ifndef COMPLETION_COMPLETION_H
#define COMPLETION_COMPLETION_H

#include "common/tool.h"

#include <stddef.h>

/* Prints the completion of a shell: bash, zsh or fish. Returns the exit status: TOOL_USAGE, after a message, for another
   one. */
int completion_print(const char *shell, const struct tool_choice *commands, size_t n_commands);

#endif
