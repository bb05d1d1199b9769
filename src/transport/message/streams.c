/* SPDX-License-Identifier: MIT */
/*
 * Streams by messages: a port at the sender and one at the receiver for each (group, source, destination, tag). A
 * message is sent as one frame or several. The first begins with the stream_head, and no frame holds parts of two
 * messages. Credit bounds how much the receiver keeps of messages that nobody has received yet.
 *
 * A group has one more port, which carries the reason when all its streams fail.
 */
#include "transport/message/streams.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/try.h"
#include "transport/message/channel.h"

/* In the head of a frame. */
enum {
    FRAME_CONTINUES = 0,
    FRAME_BEGINS = 1
};

struct message_end {
    struct stream_end base; /* first */
    struct message_end *next;
    struct port *port;
    int rank; /* the other side's, in the world */
};

struct message_streams {
    struct streams base; /* first */
    struct router *router;
    uint64_t generation; /* of the group: part of the numbers of all ports */
    struct message_end *ends;
    /* Threads may still ask for the reason after disconnect, when there are no ports any more. */
    pthread_mutex_t lock;
    struct port *port;   /* has the reason for which all streams failed; under the lock */
    shoal_status status; /* that reason after disconnect; under the lock */
    char text[ERROR_TEXT_BYTES];
    struct doorbell bell;
};

static struct message_streams *of(struct streams *streams)
{
    return (struct message_streams *)streams;
}

static struct message_end *end_of(struct stream_end *end)
{
    return (struct message_end *)end;
}

/* Connecting --------------------------------------------------------------------------------------------- */

/* Under the lock: copies the reason out of the port, which is about to go. */
static void keep_reason(struct message_streams *streams)
{
    streams->status = port_failure(streams->port);
    if (streams->status != SHOAL_OK) {
        (void)snprintf(streams->text, sizeof streams->text, "%s", shoal_error_text());
        error_clear();
    }
}

static void disconnect_streams(struct streams *base)
{
    struct message_streams *streams = of(base);
    router_settle(streams->router);
    for (struct message_end *end = streams->ends; end; end = end->next) {
        port_detach(end->port);
        end->port = NULL;
    }
    (void)pthread_mutex_lock(&streams->lock);
    if (streams->port) {
        keep_reason(streams);
        port_detach(streams->port);
        streams->port = NULL;
    }
    (void)pthread_mutex_unlock(&streams->lock);
}

static void free_streams(struct streams *base)
{
    struct message_streams *streams = of(base);
    while (streams->ends) {
        struct message_end *end = streams->ends;
        streams->ends = end->next;
        mem_free(end);
    }
    (void)pthread_mutex_destroy(&streams->lock);
    mem_free(streams);
}

shoal_status message_streams_connect(const struct transport_peers *peers, struct doorbell *bell,
                                     int64_t deadline_ns, struct streams **streams_out)
{
    FAIL_POINT("message streams connect");
    struct message_streams *streams = mem_alloc_aligned(sizeof *streams, _Alignof(struct message_streams));
    if (!streams) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memset(streams, 0, sizeof *streams);
    (void)pthread_mutex_init(&streams->lock, NULL);
    streams->base = (struct streams){
        .operations = &message_streams, .peers = peers, .bell = bell ? bell : &streams->bell};
    streams->router = peers->state;
    shoal_status status = transport_generation(peers, deadline_ns, &streams->generation);
    if (status == SHOAL_OK) {
        struct port_id id = port_id_of(peers->key, "streams", streams->generation);
        status = port_attach(streams->router, id, id, streams->base.bell, &streams->port);
    }
    if (status != SHOAL_OK) {
        free_streams(&streams->base);
        return status;
    }
    *streams_out = &streams->base;
    return SHOAL_OK;
}

static shoal_status connect_streams(const struct transport_peers *peers, int64_t deadline_ns,
                                    struct streams **streams_out)
{
    return message_streams_connect(peers, NULL, deadline_ns, streams_out);
}

static shoal_status open_end(struct streams *base, bool is_sender, int peer, int tag, int64_t deadline_ns,
                             struct stream_end **end_out)
{
    struct message_streams *streams = of(base);
    const struct transport_peers *peers = base->peers;
    FAIL_POINT("message stream open");
    struct message_end *end = mem_alloc_zeroed(1, sizeof *end);
    if (!end) {
        return SHOAL_ERR_NO_MEMORY;
    }
    uint64_t source = (uint64_t)(is_sender ? peers->rank : peer);
    uint64_t destination = (uint64_t)(is_sender ? peer : peers->rank);
    uint64_t number = source << 48 ^ destination << 32 ^ (uint32_t)tag ^ streams->generation;
    struct port_id sender = port_id_of(peers->key, "sender", number);
    struct port_id receiver = port_id_of(peers->key, "receiver", number);
    end->base.streams = base;
    end->rank = peers->world_ranks[peer];
    shoal_status status = port_attach(streams->router, is_sender ? sender : receiver,
                                      is_sender ? receiver : sender, base->bell, &end->port);
    if (status != SHOAL_OK) {
        mem_free(end);
        return status;
    }
    end->next = streams->ends;
    streams->ends = end;
    *end_out = &end->base;
    return SHOAL_OK;
}

/* Moving ------------------------------------------------------------------------------------------------- */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Nothing can be moved now. Fails if the peer cannot be reached any more. */
static shoal_status get_stuck(const struct message_end *end, struct stream_message *message)
{
    message->is_stuck = true;
    return message_check_connection(of(end->base.streams)->router, end->rank);
}

