/* SPDX-License-Identifier: MIT */
/*
 * Ranks that a launcher has started, mpirun or `shoal run --hosts`: every process runs the same tests, each as one rank.
 *
 *     SHOAL_TEST_LAUNCHED=PREFIX mpirun -n 4 program [WORD...]
 *
 * runs the tests on exactly 4 ranks. PREFIX, the test's name behind it, is the file that its ranks share; whoever
 * starts them removes those. MPI opens descriptors and keeps them, so that those are not counted.
 *
 * A world that Shoal has opened on MPI leaves memory behind until the process exits, or until the next such world has
 * been closed. So the ranks open and close a world before the first test, which then finds as many blocks as it leaves.
 */
#include "harness/harness.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/test.h"
#include "shoal/status.h"
#include "shoal/world.h"

#define PATH_BYTES 512

static int read_number(const char *const *names)
{
    for (; *names; names++) {
        const char *value = getenv(*names);
        if (value && value[0]) {
            return (int)strtol(value, NULL, 10);
        }
    }
    return -1;
}

int harness_launched_rank(void)
{
    return read_number((const char *const[]){"SHOAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", NULL});
}

int harness_launched_size(void)
{
    const char *prefix = getenv("SHOAL_TEST_LAUNCHED");
    bool is_launched = prefix && prefix[0];
    return is_launched
               ? read_number((const char *const[]){"SHOAL_RANKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL})
               : 0;
}

int harness_launched_file(const char *name, size_t bytes)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s%s", getenv("SHOAL_TEST_LAUNCHED"), name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        perror(path);
        exit(2);
    }
    return fd;
}

void harness_launched_begin(void)
{
    shoal_world *world = NULL;
    if (shoal_world_open(NULL, &world) != SHOAL_OK || shoal_world_close(world) != SHOAL_OK) {
        (void)fprintf(stderr, "the first world: %s\n", shoal_error_text());
        exit(2);
    }
}

void harness_run_launched(const struct test_case *test)
{
    struct rank self = {.rank = harness_launched_rank(),
                        .n_ranks = test->n_ranks,
                        .is_process = true,
                        .shared = harness_shared()};
    harness_set_thread_rank(self.rank);
    atomic_store(&harness_control()->processes[self.rank], (int)getpid());
    test->run_rank(&self);
    harness_rank_leave(self.rank, /*has_returned=*/true);
}
