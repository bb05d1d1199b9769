/* SPDX-License-Identifier: MIT */
/*
 * MPI belongs to the process: it is initialized once and finalized once. If Shoal initializes it, a thread of the
 * module, the keeper, does both, because MPI requires both from one thread, and a world may be closed by another thread
 * than the one that opened it. The keeper finalizes MPI when the process exits, so that a process can open one world
 * after another.
 *
 * An application that initialized MPI itself may finalize it too early, while other threads are in it. MPI_Finalize
 * begins by deleting the attributes of MPI_COMM_SELF. One of them is the module's, and its delete function makes sure
 * that nobody calls MPI from then on. It stores `has_failed` and then reads `n_inside`; callers count up `n_inside` and
 * then read `has_failed`. All four are sequentially consistent, so either the caller sees that it must not call, or the
 * delete function sees the caller and waits for it. For MPICH this may be too late: docs/design/mpi.md.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/wait.h"
#include "transport/mpi/mpi.h"

/* What the keeper is doing. */
enum keeper_state {
    KEEPER_NONE,
    KEEPER_INITIALISES,
    KEEPER_WAITS, /* for the exit of the process */
    KEEPER_MEETS, /* waits until all ranks want to finalize */
    KEEPER_FINALISES,
    KEEPER_HAS_FINALISED,
    KEEPER_IS_ALONE /* not all ranks have arrived: MPI is not finalized */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held while the keeper is started */
static _Atomic uint32_t keeper_state;
static int init_error;         /* written before KEEPER_WAITS */
static bool watches_forks;     /* under the lock */
static _Atomic bool is_begun;  /* MPI was in use in this process when it last forked */
static _Atomic bool is_forked; /* from a process in which MPI was in use */
static _Atomic bool has_failed;
static _Atomic int n_worlds;
static _Atomic int n_inside; /* threads that are in a call of MPI */
static _Atomic bool is_finalised_early;
static bool awaits_finalize;             /* under the lock */
static shoal_status (*exit_check)(void); /* under the lock, like the next */
static void (*exit_end)(void);
static _Atomic bool has_hosts;   /* a world had ranks on several hosts */
static int64_t meet_deadline_ns; /* written before KEEPER_MEETS */
/* Why MPI was not finalized; written before KEEPER_IS_ALONE. */
static char alone_text[256] = "not all ranks have reached it";

/*
 * How long a process that exits waits for the other ranks to exit too, and how long it then waits for MPI_Finalize,
 * which should return at once. SHOAL_TRANSPORT_MPI_FINALIZE_SECONDS replaces both.
 */
#define MEET_SECONDS 600
#define FINALISE_SECONDS 10
#define NS_PER_S INT64_C(1000000000)
/* Between two tests whether all ranks have arrived; and the pause between that and MPI_Finalize: see meet. */
#define MEET_NAP_NS INT64_C(100000)
#define QUIET_NS INT64_C(100000000)
/* Between two checks whether all ranks are alive. */
#define LOOK_NS INT64_C(100000000)
/* How long the application's MPI_Finalize is held up for threads that are in calls of MPI, none of which blocks. */
#define INSIDE_SECONDS 2.0
#define INSIDE_NAP_NS 20000

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

bool process_enter(void)
{
    atomic_fetch_add(&n_inside, 1);
    if (atomic_load(&has_failed)) {
        atomic_fetch_sub(&n_inside, 1);
        return false;
    }
    return true;
}

void process_leave(void)
{
    atomic_fetch_sub(&n_inside, 1);
}

bool process_is_finalised(void)
{
    int is_finalised = 0;
    (void)MPI_Finalized(&is_finalised);
    return is_finalised != 0;
}

bool process_is_finalised_early(void)
{
    return atomic_load(&is_finalised_early);
}

/* Called by MPI when the application's MPI_Finalize begins. */
static int hear_finalize(MPI_Comm comm, int keyval, void *value, void *state)
{
    (void)comm;
    (void)keyval;
    (void)value;
    (void)state;
    if (atomic_load(&n_worlds) == 0) {
        return MPI_SUCCESS;
    }
    atomic_store(&is_finalised_early, true);
    process_fail();
    mpi_services->log(SHOAL_LOG_ERROR, "%s", PROCESS_ORDER);
    int64_t deadline_ns = mpi_services->deadline_after(INSIDE_SECONDS);
    while (atomic_load(&n_inside) > 0 && mpi_services->now_ns() < deadline_ns) {
        mpi_services->sleep(INSIDE_NAP_NS);
    }
    return MPI_SUCCESS;
}

void process_await_finalize(void)
{
    (void)pthread_mutex_lock(&lock);
    int keyval = MPI_KEYVAL_INVALID;
    if (!awaits_finalize &&
        MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, hear_finalize, &keyval, NULL) == MPI_SUCCESS) {
        awaits_finalize = MPI_Comm_set_attr(MPI_COMM_SELF, keyval, NULL) == MPI_SUCCESS;
        (void)MPI_Comm_free_keyval(&keyval); /* lives as long as the attribute */
    }
    (void)pthread_mutex_unlock(&lock);
}

