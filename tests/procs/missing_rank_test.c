/* SPDX-License-Identifier: MIT */
/* A launcher that promised more ranks than come, or the same number twice: those that came are told. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness/test.h"
#include "shoal/world.h"

#define STARTUP_S 1.0
/* What a busy machine may add; well below the default of a minute. */
#define LATE_S 20.0

/* As `shoal run` would set it. */
static void set_place(int rank, int n_ranks, const char *test)
{
    char text[64];
    (void)snprintf(text, sizeof text, "%d", rank);
    (void)setenv("SHOAL_RANK", text, 1);
    (void)snprintf(text, sizeof text, "%d", n_ranks);
    (void)setenv("SHOAL_RANKS", text, 1);
    (void)snprintf(text, sizeof text, "%s %" PRIx64, test, test_process_number((int)getppid()));
    (void)setenv("SHOAL_KEY", text, 1);
}

static shoal_status open_world(shoal_world **world_out)
{
    const shoal_world_options options = {.struct_size = sizeof options, .startup_timeout_s = STARTUP_S};
    return shoal_world_open(&options, world_out);
}

static void check_refused(shoal_status wanted, const char *words)
{
    shoal_world *world = NULL;
    int64_t begin_ns = clock_now_ns();
    CHECK_STATUS(open_world(&world), wanted);
    CHECK_ERROR_TEXT(words);
    CHECK(world == NULL);
    CHECK((double)(clock_now_ns() - begin_ns) * 1e-9 < STARTUP_S + LATE_S);
}

TEST_PROCESSES(a_rank_that_does_not_come_is_named, 2)
{
    set_place(self->rank, 3, "last");
    check_refused(SHOAL_ERR_TIMEOUT, "rank 2");
}

TEST_PROCESSES(rank_0_that_does_not_come_is_named, 2)
{
    set_place(self->rank + 1, 3, "first");
    check_refused(SHOAL_ERR_TIMEOUT, "rank 0");
}

TEST_PROCESSES(two_ranks_with_one_number_are_named, 3)
{
    set_place(self->rank == 0 ? 0 : 1, 3, "twice");
    check_refused(SHOAL_ERR_MISMATCH, "two ranks say they are rank 1 of 3");
}
