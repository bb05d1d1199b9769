/* SPDX-License-Identifier: MIT */
/* The commands of the tool: the rows of commands.def. */
#ifndef COMMANDS_H
#define COMMANDS_H

#include <stdio.h>

#define COMMAND(name, function, summary) int function(int argc, char **argv);
#include "common/commands.def"
#undef COMMAND

void tool_print_help(FILE *out);

#endif
