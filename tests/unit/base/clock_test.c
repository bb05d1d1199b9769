/* SPDX-License-Identifier: MIT */
/* Deadlines at the ends of their range. */
#include "base/clock.h"

#include <math.h>

#include "harness/test.h"
#include "shoal/clock.h"

TEST(time_does_not_go_back)
{
    int64_t last_ns = clock_now_ns();
    for (int i = 0; i < 1000; i++) {
        int64_t now_ns = clock_now_ns();
        CHECK(now_ns >= last_ns);
        last_ns = now_ns;
    }
}

TEST(seconds_are_those_of_the_clock)
{
    double before = (double)clock_now_ns() * 1e-9;
    double seconds = shoal_seconds();
    double after = (double)clock_now_ns() * 1e-9;
    CHECK(before <= seconds && seconds <= after);
    test_pause(0.01);
    double later = shoal_seconds();
    CHECK(later - seconds >= 0.0099);
}

TEST(deadlines_lie_in_the_future)
{
    int64_t before_ns = clock_now_ns();
    int64_t deadline_ns = clock_deadline_after(1.5);
    int64_t after_ns = clock_now_ns();
    CHECK(deadline_ns >= before_ns + 1500000000);
    CHECK(deadline_ns <= after_ns + 1500000000);
}

TEST(odd_numbers_of_seconds)
{
    static const double now[] = {0.0, -0.0, -1.0, -1e300};
    for (int i = 0; i < 4; i++) {
        CHECK(clock_deadline_after(now[i]) <= clock_now_ns());
    }
    CHECK(clock_deadline_after((double)NAN) <= clock_now_ns());
    CHECK(clock_deadline_after(-(double)INFINITY) <= clock_now_ns());
    static const double never[] = {1e10, 1e300};
    for (int i = 0; i < 2; i++) {
        CHECK_INT(clock_deadline_after(never[i]), DEADLINE_NEVER);
    }
    CHECK_INT(clock_deadline_after((double)INFINITY), DEADLINE_NEVER);
    /* The largest value of SHOAL_TIMEOUT is no eternity. */
    CHECK(clock_deadline_after(1e9) < DEADLINE_NEVER);
}
