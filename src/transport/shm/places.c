/* SPDX-License-Identifier: MIT */
/* Which buffers of a call lie in symmetric memory, where peers can reach them. */
#include "transport/shm/channel.h"

/*
 * Where a buffer lies, if all members of the group can reach it there. What a rank says of its own memory decides for
 * all (shm_settle), so it must not offer what was made with others than these.
 */
static struct region_place find_place(struct shm_channel *channel, const void *buffer, size_t bytes)
{
    const struct transport_peers *peers = channel->base.peers;
    struct region_place place = regions_find(peers->regions, buffer, bytes);
    bool is_covered = place.id && regions_cover(peers->regions, place.id, peers->world_ranks, peers->n_ranks);
    return is_covered ? place : (struct region_place){0};
}

bool shm_find_places(struct shm_channel *channel, const struct collective *collective,
                     struct region_place *send_out, struct region_place *recv_out)
{
    *send_out = (struct region_place){0};
    *recv_out = (struct region_place){0};
    const struct collective_piece *piece = &collective->pieces[0];
    if (collective->kind == COLLECTIVE_BARRIER || collective->kind == COLLECTIVE_WINDOW_GATHER ||
        collective->n_pieces != 1 || collective->send_counts || collective->send_blocks ||
        collective->recv_blocks) {
        return false;
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
