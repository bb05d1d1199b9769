/* SPDX-License-Identifier: MIT */
/* `shoal help`: the rows of commands.def. */
#include "tool.h"

#include <stdio.h>

int command_help(int argc, char **argv)
{
    if (argc > 1) {
        fprintf(stderr, "shoal: %s takes no argument, but got '%s'\n", argv[0], argv[1]);
        return TOOL_USAGE;
    }
    printf("usage: shoal COMMAND ...\n"
           "       shoal --help | --version\n"
           "\n");
#define COMMAND(name, function, summary) printf("  %-8s %s\n", #name, summary);
#include "commands.def"
#undef COMMAND
    return TOOL_DONE;
}
