/* SPDX-License-Identifier: MIT */
/* Finding what the user named among rows of a table, and the nearest row, or all of them, when
   nothing has that name. */
#include "common/tool.h"

#include "base/nearest.h"

#include <stdio.h>
#include <string.h>

static const char *command_name;

void tool_set_command(const char *name)
{
    command_name = name;
}

const char *tool_name(void)
{
    static char name[64];
    (void)snprintf(name, sizeof name, "shoal%s%s", command_name ? " " : "", command_name ? command_name : "");
    return name;
}

const struct tool_choice *tool_choice_find(const struct tool_choice *choices, size_t n_choices,
                                           const char *name)
{
    for (size_t i = 0; i < n_choices; i++) {
        if (strcmp(choices[i].name, name) == 0) {
            return &choices[i];
        }
    }
    return NULL;
}

/* "; did you mean 'a'?": the nearest one, or all that begin with the word. */
static void suggest(const struct nearest *nearest)
{
    size_t n_told = nearest->distances[0] == 0 ? nearest_count(nearest) : 1;
    fputs("; did you mean", stderr);
    for (size_t i = 0; i < n_told; i++) {
        fprintf(stderr, "%s '%s'", i == 0 ? "" : i + 1 == n_told ? " or" : ",", nearest->names[i]);
    }
    fputc('?', stderr);
}

int tool_choice_unknown(const char *kind, const char *word, const struct tool_choice *choices,
                        size_t n_choices)
{
    struct nearest nearest;
    nearest_begin(&nearest, word);
    for (size_t i = 0; i < n_choices; i++) {
        nearest_add(&nearest, choices[i].name);
    }
    const char *article = strchr("aeiou", kind[0]) ? "an" : "a";
    fprintf(stderr, "%s: '%s' is not %s %s", tool_name(), word, article, kind);
    if (nearest_is_likely(&nearest)) {
        suggest(&nearest);
    } else {
        fputs("; there are:", stderr);
        for (size_t i = 0; i < n_choices; i++) {
            fprintf(stderr, " %s", choices[i].name);
        }
    }
    fputc('\n', stderr);
    return TOOL_USAGE;
}
