/* SPDX-License-Identifier: MIT */
/*
 * The ends of streams that this rank has on a group. The transport decides where the streams are (transport/streams.h).
 */
#include "base/closable.h"
#include "base/error.h"
#include "base/fail_point.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/try.h"
#include "comm/p2p/p2p.h"
#include "comm/p2p/engine.h"

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
    if (p2p->streams) {
        p2p->streams->operations->free(p2p->streams);
    }
    (void)pthread_mutex_destroy(&p2p->lock);
    (void)pthread_mutex_destroy(&p2p->connect_lock);
    closable_unref(p2p->part.closable);
    mem_free(p2p);
}

static shoal_status init_locks(struct p2p *p2p)
{
    if (pthread_mutex_init(&p2p->lock, NULL) != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "a mutex could not be created");
    }
    if (pthread_mutex_init(&p2p->connect_lock, NULL) != 0) {
        (void)pthread_mutex_destroy(&p2p->lock);
        return error_set(SHOAL_ERR_SYSTEM, "a mutex could not be created");
    }
    return SHOAL_OK;
}

static shoal_status connect_group(struct p2p *p2p, int64_t deadline_ns)
{
    const struct transport_peers *peers = p2p->part.peers;
    const struct transport *transport = peers->transport;
    if (!transport->streams) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "transport %s of group %s does not support point to point (send and recv)",
                         transport->name, transport_group_name(peers));
    }
    FAIL_POINT("p2p connect");
    shoal_status status = transport->streams->connect(peers, deadline_ns, &p2p->streams);
    TRY(transport_check_status(transport, "streams->connect", status));
    if (!p2p->streams) {
        return error_set(SHOAL_ERR_INTERNAL, "transport %s: streams->connect returned no streams",
                         transport->name);
    }
    p2p->bell = p2p->streams->bell;
    LOG(SHOAL_LOG_DEBUG, "rank %d connected to group %s for point to point", peers->world_ranks[peers->rank],
        transport_group_name(peers));
    return SHOAL_OK;
}

shoal_status p2p_create(const struct part *part, struct lane *lane, int64_t deadline_ns, struct p2p **p2p_out)
{
    struct p2p *p2p = mem_alloc_zeroed(1, sizeof *p2p);
    if (!p2p) {
        return SHOAL_ERR_NO_MEMORY;
    }
    atomic_init(&p2p->references, 1);
    p2p->part = *part;
    closable_ref(part->closable);
    p2p->lane = lane;
    p2p->rank = part->peers->rank;
    p2p->n_ranks = part->peers->n_ranks;
    p2p->may_spin = part->peers->may_spin;
    shoal_status status = init_locks(p2p);
    if (status != SHOAL_OK) {
        closable_unref(part->closable);
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
    struct p2p_end *end = mem_alloc_zeroed(1, sizeof *end);
    if (!end) {
        return SHOAL_ERR_NO_MEMORY;
    }
    end->direction = direction;
    end->peer = peer;
    end->tag = tag;
    shoal_status status = p2p->streams->operations->open(p2p->streams, direction == SHOAL_SEND, peer, tag,
                                                         deadline_ns, &end->stream);
    if (status != SHOAL_OK) {
        mem_free(end);
        return status;
    }
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
    TRY(part_lock_to_connect(&p2p->part, &p2p->connect_lock, deadline_ns));
    shoal_status status = add_end(p2p, direction, peer, tag, deadline_ns, end_out);
    (void)pthread_mutex_unlock(&p2p->connect_lock);
    return status;
}

shoal_status p2p_find_sources(struct p2p *p2p, int tag, int64_t deadline_ns)
{
    struct p2p_end *end = NULL;
    for (int rank = 0; rank < p2p->n_ranks; rank++) {
        TRY(p2p_find_end(p2p, SHOAL_RECV, rank, tag, deadline_ns, &end));
    }
    return SHOAL_OK;
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

/* Under the lock: adds receives from any rank that wait, all of one tag and in a row as one. */
static size_t list_open(const struct p2p *p2p, struct p2p_stream_state *states, size_t capacity)
{
    size_t n_listed = 0;
    const struct p2p_operation *first = NULL;
    for (const struct p2p_operation *operation = p2p->open; operation; operation = operation->next) {
        bool is_next = !first || first->tag != operation->tag;
        first = is_next ? operation : first;
        n_listed += is_next;
        if (n_listed > capacity) {
            continue;
        }
        struct p2p_stream_state *state = &states[n_listed - 1];
        if (is_next) {
            *state = (struct p2p_stream_state){.direction = SHOAL_RECV,
                                               .peer = SHOAL_ANY_RANK,
                                               .tag = operation->tag,
                                               .count = (size_t)operation->message.head.count,
                                               .start_ns = operation->start_ns,
                                               .dtype = (shoal_dtype)operation->message.head.dtype};
        }
        state->n_pending++;
    }
    return n_listed;
}

size_t p2p_list_streams(struct p2p *p2p, struct p2p_stream_state *states, size_t capacity)
{
    if (!p2p) {
        return 0;
    }
    (void)pthread_mutex_lock(&p2p->lock);
    size_t n_ends = list_open(p2p, states, capacity);
    n_ends = list_ends(p2p, /*is_pending=*/true, states, capacity, n_ends);
    n_ends = list_ends(p2p, /*is_pending=*/false, states, capacity, n_ends);
    (void)pthread_mutex_unlock(&p2p->lock);
    return n_ends;
}
