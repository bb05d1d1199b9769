/* SPDX-License-Identifier: MIT */
/*
 * How the data of a collective moves. What one rank gives to another is a stretch of a block; it goes over in rounds, a
 * frame per round and pair of ranks. Reductions fold the frames of all ranks in rank order, by one call of the kernel, so
 * that every element has the same bits as in shared memory.
 *
 * An all_reduce divides each round into a share per rank. A rank sends every other one that one's share of its data, folds
 * its own share, and sends the result to all.
 *
 * No deadlock: order the steps of a collective as fill 0, fill 1, fill 2, take 0, fill 3, take 1, ... (a take of an
 * all_reduce is: take data, send results, take results). Each rank makes its steps in this order. A fill of round r waits
 * for credit, that is, until the peer has taken the data of round r - 3 or later ones (PIPE_CREDIT less the credit that
 * the peer may hold back); the peer's take of that round is earlier in the order. A take of round r waits for a fill of
 * round r, or for results that are sent in the step's first half. So the rank that is furthest behind never waits. Ends
 * (see exchange_ends) come after all rounds: sending one waits for takes, taking one for the peer that sends it.
 *
 * In place is safe: the elements of a round are read from the send buffer, or copied into frames, before a result of
 * that round is written; rounds have different elements. Long stretches that no result is written over are not copied,
 * but lent to the wire, and have been given back when the call returns.
 */
#include "base/error.h"
#include "base/fail_point.h"
#include "base/try.h"
#include "transport/message/channel.h"

/* Rounds that are filled before the first is taken. Credit allows no more: see above. */
#define AHEAD 2
_Static_assert(PIPE_CREDIT - CREDIT_BATCH >= AHEAD, "a fill waits for a take that is earlier in the order");
/*
 * Stretches from this size on are lent where they can be. Shorter ones are copied: the second message has a cost too.
 */
#define LEND_BYTES ((size_t)64 * 1024)

/* What comes from a rank, as the receiver sees it: as many elements as it expects. */
static size_t expected_elements(const struct collective *collective, int from, int to)
{
    if (message_contribution(collective, from, to).elements == 0 &&
        collective->kind != COLLECTIVE_ALL_TO_ALL) {
        return 0;
    }
    bool is_own_block = collective_rows[collective->kind].reduces;
    return block_elements(collective, BLOCK_RECV, is_own_block ? to : block_from(collective, to, from));
}

/* Whether a rank's own block has a place in its result. */
static bool has_own_block(const struct collective *collective, int rank)
{
    const struct collective_row *row = &collective_rows[collective->kind];
    bool has_blocks = row->has_send_blocks || row->has_recv_blocks;
    return has_blocks && !row->reduces && (!row->has_root || rank == collective->root);
}

shoal_status message_run_alone(const struct collective *collective)
{
    if (collective_rows[collective->kind].reduces) {
        /* One source still is a reduction: premul_sum multiplies, bool becomes 0 or 1. */
        const void *source = NULL;
        return block_reduce(collective, 0, 0, 1, &source, 0, block_elements(collective, BLOCK_RECV, 0));
    }
    if (has_own_block(collective, 0)) {
        block_copy_own(collective, 0);
    }
    return SHOAL_OK;
}

/* Small: what came with the calls ------------------------------------------------------------------------- */

static shoal_status deliver_reduction(struct message_channel *channel, const struct collective *collective)
{
    size_t elements = block_elements(collective, BLOCK_RECV, channel->rank);
    size_t bytes = elements * shoal_dtype_bytes(collective->dtype);
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank) {
            const char *data = NULL;
            TRY(message_find_data(channel, i, bytes, &data));
            channel->sources[i] = data;
        }
    }
    return block_reduce(collective, channel->rank, channel->rank, channel->n_ranks, channel->sources, 0,
                        elements);
}

static bool is_folded_here(const struct collective *collective, int rank)
{
    return collective_rows[collective->kind].reduces &&
           (collective->kind != COLLECTIVE_REDUCE || rank == collective->root);
}

