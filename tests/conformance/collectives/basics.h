/* SPDX-License-Identifier: MIT */
/* What the tests of the collectives on a world of four share. */
#ifndef CONFORMANCE_BASICS_H
#define CONFORMANCE_BASICS_H

#include <stdlib.h>
#include <string.h>

#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/log.h"
#include "shoal/work.h"
#include "shoal/world.h"

enum {
    W = 4,
    STRESS = 1000,
    STRESS_AT_ONCE = 100
};

/* The body is run between opening and closing a world; `all` is its group. */
#define TEST_WORLD(name, ranks)                                                       \
    static void name##_body(struct rank *self, shoal_world *world, shoal_group *all); \
    TEST_RANKS(name, ranks)                                                           \
    {                                                                                 \
        shoal_world *world = rank_world_open(self, 0);                                \
        REQUIRE(world);                                                               \
        name##_body(self, world, shoal_world_group(world));                           \
        CHECK_OK(shoal_world_close(world));                                           \
    }                                                                                 \
    static void name##_body(struct rank *self, shoal_world *world, shoal_group *all)

/* Refused, with these words in the text. Nothing reaches the peers. */
#define CHECK_REFUSED(call, words)               \
    do {                                         \
        CHECK_STATUS((call), SHOAL_ERR_INVALID); \
        CHECK_ERROR_TEXT(words);                 \
    } while (0)

/* Waits for a work and gives it up. */
static inline shoal_status finish(shoal_work *work)
{
    shoal_status status = shoal_work_wait(work, /*timeout_s=*/-1);
    shoal_work_free(work);
    return status;
}

/* All elements are this value. */
static inline void check_all(const float *values, size_t count, float expected, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        if (values[i] != expected) {
            test_failed(__FILE__, __LINE__, "%s: element %zu is %g, expected %g", what, i, (double)values[i],
                        (double)expected);
            return;
        }
    }
}

static inline void fill(float *values, size_t count, float value)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = value;
    }
}

#endif
