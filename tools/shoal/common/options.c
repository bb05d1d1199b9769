/* SPDX-License-Identifier: MIT */
/* Reading a command line by its table of options. */
#include "common/options.h"
#include "common/tool.h"

#include <string.h>

/* A command line that is being read. */
struct reading {
    const struct tool_options *options;
    void *arguments;
    struct tool_given *given;
    int argc;
    char **argv;
    int next;           /* of argv */
    size_t n_operands;  /* that were read */
    bool only_operands; /* after "--" */
    bool wants_help;
};

/* Rows --------------------------------------------------------------------------------------------------- */

static bool is_operand(const struct tool_option *row)
{
    return row->name[0] != '-';
}

static bool is_name(const char *name, const char *word, size_t length)
{
    return name && strlen(name) == length && strncmp(name, word, length) == 0;
}

static const struct tool_option *find_row(const struct tool_options *options, const char *word, size_t length)
{
    for (size_t i = 0; i < options->n_rows; i++) {
        const struct tool_option *row = &options->rows[i];
        if (is_name(row->name, word, length) || is_name(row->alias, word, length)) {
            return row;
        }
    }
    return NULL;
}

const struct tool_option *tool_option_find(const struct tool_options *options, const char *name)
{
    return find_row(options, name, strlen(name));
}

bool tool_option_is_given(const struct tool_options *options, const struct tool_given *given,
                          const char *name)
{
    const struct tool_option *row = tool_option_find(options, name);
    return row && given->rows[row - options->rows];
}

static const struct tool_option *find_operand(const struct tool_options *options, size_t index)
{
    for (size_t i = 0; i < options->n_rows; i++) {
        if (is_operand(&options->rows[i]) && index-- == 0) {
            return &options->rows[i];
        }
    }
    return NULL;
}

/* Options ------------------------------------------------------------------------------------------------ */

/* Of "--pass=x" and "-b8" only what stands before the value is compared. */
static int refuse_unknown(const struct tool_options *options, const char *word)
{
    char name[80];
    struct tool_choice names[TOOL_MAX_OPTIONS + 1] = {{0}};
    size_t n_names = 0;
    bool has_number = word[1] != '-' && word[2] >= '0' && word[2] <= '9';
    (void)snprintf(name, sizeof name, "%.*s", has_number ? 2 : (int)strcspn(word, "="), word);
    for (size_t i = 0; i < options->n_rows; i++) {
        if (options->rows[i].help && !is_operand(&options->rows[i])) {
            names[n_names++].name = options->rows[i].name;
        }
    }
    names[n_names++].name = "--help";
    return tool_choice_unknown("option", name, names, n_names);
}

/* Whether the next word asks for help. */
static bool is_help(const struct reading *reading)
{
    const char *word = reading->next < reading->argc ? reading->argv[reading->next] : "";
    return !reading->only_operands && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0);
}

static void note_given(struct reading *reading, const struct tool_option *row)
{
    reading->given->rows[row - reading->options->rows] = true;
}

static int read_flag(struct reading *reading, const struct tool_option *row, const char *value)
{
    if (value) {
        return tool_refuse("%s takes no value, but got '%s'", row->name, value);
    }
    *(bool *)(void *)((char *)reading->arguments + row->at) = true;
    note_given(reading, row);
    return TOOL_DONE;
}

/* `value` is what stands behind "=", or behind "-n", in the same word; NULL if nothing does. */
static int read_option(struct reading *reading, const struct tool_option *row, const char *value)
{
    if (row->kind == TOOL_OPTION_FLAG) {
        return read_flag(reading, row, value);
    }
    if (!value && row->may_stand_alone) {
        note_given(reading, row);
        return TOOL_DONE;
    }
    /* "--explain --help" asks what the value can be. */
    bool is_text = row->kind == TOOL_OPTION_TEXT || row->kind == TOOL_OPTION_OTHER;
    if (!value && !is_text && is_help(reading)) {
        reading->wants_help = true;
        return TOOL_DONE;
    }
    if (!value && reading->next == reading->argc) {
        return tool_refuse("%s needs a value", reading->argv[reading->next - 1]);
    }
    int exit_status =
        tool_option_set(row, value ? value : reading->argv[reading->next++], reading->arguments);
    if (exit_status == TOOL_DONE) {
        note_given(reading, row);
    }
    return exit_status;
}

