/* SPDX-License-Identifier: MIT */
/* What the completions of all shells are made of: the tables of the commands, and which words can stand where. */
#ifndef COMPLETION_WORDS_H
#define COMPLETION_WORDS_H

#include "common/options.h"
#include "common/tool.h"

#include <stdbool.h>
#include <stddef.h>

struct completion {
    const struct tool_choice *commands; /* each has a table */
    size_t n_commands;
};

void completion_print_bash(const struct completion *completion);
void completion_print_zsh(const struct completion *completion);
void completion_print_fish(const struct completion *completion);

/* What can stand for an operand or for the value of an option. */
enum completion_kind {
    COMPLETION_NOTHING, /* no value follows: a flag */
    COMPLETION_ANY,     /* a number, or a text that nobody can guess */
    COMPLETION_WORDS,   /* one of completion_word */
    COMPLETION_LIST,    /* several of them, separated by commas */
    COMPLETION_FILE,
    COMPLETION_FOLDER,
    COMPLETION_PROGRAM /* a command with its own arguments */
};

enum completion_kind completion_kind_of(const struct tool_option *row);

enum {
    COMPLETION_WORD_BYTES = 64
};

/* Word number `index` of those that can stand for the row. Returns false past the last one. */
bool completion_word(const struct tool_option *row, size_t index, char word[COMPLETION_WORD_BYTES]);

/* Whether a row is an option that the usage shows, or an operand. */
bool completion_is_option(const struct tool_option *row);
bool completion_is_operand(const struct tool_option *row);

/* Visits the table of each command, and of each choice of a command: `choice` is NULL for the command's own. */
typedef void completion_visitor(const struct tool_choice *command, const struct tool_choice *choice,
                                const struct tool_options *options);
void completion_visit(const struct completion *completion, completion_visitor *visit);

#endif