/* Sends the next piece of a message as a frame. Returns false if memory runs out. */
static bool put_piece(struct message_end *end, struct stream_message *message)
{
    size_t head_bytes = message->has_head ? 0 : sizeof message->head;
    struct router *router = of(end->base.streams)->router;
    size_t piece = smaller(router_frame_bytes(router) - head_bytes, message->bytes - message->done);
    struct frame *frame = router_new_frame(router, head_bytes + piece);
    if (!frame) {
        return false;
    }
    frame->head.number = message->has_head ? FRAME_CONTINUES : FRAME_BEGINS;
    memcpy(frame->payload, &message->head, head_bytes);
    if (piece > 0) {
        memcpy(frame->payload + head_bytes, message->send + message->done, piece);
    }
    if (!port_send(end->port, end->rank, FRAME_DATA, frame)) {
        return false;
    }
    message->has_head = true;
    message->done += piece;
    return true;
}

static shoal_status put(struct stream_end *base, struct stream_message *message)
{
    struct message_end *end = end_of(base);
    message->is_stuck = false;
    for (int i = 0; i < PIPE_CREDIT && !stream_message_is_finished(message); i++) {
        if (port_credit(end->port, end->rank, FRAME_DATA) == 0) {
            return get_stuck(end, message);
        }
        FAIL_POINT("message stream put");
        if (!put_piece(end, message)) {
            error_clear(); /* there may be memory when it is tried again, until the deadline of the message */
            message->is_stuck = true;
            return SHOAL_OK;
        }
    }
    return SHOAL_OK;
}

/* Reads the head of a message. SHOAL_ERR_MISMATCH: it is another message than expected. */
static shoal_status take_head(const struct frame *frame, struct stream_message *message)
{
    if (frame->head.number != FRAME_BEGINS || frame->head.bytes < sizeof message->found) {
        return error_set(SHOAL_ERR_INTERNAL, "a message of a stream has no beginning");
    }
    memcpy(&message->found, frame->payload, sizeof message->found);
    if (!stream_head_is_equal(&message->found, &message->head)) {
        return SHOAL_ERR_MISMATCH;
    }
    message->has_head = true;
    return SHOAL_OK;
}

static shoal_status take(struct stream_end *base, struct stream_message *message)
{
    struct message_end *end = end_of(base);
    message->is_stuck = false;
    for (int i = 0; i < PIPE_CREDIT && !stream_message_is_finished(message); i++) {
        const struct frame *frame = port_peek(end->port, end->rank, FRAME_DATA);
        if (!frame) {
            return get_stuck(end, message);
        }
        size_t head_bytes = message->has_head ? 0 : sizeof message->found;
        if (!message->has_head) {
            TRY(take_head(frame, message));
        }
        size_t piece = frame->head.bytes - head_bytes;
        if (piece > message->bytes - message->done) {
            return error_set(SHOAL_ERR_INTERNAL, "a message of a stream is longer than it said");
        }
        if (piece > 0) {
            memcpy(message->recv + message->done, frame->payload + head_bytes, piece);
        }
        message->done += piece;
        FAIL_POINT("message stream take");
        port_drop(end->port, end->rank, FRAME_DATA);
    }
    return SHOAL_OK;
}

static bool can_put(struct stream_end *base, size_t bytes)
{
    struct message_end *end = end_of(base);
    size_t room =
        port_credit(end->port, end->rank, FRAME_DATA) * router_frame_bytes(of(end->base.streams)->router);
    return room >= sizeof(struct stream_head) && bytes <= room - sizeof(struct stream_head);
}

static bool can_take(struct stream_end *base)
{
    struct message_end *end = end_of(base);
    return port_peek(end->port, end->rank, FRAME_DATA) != NULL;
}

static bool may_receive(struct stream_end *base)
{
    return router_may_receive(of(base->streams)->router, end_of(base)->rank);
}

static shoal_status check_way(struct stream_end *base)
{
    return message_check_connection(of(base->streams)->router, end_of(base)->rank);
}

/* Failing ------------------------------------------------------------------------------------------------ */

static void fail(struct stream_end *base, shoal_status status, const char *text)
{
    struct message_end *end = end_of(base);
    port_fail(end->port, &end->rank, 1, status, text);
}

static shoal_status failure(struct stream_end *base)
{
    return port_failure(end_of(base)->port);
}

static void poison(struct streams *base, shoal_status status, const char *text)
{
    struct message_streams *streams = of(base);
    (void)pthread_mutex_lock(&streams->lock);
    if (streams->port) {
        port_fail(streams->port, base->peers->world_ranks, base->peers->n_ranks, status, text);
    } else if (streams->status == SHOAL_OK) {
        streams->status = status;
        (void)snprintf(streams->text, sizeof streams->text, "%s", text);
    }
    (void)pthread_mutex_unlock(&streams->lock);
}

static shoal_status reason(struct streams *base)
{
    struct message_streams *streams = of(base);
    (void)pthread_mutex_lock(&streams->lock);
    shoal_status status = streams->port ? port_failure(streams->port) : streams->status;
    if (!streams->port && status != SHOAL_OK) {
        (void)error_set(status, "%s", streams->text);
    }
    (void)pthread_mutex_unlock(&streams->lock);
    return status;
}

const struct transport_streams message_streams = {
    .connect = connect_streams,
    .disconnect = disconnect_streams,
    .free = free_streams,
    .open = open_end,
    .put = put,
    .take = take,
    .can_put = can_put,
    .can_take = can_take,
    .fail = fail,
    .failure = failure,
    .poison = poison,
    .reason = reason,
    .may_receive = may_receive,
    .check_way = check_way,
};
