/* SPDX-License-Identifier: MIT */
/*
 * A program that uses MPI itself and gives Shoal its communicator: the scripts of tests/procs/mpi run it under both mpiruns.
 *
 *     mpi_world MODE
 *
 * MODE is a row of `modes`. Prints "rank R: ok", or the error of Shoal, and then ends with status 1.
 */
#include <mpi.h>

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/shoal.h"

enum {
    LARGE = 300000,
    ROUNDS = 8,
    STAY_SECONDS = 5 /* longer than the others are told to wait */
};

struct mode {
    const char *name;
    int level; /* asked of MPI_Init_thread; -1: MPI is left to Shoal */
    int has_lock;
    int calls_progress;
    int splits;     /* the communicator is every second rank */
    int n_ranks;    /* added to the number that is given; 0: none is given */
    int is_null;    /* MPI_COMM_NULL */
    int is_both;    /* an exchange too */
    int is_default; /* no transport is asked for */
    int is_brief;   /* start-up may take 2 s */
    int dies;       /* the last rank kills itself in the middle */
    int keeps_lock; /* when it has died, a thread waits for it in MPI, with the lock */
    int stays;      /* the last rank goes on after it has closed its world */
    int dies_late;  /* it kills itself instead */
    int finalizes;  /* MPI_Finalize before the world is closed */
    int is_newer;   /* the last rank has another version of MPI */
    int spawns;     /* two more processes, which run the program with "multiple" */
    int forks;      /* in the middle, children that try to open a world on MPI */
    int is_forked;  /* all is done in a child, which was forked before MPI is initialized */
};

static const struct mode modes[] = {
    {.name = "multiple", .level = MPI_THREAD_MULTIPLE},
    {.name = "single", .level = MPI_THREAD_SINGLE},
    {.name = "funneled", .level = MPI_THREAD_FUNNELED},
    {.name = "serialized", .level = MPI_THREAD_SERIALIZED},
    {.name = "serialized_lock", .level = MPI_THREAD_SERIALIZED, .has_lock = 1},
    {.name = "serialized_progress", .level = MPI_THREAD_SERIALIZED, .calls_progress = 1},
    {.name = "funneled_progress", .level = MPI_THREAD_FUNNELED, .calls_progress = 1},
    {.name = "split", .level = MPI_THREAD_MULTIPLE, .splits = 1},
    {.name = "count", .level = MPI_THREAD_MULTIPLE, .n_ranks = 1},
    {.name = "null", .level = MPI_THREAD_MULTIPLE, .is_null = 1},
    {.name = "both", .level = MPI_THREAD_MULTIPLE, .is_both = 1},
    {.name = "default", .level = MPI_THREAD_MULTIPLE, .is_default = 1},
    {.name = "brief", .level = -1, .is_default = 1, .is_brief = 1},
    {.name = "dies", .level = -1, .dies = 1},
    {.name = "dies_foreign", .level = MPI_THREAD_MULTIPLE, .dies = 1},
    {.name = "dies_locked", .level = MPI_THREAD_SERIALIZED, .has_lock = 1, .dies = 1, .keeps_lock = 1},
    {.name = "twice", .level = -1},
    {.name = "stays", .level = -1, .stays = 1},
    {.name = "dies_late", .level = -1, .dies_late = 1},
    {.name = "finalizes", .level = MPI_THREAD_MULTIPLE, .finalizes = 1},
    {.name = "finalizes_locked", .level = MPI_THREAD_SERIALIZED, .has_lock = 1, .finalizes = 1},
    {.name = "finalizes_progress", .level = MPI_THREAD_FUNNELED, .calls_progress = 1, .finalizes = 1},
    {.name = "version", .level = MPI_THREAD_MULTIPLE, .is_newer = 1},
    {.name = "spawns", .level = MPI_THREAD_MULTIPLE, .spawns = 1},
    {.name = "forks", .level = MPI_THREAD_MULTIPLE, .forks = 1},
    {.name = "forks_own", .level = -1, .forks = 1},
    {.name = "forked", .level = MPI_THREAD_MULTIPLE, .is_forked = 1},
};

static pthread_mutex_t mpi_mutex = PTHREAD_MUTEX_INITIALIZER;

static void lock(void *context)
{
    (void)pthread_mutex_lock(context);
}

static void unlock(void *context)
{
    (void)pthread_mutex_unlock(context);
}

static int is_newer;

/* In front of the library's own. */
int MPI_Get_library_version(char *text, int *length)
{
    int error = PMPI_Get_library_version(text, length);
    char *digit = strpbrk(text, "123456789");
    if (is_newer && digit) {
        *digit = '9';
    }
    return error;
}

static int exchange(void *context, const void *in, void *out_all, size_t bytes)
{
    return MPI_Allgather(in, (int)bytes, MPI_BYTE, out_all, (int)bytes, MPI_BYTE, *(MPI_Comm *)context);
}

