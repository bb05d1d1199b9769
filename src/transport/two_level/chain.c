/* SPDX-License-Identifier: MIT */
/*
 * Chains: how reductions, broadcasts and all-gathers go from host to host. docs/design/two_level.md has the whole.
 *
 * The data is cut into slices, one for each member of a host, and slices into chunks. The owner of a slice on a host
 * takes the chunk's partial result from the owner on the previous host, folds the values of its host's ranks into it in
 * rank order, and passes it on. A fold visits a host once for each stretch of consecutive ranks there; these visits are
 * its stops. After the last stop the result goes on from host to host, or to the one rank that needs it. A broadcast is
 * a chain with one stop, at which nothing is folded; an all-gather is one such chain for each rank.
 *
 * No deadlock: a chunk's steps have ticks, and every rank makes its steps in the order of their ticks. With chunk c and
 * stop t of n, and the j-th host that the result comes to:
 *     fill(c)       c + 2t              a rank gives its values to the owners on its host
 *     stop(c, t)    c + 2t + 1          takes from stop(c, t - 1), and from the fills of its ranks
 *     pass(c, j)    c + 2(n - 1) + 2j + 1
 *     read(c, j)    c + 2(n - 1) + 2j + 2    the other ranks of that host take the result
 * Every wait of a step is for a step with a smaller tick:
 * - for the data of the step before, two ticks earlier;
 * - for credit, that is, until the next owner has taken chunk c - 3 or a later one, at most a tick earlier;
 * - for a cell of a ring of two, until chunk c - 2 was taken out of it, a tick earlier;
 * - for a cell of results, of which there are as many as two ticks can bring, until one that was made two ticks before
 *   was read.
 *
 * So the rank whose step has the smallest tick never waits. Each hop of each slice has a port of its own: frames of
 * different hops never wait for each other's credit.
 *
 * In place is safe: a rank has given away its elements of a chunk before it writes the result of the chunk.
 */
#include <stdio.h>

#include "base/error.h"
#include "base/fail_point.h"
#include "base/try.h"
#include "kernel/kernel.h"
#include "transport/two_level/two_level.h"

/*
 * A slice should have this many chunks for each hop, so that hosts work at the same time; but chunks of
 * SMALL_CHUNK_BYTES are not cut further. Links are idle while the first chunk, and while the last one, goes over the
 * hops, so larger chunks take longer. bench/hosts.sh compares the time of a call with what its busiest link needs.
 */
#define CHUNKS_OF_HOP 16
#define SMALL_CHUNK_BYTES ((size_t)32 * 1024)
#define LINE_BYTES 64

/* A collective while it runs. */
struct journey {
    struct two_channel *channel;
    const struct collective *collective;
    const struct two_layout *layout;
    const struct two_fold *fold; /* NULL if nothing is folded: what one rank has goes to all */
    int n_stops;
    int n_units; /* blocks that are moved separately: one, or one for each rank */
    size_t element_bytes;
    size_t partial_bytes; /* of an element, between stops */
    size_t whole_bytes;   /* of the widest buffer */
    size_t chunk;         /* elements */
    size_t n_chunks;      /* of all units */
};

/* One chunk of all slices of a unit. */
struct chunk {
    int unit;        /* the rank whose block it is; 0 with one unit */
    size_t number;   /* in the unit */
    size_t elements; /* of the unit */
    int source;      /* the rank that has it; -1 if all have a part */
    int target;      /* the rank that gets it; -1 if all do */
    int last_host;   /* where its result is made */
};

struct stretch {
    size_t from;
    size_t to;
};

enum role {
    ROLE_NONE,
    ROLE_ROOT,
    ROLE_UNIT /* the rank whose block it is */
};

/* What is chained, and how. */
struct way {
    bool is_chained;
    bool has_units;   /* a block for each rank, moved by itself */
    enum role source; /* who has a chunk; ROLE_NONE if all have a part of the sum */
    enum role target; /* who gets it; ROLE_NONE if all do */
};

