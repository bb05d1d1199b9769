/* SPDX-License-Identifier: MIT */
/* Random numbers that come again with the same seed (splitmix64: a counter and a mixing function). */
#include "harness/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "harness/test.h"

static uint64_t program_seed;

static uint64_t mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

bool harness_seed_read(void)
{
    const char *text = getenv("SHOAL_TEST_SEED");
    if (text) {
        char *end;
        errno = 0;
        program_seed = strtoull(text, &end, 0);
        return end != text && *end == '\0' && errno == 0;
    }
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    /* Short enough to be typed again. */
    program_seed = mix((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec) % 1000000000u;
    return true;
}

uint64_t harness_seed(void)
{
    return program_seed;
}

struct test_random test_random_begin(uint64_t salt)
{
    return (struct test_random){.state = mix(program_seed + 1) ^ mix(salt + 0x9E3779B97F4A7C15u)};
}

uint64_t test_random_u64(struct test_random *random)
{
    random->state += 0x9E3779B97F4A7C15u;
    return mix(random->state);
}

uint64_t test_random_below(struct test_random *random, uint64_t bound)
{
    /* Numbers past the last whole multiple of the bound would make small results likelier. */
    uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
    uint64_t number;
    do {
        number = test_random_u64(random);
    } while (number >= limit);
    return number % bound;
}

double test_random_unit(struct test_random *random)
{
    return (double)(test_random_u64(random) >> 11) * 0x1p-53;
}
