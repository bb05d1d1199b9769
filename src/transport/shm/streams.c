/* SPDX-License-Identifier: MIT */
/*
 * The streams of a group in shared memory: which ring a message goes through, and whose bell rings.
 *
 * The streams from a rank to another lie in tables (transport/shm/stream.h) of 2, 4, 8, ... 32 of them, a segment each,
 * opened as tags need them: few descriptors however many tags, little memory for few. A tag keeps its stream until the
 * group is closed, so the number of tags is bounded.
 */
#include "transport/streams.h"

#include <stdio.h>

#include "base/fail_point.h"
#include "base/mem.h"
#include "base/try.h"
#include "sharedmem/segment.h"
#include "transport/shm/stream.h"
#include "transport/transport.h"

#define FIRST_TABLE_STREAMS 2
/* 2 + 4 + 8 + 16 + 31 * 32 */
#define MAX_TABLES 35

static size_t table_streams(size_t table)
{
    return table < 4 ? (size_t)FIRST_TABLE_STREAMS << table : STREAM_TABLE_MAX;
}

static size_t count_all_streams(void)
{
    size_t count = 0;
    for (size_t i = 0; i < MAX_TABLES; i++) {
        count += table_streams(i);
    }
    return count;
}

/* The tables of the streams from one rank to another. */
struct path {
    struct path *next;
    int source;
    int destination;
    size_t n_segments;
    size_t capacity;
    struct segment **segments;
};

/* The segment "p2p/doorbells" of a group. */
struct shared {
    struct shared_reason reason; /* of the whole group */
    struct doorbell bells[];     /* by rank */
};

struct listed_end {
    struct shm_stream_end end; /* first */
    struct listed_end *next;
};

struct shm_streams {
    struct streams base;
    struct segment *segment;
    struct shared *shared;
    struct path *paths;
    struct listed_end *ends;
};

/* Making and ending ------------------------------------------------------------------------------------ */

static void free_streams(struct streams *base)
{
    struct shm_streams *streams = (struct shm_streams *)base;
    while (streams->ends) {
        struct listed_end *end = streams->ends;
        streams->ends = end->next;
        mem_free(end);
    }
    while (streams->paths) {
        struct path *path = streams->paths;
        streams->paths = path->next;
        for (size_t i = 0; i < path->n_segments; i++) {
            segment_unref(path->segments[i]);
        }
        mem_free(path->segments);
        mem_free(path);
    }
    segment_unref(streams->segment);
    mem_free(streams);
}

static shoal_status connect_streams(const struct transport_peers *peers, int64_t deadline_ns,
                                    struct streams **streams_out)
{
    struct shm_streams *streams = mem_alloc_zeroed(1, sizeof *streams);
    if (!streams) {
        return SHOAL_ERR_NO_MEMORY;
    }
    streams->base = (struct streams){.operations = &shm_stream_operations, .peers = peers};
    size_t bytes = sizeof(struct shared) + (size_t)peers->n_ranks * sizeof(struct doorbell);
    shoal_status status =
        peers->open_segment(peers->context, "p2p/doorbells", bytes, deadline_ns, &streams->segment);
    if (status != SHOAL_OK) {
        mem_free(streams);
        return status;
    }
    streams->shared = segment_base(streams->segment);
    streams->base.bell = &streams->shared->bells[peers->rank];
    *streams_out = &streams->base;
    return SHOAL_OK;
}

/* Peers may still take what was put: nothing ends before the memory is freed. */
static void disconnect_streams(struct streams *base)
{
    (void)base;
}

/* Paths ------------------------------------------------------------------------------------------------ */

static struct path *find_path(struct shm_streams *streams, int source, int destination)
{
    for (struct path *path = streams->paths; path; path = path->next) {
        if (path->source == source && path->destination == destination) {
            return path;
        }
    }
    struct path *path = mem_alloc_zeroed(1, sizeof *path);
    if (path) {
        path->source = source;
        path->destination = destination;
        path->next = streams->paths;
        streams->paths = path;
    }
    return path;
}