shoal_status message_deliver(struct message_channel *channel, const struct collective *collective)
{
    if (is_folded_here(collective, channel->rank)) {
        return deliver_reduction(channel, collective);
    }
    size_t element_bytes = collective->kind == COLLECTIVE_BARRIER ? 1 : shoal_dtype_bytes(collective->dtype);
    for (int i = 0; i < channel->n_ranks; i++) {
        size_t elements =
            i == channel->rank ? 0 : expected_elements(collective, /*from=*/i, /*to=*/channel->rank);
        if (elements > 0) {
            const char *data = NULL;
            TRY(message_find_data(channel, i, elements * element_bytes, &data));
            block_copy_in(collective, BLOCK_RECV, block_from(collective, channel->rank, i), 0, elements, data,
                          /*whole_bytes=*/0);
        }
    }
    if (has_own_block(collective, channel->rank)) {
        block_copy_own(collective, channel->rank);
    }
    return SHOAL_OK;
}

/* Large: rounds ------------------------------------------------------------------------------------------- */

struct journey {
    struct message_channel *channel;
    const struct collective *collective;
    size_t element_bytes;
    size_t whole_bytes; /* of the widest buffer */
    size_t chunk;       /* elements of a frame */
    size_t n_rounds;
    size_t own_elements;      /* that this rank gives to itself */
    bool stays[FRAME_QUEUES]; /* what is sent stays as it is until the call ends */
};

struct stretch {
    size_t from;
    size_t to;
};

static struct stretch find_stretch(size_t elements, size_t round, size_t length)
{
    size_t from = round * length;
    size_t to = from + length;
    return (struct stretch){.from = from < elements ? from : elements, .to = to < elements ? to : elements};
}

/* What a rank is waited for. */
enum part {
    PART_FRAME,  /* the next of a queue has arrived */
    PART_CREDIT, /* one may be sent */
    PART_RETURN  /* it has taken all that was lent */
};

static bool is_there(const struct journey *journey, int rank, enum frame_type queue, enum part part)
{
    struct port *port = journey->channel->port;
    int world_rank = message_world_rank(journey->channel, rank);
    switch (part) {
    case PART_FRAME:
        return port_peek(port, world_rank, queue) != NULL;
    case PART_CREDIT:
        return port_credit(port, world_rank, queue) > 0;
    case PART_RETURN:
        break;
    }
    return port_n_lent(port, world_rank) == 0;
}

static shoal_status await(const struct journey *journey, int rank, enum frame_type queue, enum part part)
{
    struct message_channel *channel = journey->channel;
    for (;;) {
        uint32_t seen = doorbell_look(&channel->bell);
        if (is_there(journey, rank, queue, part)) {
            return SHOAL_OK;
        }
        shoal_status status = message_failure(channel);
        if (status == SHOAL_OK && message_must_look(channel, journey->collective->deadline_ns)) {
            status = message_check_member(channel, rank);
        }
        if (status != SHOAL_OK) {
            return is_there(journey, rank, queue, part) ? SHOAL_OK : status;
        }
        if (message_is_over(channel, journey->collective, /*may_wait=*/true)) {
            char call[ERROR_TEXT_BYTES];
            return error_set(
                SHOAL_ERR_TIMEOUT, "%s and rank %d has not done its part",
                transport_describe_timeout(channel->base.peers, journey->collective, call, sizeof call),
                message_world_rank(channel, rank));
        }
        message_wait(channel, seen, journey->collective->deadline_ns);
    }
}

/* The memory of a stretch that may be lent to a rank of the world; NULL if it is copied. */
static const char *find_lent(const struct journey *journey, int world_rank, enum frame_type queue,
                             enum block_side side, int block, struct stretch stretch)
{
    size_t elements = stretch.to - stretch.from;
    if (!journey->stays[queue] || elements * journey->element_bytes < LEND_BYTES ||
        !router_may_lend(journey->channel->router, world_rank)) {
        return NULL;
    }
    struct block_walk walk = block_walk_begin(journey->collective, side, block, stretch.from, stretch.to);
    struct block_run run = block_walk_next(&walk, elements);
    return run.elements == elements ? run.data : NULL;
}