static int fail(const char *what)
{
    (void)fprintf(stderr, "%s: %s\n", what, shoal_error_text());
    return 1;
}

/* A collective that is started, and tested until it has ended. */
static int run_started(const struct mode *mode, shoal_world *world, float *values, int n_ranks)
{
    shoal_work *work;
    int is_done = 0;
    if (shoal_group_all_reduce_start(shoal_world_group(world), values, values, LARGE, SHOAL_F32, SHOAL_SUM,
                                     &work) != SHOAL_OK) {
        return fail("start");
    }
    while (!is_done) {
        if (mode->calls_progress && shoal_world_progress(world) != SHOAL_OK) {
            return fail("progress");
        }
        is_done = shoal_work_test(work);
    }
    shoal_status status = shoal_work_wait(work, /*timeout_s=*/-1);
    shoal_work_free(work);
    return status != SHOAL_OK || values[LARGE - 1] != (float)n_ranks ? fail("started") : 0;
}

static pthread_barrier_t is_locked;

/* Waits for a message that never comes. */
static void *keep_lock(void *context)
{
    char byte;
    int n_ranks;
    MPI_Comm comm = *(MPI_Comm *)context;
    lock(&mpi_mutex);
    MPI_Comm_size(comm, &n_ranks);
    (void)pthread_barrier_wait(&is_locked);
    MPI_Recv(&byte, 1, MPI_BYTE, n_ranks - 1, 0, comm, MPI_STATUS_IGNORE);
    unlock(&mpi_mutex);
    return NULL;
}

static void start_keeping(MPI_Comm comm)
{
    static MPI_Comm kept;
    pthread_t thread;
    kept = comm;
    (void)pthread_barrier_init(&is_locked, NULL, 2);
    if (pthread_create(&thread, NULL, keep_lock, &kept) == 0) {
        (void)pthread_barrier_wait(&is_locked);
    }
}

/* The child must be refused before it calls MPI, which its parent goes on to use. */
static int fork_child(const struct mode *mode)
{
    pid_t child = fork();
    int ended = 0;
    if (child == 0) {
        MPI_Comm self = MPI_COMM_SELF;
        shoal_world *world;
        shoal_world_options options = {.struct_size = sizeof options,
                                       .transport = "mpi",
                                       .mpi_comm = mode->level < 0 ? NULL : &self,
                                       .startup_timeout_s = 20};
        shoal_status status = shoal_world_open(&options, &world);
        printf("child: %s: %s\n", shoal_status_name(status), shoal_error_text());
        (void)fflush(stdout);
        _exit(status == SHOAL_ERR_STATE ? 0 : 1);
    }
    return child > 0 && waitpid(child, &ended, 0) == child && ended == 0 ? 0 : fail("the child");
}

static int run(const struct mode *mode, shoal_world *world, MPI_Comm comm)
{
    static float values[LARGE];
    int n_ranks = shoal_world_n_ranks(world);
    shoal_group *all = shoal_world_group(world);
    for (int round = 0; round < ROUNDS; round++) {
        float small[2] = {1, (float)shoal_world_rank(world)};
        if (mode->dies && round == ROUNDS / 2 && shoal_world_rank(world) == n_ranks - 1) {
            (void)kill(getpid(), SIGKILL);
        }
        if (mode->keeps_lock && round == ROUNDS / 2) {
            start_keeping(comm);
        }
        if (mode->forks && round == ROUNDS / 2 && fork_child(mode) != 0) {
            return 1;
        }
        if (shoal_group_all_reduce(all, small, small, 2, SHOAL_F32, SHOAL_SUM) != SHOAL_OK) {
            return fail("small");
        }
        for (int i = 0; i < LARGE; i++) {
            values[i] = 1;
        }
        if (shoal_group_all_reduce(all, values, values, LARGE, SHOAL_F32, SHOAL_SUM) != SHOAL_OK) {
            return fail("large");
        }
        if (small[0] != (float)n_ranks || values[LARGE / 2] != (float)n_ranks) {
            return fail("wrong sums");
        }
        if (mode->has_lock) {
            lock(&mpi_mutex);
            MPI_Barrier(comm);
            unlock(&mpi_mutex);
        }
    }
    for (int i = 0; i < LARGE; i++) {
        values[i] = 1;
    }
    return run_started(mode, world, values, n_ranks);
}

/* Too early: what comes after it fails, and nothing crashes or hangs. */
static void finalize_first(const struct mode *mode, shoal_world *world)
{
    float value = 1;
    if (mode->has_lock) {
        lock(&mpi_mutex);
    }
    MPI_Finalize();
    if (mode->has_lock) {
        unlock(&mpi_mutex);
    }
    shoal_status status =
        shoal_group_all_reduce(shoal_world_group(world), &value, &value, 1, SHOAL_F32, SHOAL_SUM);
    printf("after MPI_Finalize: %s: %s\n", shoal_status_name(status), shoal_error_text());
}

