/* SPDX-License-Identifier: MIT */
/*
 * One file of a checkpoint, as a load reads it. First, ranges are marked; then load_file_look checks everything that
 * was marked; then it is read.
 *
 * load_file_look opens the file and compares its size, the id of the save in its header, and the sums of all blocks
 * that the marked ranges touch, each once. load_file_read compares the sums of the blocks that it reads whole.
 *
 * Files stay open between the two, so that what was checked is what is read, even if the checkpoint is replaced
 * meanwhile. If there are more than LOAD_OPEN_FILES, the others are opened again, and must be the same files.
 */
#ifndef CHECKPOINT_LOAD_FILE_H
#define CHECKPOINT_LOAD_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "checkpoint/index/index.h"

#define LOAD_OPEN_FILES 128

struct load_file {
    const struct index_file *info;
    const char *id; /* of the save; NULL for a file of another tool, which has none, and no sums */
    bool skips_sums;
    char *path;
    int fd;               /* -1 if it is not open */
    bool stays_open;      /* after a look */
    bool is_used;         /* something was marked */
    struct stat seen;     /* by the look */
    size_t *first_blocks; /* of each run, counted over the file */
    unsigned char *marks; /* a bit for each block */
};

/* Borrows `info` and `id`. On failure nothing is left to free. */
shoal_status load_file_make(const char *directory, const struct index_file *info, const char *id,
                            bool skips_sums, struct load_file *file_out);
/* Zeros are allowed. */
void load_file_free(struct load_file *file);

/* Marks a range that will be read. It must lie within the file. */
void load_file_mark(struct load_file *file, uint64_t at, uint64_t bytes);

/* `buffer` has CHECKSUM_BLOCK_BYTES. */
shoal_status load_file_look(struct load_file *file, void *buffer);

shoal_status load_file_read(struct load_file *file, uint64_t at, void *out, size_t bytes);

/* Call after the last read: closes the file if it was opened again. */
void load_file_done(struct load_file *file);

#endif
