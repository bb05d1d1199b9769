/* SPDX-License-Identifier: MIT */
/*
 * Values of the rows of options.def, read from the environment once, at first use. An empty variable counts
 * as none. Names that begin with SHOAL_TEST_ belong to the tests, with SHOAL_NN_ to the companion library, with
 * SHOAL_TRANSPORT_ to transport modules.
 */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include <stdint.h>

enum option_id {
#define OPTION(name, type, default_text, low, high, choices, doc) OPTION_##name,
#include "base/options.def"
#undef OPTION
    OPTION_COUNT
};

int64_t option_int(enum option_id id);         /* types int and bytes */
double option_seconds(enum option_id id);      /* type seconds */
double option_seconds_most(enum option_id id); /* the most that the row accepts */
int option_choice(enum option_id id);          /* index into the row's choices */
const char *option_text(enum option_id id);    /* "" when it is not set */

#endif
