/* SPDX-License-Identifier: MIT */
/* What the files of the wire share: wire.c, wire_frames.c, wire_moves.c. */
#ifndef MESSAGE_WIRE_STATE_H
#define MESSAGE_WIRE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/completion.h"
#include "transport/message/wire.h"

#define PEER_TEXT_BYTES 256

/*
 * Messages on their way at once, to a rank and from it. A library that hands over long messages only after both sides
 * have agreed needs several, so that one moves while others agree; each receive has a frame of the longest message.
 * What has `wait` reads and writes a stream, which needs no more than one.
 */
#define WIRE_DEPTH 2

/* Another rank. */
struct peer {
    struct frame *receiving; /* for its next messages, in their order */
    struct frame *last_receiving;
    int n_receiving;
    /*
     * What came and was not routed: the first waits for its payload, which is apart; the others for those before them.
     */
    struct frame *arriving;
    struct frame *last_arriving;
    int n_apart; /* payloads that are received, and whose heads have come */
    /*
     * Receives of payloads whose heads have not come: a library that agrees with the receiver on each long message
     * begins to move it at once where a receive waits for it. They are posted once the rank has lent something.
     */
    struct frame *ahead;
    struct frame *last_ahead;
    int n_ahead;
    bool has_lent;
    struct frame *first; /* to be sent; the first n_sending of them are on their way */
    struct frame *last;
    struct frame *waiting; /* the first of those that are not; NULL if all are */
    int n_sending;
    bool is_settled;  /* nothing was sent since the last fence */
    bool is_silent;   /* it has not answered a fence in time: no other is waited for until it does */
    int32_t n_fences; /* that were sent; wraps */
    int32_t n_passed; /* that were answered */
    bool is_fenced;   /* its last frame was a fence, or it has sent none */
    /* When it was first said to have left its world, or to be dead; 0 if it has not been yet. */
    int64_t left_ns;
    bool is_drained; /* nothing of it was there to be read since then */
    bool is_gone;
    int64_t gone_ns;
    char text[PEER_TEXT_BYTES];
};

struct wire {
    const struct endpoint_kind *kind;
    const struct transport_world *world;
    struct wire_user user;
    int64_t open_deadline_ns;
    struct completion opened;
    pthread_t thread;
    pthread_mutex_t lock; /* of all below */
    struct endpoint *endpoint;
    bool is_closing;
    bool must_wake;     /* something was handed over that only the thread may send */
    struct peer *peers; /* by rank */
    size_t frame_bytes; /* of the longest payload */
    int depth;          /* messages to a rank, and from it, that are on their way at once */
    struct frame *spare;
    int n_spare;
    struct frame *spare_calls;
    int n_spare_calls;
    _Atomic uint32_t passed; /* changes with every fence that was answered, or cannot be */
    /* Of an endpoint that has to be polled. */
    _Atomic int n_pollers;  /* threads that wait and look themselves */
    _Atomic uint32_t pokes; /* changes when the thread should look at once */
    unsigned n_naps;        /* of the thread since something came last */
    uint64_t n_received;    /* messages; under the lock */
    uint64_t n_turns;       /* in which progress was made; under the lock */
    _Atomic bool has_given_up;
    _Atomic uint32_t has_ended; /* the thread has; set under the lock */
    int n_peers;                /* ranks of the world, which may end before the thread does */
    /* The world was closed, and the thread waits for the application's lock: it touches nothing but the wire and the endpoint. */
    bool is_abandoned;
    bool is_released; /* and frees the wire itself */
};

/* wire_moves.c, under the lock --------------------------------------------------------------------------- */

/* Takes what came from all ranks and sends what is in line. True while something is. Inside of enter and leave. */
bool wire_push(struct wire *wire);
/* True unless there was no memory. */
bool wire_send_number(struct wire *wire, int rank, enum frame_type type, int32_t number);
void wire_lose_peer(struct wire *wire, int rank, const char *text);
/* With the endpoint's reason. */
void wire_lose_failed_peer(struct wire *wire, int rank);
/* The endpoint was given up: it does not read what was lent any more. */
void wire_give_back_all(struct wire *wire);
/* Before the endpoint is closed. */
void wire_drop_messages(struct wire *wire);

#endif
