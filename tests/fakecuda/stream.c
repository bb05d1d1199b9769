/* SPDX-License-Identifier: MIT */
/*
 * Streams and events. An event stands for the last place where it was recorded: whoever is told to wait for it waits
 * for that place, whatever becomes of the event afterwards.
 */
#include "fakecuda/fake.h"

#include <time.h>

#define EVENTS_MOST 65536

struct CUevent_st {
    _Atomic uint32_t state;
    bool has_time;
    _Atomic(struct fake_counter *) recorded; /* NULL: never */
};

struct CUstream_st fake_streams[FAKE_STREAMS_MOST];
static struct CUevent_st all_events[EVENTS_MOST];
static struct fake_slots streams = FAKE_SLOTS(fake_streams);
static struct fake_slots events = FAKE_SLOTS(all_events);

/* Streams ------------------------------------------------------------------------------------------------ */

static pthread_once_t legacy_once = PTHREAD_ONCE_INIT;
static _Atomic(struct CUstream_st *) legacy;
/* Of what orders streams with the legacy stream. */
static pthread_mutex_t legacy_lock = PTHREAD_MUTEX_INITIALIZER;
static FAKE_OF_THREAD struct CUstream_st *of_this_thread; /* lives as long as the process */

static struct CUstream_st *make_stream(void *handle, bool is_blocking)
{
    static _Atomic uint64_t n_streams;
    struct CUstream_st *stream = fake_slot_take(&streams);
    if (!stream) {
        return NULL;
    }
    stream->number = atomic_fetch_add_explicit(&n_streams, 1, memory_order_relaxed) + 1;
    stream->handle = handle ? handle : stream;
    (void)pthread_mutex_lock(&legacy_lock);
    stream->is_blocking = is_blocking;
    stream->n_seen = 0;
    stream->n_seen_by_legacy = 0;
    (void)pthread_mutex_unlock(&legacy_lock);
    if (!fake_queue_open(stream)) {
        fake_slot_give(stream);
        return NULL;
    }
    return stream;
}

/* Those that always exist stay closed: their handles are numbers. */
static void make_legacy(void)
{
    legacy = make_stream((void *)(uintptr_t)CUDA_STREAM_LEGACY, true);
}

struct CUstream_st *fake_stream(struct CUstream_st *handle)
{
    if (!handle || (uintptr_t)handle == CUDA_STREAM_LEGACY) {
        (void)pthread_once(&legacy_once, make_legacy);
        return legacy;
    }
    if ((uintptr_t)handle == CUDA_STREAM_PER_THREAD) {
        if (!of_this_thread) {
            of_this_thread = make_stream(handle, true);
        }
        return of_this_thread;
    }
    return fake_slot_is_open(&streams, handle) ? handle : NULL;
}

static uint64_t n_pushed(struct CUstream_st *stream)
{
    return atomic_load_explicit(&stream->n_pushed, memory_order_relaxed);
}

/* The later work of a stream waits for all work of another one. */
static void follow(struct CUstream_st *stream, struct CUstream_st *other)
{
    struct fake_job *record = fake_job(sizeof *record, NULL);
    struct fake_job *wait = fake_job(sizeof *wait, NULL);
    struct fake_counter *counter = fake_counter_make();
    if (!record || !wait || !counter) {
        fake_fail(CUDA_OUT_OF_MEMORY, "no memory for a wait");
        return;
    }
    record->done = counter;
    wait->awaited = counter;
    fake_queue_push(other, record);
    fake_queue_push(stream, wait);
}

/* The legacy stream waits for all that do not ask to be left alone by it, and they wait for it. */
static void order_with_legacy(struct CUstream_st *stream)
{
    for (size_t i = 0; stream == legacy && i < FAKE_STREAMS_MOST; i++) {
        struct CUstream_st *other = &fake_streams[i];
        if (other != legacy && atomic_load(&other->is_ready) && other->is_blocking &&
            n_pushed(other) != other->n_seen_by_legacy) {
            follow(legacy, other);
            other->n_seen_by_legacy = n_pushed(other);
        }
    }
    if (stream != legacy && legacy && n_pushed(legacy) != stream->n_seen) {
        follow(stream, legacy);
        stream->n_seen = n_pushed(legacy);
    }
}

void fake_push(struct CUstream_st *stream, struct fake_job *job)
{
    if (!stream->is_blocking) {
        fake_queue_push(stream, job);
        return;
    }
    (void)pthread_mutex_lock(&legacy_lock);
    order_with_legacy(stream);
    fake_queue_push(stream, job);
    (void)pthread_mutex_unlock(&legacy_lock);
}

cuda_result cuStreamCreateWithPriority(struct CUstream_st **stream_out, unsigned flags, int priority)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    if (!stream_out || flags > CUDA_STREAM_NON_BLOCKING) {
        return CUDA_INVALID_VALUE;
    }
    struct CUstream_st *stream = make_stream(NULL, flags != CUDA_STREAM_NON_BLOCKING);
    if (!stream) {
        return CUDA_OUT_OF_MEMORY;
    }
    fake_slot_open(stream);
    *stream_out = stream;
    return CUDA_OK;
}

/* Its work goes on. The legacy stream may be waiting for the end of it, and must not look at it later. */
cuda_result cuStreamDestroy(struct CUstream_st *stream)
{
    cuda_result result = fake_begin_query();
    if (!fake_may_free(result)) {
        return result;
    }
    if (!fake_slot_close(&streams, stream)) {
        return FAKE_INVALID_HANDLE;
    }
    (void)pthread_mutex_lock(&legacy_lock);
    if (stream->is_blocking && legacy) {
        follow(legacy, stream);
    }
    stream->is_blocking = false;
    fake_queue_end(stream);
    (void)pthread_mutex_unlock(&legacy_lock);
    return result;
}

