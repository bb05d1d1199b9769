/* SPDX-License-Identifier: MIT */
/*
 * Posting and waiting for point-to-point operations, and which thread moves data meanwhile: docs/design/p2p.md.
 *
 * Data is moved (p2p/move.c) under the rank's lock, a piece at a time, by whichever thread is there: one that posts,
 * one that waits (a driver), or the group's thread. Works that have ended are collected and finished after the lock
 * was released, because their listeners may call anything.
 */
#include "comm/p2p/engine.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/fp_mode.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/try.h"
#include "base/wait.h"
#include "comm/p2p/move.h"
#include "comm/p2p/p2p.h"

/* How long the thread goes on checking every WAIT_LIVENESS_NS after the last started operation has ended. So a
   program that starts one after the other does not have to wake it for each. */
#define THREAD_LINGER_NS 1000000000

/* Between two checks whether other threads have finished. */
#define NAP_NS 200000

static void lock(struct p2p *p2p)
{
    (void)pthread_mutex_lock(&p2p->lock);
}

static void unlock(struct p2p *p2p)
{
    (void)pthread_mutex_unlock(&p2p->lock);
}

/* Ending ----------------------------------------------------------------------------------------------- */

shoal_status p2p_batch_result(struct p2p_batch *batch)
{
    shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < batch->n_operations; i++) {
        struct p2p_operation *operation = &batch->operations[i];
        if (status == SHOAL_OK && operation->status != SHOAL_OK) {
            status = error_set(operation->status, "%s",
                               operation->text ? operation->text
                                               : "a transfer failed, and memory ran out for the reason");
        }
        mem_free(operation->text);
        operation->text = NULL;
    }
    return status;
}

/* The world is about to be freed, and has warned about these works. They must not count there any more. */
static void forget_works(struct p2p_batch *ended)
{
    for (; ended; ended = ended->next_ended) {
        work_forget(ended->work);
    }
}

/* Outside of the lock. */
static void finish_works(struct p2p_batch *ended)
{
    while (ended) {
        struct p2p_batch *batch = ended;
        ended = batch->next_ended;
        struct shoal_work *work = batch->work;
        completion_finish(&work->completion, p2p_batch_result(batch));
        completion_unref(&work->completion); /* the engine's; the batch may be freed now */
    }
}

/* Makes the group's collectives fail with the reason too, on all members. */
static void tell_lane(struct p2p *p2p)
{
    shoal_status status = p2p_reason(p2p);
    if (status != SHOAL_OK) {
        p2p->part.calls->poison(p2p->part.group, status, shoal_error_text());
    }
}

/*
 * Releases the lock and then does what must not be done under it. If operations have ended on this thread, rings the
 * bell: sleeping drivers may be waiting for them.
 */
static void leave(struct p2p *p2p, struct p2p_batch *ended)
{
    if (p2p->has_ended && p2p->n_sleeping > 0) {
        doorbell_ring(p2p->bell);
    }
    bool must_report = p2p->has_failed;
    bool must_tell_lane = p2p->must_tell_lane;
    bool needs_group = must_report || must_tell_lane;
    p2p->has_ended = false;
    p2p->has_failed = false;
    p2p->must_tell_lane = false;
    p2p->n_telling += needs_group;
    unlock(p2p);
    if (must_tell_lane) {
        tell_lane(p2p);
    }
    if (must_report) {
        p2p->part.calls->note(p2p->part.group);
    }
    if (needs_group) {
        lock(p2p);
        p2p->n_telling--;
        unlock(p2p);
    }
    finish_works(ended);
}

/* Moving, under the lock ------------------------------------------------------------------------------- */

/* One round of what any thread can do. Returns the time. */
static int64_t do_what_can_be_done(struct p2p *p2p, int64_t deadline_ns, struct p2p_batch **ended)
{
    p2p_move_all(p2p, ended);
    int64_t now_ns = clock_now_ns();
    if ((p2p->busy || p2p->open) && (now_ns >= p2p->next_check_ns || now_ns >= deadline_ns)) {
        p2p_check_all(p2p, now_ns, ended);
    }
    shoal_status failure = p2p_reason(p2p);
    if (failure != SHOAL_OK) {
        p2p_end_everything(p2p, failure, ended);
    }
    return now_ns;
}