/* Sends a stretch of a block, if it has any elements. */
static shoal_status send_stretch(const struct journey *journey, int to, enum frame_type queue,
                                 enum block_side side, int block, struct stretch stretch)
{
    struct message_channel *channel = journey->channel;
    if (stretch.to == stretch.from) {
        return SHOAL_OK;
    }
    TRY(await(journey, to, queue, PART_CREDIT));
    size_t bytes = (stretch.to - stretch.from) * journey->element_bytes;
    int world_rank = message_world_rank(channel, to);
    const char *lent = find_lent(journey, world_rank, queue, side, block, stretch);
    if (lent) {
        return port_lend(channel->port, world_rank, queue, lent, bytes) ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    }
    struct frame *frame = router_new_frame(channel->router, bytes);
    if (!frame) {
        return SHOAL_ERR_NO_MEMORY;
    }
    block_copy_out(journey->collective, side, block, stretch.from, stretch.to, frame->payload);
    (void)port_send(channel->port, world_rank, queue, frame);
    return SHOAL_OK;
}

/* The payload of a rank's next frame, which must be as long as the stretch. It stays until it is dropped. */
static shoal_status find_payload(const struct journey *journey, int rank, enum frame_type queue,
                                 struct stretch stretch, const char **payload_out)
{
    struct message_channel *channel = journey->channel;
    TRY(await(journey, rank, queue, PART_FRAME));
    const struct frame *frame = port_peek(channel->port, message_world_rank(channel, rank), queue);
    size_t expected = (stretch.to - stretch.from) * journey->element_bytes;
    if (frame->head.bytes != expected) {
        return error_set(SHOAL_ERR_INTERNAL, "rank %d sent %u bytes where %zu were expected",
                         message_world_rank(channel, rank), frame->head.bytes, expected);
    }
    *payload_out = frame->payload;
    return SHOAL_OK;
}

static void drop(const struct journey *journey, int rank, enum frame_type queue)
{
    port_drop(journey->channel->port, message_world_rank(journey->channel, rank), queue);
}

/* Takes a stretch of a block from a rank, if it has any elements. */
static shoal_status take_stretch(const struct journey *journey, int from, enum frame_type queue, int block,
                                 struct stretch stretch)
{
    if (stretch.to == stretch.from) {
        return SHOAL_OK;
    }
    const char *payload = NULL;
    TRY(find_payload(journey, from, queue, stretch, &payload));
    block_copy_in(journey->collective, BLOCK_RECV, block, stretch.from, stretch.to, payload,
                  journey->whole_bytes);
    drop(journey, from, queue);
    return SHOAL_OK;
}

/* Folds a stretch of the own block, or share, out of everybody's frames. */
static shoal_status fold_stretch(const struct journey *journey, struct stretch stretch)
{
    struct message_channel *channel = journey->channel;
    if (stretch.to == stretch.from) {
        return SHOAL_OK;
    }
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank) {
            const char *payload = NULL;
            TRY(find_payload(journey, i, FRAME_DATA, stretch, &payload));
            channel->sources[i] = payload;
        }
    }
    TRY(block_reduce(journey->collective, channel->rank, channel->rank, channel->n_ranks, channel->sources,
                     stretch.from, stretch.to));
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank) {
            drop(journey, i, FRAME_DATA);
        }
    }
    return SHOAL_OK;
}

/* Peers after the own rank first, so that not all ranks begin with the same one. */
static int nth_peer(const struct journey *journey, int n)
{
    return (journey->channel->rank + n) % journey->channel->n_ranks;
}

static shoal_status fill(const struct journey *journey, size_t round)
{
    FAIL_POINT("message fill");
    for (int i = 1; i < journey->channel->n_ranks; i++) {
        int to = nth_peer(journey, i);
        struct contribution own = message_contribution(journey->collective, journey->channel->rank, to);
        TRY(send_stretch(journey, to, FRAME_DATA, own.side, own.block,
                         find_stretch(own.elements, round, journey->chunk)));
    }
    return SHOAL_OK;
}

static shoal_status take(const struct journey *journey, size_t round)
{
    const struct collective *collective = journey->collective;
    int rank = journey->channel->rank;
    FAIL_POINT("message take");
    if (is_folded_here(collective, rank)) {
        size_t elements = block_elements(collective, BLOCK_RECV, rank);
        return fold_stretch(journey, find_stretch(elements, round, journey->chunk));
    }
    for (int i = 1; i < journey->channel->n_ranks; i++) {
        int from = nth_peer(journey, i);
        size_t elements = expected_elements(collective, from, rank);
        TRY(take_stretch(journey, from, FRAME_DATA, block_from(collective, rank, from),
                         find_stretch(elements, round, journey->chunk)));
    }
    return SHOAL_OK;
}

