/* SPDX-License-Identifier: MIT */
/* Frames to the endpoint and back, peer by peer, under the lock. */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/wait.h"
#include "transport/message/wire_state.h"

static void note_passed(struct wire *wire)
{
    /* Release is not needed: who waits looks at the peers under the lock. */
    atomic_fetch_add_explicit(&wire->passed, 1, memory_order_relaxed);
    wait_wake_all(&wire->passed, /*is_shared=*/false);
}

/* A peer that is gone ----------------------------------------------------------------------------------- */

void wire_lose_peer(struct wire *wire, int rank, const char *text)
{
    struct peer *peer = &wire->peers[rank];
    if (peer->is_gone) {
        return;
    }
    peer->is_gone = true;
    peer->gone_ns = clock_now_ns();
    (void)snprintf(peer->text, sizeof peer->text, "%s", text);
    LOG(SHOAL_LOG_INFO, "rank %d: rank %d cannot be reached: %s", wire->world->rank, rank, peer->text);
    note_passed(wire);
    wire->user.lose(wire->user.context);
}

void wire_lose_failed_peer(struct wire *wire, int rank)
{
    const char *text = wire->kind->failure(wire->endpoint, rank);
    wire_lose_peer(wire, rank, text ? text : "no reason was given");
}

/* Sending, under the lock -------------------------------------------------------------------------------- */

static struct frame *pop_sent(struct peer *peer)
{
    struct frame *frame = peer->first;
    peer->first = frame->next;
    peer->n_sending -= peer->n_sending > 0;
    peer->waiting = peer->waiting == frame ? frame->next : peer->waiting;
    return frame;
}

/*
 * What a frame was sent from is its lender's again: the endpoint has ended with it, it was not begun, or the endpoint
 * was given up. is_taken: the rank has got it whole.
 */
static void give_back(struct wire *wire, int rank, struct frame *frame, bool is_taken)
{
    if (frame->lender) {
        wire->user.give_back(wire->user.context, rank, frame, is_taken);
        frame->lender = NULL;
    }
}

static void free_sent(struct wire *wire, int rank, struct frame *frame, bool is_taken)
{
    give_back(wire, rank, frame, is_taken);
    wire_free_frame(wire, frame);
}

/* A frame that was on its way. One whose memory the endpoint does not give back is lost. */
static void drop_message(struct wire *wire, int rank, struct frame *frame)
{
    bool is_free = frame->is_ahead || wire->kind->cancel(wire->endpoint, rank, &frame->message);
    if (frame->has_apart) {
        is_free = wire->kind->cancel(wire->endpoint, rank, &frame->apart) && is_free;
    }
    give_back(wire, rank, frame, /*is_taken=*/false);
    if (is_free) {
        wire_free_frame(wire, frame);
    }
}

bool wire_has_apart(const struct wire *wire)
{
    return wire->kind->irecv_apart != NULL;
}

bool wire_may_lend(const struct wire *wire, int rank)
{
    const struct transport_world *world = wire->world;
    bool is_far = !world->hosts || world->hosts[rank] != world->hosts[world->rank];
    return is_far && wire->kind->may_lend && wire->kind->may_lend(wire->endpoint);
}

/* The head and the payload follow each other, or are two messages. */
static void begin_send(struct wire *wire, int rank, struct frame *frame)
{
    const struct endpoint_kind *kind = wire->kind;
    frame->has_apart = frame->lent != NULL;
    kind->isend(wire->endpoint, rank, &frame->message, &frame->head,
                FRAME_HEAD_BYTES + (frame->lent ? 0 : frame->head.bytes));
    if (frame->lent) {
        kind->isend_apart(wire->endpoint, rank, &frame->apart, frame->lent, frame->head.bytes);
    }
}

static enum endpoint_state test_sent(struct wire *wire, struct frame *frame)
{
    enum endpoint_state state = wire->kind->test(wire->endpoint, &frame->message);
    return state == ENDPOINT_DONE && frame->has_apart ? wire->kind->test(wire->endpoint, &frame->apart)
                                                      : state;
}

