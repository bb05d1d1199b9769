/* SPDX-License-Identifier: MIT */
/*
 * An endpoint moves whole messages between the ranks of a world and knows nothing else: no groups, no collectives, no
 * deadlines of calls. Everything above it is written once, in this folder: docs/design/message.md.
 *
 * Between two ranks messages arrive in the order in which they were sent, each with its length. Nothing blocks except
 * open, close and wait. Messages may move only while progress is called.
 *
 * Threads: the calls on one endpoint are made by one thread at a time, except wait and wake. Unless any_thread is set they
 * are all made by the same thread, from open to close.
 */
#ifndef MESSAGE_ENDPOINT_H
#define MESSAGE_ENDPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"
#include "transport/transport.h"

/* The longest message, unless the kind says a longer one. */
#define ENDPOINT_MESSAGE_BYTES ((size_t)128 * 1024 + 64)
/* So many messages may be on their way to a rank, and as many receives posted from it; of both sequences together. */
#define ENDPOINT_IN_FLIGHT 8

/* Who makes progress. */
enum endpoint_caller {
    ENDPOINT_THREAD, /* the wire's */
    ENDPOINT_WAITER, /* one that waits for what may come */
    ENDPOINT_DRIVER, /* one that was told to: shoal_world_progress */
    ENDPOINT_CLOSER  /* the one that closes */
};

/* What keeps callers from making progress. */
enum endpoint_turns {
    ENDPOINT_TURNS_FREE,
    ENDPOINT_TURNS_LOCKED, /* a lock of the application's: only the wire's thread takes it, and may wait for it for ever */
    ENDPOINT_TURNS_DRIVEN /* only some threads of the application may */
};

enum endpoint_state {
    ENDPOINT_PENDING,
    ENDPOINT_DONE,
    ENDPOINT_FAILED /* the rank at the other end cannot be reached any more: `failure` says why */
};

/*
 * A message on its way. The memory of the struct and of the data is the caller's, and stays as it is until test has said
 * that the message has ended, or cancel was called. The fields are for the endpoint to use; `bytes` of a message that was
 * received is what came.
 */
struct endpoint_message {
    struct endpoint_message *next;
    char *data;
    size_t bytes; /* to send; the room to receive into, and then what came */
    size_t moved;
    enum endpoint_state state;
    uint64_t native[2];
};

struct endpoint; /* the kind's own */

struct endpoint_kind {
    size_t struct_size;
    const char *name; /* of the transport that is made of it */
    const char *doc;
    /* The longest message, at least ENDPOINT_MESSAGE_BYTES; 0 means that many. Long ones save handshakes, and cost
       memory for every peer. */
    size_t message_bytes;
    /* Calls may be made by any thread, one at a time; where there is `enter`, progress and close only inside of it. */
    bool any_thread;
    /*
     * How many seconds a rank that does nothing is waited for where no call's deadline counts: to answer a fence, to
     * take what a call that has failed lent to it, and, when the world is closed, to take what is left to send. 0 means
     * 2.
     */
    double patience_s;

    /*
     * The endpoint of this rank. All ranks of the world open theirs at the same time; it may wait for them, until the
     * deadline. SHOAL_OK means that every rank can be reached.
     */
    shoal_status (*open)(const struct transport_world *world, int64_t deadline_ns,
                         struct endpoint **endpoint_out);
    /* Everything that was sent and is not FAILED reaches the peers that still read, as far as the deadline allows. */
    void (*close)(struct endpoint *endpoint, int64_t deadline_ns);

    /* `rank` is another rank of the world. */
    void (*isend)(struct endpoint *endpoint, int rank, struct endpoint_message *message, const void *data,
                  size_t bytes);
    /* For the next message of that rank. One that is longer than the room fails. */
    void (*irecv)(struct endpoint *endpoint, int rank, struct endpoint_message *message, void *data,
                  size_t room);
    /*
     * Both are NULL if the endpoint has one sequence of messages between two ranks. Otherwise they are for a second one
     * beside it, with an order of its own. A message of it may be received after any time. What is sent lies in memory
     * of a caller that waits until test has said that the message has ended, or until the endpoint was given up.
     */
    void (*isend_apart)(struct endpoint *endpoint, int rank, struct endpoint_message *message,
                        const void *data, size_t bytes);
    void (*irecv_apart)(struct endpoint *endpoint, int rank, struct endpoint_message *message, void *data,
                        size_t room);
    /*
     * NULL if the two are. Whether this rank may send by isend_apart; it always receives. The same from open to close.
     */
    bool (*may_lend)(struct endpoint *endpoint);
    enum endpoint_state (*test)(struct endpoint *endpoint, struct endpoint_message *message);
    /*
     * The endpoint does not touch the message or its data any more. Only of one that has failed, or before close: what
     * was sent may have been cut, what was to be received may be lost. Returns false if the endpoint was given up, and
     * its memory may still be used by others: it must stay as it is.
     */
    bool (*cancel)(struct endpoint *endpoint, int rank, struct endpoint_message *message);

    /* Moves what can be moved now. */
    void (*progress)(struct endpoint *endpoint);
    /*
     * Returns when progress may have something to do, when somebody calls wake, or at the instant. It may be called
     * while another thread is in any other function. It is NULL if the endpoint cannot tell; progress is then called
     * every now and then.
     */
    void (*wait)(struct endpoint *endpoint, int64_t until_ns);
    void (*wake)(struct endpoint *endpoint); /* NULL if wait is */

    /* Why a rank cannot be reached; NULL while it can. Stays until close. */
    const char *(*failure)(struct endpoint *endpoint, int rank);

    /*
     * It is NULL if the death of a rank is this rank's affair alone. Otherwise it is called when one has died: nothing
     * is sent or received any more, and all that is on its way has failed. Afterwards this process does not read what
     * it was to send. Not NULL where messages are sent apart: it is how a caller gets its memory back that a peer does
     * not take.
     */
    void (*give_up)(struct endpoint *endpoint, const char *why);

    /*
     * It is NULL if any thread may make progress. Otherwise it is called before progress, and `leave` after it; it may
     * take a lock of the application's, so that no lock is held. Returns false if this caller may not make progress.
     */
    bool (*enter)(struct endpoint *endpoint, enum endpoint_caller caller);
    void (*leave)(struct endpoint *endpoint);
    /* NULL means ENDPOINT_TURNS_FREE. The same from open to close. */
    enum endpoint_turns (*turns)(struct endpoint *endpoint);
    /*
     * Whether messages were handed over that only progress begins to send; NULL if there never are any. A call that
     * returns leaves none behind: the application may keep everybody from making progress until its peers have them.
     */
    bool (*has_noted)(struct endpoint *endpoint);
};

/*
 * The transport that carries everything over endpoints of a kind. It lives as long as the process, and so does the
 * kind. The same kind gives the same transport. Returns NULL if the kind does not fit, or there are too many, with the
 * error text set.
 */
const struct transport *message_transport(const struct endpoint_kind *kind);

#endif
