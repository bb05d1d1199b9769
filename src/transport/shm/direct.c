/* SPDX-License-Identifier: MIT */
/*
 * Collectives on symmetric memory. Ranks read the peers' send buffers where they are. In an all_reduce a rank also
 * writes its share of the result into everybody's receive buffer.
 *
 * Memory order: a peer's send buffer is read after its `entered` was seen (acquire), set (release) after the
 * application had written it. Every rank raises `wrote` (release) after its last read and write of peers' memory
 * and returns after it has seen everybody's (acquire): only then may buffers be used again.
 *
 * On a device the call that wrote the send buffer is waited for before the rank enters (shm.c), and the work of this one
 * before it raises `wrote`.
 *
 * In place is safe where the calls allow it: what a rank writes into a send buffer of its own (all_gather,
 * reduce_scatter, gather, scatter) no peer reads, and slice r of an all_reduce is read and written by rank r only.
 * all_to_all in place is not direct (shm_find_places).
 */
#include "base/fail_point.h"
#include "base/try.h"
#include "kernel/kernel.h"
#include "kernel/moves.h"
#include "transport/blocks.h"
#include "transport/shm/channel.h"
#include "transport/shm/device.h"

/* A rank reduces this much before it copies the result to the peers: it stays in the nearest cache. */
#define DIRECT_CHUNK_BYTES ((size_t)16 * 1024)
/* A rank reduces this much of results that bypass the cache. It is so little that a processor reads the next sources
   while the results are still on their way to memory: it has about as many instructions in flight as such a chunk
   needs. */
#define STREAM_CHUNK_BYTES ((size_t)4 * 1024)

static size_t single_bytes(const struct collective *collective, int n_blocks)
{
    return collective->pieces[0].count * shoal_dtype_bytes(collective->dtype) * (size_t)n_blocks;
}

static bool is_on_device(const struct collective *collective)
{
    return collective->device != SHOAL_CPU;
}

/* A peer's memory, mapped here. The peer says where it is, so the answer is checked. */
static shoal_status find_peer_place(struct shm_channel *channel, const struct collective *collective,
                                    int peer, struct region_place place, size_t bytes, char **buffer_out)
{
    int world_rank = channel->base.peers->world_ranks[peer];
    *buffer_out = regions_peer(channel->base.peers->regions, place, world_rank, bytes);
    if (!*buffer_out && bytes > 0) {
        return error_set(SHOAL_ERR_PEER, "%s: rank %d uses symmetric memory that this rank does not have",
                         collective_rows[collective->kind].name, world_rank);
    }
    return SHOAL_OK;
}

static shoal_status find_peer_buffer(struct shm_channel *channel, const struct collective *collective,
                                     int peer, bool is_send, size_t bytes, char **buffer_out)
{
    const struct shm_slot *slot = shm_slot(channel, peer, collective->sequence);
    return find_peer_place(channel, collective, peer, is_send ? slot->send : slot->recv, bytes, buffer_out);
}

/* Puts all peers' send buffers into channel->peers, and the own one as it was given. */
static shoal_status find_sends(struct shm_channel *channel, const struct collective *collective, size_t bytes)
{
    for (int i = 0; i < channel->n_ranks; i++) {
        char *buffer = (char *)collective->pieces[0].send;
        if (i != channel->rank) {
            TRY(find_peer_buffer(channel, collective, i, /*is_send=*/true, bytes, &buffer));
        }
        channel->peers[i] = buffer;
    }
    return SHOAL_OK;
}

/* Reduces so many elements of all send buffers into all receive buffers. */
static shoal_status reduce_chunk(struct shm_channel *channel, const struct collective *collective,
                                 size_t offset, size_t elements)
{
    size_t bytes = elements * shoal_dtype_bytes(collective->dtype);
    size_t whole_bytes = single_bytes(collective, 1);
    /* If the outputs are so large that they bypass the cache, the result is first made in `near`. */
    _Alignas(64) char near[STREAM_CHUNK_BYTES];
    char *own = channel->targets[channel->rank] + offset;
    bool is_streaming = kernel_is_streaming(whole_bytes);
    char *result = is_streaming ? near : own;
    for (int i = 0; i < channel->n_ranks; i++) {
        channel->sources[i] = channel->peers[i] + offset;
    }
    TRY(kernel_reduce(collective->reduce, collective->dtype, result, channel->sources,
                      (size_t)channel->n_ranks, elements, collective->factor));
    for (int i = 0; i < channel->n_ranks; i++) {
        int peer = (channel->rank + i) % channel->n_ranks;
        (is_streaming ? kernel_stream : kernel_copy)(channel->targets[peer] + offset, result, bytes);
    }
    return SHOAL_OK;
}