/* Hands over as many as may be on their way. */
static void begin_sends(struct wire *wire, int rank)
{
    struct peer *peer = &wire->peers[rank];
    while (peer->waiting && peer->n_sending < wire->depth && !peer->is_gone) {
        struct frame *frame = peer->waiting;
        peer->waiting = frame->next;
        peer->n_sending++;
        begin_send(wire, rank, frame);
    }
}

/* Sends what is in line for a rank. Nothing can be sent to one that is gone. */
static void send_frames(struct wire *wire, int rank)
{
    struct peer *peer = &wire->peers[rank];
    while (peer->first) {
        begin_sends(wire, rank);
        if (peer->n_sending == 0) {
            free_sent(wire, rank, pop_sent(peer), /*is_taken=*/false); /* it is gone */
            continue;
        }
        enum endpoint_state state = test_sent(wire, peer->first);
        if (state == ENDPOINT_PENDING) {
            return;
        }
        struct frame *frame = pop_sent(peer);
        if (state == ENDPOINT_FAILED) {
            drop_message(wire, rank, frame);
            wire_lose_failed_peer(wire, rank);
        } else {
            free_sent(wire, rank, frame, /*is_taken=*/true);
        }
    }
}

static void take_back_from(struct wire *wire, int rank, const void *lender)
{
    struct peer *peer = &wire->peers[rank];
    struct frame *before = NULL;
    struct frame *next;
    bool is_begun = true;
    for (struct frame *frame = peer->first; frame; frame = next) {
        next = frame->next;
        is_begun = is_begun && frame != peer->waiting;
        if (is_begun || frame->lender != lender) {
            before = frame;
            continue;
        }
        *(before ? &before->next : &peer->first) = next;
        peer->waiting = peer->waiting == frame ? next : peer->waiting;
        peer->last = peer->last == frame ? before : peer->last;
        free_sent(wire, rank, frame, /*is_taken=*/false);
    }
}

void wire_take_back(struct wire *wire, const void *lender)
{
    for (int rank = 0; rank < wire->world->n_ranks; rank++) {
        take_back_from(wire, rank, lender);
    }
}

void wire_give_back_all(struct wire *wire)
{
    for (int rank = 0; rank < wire->world->n_ranks; rank++) {
        for (struct frame *frame = wire->peers[rank].first; frame; frame = frame->next) {
            give_back(wire, rank, frame, /*is_taken=*/false);
        }
    }
}

/* What goes to other hosts is counted. A payload apart counts with its head. */
static void count_frame(const struct transport_world *world, int rank, const struct frame *frame)
{
    if (world->sent_to_hosts && world->hosts[rank] != world->hosts[world->rank]) {
        /* Relaxed: a sum that orders nothing. */
        atomic_fetch_add_explicit(&world->sent_to_hosts[world->hosts[rank]],
                                  FRAME_HEAD_BYTES + frame->head.bytes, memory_order_relaxed);
    }
}

void wire_send(struct wire *wire, int rank, struct frame *frame)
{
    struct peer *peer = &wire->peers[rank];
    count_frame(wire->world, rank, frame);
    frame->next = NULL;
    if (peer->first) {
        peer->last->next = frame;
    } else {
        peer->first = frame;
    }
    peer->last = frame;
    peer->waiting = peer->waiting ? peer->waiting : frame;
    peer->is_settled =
        frame->head.type == FRAME_FENCE || (frame->head.type == FRAME_FENCE_PASSED && peer->is_settled);
    if (wire->kind->any_thread) {
        send_frames(wire, rank);
    } else {
        wire->must_wake = true;
    }
}

/* What came, under the lock ----------------------------------------------------------------------------- */

/* True unless there was no memory. */
bool wire_send_number(struct wire *wire, int rank, enum frame_type type, int32_t number)
{
    struct frame *frame = wire_new_frame(wire, 0);
    if (frame) {
        frame->head.type = type;
        frame->head.number = number;
        wire_send(wire, rank, frame);
    }
    return frame != NULL;
}

static bool hear_passed(struct wire *wire, int rank, int32_t number)
{
    wire->peers[rank].n_passed = number;
    wire->peers[rank].is_silent = false;
    note_passed(wire);
    return true;
}

