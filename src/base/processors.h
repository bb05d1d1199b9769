/* SPDX-License-Identifier: MIT */
/* How busy the machine's processors are. */
#ifndef BASE_PROCESSORS_H
#define BASE_PROCESSORS_H

#include <stdbool.h>

/*
 * Returns false when more threads want to run than there are processors, counting all programs of the machine and the
 * caller. Returns true where the system does not say. The answer may be a millisecond old. Threads: any; each thread
 * keeps an answer of its own.
 */
bool processors_are_free(void);

/* Whether this process may use as many processors as there are ranks on the host. */
bool processors_suffice(int n_ranks);

/* How many threads want to run, by a text like that of /proc/loadavg; 0 when it does not say. */
long processors_parse_running(const char *text);

#endif
