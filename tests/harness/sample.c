/* SPDX-License-Identifier: MIT */
/* How much of a test that has very many cases is run: a sample, or the whole sweep. */
#include <stdlib.h>
#include <string.h>

#include "harness/harness.h"
#include "harness/test.h"

bool test_is_whole(void)
{
    const char *sweep = getenv("SHOAL_TEST_SWEEP");
    return sweep && strcmp(sweep, "whole") == 0;
}

bool test_takes(const struct rank *self, int number)
{
    return HARNESS_HAS_TSAN || test_is_whole() || number % 2 == (int)self->is_process;
}
