/* SPDX-License-Identifier: MIT */
/*
 * Which stream: the ends this rank has, and the shared memory they lie in.
 *
 * The streams from a rank to another lie in tables (transport/shm/stream.h) of 2, 4, 8, ... 32 of them, a segment each,
 * opened as tags need them: few descriptors however many tags, little memory for few. A tag keeps its stream until the world is
 * closed, so the number of tags is bounded.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/fail_point.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/try.h"
#include "comm/group.h"
#include "comm/p2p.h"
#include "comm/p2p_engine.h"
#include "comm/world.h"
#include "transport/segment.h"

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

/* Making and ending ------------------------------------------------------------------------------------ */

static void free_ends(struct p2p *p2p)
{
    for (size_t i = 0; i < P2P_BUCKETS; i++) {
        while (p2p->buckets[i]) {
            struct p2p_end *end = p2p->buckets[i];
            p2p->buckets[i] = end->next;
            mem_free(end);
        }
    }
}

static void free_paths(struct p2p *p2p)
{
    while (p2p->paths) {
        struct p2p_path *path = p2p->paths;
        p2p->paths = path->next;
        for (size_t i = 0; i < path->n_segments; i++) {
            segment_unref(path->segments[i]);
        }
        mem_free(path->segments);
        mem_free(path);
    }
}

struct p2p *p2p_ref(struct p2p *p2p)
{
    refcount_get(&p2p->references);
    return p2p;
}

void p2p_unref(struct p2p *p2p)
{
    if (!refcount_put(&p2p->references)) {
        return;
    }
    free_ends(p2p);
    free_paths(p2p);
    segment_unref(p2p->segment);
    (void)pthread_mutex_destroy(&p2p->lock);
    (void)pthread_mutex_destroy(&p2p->connect_lock);
    mem_free(p2p);
}

static shoal_status init_locks(struct p2p *p2p)
{
    if (pthread_mutex_init(&p2p->lock, NULL) != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "a mutex could not be made");
    }
    if (pthread_mutex_init(&p2p->connect_lock, NULL) != 0) {
        (void)pthread_mutex_destroy(&p2p->lock);
        return error_set(SHOAL_ERR_SYSTEM, "a mutex could not be made");
    }
    return SHOAL_OK;
}

static shoal_status connect_group(struct p2p *p2p, int64_t deadline_ns)
{
    const struct transport_peers *peers = &p2p->group->peers;
    FAIL_POINT("p2p connect");
    size_t bytes = sizeof(struct p2p_shared) + (size_t)peers->n_ranks * sizeof(struct doorbell);
    TRY(peers->open_segment(peers->context, "p2p/doorbells", bytes, deadline_ns, &p2p->segment));
    p2p->shared = segment_base(p2p->segment);
    p2p->bell = &p2p->shared->bells[peers->rank];
    LOG(SHOAL_LOG_DEBUG, "rank %d connected to group %s for point to point", p2p->group->world->rank,
        p2p->group->name);
    return SHOAL_OK;
}

static shoal_status make(struct shoal_group *group, int64_t deadline_ns, struct p2p **p2p_out)
{
    struct p2p *p2p = mem_alloc_zeroed(1, sizeof *p2p);
    if (!p2p) {
        return SHOAL_ERR_NO_MEMORY;
    }
    atomic_init(&p2p->references, 1);
    p2p->group = group;
    p2p->rank = group->peers.rank;
    p2p->n_ranks = group->peers.n_ranks;
    p2p->may_spin = group->peers.may_spin;
    shoal_status status = init_locks(p2p);
    if (status != SHOAL_OK) {
        mem_free(p2p);
        return status;
    }
    status = connect_group(p2p, deadline_ns);
    if (status != SHOAL_OK) {
        p2p_unref(p2p);
        return status;
    }
    *p2p_out = p2p;
    return SHOAL_OK;
}

shoal_status p2p_get(struct shoal_group *group, int64_t deadline_ns, struct p2p **p2p_out)
{
    /* Acquire: pairs with the exchange below, which shows a finished object. */
    struct p2p *known = atomic_load_explicit(&group->p2p, memory_order_acquire);
    if (!known) {
        struct p2p *made = NULL;
        TRY(make(group, deadline_ns, &made));
        if (atomic_compare_exchange_strong_explicit(&group->p2p, &known, made, memory_order_acq_rel,
                                                    memory_order_acquire)) {
            known = made;
        } else {
            p2p_unref(made); /* another thread was first */
        }
    }
    *p2p_out = known;
    return SHOAL_OK;
}

/* Paths ------------------------------------------------------------------------------------------------ */

static struct p2p_path *find_path(struct p2p *p2p, int source, int destination)
{
    for (struct p2p_path *path = p2p->paths; path; path = path->next) {
        if (path->source == source && path->destination == destination) {
            return path;
        }
    }
    struct p2p_path *path = mem_alloc_zeroed(1, sizeof *path);
    if (path) {
        path->source = source;
        path->destination = destination;
        path->next = p2p->paths;
        p2p->paths = path;
    }
    return path;
}

