/* SPDX-License-Identifier: MIT */
/*
 * The options of a benchmark: a table with a row for each, from which arguments are read and the usage is printed. A
 * row says at which offset of the benchmark's own struct its value goes (offsetof).
 */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bench_option_kind {
    BENCH_OPTION_FLAG,  /* bool, set to true; no value follows */
    BENCH_OPTION_INT,   /* int */
    BENCH_OPTION_COUNT, /* size_t */
    BENCH_OPTION_BYTES, /* size_t, written 4096, 64K, 8M or 2G */
    BENCH_OPTION_NAME,  /* const char *, one of name_at */
    BENCH_OPTION_TEXT   /* const char *, any but "" */
};

struct bench_option {
    const char *name;  /* "--units" */
    const char *value; /* what the usage calls the value: "U" */
    enum bench_option_kind kind;
    size_t at;                            /* of the value in the arguments */
    int64_t least;                        /* of numbers */
    int64_t most;                         /* of numbers */
    const char *(*name_at)(size_t index); /* of names; NULL past the last */
    size_t max_values;  /* if 0, the last one counts. Otherwise `at` is an array of so many, ... */
    size_t n_values_at; /* ... and here is a size_t that says how many were given */
    const char *help;
};

struct bench_options {
    const char *about; /* lines below the first of the usage */
    const struct bench_option *rows;
    size_t n_rows;
    const char *notes; /* lines below the options */
};

/*
 * Reads argv[1] and the rest into the arguments; argv[0] is the name of the benchmark. Returns true if the benchmark
 * should run. Returns false if help was printed or an argument was bad, which was reported; the caller then returns
 * *exit_status_out.
 */
bool bench_options_read(const struct bench_options *options, int argc, char **argv, void *arguments,
                        int *exit_status_out);

#endif
