/* SPDX-License-Identifier: MIT */
/* Names of hosts: a resolver that does not answer holds up nobody beyond the deadline, nor the opening of a world. */
#include "bootstrap/net/lookup.h"

#include <dirent.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/wait.h"
#include "harness/test.h"
#include "shoal/world.h"

static _Atomic bool is_answering;

/* Instead of the system's: knows no address, and does not answer for names until it is told to. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    (void)node;
    (void)service;
    (void)found;
    if (hints->ai_flags & AI_NUMERICHOST) {
        return EAI_NONAME;
    }
    while (!atomic_load(&is_answering)) {
        wait_sleep(1000000);
    }
    return EAI_AGAIN;
}

static int count_threads(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    while (folder && readdir(folder)) {
        count++;
    }
    if (folder) {
        (void)closedir(folder);
    }
    return count;
}

/* Until the thread that was left behind has ended: it frees what it has. */
static void answer(int n_threads)
{
    atomic_store(&is_answering, true);
    while (count_threads() > n_threads) {
        wait_sleep(1000000);
    }
    atomic_store(&is_answering, false);
}

TEST(a_resolver_that_does_not_answer_is_left_behind)
{
    int n_threads = count_threads();
    struct address address;
    if (CHECK_STATUS(lookup_address("SHOAL_ADDRESS", "slow.example:1", clock_deadline_after(0.05), &address),
                     SHOAL_ERR_TIMEOUT)) {
        CHECK_ERROR_TEXT("SHOAL_ADDRESS: looking up the host \"slow.example\"");
    }
    answer(n_threads);
}

TEST(what_the_resolver_says_is_told)
{
    struct address address;
    atomic_store(&is_answering, true);
    if (CHECK_STATUS(lookup_address("SHOAL_ADDRESS", "none.example:1", clock_deadline_after(60), &address),
                     SHOAL_ERR_INVALID)) {
        CHECK_ERROR_TEXT("the host \"none.example\" is not known");
    }
    atomic_store(&is_answering, false);
}

TEST(a_world_does_not_wait_for_a_name_beyond_its_start_up)
{
    int n_threads = count_threads();
    shoal_world_options options = SHOAL_WORLD_OPTIONS_INIT;
    shoal_world *world = NULL;
    options.startup_timeout_s = 0.1;
    REQUIRE(setenv("SHOAL_RANK", "1", 1) == 0 && setenv("SHOAL_RANKS", "2", 1) == 0 &&
            setenv("SHOAL_ADDRESS", "slow.example:20001", 1) == 0 && setenv("SHOAL_TOKEN", "t", 1) == 0);
    if (CHECK_STATUS(shoal_world_open(&options, &world), SHOAL_ERR_TIMEOUT)) {
        CHECK_ERROR_TEXT("slow.example");
    }
    answer(n_threads);
}
