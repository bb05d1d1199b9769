/* SPDX-License-Identifier: MIT */
/*
 * A clock, for programs that time their steps.
 *
 *     double begin = shoal_seconds();
 *     ... a step ...
 *     printf("%.1f ms\n", (shoal_seconds() - begin) * 1e3);
 *
 * Calls whose names end in _start, and those on tensors, return before their work has ended: wait for it, or read a
 * result, before the second look at the clock. Where the time of all ranks goes is told by a trace (shoal/trace.h).
 *
 * Ownership: nothing is owned.
 * Threads: any.
 * Errors: none.
 */
#ifndef SHOAL_CLOCK_H
#define SHOAL_CLOCK_H

#include "shoal/api.h"

SHOAL_BEGIN_DECLS

/* Seconds since some moment, the same for all threads and processes of a host. They never go back, also if somebody
   sets the time of day. Clocks of different hosts have nothing to do with each other. */
SHOAL_API double shoal_seconds(void);

SHOAL_END_DECLS

#endif
