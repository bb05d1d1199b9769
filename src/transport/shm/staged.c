/* SPDX-License-Identifier: MIT */
/*
 * Collectives on ordinary memory of any size, in rounds through the staging halves. In a round every rank fills a half
 * with what the others need from it, and takes what it needs from theirs. Before it takes, it fills the half of the
 * next round, so that peers do not wait for its copies. Rounds are counted over the life of the channel, g = 0, 1, ...:
 *
 *   filled > g     the half g % 2 of that rank holds its data of round g
 *   reduced > g    the rank has read all halves of round g (all_reduce: and its result lies in its results)
 *   taken > g      the rank has read all results of round g
 *
 *   A rank fills a half in round g after all peers have reduced >= g - 1, that is, have read round g - 2.
 *   It writes results in round g after all peers have taken >= g - 1.
 *
 * all_to_all exchanges places: from its third round on, a rank writes what is for a peer to where it has just read what
 * came from that peer. docs/design/shm.md says why that needs no wait, and what it saves.
 *
 * Memory order: each counter is raised (release) after the accesses that it reports, and seen (acquire) before the
 * accesses that it allows. All ranks make the same number of rounds in a collective, so their counters agree after it.
 *
 * In place is safe: elements of a round are read out of the send buffer before any result of that round, or of a
 * later one, is written; rounds touch different elements.
 */
#include "base/clock.h"
#include "base/fail_point.h"
#include "base/try.h"
#include "kernel/kernel.h"
#include "transport/blocks.h"
#include "transport/shm/channel.h"
#include "transport/shm/device.h"

/* Data that is copied to two places is copied in parts of this size, so that the second copy reads from a near
   cache. */
#define NEAR_BYTES ((size_t)8 * 1024)

/* A rank gives away this part of a half in one round of an all_to_all. So more rounds exchange places, and the data of a
   round stays in nearer caches. */
#define EXCHANGE_PART 2

/* A collective while it runs. */
struct journey {
    struct shm_channel *channel;
    const struct collective *collective;
    size_t element_bytes;
    size_t whole_bytes; /* of the widest buffer */
    size_t chunk;       /* elements of a block that one round moves */
    size_t n_rounds;
    size_t half_bytes;
    uint32_t first;  /* global number of round 0 */
    bool has_blocks; /* a half has a part for each peer */
};

typedef void fill_function(const struct journey *journey, size_t round);
typedef shoal_status take_function(const struct journey *journey, size_t round);

struct stretch {
    size_t from;
    size_t to;
};

/* The elements that a round moves, of a block with `block` elements. */
static struct stretch find_stretch(const struct journey *journey, size_t round, size_t block)
{
    size_t from = round * journey->chunk;
    size_t to = from + journey->chunk;
    return (struct stretch){.from = from < block ? from : block, .to = to < block ? to : block};
}

static uint32_t global_round(const struct journey *journey, size_t round)
{
    return journey->first + (uint32_t)round;
}

/* Whether the data is in memory of a device. */
static bool is_on_device(const struct journey *journey)
{
    return journey->collective->device != SHOAL_CPU;
}

/* A rank's place of a round: its half, or its results. */
static char *find_staging(const struct journey *journey, int rank, uint32_t global, bool is_result)
{
    const struct shm_channel *channel = journey->channel;
    if (is_on_device(journey)) {
        return shm_device_staging(channel, rank, (is_result ? 2 : 0) + (global & 1));
    }
    return is_result ? channel->staging[rank].results[global & 1] : channel->staging[rank].halves[global & 1];
}

/* A rank's half of a round; with a part per peer, the part for `receiver`. */
static char *find_half(const struct journey *journey, int rank, size_t round, int receiver)
{
    char *half = find_staging(journey, rank, global_round(journey, round), /*is_result=*/false);
    size_t part = journey->has_blocks ? (size_t)receiver : 0;
    return half + part * journey->chunk * journey->element_bytes;
}

/* Whether two ranks use the places of the receiver's half in this round of an all_to_all, instead of the sender's. */
static bool is_exchanged(size_t round)
{
    return (round & 2) != 0;
}

/* Where a round of an all_to_all has what `sender` gives to `receiver`. */
static char *find_exchange(const struct journey *journey, int sender, int receiver, size_t round)
{
    return is_exchanged(round) ? find_half(journey, receiver, round, sender)
                               : find_half(journey, sender, round, receiver);
}

