/* SPDX-License-Identifier: MIT */
/* The operations of this rank, all under the lock of its p2p: those of each end in order, and receives from any rank,
   which have no end until a message has come. */
#include "comm/lane/uses.h"
#include "comm/p2p/move.h"
#include "comm/p2p/p2p.h"

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

void p2p_append(struct p2p *p2p, struct p2p_operation *operation)
{
    struct p2p_end *end = operation->end;
    operation->message.head.sequence = end->sequence++;
    if (end->first) {
        end->last->next = operation;
    } else {
        end->first = operation;
        make_busy(p2p, end);
    }
    end->last = operation;
}

/* Puts an operation before the others of its end, none of which has begun. */
static void prepend(struct p2p *p2p, struct p2p_operation *operation)
{
    struct p2p_end *end = operation->end;
    if (!end->first) {
        operation->next = NULL;
        p2p_append(p2p, operation);
        return;
    }
    operation->message.head.sequence = end->first->message.head.sequence;
    for (struct p2p_operation *later = end->first; later; later = later->next) {
        later->message.head.sequence++;
    }
    end->sequence++;
    operation->next = end->first;
    end->first = operation;
}

struct p2p_operation *p2p_pop(struct p2p *p2p, struct p2p_end *end)
{
    struct p2p_operation *operation = end->first;
    end->first = operation->next;
    if (!end->first) {
        make_idle(p2p, end);
    }
    return operation;
}

void p2p_withdraw(struct p2p *p2p, struct p2p_operation *operation)
{
    struct p2p_end *end = operation->end;
    struct p2p_operation *before = NULL;
    for (struct p2p_operation *other = end->first; other != operation; other = other->next) {
        before = other;
    }
    for (struct p2p_operation *later = operation->next; later; later = later->next) {
        later->message.head.sequence--;
    }
    end->sequence--;
    if (!before) {
        (void)p2p_pop(p2p, end);
        return;
    }
    before->next = operation->next;
    if (end->last == operation) {
        end->last = before;
    }
}

/* Receives from any rank ------------------------------------------------------------------------------- */

/*
 * They are open until a message has come that fits; then they are bound to the end of its source, and are ordinary
 * receives. A message goes to the receive that was posted first, so an open one comes before those that were posted
 * later on the end.
 */

void p2p_add_open(struct p2p *p2p, struct p2p_operation *operation)
{
    struct p2p_operation **link = &p2p->open;
    while (*link) {
        link = &(*link)->next;
    }
    *link = operation;
}

void p2p_take_off_open(struct p2p *p2p, struct p2p_operation *operation)
{
    struct p2p_operation **link = &p2p->open;
    while (*link != operation) {
        link = &(*link)->next;
    }
    *link = operation->next;
    operation->next = NULL;
}

struct p2p_operation *p2p_find_open(const struct p2p *p2p, int tag)
{
    struct p2p_operation *operation = p2p->open;
    while (operation && operation->tag != tag) {
        operation = operation->next;
    }
    return operation;
}

bool p2p_open_is_first(const struct p2p *p2p, const struct p2p_end *end)
{
    if (!p2p->open || end->direction != SHOAL_RECV) {
        return false;
    }
    const struct p2p_operation *operation = p2p_find_open(p2p, end->tag);
    const struct p2p_operation *first = end->first;
    return operation && (!first || (!first->message.has_head && first->number > operation->number));
}

bool p2p_bind_open(struct p2p *p2p, struct p2p_end *end)
{
    if (end->failure != SHOAL_OK || !p2p_open_is_first(p2p, end) ||
        !p2p_operations_of(end)->can_take(end->stream)) {
        return false;
    }
    struct p2p_operation *operation = p2p_find_open(p2p, end->tag);
    p2p_take_off_open(p2p, operation);
    operation->end = end;
    prepend(p2p, operation);
    return true;
}

/* Looking for memory ----------------------------------------------------------------------------------- */

/* The first work of the list that is wanted, or NULL. */
static struct shoal_work *find_in_list(const struct p2p_operation *operation,
                                       const struct work_search *search)
{
    for (; operation; operation = operation->next) {
        const struct stream_message *message = &operation->message;
        const void *data = message->recv ? (const void *)message->recv : message->send;
        struct shoal_work *work = operation->batch->work;
        if (work && data && message->bytes > 0 && !completion_is_finished(&work->completion) &&
            search->uses(search->context, data, message->bytes, message->recv != NULL)) {
            return work;
        }
    }
    return NULL;
}

struct shoal_work *p2p_find_work(struct p2p *p2p, const struct work_search *search)
{
    if (!p2p) {
        return NULL;
    }
    (void)pthread_mutex_lock(&p2p->lock);
    struct shoal_work *found = find_in_list(p2p->open, search);
    for (const struct p2p_end *end = p2p->busy; end && !found; end = end->next_busy) {
        found = find_in_list(end->first, search);
    }
    if (found) {
        (void)completion_ref(&found->completion);
    }
    (void)pthread_mutex_unlock(&p2p->lock);
    return found;
}