void process_set_exit(shoal_status (*check)(void), void (*end)(void))
{
    (void)pthread_mutex_lock(&lock);
    exit_check = check;
    exit_end = end;
    (void)pthread_mutex_unlock(&lock);
}

void process_note_hosts(void)
{
    atomic_store(&has_hosts, true);
}

/*
 * A child of fork has copies of the connections and of the shared memory of its parent's MPI, and would ruin both if it
 * called MPI. In the child MPI looks initialized, as it does in one that has initialized MPI itself after the fork. So
 * the parent looks before it forks; MPI_Initialized may be called by any thread at any time.
 */
static void look_before_fork(void)
{
    /* Not asked while the keeper initializes MPI: some older versions of Open MPI fork, or hold a lock, meanwhile. */
    int is_initialised = atomic_load(&keeper_state) != KEEPER_NONE;
    if (!is_initialised) {
        (void)MPI_Initialized(&is_initialised);
    }
    if (is_initialised) {
        atomic_store(&is_begun, true);
    }
}

static void note_fork(void)
{
    atomic_store(&is_forked, atomic_load(&is_begun));
}

/* Under the lock. The module is never unloaded, so the handlers may stay. */
static shoal_status watch_forks(void)
{
    int error = watches_forks ? 0 : pthread_atfork(look_before_fork, NULL, note_fork);
    watches_forks = error == 0;
    return error == 0
               ? SHOAL_OK
               : mpi_services->set_error(SHOAL_ERR_NO_MEMORY, "pthread_atfork failed: %s", strerror(error));
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
 * If mpirun of MPICH goes on after the death of a rank, it sends SIGUSR1 to the others, and MPICH ends the process in
 * its next call. Shoal notices deaths by itself, so the handler of MPICH is replaced. A handler of the application
 * stays.
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

/* Components of Open MPI before 3.0 are not linked with the libraries they need: MPI's symbols must be global for
   them. */
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

/* When a wait that begins now ends: after `seconds`, or after as many as the environment says. */
static int64_t end_of_wait(int64_t seconds)
{
    const char *text = mpi_services->variable("MPI_FINALIZE_SECONDS");
    char *end = NULL;
    long asked = strtol(text, &end, 10);
    bool is_asked = end != text && *end == '\0' && asked >= 0 && asked <= 86400;
    return mpi_services->now_ns() + (is_asked ? asked : seconds) * NS_PER_S;
}

static bool is_mpich(void)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int length = 0;
    (void)MPI_Get_library_version(version, &length);
    return strncmp(version, "MPICH", 5) == 0;
}

/* Returns false if a rank has ended without finalizing MPI. */
static bool all_live(void)
{
    if (!exit_check || exit_check() == SHOAL_OK) {
        return true;
    }
    (void)snprintf(alone_text, sizeof alone_text, "%s", mpi_services->error_text());
    mpi_services->error_clear();
    return false;
}

/*
 * Waits until all ranks want to finalize MPI; false if that does not happen. All ranks have to call MPI_Finalize or
 * none may, and a rank whose world has failed does not call it.
 *
 * MPICH before 4.2 on UCX needs more. In its MPI_Finalize each rank asks all peers to confirm the end of their
 * connections. When it has all answers, it waits in a barrier of the launcher, in which it answers nobody, so a rank
 * that asks later hangs. Connections keep the order of what is sent. So all is well if every rank asks before it
 * answers; a rank that still waits here would answer first. Therefore nobody calls MPI for a while after the meeting,
 * until all ranks know that it is over and begin MPI_Finalize.
 */
static bool meet(void)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int is_done = 0;
    bool is_worth_it = true;
    int error = MPI_Ibarrier(MPI_COMM_WORLD, &request);
    int64_t look_ns = 0;
    while (error == MPI_SUCCESS && !is_done && is_worth_it) {
        error = MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
        int64_t now_ns = mpi_services->now_ns();
        if (!is_done && now_ns >= look_ns) {
            look_ns = now_ns + LOOK_NS;
            is_worth_it = now_ns < meet_deadline_ns && all_live();
        }
        if (!is_done) {
            mpi_services->sleep(MEET_NAP_NS);
        }
    }
    bool is_met = error == MPI_SUCCESS && is_done;
    if (is_met && atomic_load(&has_hosts) && is_mpich()) {
        mpi_services->sleep(QUIET_NS);
    }
    return is_met;
}