/*
 * The own block, a part in each round: what goes to the peers is on its way meanwhile, and lies in the caches because it
 * was just copied into frames.
 */
static void copy_own(const struct journey *journey, size_t round)
{
    size_t length = (journey->own_elements + journey->n_rounds - 1) / journey->n_rounds;
    struct stretch part = find_stretch(journey->own_elements, round, length);
    if (part.to > part.from) {
        block_copy_own_part(journey->collective, journey->channel->rank, part.from, part.to,
                            journey->whole_bytes);
    }
}

/* All-reduce: everybody folds a share of each round ------------------------------------------------------ */

/* A rank's share of a round. */
static struct stretch find_share(const struct journey *journey, size_t round, int rank)
{
    int n_ranks = journey->channel->n_ranks;
    size_t elements = block_elements(journey->collective, BLOCK_SEND, 0);
    struct stretch whole = find_stretch(elements, round, journey->chunk * (size_t)n_ranks);
    size_t count = whole.to - whole.from;
    return (struct stretch){
        .from = whole.from + block_share_begin(count, n_ranks, rank, journey->element_bytes),
        .to = whole.from + block_share_begin(count, n_ranks, rank + 1, journey->element_bytes)};
}

static shoal_status fill_shares(const struct journey *journey, size_t round)
{
    FAIL_POINT("message fill shares");
    for (int i = 1; i < journey->channel->n_ranks; i++) {
        int to = nth_peer(journey, i);
        TRY(send_stretch(journey, to, FRAME_DATA, BLOCK_SEND, journey->channel->rank,
                         find_share(journey, round, to)));
    }
    return SHOAL_OK;
}

static shoal_status take_shares(const struct journey *journey, size_t round)
{
    int rank = journey->channel->rank;
    struct stretch own = find_share(journey, round, rank);
    TRY(fold_stretch(journey, own));
    FAIL_POINT("message folded");
    for (int i = 1; i < journey->channel->n_ranks; i++) {
        TRY(send_stretch(journey, nth_peer(journey, i), FRAME_RESULT, BLOCK_RECV, rank, own));
    }
    for (int i = 1; i < journey->channel->n_ranks; i++) {
        int from = nth_peer(journey, i);
        TRY(take_stretch(journey, from, FRAME_RESULT, from, find_share(journey, round, from)));
    }
    return SHOAL_OK;
}

/* ---------------------------------------------------------------------------------------------------------- */

/* As many as the longest that this rank sends or receives. */
static size_t count_rounds(const struct journey *journey)
{
    const struct collective *collective = journey->collective;
    int rank = journey->channel->rank;
    size_t largest = 0;
    if (collective->kind == COLLECTIVE_ALL_REDUCE) {
        size_t n_ranks = (size_t)journey->channel->n_ranks;
        largest = (block_elements(collective, BLOCK_SEND, 0) + n_ranks - 1) / n_ranks;
    }
    for (int i = 0; collective->kind != COLLECTIVE_ALL_REDUCE && i < journey->channel->n_ranks; i++) {
        if (i != rank) {
            size_t sent = message_contribution(collective, rank, i).elements;
            size_t received = expected_elements(collective, i, rank);
            largest = sent > largest ? sent : largest;
            largest = received > largest ? received : largest;
        }
    }
    return (largest + journey->chunk - 1) / journey->chunk;
}

/* Whether data that was sent stays as it is until the end of the call: no result is written over it before. */
static bool does_data_stay(const struct collective *collective)
{
    /* In all others, in place concerns the own block only, which is not sent. */
    static const bool may_be_in_place[COLLECTIVE_COUNT] = {
        [COLLECTIVE_ALL_REDUCE] = true,
        [COLLECTIVE_ALL_TO_ALL] = true,
    };
    bool may_be = may_be_in_place[collective->kind];
    bool does_stay = !may_be || !(collective->send_blocks || collective->recv_blocks);
    for (size_t i = 0; may_be && i < collective->n_pieces; i++) {
        does_stay = does_stay && collective->pieces[i].send != collective->pieces[i].recv;
    }
    return does_stay;
}

