/* SPDX-License-Identifier: MIT */
/* `shoal help`: the rows of commands.def. */
#include "tool.h"

#include <stdio.h>

void tool_print_help(FILE *out)
{
    fprintf(out, "usage: shoal COMMAND ...\n"
                 "       shoal --help | --version\n"
                 "\n");
#define COMMAND(name, function, summary) fprintf(out, "  %-8s %s\n", #name, summary);
#include "commands.def"
#undef COMMAND
}

int command_help(int argc, char **argv)
{
    if (argc > 1) {
        fprintf(stderr, "shoal: %s takes no argument, but got '%s'\n", argv[0], argv[1]);
        return TOOL_USAGE;
    }
    tool_print_help(stdout);
    return TOOL_DONE;
}
