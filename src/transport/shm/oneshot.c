/* SPDX-License-Identifier: MIT */
/*
 * Small collectives. Each rank writes what the others need into its slot before it enters. A rank that has seen all
 * slots entered takes its part out of them and needs nobody any more. So such a collective can stay unfinished until
 * somebody asks for the result.
 *
 * A slot holds the blocks of the send buffer one after the other. Left out is what no peer reads: the block for the
 * rank itself, and everything on ranks that give nothing (a broadcast's receivers).
 */
#include "base/try.h"
#include "kernel/kernel.h"
#include "transport/blocks.h"
#include "transport/shm/channel.h"

static bool gives_nothing(const struct collective *collective, int rank)
{
    switch (collective->kind) {
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_SCATTER:
        return rank != collective->root;
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_GATHER:
        return rank == collective->root;
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_WINDOW_GATHER:
        return true;
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_TO_ALL:
    case COLLECTIVE_COUNT:
        break;
    }
    return false;
}

static bool has_send_blocks(const struct collective *collective)
{
    return collective_rows[collective->kind].has_send_blocks;
}

/* Returns a * b, or SIZE_MAX if the product is far too large for a slot. */
static size_t multiply(size_t a, size_t b)
{
    return a > 0 && b > SHM_SLOT_BYTES * 4096 / a ? SIZE_MAX : a * b;
}

size_t shm_oneshot_bytes(const struct collective *collective, int n_ranks)
{
    if (collective->kind == COLLECTIVE_BARRIER) {
        return 0;
    }
    if (collective->kind == COLLECTIVE_WINDOW_GATHER ||
        (collective->send_counts && collective->kind == COLLECTIVE_ALL_TO_ALL)) {
        return SIZE_MAX;
    }
    size_t elements;
    if (collective->send_counts) {
        size_t sum = 0;
        size_t largest = 0;
        for (int i = 0; i < n_ranks; i++) {
            size_t count = collective->send_counts[i];
            sum += count;
            largest = count > largest ? count : largest;
        }
        elements = has_send_blocks(collective) ? sum : largest;
    } else {
        elements = block_elements(collective, BLOCK_SEND, 0);
        elements = multiply(elements, has_send_blocks(collective) ? (size_t)n_ranks : 1);
    }
    return multiply(elements, shoal_dtype_bytes(collective->dtype));
}

/* A broadcast has one buffer: the receive buffer, on the root too. */
static enum block_side send_side(const struct collective *collective)
{
    return collective->kind == COLLECTIVE_BROADCAST ? BLOCK_RECV : BLOCK_SEND;
}

/* The blocks of one piece lie one after the other, in the slot as in the send buffer. */
static void fill_around_own(struct shm_channel *channel, const struct collective *collective, char *data)
{
    const char *send = collective->pieces[0].send;
    int last = channel->n_ranks - 1;
    size_t element_bytes = shoal_dtype_bytes(collective->dtype);
    size_t own = block_offset(collective, BLOCK_SEND, channel->rank) * element_bytes;
    size_t own_end = own + block_elements(collective, BLOCK_SEND, channel->rank) * element_bytes;
    size_t end = (block_offset(collective, BLOCK_SEND, last) + block_elements(collective, BLOCK_SEND, last)) *
                 element_bytes;
    kernel_copy(data, send, own);
    if (end > own_end) {
        kernel_copy(data + own_end, send + own_end, end - own_end);
    }
}

void shm_oneshot_fill(struct shm_channel *channel, const struct collective *collective)
{
    if (gives_nothing(collective, channel->rank)) {
        return;
    }
    char *data = shm_slot(channel, channel->rank, collective->sequence)->data;
    size_t element_bytes = shoal_dtype_bytes(collective->dtype);
    if (!has_send_blocks(collective)) {
        size_t elements = block_elements(collective, BLOCK_SEND, channel->rank);
        block_copy_out(collective, send_side(collective), channel->rank, 0, elements, data);
        return;
    }
    if (collective->n_pieces == 1 && !collective->send_blocks) {
        fill_around_own(channel, collective, data);
        return;
    }
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank) {
            size_t offset = block_offset(collective, BLOCK_SEND, i);
            block_copy_out(collective, BLOCK_SEND, i, 0, block_elements(collective, BLOCK_SEND, i),
                           data + offset * element_bytes);
        }
    }
}

