/* SPDX-License-Identifier: MIT */
/*
 * Decides who writes what: each region of a table is written once. A region that several ranks have is cut into pieces
 * among them, along its first dimension with more than one index, so that all ranks write as equal numbers of bytes as
 * possible. A region of less than 1 MiB is not cut, and a piece has at least about half of that. The result is the same
 * on all ranks, without communication.
 */
#ifndef CHECKPOINT_RANKS_SPLIT_H
#define CHECKPOINT_RANKS_SPLIT_H

#include <stddef.h>
#include <stdint.h>

#include "checkpoint/io/region.h"
#include "checkpoint/ranks/table.h"

#define SPLIT_MIN_BYTES ((int64_t)1 << 20)

struct split_piece {
    size_t tensor; /* in the table */
    int rank;      /* who writes it */
    struct region region;
};

/* Makes the pieces, in the order of tensors and of the beginnings of their regions. *pieces_out is freed with
   mem_free. */
shoal_status split_make(const struct table *table, struct split_piece **pieces_out, size_t *n_pieces_out);

#endif
