/* SPDX-License-Identifier: MIT */
/*
 * Point to point: streams of shm to the members of this host, streams of messages to the others. Both ring one bell,
 * which is in the shared memory of this host: a peer on this host rings it, or the wire's thread. The reason of a
 * failure of all streams is kept by the message streams, which reach every member.
 */
#include "transport/streams.h"

#include "base/mem.h"
#include "base/try.h"
#include "transport/message/streams.h"
#include "transport/shm/stream.h"
#include "transport/two_level/two_level.h"

struct two_streams {
    struct streams base; /* first */
    struct two_layout layout;
    struct transport_peers inner_peers; /* the members of this host */
    struct transport_peers outer_peers;
    int *inner_ranks;      /* world ranks of the members of this host */
    struct streams *inner; /* NULL if nobody else is on this host */
    struct streams *outer;
};

static struct two_streams *of(struct streams *streams)
{
    return (struct two_streams *)streams;
}

/* Connecting --------------------------------------------------------------------------------------------- */

static void free_streams(struct streams *base)
{
    struct two_streams *streams = of(base);
    if (streams->outer) {
        streams->outer->operations->free(streams->outer);
    }
    /* After the outer streams, whose bell lies in the memory of these. */
    if (streams->inner) {
        streams->inner->operations->free(streams->inner);
    }
    two_layout_free(&streams->layout);
    mem_free(streams->inner_ranks);
    mem_free(streams);
}

static shoal_status connect_inner(struct two_streams *streams, int64_t deadline_ns)
{
    const struct transport_peers *peers = streams->base.peers;
    const struct two_layout *layout = &streams->layout;
    int host = layout->hosts[peers->rank];
    int n_members = layout->n_locals[host];
    if (n_members == 1) {
        return SHOAL_OK;
    }
    streams->inner_ranks = mem_alloc((size_t)n_members * sizeof *streams->inner_ranks);
    if (!streams->inner_ranks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (int i = 0; i < n_members; i++) {
        streams->inner_ranks[i] = peers->world_ranks[two_member(layout, host, i)];
    }
    streams->inner_peers = *peers;
    streams->inner_peers.rank = layout->locals[peers->rank];
    streams->inner_peers.n_ranks = n_members;
    streams->inner_peers.world_ranks = streams->inner_ranks;
    return shm_stream_operations.connect(&streams->inner_peers, deadline_ns, &streams->inner);
}

static shoal_status connect_both(struct two_streams *streams, int64_t deadline_ns)
{
    const struct transport_peers *peers = streams->base.peers;
    const struct two_world *world = peers->state;
    TRY(two_layout_create(peers, &streams->layout));
    TRY(connect_inner(streams, deadline_ns));
    streams->outer_peers = *peers;
    streams->outer_peers.transport = world->outer;
    streams->outer_peers.state = world->router;
    struct doorbell *bell = streams->inner ? streams->inner->bell : NULL;
    TRY(message_streams_connect(&streams->outer_peers, bell, deadline_ns, &streams->outer));
    streams->base.bell = streams->outer->bell;
    return SHOAL_OK;
}

static shoal_status connect_streams(const struct transport_peers *peers, int64_t deadline_ns,
                                    struct streams **streams_out)
{
    struct two_streams *streams = mem_alloc_zeroed(1, sizeof *streams);
    if (!streams) {
        return SHOAL_ERR_NO_MEMORY;
    }
    streams->base = (struct streams){.operations = &two_level_streams, .peers = peers};
    shoal_status status = connect_both(streams, deadline_ns);
    if (status != SHOAL_OK) {
        if (streams->outer) {
            streams->outer->operations->disconnect(streams->outer);
        }
        free_streams(&streams->base);
        return status;
    }
    *streams_out = &streams->base;
    return SHOAL_OK;
}

static void disconnect_streams(struct streams *base)
{
    struct two_streams *streams = of(base);
    streams->outer->operations->disconnect(streams->outer);
    if (streams->inner) {
        streams->inner->operations->disconnect(streams->inner);
    }
}

/* An end belongs to the inner or to the outer streams, so the functions below call those of its own streams. */
static shoal_status open_end(struct streams *base, bool is_sender, int peer, int tag, int64_t deadline_ns,
                             struct stream_end **end_out)
{
    struct two_streams *streams = of(base);
    const struct two_layout *layout = &streams->layout;
    bool is_inner = streams->inner && layout->hosts[peer] == layout->hosts[base->peers->rank];
    struct streams *chosen = is_inner ? streams->inner : streams->outer;
    int number = is_inner ? layout->locals[peer] : peer;
    return chosen->operations->open(chosen, is_sender, number, tag, deadline_ns, end_out);
}

/* Moving ------------------------------------------------------------------------------------------------- */

static shoal_status put(struct stream_end *end, struct stream_message *message)
{
    return end->streams->operations->put(end, message);
}

static shoal_status take(struct stream_end *end, struct stream_message *message)
{
    return end->streams->operations->take(end, message);
}

static bool can_put(struct stream_end *end, size_t bytes)
{
    return end->streams->operations->can_put(end, bytes);
}

static bool can_take(struct stream_end *end)
{
    return end->streams->operations->can_take(end);
}

static bool may_receive(struct stream_end *end)
{
    const struct transport_streams *operations = end->streams->operations;
    return operations->may_receive && operations->may_receive(end);
}

static shoal_status check_way(struct stream_end *end)
{
    const struct transport_streams *operations = end->streams->operations;
    return operations->check_way ? operations->check_way(end) : SHOAL_OK;
}

static void fail(struct stream_end *end, shoal_status status, const char *text)
{
    end->streams->operations->fail(end, status, text);
}

static shoal_status find_failure(struct stream_end *end)
{
    return end->streams->operations->failure(end);
}

static void poison(struct streams *base, shoal_status status, const char *text)
{
    struct streams *outer = of(base)->outer;
    outer->operations->poison(outer, status, text);
}

static shoal_status find_reason(struct streams *base)
{
    struct streams *outer = of(base)->outer;
    return outer->operations->reason(outer);
}

const struct transport_streams two_level_streams = {
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
    .may_receive = may_receive,
    .check_way = check_way,
};
