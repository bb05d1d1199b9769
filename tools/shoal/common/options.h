/* SPDX-License-Identifier: MIT */
/*
 * The command line of a command: a table with a row for each option and operand. Arguments are read by it, usage is
 * printed from it, and whatever else lists options (shell completion, manual pages) reads it too. A row says at which
 * offset of the command's own struct its value goes (offsetof).
 *
 *   shoal COMMAND --width 64 --width=64 -n4 --flag FILE -- FILE
 *
 * Rows whose name begins with '-' are options. The others are operands: words that belong to no option, in the order of
 * their rows. An operand of kind TOOL_OPTION_REST takes its word and all that follow, whatever they look like.
 */
#ifndef COMMON_OPTIONS_H
#define COMMON_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct tool_choice;

enum tool_option_kind {
    TOOL_OPTION_FLAG,  /* bool, set to true; no value follows */
    TOOL_OPTION_INT,   /* int */
    TOOL_OPTION_INT64, /* int64_t */
    TOOL_OPTION_COUNT, /* size_t */
    TOOL_OPTION_BYTES, /* size_t, written 4096, 64K, 8M or 2G */
    TOOL_OPTION_REAL,  /* double */
    TOOL_OPTION_CHOICE, /* int64_t, the number of the name in `choices`; -1 for a default that is none of them */
    TOOL_OPTION_NAME,  /* const char *, one of name_at */
    TOOL_OPTION_TEXT,  /* const char *, any but "" */
    TOOL_OPTION_PARTS, /* struct tool_parts */
    TOOL_OPTION_OTHER, /* what `take` makes of the text, which is not "" */
    TOOL_OPTION_REST   /* char **, the word and all that follow, with NULL at the end */
};

/* "4", or "2x3": two sums of three parts each. */
struct tool_parts {
    int64_t n_outer; /* 1 without 'x' */
    int64_t n_inner;
    bool has_x;
};

struct tool_option {
    const char *name;  /* "--units"; of an operand, what the usage calls it: "FILE" */
    const char *value; /* what the usage calls the value: "U"; of an operand, what errors call it: "file" */
    enum tool_option_kind kind;
    size_t at;                            /* of the value in the arguments */
    double least;                         /* of numbers */
    double most;                          /* of numbers; HUGE_VAL if there is none */
    const char *alias;                    /* a second name, "-n"; NULL if there is none */
    const char *standard;                 /* the default, as on a command line; NULL: none is set */
    const char *choices;                  /* of choices, separated by '|' */
    const char *(*name_at)(size_t index); /* of names, and those that others may have; NULL past the last */
    int (*take)(void *arguments, const char *value); /* of others; the exit status, after a message */
    const char *noun;                                /* "'x' is not a NOUN"; NULL: the name without dashes */
    const char *stray;    /* of a flag: the option that a word behind it was meant for; NULL if none is */
    const char *missing;  /* the message if it was not given; NULL if it need not be */
    size_t n_values_at;   /* where a size_t says how many values were given, if there may be several */
    int max_values;       /* if 0, the last one counts; otherwise `at` is an array of so many */
    bool may_stand_alone; /* a value is optional and follows "="; without it nothing is set, only given */
    const char *help;     /* NULL if it is not shown */
};

struct tool_options {
    const char *synopsis; /* the usage's first lines, "shoal run -n N ..."; NULL: made from the rows */
    const char *about;    /* lines below the first of the usage; NULL if there are none */
    const struct tool_option *rows;
    size_t n_rows;
    const char *notes; /* lines below the options; NULL if there are none */
    const char *stray; /* the option that was probably meant by a word without one; NULL if none is */
    const struct tool_choice *choices; /* of commands whose first word is one of these, with a table each */
    size_t n_choices;
};

#define TOOL_OPTIONS_ROWS(array) .rows = (array), .n_rows = sizeof(array) / sizeof((array)[0])

enum {
    TOOL_MAX_OPTIONS = 128 /* rows of a table */
};

/* Which rows were given on the command line. */
struct tool_given {
    bool rows[TOOL_MAX_OPTIONS];
};

/*
 * Sets defaults, then reads argv[1] and the rest into the arguments. `given` may be NULL. Returns true if the command
 * should run. Returns false if help was printed or an argument was bad, which was reported; the caller then returns
 * *exit_status_out.
 */
bool tool_options_read(const struct tool_options *options, int argc, char **argv, void *arguments,
                       struct tool_given *given, int *exit_status_out);

/* Whether the user gave the option of that name, or that operand. */
bool tool_option_is_given(const struct tool_options *options, const struct tool_given *given,
                          const char *name);

/* The row of that name or alias; NULL if there is none. */
const struct tool_option *tool_option_find(const struct tool_options *options, const char *name);

/* Puts the value that the text says into the arguments, as if it stood on the command line. Returns TOOL_DONE, or the
   exit status after a message. Not for flags, lists of values and rests. */
int tool_option_set(const struct tool_option *row, const char *text, void *arguments);

/* The value in the arguments, as on a command line: "64", "fsdp", "2x2", "yes" and "no" of flags; "" for a text that is
   not there. Not for others, lists of values and rests. */
void tool_option_print(const struct tool_option *row, const void *arguments, char *text, size_t bytes);

/* Copies the value from one struct of arguments to another. Not for others and lists of values. */
void tool_option_copy(const struct tool_option *row, const void *from, void *to);

/* Sets all defaults. Returns TOOL_DONE, or the exit status after a message. */
int tool_options_default(const struct tool_options *options, void *arguments);

/* "4" or "2x3". Returns false if the text is neither. */
bool tool_parts_read(const char *text, struct tool_parts *parts_out);

/* "fsdp" of "none|fsdp" and 1; false, and "", if there is no such choice. */
bool tool_option_choice(const char *choices, int64_t index, char *name, size_t bytes);

void tool_options_usage(FILE *out, const struct tool_options *options);

/* Says what is wrong with the command line, after the name of the command, and how it should look. TOOL_USAGE. */
int tool_options_refuse(const struct tool_options *options, const char *wrong);

#endif
