/* SPDX-License-Identifier: MIT */
/*
 * Reads what one rank needs of a checkpoint: byte ranges of files, which are first checked and then read into place.
 *
 *     load_reader_make    turns regions of parts and of pieces into moves, in the order of the files
 *     load_reader_look    finds all errors that can be found before anything is changed
 *     load_reader_read    reads into the parts, which the caller has filled in meanwhile
 *
 * Needs 2 MiB besides the list of moves. Makes no collectives.
 */
#ifndef CHECKPOINT_LOAD_READ_H
#define CHECKPOINT_LOAD_READ_H

#include <stdbool.h>
#include <stddef.h>

#include "checkpoint/index/index.h"
#include "checkpoint/items/items.h"
#include "checkpoint/load/file.h"

/* What this rank wants of one tensor. */
struct load_want {
    size_t item; /* of the list */
    const struct index_tensor *tensor;
    shoal_dtype dtype; /* of the memory; if the tensor has another floating dtype, values are converted */
    struct region region;
    struct item_part part; /* for load_reader_read; its region is not looked at */
};

/* The part of one want that is in one piece of the tensor. */
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
