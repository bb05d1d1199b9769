/* SPDX-License-Identifier: MIT */
/*
 * Reading what one rank needs of a checkpoint: which byte ranges of which files, first looked at, then read into
 * place.
 *
 *     load_reader_make    regions of parts and of pieces become moves, in the order of the files
 *     load_reader_look    everything that can be seen to be wrong, before anything is changed
 *     load_reader_read    into the parts, which the caller has filled in meanwhile
 *
 * Needs 2 MiB besides the list of moves. Knows no other ranks.
 */
#ifndef CHECKPOINT_LOAD_READ_H
#define CHECKPOINT_LOAD_READ_H

#include <stdbool.h>
#include <stddef.h>

#include "checkpoint/index.h"
#include "checkpoint/items.h"
#include "checkpoint/load_file.h"

/* What this rank wants of one tensor. */
struct load_want {
    size_t item; /* of the list */
    const struct index_tensor *tensor;
    shoal_dtype dtype; /* of the memory; another floating one than that of the tensor is converted */
    struct region region;
    struct item_part part; /* for load_reader_read; its region is not looked at */
};

/* What one piece of a tensor has for one want. */
struct load_move {
    size_t want;
    const struct index_piece *piece;
    struct region region; /* of the tensor */
};

struct load_reader {
    struct load_want *wants;
    struct load_move *moves; /* by file and place */
    size_t n_moves;
    size_t move_capacity;
    struct load_file *files; /* of the index; those that are not needed are never opened */
    size_t n_files;
    char *buffer; /* of a block, or of a piece of a box */
};

struct load_source {
    const char *directory;
    const struct checkpoint_index *index;
    bool is_foreign; /* no ids, no sums */
    bool skips_sums;
};

/* Borrows everything that it is given. On failure nothing is left to free. */
shoal_status load_reader_make(const struct load_source *source, struct load_want *wants, size_t n_wants,
                              struct load_reader *reader_out);
shoal_status load_reader_look(struct load_reader *reader);
shoal_status load_reader_read(struct load_reader *reader);
/* Zeros are allowed. */
void load_reader_free(struct load_reader *reader);

#endif
