/* SPDX-License-Identifier: MIT */
/*
 * Ranks of a host that share a processor. Each rank leaves the number of the processor on which it waits in memory of
 * all, so that a rank can tell that the one it waits for needs its processor, and can move to another one.
 *
 * The numbers stand for themselves: they are read and written with relaxed order, and an old one costs time only.
 */
#ifndef BASE_NEIGHBOURS_H
#define BASE_NEIGHBOURS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct neighbours {
    /* Rank 0's word; 0 if it has not waited yet, otherwise the processor's number + 1. */
    _Atomic uint32_t *first;
    size_t stride; /* bytes from one word to the next */
    int n_ranks;
    int rank; /* of the calling thread */
    int peer; /* whom it waits for */
};

/* Leaves the number of this processor. Returns true if the peer waited last on the same one. */
bool neighbours_meet(const struct neighbours *neighbours);

/*
 * Moves the calling thread to a processor on which no rank waited last, if it may use one. The thread may use the same
 * processors afterwards as before. Returns true if it has moved.
 */
bool neighbours_move_apart(const struct neighbours *neighbours);

#endif
