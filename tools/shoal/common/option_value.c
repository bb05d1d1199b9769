/* SPDX-License-Identifier: MIT */
/* Values of options: from text to the arguments of a command, and back. */
#include "common/options.h"
#include "common/tool.h"

#include "base/option_parse.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_NAMES = 256, /* among which a likely one is looked for */
    NAME_BYTES = 64,
    MAX_PARTS = 4096
};

/* What is wrong ------------------------------------------------------------------------------------------ */

static const char *find_noun(const struct tool_option *row)
{
    return row->noun ? row->noun : row->name + strspn(row->name, "-");
}

static int refuse_range(const struct tool_option *row, const char *text)
{
    const char *what = row->kind == TOOL_OPTION_REAL    ? "number"
                       : row->kind == TOOL_OPTION_BYTES ? "number of bytes (4096, 64K, 8M, 2G)"
                                                        : "whole number";
    if (!isfinite(row->least)) {
        return tool_refuse("%s: '%s' is not a %s", row->name, text, what);
    }
    if (!isfinite(row->most)) {
        return tool_refuse("%s: '%s' is not a %s from %.16g on", row->name, text, what, row->least);
    }
    return tool_refuse("%s: '%s' is not a %s from %.16g to %.16g", row->name, text, what, row->least,
                       row->most);
}

static int refuse_name(const struct tool_option *row, const char *text)
{
    struct tool_choice names[MAX_NAMES] = {{0}};
    size_t n_names = 0;
    for (; n_names < MAX_NAMES && row->name_at(n_names); n_names++) {
        names[n_names].name = row->name_at(n_names);
    }
    return tool_choice_unknown(find_noun(row), text, names, n_names);
}

static int refuse_choice(const struct tool_option *row, const char *text)
{
    char texts[MAX_NAMES / 8][NAME_BYTES];
    struct tool_choice names[MAX_NAMES / 8] = {{0}};
    size_t n_names = 0;
    while (n_names < sizeof texts / sizeof texts[0] &&
           tool_option_choice(row->choices, (int64_t)n_names, texts[n_names], NAME_BYTES)) {
        names[n_names].name = texts[n_names];
        n_names++;
    }
    return tool_choice_unknown(find_noun(row), text, names, n_names);
}

/* From text ---------------------------------------------------------------------------------------------- */

static int read_real(const struct tool_option *row, const char *text, double *to)
{
    char *end = NULL;
    bool is_number = text[0] == '-' || text[0] == '.' || (text[0] >= '0' && text[0] <= '9');
    double value = is_number ? strtod(text, &end) : 0.0;
    if (!is_number || end == text || *end != '\0' || !isfinite(value) || value < row->least ||
        value > row->most) {
        return refuse_range(row, text);
    }
    *to = value;
    return TOOL_DONE;
}

static int read_whole(const struct tool_option *row, const char *text, void *to)
{
    int64_t value = 0;
    bool (*read)(const char *, int64_t *) =
        row->kind == TOOL_OPTION_BYTES ? option_parse_bytes : option_parse_int;
    if (!read(text, &value) || (double)value < row->least || (double)value > row->most) {
        return refuse_range(row, text);
    }
    if (row->kind == TOOL_OPTION_INT) {
        *(int *)to = (int)value;
    } else if (row->kind == TOOL_OPTION_INT64) {
        *(int64_t *)to = value;
    } else {
        *(size_t *)to = (size_t)value;
    }
    return TOOL_DONE;
}

static int read_choice(const struct tool_option *row, const char *text, int64_t *to)
{
    int index = -1;
    bool is_default = row->standard && strcmp(text, row->standard) == 0;
    if (!option_parse_choice(text, row->choices, &index) && !is_default) {
        return refuse_choice(row, text);
    }
    *to = index;
    return TOOL_DONE;
}

static int read_name(const struct tool_option *row, const char *text, const char **to)
{
    for (size_t i = 0; row->name_at(i); i++) {
        if (strcmp(row->name_at(i), text) == 0) {
            *to = row->name_at(i);
            return TOOL_DONE;
        }
    }
    return refuse_name(row, text);
}

static bool is_number_of_parts(int64_t number)
{
    return number >= 1 && number <= MAX_PARTS;
}

bool tool_parts_read(const char *text, struct tool_parts *parts_out)
{
    char outer[16];
    const char *x = strchr(text, 'x');
    size_t length = x ? (size_t)(x - text) : 0;
    (void)snprintf(outer, sizeof outer, "%.*s", (int)(length < sizeof outer ? length : 0), text);
    struct tool_parts found = {.n_outer = 1, .has_x = x != NULL};
    bool is_right = option_parse_int(x ? x + 1 : text, &found.n_inner) &&
                    (!x || option_parse_int(outer, &found.n_outer)) && is_number_of_parts(found.n_inner) &&
                    is_number_of_parts(found.n_outer);
    if (is_right) {
        *parts_out = found;
    }
    return is_right;
}

static int read_parts(const struct tool_option *row, const char *text, struct tool_parts *to)
{
    if (tool_parts_read(text, to)) {
        return TOOL_DONE;
    }
    return tool_refuse("%s: '%s' is neither a number of parts from 1 to %d nor two of them, as 2x2",
                       row->name, text, MAX_PARTS);
}