/* The thread ------------------------------------------------------------------------------------------- */

/* Called before a thread releases the lock and does not come back. Another thread must go on with what is
   unfinished, or be woken by the next ring. `seen` is the bell before the last round. */
static void hand_over(struct p2p *p2p, uint32_t seen)
{
    if (p2p->n_drivers > 0) {
        if (p2p->has_more) {
            doorbell_ring(p2p->bell); /* no peer will ring: there is more to move already */
        }
        return;
    }
    if (p2p->n_started == 0) {
        return;
    }
    if (p2p->has_more || p2p->is_thread_idle || !doorbell_arm(p2p->bell, &seen)) {
        doorbell_alarm(p2p->bell);
    }
}

static void *run_thread(void *context)
{
    struct p2p *p2p = context;
    int64_t busy_ns = clock_now_ns();
    fp_mode_set_default();
    lock(p2p);
    while (!p2p->is_closing) {
        struct p2p_batch *ended = NULL;
        uint32_t seen = doorbell_look(p2p->bell);
        int64_t now_ns = clock_now_ns();
        if (p2p->n_drivers == 0) {
            now_ns = do_what_can_be_done(p2p, DEADLINE_NEVER, &ended);
        }
        if (p2p->n_started > 0 || p2p->n_drivers > 0) {
            busy_ns = now_ns;
        }
        p2p->is_thread_idle = now_ns - busy_ns >= THREAD_LINGER_NS;
        bool must_arm = p2p->n_drivers == 0 && p2p->n_started > 0;
        bool must_go_on = must_arm && p2p->has_more;
        int64_t until_ns = p2p->is_thread_idle ? DEADLINE_NEVER : now_ns + WAIT_LIVENESS_NS;
        leave(p2p, ended);
        if (!must_go_on && (!must_arm || doorbell_arm(p2p->bell, &seen))) {
            doorbell_sleep(p2p->bell, seen, until_ns);
        }
        lock(p2p);
    }
    unlock(p2p);
    return NULL;
}

/* Under the lock. */
static shoal_status ensure_thread(struct p2p *p2p)
{
    if (p2p->has_thread) {
        return SHOAL_OK;
    }
    int error = os_start_thread(&p2p->thread, run_thread, p2p);
    if (error != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "the point-to-point thread could not be created: %s",
                         error_thread_text(error));
    }
    p2p->has_thread = true;
    return SHOAL_OK;
}

/* Posting ---------------------------------------------------------------------------------------------- */

static bool has_counterpart(const struct p2p_batch *batch, const struct p2p_end *end)
{
    for (size_t i = 0; i < batch->n_operations; i++) {
        const struct p2p_end *other = batch->operations[i].end;
        bool is_meeting = other ? other->peer == end->peer && other->direction != end->direction
                                : end->direction == SHOAL_SEND;
        if (is_meeting && batch->operations[i].tag == end->tag) {
            return true;
        }
    }
    return false;
}

/* A blocking call that sends to its own rank, or receives from it, and would wait for itself. */
static shoal_status check_own(struct p2p *p2p, const struct p2p_batch *batch,
                              const struct p2p_operation *operation)
{
    /* Of an open receive: in a group of one rank, where there is one source. */
    struct p2p_end *end =
        operation->end ? operation->end : p2p_known_end(p2p, SHOAL_RECV, p2p->rank, operation->tag);
    bool is_send = end->direction == SHOAL_SEND;
    const struct p2p_end *other = p2p_known_end(p2p, is_send ? SHOAL_RECV : SHOAL_SEND, end->peer, end->tag);
    if (has_counterpart(batch, end) || (other && other->first) || end->failure != SHOAL_OK) {
        return SHOAL_OK;
    }
    bool has_open = p2p_find_open(p2p, end->tag) != NULL;
    if (is_send && has_open) {
        return SHOAL_OK;
    }
    if (!end->first && (is_send ? p2p_operations_of(end)->can_put(end->stream, operation->message.bytes)
                                : !has_open && p2p_operations_of(end)->can_take(end->stream))) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE,
                     "rank %d would wait for itself for ever: a %s of %zu bytes, tag %d, blocks, and no %s "
                     "was started before it",
                     p2p_world_rank(p2p, p2p->rank), is_send ? "send" : "receive", operation->message.bytes,
                     end->tag, is_send ? "receive" : "send");
}

