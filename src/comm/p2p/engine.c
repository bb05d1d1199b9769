/* SPDX-License-Identifier: MIT */
/*
 * Posting, moving, waiting and ending of point-to-point operations: docs/design/p2p.md.
 *
 * Data is moved under the rank's lock, a piece at a time, by whichever thread is there: one that posts, one that waits
 * (a driver), or the group's thread. Works that have ended are collected and finished after the lock was released,
 * because their listeners may call anything.
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
#include "comm/lane/lane.h"
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

static const struct transport_streams *operations(const struct p2p_end *end)
{
    return end->stream->streams->operations;
}

/* SHOAL_OK, or why point to point has failed on the whole group. */
static shoal_status group_reason(struct p2p *p2p)
{
    return p2p->streams->operations->reason(p2p->streams);
}

/* Ending ----------------------------------------------------------------------------------------------- */

/* Under the lock. */
static void end_operation(struct p2p *p2p, struct p2p_operation *operation, shoal_status status,
                          const char *text, struct p2p_batch **ended)
{
    struct p2p_batch *batch = operation->batch;
    operation->status = status;
    operation->text = status == SHOAL_OK ? NULL : mem_copy_string(text);
    batch->n_pending--;
    if (batch->n_pending > 0) {
        return;
    }
    p2p->has_ended = true;
    if (batch->work) {
        p2p->n_started--;
        batch->next_ended = *ended;
        *ended = batch;
    }
}

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
    shoal_status status = group_reason(p2p);
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

/* Ends that have operations ---------------------------------------------------------------------------- */

static void make_busy(struct p2p *p2p, struct p2p_end *end)
{
    end->next_busy = p2p->busy;
    end->previous_busy = NULL;
    if (p2p->busy) {
        p2p->busy->previous_busy = end;
    }
    p2p->busy = end;
}

static void make_idle(struct p2p *p2p, struct p2p_end *end)
{
    if (end->next_busy) {
        end->next_busy->previous_busy = end->previous_busy;
    }
    if (end->previous_busy) {
        end->previous_busy->next_busy = end->next_busy;
    } else {
        p2p->busy = end->next_busy;
    }
}

static void append(struct p2p *p2p, struct p2p_operation *operation)
{
    struct p2p_end *end = operation->end;
    operation->message.head.sequence = end->sequence++;
    operation->next = NULL;
    if (end->first) {
        end->last->next = operation;
    } else {
        end->first = operation;
        make_busy(p2p, end);
    }
    end->last = operation;
}

/* Takes off the first operation of an end. */
static struct p2p_operation *pop(struct p2p *p2p, struct p2p_end *end)
{
    struct p2p_operation *operation = end->first;
    end->first = operation->next;
    if (!end->first) {
        make_idle(p2p, end);
    }
    return operation;
}

static void end_all_of(struct p2p *p2p, struct p2p_end *end, shoal_status status, const char *text,
                       struct p2p_batch **ended)
{
    while (end->first) {
        end_operation(p2p, pop(p2p, end), status, text, ended);
    }
}

/* Fails the stream for both sides, because messages may be incomplete. The thread's error text is the reason. */
static void break_end(struct p2p *p2p, struct p2p_end *end, shoal_status status, struct p2p_batch **ended)
{
    p2p->has_failed = true;
    end->failure = status;
    (void)snprintf(end->failure_text, sizeof end->failure_text, "%s", shoal_error_text());
    operations(end)->fail(end->stream, status, end->failure_text);
    end_all_of(p2p, end, status, end->failure_text, ended);
}

/* Texts ------------------------------------------------------------------------------------------------ */

/* Error texts have ranks by their numbers in the world. */
static int world_rank(const struct p2p *p2p, int group_rank)
{
    return p2p->part.peers->world_ranks[group_rank];
}

/* Writes which group it was, unless it is the group of all ranks. */
static const char *describe_group(const struct p2p *p2p, char *text, size_t bytes)
{
    text[0] = '\0';
    if (!p2p->part.is_world) {
        (void)snprintf(text, bytes, " (group %s)", transport_group_name(p2p->part.peers));
    }
    return text;
}

/* "rank 1 receives f32 count 10 from rank 0 tag 3" */
static const char *describe(const struct p2p *p2p, const struct p2p_operation *operation, char *text,
                            size_t bytes)
{
    bool is_send = operation->end->direction == SHOAL_SEND;
    (void)snprintf(text, bytes, "rank %d %s %s count %llu %s rank %d tag %d", world_rank(p2p, p2p->rank),
                   is_send ? "sends" : "receives",
                   shoal_dtype_name((shoal_dtype)operation->message.head.dtype),
                   (unsigned long long)operation->message.head.count, is_send ? "to" : "from",
                   world_rank(p2p, operation->end->peer), operation->end->tag);
    return text;
}

