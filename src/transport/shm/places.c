/* SPDX-License-Identifier: MIT */
/* Which buffers of a call lie in symmetric memory, where peers can reach them. */
#include "transport/shm/channel.h"

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
