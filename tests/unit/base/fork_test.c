/* SPDX-License-Identifier: MIT */
/* A forked child knows that it is one, and so does its own child. */
#include "base/fork.h"

#include <sys/wait.h>
#include <unistd.h>

#include "harness/test.h"

static int run_child(uint32_t before)
{
    if (!fork_is_child(before) || fork_check(before) != SHOAL_ERR_STATE) {
        return 1;
    }
    uint32_t own = fork_count();
    pid_t child = fork();
    if (child == 0) {
        _exit(fork_is_child(own) && fork_is_child(before) ? 0 : 1);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0 && !fork_is_child(own) ? 0 : 1;
}

TEST(a_child_is_known)
{
    REQUIRE_OK(fork_watch());
    REQUIRE_OK(fork_watch());
    uint32_t before = fork_count();
    CHECK_OK(fork_check(before));
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        _exit(run_child(before));
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(!fork_is_child(before));
    CHECK(fork_count() == before);
}
