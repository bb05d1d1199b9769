/* SPDX-License-Identifier: MIT */
/*
 * Checks the buffers of a collective: their sizes, where they may coincide, and that otherwise nothing that is written
 * overlaps anything else. Counts, lists of parts and lists of blocks are checked here too.
 */
#include "comm/call/buffers.h"

#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/call/apart.h"
#include "tensor/dtype.h"
#include "transport/transport.h"

/* What each needs of its buffers ----------------------------------------------------------------------- */

enum place {
    PLACE_SAME,    /* send == recv */
    PLACE_IN_RECV, /* send is this rank's block of recv */
    PLACE_IN_SEND  /* recv is this rank's block of send */
};

/* Where send and recv may coincide. If both have one block or both have all, they may be the same buffer; otherwise
   the one block may be this rank's block of the other buffer. */
static enum place place_of(const struct collective *call)
{
    const struct collective_row *row = &collective_rows[call->kind];
    if (row->has_send_blocks == row->has_recv_blocks) {
        return PLACE_SAME;
    }
    return row->has_recv_blocks ? PLACE_IN_RECV : PLACE_IN_SEND;
}

/* Whether only the root's send is read. */
static bool is_sent_by_root(const struct collective *call)
{
    return call->kind == COLLECTIVE_SCATTER;
}

/* Whether only the root's recv is written. */
static bool is_received_by_root(const struct collective *call)
{
    return call->kind == COLLECTIVE_REDUCE || call->kind == COLLECTIVE_GATHER;
}

/* The two buffers of a piece, in bytes. */
struct extent {
    size_t send_bytes;
    size_t recv_bytes;
    size_t own_offset; /* of this rank's block in the buffer that has blocks */
};

static const char *call_suffix(const struct collective *call)
{
    return call->send_counts ? "_v" : "";
}

static shoal_status fail_overlap(const struct collective *call)
{
    static const char *const places[] = {[PLACE_SAME] = "be the same buffer",
                                         [PLACE_IN_RECV] = "coincide with send at this rank's block of recv",
                                         [PLACE_IN_SEND] = "coincide with recv at this rank's block of send"};
    const char *name = collective_rows[call->kind].name;
    if (call->kind == COLLECTIVE_ALL_TO_ALL && call->send_counts) {
        return error_set(SHOAL_ERR_INVALID, "%s_v: send and recv overlap", name);
    }
    return error_set(SHOAL_ERR_INVALID, "%s%s: send and recv overlap; they may only %s", name,
                     call_suffix(call), places[place_of(call)]);
}

static bool is_in_place(const struct collective *call, const struct collective_piece *piece,
                        const struct extent *extent)
{
    const char *send = piece->send;
    const char *recv = piece->recv;
    switch (place_of(call)) {
    case PLACE_SAME:
        return send == recv && !call->send_counts;
    case PLACE_IN_RECV:
        return send == recv + extent->own_offset;
    case PLACE_IN_SEND:
        return recv == send + extent->own_offset;
    }
    return false;
}

static shoal_status fail_null(const struct collective *call, const char *buffer, size_t bytes)
{
    return error_set(SHOAL_ERR_INVALID, "%s%s: %s is NULL, but has %zu bytes",
                     collective_rows[call->kind].name, call_suffix(call), buffer, bytes);
}

static shoal_status check_buffers(const struct collective *call, const struct collective_piece *piece,
                                  const struct extent *extent)
{
    if (extent->send_bytes > 0 && !piece->send) {
        return fail_null(call, "send", extent->send_bytes);
    }
    if (extent->recv_bytes > 0 && !piece->recv) {
        return fail_null(call, "recv", extent->recv_bytes);
    }
    uintptr_t send = (uintptr_t)piece->send;
    uintptr_t recv = (uintptr_t)piece->recv;
    bool overlaps = extent->send_bytes > 0 && extent->recv_bytes > 0 && send < recv + extent->recv_bytes &&
                    recv < send + extent->send_bytes;
    return overlaps && !is_in_place(call, piece, extent) ? fail_overlap(call) : SHOAL_OK;
}