static shoal_status open_table(struct shm_streams *streams, struct path *path, int64_t deadline_ns)
{
    const struct transport_peers *peers = streams->base.peers;
    FAIL_POINT("p2p open streams");
    void *segments = path->segments;
    TRY(mem_grow(&segments, &path->capacity, path->n_segments + 1, sizeof *path->segments));
    path->segments = segments;
    char name[64];
    (void)snprintf(name, sizeof name, "p2p/%d/%d/%zu", path->source, path->destination, path->n_segments);
    struct segment *segment = NULL;
    TRY(peers->open_segment(peers->context, name, stream_table_bytes(table_streams(path->n_segments)),
                            deadline_ns, &segment));
    path->segments[path->n_segments++] = segment;
    return SHOAL_OK;
}

/* One thread at a time. */
static shoal_status find_stream(struct shm_streams *streams, int source, int destination, int tag,
                                int64_t deadline_ns, struct stream **stream_out)
{
    struct path *path = find_path(streams, source, destination);
    if (!path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < MAX_TABLES; i++) {
        if (i == path->n_segments) {
            TRY(open_table(streams, path, deadline_ns));
        }
        struct stream *stream = stream_table_find(segment_base(path->segments[i]), table_streams(i), tag);
        if (stream) {
            *stream_out = stream;
            return SHOAL_OK;
        }
    }
    return error_set(SHOAL_ERR_UNSUPPORTED,
                     "tag %d: rank %d has used %zu tags to send to rank %d already, which is the most that a "
                     "group can have",
                     tag, source, count_all_streams(), destination);
}

/* Ends ------------------------------------------------------------------------------------------------- */

static shoal_status open_end(struct streams *base, bool is_sender, int peer, int tag, int64_t deadline_ns,
                             struct stream_end **end_out)
{
    struct shm_streams *streams = (struct shm_streams *)base;
    int rank = base->peers->rank;
    struct stream *stream = NULL;
    TRY(find_stream(streams, is_sender ? rank : peer, is_sender ? peer : rank, tag, deadline_ns, &stream));
    struct listed_end *listed = mem_alloc_zeroed(1, sizeof *listed);
    if (!listed) {
        return SHOAL_ERR_NO_MEMORY;
    }
    listed->end = (struct shm_stream_end){
        .base = {.streams = base}, .stream = stream, .peer = &streams->shared->bells[peer]};
    listed->next = streams->ends;
    streams->ends = listed;
    *end_out = &listed->end.base;
    return SHOAL_OK;
}

static struct shm_stream_end *own(struct stream_end *end)
{
    return (struct shm_stream_end *)end;
}

static shoal_status put(struct stream_end *end, struct stream_message *message)
{
    return stream_put(own(end), message);
}

static shoal_status take(struct stream_end *end, struct stream_message *message)
{
    return stream_take(own(end), message);
}

static bool can_put(struct stream_end *end, size_t bytes)
{
    return stream_message_room(bytes) <= stream_room(own(end));
}

static bool can_take(struct stream_end *end)
{
    return stream_available(own(end)) > 0;
}

static void fail(struct stream_end *end, shoal_status status, const char *text)
{
    stream_fail(own(end), status, text);
}

static shoal_status find_failure(struct stream_end *end)
{
    return shared_reason_get(&own(end)->stream->reason);
}

static void poison(struct streams *base, shoal_status status, const char *text)
{
    struct shared *shared = ((struct shm_streams *)base)->shared;
    if (shared_reason_set(&shared->reason, status, text)) {
        for (int i = 0; i < base->peers->n_ranks; i++) {
            doorbell_ring(&shared->bells[i]);
        }
    }
}

static shoal_status find_reason(struct streams *base)
{
    return shared_reason_get(&((struct shm_streams *)base)->shared->reason);
}

const struct transport_streams shm_stream_operations = {
    .connect = connect_streams,
    .disconnect = disconnect_streams,
    .free = free_streams,
    .open = open_end,
    .put = put,
    .take = take,
    .can_put = can_put,
    .can_take = can_take,
    .fail = fail,
    .failure = find_failure,
    .poison = poison,
    .reason = find_reason,
};
