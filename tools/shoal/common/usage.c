/* SPDX-License-Identifier: MIT */
/* The usage of a command, from its table of options. */
#include "common/options.h"
#include "common/tool.h"

#include <string.h>

enum {
    NAME_COLUMNS = 20, /* of an option with its value; those of longer ones push their help to the right */
    USAGE_COLUMNS = 100
};

static bool is_operand(const struct tool_option *row)
{
    return row->name[0] != '-';
}

/* "--ranks, -n N", "--dot[=FILE]", "FILE". Returns the number of columns. */
static int print_name(FILE *out, const struct tool_option *row)
{
    int columns = fprintf(out, "  %s", row->name);
    if (row->alias) {
        columns += fprintf(out, ", %s", row->alias);
    }
    if (is_operand(row) || !row->value) {
        return columns;
    }
    return columns + fprintf(out, row->may_stand_alone ? "[=%s]" : " %s", row->value);
}

static void print_names(FILE *out, const struct tool_option *row)
{
    int column = 0;
    for (size_t i = 0; row->name_at(i); i++) {
        const char *name = row->name_at(i);
        if (column == 0 || column + (int)strlen(name) >= USAGE_COLUMNS) {
            column = fprintf(out, "%s%*s", column == 0 ? "" : "\n", NAME_COLUMNS + 2, "");
        }
        column += fprintf(out, " %s", name);
    }
    fputc('\n', out);
}

static void print_row(FILE *out, const struct tool_option *row)
{
    int columns = print_name(out, row);
    fprintf(out, "%*s %s", columns < NAME_COLUMNS + 2 ? NAME_COLUMNS + 2 - columns : 0, "", row->help);
    bool is_shown = row->standard && row->standard[0] != '-' && strcmp(row->standard, "auto") != 0;
    if (is_shown) {
        fprintf(out, "; default %s", row->standard);
    }
    fputs(row->kind == TOOL_OPTION_NAME ? "; one of\n" : "\n", out);
    if (row->kind == TOOL_OPTION_NAME) {
        print_names(out, row);
    }
}

static void print_synopsis(FILE *out, const struct tool_options *options)
{
    if (options->synopsis) {
        fprintf(out, "usage: %s\n", options->synopsis);
        return;
    }
    fprintf(out, "usage: %s [options]", tool_name());
    for (size_t i = 0; i < options->n_rows; i++) {
        const struct tool_option *row = &options->rows[i];
        if (is_operand(row)) {
            fprintf(out, row->missing ? " %s" : " [%s]", row->name);
        }
    }
    fputc('\n', out);
}

void tool_options_usage(FILE *out, const struct tool_options *options)
{
    print_synopsis(out, options);
    fputs(options->about ? options->about : "", out);
    for (size_t i = 0; i < options->n_rows; i++) {
        if (options->rows[i].help) {
            print_row(out, &options->rows[i]);
        }
    }
    fputs(options->notes ? options->notes : "", out);
}

int tool_options_refuse(const struct tool_options *options, const char *wrong)
{
    int exit_status = tool_refuse("%s", wrong);
    if (tool_speaks()) {
        tool_options_usage(stderr, options);
    }
    return exit_status;
}
