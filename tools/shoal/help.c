/* SPDX-License-Identifier: MIT */
/* `shoal help`: the rows of commands.def. */
#include "common/commands.h"
#include "common/tool.h"

#include <stdio.h>

void tool_print_help(FILE *out)
{
    fprintf(out, "usage: shoal COMMAND ...\n"
                 "       shoal --help | --version | --completion bash|zsh|fish\n"
                 "\n");
#define COMMAND(name, function, options, on_ranks, summary) fprintf(out, "  %-8s %s\n", #name, summary);
#include "common/commands.def"
#undef COMMAND
}

static const struct tool_choice commands[] = {
#define COMMAND(name_, function, options_, on_ranks, summary_) \
    {.name = #name_, .run = function, .summary = summary_, .options = &(options_)},
#include "common/commands.def"
#undef COMMAND
};

#define N_COMMANDS (sizeof commands / sizeof commands[0])

/* `shoal help NAME` is `shoal NAME --help`. */
static int help_about(const char *name)
{
    char option[] = "--help";
    char *words[] = {(char *)name, option, NULL};
    const struct tool_choice *command = tool_choice_find(commands, N_COMMANDS, name);
    if (!command || command->run == command_help) {
        tool_print_help(stdout);
        return TOOL_DONE;
    }
    tool_set_command(name);
    return command->run(2, words);
}

struct arguments {
    const char *about; /* NULL means all */
};

static const char *command_at(size_t index)
{
    return index < N_COMMANDS ? commands[index].name : NULL;
}

static const struct tool_option rows[] = {
    {"COMMAND", "command", TOOL_OPTION_NAME, offsetof(struct arguments, about), .name_at = command_at,
     .noun = "command"},
};

const struct tool_options command_help_options = {
    .synopsis = "shoal help [COMMAND]",
    .about = "Lists the commands, or the options of one.\n",
    TOOL_OPTIONS_ROWS(rows),
};

int command_help(int argc, char **argv)
{
    struct arguments arguments = {NULL};
    int exit_status;
    if (!tool_options_read(&command_help_options, argc, argv, &arguments, NULL, &exit_status)) {
        return exit_status;
    }
    if (arguments.about) {
        return help_about(arguments.about);
    }
    tool_print_help(stdout);
    return TOOL_DONE;
}
