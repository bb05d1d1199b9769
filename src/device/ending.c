/* SPDX-License-Identifier: MIT */
/* What waits for the work of a device; the rules are in ending.h. */
#include "device/ending.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "device/stream.h"

/* How long the end of the process waits for a device. */
#define EXIT_SECONDS 5

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* In the order in which they came; under the lock. */
static struct ending *first;
static struct ending **last = &first;
static _Atomic uint32_t n_endings; /* not called yet, also those that a thread has taken */

static void append(struct ending *ending)
{
    ending->next = NULL;
    *last = ending;
    last = &ending->next;
}

/* Records the event if there is none yet. False: the device does no work any more. */
static bool is_working(struct ending *ending)
{
    const struct device_row *row = device_row(ending->device);
    if (!ending->event && row->streams->record(stream_compute(ending->device), &ending->event) != SHOAL_OK) {
        ending->event = NULL;
    }
    return row->failure() == SHOAL_OK;
}

static bool is_over(struct ending *ending)
{
    bool is_done = false;
    if (!is_working(ending)) {
        return true;
    }
    return ending->event && device_row(ending->device)->streams->query(ending->event, &is_done) == SHOAL_OK &&
           is_done;
}

/* Takes what is over from the list, under the lock. Work of a device is done in order: what comes after one that is not
   over is not over either. */
static struct ending *take_over(void)
{
    struct ending *taken = NULL;
    struct ending **end = &taken;
    struct ending *rest = first;
    bool is_waiting[DEVICE_MODULES_MOST] = {false};
    first = NULL;
    last = &first;
    while (rest) {
        struct ending *ending = rest;
        bool *waits = &is_waiting[ending->device - DEVICE_FIRST_MODULE];
        rest = ending->next;
        *waits = *waits || !is_over(ending);
        if (*waits) {
            append(ending);
        } else {
            ending->next = NULL;
            *end = ending;
            end = &ending->next;
        }
    }
    return taken;
}

static void call_all(struct ending *taken)
{
    while (taken) {
        struct ending *ending = taken;
        taken = ending->next;
        stream_drop(ending->device, ending->event);
        ending->call(ending);
        (void)atomic_fetch_sub(&n_endings, 1);
    }
}

void ending_poll(void)
{
    /* A thread that sees no ending here has none of its own: it would have seen it. */
    if (atomic_load_explicit(&n_endings, memory_order_relaxed) == 0 || stream_has_entered()) {
        return;
    }
    struct error_kept text;
    error_keep(&text);
    (void)pthread_mutex_lock(&lock);
    struct ending *taken = take_over();
    (void)pthread_mutex_unlock(&lock);
    call_all(taken);
    error_put_back(&text);
}

void ending_add(struct ending *ending, shoal_device device, void (*call)(struct ending *ending))
{
    struct error_kept text;
    *ending = (struct ending){.device = device, .call = call};
    if (!stream_has_any(device)) {
        call(ending); /* its work is done when a call returns */
        return;
    }
    error_keep(&text);
    (void)is_working(ending);
    error_put_back(&text);
    (void)atomic_fetch_add(&n_endings, 1);
    (void)pthread_mutex_lock(&lock);
    append(ending);
    (void)pthread_mutex_unlock(&lock);
    ending_poll();
}

/* The end of the process and forks ------------------------------------------------------------------------ */

static shoal_status ask_for_all(void *context, bool *is_so_out)
{
    ending_poll();
    *is_so_out = atomic_load(&n_endings) == 0;
    return SHOAL_OK;
}

void ending_at_exit(void)
{
    const struct wait_options options = {.deadline_ns = clock_deadline_after(EXIT_SECONDS),
                                         .what = "devices"};
    if (atomic_load(&n_endings) > 0 && wait_until(ask_for_all, NULL, &options) != SHOAL_OK) {
        LOG(SHOAL_LOG_WARN,
            "the process ends while a device works on memory of the program: deleters not called %u",
            (unsigned)atomic_load(&n_endings));
    }
}

void ending_begin_child(void)
{
    (void)pthread_mutex_init(&lock, NULL); /* a thread that is not in this process may have held it */
    first = NULL;
    last = &first;
    atomic_store(&n_endings, 0);
}
