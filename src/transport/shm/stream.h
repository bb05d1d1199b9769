/* SPDX-License-Identifier: MIT */
/*
 * Messages from one rank to another through a ring of bytes in shared memory: docs/design/p2p.md.
 *
 * A ring has one sender and one receiver. A message is a head, in which the sender says what it is, and its bytes. They
 * are copied in pieces, as there is room, so a message may be larger than the ring. Counters only grow, and are
 * multiples of STREAM_UNIT. Counters that the peer wrote are checked against the size of the ring before they are used.
 */
#ifndef SHM_STREAM_H
#define SHM_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "shoal/status.h"
#include "transport/doorbell.h"
#include "transport/streams.h"

#define STREAM_UNIT 64
#define STREAM_RING_BYTES ((size_t)64 * 1024)
/* What is copied before the peer hears of it, so that both sides copy at the same time. */
#define STREAM_PIECE_BYTES (STREAM_RING_BYTES / 4)

/* Why a stream, or all streams of a group, failed; in shared memory. The first reason stays. */
struct shared_reason {
    _Atomic uint32_t state; /* enum shared_reason_state */
    int32_t status;
    char text[ERROR_TEXT_BYTES];
};

/* Sets the reason if there is none yet. Returns whether it did. */
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

/* One side of a stream, in private memory. */
struct shm_stream_end {
    struct stream_end base;
    struct stream *stream;
    struct doorbell *peer; /* the other rank's: rung when it may be waiting for what was done */
    uint64_t position;     /* this side's counter */
};

/* put and take of struct transport_streams. One call moves about a ring's worth at most. */
shoal_status stream_put(struct shm_stream_end *end, struct stream_message *message);
shoal_status stream_take(struct shm_stream_end *end, struct stream_message *message);

/* The streams of the transport's table, in streams.c. */
extern const struct transport_streams shm_stream_operations;

/* How many bytes of a ring a message of so many bytes takes. */
size_t stream_message_room(size_t bytes);
/* Bytes of the ring that are free for stream_put, and that are there for stream_take. 0 if the counters make no
   sense. */
size_t stream_room(struct shm_stream_end *end);
size_t stream_available(struct shm_stream_end *end);

/* Ends the stream for both sides, and rings the peer's bell. The first reason stays. */
void stream_fail(struct shm_stream_end *end, shoal_status status, const char *text);

/*
 * Several streams in one segment, given to tags as they come. A slot that has a tag keeps it. Both sides look from
 * the first slot on and take the first that is free or has their tag, so they find the same one.
 */
#define STREAM_TABLE_MAX 32

struct stream_table {
    _Atomic uint32_t tags[STREAM_TABLE_MAX]; /* tag + 1; 0 if it is free */
    struct stream streams[];                 /* up to STREAM_TABLE_MAX */
};

static inline size_t stream_table_bytes(size_t n_streams)
{
    return sizeof(struct stream_table) + n_streams * sizeof(struct stream);
}

/* NULL when all slots have other tags. */
struct stream *stream_table_find(struct stream_table *table, size_t n_streams, int tag);

#endif
