/* SPDX-License-Identifier: MIT */
/* What `shoal bench kernels` measures: one case is a kernel, its dtypes, its buffers and the right result. */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H

#include "kernel/kernel.h"
#include "kernel/simd.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    BENCH_RANKS = 8,
    BENCH_TENSORS = 12 /* of one GPT-2 layer */
};

struct bench_case;

/* A kernel between two dtypes. Rows of bench_rows. */
struct bench_row {
    const char *kernel;
    shoal_dtype src_dtype;
    shoal_dtype dst_dtype;
    double least_ratio; /* to memcpy, of the variant in use; 0 if none is promised */
    void (*size)(struct bench_case *one, size_t touched_bytes);
    void (*run)(struct bench_case *one);
};

extern const struct bench_row bench_rows[];
extern const size_t bench_n_rows;

struct bench_case {
    const struct bench_row *row;
    size_t touched_bytes; /* read and written by one run */
    size_t src_bytes;     /* of one source, gaps included */
    size_t dst_bytes;
    size_t count; /* elements of casts and reductions */
    unsigned char *srcs[2];
    unsigned char *dst;
    unsigned char *expected; /* what plain C makes */
    /* Packing and unpacking: tensors begin at multiples of 64 bytes, as they do in a program. */
    struct kernel_pack_item pack_items[BENCH_TENSORS];
    struct kernel_unpack_item unpack_items[BENCH_TENSORS];
};

/* Allocates and fills the buffers of a case that touches about `touched_bytes`. SHOAL_ERR_NO_MEMORY leaves
   nothing behind. */
shoal_status bench_case_init(struct bench_case *one, const struct bench_row *row, size_t touched_bytes);
void bench_case_fini(struct bench_case *one);

/* Nanoseconds of shoal_add of 4 floats, with making and releasing its result, minus those of the bare kernel; NaN when
   a call failed (bench/ops.c). */
double bench_op_overhead_ns(void);

/* Elements of the result that differ from what plain C makes of the same input. */
size_t bench_case_count_wrong(const struct bench_case *one);

#endif
