/* SPDX-License-Identifier: MIT */
/* Values of the rows of options.def, read from the environment once, at first use. */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include <stdint.h>

enum option_id {
#define OPTION(name, type, default_text, low, high, choices, doc) OPTION_##name,
#include "base/options.def"
#undef OPTION
    OPTION_COUNT
};

int64_t option_int(enum option_id id);    /* types int and bytes */
double option_seconds(enum option_id id); /* type seconds */
int option_choice(enum option_id id);     /* index into the row's choices */

#endif
