/* SPDX-License-Identifier: MIT */
#include "cuda/stream.h"

#include <pthread.h>

#include "base/mem.h"
#include "cuda/driver.h"
#include "cuda/failure.h"
#include "cuda/gpu.h"
#include "cuda/services.h"

static bool check(const char *call, cuda_result result)
{
    if (result != CUDA_OK) {
        cuda_fail(call, result, NULL);
    }
    return result == CUDA_OK;
}

/* Streams ---------------------------------------------------------------------------------------------- */

/* Streams do not wait for the legacy stream, which every other stream would be put in order with. */
static shoal_status create(void **stream_out)
{
    struct CUstream_st *stream = NULL;
    if (cuda_enter()) {
        (void)check("cuStreamCreateWithPriority",
                    cuda.cuStreamCreateWithPriority(&stream, CUDA_STREAM_NON_BLOCKING, 0));
        cuda_leave();
    }
    *stream_out = stream;
    return cuda_failure();
}

static void destroy(void *stream)
{
    if (cuda_enter_to_free()) {
        (void)check("cuStreamDestroy", cuda.cuStreamDestroy(stream));
        cuda_leave();
    }
}

/* Events ----------------------------------------------------------------------------------------------- */

/* An event that was dropped is recorded again at once: those who were told to wait for it wait for what it was then. */
struct event {
    struct event *next;
    struct CUevent_st *event;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct event *dropped;

static struct event *take_dropped(void)
{
    (void)pthread_mutex_lock(&lock);
    struct event *event = dropped;
    dropped = event ? event->next : NULL;
    (void)pthread_mutex_unlock(&lock);
    return event;
}

static void drop(void *event)
{
    struct event *given = event;
    (void)pthread_mutex_lock(&lock);
    given->next = dropped;
    dropped = given;
    (void)pthread_mutex_unlock(&lock);
}

/* Inside of cuda_enter. NULL if there is no memory, or the device has failed. */
static struct event *need_event(void)
{
    struct event *event = take_dropped();
    if (event) {
        return event;
    }
    event = mem_alloc(sizeof *event);
    if (event && !check("cuEventCreate", cuda.cuEventCreate(&event->event, CUDA_EVENT_DISABLE_TIMING))) {
        mem_free(event);
        event = NULL;
    }
    return event;
}

static shoal_status record(void *stream, void **event_out)
{
    if (!cuda_enter()) {
        return cuda_failure();
    }
    struct event *event = need_event();
    if (event && !check("cuEventRecord", cuda.cuEventRecord(event->event, stream))) {
        drop(event);
        event = NULL;
    }
    cuda_leave();
    *event_out = event;
    if (event) {
        return SHOAL_OK;
    }
    return cuda_has_failed() ? cuda_failure()
                             : cuda_services->set_error(SHOAL_ERR_NO_MEMORY,
                                                        "device %s: no memory for an event", cuda_row->name);
}

static shoal_status follow(void *stream, void *event)
{
    if (cuda_enter()) {
        (void)check("cuStreamWaitEvent", cuda.cuStreamWaitEvent(stream, ((struct event *)event)->event, 0));
        cuda_leave();
    }
    return cuda_failure();
}

static shoal_status query(void *event, bool *is_done_out)
{
    *is_done_out = false;
    if (cuda_enter()) {
        cuda_result result = cuda.cuEventQuery(((struct event *)event)->event);
        *is_done_out = result == CUDA_OK;
        if (result != CUDA_NOT_READY) {
            (void)check("cuEventQuery", result);
        }
        cuda_leave();
    }
    return cuda_failure();
}

const struct device_streams cuda_streams = {
    .create = create, .destroy = destroy, .record = record, .follow = follow, .query = query, .drop = drop};