/* Rounds that a counter is past the beginning of the journey. */
static uint32_t rounds_done(const struct journey *journey, _Atomic uint32_t *counter)
{
    uint32_t rounds = (flag_get(counter) - journey->first) & FLAG_MASK;
    return flag_is_past(rounds, 0) ? rounds : 0;
}

/* The peer that has made the fewest steps. It is the one to name: ranks that wait for it have made more. */
static int find_slowest(const struct journey *journey)
{
    struct shm_channel *channel = journey->channel;
    uint64_t least = UINT64_MAX;
    int slowest = 0;
    for (int i = 0; i < channel->n_ranks; i++) {
        struct shm_rank *peer = shm_peer(channel, i);
        uint64_t done = (uint64_t)rounds_done(journey, &peer->filled) + rounds_done(journey, &peer->reduced) +
                        rounds_done(journey, &peer->taken);
        if (i != channel->rank && done < least) {
            least = done;
            slowest = i;
        }
    }
    return slowest;
}

static shoal_status wait_round(const struct journey *journey, int peer, struct shm_counters counters,
                               uint32_t target)
{
    struct shm_channel *channel = journey->channel;
    int64_t deadline_ns = journey->collective->deadline_ns;
    shoal_status status = shm_wait(channel, peer, counters, target & FLAG_MASK, deadline_ns);
    if (status == SHOAL_ERR_TIMEOUT && clock_now_ns() >= deadline_ns) {
        char call[ERROR_TEXT_BYTES];
        return error_set(
            status, "%s and rank %d has not done its part",
            transport_describe_timeout(channel->base.peers, journey->collective, call, sizeof call),
            channel->base.peers->world_ranks[find_slowest(journey)]);
    }
    return status;
}

/* Waits until all peers have read what this rank's half held before. */
static shoal_status wait_half_free(const struct journey *journey, size_t round)
{
    struct shm_channel *channel = journey->channel;
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank) {
            TRY(wait_round(journey, i, shm_counters_of(channel, reduced), global_round(journey, round) - 1));
        }
    }
    return SHOAL_OK;
}

static shoal_status wait_filled(const struct journey *journey, int peer, size_t round)
{
    return wait_round(journey, peer, shm_counters_of(journey->channel, filled),
                      global_round(journey, round) + 1);
}

/* From its third round on, an all_to_all fills places that this rank itself was the last to read, two rounds before. */
static bool is_own_place(const struct journey *journey, size_t round)
{
    return journey->collective->kind == COLLECTIVE_ALL_TO_ALL && round >= 2;
}

/* What a counter reports has been done when it is raised. Processors have done it; a device may not have. */
static shoal_status finish_accesses(const struct journey *journey)
{
    return is_on_device(journey) ? shm_finish_work(journey->channel, journey->collective) : SHOAL_OK;
}

static shoal_status fill_round(const struct journey *journey, size_t round, fill_function *fill)
{
    if (!is_own_place(journey, round)) {
        TRY(wait_half_free(journey, round));
    }
    FAIL_POINT("shm staged fill");
    fill(journey, round);
    TRY(finish_accesses(journey));
    flag_set(&shm_peer(journey->channel, journey->channel->rank)->filled, global_round(journey, round) + 1);
    return SHOAL_OK;
}

/* The memory of a device belongs to the rank that made it, which may leave when a call is over. So a call there is over
   when the peers have read what this rank has for them. */
static shoal_status wait_all_taken(const struct journey *journey)
{
    struct shm_channel *channel = journey->channel;
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank) {
            TRY(wait_round(journey, i, shm_counters_of(channel, taken),
                           global_round(journey, journey->n_rounds)));
        }
    }
    return SHOAL_OK;
}

static shoal_status travel(struct journey *journey, fill_function *fill, take_function *take)
{
    struct shm_rank *own = shm_peer(journey->channel, journey->channel->rank);
    if (journey->n_rounds > 0) {
        TRY(fill_round(journey, 0, fill));
    }
    for (size_t round = 0; round < journey->n_rounds; round++) {
        if (round + 1 < journey->n_rounds) {
            TRY(fill_round(journey, round + 1, fill));
        }
        FAIL_POINT("shm staged take");
        TRY(take(journey, round));
        TRY(finish_accesses(journey));
        flag_set(&own->reduced, global_round(journey, round) + 1);
        flag_set(&own->taken, global_round(journey, round) + 1);
    }
    journey->channel->rounds += (uint32_t)journey->n_rounds;
    return is_on_device(journey) ? wait_all_taken(journey) : SHOAL_OK;
}

