/* SPDX-License-Identifier: MIT */
/*
 * The base of a shoal_work: a completion that knows its world. Lanes and point to point embed it as the first member of
 * what they complete, and make it progress by its push (base/completion.h).
 */
#ifndef COMM_WORK_H
#define COMM_WORK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/completion.h"
#include "comm/handles.h"

/* What the works of a world have in common. It outlives the world: tensors may hold works that have ended. */
struct work_count {
    _Atomic uint32_t references;  /* the world's, and one per work */
    uint32_t n_forks;             /* the world's */
    _Atomic uint64_t n_unawaited; /* works that nobody has waited for; shoal_world_close warns about them */
};

struct work_count *work_count_create(uint32_t n_forks); /* NULL: no memory */
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
    bool is_allocated; /* on its own */
};

struct shoal_work {
    struct completion completion; /* first: its kind's destroy frees the whole */
    /* Optional: what it is, for the text of a wait that was too short; set after work_init. At most `bytes`. */
    void (*describe)(struct shoal_work *work, char *text, size_t bytes);
    /* NULL: it ends although nobody waits. Otherwise sees to that from now on; set after work_init. */
    shoal_status (*watch)(struct shoal_work *work);
    /* Set by the first wait or test that saw the end. */
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

/* One that has ended is to be issued again: completion_rearm, and it counts as not awaited. */
void work_rearm(struct shoal_work *work);

void work_note_awaited(struct completion *completion);

/* Before anybody else knows the work: the hooks are called at its end. The listener is part of what embeds the work. */
void work_listen(struct shoal_work *work, struct work_listener *listener, const struct work_hooks *hooks);

/* SHOAL_ERR_STATE in a forked child: the threads that carry a pending work are not in this process. */
shoal_status work_check_process(const struct shoal_work *work);

#endif
