/* SPDX-License-Identifier: MIT */
/* Monotonic time and deadlines, in nanoseconds. A deadline is an instant, so that it can be passed down. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

#define DEADLINE_NEVER INT64_MAX

int64_t clock_now_ns(void);

/* The instant `seconds` from now; DEADLINE_NEVER when that is out of range. */
int64_t clock_deadline_after(double seconds);

#endif
