/* SPDX-License-Identifier: MIT */
/*
 * shoal_work_*: waiting for an operation and asking for its result. Whoever made the work decides how it progresses:
 * comm/lane/lane.c, comm/call/p2p.c.
 */
#include "comm/lane/work.h"

#include <stddef.h>
#include <stdio.h>

#include "base/callback.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/try.h"

struct work_count *work_count_create(uint32_t n_forks)
{
    struct work_count *count = mem_alloc(sizeof *count);
    if (count) {
        atomic_init(&count->references, 1);
        atomic_init(&count->n_unawaited, 0);
        count->n_forks = n_forks;
    }
    return count;
}

void work_count_unref(struct work_count *count)
{
    if (count && refcount_put(&count->references)) {
        mem_free(count);
    }
}

void work_init(struct shoal_work *work, struct work_count *count, const struct completion_kind *kind)
{
    completion_init(&work->completion, kind);
    work->describe = NULL;
    work->watch = NULL;
    work->count = count;
    atomic_init(&work->was_awaited, false);
    refcount_get(&count->references);
    /* Relaxed, here and below: the number is only used for a warning, when all calls on the world have returned. */
    atomic_fetch_add_explicit(&count->n_unawaited, 1, memory_order_relaxed);
}

void work_release(struct shoal_work *work)
{
    work_count_unref(work->count);
}

void work_forget(struct shoal_work *work)
{
    /* Relaxed: only decides which thread counts it down. The completion orders the result. */
    if (!atomic_load_explicit(&work->was_awaited, memory_order_relaxed) &&
        !atomic_exchange_explicit(&work->was_awaited, true, memory_order_relaxed)) {
        atomic_fetch_sub_explicit(&work->count->n_unawaited, 1, memory_order_relaxed);
    }
}

void work_rearm(struct shoal_work *work)
{
    completion_rearm(&work->completion);
    /* Relaxed, both: only the caller uses the work, and the number is only used for a warning. */
    if (atomic_exchange_explicit(&work->was_awaited, false, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&work->count->n_unawaited, 1, memory_order_relaxed);
    }
}

struct completion *work_completion(struct shoal_work *work)
{
    return &work->completion;
}

void work_note_awaited(struct completion *completion)
{
    work_forget((struct shoal_work *)completion);
}

shoal_status work_check_process(const struct shoal_work *work)
{
    return fork_check(work->count->n_forks);
}

/* Callbacks -------------------------------------------------------------------------------------------- */

/* Calls the hooks. The work may end on a thread that is in another call, whose error text is kept. */
static void notify(struct completion_listener *base, struct completion *completion)
{
    struct work_listener *listener = (struct work_listener *)base;
    const struct work_hooks hooks = listener->hooks;
    if (listener->is_allocated) {
        mem_free(listener);
    }
    char before[ERROR_TEXT_BYTES];
    (void)snprintf(before, sizeof before, "%s", shoal_error_text());
    work_forget((struct shoal_work *)completion);
    error_clear();
    shoal_status status = completion_result(completion);
    callback_enter();
    if (hooks.on_done) {
        hooks.on_done(hooks.context, status);
    }
    if (hooks.release) {
        hooks.release(hooks.context);
    }
    callback_leave();
    (void)error_set(SHOAL_OK, "%s", before);
}

void work_listen(struct shoal_work *work, struct work_listener *listener, const struct work_hooks *hooks)
{
    *listener = (struct work_listener){.base = {.notify = notify}, .hooks = *hooks};
    completion_listen(&work->completion, &listener->base);
}

shoal_status shoal_work_on_done(shoal_work *work, shoal_done_function on_done, void *context)
{
    error_clear();
    if (!work || !on_done) {
        return error_set(SHOAL_ERR_INVALID, "work_on_done: %s is NULL", work ? "on_done" : "work");
    }
    TRY(work_check_process(work));
    struct work_listener *listener = mem_alloc(sizeof *listener);
    if (!listener) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = work->watch ? work->watch(work) : SHOAL_OK;
    if (status != SHOAL_OK) {
        mem_free(listener);
        return status;
    }
    *listener = (struct work_listener){
        .base = {.notify = notify}, .hooks = {.on_done = on_done, .context = context}, .is_allocated = true};
    completion_listen(&work->completion, &listener->base);
    return SHOAL_OK;
}

/* Waiting ---------------------------------------------------------------------------------------------- */

bool shoal_work_test(shoal_work *work)
{
    return work && completion_test(&work->completion);
}

/* The error of a wait that was too short. The text of the last inner wait does not have the whole time, so it is
   replaced. */
static shoal_status fail_too_early(struct shoal_work *work, int64_t waited_ns)
{
    char what[ERROR_TEXT_BYTES] = "an operation";
    if (work->describe) {
        work->describe(work, what, sizeof what);
    }
    return error_set(SHOAL_ERR_TIMEOUT, "waited %.3f s (timeout_s) for %s, which is still in progress",
                     (double)waited_ns * 1e-9, what);
}

shoal_status shoal_work_wait(shoal_work *work, double timeout_s)
{
    error_clear();
    if (!work) {
        return error_set(SHOAL_ERR_INVALID, "work_wait: work is NULL");
    }
    if (timeout_s != timeout_s) {
        return error_set(SHOAL_ERR_INVALID, "work_wait: timeout_s is nan, a number expected");
    }
    if (completion_is_finished(&work->completion)) {
        return completion_wait(&work->completion, DEADLINE_NEVER);
    }
    if (timeout_s < 0.0) {
        return completion_wait(&work->completion, DEADLINE_NEVER);
    }
    int64_t start_ns = clock_now_ns();
    shoal_status status = completion_wait(&work->completion, clock_deadline_after(timeout_s));
    bool is_too_early = status == SHOAL_ERR_TIMEOUT && !completion_is_finished(&work->completion);
    return is_too_early ? fail_too_early(work, clock_now_ns() - start_ns) : status;
}

void shoal_work_free(shoal_work *work)
{
    if (work) {
        completion_unref(&work->completion);
    }
}
