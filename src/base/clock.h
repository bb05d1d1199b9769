/* SPDX-License-Identifier: MIT */
/* Monotonic time and deadlines, in nanoseconds. A deadline is an instant, so that it can be passed down. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

#define DEADLINE_NEVER INT64_MAX

int64_t clock_now_ns(void);

/*
 * Reads a counter that advances at a constant but unknown rate. It is for intervals so short that reading the clock
 * would take most of them. To convert a reading to a time, interpolate between two instants at which both counter and
 * clock were read.
 */
static inline uint64_t clock_ticks(void)
{
#if defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#elif defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return (uint64_t)clock_now_ns();
#endif
}

/* The instant `seconds` from now; now for a negative number or NaN, DEADLINE_NEVER beyond the range (146 years). */
int64_t clock_deadline_after(double seconds);

#endif
