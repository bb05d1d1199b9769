/* SPDX-License-Identifier: MIT */
/* The harness' own clock, so that a broken clock of the library cannot keep deadlines from passing. */
#include "harness/harness.h"

#include <stdlib.h>
#include <time.h>

#include "harness/test.h"

int64_t harness_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* SHOAL_TEST_TIME_SCALE stretches deadlines, for slow machines and for tools that slow the program down. */
double harness_time_scale(void)
{
    const char *text = getenv("SHOAL_TEST_TIME_SCALE");
    double scale = text ? strtod(text, NULL) : 1.0;
    return scale > 0.0 && scale < 1e6 ? scale : 1.0;
}

double test_time_scale(void)
{
    return harness_time_scale();
}

void test_pause(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0) {
    }
}

void test_deadline(double seconds)
{
    int64_t delay_ns = (int64_t)(seconds * harness_time_scale() * 1e9);
    atomic_store(&harness_control()->deadline_ns, harness_now_ns() + delay_ns);
    harness_watchdog_poke();
}
