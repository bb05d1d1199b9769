/* SPDX-License-Identifier: MIT */
/*
 * The pool of threads; see pool.h. One caller at a time uses the pool. A caller that finds it in use, or that is itself
 * a body that the pool runs, runs its parts on its own thread. Threads are created when they are first needed, and
 * sleep on a condition variable.
 *
 * A job is open while its caller takes parts. Threads join an open job. When no part is left, the caller closes the job
 * and waits for the threads that joined. A thread that wakes up late finds the job closed and sleeps again; the caller
 * does not wait for it.
 */
#include "math/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "shoal/fp_mode.h"
#include "shoal/op.h"
#include "shoal_nn/nn.h"

/* How many ----------------------------------------------------------------------------------------------- */

/* What every loop uses; 0 until somebody sets it or the first loop asks. */
static _Atomic int n_threads_wanted;

/* Where launchers say how many ranks they started on this host. The first that is there counts. */
static const char *const local_rank_variables[] = {"SHOAL_RANKS", "LOCAL_WORLD_SIZE",
                                                   "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                                   "SLURM_STEP_NUM_TASKS"};

/* The number from 1 up that a variable holds; 0 if there is none. */
static int read_number(const char *name)
{
    const char *text = getenv(name);
    char *end;
    if (!text || text[0] < '0' || text[0] > '9') {
        return 0;
    }
    long number = strtol(text, &end, 10);
    return *end == '\0' && number >= 1 && number <= 65536 ? (int)number : 0;
}

int nn_threads_default(int n_processors)
{
    int n_asked = read_number("SHOAL_NN_THREADS");
    n_asked = n_asked > 0 ? n_asked : read_number("OPENBLAS_NUM_THREADS");
    if (n_asked > 0) {
        return n_asked;
    }
    int n_ranks = 0;
    for (size_t i = 0; n_ranks == 0 && i < sizeof(local_rank_variables) / sizeof(local_rank_variables[0]);
         i++) {
        n_ranks = read_number(local_rank_variables[i]);
    }
    int n_threads = n_ranks > 0 ? n_processors / n_ranks : n_processors;
    return n_threads > 0 ? n_threads : 1;
}

static int count_processors(void)
{
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

int nn_threads(void)
{
    /* Relaxed, here and below: the number stands for itself. */
    int n_threads = atomic_load_explicit(&n_threads_wanted, memory_order_relaxed);
    if (n_threads == 0) {
        n_threads = nn_threads_default(count_processors());
        atomic_store_explicit(&n_threads_wanted, n_threads, memory_order_relaxed);
    }
    return n_threads;
}

shoal_status shoal_nn_set_threads(int n_threads)
{
    if (n_threads < 0 || n_threads > 65536) {
        return shoal_fail(SHOAL_ERR_INVALID, "nn_set_threads: n_threads: %d is not within 0..65536",
                          n_threads);
    }
    atomic_store_explicit(&n_threads_wanted, n_threads, memory_order_relaxed);
    return SHOAL_OK;
}

/* Jobs --------------------------------------------------------------------------------------------------- */

/* Operations on elements that are worth waking a thread for: about 10 microseconds. */
#define PART_COST 32768

enum {
    MAX_WORKERS = 255 /* and the caller: more threads than parts are of no use */
};

struct job {
    void (*body)(void *context, size_t part);
    void *context;
    size_t n_parts;
};

static struct {
    pthread_mutex_t lock; /* guards all below but next_part and is_taken */
    pthread_cond_t opened;
    pthread_cond_t left;
    pthread_t workers[MAX_WORKERS];
    size_t n_workers;
    struct job job;
    bool is_open;
    size_t n_places; /* how many threads may still join */
    size_t n_joined;
    bool has_ended;
    _Atomic size_t next_part;
    atomic_flag is_taken;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .opened = PTHREAD_COND_INITIALIZER,
          .left = PTHREAD_COND_INITIALIZER,
          .is_taken = ATOMIC_FLAG_INIT};

/* Held from before a fork to its end: a second fork must not hand out new threads while the first ends the old ones. */
static pthread_mutex_t forking = PTHREAD_MUTEX_INITIALIZER;

/* Within a body, on any thread. */
static _Thread_local bool is_inside;

size_t nn_parts(size_t n, size_t cost)
{
    size_t work;
    if (__builtin_mul_overflow(n, cost, &work)) {
        work = SIZE_MAX;
    }
    size_t n_parts = work / PART_COST;
    n_parts = n_parts < NN_MAX_PARTS ? n_parts : NN_MAX_PARTS;
    n_parts = n_parts < n ? n_parts : n;
    return n_parts > 0 ? n_parts : 1;
}

static void run_parts(const struct job *job)
{
    is_inside = true;
    for (;;) {
        /* Relaxed: what a body reads was published by the lock, and what it wrote is, by the lock too. */
        size_t part = atomic_fetch_add_explicit(&pool.next_part, 1, memory_order_relaxed);
        if (part >= job->n_parts) {
            break;
        }
        job->body(job->context, part);
    }
    is_inside = false;
}

static void *work(void *unused)
{
    (void)unused;
    (void)shoal_fp_mode_enter(); /* for ever: a thread starts in the mode of the one that made it */
    (void)pthread_mutex_lock(&pool.lock);
    while (!pool.has_ended) {
        if (!pool.is_open || pool.n_places == 0) {
            (void)pthread_cond_wait(&pool.opened, &pool.lock);
            continue;
        }
        struct job job = pool.job;
        pool.n_places--;
        pool.n_joined++;
        (void)pthread_mutex_unlock(&pool.lock);
        run_parts(&job);
        (void)pthread_mutex_lock(&pool.lock);
        pool.n_joined--;
        if (pool.n_joined == 0) {
            (void)pthread_cond_signal(&pool.left);
        }
    }
    (void)pthread_mutex_unlock(&pool.lock);
    return NULL;
}

/* Forks and the end ------------------------------------------------------------------------------------- */

/* Ends the threads, when they have done what they joined for. A thread within a body cannot wait for itself. */
static void stop_workers(void)
{
    (void)pthread_mutex_lock(&pool.lock);
    size_t n_workers = pool.n_workers;
    pool.has_ended = true;
    pool.n_workers = 0;
    (void)pthread_cond_broadcast(&pool.opened);
    (void)pthread_mutex_unlock(&pool.lock);
    for (size_t i = 0; i < n_workers && !is_inside; i++) {
        (void)pthread_join(pool.workers[i], NULL);
    }
}

/* Threads do not outlive a fork in the child; both make new ones when they want them. */
static void stop_before_fork(void)
{
    (void)pthread_mutex_lock(&forking);
    stop_workers();
}

static void resume_parent(void)
{
    (void)pthread_mutex_lock(&pool.lock);
    pool.has_ended = false;
    (void)pthread_mutex_unlock(&pool.lock);
    (void)pthread_mutex_unlock(&forking);
}

/* The child has locks and marks as other threads of the parent left them at that moment. */
static void begin_child(void)
{
    pool.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool.opened = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pool.left = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pool.n_workers = 0;
    pool.is_open = false;
    pool.n_joined = 0;
    pool.has_ended = false;
    atomic_flag_clear(&pool.is_taken);
    forking = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

static void watch_forks(void)
{
    (void)pthread_atfork(stop_before_fork, resume_parent, begin_child);
}

/* At exit, and when the library is unloaded. */
__attribute__((destructor)) static void end_pool(void)
{
    stop_workers();
}

/* Jobs -------------------------------------------------------------------------------------------------- */

/* Makes threads until there are so many, under the lock. Without memory for one there are fewer. */
static void make_workers(size_t n_wanted)
{
    sigset_t all;
    sigset_t before;
    if (pool.n_workers >= n_wanted || pool.has_ended) {
        return;
    }
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the application's threads */
    while (pool.n_workers < n_wanted &&
           pthread_create(&pool.workers[pool.n_workers], NULL, work, NULL) == 0) {
        (void)pthread_setname_np(pool.workers[pool.n_workers], "shoal-nn");
        pool.n_workers++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void run_job(const struct job *job, size_t n_helpers)
{
    static pthread_once_t is_watching = PTHREAD_ONCE_INIT;
    (void)pthread_once(&is_watching, watch_forks);
    (void)pthread_mutex_lock(&pool.lock);
    make_workers(n_helpers);
    n_helpers = n_helpers < pool.n_workers ? n_helpers : pool.n_workers;
    pool.job = *job;
    pool.n_places = n_helpers;
    pool.is_open = true;
    /* Relaxed: published by the lock. */
    atomic_store_explicit(&pool.next_part, 0, memory_order_relaxed);
    if (n_helpers == pool.n_workers) {
        (void)pthread_cond_broadcast(&pool.opened);
    }
    for (size_t i = 0; n_helpers < pool.n_workers && i < n_helpers; i++) {
        (void)pthread_cond_signal(&pool.opened);
    }
    (void)pthread_mutex_unlock(&pool.lock);
    run_parts(job);
    (void)pthread_mutex_lock(&pool.lock);
    pool.is_open = false;
    while (pool.n_joined > 0) {
        (void)pthread_cond_wait(&pool.left, &pool.lock);
    }
    (void)pthread_mutex_unlock(&pool.lock);
}

void nn_parallel(size_t n_parts, void (*body)(void *context, size_t part), void *context)
{
    const struct job job = {.body = body, .context = context, .n_parts = n_parts};
    size_t n_threads = n_parts > 1 && !is_inside ? (size_t)nn_threads() : 1;
    n_threads = n_threads < n_parts ? n_threads : n_parts;
    n_threads = n_threads < MAX_WORKERS + 1 ? n_threads : MAX_WORKERS + 1;
    if (n_threads > 1 && !atomic_flag_test_and_set(&pool.is_taken)) {
        run_job(&job, n_threads - 1);
        atomic_flag_clear(&pool.is_taken);
        return;
    }
    for (size_t i = 0; i < n_parts; i++) {
        body(context, i);
    }
}

struct ranges {
    size_t n;
    size_t n_parts;
    void (*body)(void *context, size_t first, size_t end);
    void *context;
};

static void run_range(void *context, size_t part)
{
    const struct ranges *ranges = context;
    ranges->body(ranges->context, nn_part_first(ranges->n, ranges->n_parts, part),
                 nn_part_first(ranges->n, ranges->n_parts, part + 1));
}

void nn_parallel_ranges(size_t n, size_t cost, void (*body)(void *context, size_t first, size_t end),
                        void *context)
{
    struct ranges ranges = {.n = n, .n_parts = nn_parts(n, cost), .body = body, .context = context};
    nn_parallel(ranges.n_parts, run_range, &ranges);
}