static int read_text(const struct tool_option *row, const char *text, void *arguments, const char **to)
{
    if (text[0] == '\0') {
        return tool_refuse("%s needs a value that is not empty", row->name);
    }
    if (row->kind == TOOL_OPTION_OTHER) {
        return row->take(arguments, text);
    }
    *to = text;
    return TOOL_DONE;
}

static size_t value_bytes(const struct tool_option *row)
{
    switch (row->kind) {
    case TOOL_OPTION_FLAG:
        return sizeof(bool);
    case TOOL_OPTION_INT:
        return sizeof(int);
    case TOOL_OPTION_REAL:
        return sizeof(double);
    case TOOL_OPTION_INT64:
    case TOOL_OPTION_CHOICE:
        return sizeof(int64_t);
    case TOOL_OPTION_COUNT:
    case TOOL_OPTION_BYTES:
        return sizeof(size_t);
    case TOOL_OPTION_PARTS:
        return sizeof(struct tool_parts);
    case TOOL_OPTION_NAME:
    case TOOL_OPTION_TEXT:
    case TOOL_OPTION_REST:
        return sizeof(const char *);
    case TOOL_OPTION_OTHER:
        break;
    }
    return 0;
}

void tool_option_copy(const struct tool_option *row, const void *from, void *to)
{
    memcpy((char *)to + row->at, (const char *)from + row->at, value_bytes(row));
}

static int read_value(const struct tool_option *row, const char *text, void *arguments, size_t index)
{
    void *to = (char *)arguments + row->at + index * value_bytes(row);
    switch (row->kind) {
    case TOOL_OPTION_INT:
    case TOOL_OPTION_INT64:
    case TOOL_OPTION_COUNT:
    case TOOL_OPTION_BYTES:
        return read_whole(row, text, to);
    case TOOL_OPTION_REAL:
        return read_real(row, text, to);
    case TOOL_OPTION_CHOICE:
        return read_choice(row, text, to);
    case TOOL_OPTION_NAME:
        return read_name(row, text, to);
    case TOOL_OPTION_PARTS:
        return read_parts(row, text, to);
    case TOOL_OPTION_TEXT:
    case TOOL_OPTION_OTHER:
        return read_text(row, text, arguments, to);
    case TOOL_OPTION_FLAG:
    case TOOL_OPTION_REST:
        break;
    }
    return TOOL_USAGE;
}

int tool_option_set(const struct tool_option *row, const char *text, void *arguments)
{
    if (row->max_values == 0) {
        return read_value(row, text, arguments, 0);
    }
    size_t *n_values = (size_t *)(void *)((char *)arguments + row->n_values_at);
    if (*n_values == (size_t)row->max_values) {
        return tool_refuse("%s %s: there are %zu of them already, and no more are possible", row->name, text,
                           *n_values);
    }
    int exit_status = read_value(row, text, arguments, *n_values);
    *n_values += exit_status == TOOL_DONE;
    return exit_status;
}

/* To text ------------------------------------------------------------------------------------------------ */

bool tool_option_choice(const char *choices, int64_t index, char *name, size_t bytes)
{
    (void)snprintf(name, bytes, "%s", "");
    for (int64_t i = 0; index >= 0 && choices; i++) {
        size_t length = strcspn(choices, "|");
        if (i == index) {
            (void)snprintf(name, bytes, "%.*s", (int)length, choices);
            return true;
        }
        choices = choices[length] == '|' ? choices + length + 1 : NULL;
    }
    return false;
}

static void print_parts(const struct tool_parts *parts, char *text, size_t bytes)
{
    if (parts->has_x) {
        (void)snprintf(text, bytes, "%" PRId64 "x%" PRId64, parts->n_outer, parts->n_inner);
    } else {
        (void)snprintf(text, bytes, "%" PRId64, parts->n_inner);
    }
}

/* The shortest of those that read back as the same number. */
static void print_real(double value, char *text, size_t bytes)
{
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, bytes, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            return;
        }
    }
}

void tool_option_print(const struct tool_option *row, const void *arguments, char *text, size_t bytes)
{
    const void *from = (const char *)arguments + row->at;
    const char *word = "";
    switch (row->kind) {
    case TOOL_OPTION_FLAG:
        word = *(const bool *)from ? "yes" : "no";
        break;
    case TOOL_OPTION_INT:
        (void)snprintf(text, bytes, "%d", *(const int *)from);
        return;
    case TOOL_OPTION_INT64:
        (void)snprintf(text, bytes, "%" PRId64, *(const int64_t *)from);
        return;
    case TOOL_OPTION_COUNT:
    case TOOL_OPTION_BYTES:
        (void)snprintf(text, bytes, "%zu", *(const size_t *)from);
        return;
    case TOOL_OPTION_REAL:
        print_real(*(const double *)from, text, bytes);
        return;
    case TOOL_OPTION_PARTS:
        print_parts(from, text, bytes);
        return;
    case TOOL_OPTION_CHOICE:
        if (tool_option_choice(row->choices, *(const int64_t *)from, text, bytes)) {
            return;
        }
        word = row->standard;
        break;
    case TOOL_OPTION_NAME:
    case TOOL_OPTION_TEXT:
        word = *(const char *const *)from;
        break;
    case TOOL_OPTION_OTHER:
    case TOOL_OPTION_REST:
        break;
    }
    (void)snprintf(text, bytes, "%s", word ? word : "");
}
