/* SPDX-License-Identifier: MIT */
/* Deadlines of operations that are pending, and members that have died or left: looked at every 100 ms, under the lock
   of the p2p. */
#include <stdio.h>

#include "base/error.h"
#include "base/try.h"
#include "base/wait.h"
#include "comm/lane/lane.h"
#include "comm/p2p/move.h"

/* Fails point to point for all members. */
static void poison(struct p2p *p2p, shoal_status status, const char *text)
{
    p2p->streams->operations->poison(p2p->streams, status, text);
}

shoal_status p2p_find_failure(struct p2p *p2p)
{
    TRY(p2p_reason(p2p));
    return lane_failure(p2p->lane);
}

/* Whether a message of a peer that has left or died may still arrive. */
static bool may_receive(const struct p2p_end *end)
{
    return end->direction == SHOAL_RECV && p2p_operations_of(end)->may_receive &&
           p2p_operations_of(end)->may_receive(end->stream);
}

/* Whether messages of the end's peer may still come: what one that has abandoned the group sent before has come. */
static bool may_still_receive(const struct p2p *p2p, const struct p2p_end *end)
{
    return transport_check_abandoned(p2p->part.peers, end->peer) == SHOAL_OK && may_receive(end);
}

/* Checks the peer and the deadlines of an end that has pending operations. */
static shoal_status check_end(struct p2p *p2p, struct p2p_end *end, int64_t now_ns)
{
    const struct transport_peers *peers = p2p->part.peers;
    if (end->peer != p2p->rank) {
        shoal_status status = peers->check_member(peers->context, end->peer);
        if (status != SHOAL_OK && !may_still_receive(p2p, end)) {
            char what[160];
            return error_prefix(status, "%s", p2p_describe(p2p, end->first, what, sizeof what));
        }
        if (status != SHOAL_OK) {
            error_clear(); /* of the peer that is gone */
        }
    }
    /* All of them: a later operation may have an earlier deadline. */
    for (const struct p2p_operation *operation = end->first; operation; operation = operation->next) {
        if (now_ns >= operation->deadline_ns && !operation->batch->is_limited) {
            return p2p_describe_timeout(p2p, operation, now_ns);
        }
    }
    return SHOAL_OK;
}

/* The first operation of an end whose call has a deadline of its own, which has passed; NULL if there is none. */
static struct p2p_operation *find_late(struct p2p_end *end, int64_t now_ns)
{
    struct p2p_operation *operation = end->first;
    while (operation && !(operation->batch->is_limited && now_ns >= operation->deadline_ns)) {
        operation = operation->next;
    }
    return operation;
}

/*
 * Ends such operations. One that has not begun is taken off, and nobody notices that it was there. If one has begun, a
 * part of its message was sent or taken, and the stream fails for both sides.
 */
static void end_late(struct p2p *p2p, struct p2p_end *end, int64_t now_ns, struct p2p_batch **ended)
{
    if (find_late(end, now_ns)) {
        p2p_move_end(p2p, end, ended); /* what the peer did before counts */
    }
    for (struct p2p_operation *late; (late = find_late(end, now_ns));) {
        shoal_status status = p2p_describe_timeout(p2p, late, now_ns);
        if (late->message.has_head) {
            p2p_break_end(p2p, end, status, ended);
        } else {
            p2p_withdraw(p2p, late);
            p2p_end_operation(p2p, late, status, shoal_error_text(), ended);
        }
    }
}

/* SHOAL_OK, or SHOAL_ERR_PEER: the member has died, or there is no way to it. */
static shoal_status check_source(struct p2p *p2p, struct p2p_end *end)
{
    shoal_status death = p2p->part.calls->check_death(p2p->part.group, end->peer);
    if (death != SHOAL_OK) {
        return may_receive(end) ? SHOAL_OK : death;
    }
    return p2p_operations_of(end)->check_way ? p2p_operations_of(end)->check_way(end->stream) : SHOAL_OK;
}

