/* SPDX-License-Identifier: MIT */
/* Monotonic time and deadlines, in nanoseconds. A deadline is an instant, so that it can be passed down. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

#define DEADLINE_NEVER INT64_MAX

int64_t clock_now_ns(void);

/* The instant `seconds` from now; now for a negative number or NaN, DEADLINE_NEVER beyond the range (146 years). */
int64_t clock_deadline_after(double seconds);

#endif
