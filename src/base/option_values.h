/* SPDX-License-Identifier: MIT */
/*
 * What the environment says about the rows of options.def, and what was wrong with it. The log asks here for its level
 * and for the problems that it has to report; everybody else asks options.h.
 */
#ifndef BASE_OPTION_VALUES_H
#define BASE_OPTION_VALUES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/options.h"

enum option_type {
    OPTION_TYPE_int,
    OPTION_TYPE_bytes,
    OPTION_TYPE_seconds,
    OPTION_TYPE_choice,
    OPTION_TYPE_text
};

struct option_row {
    const char *name; /* with the prefix */
    enum option_type type;
    const char *type_name;
    const char *default_text;
    int64_t low; /* of int and bytes */
    int64_t high;
    double low_seconds; /* of seconds */
    double high_seconds;
    const char *range_text; /* of seconds, choice and text */
    const char *choices;    /* of choice */
    const char *doc;
};

extern const struct option_row option_rows[OPTION_COUNT];

/* Values longer than this are bad: no good one needs more, be it a list of folders. */
#define OPTION_VALUE_BYTES 4096
#define OPTION_BAD_BYTES 256
#define OPTION_RANGE_BYTES 80

enum option_source {
    OPTION_SOURCE_DEFAULT,
    OPTION_SOURCE_ENVIRONMENT,
    OPTION_SOURCE_BAD /* the environment's value was bad, so the default holds; for SHOAL_LOG: warn */
};

struct option_value {
    int64_t integer; /* of int, bytes and choice */
    double seconds;
    enum option_source source;
    char text[OPTION_VALUE_BYTES];   /* the value in force */
    char bad_text[OPTION_BAD_BYTES]; /* with OPTION_SOURCE_BAD: what the environment said, perhaps cut */
    char range[OPTION_RANGE_BYTES];
};

/* One for each row, read at the first call. */
const struct option_value *option_values(void);

/* Read it with option_has_problems. */
extern _Atomic bool option_untold_problems;

/* After option_values: something was wrong with the environment, and nobody has taken it yet. Cheap: calls on their way
   to a collective ask for options. */
static inline bool option_has_problems(void)
{
    /* Relaxed: only decides whether it is time to try; option_take_problems decides who tells. */
    return atomic_load_explicit(&option_untold_problems, memory_order_relaxed);
}
/* True for one caller, who tells the problems. */
bool option_take_problems(void);
/* The text of problem 0, 1, ...; false when there are no more. */
bool option_describe_problem(size_t index, char *text, size_t bytes);

#endif
