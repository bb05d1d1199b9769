/* SPDX-License-Identifier: MIT */
/*
 * Messages from one rank to another through a ring of bytes in shared memory: docs/design/p2p.md.
 *
 * One sender, one receiver. A message is a head (what the sender says it is) and its bytes, in pieces as there is room, so
 * that a message may be larger than the ring. Counters only grow and are multiples of STREAM_UNIT; nothing that
 * the peer wrote is used before it was checked against the geometry of the ring.
 */
#ifndef SHM_STREAM_H
#define SHM_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "shoal/status.h"
#include "transport/shm/doorbell.h"

#define STREAM_UNIT 64
#define STREAM_RING_BYTES ((size_t)64 * 1024)
/* What is copied before the peer hears of it, so that both sides copy at the same time. */
#define STREAM_PIECE_BYTES (STREAM_RING_BYTES / 4)

/* Why something ended, for all who share it: the first reason stays. */
struct shared_reason {
    _Atomic uint32_t state; /* enum shared_reason_state */
    int32_t status;
    char text[ERROR_TEXT_BYTES];
};

/* True when this was the first. */
bool shared_reason_set(struct shared_reason *reason, shoal_status status, const char *text);
/* SHOAL_OK, or the reason, with its text as the thread's error text. One load while all is well. */
shoal_status shared_reason_get(struct shared_reason *reason);

/* In shared memory; zeroed memory is a fresh one. */
struct stream {
    _Alignas(128) _Atomic uint64_t written; /* bytes, by the sender */
    _Alignas(128) _Atomic uint64_t read;    /* bytes, by the receiver */
    _Alignas(128) struct shared_reason reason;
    _Alignas(128) unsigned char ring[STREAM_RING_BYTES];
};

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
    bool is_stuck; /* stopped because the ring was full (empty): the peer will ring when that changes */
    struct stream_head found; /* what came instead, after SHOAL_ERR_MISMATCH */
};

static inline bool stream_message_is_finished(const struct stream_message *message)
{
    return message->has_head && message->done == message->bytes;
}

/* One side of a stream, in private memory. */
struct stream_end {
    struct stream *stream;
    struct doorbell *peer; /* rung when the other side may wait for what was done */
    uint64_t position;     /* this side's counter */
};

/*
 * Moves as much of a message as can be moved now, and about a ring's worth at most, so that other streams have their
 * turn: unless it is finished, is_stuck says whether to wait for a ring of the doorbell or to call again. Messages are
 * put and taken one after the other, each until it is finished. Failures: SHOAL_ERR_MISMATCH of stream_take, without a text, when another message came than the one
 * expected (message->found); SHOAL_ERR_INTERNAL when the counters make no sense. The caller then fails the stream.
 */
shoal_status stream_put(struct stream_end *end, struct stream_message *message);
shoal_status stream_take(struct stream_end *end, struct stream_message *message);

/* Bytes a message takes in a ring. */
size_t stream_message_room(size_t bytes);
/* Bytes that stream_put could put now; bytes that stream_take could take. 0 when the counters make no sense. */
size_t stream_room(struct stream_end *end);
size_t stream_available(struct stream_end *end);

/* The first reason stays; the peer is told. */
void stream_fail(struct stream_end *end, shoal_status status, const char *text);

/*
 * Several streams in one segment, given to tags as they come. A slot that has a tag keeps it. Both sides look from
 * the first slot on and take the first that is free or has their tag, so they find the same one.
 */
#define STREAM_TABLE_MAX 32

struct stream_table {
    _Atomic uint32_t tags[STREAM_TABLE_MAX]; /* tag + 1; 0: free */
    struct stream streams[];                 /* up to STREAM_TABLE_MAX */
};

static inline size_t stream_table_bytes(size_t n_streams)
{
    return sizeof(struct stream_table) + n_streams * sizeof(struct stream);
}

/* NULL when all slots have other tags. */
struct stream *stream_table_find(struct stream_table *table, size_t n_streams, int tag);

#endif
