/* SPDX-License-Identifier: MIT */
/*
 * The jobs of streams. In mode "threads" each stream has a worker, which may sleep before a job, by the seed that tests
 * set. In mode "lazy" there are none: a call of the driver that looks at results runs jobs of any stream, until it has
 * what it wants.
 *
 * A queue is a list whose first element has run already: those that push write the link of the last one, and whoever
 * runs jobs reads the link of the first. So they meet in links only, and in one direction: nobody who pushes learns
 * what has been done, and a job comes after what the host did before it pushed that job, and no more. A lock or a
 * semaphore would order more, and hide a wait that is missing from the thread sanitizer. Workers sleep in the kernel,
 * on the link itself.
 */
#include "fakecuda/fake.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define COUNTERS_MOST ((uint64_t)1 << 27)
#define JOBS_OF_A_QUERY 32

bool fake_is_lazy;

static pthread_mutex_t lazy_lock = PTHREAD_MUTEX_INITIALIZER; /* of whoever runs jobs in mode "lazy" */
static uint64_t lazy_random;                                  /* under that lock */

static void sleep_us(uint64_t us)
{
    const struct timespec pause = {.tv_nsec = (long)us * 1000};
    (void)nanosleep(&pause, NULL);
}

/* Counters ----------------------------------------------------------------------------------------------- */

static pthread_once_t counters_once = PTHREAD_ONCE_INIT;
static struct fake_counter *counters; /* pages that nobody has used yet take no memory */