/* One block that all takers read ------------------------------------------------------------------------- */

static void fill_own_block(const struct journey *journey, size_t round)
{
    const struct collective *collective = journey->collective;
    int rank = journey->channel->rank;
    struct stretch stretch = find_stretch(journey, round, block_elements(collective, BLOCK_SEND, rank));
    enum block_side side = collective->kind == COLLECTIVE_BROADCAST ? BLOCK_RECV : BLOCK_SEND;
    block_copy_out(collective, side, rank, stretch.from, stretch.to,
                   find_half(journey, rank, round, /*receiver=*/0));
}

/* Fills the half in an all_gather, and the own block's place in the result: the block is read once for both. */
static void fill_own_block_twice(const struct journey *journey, size_t round)
{
    const struct collective *collective = journey->collective;
    int rank = journey->channel->rank;
    struct stretch stretch = find_stretch(journey, round, block_elements(collective, BLOCK_SEND, rank));
    struct block_walk from = block_walk_begin(collective, BLOCK_SEND, rank, stretch.from, stretch.to);
    struct block_walk to = block_walk_begin(collective, BLOCK_RECV, rank, stretch.from, stretch.to);
    char *half = find_half(journey, rank, round, /*receiver=*/0);
    struct block_run run;
    if (is_on_device(journey)) {
        block_copy_out(collective, BLOCK_SEND, rank, stretch.from, stretch.to, half);
        block_copy_own_part(collective, rank, stretch.from, stretch.to, journey->whole_bytes);
        return;
    }
    while ((run = block_walk_next(&from, NEAR_BYTES / journey->element_bytes)).elements > 0) {
        /* Both sides have the same pieces, so the stretches are the same. */
        struct block_run target = block_walk_next(&to, run.elements);
        size_t bytes = run.elements * journey->element_bytes;
        kernel_copy(half, run.data, bytes);
        kernel_copy_part(target.data, run.data, bytes, journey->whole_bytes); /* in place it does nothing */
        half += bytes;
    }
}

static void fill_nothing(const struct journey *journey, size_t round)
{
}

/* Takes from a peer what is for this rank. */
static shoal_status take_from(const struct journey *journey, int peer, size_t round)
{
    const struct collective *collective = journey->collective;
    int block = block_from(collective, journey->channel->rank, peer);
    struct stretch stretch = find_stretch(journey, round, block_elements(collective, BLOCK_RECV, block));
    TRY(wait_filled(journey, peer, round));
    block_copy_in(collective, BLOCK_RECV, block, stretch.from, stretch.to,
                  find_half(journey, peer, round, journey->channel->rank), journey->whole_bytes);
    return SHOAL_OK;
}

static shoal_status take_from_all(const struct journey *journey, size_t round)
{
    struct shm_channel *channel = journey->channel;
    for (int i = 1; i < channel->n_ranks; i++) {
        TRY(take_from(journey, (channel->rank + i) % channel->n_ranks, round));
    }
    return SHOAL_OK;
}

static shoal_status take_from_root(const struct journey *journey, size_t round)
{
    return take_from(journey, journey->collective->root, round);
}

static shoal_status take_nothing(const struct journey *journey, size_t round)
{
    return SHOAL_OK;
}

/* Reduces a stretch of the own block out of everybody's half. */
static shoal_status take_reduction(const struct journey *journey, size_t round)
{
    struct shm_channel *channel = journey->channel;
    const struct collective *collective = journey->collective;
    struct stretch stretch =
        find_stretch(journey, round, block_elements(collective, BLOCK_RECV, channel->rank));
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank) {
            TRY(wait_filled(journey, i, round));
        }
        channel->sources[i] = find_half(journey, i, round, channel->rank);
    }
    return block_reduce(collective, channel->rank, channel->rank, channel->n_ranks, channel->sources,
                        stretch.from, stretch.to);
}

/* A block for each ---------------------------------------------------------------------------------------- */

static void fill_blocks(const struct journey *journey, size_t round)
{
    const struct collective *collective = journey->collective;
    int rank = journey->channel->rank;
    for (int i = 0; i < journey->channel->n_ranks; i++) {
        if (i != rank) {
            struct stretch stretch = find_stretch(journey, round, block_elements(collective, BLOCK_SEND, i));
            block_copy_out(collective, BLOCK_SEND, i, stretch.from, stretch.to,
                           find_half(journey, rank, round, i));
        }
    }
}

