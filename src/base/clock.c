/* SPDX-License-Identifier: MIT */
/* Monotonic time and deadlines. The clock does not jump when somebody sets the time of day. */
#include "base/clock.h"

#include <time.h>

#include "shoal/clock.h"

int64_t clock_now_ns(void)
{
    struct timespec now;
    /* Cannot fail: the clock exists on every Linux and the pointer is good. */
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t clock_deadline_after(double seconds)
{
    int64_t now_ns = clock_now_ns();
    /* Written so that NaN takes this way too: a wait that nobody can bound must not begin. */
    if (!(seconds > 0.0)) {
        return now_ns;
    }
    double delay_ns = seconds * 1e9;
    /* Compared with room to spare, because INT64_MAX itself has no exact double. */
    if (delay_ns >= (double)(INT64_MAX / 2) || now_ns > INT64_MAX / 2) {
        return DEADLINE_NEVER;
    }
    return now_ns + (int64_t)delay_ns;
}

double shoal_seconds(void)
{
    return (double)clock_now_ns() * 1e-9;
}
