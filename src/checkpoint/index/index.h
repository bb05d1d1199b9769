/* SPDX-License-Identifier: MIT */
/*
 * shoal.index.json: what a checkpoint holds, and where. Written last, read first.
 *
 *     {"format": "shoal", "version": 1, "id": "32 hex digits", "step": 1000, "layout": "pieces",
 *      "progress": {"n_ranks": 4, "batch": 8, "n_accumulate": 1, "sample": 32000},
 *      "sections": {"model": {"NAME": {"dtype": "F32", "shape": [4, 2], "aliases": ["OTHER"],
 *                   "pieces": [{"file": 0, "at": 512, "begin": [0, 0], "length": [2, 2]}]}}},
 *      "integers": {"epoch": 3}, "reals": {"loss": "0x1.8p+1"}, "strings": {"run": "a"},
 *      "files": [{"name": "pieces-00001-of-00004.safetensors", "bytes": 4096,
 *                 "runs": [{"at": 0, "bytes": 512, "sums": ["16 hex digits"]}]}],
 *      "sum": "16 hex digits"}
 *
 * `at` is the byte in the file at which a piece begins. A piece is contiguous there, row-major. In whole files a
 * piece consists of rows of the tensor: it covers all of every dimension but the first. Runs are ranges of a file
 * that one rank wrote, with sums of their blocks of 1 MiB, counted from the start of the run; together they cover the
 * file, each byte once. "sum" comes last in every index, and is the sum of all bytes of the text before it. "format",
 * "version" and "sum" mean the same in all versions. Keys that begin with "x-" are ignored; other keys that version 1
 * does not have are errors.
 *
 * The reader trusts nothing: every number is checked against the others (pieces lie in their files and together make
 * up their tensor, each element once), and an error says which entries contradict each other.
 */
#ifndef CHECKPOINT_INDEX_INDEX_H
#define CHECKPOINT_INDEX_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "checkpoint/io/region.h"
#include "shoal/checkpoint.h"
#include "shoal/dtype.h"

#define INDEX_NAME "shoal.index.json"
#define INDEX_VERSION 1
#define INDEX_ID_CHARS 32

struct index_piece {
    size_t file;
    uint64_t at;
    struct region region;
};

struct index_tensor {
    const char *section;
    const char *name;
    shoal_dtype dtype;
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    const char **aliases;
    size_t n_aliases;
    struct index_piece *pieces; /* by begin; none if the tensor has no elements */
    size_t n_pieces;
};

struct index_run {
    uint64_t at;
    uint64_t bytes;
    uint64_t *sums; /* checksum_n_blocks(bytes) */
};

struct index_file {
    const char *name; /* in the directory of the index; no '/' */
    uint64_t bytes;
    struct index_run *runs; /* by `at` */
    size_t n_runs;
};

struct index_value {
    const char *name;
    int kind; /* enum item_value_kind */
    int64_t integer;
    double real;
    const char *string;
};

struct checkpoint_index {
    char id[INDEX_ID_CHARS + 1];
    int64_t step;
    shoal_checkpoint_format format;
    shoal_checkpoint_progress progress;
    struct index_tensor *tensors;
    size_t n_tensors;
    struct index_value *values;
    size_t n_values;
    struct index_file *files;
    size_t n_files;
    /* Owns all arrays and strings of an index that index_read has made. Whoever writes an index owns them itself. */
    void *memory;
};

/* Makes the text, which is freed with mem_free. SHOAL_ERR_UNSUPPORTED: a dtype that safetensors files do not have.
   SHOAL_ERR_INVALID: a name that is not allowed. Pieces and runs are not checked. */
shoal_status index_write(const struct checkpoint_index *index, char **text_out, size_t *bytes_out);

/* SHOAL_ERR_UNSUPPORTED: a later version; the text has both versions. SHOAL_ERR_INVALID: anything else that is
   wrong. The error text does not name the file; the caller adds it. */
shoal_status index_read(const char *text, size_t bytes, struct checkpoint_index *index_out);

/* Frees what index_read has made. Zeros are allowed. */
void index_free(struct checkpoint_index *index);

/* The tensor of that section and name or alias; NULL if there is none. Index made by index_read only. */
const struct index_tensor *index_find(const struct checkpoint_index *index, const char *section,
                                      const char *name);

#endif
