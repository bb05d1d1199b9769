/* SPDX-License-Identifier: MIT */
/* Reading the arguments of a benchmark by its table of options, and the usage from the same table. */
#include "bench/options.h"
#include "common/tool.h"

#include "base/option_parse.h"

#include <stdio.h>
#include <string.h>

enum {
    NAME_COLUMNS = 18, /* of an option with its value in the usage */
    USAGE_COLUMNS = 100
};

/* Usage ------------------------------------------------------------------------------------------------ */

static void print_names(FILE *out, const struct bench_option *row)
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

static void print_usage(FILE *out, const struct bench_options *options, const char *bench)
{
    fprintf(out, "usage: shoal bench %s [options]\n%s", bench, options->about);
    for (size_t i = 0; i < options->n_rows; i++) {
        const struct bench_option *row = &options->rows[i];
        int columns =
            fprintf(out, "  %s%s%s", row->name, row->value ? " " : "", row->value ? row->value : "");
        fprintf(out, "%*s %s\n", columns < NAME_COLUMNS + 2 ? NAME_COLUMNS + 2 - columns : 0, "", row->help);
        if (row->name_at) {
            print_names(out, row);
        }
    }
    fputs(options->notes, out);
}

/* Reading ---------------------------------------------------------------------------------------------- */

static const char *find_name(const struct bench_option *row, const char *text)
{
    for (size_t i = 0; row->name_at(i); i++) {
        if (strcmp(row->name_at(i), text) == 0) {
            return row->name_at(i);
        }
    }
    return NULL;
}

/* Item `index` of what the option says; false, and nothing written, when the text is no value of it. */
static bool read_value(const struct bench_option *row, const char *text, char *to, size_t index)
{
    int64_t number = 0;
    if (row->kind == BENCH_OPTION_NAME) {
        const char *name = find_name(row, text);
        if (name) {
            ((const char **)(void *)to)[index] = name;
        }
        return name != NULL;
    }
    if (row->kind == BENCH_OPTION_TEXT) {
        ((const char **)(void *)to)[index] = text;
        return text[0] != '\0';
    }
    bool (*read)(const char *, int64_t *) =
        row->kind == BENCH_OPTION_BYTES ? option_parse_bytes : option_parse_int;
    if (!read(text, &number) || number < row->least || number > row->most) {
        return false;
    }
    if (row->kind == BENCH_OPTION_INT) {
        ((int *)(void *)to)[index] = (int)number;
    } else {
        ((size_t *)(void *)to)[index] = (size_t)number;
    }
    return true;
}

/* How many words were taken; 0 when the first two are not understood. */
static int read_option(const struct bench_option *row, int argc, char **argv, char *arguments)
{
    if (row->kind == BENCH_OPTION_FLAG) {
        *(bool *)(void *)(arguments + row->at) = true;
        return 1;
    }
    if (argc < 2) {
        return 0;
    }
    if (row->max_values == 0) {
        return read_value(row, argv[1], arguments + row->at, 0) ? 2 : 0;
    }
    size_t *n_values = (size_t *)(void *)(arguments + row->n_values_at);
    if (*n_values == row->max_values || !read_value(row, argv[1], arguments + row->at, *n_values)) {
        return 0;
    }
    *n_values += 1;
    return 2;
}

static const struct bench_option *find_row(const struct bench_options *options, const char *word)
{
    for (size_t i = 0; i < options->n_rows; i++) {
        if (strcmp(options->rows[i].name, word) == 0) {
            return &options->rows[i];
        }
    }
    return NULL;
}

bool bench_options_read(const struct bench_options *options, int argc, char **argv, void *arguments,
                        int *exit_status_out)
{
    *exit_status_out = TOOL_DONE;
    for (int i = 1; i < argc;) {
        if (strcmp(argv[i], "--help") == 0) {
            print_usage(stdout, options, argv[0]);
            return false;
        }
        const struct bench_option *row = find_row(options, argv[i]);
        int n_words = row ? read_option(row, argc - i, argv + i, arguments) : 0;
        if (n_words == 0) {
            bool has_value = i + 1 < argc && (row || argv[i + 1][0] != '-');
            fprintf(stderr, "shoal bench %s: bad argument: %s%s%s\n", argv[0], argv[i], has_value ? " " : "",
                    has_value ? argv[i + 1] : "");
            print_usage(stderr, options, argv[0]);
            *exit_status_out = TOOL_USAGE;
            return false;
        }
        i += n_words;
    }
    return true;
}
