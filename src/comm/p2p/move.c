/* SPDX-License-Identifier: MIT */
/* Moving messages, under the lock of the p2p, and ending operations: docs/design/p2p.md. */
#include "comm/p2p/move.h"

#include <stdio.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"

/* Ending ----------------------------------------------------------------------------------------------- */

void p2p_end_operation(struct p2p *p2p, struct p2p_operation *operation, shoal_status status,
                       const char *text, struct p2p_batch **ended)
{
    struct p2p_batch *batch = operation->batch;
    operation->status = status;
    operation->text = status == SHOAL_OK ? NULL : mem_copy_string(text);
    if (status == SHOAL_OK && operation->source_out) {
        *operation->source_out = operation->end->peer;
    }
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

void p2p_end_all_of(struct p2p *p2p, struct p2p_end *end, shoal_status status, const char *text,
                    struct p2p_batch **ended)
{
    while (end->first) {
        p2p_end_operation(p2p, p2p_pop(p2p, end), status, text, ended);
    }
}

void p2p_break_end(struct p2p *p2p, struct p2p_end *end, shoal_status status, struct p2p_batch **ended)
{
    p2p->has_failed = true;
    end->failure = status;
    (void)snprintf(end->failure_text, sizeof end->failure_text, "%s", shoal_error_text());
    p2p_operations_of(end)->fail(end->stream, status, end->failure_text);
    p2p_end_all_of(p2p, end, status, end->failure_text, ended);
}

/* Moving ----------------------------------------------------------------------------------------------- */

static shoal_status move_send(struct p2p_end *end, struct p2p_operation *operation)
{
    /* If the stream has failed, nobody will receive the message, even if there is room for it. */
    TRY(p2p_operations_of(end)->failure(end->stream));
    return p2p_operations_of(end)->put(end->stream, &operation->message);
}

static shoal_status move_receive(struct p2p *p2p, struct p2p_end *end, struct p2p_operation *operation)
{
    /* Data that was sent before the failure is still received, so it counts before the reason. But the reason must
       be read first: otherwise data might arrive between the look at the data and the look at the reason. */
    shoal_status failure = p2p_operations_of(end)->failure(end->stream);
    shoal_status status = p2p_operations_of(end)->take(end->stream, &operation->message);
    if (status == SHOAL_ERR_MISMATCH) {
        return p2p_describe_mismatch(p2p, operation);
    }
    if (status == SHOAL_OK && failure != SHOAL_OK && !stream_message_is_finished(&operation->message)) {
        return p2p_operations_of(end)->failure(end->stream);
    }
    return status;
}

void p2p_move_end(struct p2p *p2p, struct p2p_end *end, struct p2p_batch **ended)
{
    for (;;) {
        /* A message that comes after the look for it must not go to a receive that was posted later. */
        if (p2p_open_is_first(p2p, end) && !p2p_bind_open(p2p, end)) {
            return;
        }
        struct p2p_operation *operation = end->first;
        if (!operation) {
            return;
        }
        shoal_status status =
            end->direction == SHOAL_SEND ? move_send(end, operation) : move_receive(p2p, end, operation);
        if (status != SHOAL_OK) {
            p2p_break_end(p2p, end, status, ended);
            return;
        }
        if (!stream_message_is_finished(&operation->message)) {
            p2p->has_more = p2p->has_more || !operation->message.is_stuck;
            return;
        }
        p2p_end_operation(p2p, p2p_pop(p2p, end), SHOAL_OK, NULL, ended);
    }
}

/* SHOAL_OK, or why one of the streams with this tag has failed, with its text set. */
static shoal_status check_sources(struct p2p *p2p, int tag)
{
    for (int rank = 0; rank < p2p->n_ranks; rank++) {
        struct p2p_end *end = p2p_known_end(p2p, SHOAL_RECV, rank, tag);
        if (end->failure != SHOAL_OK) {
            return error_set(end->failure, "%s", end->failure_text);
        }
        TRY(p2p_operations_of(end)->failure(end->stream));
    }
    return SHOAL_OK;
}

/* Binds an open receive with this tag to a source that has a message, and moves it. Returns false if no source has
   one. */
static bool move_from_any(struct p2p *p2p, int tag, struct p2p_batch **ended)
{
    for (int i = 0; i < p2p->n_ranks; i++) {
        int rank = (p2p->first_source + i) % p2p->n_ranks;
        struct p2p_end *end = p2p_known_end(p2p, SHOAL_RECV, rank, tag);
        if (p2p_bind_open(p2p, end)) {
            p2p->first_source = rank + 1;
            p2p_move_end(p2p, end, ended);
            return true;
        }
    }
    return false;
}

/* As in move_receive: the reason is read first, and counts if there is no message then. */
void p2p_move_open(struct p2p *p2p, struct p2p_batch **ended)
{
    struct p2p_operation *operation = p2p->open;
    int looked_at = -1; /* the tag */
    while (operation) {
        if (operation->tag == looked_at) {
            operation = operation->next;
            continue;
        }
        shoal_status failure = check_sources(p2p, operation->tag);
        if (move_from_any(p2p, operation->tag, ended)) {
            operation = p2p->open; /* others may have been bound as well */
            looked_at = -1;
        } else if (failure != SHOAL_OK) {
            p2p->has_failed = true;
            p2p->has_more = true; /* receives that were posted later have their turn */
            p2p_take_off_open(p2p, operation);
            p2p_end_operation(p2p, operation, failure, shoal_error_text(), ended);
            operation = p2p->open;
        } else {
            looked_at = operation->tag;
            operation = operation->next;
        }
    }
}

void p2p_move_all(struct p2p *p2p, struct p2p_batch **ended)
{
    struct p2p_end *next = NULL;
    p2p->has_more = false;
    for (struct p2p_end *end = p2p->busy; end; end = next) {
        next = end->next_busy;
        p2p_move_end(p2p, end, ended);
    }
    p2p_move_open(p2p, ended);
}

void p2p_end_everything(struct p2p *p2p, shoal_status status, struct p2p_batch **ended)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    p2p->has_failed = p2p->has_failed || p2p->busy || p2p->open;
    while (p2p->busy) {
        p2p_end_all_of(p2p, p2p->busy, status, text, ended);
    }
    while (p2p->open) {
        struct p2p_operation *operation = p2p->open;
        p2p_take_off_open(p2p, operation);
        p2p_end_operation(p2p, operation, status, text, ended);
    }
}
