/* SPDX-License-Identifier: MIT */
/* Where peers can reach the buffers of a call: in symmetric memory (direct), or in the memory of this rank's process
   (single). */
#include "transport/blocks.h"
#include "transport/shm/channel.h"

/* Symmetric memory ---------------------------------------------------------------------------------------- */

/*
 * Finds where a buffer lies in symmetric memory, if all members of the group have a block there. The answer decides for
 * all members (shm_settle), so a rank must not offer memory that some of them cannot reach.
 */
static struct region_place find_place(struct shm_channel *channel, const void *buffer, size_t bytes)
{
    const struct transport_peers *peers = channel->base.peers;
    struct region_place place = regions_find(peers->regions, buffer, bytes);
    bool is_covered = place.id && regions_cover(peers->regions, place.id, peers->world_ranks, peers->n_ranks);
    return is_covered ? place : (struct region_place){0};
}

/* Finds the send buffer of a part. Ranks agree on counts, so a part without elements is left out by all of them. */
static bool find_part(struct shm_channel *channel, const struct collective *collective, size_t index,
                      struct region_place *place_out)
{
    const struct collective_piece *piece = &collective->pieces[index];
    size_t bytes = piece->count * shoal_dtype_bytes(collective->dtype) * (size_t)channel->n_ranks;
    *place_out = piece->count > 0 ? find_place(channel, piece->send, bytes) : (struct region_place){0};
    return piece->count == 0 || place_out->id;
}

static bool find_parts(struct shm_channel *channel, const struct collective *collective)
{
    bool is_found = collective->kind == COLLECTIVE_REDUCE_SCATTER && collective->n_pieces <= SHM_LIST_PLACES;
    for (size_t i = 0; is_found && i < collective->n_pieces; i++) {
        struct region_place place;
        is_found = find_part(channel, collective, i, &place);
    }
    return is_found;
}

void shm_write_list_places(struct shm_channel *channel, const struct collective *collective)
{
    struct region_place *places = shm_list_places(channel, channel->rank, collective->sequence);
    for (size_t i = 0; i < collective->n_pieces; i++) {
        (void)find_part(channel, collective, i, &places[i]);
    }
}

bool shm_find_places(struct shm_channel *channel, const struct collective *collective,
                     struct region_place *send_out, struct region_place *recv_out)
{
    *send_out = (struct region_place){0};
    *recv_out = (struct region_place){0};
    const struct collective_piece *piece = &collective->pieces[0];
    if (collective->kind == COLLECTIVE_BARRIER || collective->kind == COLLECTIVE_WINDOW_GATHER ||
        collective->n_pieces == 0 || collective->send_counts || collective->send_blocks ||
        collective->recv_blocks) {
        return false;
    }
    if (collective->n_pieces > 1) {
        return find_parts(channel, collective);
    }
    size_t block = piece->count * shoal_dtype_bytes(collective->dtype);
    bool is_root = channel->rank == collective->root;
    switch (collective->kind) {
    case COLLECTIVE_ALL_REDUCE:
        *send_out = find_place(channel, piece->send, block);
        *recv_out = send_out->id ? find_place(channel, piece->recv, block) : *recv_out;
        return send_out->id && recv_out->id;
    case COLLECTIVE_BROADCAST:
        *send_out = is_root ? find_place(channel, piece->recv, block) : *send_out;
        return !is_root || send_out->id;
    case COLLECTIVE_SCATTER:
        *send_out = is_root ? find_place(channel, piece->send, block * (size_t)channel->n_ranks) : *send_out;
        return !is_root || send_out->id;
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_GATHER:
        *send_out = is_root ? *send_out : find_place(channel, piece->send, block);
        return is_root || send_out->id;
    case COLLECTIVE_ALL_GATHER:
        *send_out = find_place(channel, piece->send, block);
        return send_out->id;
    case COLLECTIVE_ALL_TO_ALL:
    case COLLECTIVE_REDUCE_SCATTER:
        if (collective->kind == COLLECTIVE_ALL_TO_ALL && piece->send == piece->recv) {
            return false;
        }
        *send_out = find_place(channel, piece->send, block * (size_t)channel->n_ranks);
        return send_out->id;
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_WINDOW_GATHER:
    case COLLECTIVE_COUNT:
        break;
    }
    return false;
}

/* Memory of this process ----------------------------------------------------------------------------------- */

/* Where a block begins that this rank gives: to `receiver`, or to all. */
static const char *find_block(const struct shm_channel *channel, const struct collective *collective,
                              int receiver)
{
    bool has_blocks = collective_rows[collective->kind].has_send_blocks;
    enum block_side side = collective->kind == COLLECTIVE_BROADCAST ? BLOCK_RECV : BLOCK_SEND;
    int block = has_blocks ? receiver : channel->rank;
    struct block_walk walk =
        block_walk_begin(collective, side, block, 0, block_elements(collective, side, block));
    return block_walk_next(&walk, SIZE_MAX).data; /* with one piece there is one stretch */
}

static bool is_in_place(const struct shm_channel *channel, const struct collective *collective)
{
    if (!collective->send_blocks && !collective->recv_blocks) {
        return collective->pieces[0].send == collective->pieces[0].recv;
    }
    bool is_found = false;
    for (int i = 0; i < channel->n_ranks && !is_found; i++) {
        struct block_walk walk =
            block_walk_begin(collective, BLOCK_RECV, i, 0, block_elements(collective, BLOCK_RECV, i));
        const char *recv = block_walk_next(&walk, SIZE_MAX).data;
        is_found = recv && recv == find_block(channel, collective, i);
    }
    return is_found;
}

bool shm_is_readable(const struct shm_channel *channel, const struct collective *collective)
{
    if (channel->reading == SHM_READING_REFUSED || shm_peer(channel, channel->rank)->offer.process == 0 ||
        collective->kind == COLLECTIVE_WINDOW_GATHER || collective->n_pieces != 1) {
        return false;
    }
    return collective->kind != COLLECTIVE_ALL_TO_ALL || !is_in_place(channel, collective);
}

void shm_write_addresses(struct shm_channel *channel, const struct collective *collective)
{
    uint64_t *addresses = shm_addresses(channel, channel->rank, collective->sequence);
    bool has_blocks = collective_rows[collective->kind].has_send_blocks;
    bool gives = !collective_rows[collective->kind].has_root ||
                 (collective->kind == COLLECTIVE_GATHER) == (channel->rank != collective->root);
    for (int i = 0; gives && i < (has_blocks ? channel->n_ranks : 1); i++) {
        addresses[i] = (uint64_t)(uintptr_t)find_block(channel, collective, i);
    }
}
