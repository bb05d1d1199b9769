/* SPDX-License-Identifier: MIT */
/*
 * What shoal_work_* stands on: a completion and a way to push it along. Made by lanes and by point to point; both
 * embed it as first member of what they complete.
 */
#ifndef COMM_WORK_H
#define COMM_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/completion.h"
#include "shoal/work.h"

struct shoal_work {
    struct completion completion; /* first: its destroy frees the whole */
    /*
     * Optional. Called by whoever waits or tests, outside of any lock, while the work is pending: does what the
     * calling thread can do for it, until `until_ns` at most (0: without blocking). Need not finish it.
     */
    void (*push)(struct shoal_work *work, int64_t until_ns);
    /* Set by wait and by a test that saw the end; shoal_world_close warns once about those that were not. */
    _Atomic bool was_awaited;
};

#endif