/* Elements [from, to) at once. */
static shoal_status reduce_on_device(struct shm_channel *channel, const struct collective *collective,
                                     size_t from, size_t to)
{
    const struct kernel_table *kernels = kernel_of(collective->device);
    size_t offset = from * shoal_dtype_bytes(collective->dtype);
    struct address result = address_of(channel->targets[channel->rank] + offset);
    struct moves moves;
    for (int i = 0; i < channel->n_ranks; i++) {
        channel->sources[i] = channel->peers[i] + offset;
    }
    TRY(kernels->reduce(collective->reduce, collective->dtype, channel->targets[channel->rank] + offset,
                        channel->sources, (size_t)channel->n_ranks, to - from, collective->factor));
    moves_begin(&moves, collective->device);
    for (int i = 1; i < channel->n_ranks; i++) {
        int peer = (channel->rank + i) % channel->n_ranks;
        moves_copy(&moves, collective->dtype, address_of(channel->targets[peer] + offset), result, to - from);
    }
    moves_end(&moves);
    return SHOAL_OK;
}

static shoal_status run_all_reduce(struct shm_channel *channel, const struct collective *collective)
{
    const struct collective_piece *piece = &collective->pieces[0];
    size_t element_bytes = shoal_dtype_bytes(collective->dtype);
    TRY(find_sends(channel, collective, piece->count * element_bytes));
    for (int i = 0; i < channel->n_ranks; i++) {
        channel->targets[i] = piece->recv;
        if (i != channel->rank) {
            TRY(find_peer_buffer(channel, collective, i, /*is_send=*/false, piece->count * element_bytes,
                                 &channel->targets[i]));
        }
    }
    size_t begin = block_share_begin(piece->count, channel->n_ranks, channel->rank, element_bytes);
    size_t end = block_share_begin(piece->count, channel->n_ranks, channel->rank + 1, element_bytes);
    if (is_on_device(collective)) {
        return begin < end ? reduce_on_device(channel, collective, begin, end) : SHOAL_OK;
    }
    bool is_streaming = kernel_is_streaming(piece->count * element_bytes);
    size_t chunk = (is_streaming ? STREAM_CHUNK_BYTES : DIRECT_CHUNK_BYTES) / element_bytes;
    for (size_t at = begin; at < end;) {
        size_t elements = end - at < chunk ? end - at : chunk;
        TRY(reduce_chunk(channel, collective, at * element_bytes, elements));
        at += elements;
    }
    if (is_streaming) {
        /* One fence for all chunks: only `wrote` tells peers of them. */
        kernel_stream_end();
    }
    return SHOAL_OK;
}

static shoal_status reduce_block(struct shm_channel *channel, const struct collective *collective,
                                 size_t offset_bytes)
{
    const struct collective_piece *piece = &collective->pieces[0];
    for (int i = 0; i < channel->n_ranks; i++) {
        channel->sources[i] = channel->peers[i] + offset_bytes;
    }
    return kernel_of(collective->device)
        ->reduce(collective->reduce, collective->dtype, piece->recv, channel->sources,
                 (size_t)channel->n_ranks, piece->count, collective->factor);
}

/* One part of a list after the other. */
static shoal_status reduce_scatter_part(struct shm_channel *channel, const struct collective *collective,
                                        size_t index)
{
    const struct collective_piece *piece = &collective->pieces[index];
    size_t block = piece->count * shoal_dtype_bytes(collective->dtype);
    for (int i = 0; i < channel->n_ranks; i++) {
        char *buffer = (char *)piece->send;
        if (i != channel->rank) {
            TRY(find_peer_place(channel, collective, i,
                                shm_list_places(channel, i, collective->sequence)[index],
                                block * (size_t)channel->n_ranks, &buffer));
        }
        channel->sources[i] = buffer + (size_t)channel->rank * block;
    }
    return kernel_of(collective->device)
        ->reduce(collective->reduce, collective->dtype, piece->recv, channel->sources,
                 (size_t)channel->n_ranks, piece->count, collective->factor);
}

