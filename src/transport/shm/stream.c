/* SPDX-License-Identifier: MIT */
/*
 * A ring of bytes between two ranks. The memory orders, argued in docs/design/p2p.md:
 *
 * - `written` is stored by the sender after the bytes it counts (release) and loaded by the receiver before it reads
 *   them (acquire); `read` is stored by the receiver (release) and loaded by the sender (acquire): room is written
 *   again only after it was read.
 * - A bell is rung only if the peer may wait. The receiver waits only after it saw the ring empty, the sender only
 *   after it saw it full. Each side stores its own counter and then loads the other's. All four accesses are seq_cst.
 *   So if both sides do this at the same time, one of them sees the other's store: either the side that wants to wait
 *   sees that it need not, or the other side sees that its peer may have found the ring empty (full), and rings.
 */
#include "transport/shm/stream.h"

#include <stdio.h>
#include <string.h>

#include "base/fail_point.h"

_Static_assert((STREAM_RING_BYTES & (STREAM_RING_BYTES - 1)) == 0, "positions wrap by a mask");
_Static_assert(STREAM_PIECE_BYTES % STREAM_UNIT == 0, "pieces but the last are whole units");
_Static_assert(sizeof(struct stream_head) <= STREAM_UNIT, "a head is one unit, so it never wraps");
_Static_assert(sizeof(struct stream) % 128 == 0, "streams follow each other in a table");

enum shared_reason_state {
    REASON_NONE = 0,
    REASON_BEING_WRITTEN =
        1, /* stays like this if the writer dies meanwhile; its death is reported instead */
    REASON_SET = 2
};

bool shared_reason_set(struct shared_reason *reason, shoal_status status, const char *text)
{
    uint32_t none = REASON_NONE;
    /* Relaxed: only one rank wins, and what it writes is released below. */
    if (!atomic_compare_exchange_strong_explicit(&reason->state, &none, REASON_BEING_WRITTEN,
                                                 memory_order_relaxed, memory_order_relaxed)) {
        return false;
    }
    reason->status = status;
    (void)snprintf(reason->text, sizeof reason->text, "%s", text ? text : "");
    /* Release: pairs with the load in shared_reason_get. */
    atomic_store_explicit(&reason->state, REASON_SET, memory_order_release);
    return true;
}

shoal_status shared_reason_get(struct shared_reason *reason)
{
    /* Acquire: pairs with the store in shared_reason_set; status and text were written before. */
    if (atomic_load_explicit(&reason->state, memory_order_acquire) != REASON_SET) {
        return SHOAL_OK;
    }
    shoal_status status = (shoal_status)reason->status;
    if (status >= SHOAL_OK || status < SHOAL_ERR_INTERNAL) {
        status = SHOAL_ERR_INTERNAL; /* a peer wrote it: never trusted to be a status */
    }
    return error_set(status, "%.*s", (int)sizeof reason->text - 1, reason->text);
}

