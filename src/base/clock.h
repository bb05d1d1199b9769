/* SPDX-License-Identifier: MIT */
/* Monotonic time and deadlines, in nanoseconds. A deadline is an instant, so that it can be passed down. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

#define DEADLINE_NEVER INT64_MAX

int64_t clock_now_ns(void);

/*
 * A counter that goes at a constant rate nobody knows: for intervals so short that reading the clock would be most
 * of them. To turn a reading into a time, put it between two instants at which both were read.
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
