/* SPDX-License-Identifier: MIT */
/*
 * Values of the rows of options.def, read from the environment once, at first use. An empty variable counts
 * as none. Names that begin with SHOAL_TEST_ belong to the tests, with SHOAL_NN_
 * to the companion library.
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

int64_t option_int(enum option_id id);      /* types int and bytes */
double option_seconds(enum option_id id);   /* type seconds */
int option_choice(enum option_id id);       /* index into the row's choices */
const char *option_text(enum option_id id); /* "" when it is not set */

/* For log.c, which must know its level before anything can be reported: 0 = silent. */
int options_log_level(void);

/*
 * Tells the log once what was wrong with the environment, as soon as somebody listens. Every read of an
 * option does so by itself; log.c calls it when the listener changes.
 */
void options_report_problems(void);

#endif