void p2p_describe_batch(const struct p2p_batch *batch, char *text, size_t bytes)
{
    char what[160];
    char more[48] = "";
    char group[256];
    if (batch->n_operations > 1) {
        (void)snprintf(more, sizeof more, " and %zu more", batch->n_operations - 1);
    }
    (void)snprintf(text, bytes, "\"%s\"%s%s", describe(batch->p2p, &batch->operations[0], what, sizeof what),
                   more, describe_group(batch->p2p, group, sizeof group));
}

static shoal_status describe_mismatch(const struct p2p *p2p, const struct p2p_operation *operation)
{
    const struct stream_head *expected = &operation->message.head;
    const struct stream_head *found = &operation->message.found;
    char what[160];
    char group[256];
    describe(p2p, operation, what, sizeof what);
    describe_group(p2p, group, sizeof group);
    if (found->sequence != expected->sequence) {
        return error_set(SHOAL_ERR_INTERNAL, "%s: message %u was expected, but message %u arrived%s", what,
                         expected->sequence, found->sequence, group);
    }
    return error_set(SHOAL_ERR_MISMATCH, "%s, but rank %d sends %s count %llu%s", what,
                     world_rank(p2p, operation->end->peer), shoal_dtype_name((shoal_dtype)found->dtype),
                     (unsigned long long)found->count, group);
}

static shoal_status describe_timeout(const struct p2p *p2p, const struct p2p_operation *operation,
                                     int64_t now_ns)
{
    char what[160];
    char group[256];
    return error_set(SHOAL_ERR_TIMEOUT,
                     "%s: waited %.1f s (SHOAL_TIMEOUT, shoal_group_set_timeout) for rank %d; %zu of %zu "
                     "bytes were transferred%s",
                     describe(p2p, operation, what, sizeof what),
                     (double)(now_ns - operation->start_ns) * 1e-9, world_rank(p2p, operation->end->peer),
                     operation->message.done, operation->message.bytes,
                     describe_group(p2p, group, sizeof group));
}

/* Moving, under the lock ------------------------------------------------------------------------------- */

static shoal_status move_send(struct p2p_end *end, struct p2p_operation *operation)
{
    /* If the stream has failed, nobody will receive the message, even if there is room for it. */
    TRY(operations(end)->failure(end->stream));
    return operations(end)->put(end->stream, &operation->message);
}

static shoal_status move_receive(struct p2p *p2p, struct p2p_end *end, struct p2p_operation *operation)
{
    /* Data that was sent before the failure is still received, so it counts before the reason. But the reason must
       be read first: otherwise data might arrive between the look at the data and the look at the reason. */
    shoal_status failure = operations(end)->failure(end->stream);
    shoal_status status = operations(end)->take(end->stream, &operation->message);
    if (status == SHOAL_ERR_MISMATCH) {
        return describe_mismatch(p2p, operation);
    }
    if (status == SHOAL_OK && failure != SHOAL_OK && !stream_message_is_finished(&operation->message)) {
        return operations(end)->failure(end->stream);
    }
    return status;
}

static void move_end(struct p2p *p2p, struct p2p_end *end, struct p2p_batch **ended)
{
    while (end->first) {
        struct p2p_operation *operation = end->first;
        shoal_status status =
            end->direction == SHOAL_SEND ? move_send(end, operation) : move_receive(p2p, end, operation);
        if (status != SHOAL_OK) {
            break_end(p2p, end, status, ended);
            return;
        }
        if (!stream_message_is_finished(&operation->message)) {
            p2p->has_more = p2p->has_more || !operation->message.is_stuck;
            return;
        }
        end_operation(p2p, pop(p2p, end), SHOAL_OK, NULL, ended);
    }
}

static void move_all(struct p2p *p2p, struct p2p_batch **ended)
{
    struct p2p_end *next = NULL;
    p2p->has_more = false;
    for (struct p2p_end *end = p2p->busy; end; end = next) {
        next = end->next_busy;
        move_end(p2p, end, ended);
    }
}

/* With the thread's error text. */
static void end_everything(struct p2p *p2p, shoal_status status, struct p2p_batch **ended)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    p2p->has_failed = p2p->has_failed || p2p->busy;
    while (p2p->busy) {
        end_all_of(p2p, p2p->busy, status, text, ended);
    }
}

/* Fails point to point for all members. */
static void poison(struct p2p *p2p, shoal_status status, const char *text)
{
    p2p->streams->operations->poison(p2p->streams, status, text);
}

/* SHOAL_OK, or why the group has failed. Cheap enough for every call: one load each. */
static shoal_status find_failure(struct p2p *p2p)
{
    TRY(group_reason(p2p));
    return lane_failure(p2p->lane);
}

/* Whether a message of a peer that is gone may still arrive. */
static bool may_receive(const struct p2p_end *end)
{
    return end->direction == SHOAL_RECV && operations(end)->may_receive &&
           operations(end)->may_receive(end->stream);
}