static const struct way ways[COLLECTIVE_COUNT] = {
    [COLLECTIVE_BROADCAST] = {.is_chained = true, .source = ROLE_ROOT},
    [COLLECTIVE_ALL_REDUCE] = {.is_chained = true},
    [COLLECTIVE_REDUCE] = {.is_chained = true, .target = ROLE_ROOT},
    [COLLECTIVE_ALL_GATHER] = {.is_chained = true, .has_units = true, .source = ROLE_UNIT},
    [COLLECTIVE_REDUCE_SCATTER] = {.is_chained = true, .has_units = true, .target = ROLE_UNIT},
};

/* Hops and frames ---------------------------------------------------------------------------------------- */

int two_n_hops(const struct two_layout *layout)
{
    return layout->n_ranks + layout->n_hosts;
}

/* The hop of partial results from a stop to the next. */
static int partial_hop(int stop)
{
    return stop;
}

/* The hop of results from the host that gets them as number `position` to the next. */
static int result_hop(const struct two_layout *layout, int position)
{
    return layout->n_ranks + position;
}

static shoal_status find_port(struct two_channel *channel, int hop, int slice, struct port **port_out)
{
    struct port **port = &channel->ports[(size_t)hop * (size_t)channel->layout.n_slices + (size_t)slice];
    if (!*port) {
        char part[48];
        (void)snprintf(part, sizeof part, "chain/%d/%d", hop, slice);
        struct port_id id = port_id_of(channel->base.peers->key, part, channel->generation);
        TRY(port_attach(channel->world->router, id, id, &channel->outer->bell, port));
    }
    *port_out = *port;
    return SHOAL_OK;
}

static bool is_there(struct port *port, int world_rank, bool is_credit)
{
    return is_credit ? port_credit(port, world_rank, FRAME_DATA) > 0
                     : port_peek(port, world_rank, FRAME_DATA) != NULL;
}

/* Waits until a frame of a member has arrived, or until there is credit to send one to it. */
static shoal_status await(struct two_channel *channel, const struct collective *collective, struct port *port,
                          int member, bool is_credit)
{
    struct message_channel *outer = channel->outer;
    int world_rank = two_world_rank(channel, member);
    for (;;) {
        uint32_t seen = doorbell_look(&outer->bell);
        if (is_there(port, world_rank, is_credit)) {
            return SHOAL_OK;
        }
        shoal_status status = message_failure(outer);
        if (status == SHOAL_OK && message_must_look(outer, collective->deadline_ns)) {
            status = message_check_member(outer, member);
        }
        if (status != SHOAL_OK && is_there(port, world_rank, is_credit)) {
            error_clear();
            return SHOAL_OK;
        }
        TRY(status);
        if (message_is_over(outer, collective, /*may_wait=*/true)) {
            char call[ERROR_TEXT_BYTES];
            return error_set(SHOAL_ERR_TIMEOUT, "%s and rank %d has not done its part",
                             transport_describe_timeout(channel->base.peers, collective, call, sizeof call),
                             world_rank);
        }
        message_wait(outer, seen, collective->deadline_ns);
    }
}

shoal_status two_await_credit(struct two_channel *channel, const struct collective *collective,
                              struct port *port, int member)
{
    return await(channel, collective, port, member, /*is_credit=*/true);
}

shoal_status two_await_frame(struct two_channel *channel, const struct collective *collective,
                             struct port *port, int member, const struct frame **frame_out)
{
    TRY(await(channel, collective, port, member, /*is_credit=*/false));
    *frame_out = port_peek(port, two_world_rank(channel, member), FRAME_DATA);
    return SHOAL_OK;
}