/* The memory of a peer's slot that holds the block for this rank. */
static const char *find_block(struct shm_channel *channel, const struct collective *collective, int peer)
{
    const char *data = shm_slot(channel, peer, collective->sequence)->data;
    if (!has_send_blocks(collective)) {
        return data;
    }
    return data + block_offset(collective, BLOCK_SEND, channel->rank) * shoal_dtype_bytes(collective->dtype);
}

/* How much is prefetched. More lines would evict each other, and processors continue a sequence by themselves. */
#define FETCH_BLOCK_BYTES ((size_t)4 * 64)
#define FETCH_SLOT_BYTES ((size_t)16 * 64)

/* Called while the rank waits for other peers. Kinds with a root are left out: some of their ranks take nothing. */
void shm_oneshot_fetch(struct shm_channel *channel, const struct collective *collective, int peer)
{
    if (collective_rows[collective->kind].has_root || gives_nothing(collective, peer)) {
        return;
    }
    size_t bytes = block_elements(collective, BLOCK_RECV, peer) * shoal_dtype_bytes(collective->dtype);
    const char *block = find_block(channel, collective, peer);
    for (size_t i = 0; i < bytes && i < FETCH_BLOCK_BYTES; i += 64) {
        __builtin_prefetch(block + i);
    }
}

/* Peers have read this slot eight collectives ago, so its lines still lie in their caches. The next call often gives
   as much as this one. */
void shm_oneshot_fetch_next(struct shm_channel *channel, const struct collective *collective)
{
    const struct shm_slot *slot = shm_slot(channel, channel->rank, collective->sequence + 1);
    kernel_fetch_to_write(slot, 1);
    if (!gives_nothing(collective, channel->rank)) {
        size_t bytes = shm_oneshot_bytes(collective, channel->n_ranks);
        kernel_fetch_to_write(slot->data, bytes < FETCH_SLOT_BYTES ? bytes : FETCH_SLOT_BYTES);
    }
}

static shoal_status deliver_reduction(struct shm_channel *channel, const struct collective *collective)
{
    for (int i = 0; i < channel->n_ranks; i++) {
        channel->sources[i] = find_block(channel, collective, i);
    }
    return block_reduce(collective, channel->rank, channel->rank, channel->n_ranks, channel->sources, 0,
                        block_elements(collective, BLOCK_RECV, channel->rank));
}

/* Takes the block that a peer has for this rank. */
static void take_block(struct shm_channel *channel, const struct collective *collective, int peer)
{
    int block = block_from(collective, channel->rank, peer);
    block_copy_in(collective, BLOCK_RECV, block, 0, block_elements(collective, BLOCK_RECV, block),
                  find_block(channel, collective, peer), /*whole_bytes=*/0);
}

static void deliver_blocks(struct shm_channel *channel, const struct collective *collective)
{
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i == channel->rank) {
            block_copy_own(collective, i);
        } else {
            take_block(channel, collective, i);
        }
    }
}

shoal_status shm_oneshot_deliver(struct shm_channel *channel, const struct collective *collective)
{
    bool is_root = channel->rank == collective->root;
    switch (collective->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE_SCATTER:
        return deliver_reduction(channel, collective);
    case COLLECTIVE_REDUCE:
        return is_root ? deliver_reduction(channel, collective) : SHOAL_OK;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_ALL_TO_ALL:
        deliver_blocks(channel, collective);
        return SHOAL_OK;
    case COLLECTIVE_GATHER:
        if (is_root) {
            deliver_blocks(channel, collective);
        }
        return SHOAL_OK;
    case COLLECTIVE_BROADCAST:
        if (!is_root) {
            take_block(channel, collective, collective->root);
        }
        return SHOAL_OK;
    case COLLECTIVE_SCATTER:
        if (is_root) {
            block_copy_own(collective, channel->rank);
        } else {
            take_block(channel, collective, collective->root);
        }
        return SHOAL_OK;
    case COLLECTIVE_BARRIER:
    case COLLECTIVE_WINDOW_GATHER:
    case COLLECTIVE_COUNT:
        break;
    }
    return SHOAL_OK;
}
