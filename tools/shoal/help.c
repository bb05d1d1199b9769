/* SPDX-License-Identifier: MIT */
/* `shoal help`: the rows of commands.def. */
#include "common/commands.h"
#include "common/tool.h"

#include <stdio.h>

void tool_print_help(FILE *out)
{
    fprintf(out, "usage: shoal COMMAND ...\n"
                 "       shoal --help | --version\n"
                 "\n");
#define COMMAND(name, function, summary) fprintf(out, "  %-8s %s\n", #name, summary);
#include "common/commands.def"
#undef COMMAND
}

static const struct tool_choice commands[] = {
#define COMMAND(name_, function, summary_) {.name = #name_, .run = function, .summary = summary_},
#include "common/commands.def"
#undef COMMAND
};

#define N_COMMANDS (sizeof commands / sizeof commands[0])

/* `shoal help NAME` is `shoal NAME --help`. */
static int help_about(char *name)
{
    char option[] = "--help";
    char *words[] = {name, option, NULL};
    const struct tool_choice *command = tool_choice_find(commands, N_COMMANDS, name);
    if (!command) {
        return tool_choice_unknown("command", name, commands, N_COMMANDS);
    }
    if (command->run == command_help) {
        tool_print_help(stdout);
        return TOOL_DONE;
    }
    return command->run(2, words);
}

int command_help(int argc, char **argv)
{
    if (argc > 2) {
        fprintf(stderr, "shoal help: takes one command, but got '%s' too\n", argv[2]);
        return TOOL_USAGE;
    }
    if (argc == 2) {
        return help_about(argv[1]);
    }
    tool_print_help(stdout);
    return TOOL_DONE;
}