/* Counts ----------------------------------------------------------------------------------------------- */

static shoal_status fail_count(const struct collective *call, size_t count, int n_ranks)
{
    return error_set(SHOAL_ERR_INVALID, "%s: count %zu of %s for %d ranks is more than memory can hold",
                     collective_rows[call->kind].name, count, shoal_dtype_name(call->dtype), n_ranks);
}

/* Leaves out the buffers that only the root needs, on other ranks. */
static void leave_out_others(const struct transport_peers *peers, const struct collective *call,
                             struct extent *extent)
{
    bool is_root = peers->rank == call->root;
    if (is_sent_by_root(call) && !is_root) {
        extent->send_bytes = 0;
    }
    if (is_received_by_root(call) && !is_root) {
        extent->recv_bytes = 0;
    }
}

static shoal_status measure_piece(const struct transport_peers *peers, const struct collective *call,
                                  const struct collective_piece *piece, struct extent *extent_out)
{
    const struct collective_row *row = &collective_rows[call->kind];
    size_t n_ranks = (size_t)peers->n_ranks;
    size_t bytes;
    size_t all_bytes;
    /* At most half of the address space, so that the ends of buffers can be computed. */
    if (__builtin_mul_overflow(piece->count, dtype_bytes(call->dtype), &bytes) ||
        __builtin_mul_overflow(bytes, n_ranks, &all_bytes) || all_bytes > SIZE_MAX / 2) {
        return fail_count(call, piece->count, peers->n_ranks);
    }
    *extent_out = (struct extent){.send_bytes = row->has_send_blocks ? all_bytes : bytes,
                                  .recv_bytes = row->has_recv_blocks ? all_bytes : bytes,
                                  .own_offset = (size_t)peers->rank * bytes};
    leave_out_others(peers, call, extent_out);
    return SHOAL_OK;
}

static shoal_status check_piece(const struct transport_peers *peers, const struct collective *call,
                                const struct collective_piece *piece)
{
    struct extent extent;
    TRY(measure_piece(peers, call, piece, &extent));
    return check_buffers(call, piece, &extent);
}

/* Bytes before this rank's block, and of all blocks. */
static shoal_status add_counts(const struct transport_peers *peers, const struct collective *call,
                               const size_t *counts, const char *name, size_t *own_out, size_t *total_out)
{
    size_t total = 0;
    for (int i = 0; i < peers->n_ranks; i++) {
        if (i == peers->rank) {
            *own_out = total;
        }
        size_t bytes;
        if (__builtin_mul_overflow(counts[i], dtype_bytes(call->dtype), &bytes) ||
            __builtin_add_overflow(total, bytes, &total) || total > SIZE_MAX / 2) {
            return error_set(SHOAL_ERR_INVALID, "%s_v: %s[%d] = %zu: together more than memory can hold",
                             collective_rows[call->kind].name, name, i, counts[i]);
        }
    }
    *total_out = total;
    return SHOAL_OK;
}

static shoal_status check_counts(const struct transport_peers *peers, const struct collective *call)
{
    const struct collective_row *row = &collective_rows[call->kind];
    struct extent extent;
    size_t recv_offset = 0;
    bool is_exchange = call->kind == COLLECTIVE_ALL_TO_ALL;
    TRY(add_counts(peers, call, call->send_counts, is_exchange ? "send_counts" : "counts", &extent.own_offset,
                   &extent.send_bytes));
    TRY(add_counts(peers, call, call->recv_counts, is_exchange ? "recv_counts" : "counts", &recv_offset,
                   &extent.recv_bytes));
    size_t own_bytes = call->send_counts[peers->rank] * dtype_bytes(call->dtype);
    if (!row->has_send_blocks) {
        extent.send_bytes = own_bytes;
    }
    if (!row->has_recv_blocks) {
        extent.recv_bytes = own_bytes;
    }
    leave_out_others(peers, call, &extent);
    return check_buffers(call, call->pieces, &extent);
}

