/* SPDX-License-Identifier: MIT */
/*
 * The kernels that have versions for vector instructions, as one table per set of instructions (rows of
 * simd.def). The best one that the machine can run is picked once, or the one that SHOAL_SIMD names.
 *
 * Every table gives the same bits as the plain C one, except for NaN payloads. Memory may be misaligned by
 * any number of bytes. The members ending in _stream do the same past the cache, for outputs that nobody
 * reads soon; where the machine has no faster way they are the ordinary members. No member is ever NULL.
 */
#ifndef KERNEL_SIMD_H
#define KERNEL_SIMD_H

#include <stdbool.h>
#include <stddef.h>

/* Memory must not overlap. */
typedef void simd_copy_function(void *dst, const void *src, size_t bytes);
typedef void simd_cast_function(void *dst, const void *src, size_t count);

/*
 * dst[i] = srcs[0][i] op srcs[1][i] op ... for begin <= i < end, folded in that order; n_srcs >= 1. dst may
 * coincide with sources, but not for the _stream ones.
 */
typedef void simd_reduce_function(void *dst, const void *const *srcs, size_t n_srcs, size_t begin,
                                  size_t end);

/* sums[i] += src[i] of each row in turn, in f64, for n_columns elements that are next to each other. */
typedef void simd_sum_rows_function(double *sums, const void *src, ptrdiff_t row_bytes, size_t n_rows,
                                    size_t n_columns);

enum simd_float {
    SIMD_F32,
    SIMD_F64,
    SIMD_BF16,
    SIMD_F16,
    SIMD_FLOAT_COUNT
};

enum simd_fold {
    SIMD_SUM,
    SIMD_AVG,
    SIMD_MIN,
    SIMD_MAX,
    SIMD_FOLD_COUNT
};

struct simd_table {
    const char *name;

    simd_copy_function *copy;
    simd_copy_function *copy_stream;
    /* copy_stream in two halves: after any number of copies, stream_end orders them before what follows. */
    simd_copy_function *copy_stream_open;
    void (*stream_end)(void);

    /* cast_<from>_<to> */
    simd_cast_function *cast_f32_bf16;
    simd_cast_function *cast_f32_f16;
    simd_cast_function *cast_bf16_f32;
    simd_cast_function *cast_f16_f32;
    simd_cast_function *cast_f32_bf16_stream;
    simd_cast_function *cast_f32_f16_stream;
    simd_cast_function *cast_bf16_f32_stream;
    simd_cast_function *cast_f16_f32_stream;

    simd_reduce_function *reduce[SIMD_FLOAT_COUNT][SIMD_FOLD_COUNT];
    simd_reduce_function *reduce_stream[SIMD_FLOAT_COUNT][SIMD_FOLD_COUNT];

    simd_sum_rows_function *sum_rows_f32;
    simd_sum_rows_function *sum_rows_bf16;
};

/* The table in use. Threads: any. */
const struct simd_table *simd_table(void);
const char *simd_name(void);

/* True when an output of this size should go past the cache (SHOAL_STREAM_BYTES): use the _stream members. */
bool simd_is_streaming(size_t output_bytes);

/* stream_end of tables whose stores all stay in the cache. */
void simd_end_nothing(void);

/* The tables that this machine can run, worst first; index 0 is the plain one. NULL past the last. */
const struct simd_table *simd_variant(size_t index);

/* For tests and benchmarks: every kernel uses this table from now on. No kernel may be running. */
void simd_table_set(const struct simd_table *table);

/* For the files of this folder: simd_plain and so on. Only those of this architecture exist. */
#define SIMD(name, architecture, is_usable) extern const struct simd_table simd_##name;
#include "kernel/simd.def"
#undef SIMD

#endif