static int open_and_run(const struct mode *mode, MPI_Comm comm)
{
    shoal_world_options options = {.struct_size = sizeof options,
                                   .transport = mode->is_default ? NULL : "mpi",
                                   .mpi_comm = mode->level < 0 ? NULL : &comm,
                                   .startup_timeout_s = mode->is_brief ? 2 : 20,
                                   .timeout_s = 20,
                                   .mpi_progress = mode->calls_progress};
    shoal_world *world;
    if (mode->has_lock) {
        options.mpi_lock = lock;
        options.mpi_unlock = unlock;
        options.mpi_lock_context = &mpi_mutex;
    }
    if (mode->n_ranks) {
        MPI_Comm_size(comm, &options.n_ranks);
        MPI_Comm_rank(comm, &options.rank);
        options.n_ranks += mode->n_ranks;
    }
    if (mode->is_both) {
        options.exchange = exchange;
    }
    if (shoal_world_open(&options, &world) != SHOAL_OK) {
        return fail("open");
    }
    int result = run(mode, world, comm);
    int rank = shoal_world_rank(world);
    int is_last = rank == shoal_world_n_ranks(world) - 1;
    if (mode->finalizes) {
        finalize_first(mode, world);
    }
    shoal_status status = shoal_world_close(world);
    if (status != SHOAL_OK) {
        return fail(status == SHOAL_ERR_STATE ? "close: SHOAL_ERR_STATE" : "close");
    }
    if (result == 0) {
        printf("rank %d: ok\n", rank);
        (void)fflush(stdout);
    }
    if (mode->dies_late && is_last) {
        (void)kill(getpid(), SIGKILL);
    }
    if (mode->stays && is_last) {
        (void)poll(NULL, 0, STAY_SECONDS * 1000);
    }
    return result;
}

/* The application's error handlers are its own. */
static int check_handlers(void)
{
    const MPI_Comm comms[] = {MPI_COMM_WORLD, MPI_COMM_SELF};
    for (size_t i = 0; i < sizeof comms / sizeof comms[0]; i++) {
        MPI_Errhandler handler;
        MPI_Comm_get_errhandler(comms[i], &handler);
        if (handler != MPI_ERRORS_ARE_FATAL) {
            return fail("another error handler");
        }
    }
    return 0;
}

static void spawn(const char *program)
{
    char argument[] = "multiple";
    char *arguments[] = {argument, NULL};
    MPI_Comm children;
    MPI_Comm_spawn(program, arguments, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children, MPI_ERRCODES_IGNORE);
    MPI_Comm_disconnect(&children);
}

/* Those that were spawned leave their parents first: MPI_Finalize would wait for these. */
static void leave_parents(void)
{
    MPI_Comm parents;
    MPI_Comm_get_parent(&parents);
    if (parents != MPI_COMM_NULL) {
        MPI_Comm_disconnect(&parents);
    }
}

static int run_mode(const struct mode *mode, const char *program)
{
    if (mode->level < 0) {
        int result = open_and_run(mode, MPI_COMM_NULL);
        return result == 0 && strcmp(mode->name, "twice") == 0 ? open_and_run(mode, MPI_COMM_NULL) : result;
    }
    int level;
    int rank;
    MPI_Comm comm = MPI_COMM_WORLD;
    MPI_Init_thread(NULL, NULL, mode->level, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int n_ranks;
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    is_newer = mode->is_newer && rank == n_ranks - 1;
    leave_parents();
    if (mode->spawns) {
        spawn(program);
    }
    if (mode->splits) {
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &comm);
    }
    int result = open_and_run(mode, mode->is_null ? MPI_COMM_NULL : comm);
    if (mode->dies) {
        /* As docs/cluster.md says: after a failure MPI is not called any more. */
        _exit(result);
    }
    if (mode->finalizes) {
        return result;
    }
    result = result == 0 ? check_handlers() : result;
    MPI_Finalize();
    return result;
}

/* The module is loaded in the parent, which does not initialize MPI. */
static int run_forked(const struct mode *mode, const char *program)
{
    MPI_Comm comm = MPI_COMM_WORLD;
    shoal_world_options options = {.struct_size = sizeof options, .mpi_comm = &comm};
    shoal_world *world;
    int ended = 0;
    if (shoal_world_open(&options, &world) == SHOAL_OK) {
        return fail("opened without MPI");
    }
    printf("parent: %s\n", shoal_error_text());
    (void)fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        exit(run_mode(mode, program));
    }
    return child > 0 && waitpid(child, &ended, 0) == child && ended == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        if (argc == 2 && strcmp(argv[1], modes[i].name) == 0) {
            return modes[i].is_forked ? run_forked(&modes[i], argv[0]) : run_mode(&modes[i], argv[0]);
        }
    }
    (void)fprintf(stderr, "usage: mpi_world MODE\n");
    return 2;
}
