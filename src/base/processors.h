/* SPDX-License-Identifier: MIT */
/* How busy the machine's processors are. */
#ifndef BASE_PROCESSORS_H
#define BASE_PROCESSORS_H

#include <stdbool.h>

/*
 * False when more threads want to run than there are processors, of all programs of the machine, the caller counted in.
 * True where the system does not say. An answer is up to a millisecond old. Threads: any; each asks for itself.
 */
bool processors_are_free(void);

/* Whether this process may use as many processors as there are ranks on the host. */
bool processors_suffice(int n_ranks);

/* How many threads want to run, by a text like that of /proc/loadavg; 0 when it does not say. */
long processors_parse_running(const char *text);

#endif