static void *keep(void *context)
{
    (void)context;
    int level = MPI_THREAD_SINGLE;
    reopen_global();
    init_error = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (init_error == MPI_SUCCESS) {
        /* Errors of requests are raised on these. Only done if Shoal initialized MPI: the application's settings
           stay. */
        (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        (void)MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    }
    set_state(KEEPER_WAITS);
    while (atomic_load(&keeper_state) == KEEPER_WAITS) {
        struct wait_options options = {.deadline_ns = INT64_MAX, .what = "the end of the process"};
        (void)mpi_services->wait_while_equal(&keeper_state, KEEPER_WAITS, &options);
    }
    if (init_error != MPI_SUCCESS || !meet()) {
        set_state(KEEPER_IS_ALONE);
        return NULL;
    }
    set_state(KEEPER_FINALISES);
    (void)MPI_Finalize();
    set_state(KEEPER_HAS_FINALISED);
    return NULL;
}

/* Waits until the keeper is no longer in `state`, or the deadline has passed. */
static void await_state(enum keeper_state state, int64_t deadline_ns)
{
    struct wait_options options = {.deadline_ns = deadline_ns, .what = "the end of MPI"};
    if (mpi_services->wait_while_equal(&keeper_state, (uint32_t)state, &options) != SHOAL_OK) {
        mpi_services->error_clear();
    }
}

/*
 * Finalizes MPI when the process exits. Not after a failure, nor while a world is open: MPI_Finalize would wait for
 * ranks that never call it. Like every program that uses MPI, it waits for ranks that go on after they have closed
 * their worlds, because launchers end a job in which a rank exits without MPI_Finalize. The wait has a limit.
 */
static void finalise(void)
{
    if (atomic_load(&is_forked) || process_has_failed() || atomic_load(&n_worlds) > 0 ||
        atomic_load(&keeper_state) != KEEPER_WAITS || init_error != MPI_SUCCESS || process_is_finalised()) {
        return;
    }
    meet_deadline_ns = end_of_wait(MEET_SECONDS);
    set_state(KEEPER_MEETS);
    await_state(KEEPER_MEETS, meet_deadline_ns + NS_PER_S);
    await_state(KEEPER_FINALISES, end_of_wait(FINALISE_SECONDS));
    uint32_t state = atomic_load(&keeper_state);
    if (state != KEEPER_HAS_FINALISED) {
        process_fail();
        mpi_services->log(SHOAL_LOG_WARN, "the process exits without MPI_Finalize: %s",
                          state == KEEPER_FINALISES ? "it does not return" : alone_text);
    }
    if (exit_end) {
        exit_end();
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
    int error = pthread_create(&thread, NULL, keep, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error != 0) {
        atomic_store(&keeper_state, KEEPER_NONE);
        return mpi_services->set_error(SHOAL_ERR_SYSTEM, "the thread that initializes MPI: %s",
                                       strerror(error));
    }
    (void)pthread_detach(thread);
    return SHOAL_OK;
}

/* Waits until MPI is initialized, with a deadline: other ranks may never start. */
static shoal_status await_keeper(const struct mpi_options *start)
{
    while (atomic_load(&keeper_state) == KEEPER_INITIALISES) {
        struct wait_options options = {.deadline_ns = start->deadline_ns,
                                       .liveness = start->check,
                                       .liveness_context = start->check_context,
                                       .what = "MPI_Init on all ranks, which must all use transport mpi"};
        shoal_status status = mpi_services->wait_while_equal(&keeper_state, KEEPER_INITIALISES, &options);
        if (status != SHOAL_OK) {
            process_fail();
            return status;
        }
    }
    return init_error == MPI_SUCCESS
               ? SHOAL_OK
               : mpi_services->set_error(SHOAL_ERR_SYSTEM, "MPI_Init_thread failed with error %d",
                                         init_error);
}

/* Under the lock. */
static shoal_status begin(const struct mpi_options *options, bool *is_own_out)
{
    int is_initialised = 0;
    shoal_status status = watch_forks();
    if (status != SHOAL_OK) {
        return status;
    }
    if (atomic_load(&keeper_state) == KEEPER_NONE) {
        (void)MPI_Initialized(&is_initialised);
        if (process_is_finalised()) {
            return mpi_services->set_error(SHOAL_ERR_STATE, "the process has called MPI_Finalize");
        }
        *is_own_out = false;
        if (is_initialised) {
            return SHOAL_OK;
        }
        if (options->comm) {
            return mpi_services->set_error(SHOAL_ERR_STATE, "mpi_comm is given, but MPI is not initialized");
        }
        status = start_keeper();
        if (status == SHOAL_OK && atexit(finalise) != 0) {
            mpi_services->log(SHOAL_LOG_WARN, "no room for an exit handler: MPI will not be finalized");
        }
        if (status != SHOAL_OK) {
            return status;
        }
    }
    *is_own_out = true;
    return await_keeper(options);
}

shoal_status process_begin(const struct mpi_options *options, bool *is_own_out)
{
    /* Before the lock, which another thread may have held when the process forked. */
    if (atomic_load(&is_forked)) {
        return mpi_services->set_error(
            SHOAL_ERR_STATE,
            "process %d was forked from one that uses MPI, and cannot call MPI: fork "
            "before MPI is initialized, or execute a program",
            (int)getpid());
    }
    (void)pthread_mutex_lock(&lock);
    shoal_status status =
        process_has_failed()
            ? mpi_services->set_error(SHOAL_ERR_STATE, "an earlier world of this process has failed, and "
                                                       "MPI is not called any more after a failure")
            : begin(options, is_own_out);
    if (status == SHOAL_OK) {
        ignore_deaths();
    }
    (void)pthread_mutex_unlock(&lock);
    return status;
}
