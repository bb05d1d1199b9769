/* SPDX-License-Identifier: MIT */
/* What completion says in all shells: which words can stand where. */
#include "completion/words.h"

#include <stdio.h>
#include <string.h>

bool completion_is_operand(const struct tool_option *row)
{
    return row->name[0] != '-';
}

bool completion_is_option(const struct tool_option *row)
{
    return !completion_is_operand(row) && row->help;
}

/* By what the usage calls the value of an option. */
static enum completion_kind kind_of_text(const char *called)
{
    static const struct {
        const char *called;
        enum completion_kind kind;
    } kinds[] = {
        {"D", COMPLETION_FOLDER}, {"DIR", COMPLETION_FOLDER}, {"LIB", COMPLETION_FILE},
        {"OUT", COMPLETION_FILE}, {"PATH", COMPLETION_FILE},  {"WHAT", COMPLETION_FILE},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(called, kinds[i].called) == 0) {
            return kinds[i].kind;
        }
    }
    return strstr(called, "FILE") ? COMPLETION_FILE : COMPLETION_ANY;
}

enum completion_kind completion_kind_of(const struct tool_option *row)
{
    if (row->kind == TOOL_OPTION_FLAG) {
        return COMPLETION_NOTHING;
    }
    if (row->kind == TOOL_OPTION_REST) {
        return COMPLETION_PROGRAM;
    }
    if (row->kind == TOOL_OPTION_CHOICE || row->name_at) {
        return row->kind == TOOL_OPTION_OTHER && strchr(row->value, ',') ? COMPLETION_LIST : COMPLETION_WORDS;
    }
    if (completion_is_operand(row)) {
        return strstr(row->value, "directory") ? COMPLETION_FOLDER : COMPLETION_FILE;
    }
    return kind_of_text(row->value);
}

bool completion_word(const struct tool_option *row, size_t index, char word[COMPLETION_WORD_BYTES])
{
    if (row->kind == TOOL_OPTION_CHOICE) {
        return tool_option_choice(row->choices, (int64_t)index, word, COMPLETION_WORD_BYTES);
    }
    const char *name = row->name_at ? row->name_at(index) : NULL;
    (void)snprintf(word, COMPLETION_WORD_BYTES, "%s", name ? name : "");
    return name != NULL;
}

void completion_visit(const struct completion *completion, completion_visitor *visit)
{
    static const struct tool_options none = {.rows = NULL};
    for (size_t i = 0; i < completion->n_commands; i++) {
        const struct tool_choice *command = &completion->commands[i];
        visit(command, NULL, command->options);
        for (size_t k = 0; k < command->options->n_choices; k++) {
            const struct tool_choice *choice = &command->options->choices[k];
            visit(command, choice, choice->options ? choice->options : &none);
        }
    }
}
