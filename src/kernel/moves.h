/* SPDX-License-Identifier: MIT */
/*
 * Gathers moves for one call of the kernel, which on some devices costs more than the move itself:
 *
 *     struct moves moves;
 *     moves_begin(&moves, device);
 *     moves_add(&moves, ...);          as often as needed
 *     moves_end(&moves);
 *
 * What one move writes, no other one before moves_end may read or write.
 */
#ifndef KERNEL_MOVES_H
#define KERNEL_MOVES_H

#include "kernel/table.h"
#include "tensor/dtype.h"

#define MOVES_AT_ONCE 64

struct moves {
    const struct kernel_table *kernels;
    size_t n;
    struct kernel_move list[MOVES_AT_ONCE];
};

static inline void moves_begin(struct moves *moves, shoal_device device)
{
    moves->kernels = kernel_of(device);
    moves->n = 0;
}

static inline void moves_end(struct moves *moves)
{
    if (moves->n > 0) {
        moves->kernels->move(moves->list, moves->n);
    }
    moves->n = 0;
}

static inline void moves_add(struct moves *moves, struct kernel_move move)
{
    if (move.count > 0) {
        moves->list[moves->n++] = move;
    }
    if (moves->n == MOVES_AT_ONCE) {
        moves_end(moves);
    }
}

/* Whose elements have one dtype. */
static inline void moves_copy(struct moves *moves, shoal_dtype dtype, struct address dst, struct address src,
                              size_t count)
{
    moves_add(moves, (struct kernel_move){
                         .dst = dst, .src = src, .count = count, .dst_dtype = dtype, .src_dtype = dtype});
}

static inline void moves_clear(struct moves *moves, struct address dst, size_t bytes)
{
    moves_copy(moves, SHOAL_U8, dst, ADDRESS_NONE, bytes);
}

#endif
