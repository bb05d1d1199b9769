/* SPDX-License-Identifier: MIT */
/*
 * One rank of an mpirun: tests/procs/mpi/stops_test.sh runs it, with every rank a host of its own.
 *
 *     mpi_stop FOLDER VICTIM NUMBER stop|fail all_gather|all_reduce
 *
 * At the NUMBERth fail point of a large collective over transport mpi the victim stops, or its call fails. Of the
 * all_reduce some shares are just long enough to be sent from the caller's memory, and one is not. Everybody unmaps the
 * buffers as soon as its call has returned, and prints what it got: "group: STATUS: TEXT". When all others have, the
 * victim is continued. Then all print what a small group without the victim gets, "others: STATUS: TEXT". Nobody may
 * crash. FOLDER has files by which the ranks wait for each other.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/wait.h"
#include "shoal/shoal.h"

#define COUNT ((size_t)2 * 1024 * 1024)
/* Floats of the shortest stretch that is sent from where it lies. */
#define LENT ((size_t)64 * 1024 / sizeof(float))
#define PATIENCE_S 20.0

static shoal_status stop(void *context, const char *name)
{
    (void)context;
    (void)fprintf(stderr, "stops at %s\n", name);
    (void)raise(SIGSTOP);
    return SHOAL_OK;
}

static shoal_status break_off(void *context, const char *name)
{
    (void)context;
    return error_set(SHOAL_ERR_SYSTEM, "made to fail at %s", name);
}

static float *map_floats(size_t count)
{
    void *memory =
        mmap(NULL, count * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* The buffers are gone when it returns. */
static shoal_status gather(shoal_group *group, size_t count)
{
    size_t n_recv = count * (size_t)shoal_group_n_ranks(group);
    float *send = map_floats(count);
    float *recv = map_floats(n_recv);
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    if (send && recv) {
        memset(send, 1, count * sizeof *send);
        status = shoal_group_all_gather(group, send, recv, count, SHOAL_F32);
    }
    (void)munmap(send, count * sizeof *send);
    (void)munmap(recv, n_recv * sizeof *recv);
    return status;
}

/* Likewise. The last share is one element shorter than the others. */
static shoal_status reduce(shoal_group *group)
{
    size_t n_ranks = (size_t)shoal_group_n_ranks(group);
    size_t count = n_ranks * LENT - 1;
    float *send = map_floats(count);
    float *recv = map_floats(count);
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    for (size_t i = 0; send && i < count; i++) {
        send[i] = (float)(i % 1000);
    }
    if (send && recv) {
        status = shoal_group_all_reduce(group, send, recv, count, SHOAL_F32, SHOAL_SUM);
    }
    for (size_t i = 0; status == SHOAL_OK && i < count; i++) {
        if (recv[i] != (float)(i % 1000) * (float)n_ranks) {
            status = error_set(SHOAL_ERR_INTERNAL, "element %zu is %g", i, (double)recv[i]);
        }
    }
    (void)munmap(send, count * sizeof *send);
    (void)munmap(recv, count * sizeof *recv);
    return status;
}

static shoal_status call(shoal_group *group, bool is_reduction)
{
    return is_reduction ? reduce(group) : gather(group, COUNT);
}

static void name_file(const char *folder, const char *what, int rank, char *path, size_t bytes)
{
    (void)snprintf(path, bytes, "%s/%s.%d", folder, what, rank);
}

/* Says that this rank is here, with its process. */
static void tell(const char *folder, const char *what, int rank)
{
    char path[4096];
    char other[4096];
    name_file(folder, what, rank, path, sizeof path);
    name_file(folder, "new", rank, other, sizeof other);
    FILE *file = fopen(other, "w");
    if (file) {
        (void)fprintf(file, "%ld\n", (long)getpid());
        (void)fclose(file);
        (void)rename(other, path);
    }
}

/* Until all have told it but `except`. */
static void wait_for_all(const char *folder, const char *what, int n_ranks, int except)
{
    char path[4096];
    int64_t deadline_ns = clock_deadline_after(PATIENCE_S);
    for (int rank = 0; rank < n_ranks && clock_now_ns() < deadline_ns;) {
        name_file(folder, what, rank, path, sizeof path);
        if (rank == except || access(path, F_OK) == 0) {
            rank++;
        } else {
            wait_sleep(1000000);
        }
    }
}

static void continue_victim(const char *folder, int victim)
{
    char path[4096];
    long process = 0;
    name_file(folder, "ready", victim, path, sizeof path);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%ld", &process) == 1 && process > 1) {
        (void)kill((pid_t)process, SIGCONT);
    }
    if (file) {
        (void)fclose(file);
    }
}

static void print(const char *what, shoal_status status)
{
    printf("%s: %s: %s\n", what, shoal_status_name(status), shoal_error_text());
    (void)fflush(stdout);
}

static int run(shoal_world *world, const char *folder, int victim, uint64_t number, fail_point_action action,
               bool is_reduction)
{
    int rank = shoal_world_rank(world);
    int n_ranks = shoal_world_n_ranks(world);
    int ranks[64];
    int n_others = 0;
    shoal_group *all = shoal_world_group(world);
    shoal_group *others = NULL;
    for (int other = 0; other < n_ranks && n_others < 64; other++) {
        if (other != victim) {
            ranks[n_others++] = other;
        }
    }
    bool has_others = rank != victim;
    if ((has_others && shoal_group_create(world, ranks, n_others, "others", &others) != SHOAL_OK) ||
        (has_others && gather(others, 16) != SHOAL_OK) || call(all, is_reduction) != SHOAL_OK) {
        print("nothing has happened yet", SHOAL_ERR_INTERNAL);
        return 2;
    }
    tell(folder, "ready", rank);
    wait_for_all(folder, "ready", n_ranks, /*except=*/-1);
    if (rank == victim) {
        fail_point_arm(number, action, NULL);
    }
    print("group", call(all, is_reduction));
    tell(folder, "ended", rank);
    wait_for_all(folder, "ended", n_ranks, victim);
    if (rank == (victim + 1) % n_ranks) {
        continue_victim(folder, victim);
    }
    wait_for_all(folder, "ended", n_ranks, /*except=*/-1);
    if (has_others) {
        print("others", gather(others, 16));
    }
    tell(folder, "told", rank);
    wait_for_all(folder, "told", n_ranks, /*except=*/-1);
    return 1;
}

int main(int argc, char **argv)
{
    shoal_world *world;
    shoal_world_options options = {.struct_size = sizeof options,
                                   .transport = "mpi",
                                   .startup_timeout_s = 20,
                                   .timeout_s = 2,
                                   .close_timeout_s = 5};
    if (argc != 6) {
        (void)fprintf(stderr, "usage: mpi_stop FOLDER VICTIM NUMBER stop|fail all_gather|all_reduce\n");
        return 2;
    }
    if (shoal_world_open(&options, &world) != SHOAL_OK) {
        print("open", SHOAL_ERR_INTERNAL);
        return 2;
    }
    int result = run(world, argv[1], (int)strtol(argv[2], NULL, 10), strtoull(argv[3], NULL, 10),
                     strcmp(argv[4], "stop") == 0 ? stop : break_off, strcmp(argv[5], "all_reduce") == 0);
    (void)shoal_world_close(world);
    return result;
}
