/* SPDX-License-Identifier: MIT */
/* Finding what the user named among rows of a table, and the nearest row, or all of them, when
   nothing has that name. */
#include "common/tool.h"

#include "base/name.h"

#include <stdio.h>
#include <string.h>

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

int tool_choice_unknown(const char *kind, const char *word, const struct tool_choice *choices,
                        size_t n_choices)
{
    const char *nearest = NULL;
    size_t nearest_distance = 0;
    for (size_t i = 0; i < n_choices; i++) {
        size_t distance = name_distance(word, choices[i].name);
        if (nearest == NULL || distance < nearest_distance) {
            nearest = choices[i].name;
            nearest_distance = distance;
        }
    }
    const char *article = strchr("aeiou", kind[0]) ? "an" : "a";
    fprintf(stderr, "shoal: '%s' is not %s %s", word, article, kind);
    /* A suggestion that shares little with the word is no help. */
    if (nearest != NULL && 2 * nearest_distance <= strlen(word)) {
        fprintf(stderr, "; did you mean '%s'?", nearest);
    } else {
        fputs("; there are:", stderr);
        for (size_t i = 0; i < n_choices; i++) {
            fprintf(stderr, " %s", choices[i].name);
        }
    }
    fputc('\n', stderr);
    return TOOL_USAGE;
}