/* Makes a frame to a member, after waiting for credit. The caller writes its payload and sends it. */
static shoal_status begin_frame(const struct journey *journey, int hop, int slice, int to, size_t bytes,
                                struct frame **frame_out)
{
    struct two_channel *channel = journey->channel;
    struct port *port = NULL;
    TRY(find_port(channel, hop, slice, &port));
    TRY(two_await_credit(channel, journey->collective, port, to));
    *frame_out = router_new_frame(channel->world->router, bytes);
    return *frame_out ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static void send_frame(const struct journey *journey, int hop, int slice, int to, struct frame *frame)
{
    struct two_channel *channel = journey->channel;
    struct port *port = channel->ports[(size_t)hop * (size_t)channel->layout.n_slices + (size_t)slice];
    (void)port_send(port, two_world_rank(channel, to), FRAME_DATA, frame);
}

/* Waits for the next frame of a member, which must be as long as expected. Its payload stays until drop_frame. */
static shoal_status take_frame(const struct journey *journey, int hop, int slice, int from, size_t expected,
                               const char **payload_out)
{
    struct two_channel *channel = journey->channel;
    struct port *port = NULL;
    const struct frame *frame = NULL;
    TRY(find_port(channel, hop, slice, &port));
    TRY(two_await_frame(channel, journey->collective, port, from, &frame));
    if (frame->head.bytes != expected) {
        return error_set(SHOAL_ERR_INTERNAL, "rank %d sent %u bytes where %zu were expected",
                         two_world_rank(channel, from), frame->head.bytes, expected);
    }
    *payload_out = frame->payload;
    return SHOAL_OK;
}

static void drop_frame(const struct journey *journey, int hop, int slice, int from)
{
    struct two_channel *channel = journey->channel;
    struct port *port = channel->ports[(size_t)hop * (size_t)channel->layout.n_slices + (size_t)slice];
    port_drop(port, two_world_rank(channel, from), FRAME_DATA);
}

/* Chunks ------------------------------------------------------------------------------------------------- */

static size_t unit_elements(const struct collective *collective, int unit)
{
    bool is_received = collective->kind == COLLECTIVE_ALL_GATHER || collective->kind == COLLECTIVE_BROADCAST;
    return block_elements(collective, is_received ? BLOCK_RECV : BLOCK_SEND, unit);
}

static int find_role(enum role role, int root, int unit)
{
    return role == ROLE_NONE ? -1 : role == ROLE_ROOT ? root : unit;
}

static struct chunk find_chunk(const struct journey *journey, size_t index)
{
    const struct collective *collective = journey->collective;
    size_t n_units = (size_t)journey->n_units;
    int unit = journey->n_units > 1 ? journey->layout->spread[index % n_units] : 0;
    const struct way *way = &ways[collective->kind];
    struct chunk chunk = {.unit = unit,
                          .number = index / n_units,
                          .elements = unit_elements(collective, unit),
                          .source = find_role(way->source, collective->root, unit),
                          .target = find_role(way->target, collective->root, unit)};
    chunk.last_host = journey->fold ? two_stop_host(journey->layout, journey->fold, journey->n_stops - 1)
                                    : journey->layout->hosts[chunk.source];
    return chunk;
}

static struct stretch find_slice(const struct journey *journey, size_t elements, int slice)
{
    int n_slices = journey->layout->n_slices;
    return (struct stretch){.from = block_share_begin(elements, n_slices, slice, journey->element_bytes),
                            .to = block_share_begin(elements, n_slices, slice + 1, journey->element_bytes)};
}

/* The chunk's elements of a slice. */
static struct stretch find_stretch(const struct journey *journey, const struct chunk *chunk, int slice)
{
    struct stretch whole = find_slice(journey, chunk->elements, slice);
    size_t from = whole.from + chunk->number * journey->chunk;
    size_t to = from + journey->chunk;
    return (struct stretch){.from = from < whole.to ? from : whole.to, .to = to < whole.to ? to : whole.to};
}

static bool is_empty(struct stretch stretch)
{
    return stretch.to == stretch.from;
}

static int stop_host(const struct journey *journey, const struct chunk *chunk, int stop)
{
    return journey->fold ? two_stop_host(journey->layout, journey->fold, stop) : chunk->last_host;
}

/* Results go round the hosts, from the one where they are made. */
static int host_at(const struct journey *journey, const struct chunk *chunk, int position)
{
    return (chunk->last_host + position) % journey->layout->n_hosts;
}

static int own_owner(const struct journey *journey, int slice)
{
    return two_owner(journey->layout, journey->channel->host, slice);
}

/* The slices that this rank owns: the first of them, and the distance from one to the next. */
static int first_slice(const struct journey *journey)
{
    return journey->channel->local;
}

static int slice_step(const struct journey *journey)
{
    return journey->layout->n_locals[journey->channel->host];
}

/* Whether members of this host read the chunk's result out of the owner's cells. */
static bool has_cell(const struct journey *journey, const struct chunk *chunk, int slice)
{
    const struct two_layout *layout = journey->layout;
    int host = journey->channel->host;
    if (chunk->target < 0) {
        return layout->n_locals[host] > 1;
    }
    return host == chunk->last_host && layout->hosts[chunk->target] == host &&
           chunk->target != two_owner(layout, host, slice);
}

/* The own elements ---------------------------------------------------------------------------------------- */

static enum block_side side_of(const struct journey *journey)
{
    /* A broadcast has one buffer: the receive buffer, on the root too. */
    return journey->collective->kind == COLLECTIVE_BROADCAST ? BLOCK_RECV : BLOCK_SEND;
}

/* This rank's elements of a stretch, contiguous: where they lie, or as a copy in scratch. */
static const char *find_own(const struct journey *journey, const struct chunk *chunk, struct stretch stretch)
{
    struct block_walk walk =
        block_walk_begin(journey->collective, side_of(journey), chunk->unit, stretch.from, stretch.to);
    struct block_run run = block_walk_next(&walk, stretch.to - stretch.from);
    if (run.elements == stretch.to - stretch.from) {
        return run.data;
    }
    block_copy_out(journey->collective, side_of(journey), chunk->unit, stretch.from, stretch.to,
                   journey->channel->scratch);
    return journey->channel->scratch;
}

/* Copies a result into this rank's receive buffer, if it gets one. */
static void store(const struct journey *journey, const struct chunk *chunk, struct stretch stretch,
                  const char *data)
{
    int rank = journey->channel->base.peers->rank;
    if (chunk->source == rank || (chunk->target >= 0 && chunk->target != rank)) {
        return;
    }
    block_copy_in(journey->collective, BLOCK_RECV, chunk->unit, stretch.from, stretch.to, data,
                  journey->whole_bytes);
}

/* Steps -------------------------------------------------------------------------------------------------- */

/* Fills cells with what the owners on this host need from this rank. */
static shoal_status fill(const struct journey *journey, const struct chunk *chunk)
{
    struct two_channel *channel = journey->channel;
    int rank = channel->base.peers->rank;
    FAIL_POINT("two_level fill");
    for (int slice = 0; slice < journey->layout->n_slices; slice++) {
        struct stretch stretch = find_stretch(journey, chunk, slice);
        if (own_owner(journey, slice) == rank || is_empty(stretch)) {
            continue;
        }
        char *cell = NULL;
        TRY(two_fill_begin(channel, journey->collective, slice, &cell));
        block_copy_out(journey->collective, side_of(journey), chunk->unit, stretch.from, stretch.to, cell);
        two_fill_end(channel, slice);
    }
    return SHOAL_OK;
}

static shoal_status send_result(const struct journey *journey, int hop, int slice, int to, const char *data,
                                size_t bytes)
{
    struct frame *frame = NULL;
    TRY(begin_frame(journey, hop, slice, to, bytes, &frame));
    kernel_copy(frame->payload, data, bytes);
    send_frame(journey, hop, slice, to, frame);
    return SHOAL_OK;
}

/* Sends a result that is on host number `position` of its way to the next host, or to the rank that it is for, and
   stores it for this rank. The caller has put it into cells. */
static shoal_status hand_on(const struct journey *journey, const struct chunk *chunk, int slice, int position,
                            struct stretch stretch, const char *data)
{
    const struct two_layout *layout = journey->layout;
    size_t bytes = (stretch.to - stretch.from) * journey->element_bytes;
    if (chunk->target < 0 && position + 1 < layout->n_hosts) {
        TRY(send_result(journey, result_hop(layout, position), slice,
                        two_owner(layout, host_at(journey, chunk, position + 1), slice), data, bytes));
    }
    if (chunk->target >= 0 && layout->hosts[chunk->target] != journey->channel->host) {
        TRY(send_result(journey, result_hop(layout, 0), slice, chunk->target, data, bytes));
    }
    store(journey, chunk, stretch, data);
    return SHOAL_OK;
}

/* Puts the values of the ranks of a stop into channel->sources, in rank order. */
static shoal_status find_sources(const struct journey *journey, const struct chunk *chunk, int stop,
                                 int slice, struct stretch stretch, size_t *n_sources_out)
{
    struct two_channel *channel = journey->channel;
    int begin = journey->fold ? journey->fold->begins[stop] : 0;
    int end = journey->fold ? journey->fold->begins[stop + 1] : 1;
    for (int i = begin; i < end; i++) {
        int member = journey->fold ? journey->fold->order[i] : chunk->source;
        const char *cell = NULL;
        if (member == channel->base.peers->rank) {
            cell = find_own(journey, chunk, stretch);
        } else {
            TRY(two_empty_begin(channel, journey->collective, member, slice, &cell));
        }
        channel->sources[i - begin] = cell;
    }
    *n_sources_out = (size_t)(end - begin);
    return SHOAL_OK;
}

static void leave_sources(const struct journey *journey, const struct chunk *chunk, int stop, int slice)
{
    struct two_channel *channel = journey->channel;
    int begin = journey->fold ? journey->fold->begins[stop] : 0;
    int end = journey->fold ? journey->fold->begins[stop + 1] : 1;
    for (int i = begin; i < end; i++) {
        int member = journey->fold ? journey->fold->order[i] : chunk->source;
        if (member != channel->base.peers->rank) {
            two_empty_end(channel, member, slice);
        }
    }
}

/* The last stop: makes the result, in the cell for this host's members or in scratch. If nothing is folded and no
   cell is needed, the source itself is the result. */
static shoal_status make_result(const struct journey *journey, const struct chunk *chunk, int slice,
                                struct stretch stretch, const char *before, size_t n_sources)
{
    struct two_channel *channel = journey->channel;
    const struct collective *collective = journey->collective;
    size_t count = stretch.to - stretch.from;
    bool is_shared = has_cell(journey, chunk, slice);
    char *result = channel->scratch;
    char *partial = channel->scratch + FRAME_DATA_BYTES;
    if (is_shared) {
        TRY(two_result_begin(channel, collective, slice, &result));
    }
    const char *data = result;
    if (journey->fold) {
        TRY(kernel_partial_fold(collective->reduce, collective->dtype, partial, before, channel->sources,
                                n_sources, count, collective->factor));
        kernel_partial_finish(collective->reduce, collective->dtype, result, partial,
                              (size_t)journey->layout->n_ranks, count);
    } else if (is_shared) {
        kernel_copy(result, channel->sources[0], count * journey->element_bytes);
    } else {
        data = channel->sources[0];
    }
    if (is_shared) {
        two_result_end(channel, slice);
    }
    return hand_on(journey, chunk, slice, /*position=*/0, stretch, data);
}

/* A stop before the last: folds into the partial result and sends it to the next stop. */
static shoal_status pass_partial(const struct journey *journey, const struct chunk *chunk, int stop,
                                 int slice, struct stretch stretch, const char *before, size_t n_sources)
{
    struct two_channel *channel = journey->channel;
    const struct collective *collective = journey->collective;
    size_t count = stretch.to - stretch.from;
    int to = two_owner(journey->layout, stop_host(journey, chunk, stop + 1), slice);
    struct frame *frame = NULL;
    TRY(begin_frame(journey, partial_hop(stop), slice, to, count * journey->partial_bytes, &frame));
    shoal_status status = kernel_partial_fold(collective->reduce, collective->dtype, frame->payload, before,
                                              channel->sources, n_sources, count, collective->factor);
    if (status != SHOAL_OK) {
        router_free_frame(channel->world->router, frame);
        return status;
    }
    send_frame(journey, partial_hop(stop), slice, to, frame);
    return SHOAL_OK;
}

static shoal_status fold_slice(const struct journey *journey, const struct chunk *chunk, int stop, int slice)
{
    struct stretch stretch = find_stretch(journey, chunk, slice);
    if (is_empty(stretch)) {
        return SHOAL_OK;
    }
    const char *before = NULL;
    int from = -1;
    if (stop > 0) {
        from = two_owner(journey->layout, stop_host(journey, chunk, stop - 1), slice);
        TRY(take_frame(journey, partial_hop(stop - 1), slice, from,
                       (stretch.to - stretch.from) * journey->partial_bytes, &before));
    }
    size_t n_sources = 0;
    TRY(find_sources(journey, chunk, stop, slice, stretch, &n_sources));
    FAIL_POINT("two_level fold");
    if (stop + 1 < journey->n_stops) {
        TRY(pass_partial(journey, chunk, stop, slice, stretch, before, n_sources));
    } else {
        TRY(make_result(journey, chunk, slice, stretch, before, n_sources));
    }
    leave_sources(journey, chunk, stop, slice);
    if (before) {
        drop_frame(journey, partial_hop(stop - 1), slice, from);
    }
    return SHOAL_OK;
}

static shoal_status fold(const struct journey *journey, const struct chunk *chunk, int stop)
{
    for (int slice = first_slice(journey); slice < journey->layout->n_slices; slice += slice_step(journey)) {
        TRY(fold_slice(journey, chunk, stop, slice));
    }
    return SHOAL_OK;
}

/* Takes a result from another host, for a slice that this rank owns, and hands it on. */
static shoal_status pass_slice(const struct journey *journey, const struct chunk *chunk, int position,
                               int slice)
{
    struct two_channel *channel = journey->channel;
    struct stretch stretch = find_stretch(journey, chunk, slice);
    if (is_empty(stretch)) {
        return SHOAL_OK;
    }
    size_t bytes = (stretch.to - stretch.from) * journey->element_bytes;
    int hop = result_hop(journey->layout, position - 1);
    int from = two_owner(journey->layout, host_at(journey, chunk, position - 1), slice);
    const char *payload = NULL;
    TRY(take_frame(journey, hop, slice, from, bytes, &payload));
    if (has_cell(journey, chunk, slice)) {
        char *cell = NULL;
        TRY(two_result_begin(channel, journey->collective, slice, &cell));
        kernel_copy(cell, payload, bytes);
        two_result_end(channel, slice);
    }
    TRY(hand_on(journey, chunk, slice, position, stretch, payload));
    drop_frame(journey, hop, slice, from);
    return SHOAL_OK;
}

/* Takes a result that is for this rank alone, from all owners on the host where it is made. */
static shoal_status take_own(const struct journey *journey, const struct chunk *chunk)
{
    int hop = result_hop(journey->layout, 0);
    for (int slice = 0; slice < journey->layout->n_slices; slice++) {
        struct stretch stretch = find_stretch(journey, chunk, slice);
        if (is_empty(stretch)) {
            continue;
        }
        int from = two_owner(journey->layout, chunk->last_host, slice);
        const char *payload = NULL;
        TRY(take_frame(journey, hop, slice, from, (stretch.to - stretch.from) * journey->element_bytes,
                       &payload));
        store(journey, chunk, stretch, payload);
        drop_frame(journey, hop, slice, from);
    }
    return SHOAL_OK;
}

static shoal_status pass(const struct journey *journey, const struct chunk *chunk, int position)
{
    FAIL_POINT("two_level pass");
    if (chunk->target >= 0) {
        bool is_mine = chunk->target == journey->channel->base.peers->rank;
        bool is_here = chunk->last_host == journey->channel->host;
        return position == 1 && is_mine && !is_here ? take_own(journey, chunk) : SHOAL_OK;
    }
    if (host_at(journey, chunk, position) != journey->channel->host) {
        return SHOAL_OK;
    }
    for (int slice = first_slice(journey); slice < journey->layout->n_slices; slice += slice_step(journey)) {
        TRY(pass_slice(journey, chunk, position, slice));
    }
    return SHOAL_OK;
}

/* Reads the parts of the result that other owners on this host have in cells. */
static shoal_status read_results(const struct journey *journey, const struct chunk *chunk)
{
    struct two_channel *channel = journey->channel;
    int rank = channel->base.peers->rank;
    for (int slice = 0; slice < journey->layout->n_slices; slice++) {
        struct stretch stretch = find_stretch(journey, chunk, slice);
        if (own_owner(journey, slice) == rank || is_empty(stretch) || !has_cell(journey, chunk, slice)) {
            continue;
        }
        if (chunk->source != rank && (chunk->target < 0 || chunk->target == rank)) {
            const char *cell = NULL;
            TRY(two_read_begin(channel, journey->collective, slice, &cell));
            store(journey, chunk, stretch, cell);
        }
        two_read_end(channel, slice);
    }
    return SHOAL_OK;
}

/* Ticks -------------------------------------------------------------------------------------------------- */

/* Finds the chunk whose step `distance` ticks after its first is due at this tick. Returns false if there is none. */
static bool find_at(const struct journey *journey, size_t tick, size_t distance, struct chunk *chunk_out)
{
    if (tick < distance || tick - distance >= journey->n_chunks) {
        return false;
    }
    *chunk_out = find_chunk(journey, tick - distance);
    return true;
}

static shoal_status run_stops(const struct journey *journey, size_t tick)
{
    const struct two_channel *channel = journey->channel;
    int rank = channel->base.peers->rank;
    struct chunk chunk;
    size_t own_stop = journey->fold ? (size_t)journey->fold->stops[rank] : 0;
    if (find_at(journey, tick, 2 * own_stop, &chunk) && (journey->fold || chunk.source == rank)) {
        TRY(fill(journey, &chunk));
    }
    for (int stop = 0; stop < journey->n_stops; stop++) {
        if (find_at(journey, tick, 2 * (size_t)stop + 1, &chunk) &&
            stop_host(journey, &chunk, stop) == channel->host) {
            TRY(fold(journey, &chunk, stop));
        }
    }
    return SHOAL_OK;
}

static shoal_status run_results(const struct journey *journey, size_t tick)
{
    struct chunk chunk;
    size_t distance = 2 * (size_t)(journey->n_stops - 1);
    for (int position = 0; position < journey->layout->n_hosts; position++) {
        if (position > 0 && find_at(journey, tick, distance + 1, &chunk)) {
            TRY(pass(journey, &chunk, position));
        }
        if (find_at(journey, tick, distance + 2, &chunk) &&
            host_at(journey, &chunk, position) == journey->channel->host) {
            TRY(read_results(journey, &chunk));
        }
        distance += 2;
    }
    return SHOAL_OK;
}

/* How many hops a chunk makes: from stop to stop, and on to all hosts that get the result. */
static size_t count_hops(const struct journey *journey)
{
    bool is_for_all = ways[journey->collective->kind].target == ROLE_NONE;
    int n_hops = journey->n_stops - 1 + (is_for_all ? journey->layout->n_hosts - 1 : 0);
    return n_hops > 0 ? (size_t)n_hops : 1;
}

/* Elements of a chunk: as many as fit into a frame and a cell, and fewer if hosts would be idle otherwise. */
static size_t choose_chunk(const struct journey *journey, size_t largest)
{
    size_t most = two_cell_bytes(journey->layout) / journey->element_bytes;
    size_t frame = FRAME_DATA_BYTES / journey->partial_bytes;
    most = frame < most ? frame : most;
    size_t n_wanted = CHUNKS_OF_HOP * count_hops(journey);
    size_t wanted = largest / (size_t)journey->layout->n_slices * (size_t)journey->n_units / n_wanted;
    size_t least = SMALL_CHUNK_BYTES / journey->element_bytes;
    wanted = wanted < least ? least : wanted;
    size_t line = journey->element_bytes < LINE_BYTES ? LINE_BYTES / journey->element_bytes : 1;
    size_t chunk = wanted < most ? wanted : most;
    chunk = chunk > line ? chunk / line * line : chunk;
    return chunk > 0 ? chunk : 1;
}

static void plan(struct journey *journey)
{
    size_t largest = 0;
    for (int unit = 0; unit < journey->n_units; unit++) {
        size_t elements = unit_elements(journey->collective, unit);
        largest = elements > largest ? elements : largest;
    }
    journey->chunk = choose_chunk(journey, largest);
    size_t longest = 0;
    for (int slice = 0; slice < journey->layout->n_slices; slice++) {
        struct stretch whole = find_slice(journey, largest, slice);
        longest = whole.to - whole.from > longest ? whole.to - whole.from : longest;
    }
    journey->n_chunks = (longest + journey->chunk - 1) / journey->chunk * (size_t)journey->n_units;
}

static const struct two_fold *choose_fold(const struct two_channel *channel,
                                          const struct collective *collective)
{
    if (!collective_rows[collective->kind].reduces) {
        return NULL;
    }
    bool is_ordered =
        !channel->world->is_fast && kernel_reduce_has_order(collective->reduce, collective->dtype);
    return is_ordered ? &channel->layout.by_rank : &channel->layout.by_host;
}

/* How many elements cross between hosts if each rank sends its values to the rank that folds them, with one element
   in each rank's block: for each rank that folds, the number of ranks on other hosts. */
static size_t count_apart(const struct two_layout *layout)
{
    size_t n_apart = 0;
    for (int rank = 0; rank < layout->n_ranks; rank++) {
        n_apart += (size_t)(layout->n_ranks - layout->n_locals[layout->hosts[rank]]);
    }
    return n_apart;
}

/*
 * Whether fewer bytes cross between hosts if each rank sends its values to the rank that folds them, instead of partial
 * sums going from stop to stop. That is so if there are many stops and few ranks. Bytes are counted for a collective
 * with one element in each rank's block.
 */
static bool is_less_apart(const struct two_layout *layout, const struct two_fold *fold,
                          const struct collective *collective)
{
    size_t n_ranks = (size_t)layout->n_ranks;
    size_t element = shoal_dtype_bytes(collective->dtype);
    size_t chain =
        n_ranks * (size_t)(fold->n_stops - 1) * kernel_partial_bytes(collective->reduce, collective->dtype);
    int last = two_stop_host(layout, fold, fold->n_stops - 1);
    if (collective->kind == COLLECTIVE_REDUCE) {
        int root = layout->hosts[collective->root];
        return n_ranks * (n_ranks - (size_t)layout->n_locals[root]) * element <
               chain + (root != last ? n_ranks * element : 0);
    }
    if (collective->kind == COLLECTIVE_REDUCE_SCATTER) {
        return count_apart(layout) * element < chain + (n_ranks - (size_t)layout->n_locals[last]) * element;
    }
    return 2 * count_apart(layout) * element < chain + n_ranks * (size_t)(layout->n_hosts - 1) * element;
}

bool two_is_chained(const struct two_channel *channel, const struct collective *collective)
{
    const struct two_layout *layout = &channel->layout;
    if (!ways[collective->kind].is_chained) {
        return false;
    }
    /* If every member is on a host of its own, no more bytes cross from rank to rank, and a fold need not wait for
       its turn in a chain. */
    if (layout->n_hosts == layout->n_ranks && collective->kind != COLLECTIVE_BROADCAST) {
        return false;
    }
    const struct two_fold *fold = choose_fold(channel, collective);
    return !fold || !is_less_apart(layout, fold, collective);
}

shoal_status two_chain_run(struct two_channel *channel, const struct collective *collective)
{
    const struct two_layout *layout = &channel->layout;
    TRY(two_cells_open(channel, collective->deadline_ns));
    struct journey journey = {
        .channel = channel,
        .collective = collective,
        .layout = layout,
        .fold = choose_fold(channel, collective),
        .element_bytes = shoal_dtype_bytes(collective->dtype),
        .whole_bytes = collective_bytes(collective, layout->n_ranks),
    };
    journey.n_units = ways[collective->kind].has_units ? layout->n_ranks : 1;
    journey.n_stops = journey.fold ? journey.fold->n_stops : 1;
    journey.partial_bytes =
        journey.fold ? kernel_partial_bytes(collective->reduce, collective->dtype) : journey.element_bytes;
    plan(&journey);
    if (collective->kind == COLLECTIVE_ALL_GATHER) {
        block_copy_own(collective, channel->base.peers->rank);
    }
    size_t n_ticks = journey.n_chunks + 2 * (size_t)(journey.n_stops + layout->n_hosts);
    for (size_t tick = 0; tick < n_ticks; tick++) {
        TRY(run_stops(&journey, tick));
        TRY(run_results(&journey, tick));
    }
    return SHOAL_OK;
}
