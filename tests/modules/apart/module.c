/* SPDX-License-Identifier: MIT */
/* The row of device `apart`, its copies, and its failures. */
#include "modules/apart/apart.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct device_services *apart_services;

/* Failures ----------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char reason[200];            /* under the lock */
static _Atomic uint32_t has_failed; /* the reason is there */

static void forget_failure(void)
{
    (void)pthread_mutex_lock(&lock);
    reason[0] = '\0';
    atomic_store(&has_failed, 0);
    (void)pthread_mutex_unlock(&lock);
}

DEVICE_MODULE_EXPORT struct apart_settings apart_settings = {.forget_failure = forget_failure,
                                                             .reach = apart_reach};

void apart_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)pthread_mutex_lock(&lock);
    if (reason[0] == '\0') {
        (void)vsnprintf(reason, sizeof reason, format, arguments);
        atomic_store(&has_failed, 1);
    }
    (void)pthread_mutex_unlock(&lock);
    va_end(arguments);
}

shoal_status apart_failure(void)
{
    if (!atomic_load(&has_failed)) {
        return SHOAL_OK;
    }
    (void)pthread_mutex_lock(&lock);
    shoal_status status =
        apart_services->set_error(SHOAL_ERR_SYSTEM, "device " APART_NAME " has failed: %s", reason);
    (void)pthread_mutex_unlock(&lock);
    return status;
}

static pid_t process; /* that has loaded the device */

void apart_note_process(void)
{
    if (process != getpid()) {
        (void)atomic_fetch_add(&apart_settings.n_inherited, 1);
    }
}

bool apart_call(const char *name)
{
    apart_note_process();
    /* Relaxed: what tests set and read stands for itself. */
    (void)atomic_fetch_add_explicit(&apart_settings.n_calls, 1, memory_order_relaxed);
    int64_t left = atomic_load_explicit(&apart_settings.fail_at, memory_order_relaxed);
    if (left > 0 && atomic_fetch_sub_explicit(&apart_settings.fail_at, 1, memory_order_relaxed) == 1) {
        apart_fail("call %s failed, as asked for", name);
    }
    return !atomic_load(&has_failed);
}

/* Copies ------------------------------------------------------------------------------------------------- */

struct copy {
    struct job job;
    void *target;
    const void *source;
    size_t bytes;
    char staged[];
};

static void run_copy(struct job *job)
{
    const struct copy *copy = (const struct copy *)job;
    memcpy(copy->target, copy->source, copy->bytes);
}

static shoal_status copy_in(void *target, const void *source, size_t bytes)
{
    struct copy *copy = apart_call("copy_in") ? apart_job(sizeof *copy + bytes, run_copy) : NULL;
    if (!copy) {
        return apart_failure();
    }
    memcpy(copy->staged, source, bytes);
    copy->target = apart_reach(target, bytes);
    copy->source = copy->staged;
    copy->bytes = copy->target ? bytes : 0;
    apart_enqueue(apart_services->stream(&apart_row), &copy->job);
    return apart_failure();
}

static shoal_status copy_out(void *target, const void *source, size_t bytes)
{
    struct copy *copy = apart_call("copy_out") ? apart_job(sizeof *copy, run_copy) : NULL;
    if (!copy) {
        return apart_failure();
    }
    copy->target = target;
    copy->source = apart_reach(source, bytes);
    copy->bytes = copy->source ? bytes : 0;
    apart_enqueue(apart_services->stream(&apart_row), &copy->job);
    return apart_failure();
}

/* The row ------------------------------------------------------------------------------------------------ */

const struct device_row apart_row = {
    DEVICE_ROW_INIT,
    .has_data = true,
    .name = APART_NAME,
    .doc = "memory that the host cannot touch, for tests",
    .dlpack = APART_DLPACK,
    .kernels = &apart_kernels,
    .allocate = apart_allocate,
    .release = apart_release,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .failure = apart_failure,
    .share_create = apart_share_create,
    .share_map = apart_share_map,
    .share_drop = apart_share_drop,
    .streams = &apart_streams,
};

const struct device_row *shoal_device_module(const struct device_services *services)
{
    if (services->interface != DEVICE_INTERFACE || services->struct_size < sizeof *services) {
        return NULL;
    }
    apart_services = services;
    process = getpid();
    const char *seed = getenv("TEST_APART_SEED");
    atomic_store(&apart_settings.seed, seed ? strtoull(seed, NULL, 10) : 0);
    return &apart_row;
}
