/* SPDX-License-Identifier: MIT */
/*
 * A thing that will be finished once: state, error, waiters, callbacks. Reference-counted; meant to be
 * embedded as first member of what it completes. Tensors know asynchronous work only as one of these.
 *
 *   PENDING --(somebody goes to sleep)--> AWAITED
 *      \________________________________________\____completion_finish____> DONE | FAILED      (once)
 *
 * A kind says what is done with it besides: most have none. A completion with a push is one that needs its waiters: it
 * may not end before somebody waits or asks, and it has a deadline of its own. Waiting for such a one is refused in a
 * callback (base/callback.h).
 *
 * Lifetime: whoever calls wait, test, listen, finish or result holds a reference until that call has returned. So
 * the object outlives everything that finish does after the waiters were let go; the finishing thread gives
 * up its own reference only afterwards, and the last unref calls destroy, on whatever thread that is.
 *
 * Memory order:
 * - finish writes status and text, then exchanges the state (release). Whoever sees DONE or FAILED has read
 *   the state with acquire, so it also sees status, text, and all that the finishing thread wrote before.
 * - A sleeper turns PENDING into AWAITED by compare-and-exchange, and sleeps only while the word is AWAITED.
 *   Both changes are to one word, so they are ordered: either finish's exchange returns AWAITED, and it
 *   wakes; or the sleeper's exchange finds the end and it does not sleep. Finish makes no system call for
 *   nobody.
 * - listen pushes with release; finish takes the whole stack and closes it by one exchange (acquire and
 *   release). A listener is therefore either in the stack that finish took, fully written, or its push finds
 *   the stack closed, and then the state, exchanged before, is seen as finished. Each runs exactly once.
 * - References are counted by base/refcount.h, so destroy sees the writes of all owners.
 */
#ifndef BASE_COMPLETION_H
#define BASE_COMPLETION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct completion;

/* Owned by whoever registers it; must live until it was called, and may be freed by that call. Runs on the
   finishing thread, or inside completion_listen when that came too late; must not block. */
struct completion_listener {
    void (*notify)(struct completion_listener *listener, struct completion *completion);
    struct completion_listener *next; /* the completion's */
};

/* What whoever embeds a completion adds to it; each function may be NULL. */
struct completion_kind {
    /* Frees what it is embedded in; NULL means mem_free(completion). */
    void (*destroy)(struct completion *completion);
    /*
     * Called by a thread that waits or tests, without any lock, while the completion is pending. Does what the calling
     * thread can do towards its end, until `until_ns` at most (0 means without blocking); it need not finish it. A
     * failure is that of the calling thread alone: it means that this thread cannot wait here.
     */
    shoal_status (*push)(struct completion *completion, int64_t until_ns);
    /* Somebody has waited or tested and seen the end. May be called often. */
    void (*awaited)(struct completion *completion);
};

enum completion_state {
    COMPLETION_PENDING = 0,
    COMPLETION_AWAITED = 1, /* pending, and somebody may be asleep on the word */
    COMPLETION_DONE = 2,
    COMPLETION_FAILED = 3
};

struct completion {
    _Atomic uint32_t references;
    _Atomic uint32_t state;                          /* enum completion_state; the word waiters sleep on */
    _Atomic(struct completion_listener *) listeners; /* newest first; closed once finished */
    shoal_status status;                             /* written before the state says that it ended */
    /* Of a failure; written before the state says that it ended. NULL if there is none, or memory ran out. */
    char *text;
    const struct completion_kind *kind;
};

/* Gives the caller one reference. `kind` may be NULL. */
void completion_init(struct completion *completion, const struct completion_kind *kind);
/* NULL when memory runs out. */
struct completion *completion_create(void);
/* Returns its argument. NULL is allowed in both. */
struct completion *completion_ref(struct completion *completion);
void completion_unref(struct completion *completion);

/*
 * Ends it with a status and, for failures, the thread's error text; exactly once. Releases what the
 * finishing thread wrote before to every thread that sees the end. Wakes waiters, then calls the listeners.
 */
void completion_finish(struct completion *completion, shoal_status status);

static inline bool completion_is_finished_state(uint32_t state)
{
    return state == COMPLETION_DONE || state == COMPLETION_FAILED;
}

/* Acquire: true means that what the finishing thread wrote can be read. */
static inline bool completion_is_finished(const struct completion *completion)
{
    /* Acquire: pairs with the release exchange in completion_finish. */
    return completion_is_finished_state(atomic_load_explicit(&completion->state, memory_order_acquire));
}

/*
 * Makes a finished completion pending again, without listeners. The caller must have the only reference, and must have
 * seen, in a way that orders memory (a lock), that the finishing thread gave up its own. Then nobody else can touch the
 * completion until the caller publishes it again.
 */
void completion_rearm(struct completion *completion);

/* The outcome of a finished one; a failure's text becomes the thread's error text. */
shoal_status completion_result(const struct completion *completion);

/* Pushes it, waits until the deadline, then completion_result. */
shoal_status completion_wait(struct completion *completion, int64_t deadline_ns);

/* True once it has ended; pushes it, without blocking, if it has not. */
bool completion_test(struct completion *completion);

/* Whether it ends by a deadline of its own, so that waiting for it needs none. */
static inline bool completion_has_deadline(const struct completion *completion)
{
    return completion->kind->push != NULL;
}

/* Calls the listener at the end, or now if that is past. Listeners run newest first. */
void completion_listen(struct completion *completion, struct completion_listener *listener);

#endif