cuda_result cuStreamQuery(struct CUstream_st *handle)
{
    cuda_result result = fake_begin_query();
    if (result != CUDA_OK) {
        return result;
    }
    struct CUstream_st *stream = fake_stream(handle);
    if (!stream) {
        return FAKE_INVALID_HANDLE;
    }
    bool is_done = fake_query(&stream->n_done, n_pushed(stream));
    result = fake_failure();
    return result == CUDA_OK && !is_done ? CUDA_NOT_READY : result;
}

cuda_result cuStreamSynchronize(struct CUstream_st *handle)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    struct CUstream_st *stream = fake_stream(handle);
    if (!stream) {
        return FAKE_INVALID_HANDLE;
    }
    fake_wait(&stream->n_done, n_pushed(stream));
    fake_pools_trim();
    return fake_failure();
}

/* Events ------------------------------------------------------------------------------------------------- */

cuda_result cuEventCreate(struct CUevent_st **event_out, unsigned flags)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    if (!event_out || flags > 7) {
        return CUDA_INVALID_VALUE;
    }
    struct CUevent_st *event = fake_slot_take(&events);
    if (!event) {
        return CUDA_OUT_OF_MEMORY;
    }
    atomic_store_explicit(&event->recorded, NULL, memory_order_relaxed);
    event->has_time = (flags & CUDA_EVENT_DISABLE_TIMING) == 0;
    fake_slot_open(event);
    *event_out = event;
    return CUDA_OK;
}

cuda_result cuEventDestroy(struct CUevent_st *event)
{
    cuda_result result = fake_begin_query();
    if (!fake_may_free(result)) {
        return result;
    }
    if (!fake_slot_close(&events, event)) {
        return FAKE_INVALID_HANDLE;
    }
    fake_slot_give(event);
    return result;
}

/* An event and a stream as they are given to a call. */
static cuda_result begin_both(struct CUevent_st *event, struct CUstream_st *handle,
                              struct CUstream_st **stream_out)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    *stream_out = fake_stream(handle);
    return *stream_out && fake_slot_is_open(&events, event) ? CUDA_OK : FAKE_INVALID_HANDLE;
}

/* Relaxed: a time that is read by whoever has seen the counter, which is written later. */
static void take_time(struct fake_job *job)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    atomic_store_explicit(&job->done->recorded_ns, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
                          memory_order_relaxed);
}

cuda_result cuEventRecord(struct CUevent_st *event, struct CUstream_st *handle)
{
    struct CUstream_st *stream;
    cuda_result result = begin_both(event, handle, &stream);
    if (result != CUDA_OK) {
        return result;
    }
    struct fake_counter *counter = fake_counter_make();
    struct fake_job *job = counter ? fake_job(sizeof *job, event->has_time ? take_time : NULL) : NULL;
    if (!job) {
        return CUDA_OUT_OF_MEMORY;
    }
    job->done = counter;
    fake_push(stream, job);
    /* Relaxed, here and below: a counter is an atomic number, and whoever waits for a record comes after it. */
    atomic_store_explicit(&event->recorded, counter, memory_order_relaxed);
    return CUDA_OK;
}

cuda_result cuStreamWaitEvent(struct CUstream_st *handle, struct CUevent_st *event, unsigned flags)
{
    struct CUstream_st *stream;
    cuda_result result = begin_both(event, handle, &stream);
    if (result != CUDA_OK) {
        return result;
    }
    if (flags != 0) {
        return CUDA_INVALID_VALUE;
    }
    struct fake_counter *counter = atomic_load_explicit(&event->recorded, memory_order_relaxed);
    if (!counter) {
        return CUDA_OK;
    }
    struct fake_job *job = fake_job(sizeof *job, NULL);
    if (!job) {
        return CUDA_OUT_OF_MEMORY;
    }
    job->awaited = counter;
    fake_push(stream, job);
    return CUDA_OK;
}

cuda_result cuEventQuery(struct CUevent_st *event)
{
    cuda_result result = fake_begin_query();
    if (result != CUDA_OK) {
        return result;
    }
    if (!fake_slot_is_open(&events, event)) {
        return FAKE_INVALID_HANDLE;
    }
    struct fake_counter *counter = atomic_load_explicit(&event->recorded, memory_order_relaxed);
    bool is_done = !counter || fake_query(counter, 1);
    result = fake_failure();
    return result == CUDA_OK && !is_done ? CUDA_NOT_READY : result;
}

cuda_result cuEventElapsedTime(float *ms_out, struct CUevent_st *begin, struct CUevent_st *end)
{
    struct CUevent_st *const both[] = {begin, end};
    uint64_t times_ns[2];
    cuda_result result = fake_begin_query();
    for (int i = 0; result == CUDA_OK && i < 2; i++) {
        bool is_timed = fake_slot_is_open(&events, both[i]) && both[i]->has_time;
        struct fake_counter *counter =
            is_timed ? atomic_load_explicit(&both[i]->recorded, memory_order_relaxed) : NULL;
        if (!counter) {
            return FAKE_INVALID_HANDLE;
        }
        result = fake_query(counter, 1) ? fake_failure() : CUDA_NOT_READY;
        times_ns[i] = atomic_load_explicit(&counter->recorded_ns, memory_order_relaxed);
    }
    if (result == CUDA_OK && !ms_out) {
        result = CUDA_INVALID_VALUE;
    }
    if (result == CUDA_OK) {
        *ms_out = (float)((double)(int64_t)(times_ns[1] - times_ns[0]) * 1e-6);
    }
    return result;
}
