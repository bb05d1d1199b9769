/* SPDX-License-Identifier: MIT */
/* `shoal --completion SHELL`: finds the shell. */
#include "completion/completion.h"
#include "completion/words.h"

#include <stdio.h>
#include <string.h>

static const struct shell {
    const char *name;
    void (*print)(const struct completion *completion);
} shells[] = {
    {"bash", completion_print_bash},
    {"zsh", completion_print_zsh},
    {"fish", completion_print_fish},
};

int completion_print(const char *shell, const struct tool_choice *commands, size_t n_commands)
{
    struct completion completion = {.commands = commands, .n_commands = n_commands};
    for (size_t i = 0; shell && i < sizeof shells / sizeof shells[0]; i++) {
        if (strcmp(shell, shells[i].name) == 0) {
            shells[i].print(&completion);
            return TOOL_DONE;
        }
    }
    fprintf(stderr, "shoal: --completion: %s%s%s; bash, zsh or fish expected\n", shell ? "'" : "",
            shell ? shell : "the shell is missing", shell ? "' is not a shell that is known" : "");
    return TOOL_USAGE;
}
