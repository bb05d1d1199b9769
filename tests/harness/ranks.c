/* SPDX-License-Identifier: MIT */
/*
 * The memory that ranks share, and their barrier. It is one MAP_SHARED mapping for both launchers, so that the
 * thread sanitizer, which sees only threads, watches the very memory that processes will use.
 */
#include "harness/harness.h"

#include <dirent.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "harness/test.h"

/* Asleep no longer than this before looking around again. */
#define BARRIER_NAP_NS 50000000

struct mapping {
    struct control control;
    _Alignas(4096) unsigned char shared[TEST_SHARED_BYTES];
};

static struct mapping *mapping;

void harness_control_begin(void)
{
    int fd = harness_launched_size() > 0 ? harness_launched_file(harness_name(), sizeof *mapping) : -1;
    void *memory = mmap(NULL, sizeof *mapping, PROT_READ | PROT_WRITE,
                        fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (fd >= 0) {
        (void)close(fd);
    }
    if (memory == MAP_FAILED) {
        perror("the harness cannot map shared memory");
        exit(2);
    }
    mapping = memory;
    int64_t delay_ns = (int64_t)(HARNESS_DEFAULT_SECONDS * harness_time_scale() * 1e9);
    atomic_store(&mapping->control.deadline_ns, harness_now_ns() + delay_ns);
}

void harness_control_end(void)
{
    (void)munmap(mapping, sizeof *mapping);
    mapping = NULL;
}

struct control *harness_control(void)
{
    return &mapping->control;
}

void *harness_shared(void)
{
    return mapping->shared;
}

static void wake_barrier(struct control *control)
{
    (void)syscall(SYS_futex, &control->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void harness_rank_leave(int rank, bool has_returned)
{
    struct control *control = harness_control();
    if (has_returned) {
        atomic_store(&control->has_returned[rank], 1);
    }
    if (harness_doom(rank) != 0) {
        return; /* nobody waits for it */
    }
    int expected = 0;
    (void)atomic_compare_exchange_strong(&control->first_left, &expected, rank + 1);
    atomic_fetch_add(&control->n_left, 1);
    wake_barrier(control);
}

int harness_doom(int rank)
{
    return atomic_load(&harness_control()->doomed_by[rank]);
}

void test_expect_death(int rank, int signal)
{
    struct control *control = harness_control();
    if (rank < 0 || rank >= HARNESS_MAX_RANKS || signal <= 0) {
        test_failed(__FILE__, __LINE__, "rank %d cannot be expected to die by signal %d", rank, signal);
        return;
    }
    if (atomic_exchange(&control->doomed_by[rank], signal) == 0) {
        atomic_fetch_add(&control->n_doomed, 1);
        wake_barrier(control);
    }
}

int test_process(int rank)
{
    bool is_rank = rank >= 0 && rank < HARNESS_MAX_RANKS;
    return is_rank ? atomic_load(&harness_control()->processes[rank]) : 0;
}

/* Whether no thread of the process can run: each is stopped. */
static bool is_stopped(int process)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/task", process);
    DIR *threads = opendir(path);
    bool is_stopped = threads != NULL;
    for (struct dirent *entry; is_stopped && (entry = readdir(threads)) != NULL;) {
        char name[sizeof path + sizeof entry->d_name + sizeof "//stat"];
        char text[512] = "";
        (void)snprintf(name, sizeof name, "%s/%s/stat", path, entry->d_name);
        FILE *file = entry->d_name[0] != '.' ? fopen(name, "r") : NULL;
        if (file) {
            text[fread(text, 1, sizeof text - 1, file)] = 0;
            (void)fclose(file);
            const char *behind_name = strrchr(text, ')');
            is_stopped = behind_name && (behind_name[2] == 'T' || behind_name[2] == 't');
        }
    }
    if (threads) {
        (void)closedir(threads);
    }
    return is_stopped;
}

void test_signal(int rank, int signal)
{
    int process = test_process(rank);
    if (process <= 0 || kill(process, signal) != 0) {
        test_failed(__FILE__, __LINE__, "rank %d (process %d) cannot be sent signal %d", rank, process,
                    signal);
        return;
    }
    /* A process goes on until its threads have seen the signal, long enough to answer somebody. */
    for (int i = 0; signal == SIGSTOP && !is_stopped(process) && i < 5000; i++) {
        test_pause(0.001);
    }
}

/* Lets everybody go if all who can come have come. Whoever looks first does it. */
static void open_barrier(struct control *control, int n_ranks)
{
    uint32_t arrived = atomic_load(&control->arrived);
    if (arrived > 0 && arrived + atomic_load(&control->n_doomed) >= (uint32_t)n_ranks &&
        atomic_compare_exchange_strong(&control->arrived, &arrived, 0)) {
        atomic_fetch_add(&control->generation, 1);
        wake_barrier(control);
    }
}

void test_barrier(struct rank *self)
{
    struct control *control = harness_control();
    uint32_t generation = atomic_load(&control->generation);
    atomic_fetch_add(&control->arrived, 1);
    open_barrier(control, self->n_ranks);
    while (atomic_load(&control->generation) == generation) {
        /* In this order: a rank that left after the barrier moved on has moved it on. */
        bool has_somebody_left = atomic_load(&control->n_left) > 0;
        if (has_somebody_left && atomic_load(&control->generation) == generation) {
            test_failed(__FILE__, __LINE__, "rank %d waits in test_barrier, but rank %d has ended",
                        self->rank, atomic_load(&control->first_left) - 1);
            return;
        }
        struct timespec nap = {.tv_nsec = BARRIER_NAP_NS};
        (void)syscall(SYS_futex, &control->generation, FUTEX_WAIT, generation, &nap, NULL, 0);
        /* Somebody may have been given up since. */
        open_barrier(control, self->n_ranks);
    }
}