/* "-n4" */
static const struct tool_option *find_short(const struct tool_options *options, const char *word)
{
    bool has_number = word[1] != '-' && word[2] >= '0' && word[2] <= '9';
    const struct tool_option *row = has_number ? find_row(options, word, 2) : NULL;
    return row && row->kind != TOOL_OPTION_FLAG ? row : NULL;
}

static int read_dashed(struct reading *reading, const char *word)
{
    size_t length = strcspn(word, "=");
    const struct tool_option *row = find_row(reading->options, word, length);
    if (row) {
        return read_option(reading, row, word[length] == '=' ? word + length + 1 : NULL);
    }
    row = find_short(reading->options, word);
    return row ? read_option(reading, row, word + 2) : refuse_unknown(reading->options, word);
}

/* Operands ----------------------------------------------------------------------------------------------- */

static int refuse_operand(const struct reading *reading, const char *word)
{
    const struct tool_options *options = reading->options;
    const struct tool_option *first = find_operand(options, 0);
    if (first && reading->n_operands == 1) {
        return tool_refuse("one %s expected, but got '%s' and '%s'", first->value,
                           *(const char *const *)(const void *)((const char *)reading->arguments + first->at),
                           word);
    }
    if (first) {
        return tool_refuse("'%s' is one word too many", word);
    }
    const char *before = reading->next > 1 ? reading->argv[reading->next - 2] : "";
    const struct tool_option *flag = find_row(options, before, strlen(before));
    if (flag && flag->stray) {
        return tool_refuse("'%s' belongs to no option; did you mean %s %s %s?", word, flag->stray, word,
                           flag->name);
    }
    if (options->stray) {
        return tool_refuse("'%s' belongs to no option; did you mean %s %s?", word, options->stray, word);
    }
    return tool_refuse("'%s' belongs to no option", word);
}

static int read_operand(struct reading *reading, char *word)
{
    const struct tool_option *row = find_operand(reading->options, reading->n_operands);
    if (!row) {
        return refuse_operand(reading, word);
    }
    int exit_status = TOOL_DONE;
    if (row->kind == TOOL_OPTION_REST) {
        *(char ***)(void *)((char *)reading->arguments + row->at) = reading->argv + reading->next - 1;
        reading->next = reading->argc;
    } else {
        exit_status = tool_option_set(row, word, reading->arguments);
    }
    reading->n_operands++;
    note_given(reading, row);
    return exit_status;
}

/* The command line --------------------------------------------------------------------------------------- */

static int read_word(struct reading *reading)
{
    char *word = reading->argv[reading->next++];
    if (reading->only_operands || word[0] != '-' || word[1] == '\0') {
        return read_operand(reading, word);
    }
    if (strcmp(word, "--") == 0) {
        reading->only_operands = true;
        return TOOL_DONE;
    }
    return read_dashed(reading, word);
}

int tool_options_default(const struct tool_options *options, void *arguments)
{
    int exit_status = TOOL_DONE;
    for (size_t i = 0; i < options->n_rows && exit_status == TOOL_DONE; i++) {
        if (options->rows[i].standard) {
            exit_status = tool_option_set(&options->rows[i], options->rows[i].standard, arguments);
        }
    }
    return exit_status;
}

static int find_missing(const struct tool_options *options, const struct tool_given *given)
{
    for (size_t i = 0; i < options->n_rows; i++) {
        if (options->rows[i].missing && !given->rows[i]) {
            return tool_options_refuse(options, options->rows[i].missing);
        }
    }
    return TOOL_DONE;
}

bool tool_options_read(const struct tool_options *options, int argc, char **argv, void *arguments,
                       struct tool_given *given, int *exit_status_out)
{
    struct tool_given own;
    struct reading reading = {.options = options,
                              .arguments = arguments,
                              .given = given ? given : &own,
                              .argc = argc,
                              .argv = argv,
                              .next = 1};
    *reading.given = (struct tool_given){{false}};
    int exit_status = tool_options_default(options, arguments);
    while (exit_status == TOOL_DONE && !reading.wants_help && reading.next < argc) {
        reading.wants_help = is_help(&reading);
        exit_status = reading.wants_help ? TOOL_DONE : read_word(&reading);
    }
    if (reading.wants_help) {
        if (tool_speaks()) {
            tool_options_usage(stdout, options);
        }
        *exit_status_out = TOOL_DONE;
        return false;
    }
    if (exit_status == TOOL_DONE) {
        exit_status = find_missing(options, reading.given);
    }
    *exit_status_out = exit_status;
    return exit_status == TOOL_DONE;
}
