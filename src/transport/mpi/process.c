/* SPDX-License-Identifier: MIT */
/*
 * MPI belongs to the process: it is initialised once and finalised once. Where Shoal initialises it, a thread of the module
 * does both, because MPI wants both from one thread, and a world may be closed by another thread than opened it. It
 * finalises when the process exits, so that a process can open one world after another.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/wait.h"
#include "transport/mpi/mpi.h"

/* What the keeper, the thread that initialises, has come to. */
enum keeper_state {
    KEEPER_NONE,
    KEEPER_INITIALISES,
    KEEPER_WAITS,
    KEEPER_FINALISES,
    KEEPER_HAS_FINALISED
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of starting the keeper */
static _Atomic uint32_t keeper_state;
static int init_error; /* written before KEEPER_WAITS */
static pid_t keeper_process;
static _Atomic bool has_failed;
static _Atomic int n_worlds;

void process_fail(void)
{
    atomic_store(&has_failed, true);
}

bool process_has_failed(void)
{
    return atomic_load(&has_failed);
}

void process_count_worlds(int change)
{
    atomic_fetch_add(&n_worlds, change);
}

static void set_state(enum keeper_state state)
{
    atomic_store(&keeper_state, (uint32_t)state);
    mpi_services->wake_all(&keeper_state, /*is_shared=*/false);
}

/* The path of the library that holds a function. */
static const char *file_of(void *address)
{
    Dl_info info;
    return address && dladdr(address, &info) != 0 ? info.dli_fname : NULL;
}

static const char *library_file(void)
{
    int (*function)(int *, char ***) = MPI_Init;
    /* The one way from a function pointer to an object pointer that works with dladdr. */
    return file_of(*(void **)&function);
}

/*
 * mpirun of MPICH that goes on after a death tells the others by SIGUSR1, and the next call of MPICH that hears of it
 * ends the process. Shoal learns of deaths by itself. A handler of the application's is not touched.
 */
static void ignore_deaths(void)
{
    struct sigaction action;
    const char *library = library_file();
    if (sigaction(SIGUSR1, NULL, &action) != 0 || (action.sa_flags & SA_SIGINFO) != 0 || !library) {
        return;
    }
    const char *file = file_of(*(void **)&action.sa_handler);
    if (file && strcmp(file, library) == 0) {
        action.sa_handler = SIG_IGN;
        (void)sigaction(SIGUSR1, &action, NULL);
    }
}

/* The components of Open MPI before 3.0 are not linked with the libraries that they need. */
static void reopen_global(void)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int length = 0;
    (void)MPI_Get_library_version(version, &length);
    bool is_old = strncmp(version, "Open MPI v1.", 12) == 0 || strncmp(version, "Open MPI v2.", 12) == 0;
    bool is_asked = strcmp(mpi_services->variable("MPI_GLOBAL"), "1") == 0;
    const char *library = library_file();
    if ((is_old || is_asked) && library) {
        (void)dlopen(library, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    }
}

static void *keep(void *context)
{
    (void)context;
    int level = MPI_THREAD_SINGLE;
    reopen_global();
    init_error = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    set_state(KEEPER_WAITS);
    while (atomic_load(&keeper_state) == KEEPER_WAITS) {
        struct wait_options options = {.deadline_ns = INT64_MAX, .what = "the end of the process"};
        (void)mpi_services->wait_while_equal(&keeper_state, KEEPER_WAITS, &options);
    }
    if (init_error == MPI_SUCCESS) {
        (void)MPI_Finalize();
    }
    set_state(KEEPER_HAS_FINALISED);
    return NULL;
}

/*
 * At exit. Not after a failure, nor while a world is open: MPI_Finalize would wait for ranks that do not come. It may wait
 * for ranks that go on after they have closed their worlds, as in every program that uses MPI: launchers end a job in
 * which a rank exits without it.
 */
static void finalise(void)
{
    if (getpid() != keeper_process || process_has_failed() || atomic_load(&n_worlds) > 0 ||
        atomic_load(&keeper_state) != KEEPER_WAITS) {
        return;
    }
    set_state(KEEPER_FINALISES);
    while (atomic_load(&keeper_state) == KEEPER_FINALISES) {
        struct wait_options options = {.deadline_ns = INT64_MAX, .what = "MPI_Finalize"};
        (void)mpi_services->wait_while_equal(&keeper_state, KEEPER_FINALISES, &options);
    }
}

static shoal_status start_keeper(void)
{
    sigset_t all;
    sigset_t old;
    pthread_t thread;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &old);
    atomic_store(&keeper_state, KEEPER_INITIALISES);
    keeper_process = getpid();
    int error = pthread_create(&thread, NULL, keep, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error != 0) {
        atomic_store(&keeper_state, KEEPER_NONE);
        return mpi_services->set_error(SHOAL_ERR_SYSTEM, "the thread that initialises MPI: %s",
                                       strerror(error));
    }
    (void)pthread_detach(thread);
    return SHOAL_OK;
}

/* Until MPI is initialised: other ranks may never come. */
static shoal_status await_keeper(int64_t deadline_ns)
{
    while (atomic_load(&keeper_state) == KEEPER_INITIALISES) {
        struct wait_options options = {.deadline_ns = deadline_ns, .what = "MPI_Init on all ranks"};
        shoal_status status = mpi_services->wait_while_equal(&keeper_state, KEEPER_INITIALISES, &options);
        if (status != SHOAL_OK) {
            process_fail();
            return status;
        }
    }
    return init_error == MPI_SUCCESS
               ? SHOAL_OK
               : mpi_services->set_error(SHOAL_ERR_SYSTEM, "MPI_Init_thread fails with %d", init_error);
}

/* Under the lock. */
static shoal_status begin(int64_t deadline_ns, bool *is_own_out)
{
    int is_initialised = 0;
    int is_finalised = 0;
    if (atomic_load(&keeper_state) == KEEPER_NONE) {
        (void)MPI_Initialized(&is_initialised);
        (void)MPI_Finalized(&is_finalised);
        if (is_finalised) {
            return mpi_services->set_error(SHOAL_ERR_STATE, "the process has called MPI_Finalize");
        }
        *is_own_out = false;
        if (is_initialised) {
            return SHOAL_OK;
        }
        shoal_status status = start_keeper();
        if (status == SHOAL_OK && atexit(finalise) != 0) {
            mpi_services->log(SHOAL_LOG_WARN, "no room for an exit handler: MPI will not be finalised");
        }
        if (status != SHOAL_OK) {
            return status;
        }
    }
    if (getpid() != keeper_process) {
        return mpi_services->set_error(SHOAL_ERR_STATE, "the process was forked from one that uses MPI");
    }
    *is_own_out = true;
    return await_keeper(deadline_ns);
}

shoal_status process_begin(int64_t deadline_ns, bool *is_own_out)
{
    (void)pthread_mutex_lock(&lock);
    shoal_status status =
        process_has_failed()
            ? mpi_services->set_error(SHOAL_ERR_STATE, "an earlier world of this process has failed, and "
                                                       "MPI is not called any more after a failure")
            : begin(deadline_ns, is_own_out);
    if (status == SHOAL_OK) {
        ignore_deaths();
    }
    (void)pthread_mutex_unlock(&lock);
    return status;
}
