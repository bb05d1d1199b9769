/* SPDX-License-Identifier: MIT */
/*
 * Where the elements of a collective lie. Every buffer consists of blocks, one per rank or only one. A block is the
 * elements of all pieces, one after the other. So algorithms count elements of blocks, and need not distinguish lists
 * of pieces, counts per rank, a buffer per block, and the plain case.
 *
 *   kind                       send buffer      receive buffer
 *   broadcast                  block 0          block 0
 *   all_reduce, reduce         block 0          block 0
 *   all_gather, gather         block 0          a block per rank
 *   reduce_scatter, scatter    a block per rank block 0
 *   all_to_all                 a block per rank a block per rank
 */
#ifndef TRANSPORT_BLOCKS_H
#define TRANSPORT_BLOCKS_H

#include <stddef.h>

#include "transport/collective.h"

enum block_side {
    BLOCK_SEND,
    BLOCK_RECV
};

/* Elements of the block for `rank`. */
size_t block_elements(const struct collective *collective, enum block_side side, int rank);
/* Elements of the blocks before it. */
size_t block_offset(const struct collective *collective, enum block_side side, int rank);
/* The largest block of all ranks of the side. */
size_t block_largest(const struct collective *collective, enum block_side side, int n_ranks);

/* Where rank's share of `count` elements begins when all ranks divide them, in whole cache lines; `count` past the last
   rank. */
size_t block_share_begin(size_t count, int n_ranks, int rank, size_t element_bytes);

/* The block of the receive buffer that what comes from a peer belongs to; `own` is the rank that receives. */
static inline int block_from(const struct collective *collective, int own, int peer)
{
    return collective->kind == COLLECTIVE_SCATTER ? own : peer;
}

/* A stretch of a block as contiguous memory. */
struct block_run {
    char *data;
    size_t elements;
};

/* Walks over elements [from, to) of a block. */
struct block_walk {
    const struct collective *collective;
    enum block_side side;
    int rank;
    size_t piece; /* where the walk is */
    size_t skip;  /* elements of that piece that lie behind */
    size_t left;  /* elements still to walk over */
    size_t element_bytes;
};

struct block_walk block_walk_begin(const struct collective *collective, enum block_side side, int rank,
                                   size_t from, size_t to);
/* The next stretch, of at most `most` elements; elements 0 at the end. */
struct block_run block_walk_next(struct block_walk *walk, size_t most);

/* Copy between a stretch of a block and contiguous memory. whole_bytes is the size of the buffer that is written,
   stretch by stretch (kernel_copy_part). */
void block_copy_out(const struct collective *collective, enum block_side side, int rank, size_t from,
                    size_t to, char *target);
void block_copy_in(const struct collective *collective, enum block_side side, int rank, size_t from,
                   size_t to, const char *source, size_t whole_bytes);
/* Copies the own block of the send buffer to that of the receive buffer, where it does not lie in place already. */
void block_copy_own(const struct collective *collective, int rank);
/* Copies elements [from, to) of the own block in the same way. */
void block_copy_own_part(const struct collective *collective, int rank, size_t from, size_t to,
                         size_t whole_bytes);

/*
 * Reduces elements [from, to) of the block. sources[r] points at element `from` of rank r's contribution, contiguous;
 * sources[own] is set here, to the own values in block own_block of the send buffer. The array is changed. The result
 * goes to elements [from, to) of block 0 of the receive buffer.
 */
shoal_status block_reduce(const struct collective *collective, int own, int own_block, int n_ranks,
                          const void **sources, size_t from, size_t to);

#endif
