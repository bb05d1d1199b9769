/* SPDX-License-Identifier: MIT */
/*
 * Streams: a worker thread each, which runs one job after the other. Before a job it may sleep, by the seed that tests
 * set. The workers meet only in the events that somebody asked for: a lock that they had in common would be an order that
 * a GPU does not give, and the thread sanitizer would miss the wait that a test is there to see missing.
 */
#include "modules/apart/apart.h"

#include <stdlib.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

struct stream {
    pthread_mutex_t lock;
    pthread_cond_t has_come; /* a job, or the end */
    struct job *first;
    struct job *last;
    bool has_ended;
    uint64_t random; /* the worker's */
    _Atomic uint32_t has_stopped;
};

struct event {
    _Atomic uint32_t references; /* the caller's, and those of jobs */
    _Atomic uint32_t is_done;
};

/* Delays ------------------------------------------------------------------------------------------------- */

static void sleep_us(uint64_t us)
{
    const struct timespec pause = {.tv_nsec = (long)us * 1000};
    (void)nanosleep(&pause, NULL);
}

/* Relaxed, here and below: what tests set stands for itself. */
static void delay(struct stream *stream)
{
    uint64_t seed = atomic_load_explicit(&apart_settings.seed, memory_order_relaxed);
    while (atomic_load_explicit(&apart_settings.is_held, memory_order_relaxed) ||
           atomic_load_explicit(&apart_settings.held_stream, memory_order_relaxed) == stream) {
        sleep_us(100);
    }
    if (seed == 0) {
        return;
    }
    stream->random = (stream->random ^ seed) * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint64_t die = stream->random >> 33;
    /* Most jobs run at once: what is late is late compared with them, and the tests take little longer. */
    if (die % 16 == 0) {
        sleep_us(die % 97);
    } else if (die % 16 == 1) {
        (void)sched_yield();
    }
}

/* Jobs --------------------------------------------------------------------------------------------------- */

void *apart_job(size_t bytes, void (*run)(struct job *job))
{
    struct job *job = malloc(bytes);
    if (job) {
        *job = (struct job){.run = run};
    } else {
        apart_fail("no memory for a job");
    }
    return job;
}

static struct job *next_job(struct stream *stream)
{
    (void)pthread_mutex_lock(&stream->lock);
    while (!stream->first && !stream->has_ended) {
        (void)pthread_cond_wait(&stream->has_come, &stream->lock);
    }
    struct job *job = stream->first;
    stream->first = job ? job->next : NULL;
    (void)pthread_mutex_unlock(&stream->lock);
    return job;
}

static void *work(void *context)
{
    struct stream *stream = context;
    struct job *job;
    while ((job = next_job(stream)) != NULL) {
        delay(stream);
        job->run(job);
        free(job);
    }
    /* Release: pairs with the acquire in destroy, which frees what the worker has used. */
    atomic_store_explicit(&stream->has_stopped, 1, memory_order_release);
    return NULL;
}

/* Streams ------------------------------------------------------------------------------------------------ */

/* The worker of the compute stream works until the process ends, so nobody waits for the end of workers. */
static bool start_worker(struct stream *stream)
{
    pthread_t worker;
    (void)pthread_mutex_init(&stream->lock, NULL);
    (void)pthread_cond_init(&stream->has_come, NULL);
    return pthread_create(&worker, NULL, work, stream) == 0 && pthread_detach(worker) == 0;
}

static shoal_status create(void **stream_out)
{
    struct stream *stream = malloc(sizeof *stream);
    if (!stream) {
        return apart_services->set_error(SHOAL_ERR_NO_MEMORY, "apart: no memory for a stream");
    }
    static _Atomic uint64_t n_streams;
    *stream = (struct stream){.random = atomic_fetch_add(&n_streams, 1)};
    if (!start_worker(stream)) {
        free(stream);
        return apart_services->set_error(SHOAL_ERR_SYSTEM, "device " APART_NAME ": no thread for a stream");
    }
    *stream_out = stream;
    return SHOAL_OK;
}

void apart_enqueue(void *stream, struct job *job)
{
    struct stream *to = stream;
    (void)pthread_mutex_lock(&to->lock);
    *(to->first ? &to->last->next : &to->first) = job;
    to->last = job;
    (void)pthread_cond_signal(&to->has_come);
    (void)pthread_mutex_unlock(&to->lock);
}

static void destroy(void *stream)
{
    struct stream *ending = stream;
    apart_note_process();
    (void)pthread_mutex_lock(&ending->lock);
    ending->has_ended = true;
    (void)pthread_cond_signal(&ending->has_come);
    (void)pthread_mutex_unlock(&ending->lock);
    while (!atomic_load_explicit(&ending->has_stopped, memory_order_acquire)) {
        sleep_us(20);
    }
    (void)pthread_cond_destroy(&ending->has_come);
    (void)pthread_mutex_destroy(&ending->lock);
    free(ending);
}

/* Events ------------------------------------------------------------------------------------------------- */

struct event_job {
    struct job job;
    struct event *event;
};

static void drop(void *event)
{
    struct event *dropped = event;
    if (atomic_fetch_sub(&dropped->references, 1) == 1) {
        free(dropped);
    }
}

static shoal_status enqueue_event_job(void *stream, struct event *event, void (*run)(struct job *job))
{
    struct event_job *job = apart_job(sizeof *job, run);
    if (!job) {
        return apart_failure();
    }
    job->event = event;
    (void)atomic_fetch_add(&event->references, 1);
    apart_enqueue(stream, &job->job);
    return SHOAL_OK;
}

static void finish_event(struct job *job)
{
    struct event *event = ((struct event_job *)job)->event;
    /* Release: pairs with the acquire in await_event and query. Work before the event is seen by work after it. */
    atomic_store_explicit(&event->is_done, 1, memory_order_release);
    drop(event);
}

static void await_event(struct job *job)
{
    struct event *event = ((struct event_job *)job)->event;
    while (!atomic_load_explicit(&event->is_done, memory_order_acquire)) {
        sleep_us(20);
    }
    drop(event);
}

static shoal_status record(void *stream, void **event_out)
{
    struct event *event = apart_call("record") ? malloc(sizeof *event) : NULL;
    if (!event) {
        return apart_failure() != SHOAL_OK ? apart_failure() : SHOAL_ERR_NO_MEMORY;
    }
    atomic_init(&event->references, 1);
    atomic_init(&event->is_done, 0);
    shoal_status status = enqueue_event_job(stream, event, finish_event);
    if (status != SHOAL_OK) {
        drop(event);
        return status;
    }
    *event_out = event;
    return SHOAL_OK;
}

static shoal_status follow(void *stream, void *event)
{
    return apart_call("follow") ? enqueue_event_job(stream, event, await_event) : apart_failure();
}

static shoal_status query(void *event, bool *is_done_out)
{
    *is_done_out = atomic_load_explicit(&((struct event *)event)->is_done, memory_order_acquire);
    return SHOAL_OK;
}

const struct device_streams apart_streams = {
    .create = create, .destroy = destroy, .record = record, .follow = follow, .query = query, .drop = drop};