/* All-to-all: places are exchanged ------------------------------------------------------------------------- */

static void fill_exchange(const struct journey *journey, size_t round)
{
    const struct collective *collective = journey->collective;
    int rank = journey->channel->rank;
    for (int i = 1; i < journey->channel->n_ranks; i++) {
        int peer = (rank + i) % journey->channel->n_ranks;
        struct stretch stretch = find_stretch(journey, round, block_elements(collective, BLOCK_SEND, peer));
        block_copy_out(collective, BLOCK_SEND, peer, stretch.from, stretch.to,
                       find_exchange(journey, rank, peer, round));
    }
}

static shoal_status take_exchange(const struct journey *journey, size_t round)
{
    struct shm_channel *channel = journey->channel;
    const struct collective *collective = journey->collective;
    for (int i = 1; i < channel->n_ranks; i++) {
        int peer = (channel->rank + i) % channel->n_ranks;
        struct stretch stretch = find_stretch(journey, round, block_elements(collective, BLOCK_RECV, peer));
        char *place = find_exchange(journey, peer, channel->rank, round);
        TRY(wait_filled(journey, peer, round));
        if (round + 2 < journey->n_rounds && !is_on_device(journey)) {
            /* This rank writes there next, so it fetches the lines for writing. */
            kernel_fetch_to_write(place, (stretch.to - stretch.from) * journey->element_bytes);
        }
        block_copy_in(collective, BLOCK_RECV, peer, stretch.from, stretch.to, place, journey->whole_bytes);
    }
    return SHOAL_OK;
}

/* All-reduce: everybody reduces a share of each round ------------------------------------------------------ */

/* Rank's share of a stretch. */
static struct stretch find_share(const struct journey *journey, struct stretch whole, int rank)
{
    size_t count = whole.to - whole.from;
    int n_ranks = journey->channel->n_ranks;
    return (struct stretch){
        .from = whole.from + block_share_begin(count, n_ranks, rank, journey->element_bytes),
        .to = whole.from + block_share_begin(count, n_ranks, rank + 1, journey->element_bytes)};
}

static void fill_shares(const struct journey *journey, size_t round)
{
    const struct collective *collective = journey->collective;
    int rank = journey->channel->rank;
    struct stretch whole = find_stretch(journey, round, block_elements(collective, BLOCK_SEND, rank));
    struct stretch own = find_share(journey, whole, rank);
    char *half = find_half(journey, rank, round, 0);
    block_copy_out(collective, BLOCK_SEND, rank, whole.from, own.from, half);
    block_copy_out(collective, BLOCK_SEND, rank, own.to, whole.to,
                   half + (own.to - whole.from) * journey->element_bytes);
}

/* The own share, reduced into the receive buffer and from there into the results. */
static shoal_status reduce_share(const struct journey *journey, size_t round, struct stretch whole)
{
    struct shm_channel *channel = journey->channel;
    const struct collective *collective = journey->collective;
    struct stretch own = find_share(journey, whole, channel->rank);
    uint32_t global = global_round(journey, round);
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank) {
            TRY(wait_filled(journey, i, round));
        }
        channel->sources[i] =
            find_half(journey, i, round, 0) + (own.from - whole.from) * journey->element_bytes;
    }
    TRY(block_reduce(collective, channel->rank, channel->rank, channel->n_ranks, channel->sources, own.from,
                     own.to));
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank) {
            TRY(wait_round(journey, i, shm_counters_of(channel, taken), global - 1));
        }
    }
    block_copy_out(collective, BLOCK_RECV, channel->rank, own.from, own.to,
                   find_staging(journey, channel->rank, global, /*is_result=*/true));
    TRY(finish_accesses(journey));
    flag_set(&shm_peer(channel, channel->rank)->reduced, global + 1);
    return SHOAL_OK;
}

