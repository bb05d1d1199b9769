/* SPDX-License-Identifier: MIT */
/* Blocks, pieces and elements: blocks.h. */
#include "transport/blocks.h"

#include "base/try.h"
#include "kernel/table.h"

static bool has_block_per_rank(enum collective_kind kind, enum block_side side)
{
    const struct collective_row *row = &collective_rows[kind];
    return side == BLOCK_SEND ? row->has_send_blocks : row->has_recv_blocks;
}

static const size_t *get_counts(const struct collective *collective, enum block_side side)
{
    return side == BLOCK_SEND ? collective->send_counts : collective->recv_counts;
}

size_t block_elements(const struct collective *collective, enum block_side side, int rank)
{
    if (collective->send_counts) {
        return get_counts(collective, side)[rank];
    }
    size_t elements = 0;
    for (size_t i = 0; i < collective->n_pieces; i++) {
        elements += collective->pieces[i].count;
    }
    return elements;
}

size_t block_offset(const struct collective *collective, enum block_side side, int rank)
{
    if (!has_block_per_rank(collective->kind, side)) {
        return 0;
    }
    if (!collective->send_counts) {
        return (size_t)rank * block_elements(collective, side, rank);
    }
    const size_t *counts = get_counts(collective, side);
    size_t offset = 0;
    for (int i = 0; i < rank; i++) {
        offset += counts[i];
    }
    return offset;
}

size_t block_largest(const struct collective *collective, enum block_side side, int n_ranks)
{
    if (!collective->send_counts) {
        return block_elements(collective, side, 0);
    }
    size_t largest = 0;
    for (int i = 0; i < n_ranks; i++) {
        size_t elements = block_elements(collective, side, i);
        largest = elements > largest ? elements : largest;
    }
    return largest;
}

size_t block_share_begin(size_t count, int n_ranks, int rank, size_t element_bytes)
{
    size_t line = element_bytes < 64 ? 64 / element_bytes : 1;
    size_t n_lines = (count + line - 1) / line;
    size_t begin = n_lines * (size_t)rank / (size_t)n_ranks * line;
    return begin < count ? begin : count;
}

/* Where a block lies that has a buffer of its own; NULL if it lies among the others. */
static char *listed_block(const struct collective *collective, enum block_side side, int rank)
{
    if (side == BLOCK_SEND) {
        return collective->send_blocks ? (char *)collective->send_blocks[rank] : NULL;
    }
    return collective->recv_blocks ? collective->recv_blocks[rank] : NULL;
}

struct block_walk block_walk_begin(const struct collective *collective, enum block_side side, int rank,
                                   size_t from, size_t to)
{
    struct block_walk walk = {
        .collective = collective,
        .side = side,
        .rank = rank,
        .skip = from,
        .left = to - from,
        .element_bytes = shoal_dtype_bytes(collective->dtype),
    };
    if (!collective->send_counts) {
        while (walk.left > 0 && walk.skip >= collective->pieces[walk.piece].count) {
            walk.skip -= collective->pieces[walk.piece].count;
            walk.piece++;
        }
    }
    return walk;
}

struct block_run block_walk_next(struct block_walk *walk, size_t most)
{
    struct block_run run = {0};
    if (walk->left == 0) {
        return run;
    }
    const struct collective *collective = walk->collective;
    const struct collective_piece *piece = &collective->pieces[walk->piece];
    char *buffer = walk->side == BLOCK_SEND ? (char *)piece->send : (char *)piece->recv;
    size_t first = walk->skip; /* of the run, in elements from the beginning of the buffer */
    size_t in_piece = collective->send_counts ? walk->left : piece->count - walk->skip;
    if (has_block_per_rank(collective->kind, walk->side)) {
        char *listed = listed_block(collective, walk->side, walk->rank);
        if (listed) {
            buffer = listed;
        } else {
            first += collective->send_counts ? block_offset(collective, walk->side, walk->rank)
                                             : (size_t)walk->rank * piece->count;
        }
    }
    run.elements = in_piece < walk->left ? in_piece : walk->left;
    run.elements = run.elements < most ? run.elements : most;
    run.data = buffer + first * walk->element_bytes;
    walk->left -= run.elements;
    walk->skip += run.elements;
    if (!collective->send_counts) {
        /* Pieces without elements have no stretch. */
        while (walk->left > 0 && walk->skip >= collective->pieces[walk->piece].count) {
            walk->skip = 0;
            walk->piece++;
        }
    }
    return run;
}