/* Lists ------------------------------------------------------------------------------------------------ */

static size_t list_intervals(const struct transport_peers *peers, const struct collective *call,
                             struct apart_interval *intervals)
{
    size_t n = 0;
    for (size_t i = 0; i < call->n_pieces; i++) {
        const struct collective_piece *piece = &call->pieces[i];
        struct extent extent = {0};
        (void)measure_piece(peers, call, piece, &extent); /* has succeeded for this piece before */
        if (extent.send_bytes > 0 && call->kind != COLLECTIVE_BROADCAST) {
            uintptr_t begin = (uintptr_t)piece->send;
            intervals[n++] =
                (struct apart_interval){.begin = begin, .end = begin + extent.send_bytes, .number = i};
        }
        if (extent.recv_bytes > 0) {
            uintptr_t begin = (uintptr_t)piece->recv;
            intervals[n++] = (struct apart_interval){
                .begin = begin, .end = begin + extent.recv_bytes, .number = i, .is_written = true};
        }
    }
    return n;
}

static shoal_status check_list(const struct transport_peers *peers, const struct collective *call)
{
    char what[48];
    struct apart_interval few[2 * BUFFERS_FEW];
    struct apart_interval *intervals = few;
    if (call->n_pieces > BUFFERS_FEW) {
        intervals = mem_alloc(2 * call->n_pieces * sizeof *intervals);
        if (!intervals) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    (void)snprintf(what, sizeof what, "%s: parts", collective_rows[call->kind].name);
    shoal_status status = apart_check(what, intervals, list_intervals(peers, call, intervals));
    if (intervals != few) {
        mem_free(intervals);
    }
    return status;
}

/* A buffer for every block ------------------------------------------------------------------------------ */

/* One side of a call: its blocks lie in a list, or one after the other in one buffer. */
struct side {
    const char *list_name;
    const char *name;
    const void *const *blocks; /* NULL if there is no list */
    const char *buffer;
    const size_t *counts; /* NULL if each has `count` */
    size_t count;
    bool has_all; /* a block per rank; otherwise one, this rank's */
    bool is_used; /* this rank reads or writes it */
};

static struct side describe_side(const struct transport_peers *peers, const struct collective *call,
                                 bool is_send)
{
    const struct collective_row *row = &collective_rows[call->kind];
    bool is_roots = is_send ? is_sent_by_root(call) : is_received_by_root(call);
    return (struct side){.list_name = is_send ? "send_blocks" : "recv_blocks",
                         .name = is_send ? "send" : "recv",
                         .blocks = is_send ? call->send_blocks : (const void *const *)call->recv_blocks,
                         .buffer = is_send ? call->single.send : call->single.recv,
                         .counts = is_send ? call->send_counts : call->recv_counts,
                         .count = call->single.count,
                         .has_all = is_send ? row->has_send_blocks : row->has_recv_blocks,
                         .is_used = !is_roots || peers->rank == call->root};
}

/* Finds block `rank` of a side; it is empty if the side has none. *at is the offset of the block, and is moved
   behind it. */
static shoal_status find_block(const struct transport_peers *peers, const struct collective *call,
                               const struct side *side, int rank, size_t *at,
                               struct apart_interval *block_out)
{
    *block_out = (struct apart_interval){0};
    if (!side->is_used || (!side->has_all && rank != peers->rank)) {
        return SHOAL_OK;
    }
    size_t bytes = (side->counts ? side->counts[rank] : side->count) * dtype_bytes(call->dtype);
    if (bytes > 0 && side->blocks && !side->blocks[rank]) {
        return error_set(SHOAL_ERR_INVALID, "%s%s: %s[%d] is NULL, but has %zu bytes",
                         collective_rows[call->kind].name, call_suffix(call), side->list_name, rank, bytes);
    }
    if (bytes > 0 && !side->blocks && !side->buffer) {
        return fail_null(call, side->name, bytes);
    }
    uintptr_t begin = side->blocks ? (uintptr_t)side->blocks[rank] : (uintptr_t)side->buffer + *at;
    *at += bytes;
    block_out->begin = begin;
    block_out->end = begin + bytes;
    return SHOAL_OK;
}

/* Whether block `rank` of recv may be the same memory as block `rank` of send. */
static bool may_coincide(const struct transport_peers *peers, const struct collective *call, int rank)
{
    return call->kind == COLLECTIVE_ALL_TO_ALL ? !call->send_counts : rank == peers->rank;
}

static shoal_status check_sides(const struct transport_peers *peers, const struct collective *call,
                                struct apart_interval *intervals)
{
    const struct side send = describe_side(peers, call, /*is_send=*/true);
    const struct side recv = describe_side(peers, call, /*is_send=*/false);
    size_t send_at = 0;
    size_t recv_at = 0;
    size_t n = 0;
    for (int i = 0; i < peers->n_ranks; i++) {
        struct apart_interval from;
        struct apart_interval to;
        TRY(find_block(peers, call, &send, i, &send_at, &from));
        TRY(find_block(peers, call, &recv, i, &recv_at, &to));
        bool is_in_place = from.begin == to.begin && from.end == to.end && may_coincide(peers, call, i);
        from.number = (size_t)i;
        to.number = (size_t)i + (is_in_place ? 0 : (size_t)peers->n_ranks);
        to.is_written = true;
        if (from.end > from.begin) {
            intervals[n++] = from;
        }
        if (to.end > to.begin) {
            intervals[n++] = to;
        }
    }
    char what[96];
    (void)snprintf(what, sizeof what, "%s%s: blocks (from 0: send, from %d: recv)",
                   collective_rows[call->kind].name, call_suffix(call), peers->n_ranks);
    return apart_check(what, intervals, n);
}

static shoal_status check_blocks(const struct transport_peers *peers, const struct collective *call)
{
    struct extent extent;
    size_t ignored;
    if (call->send_counts) {
        TRY(add_counts(peers, call, call->send_counts, "counts", &ignored, &extent.send_bytes));
        TRY(add_counts(peers, call, call->recv_counts, "counts", &ignored, &extent.recv_bytes));
    } else {
        TRY(measure_piece(peers, call, call->pieces, &extent));
    }
    struct apart_interval few[2 * BUFFERS_FEW];
    struct apart_interval *intervals = few;
    if (peers->n_ranks > BUFFERS_FEW) {
        intervals = mem_alloc(2 * (size_t)peers->n_ranks * sizeof *intervals);
        if (!intervals) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    shoal_status status = check_sides(peers, call, intervals);
    if (intervals != few) {
        mem_free(intervals);
    }
    return status;
}

/* All of them ------------------------------------------------------------------------------------------ */

/* Lists, counts and blocks. */
static __attribute__((noinline)) shoal_status check_others(const struct transport_peers *peers,
                                                           const struct collective *call, bool is_list)
{
    if (call->send_blocks || call->recv_blocks) {
        return check_blocks(peers, call);
    }
    if (call->send_counts) {
        return check_counts(peers, call);
    }
    for (size_t i = 0; i < call->n_pieces; i++) {
        shoal_status status = check_piece(peers, call, &call->pieces[i]);
        if (status != SHOAL_OK) {
            return is_list ? error_prefix(status, "part %zu", i) : status;
        }
    }
    return call->n_pieces > 1 ? check_list(peers, call) : SHOAL_OK;
}

shoal_status buffers_check(const struct transport_peers *peers, const struct collective *call, bool is_list)
{
    /* Small plain calls take less than a microsecond, so they do not pay for the checks of others. */
    bool is_plain = !is_list && !call->send_counts && !call->send_blocks && !call->recv_blocks;
    return is_plain ? check_piece(peers, call, call->pieces) : check_others(peers, call, is_list);
}
