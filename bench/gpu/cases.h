/* SPDX-License-Identifier: MIT */
/* What gpu_kernels measures: calls of the table of kernels (kernel/table.h), each with the bar that it is held to. */
#ifndef GPU_CASES_H
#define GPU_CASES_H

#include <stdbool.h>
#include <stddef.h>

#include "kernel/table.h"

enum {
    CASE_TENSORS_MOST = 160,
    CASE_SOURCES = 8,
    CASE_ALIGNMENT = 512 /* of what lies behind each other in a region */
};

enum case_kind {
    CASE_MEMCPY, /* the driver's own copy */
    CASE_FLAT,   /* a list of one contiguous item */
    CASE_PACK,
    CASE_UNPACK,
    CASE_CAST, /* of one rank's shard */
    CASE_REDUCE,
    CASE_ADAMW,
    CASE_SGD,
    CASE_SQUARES
};

enum case_model {
    MODEL_LLAMA, /* a layer of Llama 8B */
    MODEL_GPT2,  /* a layer of GPT-2 124M */
    MODEL_GPT2_WHOLE,
    MODEL_LARGE, /* one tensor of more than 4 GiB, whose rows have an odd number of elements */
    MODEL_NONE
};

/* What a result is compared with. */
enum case_bar {
    BAR_NONE,
    BAR_CEILING, /* at least this part of the ceiling's bytes per second */
    BAR_FLAT,    /* at most so many times a flat copy of as many bytes, in turns with it */
    BAR_BYTES    /* at most so many times the bytes divided by the ceiling */
};

struct case_row {
    const char *name;
    enum case_kind kind;
    enum case_model model;
    int n_ranks;
    shoal_dtype dst_dtype;
    shoal_dtype src_dtype;
    bool is_aligned; /* packed rows begin at multiples of 128 bytes */
    bool is_warm;    /* the same memory again and again */
    enum case_bar bar;
    double bound;
};

extern const struct case_row case_rows[];
extern const size_t case_n_rows;
/* Whose bits are compared only. */
extern const struct case_row case_large_rows[];
extern const size_t case_n_large_rows;

/* A case with its sizes. */
struct case_work {
    const struct case_row *row;
    size_t in_bytes;    /* of the region that is read */
    size_t out_bytes;   /* of the region that is written */
    size_t moved_bytes; /* that a run has to read and write */
    size_t
        positive_at; /* from here to the end of `out`: numbers that may not be negative; out_bytes if there are none */
    bool is_out_read; /* what is in `out` before is an input */
    size_t n_tensors;
    size_t count; /* elements, of kinds without tensors */
    struct case_tensor {
        int64_t rows;
        int64_t row_elems;
        int64_t chunk_elems; /* of a rank */
        size_t at;           /* in the region where it lies whole */
    } tensors[CASE_TENSORS_MOST];
};

/* `divisor` makes everything smaller: to try the program. */
void case_size(struct case_work *work, const struct case_row *row, int divisor);
/* Calls the kernel of a table on two regions. CASE_MEMCPY has none. */
void case_run(const struct case_work *work, const struct kernel_table *kernels, struct address in,
              struct address out);

#endif
