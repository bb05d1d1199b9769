/* SPDX-License-Identifier: MIT */
/*
 * One rank of an mpirun, on hosts that SHOAL_PRETEND_HOSTS names, with two_level over mpi: tests/procs/mpi/deaths_test.sh runs it.
 *
 *     mpi_kill FOLDER VICTIM NUMBER
 *
 * The victim kills itself at the NUMBERth fail point of a large all_reduce, or at the last if it has fewer; 0: before it begins
 * MPI, while the others do, who print "open: STATUS: TEXT". Every other rank
 * prints what it got, "group: STATUS: TEXT", and the first failure of a group of ranks of several hosts without the victim,
 * "others: STATUS: TEXT". Nobody closes its world before all have got theirs, so that none learns it by that: FOLDER has files by
 * which they wait for each other.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail_point.h"
#include "base/wait.h"
#include "shoal/log.h"
#include "shoal/shoal.h"

#define LARGE 300000
#define PATIENCE_S 15.0

static shoal_status strike(void *context, const char *name)
{
    (void)context;
    (void)fprintf(stderr, "dies at %s\n", name);
    (void)raise(SIGKILL);
    return SHOAL_OK;
}

/* The first thing after the ranks have met is that the module is loaded. */
static void strike_when_loaded(void *context, shoal_log_level level, const char *message)
{
    (void)context;
    (void)level;
    if (strstr(message, "transport mpi") && strstr(message, " loaded")) {
        (void)strike(NULL, "the beginning of MPI");
    }
}

static shoal_status sum(shoal_group *group)
{
    static float values[LARGE];
    return shoal_group_all_reduce(group, values, values, LARGE, SHOAL_F32, SHOAL_SUM);
}

/* The wire looks for deaths every 100 ms: calls that are faster than its next look end well. */
static shoal_status sum_until_failure(shoal_group *group)
{
    int64_t deadline_ns = clock_deadline_after(PATIENCE_S);
    shoal_status status = sum(group);
    while (status == SHOAL_OK && clock_now_ns() < deadline_ns) {
        status = sum(group);
    }
    return status;
}

static int fail(const char *what)
{
    (void)fprintf(stderr, "%s: %s\n", what, shoal_error_text());
    return 2;
}

static void name_file(const char *folder, const char *what, int rank, char *path, size_t bytes)
{
    (void)snprintf(path, bytes, "%s/%s.%d", folder, what, rank);
}

/* Until all but the victim have come here. */
static void tell_and_wait(const char *folder, const char *what, const shoal_world *world, int victim)
{
    char path[4096];
    name_file(folder, what, shoal_world_rank(world), path, sizeof path);
    FILE *file = fopen(path, "w");
    if (file) {
        (void)fclose(file);
    }
    int64_t deadline_ns = clock_deadline_after(PATIENCE_S);
    for (int other = 0; other < shoal_world_n_ranks(world) && clock_now_ns() < deadline_ns;) {
        name_file(folder, what, other, path, sizeof path);
        if (other == victim || access(path, F_OK) == 0) {
            other++;
        } else {
            wait_sleep(1000000);
        }
    }
}

/* The group of all but the victim, which has none, and spans hosts; used once. */
static shoal_status begin_others(shoal_world *world, int victim, shoal_group **others_out)
{
    int ranks[64];
    int n_others = 0;
    if (shoal_world_rank(world) == victim) {
        return SHOAL_OK;
    }
    for (int rank = 0; rank < shoal_world_n_ranks(world) && n_others < 64; rank++) {
        if (rank != victim) {
            ranks[n_others++] = rank;
        }
    }
    shoal_status status = shoal_group_create(world, ranks, n_others, "others", others_out);
    return status == SHOAL_OK ? sum(*others_out) : status;
}

static void print(const char *what, shoal_status status)
{
    printf("%s: %s: %s\n", what, shoal_status_name(status), shoal_error_text());
    (void)fflush(stdout);
}

static int run(shoal_world *world, const char *folder, int victim, uint64_t number)
{
    int rank = shoal_world_rank(world);
    shoal_group *all = shoal_world_group(world);
    shoal_group *others = NULL;
    if (begin_others(world, victim, &others) != SHOAL_OK || sum(all) != SHOAL_OK) {
        return fail("nobody has died yet");
    }
    fail_point_arm(0, NULL, NULL);
    if (sum(all) != SHOAL_OK) {
        return fail("nobody has died yet");
    }
    uint64_t n_points = fail_point_passages();
    tell_and_wait(folder, "ready", world, victim);
    if (rank == victim) {
        fail_point_arm(number < n_points ? number : n_points, strike, NULL);
    }
    print("group", sum(all));
    tell_and_wait(folder, "ended", world, victim);
    print("others", sum_until_failure(others));
    tell_and_wait(folder, "told", world, victim);
    return 1;
}

static int read_rank(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : getenv("PMI_RANK");
    return rank ? (int)strtol(rank, NULL, 10) : -1;
}

int main(int argc, char **argv)
{
    shoal_world *world;
    shoal_world_options options = {
        .struct_size = sizeof options, .startup_timeout_s = 20, .timeout_s = 20, .close_timeout_s = 5};
    if (argc != 4) {
        (void)fprintf(stderr, "usage: mpi_kill FOLDER VICTIM NUMBER\n");
        return 2;
    }
    int victim = (int)strtol(argv[2], NULL, 10);
    uint64_t number = strtoull(argv[3], NULL, 10);
    if (number == 0 && read_rank() == victim) {
        shoal_log_set(strike_when_loaded, NULL, SHOAL_LOG_INFO);
    }
    shoal_status status = shoal_world_open(&options, &world);
    if (status != SHOAL_OK) {
        print("open", status);
        return 1;
    }
    int result = run(world, argv[1], victim, number);
    (void)shoal_world_close(world);
    return result;
}