static shoal_status take_shares(const struct journey *journey, size_t round)
{
    struct shm_channel *channel = journey->channel;
    const struct collective *collective = journey->collective;
    struct stretch whole =
        find_stretch(journey, round, block_elements(collective, BLOCK_RECV, channel->rank));
    uint32_t global = global_round(journey, round);
    TRY(reduce_share(journey, round, whole));
    FAIL_POINT("shm staged reduced");
    for (int i = 1; i < channel->n_ranks; i++) {
        int peer = (channel->rank + i) % channel->n_ranks;
        struct stretch theirs = find_share(journey, whole, peer);
        TRY(wait_round(journey, peer, shm_counters_of(channel, reduced), global + 1));
        block_copy_in(collective, BLOCK_RECV, peer, theirs.from, theirs.to,
                      find_staging(journey, peer, global, /*is_result=*/true), journey->whole_bytes);
    }
    return SHOAL_OK;
}

/* ---------------------------------------------------------------------------------------------------------- */

static shoal_status prepare(struct journey *journey)
{
    struct shm_channel *channel = journey->channel;
    const struct collective *collective = journey->collective;
    enum collective_kind kind = collective->kind;
    size_t half = journey->half_bytes / journey->element_bytes;
    journey->has_blocks = collective_rows[kind].has_send_blocks;
    journey->chunk = journey->has_blocks ? half / (size_t)channel->n_ranks : half;
    if (kind == COLLECTIVE_ALL_TO_ALL) {
        size_t most =
            journey->half_bytes / EXCHANGE_PART / (size_t)(channel->n_ranks - 1) / journey->element_bytes;
        journey->chunk = journey->chunk < most ? journey->chunk : most;
    }
    /* Parts begin at cache lines. */
    size_t line = journey->element_bytes < 64 ? 64 / journey->element_bytes : 1;
    journey->chunk = journey->chunk > line ? journey->chunk / line * line : journey->chunk;
    size_t largest = 0;
    if (kind == COLLECTIVE_ALL_TO_ALL && collective->send_counts) {
        TRY(shm_compare_counts(channel, collective, &largest));
    } else {
        largest = block_largest(collective, BLOCK_SEND, channel->n_ranks);
    }
    journey->n_rounds = (largest + journey->chunk - 1) / journey->chunk;
    journey->first = channel->rounds;
    return SHOAL_OK;
}

static shoal_status choose(struct journey *journey)
{
    const struct collective *collective = journey->collective;
    int rank = journey->channel->rank;
    bool is_root = rank == collective->root;
    switch (collective->kind) {
    case COLLECTIVE_ALL_REDUCE:
        return travel(journey, fill_shares, take_shares);
    case COLLECTIVE_REDUCE:
        return travel(journey, is_root ? fill_nothing : fill_own_block,
                      is_root ? take_reduction : take_nothing);
    case COLLECTIVE_REDUCE_SCATTER:
        return travel(journey, fill_blocks, take_reduction);
    case COLLECTIVE_BROADCAST:
        return travel(journey, is_root ? fill_own_block : fill_nothing,
                      is_root ? take_nothing : take_from_root);
    case COLLECTIVE_ALL_GATHER:
        return travel(journey, fill_own_block_twice, take_from_all);
    case COLLECTIVE_GATHER:
        if (is_root) {
            block_copy_own(collective, rank);
        }
        return travel(journey, is_root ? fill_nothing : fill_own_block,
                      is_root ? take_from_all : take_nothing);
    case COLLECTIVE_SCATTER:
        if (is_root) {
            block_copy_own(collective, rank);
        }
        return travel(journey, is_root ? fill_blocks : fill_nothing, is_root ? take_nothing : take_from_root);
    case COLLECTIVE_ALL_TO_ALL:
        block_copy_own(collective, rank);
        return travel(journey, fill_exchange, take_exchange);
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_WINDOW_GATHER:
    case COLLECTIVE_COUNT:
        break;
    }
    return error_set(SHOAL_ERR_INTERNAL, "%s is never staged", collective_rows[collective->kind].name);
}

shoal_status shm_staged_run(struct shm_channel *channel, struct collective *collective)
{
    bool is_cpu = collective->device == SHOAL_CPU;
    TRY(is_cpu ? shm_open_staging(channel, collective->deadline_ns)
               : shm_open_device_staging(channel, collective));
    struct journey journey = {
        .channel = channel,
        .collective = collective,
        .half_bytes = is_cpu ? SHM_HALF_BYTES : SHM_DEVICE_HALF_BYTES,
        .element_bytes = shoal_dtype_bytes(collective->dtype),
        .whole_bytes = collective_bytes(collective, channel->n_ranks),
    };
    TRY(prepare(&journey));
    /* The slots have been read: shm_compare_counts was the last. */
    shm_done(channel, collective->sequence);
    return choose(&journey);
}
