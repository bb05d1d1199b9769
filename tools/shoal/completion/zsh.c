/* SPDX-License-Identifier: MIT */
/* Completion for zsh: a list of specifications for its function _arguments, for each table. */
#include "completion/words.h"

#include <stdio.h>
#include <string.h>

/* Text within quotes, in which `marks` mean something to _arguments or _describe. */
static void print_text(const char *text, const char *marks)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            printf("'\\''");
        } else {
            printf("%s%c", strchr(marks, *text) ? "\\" : "", *text);
        }
    }
}

static void print_words(const struct tool_option *row, const char *before, const char *after)
{
    char word[COMPLETION_WORD_BYTES];
    printf("%s", before);
    for (size_t i = 0; completion_word(row, i, word); i++) {
        printf("%s%s", i > 0 ? " " : "", word);
    }
    printf("%s", after);
}

static void print_action(const struct tool_option *row)
{
    switch (completion_kind_of(row)) {
    case COMPLETION_WORDS:
        print_words(row, "(", ")");
        break;
    case COMPLETION_LIST:
        print_words(row, "_sequence compadd - ", "");
        break;
    case COMPLETION_FILE:
        printf("_files");
        break;
    case COMPLETION_FOLDER:
        printf("_files -/");
        break;
    case COMPLETION_PROGRAM:
        printf("_normal");
        break;
    case COMPLETION_NOTHING:
    case COMPLETION_ANY:
        printf(" ");
        break;
    }
}

/* '(--ranks -n)--ranks=[ranks to start]:N: '. Options that may be given several times exclude nothing. */
static void print_option(const struct tool_option *row, const char *name)
{
    printf(" \\\n            '");
    if (row->max_values > 0 || row->kind == TOOL_OPTION_OTHER) {
        printf("*");
    } else if (row->alias) {
        printf("(%s %s)", row->name, row->alias);
    }
    enum completion_kind kind = completion_kind_of(row);
    bool is_long = name[0] == '-' && name[1] == '-';
    printf("%s%s[", name,
           kind == COMPLETION_NOTHING ? ""
           : row->may_stand_alone     ? "=-"
           : is_long                  ? "="
                                      : "+");
    print_text(row->help, "[]\\");
    printf("]");
    if (kind != COMPLETION_NOTHING) {
        printf("%s", row->may_stand_alone ? "::" : ":");
        print_text(row->value, ":\\");
        printf(":");
        print_action(row);
    }
    printf("'");
}

static void print_operand(const struct tool_option *row)
{
    printf(" \\\n            '%s", completion_kind_of(row) == COMPLETION_PROGRAM ? "*::" : ":");
    print_text(row->name, ":\\");
    printf(":");
    print_action(row);
    printf("'");
}

static void print_table(const struct tool_choice *command, const struct tool_choice *choice,
                        const struct tool_options *options)
{
    if (options->n_choices > 0) {
        return;
    }
    printf("    %s%s%s)\n        _arguments -s '--help[shows the options]'", command->name, choice ? "/" : "",
           choice ? choice->name : "");
    for (size_t i = 0; i < options->n_rows; i++) {
        const struct tool_option *row = &options->rows[i];
        if (completion_is_option(row)) {
            print_option(row, row->name);
            if (row->alias) {
                print_option(row, row->alias);
            }
        }
    }
    for (size_t i = 0; i < options->n_rows; i++) {
        if (completion_is_operand(&options->rows[i])) {
            print_operand(&options->rows[i]);
        }
    }
    if (choice) {
        /* Behind a space: otherwise _arguments puts options of its own before the word. */
        printf(" \\\n            '*: : _shoal_choices %s'", command->name);
    }
    printf("\n        ;;\n");
}

/* "    'fsdp:a step of fully sharded training'" for each. */
static void print_described(const struct tool_choice *choices, size_t n_choices)
{
    for (size_t i = 0; i < n_choices; i++) {
        printf("        '%s:", choices[i].name);
        print_text(choices[i].summary, ":\\");
        printf("'\n");
    }
}

static void print_choices(const struct completion *completion)
{
    printf(
        "# _shoal_choices COMMAND: what its first word is one of.\n_shoal_choices() {\n    local -a choices\n"
        "    case $1 in\n");
    for (size_t i = 0; i < completion->n_commands; i++) {
        const struct tool_options *options = completion->commands[i].options;
        if (options->n_choices > 0) {
            printf("    %s) choices=(\n", completion->commands[i].name);
            print_described(options->choices, options->n_choices);
            printf("    ) ;;\n");
        }
    }
    printf("    esac\n    _describe -t choices choice choices\n}\n\n");
}

/* A command whose first word is a choice goes on with the options of the choice. */
static void print_commands_with_choices(const struct completion *completion)
{
    for (size_t i = 0; i < completion->n_commands; i++) {
        if (completion->commands[i].options->n_choices > 0) {
            printf("    %s)\n"
                   "        if (( CURRENT == 2 )); then\n"
                   "            _shoal_choices $name\n"
                   "        else\n"
                   "            shift words\n"
                   "            (( CURRENT-- ))\n"
                   "            _shoal_arguments $name/$words[1]\n"
                   "        fi\n"
                   "        ;;\n",
                   completion->commands[i].name);
        }
    }
}

void completion_print_zsh(const struct completion *completion)
{
    printf("#compdef shoal\n"
           "# Completion of shoal for zsh. Made by `shoal --completion zsh` from the tables of its "
           "commands.\n\n");
    print_choices(completion);
    printf("# _shoal_arguments TABLE: of a command, or COMMAND/CHOICE.\n"
           "_shoal_arguments() {\n    local name=$1\n    case $name in\n");
    print_commands_with_choices(completion);
    completion_visit(completion, print_table);
    printf("    esac\n}\n\n"
           "_shoal() {\n"
           "    local -a commands\n"
           "    commands=(\n");
    print_described(completion->commands, completion->n_commands);
    printf("    )\n"
           "    if (( CURRENT == 2 )); then\n"
           "        _describe -t commands command commands\n"
           "        _values option '--help[lists the commands]' '--version[shows the version]'\n"
           "    else\n"
           "        shift words\n"
           "        (( CURRENT-- ))\n"
           "        _shoal_arguments $words[1]\n"
           "    fi\n"
           "}\n\n"
           "_shoal \"$@\"\n");
}