static shoal_status run_reduce_scatter(struct shm_channel *channel, const struct collective *collective)
{
    if (collective->n_pieces == 1) {
        TRY(find_sends(channel, collective, single_bytes(collective, channel->n_ranks)));
        return reduce_block(channel, collective, (size_t)channel->rank * single_bytes(collective, 1));
    }
    for (size_t i = 0; i < collective->n_pieces; i++) {
        if (collective->pieces[i].count > 0) {
            TRY(reduce_scatter_part(channel, collective, i));
        }
    }
    return SHOAL_OK;
}

/* Copies blocks of all ranks into this rank's receive buffer, from the own one on, so that not all read the same
   rank. */
static void take_blocks(struct shm_channel *channel, const struct collective *collective, size_t from_bytes)
{
    const struct collective_piece *piece = &collective->pieces[0];
    size_t block = single_bytes(collective, 1);
    size_t whole_bytes = single_bytes(collective, channel->n_ranks);
    struct moves moves;
    moves_begin(&moves, collective->device);
    for (int i = 0; i < channel->n_ranks; i++) {
        int peer = (channel->rank + i) % channel->n_ranks;
        char *target = (char *)piece->recv + (size_t)peer * block;
        const char *source = channel->peers[peer] + from_bytes;
        if (!is_on_device(collective)) {
            kernel_copy_part(target, source, block, whole_bytes); /* in place it does nothing */
        } else if (target != source) {
            moves_copy(&moves, SHOAL_U8, address_of(target), address_of(source), block);
        }
    }
    moves_end(&moves);
}

static shoal_status run_from_root(struct shm_channel *channel, const struct collective *collective)
{
    const struct collective_piece *piece = &collective->pieces[0];
    if (channel->rank == collective->root) {
        if (collective->kind == COLLECTIVE_SCATTER) {
            block_copy_own(collective, channel->rank);
        }
        return SHOAL_OK;
    }
    bool is_scatter = collective->kind == COLLECTIVE_SCATTER;
    size_t block = single_bytes(collective, 1);
    char *buffer;
    TRY(find_peer_buffer(channel, collective, collective->root, /*is_send=*/true,
                         single_bytes(collective, is_scatter ? channel->n_ranks : 1), &buffer));
    struct moves moves;
    moves_begin(&moves, collective->device);
    moves_copy(&moves, SHOAL_U8, address_of(piece->recv),
               address_of(buffer + (is_scatter ? (size_t)channel->rank * block : 0)), block);
    moves_end(&moves);
    return SHOAL_OK;
}

static shoal_status move_data(struct shm_channel *channel, const struct collective *collective)
{
    size_t block = single_bytes(collective, 1);
    size_t own = (size_t)channel->rank * block;
    bool is_root = channel->rank == collective->root;
    switch (collective->kind) {
    case COLLECTIVE_ALL_REDUCE:
        return run_all_reduce(channel, collective);
    case COLLECTIVE_REDUCE_SCATTER:
        return run_reduce_scatter(channel, collective);
    case COLLECTIVE_ALL_TO_ALL:
        TRY(find_sends(channel, collective, single_bytes(collective, channel->n_ranks)));
        take_blocks(channel, collective, own);
        return SHOAL_OK;
    case COLLECTIVE_ALL_GATHER:
        TRY(find_sends(channel, collective, block));
        take_blocks(channel, collective, 0);
        return SHOAL_OK;
    case COLLECTIVE_REDUCE:
        if (is_root) {
            TRY(find_sends(channel, collective, block));
            return reduce_block(channel, collective, 0);
        }
        return SHOAL_OK;
    case COLLECTIVE_GATHER:
        if (is_root) {
            TRY(find_sends(channel, collective, block));
            take_blocks(channel, collective, 0);
        }
        return SHOAL_OK;
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_SCATTER:
        return run_from_root(channel, collective);
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_WINDOW_GATHER:
    case COLLECTIVE_COUNT:
        break;
    }
    return error_set(SHOAL_ERR_INTERNAL, "%s is never direct", collective_rows[collective->kind].name);
}

shoal_status shm_direct_run(struct shm_channel *channel, struct collective *collective)
{
    FAIL_POINT("shm direct");
    TRY(move_data(channel, collective));
    if (is_on_device(collective)) {
        TRY(shm_finish_work(channel, collective));
    }
    shm_raise_wrote(channel);
    FAIL_POINT("shm direct wrote");
    TRY(shm_wait_wrote(channel, collective));
    shm_done(channel, collective->sequence);
    return SHOAL_OK;
}