static shoal_status open_table(struct p2p *p2p, struct p2p_path *path, int64_t deadline_ns)
{
    const struct transport_peers *peers = &p2p->group->peers;
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

/* Under connect_lock. */
static shoal_status find_stream(struct p2p *p2p, int source, int destination, int tag, int64_t deadline_ns,
                                struct stream **stream_out)
{
    struct p2p_path *path = find_path(p2p, source, destination);
    if (!path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < MAX_TABLES; i++) {
        if (i == path->n_segments) {
            TRY(open_table(p2p, path, deadline_ns));
        }
        struct stream *stream = stream_table_find(segment_base(path->segments[i]), table_streams(i), tag);
        if (stream) {
            *stream_out = stream;
            return SHOAL_OK;
        }
    }
    return error_set(
        SHOAL_ERR_UNSUPPORTED,
        "tag %d: rank %d has used %zu tags to send to rank %d already, and a group offers no more", tag,
        source, count_all_streams(), destination);
}

/* Ends ------------------------------------------------------------------------------------------------- */

static struct p2p_end **find_bucket(struct p2p *p2p, shoal_direction direction, int peer, int tag)
{
    uint32_t hash = ((uint32_t)tag * 31 + (uint32_t)peer) * 2 + (uint32_t)direction;
    return &p2p->buckets[hash % P2P_BUCKETS];
}

struct p2p_end *p2p_known_end(struct p2p *p2p, shoal_direction direction, int peer, int tag)
{
    struct p2p_end *end = *find_bucket(p2p, direction, peer, tag);
    while (end && (end->direction != direction || end->peer != peer || end->tag != tag)) {
        end = end->next;
    }
    return end;
}

static struct p2p_end *known_end_locked(struct p2p *p2p, shoal_direction direction, int peer, int tag)
{
    (void)pthread_mutex_lock(&p2p->lock);
    struct p2p_end *end = p2p_known_end(p2p, direction, peer, tag);
    (void)pthread_mutex_unlock(&p2p->lock);
    return end;
}

/* Under connect_lock: nobody else adds ends. */
static shoal_status add_end(struct p2p *p2p, shoal_direction direction, int peer, int tag,
                            int64_t deadline_ns, struct p2p_end **end_out)
{
    *end_out = known_end_locked(p2p, direction, peer, tag);
    if (*end_out) {
        return SHOAL_OK;
    }
    int source = direction == SHOAL_SEND ? p2p->rank : peer;
    int destination = direction == SHOAL_SEND ? peer : p2p->rank;
    struct stream *stream = NULL;
    TRY(find_stream(p2p, source, destination, tag, deadline_ns, &stream));
    struct p2p_end *end = mem_alloc_zeroed(1, sizeof *end);
    if (!end) {
        return SHOAL_ERR_NO_MEMORY;
    }
    end->direction = direction;
    end->peer = peer;
    end->tag = tag;
    end->stream.stream = stream;
    end->stream.peer = &p2p->shared->bells[peer];
    struct p2p_end **bucket = find_bucket(p2p, direction, peer, tag);
    (void)pthread_mutex_lock(&p2p->lock);
    end->next = *bucket;
    *bucket = end;
    (void)pthread_mutex_unlock(&p2p->lock);
    *end_out = end;
    return SHOAL_OK;
}

shoal_status p2p_find_end(struct p2p *p2p, shoal_direction direction, int peer, int tag, int64_t deadline_ns,
                          struct p2p_end **end_out)
{
    *end_out = known_end_locked(p2p, direction, peer, tag);
    if (*end_out) {
        return SHOAL_OK;
    }
    (void)pthread_mutex_lock(&p2p->connect_lock);
    shoal_status status = add_end(p2p, direction, peer, tag, deadline_ns, end_out);
    (void)pthread_mutex_unlock(&p2p->connect_lock);
    return status;
}

/* For the flight record ---------------------------------------------------------------------------------- */

static struct p2p_stream_state describe_end(const struct p2p_end *end)
{
    struct p2p_stream_state state = {.direction = end->direction,
                                     .peer = end->peer,
                                     .tag = end->tag,
                                     .n_messages = end->sequence,
                                     .failure = end->failure};
    for (const struct p2p_operation *operation = end->first; operation; operation = operation->next) {
        state.n_pending++;
    }
    if (end->first) {
        state.dtype = (shoal_dtype)end->first->message.head.dtype;
        state.count = (size_t)end->first->message.head.count;
        state.start_ns = end->first->start_ns;
    }
    return state;
}

/* Under the lock: adds the ends that have, or have no, pending messages. */
static size_t list_ends(const struct p2p *p2p, bool is_pending, struct p2p_stream_state *states,
                        size_t capacity, size_t n_ends)
{
    for (size_t i = 0; i < P2P_BUCKETS; i++) {
        for (const struct p2p_end *end = p2p->buckets[i]; end; end = end->next) {
            if ((end->first != NULL) != is_pending) {
                continue;
            }
            if (n_ends < capacity) {
                states[n_ends] = describe_end(end);
            }
            n_ends++;
        }
    }
    return n_ends;
}

size_t p2p_list_streams(struct shoal_group *group, struct p2p_stream_state *states, size_t capacity)
{
    /* Acquire: pairs with the release by which it was made. */
    struct p2p *p2p = atomic_load_explicit(&group->p2p, memory_order_acquire);
    if (!p2p) {
        return 0;
    }
    (void)pthread_mutex_lock(&p2p->lock);
    size_t n_ends = list_ends(p2p, /*is_pending=*/true, states, capacity, 0);
    n_ends = list_ends(p2p, /*is_pending=*/false, states, capacity, n_ends);
    (void)pthread_mutex_unlock(&p2p->lock);
    return n_ends;
}
