/* SPDX-License-Identifier: MIT */
/*
 * The steps of a save. For a save in the background, a thread makes the last ones:
 *
 *   save_begin    collective: compares arguments and lists, plans who writes what where, makes the temporary directory
 *   save_take     collective, for saves in the background only: copies what this rank will write
 *   save_write    collective unless save_take was called: writes files, and keeps sums of what it wrote
 *   save_finish   collective: agrees that all is written, writes the index, moves the directory into place
 *   save_end      frees everything; unless save_finish has succeeded, removes what was written
 *
 * A file is cut into runs: ranges that one rank writes from the beginning to the end, with sums of their blocks. Runs
 * are made of jobs, each a region of a tensor that is contiguous in the file, or a header.
 */
#ifndef CHECKPOINT_SAVE_SAVE_H
#define CHECKPOINT_SAVE_SAVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/io/checksum.h"
#include "checkpoint/index/directory.h"
#include "checkpoint/index/index.h"
#include "checkpoint/items/items.h"
#include "checkpoint/ranks/split.h"
#include "checkpoint/ranks/table.h"
#include "shoal/checkpoint.h"
#include "shoal/safetensors.h"

struct save_file {
    char *name;
    uint64_t bytes;
    shoal_safetensors_layout *layout; /* NULL for a file of pieces of another rank, where it is not needed */
};

/* Where a piece (format pieces) or a tensor (format whole) begins. */
struct save_place {
    size_t file;
    uint64_t at;
};

/* Bytes that are contiguous in a file, from memory with strides. */
struct save_job {
    size_t file;
    uint64_t at;
    uint64_t bytes;
    const char *data;
    shoal_dtype dtype;
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    int64_t strides[SHOAL_MAX_DIMS]; /* in elements */
};

/* Format whole: a tensor with pieces that are not contiguous in the file; all ranks have the same list. */
struct save_exchanged {
    struct save_place place;
    size_t tensor;
    size_t first_piece;
    size_t n_pieces;
};

struct save_run {
    size_t file;
    uint64_t at;
    uint64_t bytes;
    struct checksums sums;
};

struct save {
    shoal_group *group; /* save_begin, save_take and save_write use it; save_finish is given its own */
    int rank;
    int n_ranks;
    shoal_checkpoint_options options;
    const shoal_items *items; /* save_begin to save_take or save_write: those of the program, or `spread` */
    shoal_items *spread;      /* if ranks have values of their own (ranks/copies.h); NULL otherwise */
    struct table table;
    struct split_piece *pieces;
    size_t n_pieces;

    char id[INDEX_ID_CHARS + 1];
    char *directory;              /* absolute */
    char *path;                   /* of the temporary directory */
    struct directory_save target; /* first rank only */

    struct save_file *files;
    size_t n_files;
    struct save_place *places; /* of pieces: on the first rank all, elsewhere its own */

    struct save_exchanged *exchanged; /* by place */
    size_t n_exchanged;
    /* Of this rank; slices of exchanged tensors (save/exchange.h) are not among them. */
    struct save_job *jobs;
    size_t n_jobs;
    size_t job_capacity;
    struct save_run *runs; /* what this rank has written */
    size_t n_runs;
    size_t run_capacity;

    struct index_value *values; /* first rank only: copies, so that the list can go */
    size_t n_values;
    struct item_part
        *copies; /* of items on devices that the host cannot access, by item; NULL if there are none */
    bool is_taken;
    char *taken; /* what jobs point to after save_take */
    char **taken_slices;
    size_t n_taken_slices;
    size_t slice_capacity;
};

/* Call save_end also after an error. */
shoal_status save_begin(shoal_group *group, const char *directory, const shoal_items *items,
                        const shoal_checkpoint_options *options, struct save *save_out);
shoal_status save_take(struct save *save);
shoal_status save_write(struct save *save);
shoal_status save_finish(struct save *save, shoal_group *group);
void save_end(struct save *save);

/* Checks what a rank can check by itself, and completes the options. */
shoal_status save_check_arguments(const char *directory, const shoal_items *items,
                                  const shoal_checkpoint_options *given,
                                  shoal_checkpoint_options *options_out);

/* Plan files, places and jobs, for either format (save/pieces.c, save/whole.c). Local, and the same on all ranks. */
shoal_status save_plan_pieces(struct save *save);
shoal_status save_plan_whole(struct save *save);

/* For both formats (save/jobs.c). Adds a file, with the next number. Takes over `layout`, also after an error. */
shoal_status save_add_file(struct save *save, const char *name, shoal_safetensors_layout *layout);
shoal_status save_add_job(struct save *save, const struct save_job *job);
/* Adds a job for a piece that this rank has. */
shoal_status save_add_piece_job(struct save *save, const struct split_piece *piece, size_t file, uint64_t at);
/* Adds a job for the header of a file. */
shoal_status save_add_header_job(struct save *save, size_t file);
/* Finds the memory of `region`, which must lie within this rank's part of the tensor. */
shoal_status save_find_source(struct save *save, size_t tensor, const struct region *region,
                              struct save_job *job_out);
/* Frees the copies that it has made: no job points there any more. */
void save_drop_copies(struct save *save);

/* Write the index (save/index.c), on the first rank, from the runs of all ranks, which save_pack_runs has packed. */
shoal_status save_pack_runs(const struct save *save, char **data_out, size_t *bytes_out);
shoal_status save_write_index(struct save *save, const char *packed, const uint64_t *offsets);
/* Format whole: NAME.safetensors.index.json of every section with more than one file (first rank). */
shoal_status save_write_weight_maps(const struct save *save);
/* Writes a small file to the temporary directory, durably. */
shoal_status save_write_text(const struct save *save, const char *name, const char *text, size_t bytes);

#endif
