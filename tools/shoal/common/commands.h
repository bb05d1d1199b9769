/* SPDX-License-Identifier: MIT */
/* The commands of the tool, and the tables of their options: the rows of commands.def. */
#ifndef COMMON_COMMANDS_H
#define COMMON_COMMANDS_H

#include "common/options.h"

#include <stdio.h>

#define COMMAND(name, function, options, on_ranks, summary) \
    int function(int argc, char **argv);                    \
    extern const struct tool_options options;
#include "common/commands.def"
#undef COMMAND

void tool_print_help(FILE *out);

#endif
