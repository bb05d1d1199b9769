/* SPDX-License-Identifier: MIT */
/*
 * shoal_work_*: waiting for an operation and asking what became of it. How it is pushed along is its maker's business:
 * comm/lane.c, comm/p2p.c.
 */
#include "comm/work.h"

#include <stddef.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "comm/world.h"

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
    work->count = count;
    atomic_init(&work->was_awaited, false);
    refcount_get(&count->references);
    /* Relaxed, here and below: a number for a warning. Closing comes after every call on the world. */
    atomic_fetch_add_explicit(&count->n_unawaited, 1, memory_order_relaxed);
}

void work_release(struct shoal_work *work)
{
    work_count_unref(work->count);
}

void work_forget(struct shoal_work *work)
{
    /* Relaxed: only who counts it down is decided here; the result is ordered by the completion. */
    if (!atomic_load_explicit(&work->was_awaited, memory_order_relaxed) &&
        !atomic_exchange_explicit(&work->was_awaited, true, memory_order_relaxed)) {
        atomic_fetch_sub_explicit(&work->count->n_unawaited, 1, memory_order_relaxed);
    }
}

void work_note_awaited(struct completion *completion)
{
    work_forget((struct shoal_work *)completion);
}

shoal_status work_check_process(const struct shoal_work *work)
{
    return world_is_inherited(work->count->n_forks) ? world_fail_inherited() : SHOAL_OK;
}

bool shoal_work_test(shoal_work *work)
{
    return work && completion_test(&work->completion);
}

/* The push may have used up all the time: what the last wait says of it is not what the caller waited. */
static shoal_status fail_too_early(struct shoal_work *work, int64_t waited_ns)
{
    char what[ERROR_TEXT_BYTES] = "an operation";
    if (work->describe) {
        work->describe(work, what, sizeof what);
    }
    return error_set(SHOAL_ERR_TIMEOUT, "waited %.3f s for %s, which goes on", (double)waited_ns * 1e-9,
                     what);
}

shoal_status shoal_work_wait(shoal_work *work, double timeout_s)
{
    error_clear();
    if (!work) {
        return error_set(SHOAL_ERR_INVALID, "work is NULL");
    }
    if (timeout_s != timeout_s) {
        return error_set(SHOAL_ERR_INVALID, "timeout_s is not a number");
    }
    if (completion_is_finished(&work->completion)) {
        return completion_wait(&work->completion, DEADLINE_NEVER);
    }
    int64_t start_ns = clock_now_ns();
    int64_t until_ns = timeout_s < 0.0 ? DEADLINE_NEVER : clock_deadline_after(timeout_s);
    shoal_status status = completion_wait(&work->completion, until_ns);
    bool is_too_early = status == SHOAL_ERR_TIMEOUT && !completion_is_finished(&work->completion);
    return is_too_early ? fail_too_early(work, clock_now_ns() - start_ns) : status;
}

void shoal_work_free(shoal_work *work)
{
    if (work) {
        completion_unref(&work->completion);
    }
}