static void map_counters(void)
{
    void *mapped = mmap(NULL, COUNTERS_MOST * sizeof counters[0], PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    counters = mapped == MAP_FAILED ? NULL : mapped;
}

struct fake_counter *fake_counter_make(void)
{
    static _Atomic uint64_t n_counters;
    (void)pthread_once(&counters_once, map_counters);
    /* Relaxed: a number that nobody else gets. */
    uint64_t index = atomic_fetch_add_explicit(&n_counters, 1, memory_order_relaxed);
    if (!counters || index >= COUNTERS_MOST) {
        fake_fail(CUDA_OUT_OF_MEMORY, "no counters are left");
        return NULL;
    }
    return &counters[index];
}

static bool has_come_to(const struct fake_counter *counter, uint64_t n)
{
    /* Acquire: pairs with the releases in finish. What was done before is seen by whoever was told so. */
    return atomic_load_explicit(&counter->n, memory_order_acquire) >= n;
}

/* Pushing ------------------------------------------------------------------------------------------------ */

/* Of the link of a job: 0 until there is a next one, because no block of malloc begins where these bits are 0. */
static void *low_half(struct fake_job *job)
{
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the low half of a link is not where it begins"
#endif
    return &job->next;
}

void *fake_job(size_t bytes, void (*run)(struct fake_job *job))
{
    struct fake_job *job = malloc(bytes);
    if (job) {
        *job = (struct fake_job){.run = run};
    }
    return job;
}

void fake_queue_push(struct CUstream_st *stream, struct fake_job *job)
{
    (void)pthread_mutex_lock(&stream->lock);
    struct fake_job *last = stream->last;
    stream->last = job;
    (void)atomic_fetch_add_explicit(&stream->n_pushed, 1, memory_order_relaxed);
    /* Release: pairs with the acquire in next_of. The job sees what the host had done. */
    atomic_store_explicit(&last->next, job, memory_order_release);
    (void)pthread_mutex_unlock(&stream->lock);
    if (!fake_is_lazy) {
        /* The last job may be gone by now: then nobody waits at its address, or somebody looks once more in vain. */
        (void)syscall(SYS_futex, low_half(last), FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

/* Running ------------------------------------------------------------------------------------------------ */

/* NULL if there is nothing to do. */
static struct fake_job *next_of(struct CUstream_st *stream)
{
    return atomic_load_explicit(&stream->first->next, memory_order_acquire);
}

/* The job is the next one, and need not wait any more. */
static void finish(struct CUstream_st *stream, struct fake_job *job)
{
    if (job->run) {
        job->run(job);
    }
    free(stream->first);
    stream->first = job;
    if (job->done) {
        atomic_store_explicit(&job->done->n, 1, memory_order_release);
    }
    uint64_t n_done = atomic_load_explicit(&stream->n_done.n, memory_order_relaxed);
    atomic_store_explicit(&stream->n_done.n, n_done + 1, memory_order_release);
}

/* Of a stream whose last job has run. The lock stays: whoever has pushed that job may still be leaving it. */
static void clean_up(struct CUstream_st *stream)
{
    free(stream->first);
    atomic_store_explicit(&stream->is_ready, 0, memory_order_relaxed);
    fake_slot_give(stream);
}

/* Relaxed: what tests set stands for itself. */
static bool is_held(const struct CUstream_st *stream)
{
    return atomic_load_explicit(&fakecuda_settings.is_held, memory_order_relaxed) ||
           atomic_load_explicit(&fakecuda_settings.held_stream, memory_order_relaxed) == stream->handle;
}

static void delay(struct CUstream_st *stream)
{
    while (is_held(stream)) {
        sleep_us(100);
    }
    if (atomic_load_explicit(&fakecuda_settings.seed, memory_order_relaxed) == 0) {
        return;
    }
    uint64_t die = fake_random(&stream->random);
    if (die % 16 == 0) {
        sleep_us(die % 97);
    } else if (die % 16 == 1) {
        (void)sched_yield();
    }
}

static void *work(void *context)
{
    struct CUstream_st *stream = context;
    while (!stream->has_ended) {
        struct fake_job *job;
        while ((job = next_of(stream)) == NULL) {
            (void)syscall(SYS_futex, low_half(stream->first), FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
        }
        delay(stream);
        while (job->awaited && !has_come_to(job->awaited, 1)) {
            sleep_us(20);
        }
        finish(stream, job);
    }
    clean_up(stream);
    return NULL;
}

/* Lazy running ------------------------------------------------------------------------------------------- */

/* Under the lock. The next job of a stream, if that can run now. */
static struct fake_job *runnable(struct CUstream_st *stream)
{
    /* Acquire: pairs with the release in fake_queue_open. */
    if (!atomic_load_explicit(&stream->is_ready, memory_order_acquire) || is_held(stream)) {
        return NULL;
    }
    struct fake_job *job = next_of(stream);
    return job && (!job->awaited || has_come_to(job->awaited, 1)) ? job : NULL;
}

/* Runs a job of any stream. False if none can run. */
static bool run_any(void)
{
    size_t n_runnable = 0;
    struct CUstream_st *chosen = NULL;
    (void)pthread_mutex_lock(&lazy_lock);
    for (size_t i = 0; i < FAKE_STREAMS_MOST; i++) {
        if (runnable(&fake_streams[i]) && fake_random(&lazy_random) % ++n_runnable == 0) {
            chosen = &fake_streams[i];
        }
    }
    if (chosen) {
        finish(chosen, next_of(chosen));
    }
    if (chosen && chosen->has_ended) {
        clean_up(chosen);
    }
    (void)pthread_mutex_unlock(&lazy_lock);
    return chosen != NULL;
}

/* A query may not have done enough: then it is asked again. */
bool fake_query(const struct fake_counter *counter, uint64_t n)
{
    for (int i = 0; fake_is_lazy && i < JOBS_OF_A_QUERY && !has_come_to(counter, n) && run_any(); i++) {
    }
    return has_come_to(counter, n);
}

void fake_wait(const struct fake_counter *counter, uint64_t n)
{
    while (!has_come_to(counter, n)) {
        if (!fake_is_lazy || !run_any()) {
            sleep_us(20);
        }
    }
}

/* Beginning and end -------------------------------------------------------------------------------------- */

/* Workers work until the process ends or the stream is destroyed, so nobody waits for their end. */
static bool start_worker(struct CUstream_st *stream)
{
    pthread_t worker;
    return fake_is_lazy || (pthread_create(&worker, NULL, work, stream) == 0 && pthread_detach(worker) == 0);
}

bool fake_queue_open(struct CUstream_st *stream)
{
    stream->first = stream->last = fake_job(sizeof *stream->first, NULL);
    if (!stream->first) {
        return false;
    }
    stream->has_ended = false;
    stream->random = stream->number;
    atomic_store_explicit(&stream->n_pushed, 0, memory_order_relaxed);
    atomic_store_explicit(&stream->n_done.n, 0, memory_order_relaxed);
    if (!stream->has_lock) {
        (void)pthread_mutex_init(&stream->lock, NULL);
        stream->has_lock = true;
    }
    if (!start_worker(stream)) {
        free(stream->first);
        return false;
    }
    /* Release: pairs with the acquire in runnable. */
    atomic_store_explicit(&stream->is_ready, 1, memory_order_release);
    return true;
}

struct end_job {
    struct fake_job job;
    struct CUstream_st *stream;
};

static void end(struct fake_job *job)
{
    ((struct end_job *)job)->stream->has_ended = true;
}

void fake_queue_end(struct CUstream_st *stream)
{
    struct end_job *job = fake_job(sizeof *job, end);
    if (!job) {
        fake_fail(CUDA_OUT_OF_MEMORY, "no memory for the end of a stream");
        return;
    }
    job->stream = stream;
    fake_queue_push(stream, &job->job);
}
