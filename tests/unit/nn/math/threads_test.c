/* SPDX-License-Identifier: MIT */
/* How many threads there are: what the environment says. */
#include <stdlib.h>

#include "nn/math/pool.h"
#include "unit/nn/fixture.h"

static void clear_environment(void)
{
    const char *const names[] = {"SHOAL_NN_THREADS",    "OPENBLAS_NUM_THREADS",       "SHOAL_RANKS",
                                 "LOCAL_WORLD_SIZE",    "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                 "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)unsetenv(names[i]);
    }
}

static void check_default(const char *name, const char *value, int n_processors, int expected)
{
    clear_environment();
    if (name) {
        (void)setenv(name, value, 1);
    }
    int actual = nn_threads_default(n_processors);
    if (actual != expected) {
        test_failed(__FILE__, __LINE__, "%s=%s on %d processors: %d threads, expected %d", name ? name : "",
                    value ? value : "", n_processors, actual, expected);
    }
}

static void check_defaults(void *context)
{
    check_default(NULL, NULL, 16, 16);
    check_default("SHOAL_RANKS", "8", 16, 2);
    check_default("SHOAL_RANKS", "3", 16, 5);
    check_default("SHOAL_RANKS", "3", 2, 1);
    check_default("LOCAL_WORLD_SIZE", "4", 16, 4);
    check_default("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 16, 8);
    check_default("MPI_LOCALNRANKS", "16", 16, 1);
    check_default("SLURM_STEP_NUM_TASKS", "2", 4, 2);
    check_default("SHOAL_NN_THREADS", "7", 2, 7);
    check_default("OPENBLAS_NUM_THREADS", "5", 2, 5);
    const char *const bad[] = {"", "0", "-1", "2x", " 2", "65537", "99999999999999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        check_default("SHOAL_NN_THREADS", bad[i], 4, 4);
        check_default("SHOAL_RANKS", bad[i], 4, 4);
    }
    (void)setenv("SHOAL_RANKS", "2", 1);
    (void)setenv("OPENBLAS_NUM_THREADS", "9", 1);
    (void)setenv("LOCAL_WORLD_SIZE", "4", 1);
    CHECK_INT(nn_threads_default(8), 9);
    (void)setenv("SHOAL_NN_THREADS", "3", 1);
    CHECK_INT(nn_threads_default(8), 3);
}

TEST(threads_by_default_are_processors_by_ranks)
{
    test_in_child(check_defaults, NULL);
}