static size_t round_up(size_t bytes)
{
    return (bytes + STREAM_UNIT - 1) / STREAM_UNIT * STREAM_UNIT;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t stream_message_room(size_t bytes)
{
    return STREAM_UNIT + round_up(bytes);
}

static void copy_in(struct stream *stream, uint64_t position, const unsigned char *bytes, size_t count)
{
    size_t offset = (size_t)position & (STREAM_RING_BYTES - 1);
    size_t first = smaller(count, STREAM_RING_BYTES - offset);
    if (first > 0) {
        memcpy(stream->ring + offset, bytes, first);
    }
    if (count > first) {
        memcpy(stream->ring, bytes + first, count - first);
    }
}

static void copy_out(const struct stream *stream, uint64_t position, unsigned char *bytes, size_t count)
{
    size_t offset = (size_t)position & (STREAM_RING_BYTES - 1);
    size_t first = smaller(count, STREAM_RING_BYTES - offset);
    if (first > 0) {
        memcpy(bytes, stream->ring + offset, first);
    }
    if (count > first) {
        memcpy(bytes + first, stream->ring, count - first);
    }
}

/* Computes written - read, as one side sees them. False if the memory is damaged. */
static bool count_used(uint64_t written, uint64_t read, size_t *used_out)
{
    uint64_t used = written - read;
    *used_out = (size_t)used;
    return used <= STREAM_RING_BYTES && used % STREAM_UNIT == 0;
}

static shoal_status fail_with_damage(uint64_t written, uint64_t read)
{
    return error_set(SHOAL_ERR_INTERNAL, "the memory of a stream is damaged: %llu bytes written, %llu read",
                     (unsigned long long)written, (unsigned long long)read);
}

/* Seq_cst: pairs with the receiver's store in finish_take. */
static uint64_t load_read(struct shm_stream_end *end)
{
    return atomic_load_explicit(&end->stream->read, memory_order_seq_cst);
}

/* Seq_cst: pairs with the sender's store in finish_put. */
static uint64_t load_written(struct shm_stream_end *end)
{
    return atomic_load_explicit(&end->stream->written, memory_order_seq_cst);
}

/* Shows `bytes` more to the receiver, and rings its bell if it may wait for them. */
static shoal_status finish_put(struct shm_stream_end *end, size_t bytes)
{
    uint64_t before = end->position;
    FAIL_POINT("stream put");
    end->position += bytes;
    /* Seq_cst: a release for the receiver's load_written, and before the load below. */
    atomic_store_explicit(&end->stream->written, end->position, memory_order_seq_cst);
    FAIL_POINT("stream put shown");
    if (load_read(end) == before) {
        doorbell_ring(end->peer); /* it may have found the ring empty */
    }
    return SHOAL_OK;
}

static shoal_status finish_take(struct shm_stream_end *end, size_t bytes)
{
    uint64_t before = end->position;
    FAIL_POINT("stream take");
    end->position += bytes;
    /* Seq_cst: a release for the sender's load_read, and before the load below. */
    atomic_store_explicit(&end->stream->read, end->position, memory_order_seq_cst);
    FAIL_POINT("stream take shown");
    if (load_written(end) - before >= STREAM_RING_BYTES) {
        doorbell_ring(end->peer); /* it may have found the ring full */
    }
    return SHOAL_OK;
}

static size_t put_head(struct shm_stream_end *end, struct stream_message *message)
{
    if (message->has_head) {
        return 0;
    }
    copy_in(end->stream, end->position, (const unsigned char *)&message->head, sizeof message->head);
    message->has_head = true;
    return STREAM_UNIT;
}

shoal_status stream_put(struct shm_stream_end *end, struct stream_message *message)
{
    message->is_stuck = false;
    uint64_t stop = end->position + STREAM_RING_BYTES;
    while (!stream_message_is_finished(message) && end->position < stop) {
        uint64_t read = load_read(end);
        size_t used = 0;
        if (!count_used(end->position, read, &used)) {
            return fail_with_damage(end->position, read);
        }
        if (used == STREAM_RING_BYTES) {
            message->is_stuck = true;
            return SHOAL_OK;
        }
        size_t taken = put_head(end, message);
        size_t room = smaller(STREAM_RING_BYTES - used - taken, STREAM_PIECE_BYTES);
        size_t piece = smaller(room, message->bytes - message->done);
        if (piece > 0) {
            copy_in(end->stream, end->position + taken, message->send + message->done, piece);
        }
        message->done += piece;
        shoal_status status = finish_put(end, taken + round_up(piece));
        if (status != SHOAL_OK) {
            return status;
        }
    }
    return SHOAL_OK;
}

shoal_status stream_take(struct shm_stream_end *end, struct stream_message *message)
{
    message->is_stuck = false;
    uint64_t stop = end->position + STREAM_RING_BYTES;
    while (!stream_message_is_finished(message) && end->position < stop) {
        uint64_t written = load_written(end);
        size_t available = 0;
        if (!count_used(written, end->position, &available)) {
            return fail_with_damage(written, end->position);
        }
        if (available == 0) {
            message->is_stuck = true;
            return SHOAL_OK;
        }
        size_t taken = 0;
        if (!message->has_head) {
            copy_out(end->stream, end->position, (unsigned char *)&message->found, sizeof message->found);
            if (!stream_head_is_equal(&message->found, &message->head)) {
                return SHOAL_ERR_MISMATCH;
            }
            message->has_head = true;
            taken = STREAM_UNIT;
        }
        size_t rest = smaller(available - taken, STREAM_PIECE_BYTES);
        size_t piece = smaller(rest, message->bytes - message->done);
        if (piece > 0) {
            copy_out(end->stream, end->position + taken, message->recv + message->done, piece);
        }
        message->done += piece;
        shoal_status status = finish_take(end, taken + round_up(piece));
        if (status != SHOAL_OK) {
            return status;
        }
    }
    return SHOAL_OK;
}

size_t stream_room(struct shm_stream_end *end)
{
    size_t used = 0;
    return count_used(end->position, load_read(end), &used) ? STREAM_RING_BYTES - used : 0;
}

size_t stream_available(struct shm_stream_end *end)
{
    size_t used = 0;
    return count_used(load_written(end), end->position, &used) ? used : 0;
}

void stream_fail(struct shm_stream_end *end, shoal_status status, const char *text)
{
    if (shared_reason_set(&end->stream->reason, status, text)) {
        doorbell_ring(end->peer);
    }
}

struct stream *stream_table_find(struct stream_table *table, size_t n_streams, int tag)
{
    uint32_t wanted = (uint32_t)tag + 1;
    for (size_t i = 0; i < n_streams; i++) {
        uint32_t held = 0;
        /* Relaxed: the stream was zeroed before anybody could see it, so only the tag itself is communicated. A tag
           never changes once it is set, so the slots before the first free one are the same for both sides. */
        if (atomic_compare_exchange_strong_explicit(&table->tags[i], &held, wanted, memory_order_relaxed,
                                                    memory_order_relaxed) ||
            held == wanted) {
            return &table->streams[i];
        }
    }
    return NULL;
}