static shoal_status check_postable(struct p2p *p2p, const struct p2p_batch *batch)
{
    if (p2p->is_closing) {
        return error_set(SHOAL_ERR_STATE, "the group or its world is being closed");
    }
    if (batch->work) {
        return ensure_thread(p2p);
    }
    for (size_t i = 0; i < batch->n_operations; i++) {
        const struct p2p_end *end = batch->operations[i].end;
        if (end ? end->peer == p2p->rank : p2p->n_ranks == 1) {
            TRY(check_own(p2p, batch, &batch->operations[i]));
        }
    }
    return SHOAL_OK;
}

static void post_all(struct p2p *p2p, struct p2p_batch *batch, struct p2p_batch **ended)
{
    for (size_t i = 0; i < batch->n_operations; i++) {
        struct p2p_operation *operation = &batch->operations[i];
        operation->number = p2p->n_posted++;
        operation->next = NULL;
        if (operation->end) {
            p2p_append(p2p, operation);
        } else {
            p2p_add_open(p2p, operation);
        }
    }
    p2p_move_open(p2p, ended);
    for (size_t i = 0; i < batch->n_operations; i++) {
        struct p2p_end *end = batch->operations[i].end;
        if (!end) {
            continue;
        }
        if (end->failure != SHOAL_OK) {
            p2p_end_all_of(p2p, end, end->failure, end->failure_text, ended);
        }
        p2p_move_end(p2p, end, ended);
    }
}

shoal_status p2p_post(struct p2p_batch *batch, bool *has_ended_out)
{
    struct p2p *p2p = batch->p2p;
    struct p2p_batch *ended = NULL;
    FAIL_POINT("p2p post");
    shoal_status status = p2p_find_failure(p2p);
    if (status != SHOAL_OK) {
        p2p->part.calls->report(p2p->part.group);
        return error_prefix(status, "the group has failed before");
    }
    lock(p2p);
    status = check_postable(p2p, batch);
    if (status != SHOAL_OK) {
        unlock(p2p);
        return part_fail_unissued(&p2p->part, status);
    }
    uint32_t seen = doorbell_look(p2p->bell);
    batch->n_pending = batch->n_operations;
    if (batch->work) {
        p2p->n_started++;
    }
    post_all(p2p, batch, &ended);
    *has_ended_out = batch->n_pending == 0;
    hand_over(p2p, seen);
    leave(p2p, ended);
    return SHOAL_OK;
}

/* Driving ---------------------------------------------------------------------------------------------- */

