/* SPDX-License-Identifier: MIT */
/*
 * `shoal bench checkpoint`: times saving and loading a sharded model, compared with one process that writes and reads
 * as many bytes in files of the same sizes. bench/checkpoint.c has the arguments and the report, ..._rank.c the rounds
 * of a rank, ..._files.c the plain writer and reader, ..._steps.c the steps that run while a save is in progress.
 */
#ifndef BENCH_CHECKPOINT_H
#define BENCH_CHECKPOINT_H

#include "measure/measure.h"

#include "shoal/checkpoint.h"
#include "shoal/group.h"
#include "shoal/items.h"
#include "shoal/status.h"

enum {
    BENCH_CHECKPOINT_TENSORS = 16, /* of equal shapes, cut along dim 0 */
    BENCH_CHECKPOINT_ROW_BYTES = 1024,
    BENCH_CHECKPOINT_MAX_ROUNDS = 512,
    BENCH_CHECKPOINT_MAX_FILES = 2 * MEASURE_MAX_RANKS,
    BENCH_CHECKPOINT_PATH = 3000
};

/* Which times a rank leaves on the page: that of round r is number kind * n_rounds + r. */
enum bench_checkpoint_time {
    BENCH_CHECKPOINT_SAVE,
    BENCH_CHECKPOINT_SAVE_PLAIN, /* of rank 0 alone, as all with PLAIN */
    BENCH_CHECKPOINT_LOAD,
    BENCH_CHECKPOINT_LOAD_PLAIN,
    BENCH_CHECKPOINT_START,       /* of a save in the background: until the call returns */
    BENCH_CHECKPOINT_STEP,        /* while nothing is saved: the median of the round, of rank 0 */
    BENCH_CHECKPOINT_STEP_SAVING, /* while a save runs: the median of the round, of rank 0 */
    BENCH_CHECKPOINT_N_TIMES
};

struct bench_ranks;

/* What ranks leave for the report, in shared memory. */
struct bench_checkpoint_found {
    struct {
        size_t save_bytes; /* of the heap at once, beyond what was there before */
        size_t load_bytes;
    } ranks[MEASURE_MAX_RANKS];
    size_t n_files; /* of a checkpoint */
    double cached;  /* part of the files that was in the page cache when a reading began: the largest */
    uint64_t n_steps_saving;
    int n_products; /* of a step */
};

struct bench_checkpoint {
    struct measure_request request;
    size_t bytes; /* of all tensors */
    int n_rounds;
    shoal_checkpoint_format format;
    char directory[BENCH_CHECKPOINT_PATH]; /* for this run only */
    const struct bench_ranks *ranks;
    struct bench_checkpoint_found *found;
};

/* One rank; for bench_ranks_run. */
bool bench_checkpoint_run(const void *bench, struct measure_page *page, int rank);

/* Files (bench/checkpoint_files.c): what returns bool says why before it returns false -------------------------- */

struct bench_checkpoint_files {
    size_t n_files;
    size_t bytes[BENCH_CHECKPOINT_MAX_FILES];
};

/* The regular files of a directory. */
bool bench_checkpoint_list(const char *directory, struct bench_checkpoint_files *files_out);
/* One file after the other, in large calls, from and into `memory`, over and over; a writer syncs each file, and the directory at
   last. */
bool bench_checkpoint_write_plain(const char *directory, const struct bench_checkpoint_files *files,
                                  const char *memory, size_t bytes);
bool bench_checkpoint_read_plain(const char *directory, const struct bench_checkpoint_files *files,
                                 char *memory, size_t bytes);
/* Takes all files of a directory out of the page cache; which part of them stayed. */
bool bench_checkpoint_drop(const char *directory, double *cached_out);
/* Waits until nothing is left to be written. */
void bench_checkpoint_settle(const char *directory);
/* All that is in it, and the directory. */
bool bench_checkpoint_remove(const char *directory);

/* Steps (bench/checkpoint_steps.c) ------------------------------------------------------------------------------ */

struct bench_checkpoint_steps;

/* Collective. Returns NULL if it failed, after a message. */
struct bench_checkpoint_steps *bench_checkpoint_steps_make(const struct bench_checkpoint *bench,
                                                           struct measure_page *page, int rank,
                                                           shoal_group *group);
void bench_checkpoint_steps_free(struct bench_checkpoint_steps *steps);
/* Collective. Runs steps as long as the save runs, and at least one; a fixed number if `saving` is NULL. Gives the
   median, of rank 0. */
bool bench_checkpoint_steps_run(struct bench_checkpoint_steps *steps, const shoal_checkpoint_saving *saving,
                                int64_t *median_ns_out, size_t *n_steps_out);

#endif
