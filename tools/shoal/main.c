/* SPDX-License-Identifier: MIT */
/* Entry of the tool: finds the command among the rows of commands.def and runs it. */
#include "common/commands.h"
#include "common/tool.h"

#include "shoal/version.h"

#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

static const struct tool_choice commands[] = {
#define COMMAND(name_, function, summary_) {.name = #name_, .run = function, .summary = summary_},
#include "common/commands.def"
#undef COMMAND
    /* Not commands, but named like ones when the user mistypes them. */
    {.name = "--help", .run = command_help},
    {.name = "-h", .run = command_help},
    {.name = "--version", .run = NULL},
};

#define N_COMMANDS (sizeof commands / sizeof commands[0])

/* Output that could not be written (a full disk, a closed pipe) is a failure too. */
static int check_output(int exit_status)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("shoal: standard output");
        return exit_status == TOOL_DONE ? TOOL_FAILED : exit_status;
    }
    return exit_status;
}

int main(int argc, char **argv)
{
    (void)prctl(PR_SET_NAME, "shoal"); /* ranks that the tool starts would be called "exe" */
    if (argc < 2) {
        tool_print_help(stderr);
        return TOOL_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("shoal %s\n", shoal_version());
        return check_output(TOOL_DONE);
    }
    const struct tool_choice *command = tool_choice_find(commands, N_COMMANDS, argv[1]);
    if (!command) {
        const char *kind = argv[1][0] == '-' ? "option" : "command";
        return tool_choice_unknown(kind, argv[1], commands, N_COMMANDS);
    }
    tool_set_command(command->name);
    return check_output(command->run(argc - 1, argv + 1));
}