/* Owns the frame. */
static void route(struct wire *wire, int rank, struct frame *frame)
{
    bool is_good = false;
    struct peer *peer = &wire->peers[rank];
    peer->is_fenced =
        frame->head.type == FRAME_FENCE || (frame->head.type == FRAME_FENCE_PASSED && peer->is_fenced);
    if (frame->head.type < FRAME_FENCE) {
        if (wire->user.receive(wire->user.context, wire, rank, frame)) {
            return;
        }
    } else if (frame->head.type == FRAME_FENCE) {
        is_good = wire_send_number(wire, rank, FRAME_FENCE_PASSED, frame->head.number);
    } else if (frame->head.type == FRAME_FENCE_PASSED) {
        is_good = hear_passed(wire, rank, frame->head.number);
    }
    wire_free_frame(wire, frame);
    if (!is_good) {
        wire_lose_peer(wire, rank, "a frame came that makes no sense, or there was no memory for it");
    }
}

/* Progress, under the lock ------------------------------------------------------------------------------ */

static void post_receives(struct wire *wire, int rank)
{
    struct peer *peer = &wire->peers[rank];
    while (peer->n_receiving < wire->depth && !peer->is_gone) {
        struct frame *frame = wire_new_frame(wire, wire->frame_bytes);
        if (!frame) {
            return;
        }
        *(peer->receiving ? &peer->last_receiving->next : &peer->receiving) = frame;
        peer->last_receiving = frame;
        peer->n_receiving++;
        wire->kind->irecv(wire->endpoint, rank, &frame->message, &frame->head,
                          FRAME_HEAD_BYTES + wire->frame_bytes);
    }
}

static struct frame *take_first_receive(struct peer *peer)
{
    struct frame *frame = peer->receiving;
    peer->receiving = frame->next;
    peer->n_receiving--;
    return frame;
}

/* The last of a list, which is not empty. Nothing is added to the list afterwards. */
static struct frame *take_last(struct frame **first)
{
    while ((*first)->next) {
        first = &(*first)->next;
    }
    struct frame *frame = *first;
    *first = NULL;
    return frame;
}

/*
 * Payloads of a rank that are received at once, with those that are asked for ahead of their heads: as many as the
 * endpoint has room for beside the receives of frames.
 */
#define APART_MOST (ENDPOINT_IN_FLIGHT - WIRE_DEPTH)
_Static_assert(2 * WIRE_DEPTH <= ENDPOINT_IN_FLIGHT, "a frame to send is two messages at most");

/* Whether a message is a frame, or the head of one. */
static bool is_frame(const struct wire *wire, const struct frame *frame)
{
    size_t bytes = frame->message.bytes;
    if (bytes < FRAME_HEAD_BYTES || frame->head.is_apart > 1) {
        return false;
    }
    bool is_apart = frame->head.is_apart;
    bool may_be_apart = wire->kind->irecv_apart && frame->head.bytes <= wire->frame_bytes;
    return is_apart ? may_be_apart && bytes == FRAME_HEAD_BYTES
                    : frame->head.bytes == bytes - FRAME_HEAD_BYTES;
}

static void ask_for_payload(struct wire *wire, int rank, struct frame *frame, size_t room)
{
    frame->has_apart = true;
    wire->kind->irecv_apart(wire->endpoint, rank, &frame->apart, frame->payload, room);
}

static void post_ahead(struct wire *wire, int rank)
{
    struct peer *peer = &wire->peers[rank];
    while (peer->has_lent && peer->n_ahead < wire->depth && peer->n_ahead + peer->n_apart < APART_MOST &&
           !peer->is_gone) {
        struct frame *frame = wire_new_frame(wire, wire->frame_bytes);
        if (!frame) {
            return;
        }
        *(peer->ahead ? &peer->last_ahead->next : &peer->ahead) = frame;
        peer->last_ahead = frame;
        peer->n_ahead++;
        frame->is_ahead = true;
        ask_for_payload(wire, rank, frame, wire->frame_bytes);
    }
}

/*
 * A head whose payload is apart has come: the frame that will have both. Payloads come in the order of their heads, so
 * that the first receive that was posted ahead, if there is one, is for this head. Owns the head.
 */
static struct frame *begin_payload(struct wire *wire, int rank, struct frame *head)
{
    struct peer *peer = &wire->peers[rank];
    struct frame *frame = peer->ahead;
    peer->has_lent = true;
    peer->n_apart++;
    if (!frame) {
        ask_for_payload(wire, rank, head, head->head.bytes);
        return head;
    }
    peer->ahead = frame->next;
    peer->n_ahead--;
    frame->head = head->head;
    wire_free_frame(wire, head);
    return frame;
}

