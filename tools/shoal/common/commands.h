/* SPDX-License-Identifier: MIT */
/* The commands of the tool: the rows of commands.def. */
#ifndef COMMON_COMMANDS_H
#define COMMON_COMMANDS_H

#include <stdio.h>

#define COMMAND(name, function, summary) int function(int argc, char **argv);
#include "common/commands.def"
#undef COMMAND

void tool_print_help(FILE *out);

#endif
