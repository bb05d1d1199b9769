/* SPDX-License-Identifier: MIT */
/* Completion for fish: a line for each command, choice and option. */
#include "completion/words.h"

#include <stdio.h>
#include <string.h>

static void print_quoted(const char *text)
{
    printf("'");
    for (; *text != '\0'; text++) {
        printf("%s%c", strchr("'\\", *text) ? "\\" : "", *text);
    }
    printf("'");
}

/* The words of a line that hold when this command, and this choice of it, stand before the cursor. */
static void print_condition(const struct tool_choice *command, const struct tool_choice *choice)
{
    printf("complete -c shoal -n '__shoal_is %s%s%s'", command->name, choice ? " " : "",
           choice ? choice->name : "");
}

static void print_words(const struct tool_option *row, const char *before, const char *after)
{
    char word[COMPLETION_WORD_BYTES];
    printf(" -a '%s", before);
    for (size_t i = 0; completion_word(row, i, word); i++) {
        printf("%s%s", i > 0 ? " " : "", word);
    }
    printf("%s'", after);
}

/* Nothing is a file unless it is said: `complete -c shoal -f`. */
static void print_kind(const struct tool_option *row)
{
    switch (completion_kind_of(row)) {
    case COMPLETION_WORDS:
        print_words(row, "", "");
        break;
    case COMPLETION_LIST:
        print_words(row, "(__fish_append , ", ")");
        break;
    case COMPLETION_FILE:
        printf(" -F");
        break;
    case COMPLETION_FOLDER:
        printf(" -a '(__fish_complete_directories)'");
        break;
    case COMPLETION_PROGRAM:
        printf(" -a '(__fish_complete_subcommand --fcs-skip=2)' -F");
        break;
    case COMPLETION_NOTHING:
    case COMPLETION_ANY:
        break;
    }
}

/* --ranks is long, -n short, -np old. */
static void print_name(const char *name)
{
    bool is_long = name[0] == '-' && name[1] == '-';
    printf(" %s %s", is_long ? "-l" : strlen(name) == 2 ? "-s" : "-o", name + (is_long ? 2 : 1));
}

static void print_option(const struct tool_option *row)
{
    print_name(row->name);
    if (row->alias) {
        print_name(row->alias);
    }
    enum completion_kind kind = completion_kind_of(row);
    if (kind != COMPLETION_NOTHING) {
        /* -r: a value, which may be a file; -x: a value that is none. */
        printf("%s", row->may_stand_alone ? "" : kind == COMPLETION_FILE ? " -r" : " -x");
        print_kind(row);
    }
    printf(" -d ");
    print_quoted(row->help);
    printf("\n");
}

static void print_table(const struct tool_choice *command, const struct tool_choice *choice,
                        const struct tool_options *options)
{
    print_condition(command, choice);
    printf(" -l help -d 'shows the options'\n");
    for (size_t i = 0; i < options->n_rows; i++) {
        const struct tool_option *row = &options->rows[i];
        if (completion_is_operand(row) && completion_kind_of(row) != COMPLETION_ANY) {
            print_condition(command, choice);
            print_kind(row);
            printf("\n");
        } else if (completion_is_option(row)) {
            print_condition(command, choice);
            print_option(row);
        }
    }
    for (size_t i = 0; i < options->n_choices; i++) {
        print_condition(command, NULL);
        printf(" -a %s -d ", options->choices[i].name);
        print_quoted(options->choices[i].summary);
        printf("\n");
    }
}

void completion_print_fish(const struct completion *completion)
{
    printf("# Completion of shoal for fish. Made by `shoal --completion fish` from the tables of its "
           "commands.\n\n"
           "# Whether the words before the cursor are `shoal COMMAND`, or have the choice of it, too.\n"
           "function __shoal_is\n"
           "    set -l words (commandline -opc)\n"
           "    test \"$words[2]\" = \"$argv[1]\"; or return 1\n"
           "    test (count $argv) -eq 1; or contains -- $argv[2] $words[3..-1]\n"
           "end\n\n"
           "complete -c shoal -f\n"
           "complete -c shoal -n __fish_use_subcommand -l help -d 'lists the commands'\n"
           "complete -c shoal -n __fish_use_subcommand -l version -d 'shows the version'\n");
    for (size_t i = 0; i < completion->n_commands; i++) {
        printf("complete -c shoal -n __fish_use_subcommand -a %s -d ", completion->commands[i].name);
        print_quoted(completion->commands[i].summary);
        printf("\n");
    }
    completion_visit(completion, print_table);
}
