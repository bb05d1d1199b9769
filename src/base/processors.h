/* SPDX-License-Identifier: MIT */
/* How busy the machine's processors are. */
#ifndef BASE_PROCESSORS_H
#define BASE_PROCESSORS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Returns false when more threads want to run than there are processors, counting all programs of the machine and the
 * caller. Returns true where the system does not say. The answer may be a millisecond old. Threads: any; each thread
 * keeps an answer of its own.
 */
bool processors_are_free(void);

/* Whether this process may use as many processors as there are ranks on the host: by the processors that it is bound to,
   and by the time that its control groups (cpu.max) leave it. */
bool processors_suffice(int n_ranks);

/*
 * Whether this process may use enough processors, where the ranks are known by the numbers of their processes. Ranks
 * that are bound to processors of their own have enough: counted are the ranks that may use a processor of this one. A
 * process that cannot be asked counts.
 */
bool processors_suffice_beside(const int32_t *processes, int n_ranks);

/* How many processors' time a control group leaves: by the text of cpu.max ("150000 100000"), or by cpu.cfs_quota_us
   and cpu.cfs_period_us. Parts of a processor are dropped, but 1 is the least. Returns INT_MAX if there is no limit. */
int processors_parse_limit(const char *text);
int processors_parse_old_limit(const char *quota, const char *period);

/* How many threads want to run, by a text like that of /proc/loadavg; 0 when it does not say. */
long processors_parse_running(const char *text);

#endif
