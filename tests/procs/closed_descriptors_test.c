/* SPDX-License-Identifier: MIT */
/*
 * A program closes descriptors that it has not opened, as daemons do before they start: those of the library among
 * them. Its world cannot be used any more, but shoal_world_close returns, within close_timeout_s, and says what has
 * happened. Other ranks get errors.
 */
#include <fcntl.h>
#include <unistd.h>

#include "fixtures/rank_world.h"

#ifdef __SANITIZE_THREAD__
#define HAS_THREAD_SANITIZER 1
#else
#define HAS_THREAD_SANITIZER 0
#endif

#define CLOSE_S 2.0

enum {
    N_NUMBERS = 4096, /* of descriptors that are looked at */
    N_REUSED = 64
};

enum when {
    AT_ONCE,
    AFTER_A_COLLECTIVE,
    REUSED /* the program opens files afterwards, which get the same numbers */
};

/* Closes what was not open before the world was. */
static void close_all(enum when when, const bool *were_open)
{
    for (int fd = 3; fd < N_NUMBERS; fd++) {
        if (!were_open[fd]) {
            (void)close(fd);
        }
    }
    for (int i = 0; when == REUSED && i < N_REUSED; i++) {
        CHECK(open("/dev/null", O_RDWR) >= 0);
    }
}

static void list_open(bool *were_open)
{
    for (int fd = 0; fd < N_NUMBERS; fd++) {
        were_open[fd] = fcntl(fd, F_GETFD) >= 0;
    }
}

/* A close that does not return at its deadline is ended by that of the test. */
static void check_close(struct rank *self, int culprit, enum when when)
{
    static bool were_open[N_NUMBERS];
    if (HAS_THREAD_SANITIZER) {
        test_skip("closing a descriptor that another thread uses is a race, and what is tested");
        return;
    }
    list_open(were_open);
    struct rank_key key = rank_key(self, 0);
    shoal_world_options options = rank_world_options(self, &key);
    options.close_timeout_s = CLOSE_S * test_time_scale();
    options.timeout_s = options.close_timeout_s;
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    float number = 1;
    if (when == AFTER_A_COLLECTIVE) {
        CHECK_OK(shoal_group_all_reduce(shoal_world_group(world), &number, &number, 1, SHOAL_F32, SHOAL_SUM));
    }
    test_barrier(self);
    if (self->rank == culprit) {
        close_all(when, were_open);
    }
    test_barrier(self);
    shoal_status status = shoal_world_close(world);
    if (self->rank == culprit) {
        CHECK_INT(status, SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("descriptors");
        close_all(AT_ONCE, were_open);
    }
}

TEST_PROCESSES(the_first_rank_closes_them, 2)
{
    check_close(self, 0, AT_ONCE);
}

TEST_PROCESSES(the_last_rank_closes_them, 2)
{
    check_close(self, 1, AT_ONCE);
}

TEST_PROCESSES(after_a_collective, 2)
{
    check_close(self, 0, AFTER_A_COLLECTIVE);
}

TEST_PROCESSES(the_numbers_are_used_again, 2)
{
    check_close(self, 0, REUSED);
}
