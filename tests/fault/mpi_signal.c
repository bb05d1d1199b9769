/* SPDX-License-Identifier: MIT */
/*
 * One rank of an mpirun, one of which is killed or stopped from outside: tests/procs/mpi/signals_test.sh runs it.
 *
 *     mpi_signal FOLDER VICTIM start|steps|close
 *
 * The victim writes FOLDER/ready.VICTIM, with its process number, when it can be struck: before it opens its world, while
 * all ranks make one call after the other, or before it closes its world, which the others do meanwhile. In the first case
 * and the last it waits until FOLDER/go is there. Everybody prints what became of it: "open: STATUS: TEXT", "steps:
 * STATUS: TEXT", "close: STATUS: TEXT", as far as it gets.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/wait.h"
#include "shoal/shoal.h"

#define COUNT 1000
#define STEPS_BEFORE_READY 50
#define PATIENCE_S 40.0

struct plan {
    const char *folder;
    int victim;
    const char *phase;
    int rank;
};

static bool is_victim_in(const struct plan *plan, const char *phase)
{
    return plan->rank == plan->victim && strcmp(plan->phase, phase) == 0;
}

static void get_ready(const struct plan *plan)
{
    char path[4096];
    char ready[4096];
    (void)snprintf(path, sizeof path, "%s/making", plan->folder);
    (void)snprintf(ready, sizeof ready, "%s/ready.%d", plan->folder, plan->rank);
    FILE *file = fopen(path, "w");
    if (file) {
        (void)fprintf(file, "%d\n", (int)getpid());
        (void)fclose(file);
        (void)rename(path, ready); /* whole or not at all */
    }
}

static void wait_to_go(const struct plan *plan)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/go", plan->folder);
    int64_t deadline_ns = clock_deadline_after(PATIENCE_S);
    while (access(path, F_OK) != 0 && clock_now_ns() < deadline_ns) {
        wait_sleep(1000000);
    }
}

static int print(const char *what, shoal_status status)
{
    printf("%s: %s: %s\n", what, shoal_status_name(status), shoal_error_text());
    (void)fflush(stdout);
    return status == SHOAL_OK ? 0 : 1;
}

/* Calls until one fails; a few, unless somebody is struck meanwhile. */
static shoal_status run_steps(const struct plan *plan, shoal_world *world)
{
    static float values[COUNT];
    bool is_endless = strcmp(plan->phase, "steps") == 0;
    shoal_status status = SHOAL_OK;
    for (int i = 0; status == SHOAL_OK && (is_endless || i < STEPS_BEFORE_READY); i++) {
        if (i == STEPS_BEFORE_READY && plan->rank == plan->victim) {
            get_ready(plan);
        }
        status =
            shoal_group_all_reduce(shoal_world_group(world), values, values, COUNT, SHOAL_F32, SHOAL_SUM);
    }
    return status;
}

static int run(const struct plan *plan)
{
    shoal_world *world;
    /* Short where a rank is waited for that does not come, but long enough for one that only runs late. */
    double scale = getenv("SHOAL_TEST_TIME_SCALE") ? strtod(getenv("SHOAL_TEST_TIME_SCALE"), NULL) : 1.0;
    const shoal_world_options options = {.struct_size = sizeof options,
                                         .startup_timeout_s =
                                             scale * (strcmp(plan->phase, "start") == 0 ? 4 : 30),
                                         .timeout_s = scale * 3,
                                         .close_timeout_s = scale * 3};
    if (is_victim_in(plan, "start")) {
        get_ready(plan);
        wait_to_go(plan);
    }
    shoal_status status = shoal_world_open(&options, &world);
    if (print("open", status) != 0) {
        return 1;
    }
    int result = print("steps", run_steps(plan, world));
    if (is_victim_in(plan, "close")) {
        get_ready(plan);
        wait_to_go(plan);
    }
    return print("close", shoal_world_close(world)) | result;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : getenv("PMI_RANK");
    if (argc != 4 || !rank) {
        (void)fprintf(stderr, "usage: mpirun -n N mpi_signal FOLDER VICTIM start|steps|close\n");
        return 2;
    }
    const struct plan plan = {.folder = argv[1],
                              .victim = (int)strtol(argv[2], NULL, 10),
                              .phase = argv[3],
                              .rank = (int)strtol(rank, NULL, 10)};
    return run(&plan);
}
