/* SPDX-License-Identifier: MIT */
/* Entry of the tool: finds the command among the rows of commands.def and runs it. */
#include "common/commands.h"
#include "common/tool.h"
#include "completion/completion.h"

#include "shoal/version.h"

#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum {
    SPEAK_S = 1
};

enum {
    N_TABLES = 0
#define COMMAND(name, function, options, on_ranks, summary) +1
#include "common/commands.def"
#undef COMMAND
};

/* Those with a table come first. */
static const struct tool_choice commands[] = {
#define COMMAND(name_, function, options_, on_ranks, summary_) \
    {.name = #name_, .run = function, .summary = summary_, .options = &(options_)},
#include "common/commands.def"
#undef COMMAND
    /* Not commands, but named like ones when the user mistypes them. */
    {.name = "--help", .run = command_help},
    {.name = "-h", .run = command_help},
    {.name = "--version", .run = NULL},
    {.name = "--completion", .run = NULL},
};

#define N_COMMANDS (sizeof commands / sizeof commands[0])

/* By the order of the rows. */
static const bool are_on_ranks[] = {
#define COMMAND(name, function, options, on_ranks, summary) on_ranks,
#include "common/commands.def"
#undef COMMAND
};

/* Whether the command is for one process, and this is another one of a launcher. */
static bool is_for_another(const struct tool_choice *command)
{
    size_t row = (size_t)(command - commands);
    return row < N_TABLES && !are_on_ranks[row] && !tool_speaks();
}

/* A launcher ends all ranks with the first one that fails: rank 0, which says what is wrong with a command line, has time
   for that. */
static int let_speak(int exit_status)
{
    if (exit_status == TOOL_USAGE && !tool_speaks()) {
        const struct timespec nap = {.tv_sec = SPEAK_S};
        (void)nanosleep(&nap, NULL);
    }
    return exit_status;
}

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
    if (strcmp(argv[1], "--completion") == 0) {
        return check_output(completion_print(argc == 3 ? argv[2] : NULL, commands, N_TABLES));
    }
    const struct tool_choice *command = tool_choice_find(commands, N_COMMANDS, argv[1]);
    if (!command) {
        const char *kind = argv[1][0] == '-' ? "option" : "command";
        return let_speak(tool_choice_unknown(kind, argv[1], commands, N_COMMANDS));
    }
    tool_set_command(command->name);
    if (is_for_another(command)) {
        return TOOL_DONE;
    }
    return let_speak(check_output(command->run(argc - 1, argv + 1)));
}
