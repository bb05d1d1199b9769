/* SPDX-License-Identifier: MIT */
/* Finding what the user named among rows of a table, and the nearest row, or all of them, when
   nothing has that name. */
#include "common/tool.h"

#include "base/nearest.h"

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

static const struct synonym {
    const char *word;
    const char *ours;
    const char *note;
} synonyms[] = {
#define SYNONYM(word, ours, note) {word, ours, note},
#include "common/synonyms.def"
#undef SYNONYM
};

/* Equal, if '_' is '-'. */
static bool is_spelled(const char *word, const char *name)
{
    while (*word && (*word == '_' ? '-' : *word) == *name) {
        word++;
        name++;
    }
    return *word == *name;
}

/* The row of what other tools call a choice; NULL if the word is none. */
static const struct synonym *find_synonym(const char *word, const struct tool_choice *choices,
                                          size_t n_choices)
{
    for (size_t i = 0; i < sizeof synonyms / sizeof synonyms[0]; i++) {
        if (is_spelled(word, synonyms[i].word) && tool_choice_find(choices, n_choices, synonyms[i].ours)) {
            return &synonyms[i];
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
    if (!tool_speaks()) {
        return TOOL_USAGE;
    }
    nearest_begin(&nearest, word);
    for (size_t i = 0; i < n_choices; i++) {
        nearest_add(&nearest, choices[i].name);
    }
    const char *article = strchr("aeiou", kind[0]) ? "an" : "a";
    const struct synonym *synonym = find_synonym(word, choices, n_choices);
    fprintf(stderr, "%s: '%s' is not %s %s", tool_name(), word, article, kind);
    if (synonym) {
        fprintf(stderr, "; did you mean '%s'?%s%s", synonym->ours, synonym->note[0] ? " " : "",
                synonym->note);
    } else if (nearest_is_likely(&nearest)) {
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