/*
 * SHOAL_OK while somebody may still send what an open receive waits for. A member that has died is the reason to fail
 * that all others will find. One that has left is not, as long as another is there.
 */
static shoal_status check_open_peers(struct p2p *p2p, int tag)
{
    const struct transport_peers *peers = p2p->part.peers;
    bool has_any = p2p->n_ranks == 1;
    for (int rank = 0; rank < p2p->n_ranks; rank++) {
        struct p2p_end *end = p2p_known_end(p2p, SHOAL_RECV, rank, tag);
        if (rank == p2p->rank) {
            continue;
        }
        TRY(check_source(p2p, end));
        has_any =
            has_any || peers->check_member(peers->context, rank) == SHOAL_OK || may_still_receive(p2p, end);
    }
    /* The text is that of a member that is gone. */
    return has_any ? SHOAL_OK : SHOAL_ERR_PEER;
}

static shoal_status check_open(struct p2p *p2p, const struct p2p_operation *operation, int64_t now_ns)
{
    shoal_status status = check_open_peers(p2p, operation->tag);
    if (status != SHOAL_OK) {
        char what[160];
        return error_prefix(status, "%s", p2p_describe(p2p, operation, what, sizeof what));
    }
    return now_ns >= operation->deadline_ns ? p2p_describe_timeout(p2p, operation, now_ns) : SHOAL_OK;
}

/* The first open receive that has to end, with the reason as the thread's text; NULL if there is none. */
static struct p2p_operation *find_hopeless(struct p2p *p2p, int64_t now_ns, shoal_status *status_out)
{
    struct p2p_operation *operation = p2p->open;
    while (operation && (*status_out = check_open(p2p, operation, now_ns)) == SHOAL_OK) {
        operation = operation->next;
    }
    return operation;
}

static bool is_open(const struct p2p *p2p, const struct p2p_operation *wanted)
{
    const struct p2p_operation *operation = p2p->open;
    while (operation && operation != wanted) {
        operation = operation->next;
    }
    return operation != NULL;
}

static void check_all_open(struct p2p *p2p, int64_t now_ns, struct p2p_batch **ended)
{
    shoal_status status = SHOAL_OK;
    for (struct p2p_operation *operation; (operation = find_hopeless(p2p, now_ns, &status));) {
        char text[ERROR_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        p2p_move_open(p2p, ended); /* a message may have come meanwhile */
        if (!is_open(p2p, operation)) {
            continue;
        }
        bool is_alone = status == SHOAL_ERR_TIMEOUT && operation->batch->is_limited;
        p2p_take_off_open(p2p, operation);
        (void)error_set(status, "%s", text);
        if (!is_alone) {
            p2p->has_failed = true;
            poison(p2p, status, text);
            p2p->must_tell_lane = true;
        }
        p2p_end_operation(p2p, operation, status, text, ended);
    }
}

void p2p_check_all(struct p2p *p2p, int64_t now_ns, struct p2p_batch **ended)
{
    p2p->next_check_ns = now_ns + WAIT_LIVENESS_NS;
    shoal_status failure = p2p_find_failure(p2p);
    if (failure != SHOAL_OK) {
        p2p_end_everything(p2p, failure, ended);
        return;
    }
    check_all_open(p2p, now_ns, ended);
    struct p2p_end *next = NULL;
    for (struct p2p_end *end = p2p->busy; end; end = next) {
        next = end->next_busy;
        shoal_status status = check_end(p2p, end, now_ns);
        if (status == SHOAL_OK) {
            end_late(p2p, end, now_ns, ended);
            continue;
        }
        /* The peer may have done its part before it left or died: that counts. */
        char text[ERROR_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        p2p_move_end(p2p, end, ended);
        if (!end->first) {
            continue;
        }
        (void)error_set(status, "%s", text);
        /* A group cannot be used without one of its members, so all members are told the reason. */
        poison(p2p, status, text);
        p2p->must_tell_lane = true;
        p2p_break_end(p2p, end, status, ended);
    }
}
