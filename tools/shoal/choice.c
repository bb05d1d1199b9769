/* SPDX-License-Identifier: MIT */
/* Finding what the user named among rows of a table, and the nearest row when nothing has that name. */
#include "tool.h"

#include <stdio.h>
#include <string.h>

/* Names longer than this are not compared; none of ours is. */
#define MAX_NAME_CHARS 63

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

/* Insertions, deletions and replacements that turn one word into the other. */
static size_t measure_distance(const char *a, const char *b)
{
    size_t row[MAX_NAME_CHARS + 1];
    size_t b_chars = strlen(b);
    for (size_t j = 0; j <= b_chars; j++) {
        row[j] = j;
    }
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < b_chars; j++) {
            size_t replaced = diagonal + (a[i] != b[j]);
            size_t inserted = row[j] + 1;
            size_t deleted = row[j + 1] + 1;
            diagonal = row[j + 1];
            row[j + 1] = inserted < deleted ? inserted : deleted;
            row[j + 1] = replaced < row[j + 1] ? replaced : row[j + 1];
        }
    }
    return row[b_chars];
}

int tool_choice_unknown(const char *kind, const char *word, const struct tool_choice *choices,
                        size_t n_choices)
{
    const char *nearest = NULL;
    size_t nearest_distance = 0;
    for (size_t i = 0; i < n_choices; i++) {
        if (strlen(choices[i].name) > MAX_NAME_CHARS) {
            continue;
        }
        size_t distance = measure_distance(word, choices[i].name);
        if (nearest == NULL || distance < nearest_distance) {
            nearest = choices[i].name;
            nearest_distance = distance;
        }
    }
    fprintf(stderr, "shoal: '%s' is not a %s", word, kind);
    if (nearest != NULL) {
        fprintf(stderr, "; did you mean '%s'?", nearest);
    }
    fputc('\n', stderr);
    return TOOL_USAGE;
}
