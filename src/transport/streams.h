/* SPDX-License-Identifier: MIT */
/*
 * What a transport offers for point to point: a stream of messages per (source, destination, tag). comm/p2p/engine.c
 * puts and takes messages, waits, and keeps deadlines; the transport moves bytes: docs/design/p2p.md.
 *
 * One thread at a time calls the functions of a group's streams, except those that may be called from any thread, as
 * said there. None of them waits, except connect and open, which have a deadline.
 *
 * A rank sleeps on its bell (transport/doorbell.h). Whoever does something for which a rank may wait rings the rank's
 * bell: the peer, if both share memory, otherwise a thread of the transport in the rank's process.
 */
#ifndef TRANSPORT_STREAMS_H
#define TRANSPORT_STREAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"
#include "transport/doorbell.h"

struct transport_peers;
struct transport_streams;

/* What the sender says of a message, and the receiver expects. */
struct stream_head {
    uint64_t count;
    uint32_t dtype;
    uint32_t sequence; /* of the messages of the stream; wraps */
};

struct stream_message {
    struct stream_head head;
    const unsigned char *send; /* one of the two */
    unsigned char *recv;
    size_t bytes;
    size_t done; /* bytes that were put or taken */
    bool has_head;
    bool is_stuck;            /* nothing more can be moved now: the bell rings when that changes */
    struct stream_head found; /* what came instead, after SHOAL_ERR_MISMATCH */
};

static inline bool stream_message_is_finished(const struct stream_message *message)
{
    return message->has_head && message->done == message->bytes;
}

static inline bool stream_head_is_equal(const struct stream_head *a, const struct stream_head *b)
{
    return a->sequence == b->sequence && a->dtype == b->dtype && a->count == b->count;
}

/* This rank's streams on a group. A transport's own begins with this. */
struct streams {
    const struct transport_streams *operations;
    const struct transport_peers *peers;
    struct doorbell *bell; /* this rank's */
};

/* One side of a stream. A transport's own begins with this. */
struct stream_end {
    struct streams *streams;
};

struct transport_streams {
    /* Blocks for the processes of members at most, not for their callers. */
    shoal_status (*connect)(const struct transport_peers *peers, int64_t deadline_ns,
                            struct streams **streams_out);
    /*
     * Called when the group goes away. Afterwards nothing is put, taken, opened or failed; it must not wait for peers.
     * The bell, poison and reason must still work, for threads that are about to return.
     */
    void (*disconnect)(struct streams *streams);
    /* Frees the streams and their ends. Any time after disconnect, also after the world was closed. */
    void (*free)(struct streams *streams);

    /*
     * Opens this rank's end of the stream to (is_sender) or from group rank `peer`, which may be the rank itself. Tags
     * are 0 or more. Called once for each end, which lives as long as the streams. May run while messages move on other
     * ends.
     */
    shoal_status (*open)(struct streams *streams, bool is_sender, int peer, int tag, int64_t deadline_ns,
                         struct stream_end **end_out);

    /*
     * Moves as much of a message as can be moved now, but a bounded amount, so that other streams get their turn. If
     * the message is not finished then, message->is_stuck says whether to wait for the bell or to call again. Messages
     * are put and taken one after the other, each until it is finished. When a message was put, its bytes were copied
     * or sent, and the transport delivers it. Failures: SHOAL_ERR_MISMATCH of take, without a text, when a different
     * message came than the expected one (message->found); SHOAL_ERR_INTERNAL, with a text, when what came is
     * malformed. The caller then fails the stream.
     */
    shoal_status (*put)(struct stream_end *end, struct stream_message *message);
    shoal_status (*take)(struct stream_end *end, struct stream_message *message);

    /* Whether a message could be put in whole, or a first part of one taken, now: for who would wait for itself. */
    bool (*can_put)(struct stream_end *end, size_t bytes);
    bool (*can_take)(struct stream_end *end);

    /* Ends one stream for both sides; the first reason stays, the peer is told. */
    void (*fail)(struct stream_end *end, shoal_status status, const char *text);
    /* SHOAL_OK, or why the stream failed, with its text set. What was put before a failure can still be taken.
       Cheap. */
    shoal_status (*failure)(struct stream_end *end);

    /* Poison all streams of all members, and give the reason for that. Both may be called from any
       thread. */
    void (*poison)(struct streams *streams, shoal_status status, const char *text);
    shoal_status (*reason)(struct streams *streams);

    /*
     * Optional. After a peer has left or died: whether something that it sent before may still arrive. It becomes false
     * after a while. It is NULL if everything that was put can be taken.
     */
    bool (*may_receive)(struct stream_end *end);
    /* Optional. SHOAL_OK, or SHOAL_ERR_PEER with a text: the connection to the peer is lost. It is NULL if there is
       none to lose. */
    shoal_status (*check_way)(struct stream_end *end);
};

#endif