/* The end ------------------------------------------------------------------------------------------------ */

/*
 * Some libraries let the receiver read lent memory by itself, at any time. A lender that gives up, because a rank has
 * died or does not take what it is sent, lets its caller use the memory for something else, which peers then read. So
 * nobody believes what came before every lender has ended: a rank whose memory was taken, all of it and by all, sends
 * each peer an empty frame after its data. One that gives up sends nothing more.
 *
 * In an all_reduce a result is made of what others lent to the rank that sends it. Therefore everybody waits for
 * everybody there. Otherwise a rank has what its peers gave it: both know whether that is enough to be lent.
 */
static bool has_end(const struct journey *journey, size_t elements)
{
    const struct collective *collective = journey->collective;
    size_t most =
        collective->kind == COLLECTIVE_ALL_REDUCE ? block_elements(collective, BLOCK_SEND, 0) : elements;
    return router_has_apart(journey->channel->router) && most * journey->element_bytes >= LEND_BYTES;
}

/* Until everything that was lent is the caller's again. */
static shoal_status await_returns(const struct journey *journey)
{
    struct message_channel *channel = journey->channel;
    for (int i = 1; i < channel->n_ranks; i++) {
        int to = nth_peer(journey, i);
        TRY(await(journey, to, FRAME_DATA, PART_RETURN));
        if (!port_is_taken(channel->port)) {
            TRY(message_failure(channel));
            TRY(message_check_connection(channel->router, message_world_rank(channel, to)));
        }
    }
    return port_is_taken(channel->port)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_PEER, "a rank cannot be reached, and has not taken what was sent to it");
}

static shoal_status exchange_ends(const struct journey *journey)
{
    struct message_channel *channel = journey->channel;
    TRY(await_returns(journey));
    for (int i = 1; i < channel->n_ranks; i++) {
        int to = nth_peer(journey, i);
        if (!has_end(journey, message_contribution(journey->collective, channel->rank, to).elements)) {
            continue;
        }
        TRY(await(journey, to, FRAME_DATA, PART_CREDIT));
        struct frame *frame = router_new_frame(channel->router, 0);
        if (!frame) {
            return SHOAL_ERR_NO_MEMORY;
        }
        (void)port_send(channel->port, message_world_rank(channel, to), FRAME_DATA, frame);
    }
    for (int i = 1; i < channel->n_ranks; i++) {
        int from = nth_peer(journey, i);
        const char *payload = NULL;
        if (has_end(journey, expected_elements(journey->collective, from, channel->rank))) {
            TRY(find_payload(journey, from, FRAME_DATA, (struct stretch){0}, &payload));
            drop(journey, from, FRAME_DATA);
        }
    }
    return SHOAL_OK;
}

shoal_status message_move(struct message_channel *channel, const struct collective *collective)
{
    struct journey journey = {
        .channel = channel,
        .collective = collective,
        .element_bytes = shoal_dtype_bytes(collective->dtype),
        .whole_bytes = collective_bytes(collective, channel->n_ranks),
        .stays = {[FRAME_DATA] = does_data_stay(collective), [FRAME_RESULT] = true},
    };
    journey.chunk = router_frame_bytes(channel->router) / journey.element_bytes;
    journey.n_rounds = count_rounds(&journey);
    bool has_shares = collective->kind == COLLECTIVE_ALL_REDUCE;
    if (has_own_block(collective, channel->rank)) {
        journey.own_elements = block_elements(collective, BLOCK_SEND, channel->rank);
    }
    if (journey.n_rounds == 0) {
        block_copy_own_part(collective, channel->rank, 0, journey.own_elements, journey.whole_bytes);
    }
    for (size_t round = 0; round < journey.n_rounds + AHEAD; round++) {
        if (round < journey.n_rounds) {
            TRY(has_shares ? fill_shares(&journey, round) : fill(&journey, round));
            copy_own(&journey, round);
        }
        if (round >= AHEAD) {
            TRY(has_shares ? take_shares(&journey, round - AHEAD) : take(&journey, round - AHEAD));
        }
    }
    return exchange_ends(&journey);
}
