/* SPDX-License-Identifier: MIT */
/*
 * A prepared collective is a work of the group's lane that is issued repeatedly (docs/design/lanes.md, "Works that are
 * issued again"). Only the prepared object has a pointer to the work, and one thread at a time uses it.
 *
 * It holds a reference to the group, so that a start can report that the group was closed. The work keeps what it needs
 * of the lane.
 */
#include "comm/call/prepared.h"

#include "base/clock.h"
#include "base/completion.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/group/group.h"
#include "comm/lane/lane.h"
#include "comm/call/window.h"

struct prepared {
    shoal_group *group;   /* a reference */
    shoal_window *window; /* NULL if it is no window gather */
    struct lane_work *work;
    bool is_running; /* it was started, and nobody has waited for its end */
};

static shoal_status prepare(shoal_group *group, const struct collective *call, shoal_window *window,
                            struct prepared *prepared)
{
    if (window) {
        return window_prepare(window, group, call, &prepared->work);
    }
    TRY(collectives_check(group, call, call->n_pieces > 1));
    prepared->work = lane_prepare(group->lane, call);
    return prepared->work ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

shoal_status prepared_create(shoal_group *group, const struct collective *call, shoal_window *window,
                             struct prepared **prepared_out)
{
    struct collective complete = *call;
    error_clear();
    if (!group) {
        return error_set(SHOAL_ERR_INVALID, "%s: group is NULL", collective_rows[call->kind].name);
    }
    if (complete.n_pieces <= 1) {
        complete.n_pieces = 1;
        complete.pieces = &complete.single;
    }
    TRY(group_check_open(group));
    struct prepared *prepared = mem_alloc_zeroed(1, sizeof *prepared);
    if (!prepared) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = prepare(group, &complete, window, prepared);
    if (status != SHOAL_OK) {
        mem_free(prepared);
        return status;
    }
    prepared->group = group_ref(group);
    prepared->window = window;
    *prepared_out = prepared;
    return SHOAL_OK;
}

void prepared_free(struct prepared *prepared)
{
    if (!prepared) {
        return;
    }
    if (prepared->is_running && prepared_wait(prepared) != SHOAL_OK) {
        error_clear();
    }
    /* In a forked child or a callback the work may still run: the line has a reference of its own. */
    work_forget(lane_prepared_work(prepared->work));
    completion_unref(work_completion(lane_prepared_work(prepared->work)));
    group_unref(prepared->group);
    mem_free(prepared);
}

void prepared_set_buffers(struct prepared *prepared, size_t piece, const void *send, void *recv)
{
    /* The work's own copies. */
    struct collective_piece *pieces =
        (struct collective_piece *)lane_prepared_call(prepared->work)->pieces; /* NOLINT */
    pieces[piece].send = send;
    pieces[piece].recv = recv;
}

void prepared_set_window_data(struct prepared *prepared, size_t piece, const void *data)
{
    shoal_window_piece *pieces =
        (shoal_window_piece *)lane_prepared_call(prepared->work)->window_pieces; /* NOLINT */
    pieces[piece].data = data;
}

static shoal_status check_idle(const struct prepared *prepared)
{
    TRY(group_check_open(prepared->group));
    return prepared->is_running
               ? error_set(SHOAL_ERR_STATE, "%s: it was started before and not waited for yet",
                           collective_rows[lane_prepared_call(prepared->work)->kind].name)
               : SHOAL_OK;
}

shoal_status prepared_start(struct prepared *prepared)
{
    error_clear();
    TRY(check_idle(prepared));
    TRY(prepared->window ? window_start_again(prepared->window, prepared->work)
                         : lane_issue_again(prepared->work));
    prepared->is_running = true;
    return SHOAL_OK;
}

shoal_status prepared_run(struct prepared *prepared)
{
    error_clear();
    TRY(check_idle(prepared));
    return lane_run(prepared->group->lane, lane_prepared_call(prepared->work));
}

shoal_status prepared_wait(struct prepared *prepared)
{
    error_clear();
    struct completion *completion = work_completion(lane_prepared_work(prepared->work));
    shoal_status status = completion_wait(completion, DEADLINE_NEVER);
    if (completion_is_finished(completion)) {
        prepared->is_running = false;
    }
    return status;
}

bool prepared_is_running(const struct prepared *prepared)
{
    return prepared->is_running;
}