/* A part of an output of whole_bytes; `target` and `source` may be one place. */
static void copy_run(const struct collective *collective, void *target, const void *source, size_t bytes,
                     size_t whole_bytes)
{
    if (collective->device == SHOAL_CPU) {
        kernel_copy_part(target, source, bytes, whole_bytes);
    } else if (target != source) {
        const struct kernel_move move = {.dst = address_of(target),
                                         .src = address_of(source),
                                         .count = bytes,
                                         .dst_dtype = SHOAL_U8,
                                         .src_dtype = SHOAL_U8};
        kernel_of(collective->device)->move(&move, 1);
    }
}

void block_copy_out(const struct collective *collective, enum block_side side, int rank, size_t from,
                    size_t to, char *target)
{
    struct block_walk walk = block_walk_begin(collective, side, rank, from, to);
    while (walk.left > 0) {
        struct block_run run = block_walk_next(&walk, SIZE_MAX);
        size_t bytes = run.elements * walk.element_bytes;
        copy_run(collective, target, run.data, bytes, bytes);
        target += bytes;
    }
}

void block_copy_in(const struct collective *collective, enum block_side side, int rank, size_t from,
                   size_t to, const char *source, size_t whole_bytes)
{
    struct block_walk walk = block_walk_begin(collective, side, rank, from, to);
    while (walk.left > 0) {
        struct block_run run = block_walk_next(&walk, SIZE_MAX);
        size_t bytes = run.elements * walk.element_bytes;
        copy_run(collective, run.data, source, bytes, whole_bytes);
        source += bytes;
    }
}

void block_copy_own_part(const struct collective *collective, int rank, size_t from, size_t to,
                         size_t whole_bytes)
{
    struct block_walk source = block_walk_begin(collective, BLOCK_SEND, rank, from, to);
    struct block_walk target = block_walk_begin(collective, BLOCK_RECV, rank, from, to);
    while (source.left > 0) {
        struct block_run run = block_walk_next(&source, SIZE_MAX);
        struct block_run place = block_walk_next(&target, run.elements);
        copy_run(collective, place.data, run.data, run.elements * source.element_bytes, whole_bytes);
    }
}

void block_copy_own(const struct collective *collective, int rank)
{
    size_t elements = block_elements(collective, BLOCK_SEND, rank);
    block_copy_own_part(collective, rank, 0, elements, elements * shoal_dtype_bytes(collective->dtype));
}

shoal_status block_reduce(const struct collective *collective, int own, int own_block, int n_ranks,
                          const void **sources, size_t from, size_t to)
{
    struct block_walk mine = block_walk_begin(collective, BLOCK_SEND, own_block, from, to);
    struct block_walk result = block_walk_begin(collective, BLOCK_RECV, own_block, from, to);
    while (result.left > 0) {
        struct block_run out = block_walk_next(&result, SIZE_MAX);
        /* Both sides have the same pieces, so the stretches are the same. */
        struct block_run in = block_walk_next(&mine, out.elements);
        sources[own] = in.data;
        TRY(kernel_of(collective->device)
                ->reduce(collective->reduce, collective->dtype, out.data, sources, (size_t)n_ranks,
                         out.elements, collective->factor));
        for (int i = 0; i < n_ranks; i++) {
            sources[i] = (const char *)sources[i] + out.elements * mine.element_bytes;
        }
    }
    return SHOAL_OK;
}