/* Checks the peer and the deadlines of an end that has pending operations. */
static shoal_status check_end(struct p2p *p2p, struct p2p_end *end, int64_t now_ns)
{
    const struct transport_peers *peers = p2p->part.peers;
    if (end->peer != p2p->rank) {
        shoal_status status = peers->check_member(peers->context, end->peer);
        if (status != SHOAL_OK && !may_receive(end)) {
            char what[160];
            return error_prefix(status, "%s", describe(p2p, end->first, what, sizeof what));
        }
        if (status != SHOAL_OK) {
            error_clear(); /* of the peer that is gone */
        }
    }
    /* All of them: a later operation may have an earlier deadline. */
    for (const struct p2p_operation *operation = end->first; operation; operation = operation->next) {
        if (now_ns >= operation->deadline_ns) {
            return describe_timeout(p2p, operation, now_ns);
        }
    }
    return SHOAL_OK;
}

/* Called every WAIT_LIVENESS_NS, and when a driver's deadline has passed. */
static void check_all(struct p2p *p2p, int64_t now_ns, struct p2p_batch **ended)
{
    p2p->next_check_ns = now_ns + WAIT_LIVENESS_NS;
    shoal_status failure = find_failure(p2p);
    if (failure != SHOAL_OK) {
        end_everything(p2p, failure, ended);
        return;
    }
    struct p2p_end *next = NULL;
    for (struct p2p_end *end = p2p->busy; end; end = next) {
        next = end->next_busy;
        shoal_status status = check_end(p2p, end, now_ns);
        if (status == SHOAL_OK) {
            continue;
        }
        /* The peer may have done its part before it left or died: that counts. */
        char text[ERROR_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        move_end(p2p, end, ended);
        if (!end->first) {
            continue;
        }
        (void)error_set(status, "%s", text);
        /* A group cannot be used without one of its members, so all members are told the reason. */
        poison(p2p, status, text);
        p2p->must_tell_lane = true;
        break_end(p2p, end, status, ended);
    }
}

/* One round of what any thread can do. Returns the time. */
static int64_t do_what_can_be_done(struct p2p *p2p, int64_t deadline_ns, struct p2p_batch **ended)
{
    move_all(p2p, ended);
    int64_t now_ns = clock_now_ns();
    if (p2p->busy && (now_ns >= p2p->next_check_ns || now_ns >= deadline_ns)) {
        check_all(p2p, now_ns, ended);
    }
    shoal_status failure = group_reason(p2p);
    if (failure != SHOAL_OK) {
        end_everything(p2p, failure, ended);
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
        if (other->peer == end->peer && other->tag == end->tag && other->direction != end->direction) {
            return true;
        }
    }
    return false;
}

/* A blocking call that sends to its own rank, or receives from it, and would wait for itself. */
static shoal_status check_own(struct p2p *p2p, const struct p2p_batch *batch,
                              const struct p2p_operation *operation)
{
    struct p2p_end *end = operation->end;
    bool is_send = end->direction == SHOAL_SEND;
    const struct p2p_end *other = p2p_known_end(p2p, is_send ? SHOAL_RECV : SHOAL_SEND, end->peer, end->tag);
    if (has_counterpart(batch, end) || (other && other->first) || end->failure != SHOAL_OK) {
        return SHOAL_OK;
    }
    if (!end->first && (is_send ? operations(end)->can_put(end->stream, operation->message.bytes)
                                : operations(end)->can_take(end->stream))) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE,
                     "rank %d would wait for itself for ever: a %s of %zu bytes, tag %d, blocks, and no %s "
                     "was started before it",
                     world_rank(p2p, p2p->rank), is_send ? "send" : "receive", operation->message.bytes,
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
        if (batch->operations[i].end->peer == p2p->rank) {
            TRY(check_own(p2p, batch, &batch->operations[i]));
        }
    }
    return SHOAL_OK;
}

static void post_all(struct p2p *p2p, struct p2p_batch *batch, struct p2p_batch **ended)
{
    for (size_t i = 0; i < batch->n_operations; i++) {
        append(p2p, &batch->operations[i]);
    }
    for (size_t i = 0; i < batch->n_operations; i++) {
        struct p2p_end *end = batch->operations[i].end;
        if (end->failure != SHOAL_OK) {
            end_all_of(p2p, end, end->failure, end->failure_text, ended);
        }
        move_end(p2p, end, ended);
    }
}

shoal_status p2p_post(struct p2p_batch *batch, bool *has_ended_out)
{
    struct p2p *p2p = batch->p2p;
    struct p2p_batch *ended = NULL;
    FAIL_POINT("p2p post");
    shoal_status status = find_failure(p2p);
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

/* One round of a driver. True: the batch has ended or the time is up. Otherwise *wake_ns_out is when to look again
   at the latest, 0 for at once. Called with the lock, and releases it. */
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
        poison(p2p, status, text);
    }
}

shoal_status p2p_failure(struct p2p *p2p)
{
    return p2p ? group_reason(p2p) : SHOAL_OK;
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
    return error_set(SHOAL_ERR_CANCELLED, "the %s was closed before the transfer had ended", what);
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
            break_end(p2p, end, describe_closed(what), &ended);
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
        move_all(p2p, ended);
    } while (p2p->has_more);
    end_everything(p2p, describe_closed(what), ended);
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
