/* SPDX-License-Identifier: MIT */
#include "comm/lane/uses.h"

#include "tensor/dtype.h"

/* One of the two buffers of a piece. */
struct side {
    const void *data;
    const void *const *blocks; /* NULL if blocks lie one after the other in `data` */
    const size_t *counts;      /* elements of each rank; NULL if all have `count` */
    size_t count;
    bool has_blocks; /* one for each rank */
    bool is_written;
};

static bool is_wanted(const struct work_search *search, const void *data, size_t bytes, bool is_written)
{
    return data && bytes > 0 && search->uses(search->context, data, bytes, is_written);
}

static bool is_side_wanted(const struct side *side, const struct transport_peers *peers, size_t element_bytes,
                           const struct work_search *search)
{
    size_t total = 0;
    if (!side->has_blocks) {
        size_t count = side->counts ? side->counts[peers->rank] : side->count;
        return is_wanted(search, side->data, count * element_bytes, side->is_written);
    }
    for (int rank = 0; rank < peers->n_ranks; rank++) {
        size_t bytes = (side->counts ? side->counts[rank] : side->count) * element_bytes;
        total += bytes;
        if (side->blocks && is_wanted(search, side->blocks[rank], bytes, side->is_written)) {
            return true;
        }
    }
    return !side->blocks && is_wanted(search, side->data, total, side->is_written);
}

/* A rank reads what it sends: with a root, only the root does so in a broadcast and a scatter. */
static bool is_read(const struct collective *call, bool is_root)
{
    return is_root || (call->kind != COLLECTIVE_BROADCAST && call->kind != COLLECTIVE_SCATTER);
}

/* The root of a broadcast has nothing to write; in a reduction and a gather only the root has. */
static bool is_written(const struct collective *call, bool is_root)
{
    if (call->kind == COLLECTIVE_BROADCAST) {
        return !is_root;
    }
    return is_root || (call->kind != COLLECTIVE_REDUCE && call->kind != COLLECTIVE_GATHER);
}

static bool is_piece_wanted(const struct collective *call, const struct collective_piece *piece,
                            const struct transport_peers *peers, const struct work_search *search)
{
    const struct collective_row *row = &collective_rows[call->kind];
    size_t bytes = dtype_bytes(call->dtype);
    bool is_root = peers->rank == call->root;
    const struct side send = {.data = piece->send,
                              .blocks = call->send_blocks,
                              .counts = call->send_counts,
                              .count = piece->count,
                              .has_blocks = row->has_send_blocks};
    const struct side recv = {.data = piece->recv,
                              .blocks = (const void *const *)call->recv_blocks,
                              .counts = call->recv_counts,
                              .count = piece->count,
                              .has_blocks = row->has_recv_blocks,
                              .is_written = true};
    return (is_read(call, is_root) && is_side_wanted(&send, peers, bytes, search)) ||
           (is_written(call, is_root) && is_side_wanted(&recv, peers, bytes, search));
}

static bool is_window_wanted(const struct collective *call, const struct work_search *search)
{
    for (size_t i = 0; i < call->n_window_pieces; i++) {
        const shoal_window_piece *piece = &call->window_pieces[i];
        if (is_wanted(search, piece->data, piece->count * dtype_bytes(piece->data_dtype), false)) {
            return true;
        }
    }
    return is_wanted(search, call->window->writable, call->window->bytes, true);
}

bool collective_is_wanted(const struct collective *call, const struct transport_peers *peers,
                          const struct work_search *search)
{
    if (call->kind == COLLECTIVE_WINDOW_GATHER) {
        return is_window_wanted(call, search);
    }
    for (size_t i = 0; i < call->n_pieces && call->kind != COLLECTIVE_BARRIER; i++) {
        if (is_piece_wanted(call, &call->pieces[i], peers, search)) {
            return true;
        }
    }
    return false;
}
