/* SPDX-License-Identifier: MIT */
/* How many threads want to run, as the system says it, and what is made of it. */
#include "base/processors.h"

#include <stddef.h>

#include "base/wait.h"
#include "harness/test.h"

TEST(running_threads_are_read)
{
    CHECK_INT(processors_parse_running("0.20 0.18 0.12 3/346 2165\n"), 3);
    CHECK_INT(processors_parse_running("99.00 1.00 0.00 128/9999 1\n"), 128);
}

TEST(what_says_nothing_is_no_number)
{
    CHECK_INT(processors_parse_running(NULL), 0);
    CHECK_INT(processors_parse_running(""), 0);
    CHECK_INT(processors_parse_running("0.20 0.18"), 0);
    CHECK_INT(processors_parse_running("0.20 0.18 0.12 "), 0);
    CHECK_INT(processors_parse_running("0.20 0.18 0.12 x/346 2165"), 0);
    CHECK_INT(processors_parse_running("0.20 0.18 0.12 3 346"), 0);
    CHECK_INT(processors_parse_running("0.20 0.18 0.12 -3/346 2165"), 0);
}

TEST(one_rank_has_a_processor)
{
    CHECK(processors_suffice(1));
    CHECK(!processors_suffice(1 << 20));
}

/* What a background thread is told depends on what else runs; others are not told to sleep. */
TEST(other_threads_may_always_spin)
{
    (void)processors_are_free();
    CHECK(wait_should_spin());
}
