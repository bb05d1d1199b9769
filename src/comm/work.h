/* SPDX-License-Identifier: MIT */
/*
 * What shoal_work_* stands on: a completion and a way to push it along. Made by lanes and by point to point; both
 * embed it as first member of what they complete.
 */
#ifndef COMM_WORK_H
#define COMM_WORK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/completion.h"
#include "shoal/work.h"

struct shoal_world;

struct shoal_work {
    struct completion completion; /* first: its destroy frees the whole */
    /*
     * Optional. Called by whoever waits or tests, outside of any lock, while the work is pending: does what the
     * calling thread can do for it, until `until_ns` at most (0: without blocking). Need not finish it.
     */
    void (*push)(struct shoal_work *work, int64_t until_ns);
    /* Optional: what it is, for the text of a wait that was too short; set after work_init. At most `bytes`. */
    void (*describe)(struct shoal_work *work, char *text, size_t bytes);
    /* Set by the first wait or test that saw the end. */
    _Atomic bool was_awaited;
    /* Counts the work in its n_unawaited until somebody has awaited it; shoal_world_close warns about the rest. */
    struct shoal_world *world;
};

/*
 * One reference, the caller's. `world` may be NULL: not counted. To take back a work that was never handed out,
 * work_forget it first.
 */
void work_init(struct shoal_work *work, struct shoal_world *world,
               void (*destroy)(struct completion *completion),
               void (*push)(struct shoal_work *work, int64_t until_ns));

/* Nobody needs to await it any more. */
void work_forget(struct shoal_work *work);

#endif