/* Spins or sleeps until the bell rings, or until_ns. Outside of the lock. */
static void wait_for_bell(struct p2p *p2p, uint32_t seen, int64_t until_ns)
{
    if (p2p->may_spin && doorbell_spin(p2p->bell, seen)) {
        return;
    }
    lock(p2p);
    p2p->n_sleeping++;
    unlock(p2p);
    if (doorbell_arm(p2p->bell, &seen)) {
        doorbell_sleep(p2p->bell, seen, until_ns);
    }
    lock(p2p);
    p2p->n_sleeping--;
    unlock(p2p);
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* One round of a driver. Returns true if the batch has ended or the time is up. Otherwise *wake_ns_out is when to look
   again at the latest, 0 for at once. Called with the lock, and releases it. */
static bool drive_once(struct p2p_batch *batch, int64_t until_ns, uint32_t *seen_out, int64_t *wake_ns_out)
{
    struct p2p *p2p = batch->p2p;
    struct p2p_batch *ended = NULL;
    *seen_out = doorbell_look(p2p->bell);
    if (p2p->n_sleeping == 0) {
        doorbell_disarm(p2p->bell, seen_out);
    }
    int64_t now_ns = do_what_can_be_done(p2p, batch->deadline_ns, &ended);
    *wake_ns_out = p2p->has_more ? 0 : earlier(earlier(until_ns, batch->deadline_ns), p2p->next_check_ns);
    bool is_over = batch->n_pending == 0 || now_ns >= until_ns;
    if (is_over) {
        p2p->n_drivers--;
        hand_over(p2p, *seen_out);
    }
    leave(p2p, ended);
    return is_over;
}

void p2p_drive(struct p2p_batch *batch, int64_t until_ns)
{
    struct p2p *p2p = batch->p2p;
    uint32_t seen = 0;
    int64_t wake_ns = 0;
    lock(p2p);
    if (batch->n_pending == 0) {
        unlock(p2p);
        return;
    }
    p2p->n_drivers++;
    while (!drive_once(batch, until_ns, &seen, &wake_ns)) {
        if (wake_ns > 0) {
            wait_for_bell(p2p, seen, wake_ns);
        }
        lock(p2p);
    }
}

/* From outside ----------------------------------------------------------------------------------------- */

void p2p_poison(struct p2p *p2p, shoal_status status, const char *text)
{
    if (p2p) {
        p2p->streams->operations->poison(p2p->streams, status, text);
    }
}

shoal_status p2p_failure(struct p2p *p2p)
{
    return p2p ? p2p_reason(p2p) : SHOAL_OK;
}

/* Sends to the own rank do not count: only its own program could receive them. */
static bool is_send_to_peer(const struct p2p *p2p, const struct p2p_end *end)
{
    return end->direction == SHOAL_SEND && end->peer != p2p->rank;
}

bool p2p_is_sending(struct p2p *p2p)
{
    bool is_sending = false;
    if (!p2p) {
        return false;
    }
    lock(p2p);
    for (const struct p2p_end *end = p2p->busy; end; end = end->next_busy) {
        is_sending = is_sending || is_send_to_peer(p2p, end);
    }
    unlock(p2p);
    return is_sending;
}

static shoal_status describe_closed(const char *what)
{
    return error_set(SHOAL_ERR_CANCELLED, "the %s before the transfer had ended", what);
}

void p2p_cancel_sends(struct p2p *p2p, const char *what)
{
    struct p2p_batch *ended = NULL;
    struct p2p_end *next = NULL;
    if (!p2p) {
        return;
    }
    lock(p2p);
    bool had_failed = p2p->has_failed;
    for (struct p2p_end *end = p2p->busy; end; end = next) {
        next = end->next_busy;
        if (is_send_to_peer(p2p, end)) {
            p2p_break_end(p2p, end, describe_closed(what), &ended);
        }
    }
    p2p->has_failed = had_failed; /* a cancelled send is no failure to report */
    leave(p2p, ended);
}

/*
 * Called under the lock. Takes what peers have already sent, then ends everything else. No failure is reported: the
 * group is going away, and nobody needs to know what closing it has cancelled.
 */
static void end_for_close(struct p2p *p2p, const char *what, struct p2p_batch **ended)
{
    p2p->is_closing = true;
    do {
        p2p_move_all(p2p, ended);
    } while (p2p->has_more);
    p2p_end_everything(p2p, describe_closed(what), ended);
    p2p->has_failed = false;
    p2p->must_tell_lane = false;
}

/* Waits for threads that are telling the group of a failure. They finish within a moment. */
static void wait_for_tellers(struct p2p *p2p)
{
    lock(p2p);
    while (p2p->n_telling > 0) {
        unlock(p2p);
        wait_sleep(NAP_NS);
        lock(p2p);
    }
    unlock(p2p);
}

void p2p_free(struct p2p *p2p, const char *what)
{
    if (!p2p) {
        return;
    }
    struct p2p_batch *ended = NULL;
    lock(p2p);
    end_for_close(p2p, what, &ended);
    doorbell_alarm(p2p->bell);
    bool has_thread = p2p->has_thread;
    unlock(p2p);
    forget_works(ended);
    finish_works(ended);
    if (has_thread) {
        (void)pthread_join(p2p->thread, NULL);
    }
    wait_for_tellers(p2p);
    p2p->streams->operations->disconnect(p2p->streams);
    p2p_unref(p2p);
}
