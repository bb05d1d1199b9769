/* SPDX-License-Identifier: MIT */
/*
 * The base of a shoal_work: a completion that knows its world. Lanes and point to point embed it as the first member of
 * what they complete, and make it progress by its push (base/completion.h).
 */
#ifndef COMM_LANE_WORK_H
#define COMM_LANE_WORK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/completion.h"
#include "comm/lane/handles.h"

/* Shared by all works of a world. It outlives the world, because tensors may hold works that have ended. */
struct work_count {
    _Atomic uint32_t references;  /* the world's, and one per work */
    uint32_t n_forks;             /* the world's */
    _Atomic uint64_t n_unawaited; /* works that nobody has waited for; shoal_world_close warns about them */
};

struct work_count *work_count_create(uint32_t n_forks); /* NULL if memory runs out */
void work_count_unref(struct work_count *count);        /* NULL is allowed */

/* What a work calls at its end; each function may be NULL. */
struct work_hooks {
    shoal_done_function on_done;
    shoal_release_function release;
    void *context;
};

struct work_listener {
    struct completion_listener base; /* first */
    struct work_hooks hooks;
    bool is_allocated; /* in memory of its own, which is freed when the work ends */
};

struct shoal_work {
    struct completion completion; /* first: its kind's destroy frees the whole */
    /* Optional; set after work_init. Writes at most `bytes` about the work, for the error of a wait that was too
       short. */
    void (*describe)(struct shoal_work *work, char *text, size_t bytes);
    /* Makes the work end although nobody waits for it; set after work_init. It is NULL if the work always ends. */
    shoal_status (*watch)(struct shoal_work *work);
    /* Set by the first wait or test that has seen the end. */
    _Atomic bool was_awaited;
    struct work_count *count;
};

/*
 * Initializes a work with one reference, the caller's. The kind's destroy must end in work_release, its awaited must be
 * work_note_awaited, and its push must begin with work_check_process. Before freeing a work that was never handed out,
 * call work_forget.
 */
void work_init(struct shoal_work *work, struct work_count *count, const struct completion_kind *kind);
void work_release(struct shoal_work *work);

/* Prepares a work that has ended to be issued again: rearms the completion, and counts the work as not awaited. */
void work_rearm(struct shoal_work *work);

void work_note_awaited(struct completion *completion);

/* Call before another thread knows the work. The hooks are called at its end. The listener must live as long as the
   work. */
void work_listen(struct shoal_work *work, struct work_listener *listener, const struct work_hooks *hooks);

/* SHOAL_ERR_STATE in a forked child: the threads that carry a pending work are not in this process. */
shoal_status work_check_process(const struct shoal_work *work);

#endif
