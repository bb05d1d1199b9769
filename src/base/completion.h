/* SPDX-License-Identifier: MIT */
/*
 * A thing that will be finished once: state, error, waiters, callbacks. Reference-counted; meant to be
 * embedded as first member of what it completes. Tensors know asynchronous work only as one of these.
 *
 *   PENDING --completion_finish--> DONE | FAILED      (once; the last unref calls destroy)
 */
#ifndef BASE_COMPLETION_H
#define BASE_COMPLETION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shoal/status.h"

struct completion;

/* Owned by whoever registers it; must live until it was called. Runs on the finishing thread. */
struct completion_listener {
    void (*notify)(struct completion_listener *listener, struct completion *completion);
    struct completion_listener *next; /* the completion's */
};

struct completion {
    _Atomic uint32_t references;
    _Atomic uint32_t state;                          /* enum completion_state; the word waiters sleep on */
    _Atomic(struct completion_listener *) listeners; /* newest first; closed once finished */
    shoal_status status;                             /* written before state leaves PENDING */
    char *text; /* likewise; NULL when the work succeeded or memory ran out */
    void (*destroy)(struct completion *completion); /* NULL: mem_free(completion) */
};

/* One reference, the caller's. */
void completion_init(struct completion *completion, void (*destroy)(struct completion *completion));
struct completion *completion_create(void);
struct completion *completion_ref(struct completion *completion);
void completion_unref(struct completion *completion);

/*
 * Ends it with a status and, for failures, the thread's error text; exactly once. Releases what the
 * finishing thread wrote before to every thread that sees the end.
 */
void completion_finish(struct completion *completion, shoal_status status);

/* Acquire: true means that what the finishing thread wrote can be read. */
bool completion_is_finished(const struct completion *completion);

/* The outcome of a finished one; a failure's text becomes the thread's error text. */
shoal_status completion_result(const struct completion *completion);

/* Waits until the deadline, then completion_result. */
shoal_status completion_wait(struct completion *completion, int64_t deadline_ns);

/* Calls the listener at the end, or now if that is past. Listeners run newest first. */
void completion_listen(struct completion *completion, struct completion_listener *listener);

#endif