static void append_arriving(struct peer *peer, struct frame *frame)
{
    frame->next = NULL;
    *(peer->arriving ? &peer->last_arriving->next : &peer->arriving) = frame;
    peer->last_arriving = frame;
}

static struct frame *take_first_arriving(struct peer *peer)
{
    struct frame *frame = peer->arriving;
    peer->arriving = frame->next;
    peer->n_apart -= frame->has_apart;
    return frame;
}

/* Takes the next message of a rank, if there is one, and asks for the payload if it comes apart. */
static bool take_message(struct wire *wire, int rank)
{
    struct peer *peer = &wire->peers[rank];
    if (!peer->receiving || peer->n_apart == APART_MOST) {
        return false;
    }
    enum endpoint_state state = wire->kind->test(wire->endpoint, &peer->receiving->message);
    if (state == ENDPOINT_PENDING) {
        peer->is_drained = peer->left_ns != 0 && !peer->arriving;
        return false;
    }
    struct frame *frame = take_first_receive(peer);
    wire->n_received++;
    if (state == ENDPOINT_FAILED) {
        drop_message(wire, rank, frame);
        wire_lose_failed_peer(wire, rank);
    } else if (peer->is_gone) {
        wire_free_frame(wire, frame); /* what it sent before made no sense */
    } else if (!is_frame(wire, frame)) {
        wire_free_frame(wire, frame);
        wire_lose_peer(wire, rank, "a message came that is no frame");
    } else {
        append_arriving(peer, frame->head.is_apart ? begin_payload(wire, rank, frame) : frame);
    }
    post_receives(wire, rank);
    return true;
}

/* Routes the frames that are whole, in the order in which they were sent. */
static void route_arrived(struct wire *wire, int rank)
{
    struct peer *peer = &wire->peers[rank];
    while (peer->arriving) {
        enum endpoint_state state = ENDPOINT_DONE;
        if (peer->arriving->has_apart) {
            state = wire->kind->test(wire->endpoint, &peer->arriving->apart);
        }
        if (state == ENDPOINT_PENDING) {
            return;
        }
        struct frame *frame = take_first_arriving(peer);
        bool is_cut = frame->has_apart && frame->apart.bytes != frame->head.bytes;
        if (state == ENDPOINT_FAILED) {
            drop_message(wire, rank, frame);
            wire_lose_failed_peer(wire, rank);
        } else if (peer->is_gone || is_cut) {
            wire_free_frame(wire, frame);
            wire_lose_peer(wire, rank, "a payload came that is not as long as its head says");
        } else {
            route(wire, rank, frame);
        }
    }
}

/* Takes what has come from a rank. */
static void receive(struct wire *wire, int rank)
{
    post_receives(wire, rank);
    do {
        route_arrived(wire, rank);
        post_ahead(wire, rank);
    } while (take_message(wire, rank));
}

bool wire_push(struct wire *wire)
{
    bool is_sending = false;
    wire->kind->progress(wire->endpoint);
    for (int rank = 0; rank < wire->world->n_ranks; rank++) {
        if (rank != wire->world->rank) {
            receive(wire, rank);
            send_frames(wire, rank);
            is_sending = is_sending || wire->peers[rank].first;
        }
    }
    return is_sending;
}

void wire_drop_messages(struct wire *wire)
{
    for (int rank = 0; rank < wire->n_peers; rank++) {
        struct peer *peer = &wire->peers[rank];
        /* The last first: what comes goes to the first that is left. */
        while (peer->receiving) {
            drop_message(wire, rank, take_last(&peer->receiving));
        }
        while (peer->ahead) {
            drop_message(wire, rank, take_last(&peer->ahead));
        }
        while (peer->arriving) {
            drop_message(wire, rank, take_last(&peer->arriving));
        }
        while (peer->n_sending > 0) {
            drop_message(wire, rank, pop_sent(peer));
        }
        while (peer->first) {
            free_sent(wire, rank, pop_sent(peer), /*is_taken=*/false);
        }
        *peer = (struct peer){.is_gone = true};
    }
}
