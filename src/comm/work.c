/* SPDX-License-Identifier: MIT */
/*
 * shoal_work_*: pushing an operation along and asking what became of it. What "along" means is the maker's:
 * comm/lane.c, comm/p2p.c.
 */
#include "comm/work.h"

#include <stddef.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/world.h"

void work_init(struct shoal_work *work, struct shoal_world *world,
               void (*destroy)(struct completion *completion),
               void (*push)(struct shoal_work *work, int64_t until_ns))
{
    completion_init(&work->completion, destroy);
    work->push = push;
    work->describe = NULL;
    work->world = world;
    atomic_init(&work->was_awaited, false);
    if (world) {
        /* Relaxed, here and below: a number for a warning. Closing comes after every call on the world. */
        atomic_fetch_add_explicit(&world->n_unawaited, 1, memory_order_relaxed);
    }
}

void work_forget(struct shoal_work *work)
{
    /* Relaxed: only who counts it down is decided here; the result is ordered by the completion. */
    if (atomic_load_explicit(&work->was_awaited, memory_order_relaxed) ||
        atomic_exchange_explicit(&work->was_awaited, true, memory_order_relaxed)) {
        return;
    }
    if (work->world) {
        atomic_fetch_sub_explicit(&work->world->n_unawaited, 1, memory_order_relaxed);
    }
}

/* Of a pending work: the threads that carry it are not in this process. */
static bool is_inherited(const struct shoal_work *work)
{
    return work->world && world_is_inherited(work->world->n_forks);
}

bool shoal_work_test(shoal_work *work)
{
    if (!work) {
        return false;
    }
    if (!completion_is_finished(&work->completion) && work->push && !is_inherited(work)) {
        work->push(work, 0);
    }
    if (!completion_is_finished(&work->completion)) {
        return false;
    }
    work_forget(work);
    return true;
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
    if (!completion_is_finished(&work->completion)) {
        if (is_inherited(work)) {
            return world_fail_inherited();
        }
        int64_t start_ns = clock_now_ns();
        int64_t until_ns = timeout_s < 0.0 ? DEADLINE_NEVER : clock_deadline_after(timeout_s);
        if (work->push) {
            work->push(work, until_ns);
        }
        /* Returns at once when the push has seen the end. */
        shoal_status status = completion_wait(&work->completion, until_ns);
        if (!completion_is_finished(&work->completion)) {
            return status == SHOAL_ERR_TIMEOUT ? fail_too_early(work, clock_now_ns() - start_ns) : status;
        }
    }
    work_forget(work);
    return completion_result(&work->completion);
}

void shoal_work_free(shoal_work *work)
{
    if (work) {
        completion_unref(&work->completion);
    }
}
