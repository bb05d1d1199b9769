/* SPDX-License-Identifier: MIT */
/*
 * The CPU's kernels over raw memory. Callers have validated everything: dtypes fit, counts and shapes are right,
 * memory is there. Nothing here allocates or fails, except that a combination without meaning returns
 * SHOAL_ERR_UNSUPPORTED (with the error text set) before anything is written.
 *
 * Conventions: counts are elements, strides are elements and may be zero or negative, memory may be
 * misaligned (as far as the platform's unaligned vector loads go), count may be zero. Inputs and outputs
 * either coincide exactly or do not overlap, unless said otherwise.
 *
 * Bits: every SIMD variant gives the same bits as the plain C one (docs/design/kernels.md); NaN payloads
 * are free. f16 and bf16 are computed in f32 and rounded once, to nearest even. 8-bit floats are copied, filled and cast;
 * arithmetic on them is SHOAL_ERR_UNSUPPORTED.
 */
#ifndef KERNEL_KERNEL_H
#define KERNEL_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/address.h"
#include "shoal/dtype.h"
#include "shoal/status.h"

/* An n-dimensional operand: first element and strides, in elements, per dimension. */
struct kernel_operand {
    struct address data;
    const int64_t *strides;
};

/* Copying and casting ---------------------------------------------------------------------------------- */

void kernel_copy(void *dst, const void *src, size_t bytes);

/* Copies a part of an output of whole_bytes, which is written piece by piece: that size decides whether to bypass the
   cache. */
void kernel_copy_part(void *dst, const void *src, size_t bytes, size_t whole_bytes);
/* Many copies past the cache, to be used where kernel_is_streaming: copies are not ordered with anything, also not with
   what this thread publishes later, before kernel_stream_end. */
void kernel_stream(void *dst, const void *src, size_t bytes);
void kernel_stream_end(void);
/* Whether outputs of this size bypass the cache here. */
bool kernel_is_streaming(size_t output_bytes);

/*
 * Prefetches the cache lines of this memory with the right to write them. Use it for memory that another processor
 * wrote and that this one reads, or is about to write. It is only a hint: it changes nothing and waits for nothing.
 */
void kernel_fetch_to_write(const void *memory, size_t bytes);

/* Contiguous elements on their way: cast if the dtypes differ, and otherwise copied as bytes. */
struct kernel_move {
    struct address dst;
    struct address src; /* ADDRESS_NONE: dst becomes zeros */
    size_t count;
    shoal_dtype dst_dtype;
    shoal_dtype src_dtype;
    bool is_added; /* dst += src, cast first: floating-point and complex dtypes only */
};

/* In any order: what one of them writes, no other one reads or writes. */
void kernel_move(const struct kernel_move *moves, size_t n_moves);

/* dst[i...] = cast(src[i...]) over a shape; equal dtypes copy bits (bool: bytes become 0 or 1). */
void kernel_copy_nd(shoal_dtype dst_dtype, struct kernel_operand dst, shoal_dtype src_dtype,
                    struct kernel_operand src, int n_dims, const int64_t *shape);

/*
 * Contiguous cast. Float to float rounds to nearest even, keeps subnormals, overflows to infinity (f8_e4m3fn, which has
 * none: to NaN), NaN stays NaN. Float to integer truncates toward zero and saturates, NaN gives 0. Integer to integer wraps, integer to
 * float rounds once. To bool: not equal to zero (complex: either part). Real to complex: imaginary 0. Complex to real:
 * the real part.
 */
void kernel_cast(shoal_dtype dst_dtype, void *dst, shoal_dtype src_dtype, const void *src, size_t count);

/* Scalars ---------------------------------------------------------------------------------------------- */

/* A number on its way to an element: converted to the dtype by the rules of kernel_cast. */
struct kernel_scalar {
    bool is_integer;
    int64_t integer;
    double real;
};

/* Writes one element. */
void kernel_scalar_store(shoal_dtype dtype, void *element, struct kernel_scalar value);

/* Every element of a shape becomes the value. */
void kernel_fill_nd(shoal_dtype dtype, struct kernel_operand dst, int n_dims, const int64_t *shape,
                    struct kernel_scalar value);

/* Elementwise ------------------------------------------------------------------------------------------ */

enum kernel_binary {
    KERNEL_ADD,
    KERNEL_SUB,
    KERNEL_MUL,
    KERNEL_DIV,
    KERNEL_BINARY_COUNT
};

/*
 * dst = a op b over a shape; broadcasting is stride 0. dst may coincide with a or b. Integers wrap; integer
 * division truncates, by zero gives 0, and the smallest number by -1 gives itself. bool: add is or, mul is and;
 * sub and div are unsupported.
 */
shoal_status kernel_binary_nd(enum kernel_binary op, shoal_dtype dtype, struct kernel_operand dst,
                              struct kernel_operand a, struct kernel_operand b, int n_dims,
                              const int64_t *shape);

/* dst = a op number: the number is first converted to the dtype. */
shoal_status kernel_number_nd(enum kernel_binary op, shoal_dtype dtype, struct kernel_operand dst,
                              struct kernel_operand a, struct kernel_scalar number, int n_dims,
                              const int64_t *shape);

/* dst = -a. Unsupported for bool; unsigned wraps. */
shoal_status kernel_negate_nd(shoal_dtype dtype, struct kernel_operand dst, struct kernel_operand a,
                              int n_dims, const int64_t *shape);

/* dst[i] = src[i] where a[i] equals b[i], or both are NaN; 0 elsewhere. All of one dtype. */
void kernel_where_equal(shoal_dtype dtype, struct address dst, struct address src, struct address a,
                        struct address b, size_t count);

/* dst[i] = src[i] * factor, the factor first rounded to the accumulation type. Floats and complex only. */
shoal_status kernel_scale(shoal_dtype dtype, void *dst, const void *src, size_t count, double factor);

/* data[i] = data[i] / divisor: f16 and bf16 in f32, which can represent more divisors. Floats and complex only. */
void kernel_divide(shoal_dtype dtype, struct address data, size_t count, double divisor);

/* data[i] between -limit and limit, the limit first rounded to the dtype; NaN stays. Real floats only. */
shoal_status kernel_clamp(shoal_dtype dtype, void *data, size_t count, double limit);

/* The largest |src[i]|, 0 if there is none; NaN wins. Real floats only. */
shoal_status kernel_largest(shoal_dtype dtype, const void *src, size_t count, double *largest_out);

/* Reducing over ranks ---------------------------------------------------------------------------------- */

/*
 * dst[i] = srcs[0][i] op srcs[1][i] op ... : a left fold in that order in the accumulation type, rounded once.
 *   floats   f16 and bf16 accumulate in f32. avg: fold, divide by n_srcs, round. premul_sum: multiply by the
 *            factor and round (in the accumulation type), then fold. min, max: NaN wins; equal values keep the
 *            earlier source, so -0 and +0 keep theirs.
 *   integers wrap. avg: exact sum (128 bit) divided by n_srcs, truncated toward zero. premul_sum: unsupported.
 *   bool     sum, max, bor: or; product, min, band: and; bxor: xor; avg, premul_sum: unsupported. Result 0 or 1.
 *   complex  sum, avg, premul_sum componentwise; others unsupported.
 *   band, bor, bxor: integers and bool only.
 * n_srcs >= 1. dst may coincide with one or more of the sources.
 */
shoal_status kernel_reduce(shoal_reduce_op op, shoal_dtype dtype, void *dst, const void *const *srcs,
                           size_t n_srcs, size_t count, double factor);

/* SHOAL_OK when kernel_reduce knows the combination; otherwise the error it would return. */
shoal_status kernel_reduce_check(shoal_reduce_op op, shoal_dtype dtype);

/*
 * The fold of kernel_reduce, made in several places. A partial holds what was folded so far, in the type in which
 * kernel_reduce folds (f16 and bf16: f32; averages of integers: 64 or 128 bits). Folding the sources of one place after
 * those of the place before, and finishing once with the number of all sources, gives the bits of one kernel_reduce
 * over all of them.
 */
size_t kernel_partial_bytes(shoal_reduce_op op, shoal_dtype dtype); /* of an element */
/* `before` is the partial to go on from; NULL if these sources are the first. `partial` may coincide with `before`.
   n_srcs >= 1. */
shoal_status kernel_partial_fold(shoal_reduce_op op, shoal_dtype dtype, void *partial, const void *before,
                                 const void *const *srcs, size_t n_srcs, size_t count, double factor);
void kernel_partial_finish(shoal_reduce_op op, shoal_dtype dtype, void *dst, const void *partial,
                           size_t n_folded, size_t count);
/* Whether the bits of a fold depend on the order of its sources. */
bool kernel_reduce_has_order(shoal_reduce_op op, shoal_dtype dtype);

/* Reducing over dimensions ----------------------------------------------------------------------------- */

/*
 * Sums over the dimensions where is_reduced; dst has stride 0 there (entries ignored). Elements are added in
 * row-major order: f32, f16, bf16 in f64, rounded once; f64 and complex in themselves (c64 in c128); integers
 * wrap; bool: or. `divisor` (0 = none) divides the sum before the rounding: the mean; integers truncate.
 * Shapes without elements give 0, and so do elements that are all -0: the sum starts at +0. The mean of bool is
 * unsupported.
 */
shoal_status kernel_sum_nd(shoal_dtype dtype, struct kernel_operand dst, struct kernel_operand src,
                           int n_dims, const int64_t *shape, const bool *is_reduced, int64_t divisor);

/* Exact sum of squares --------------------------------------------------------------------------------- */

/*
 * Squares of real floating values added without rounding, in integer bins, so that any order and any split
 * gives the same number: bins of several ranks are added element by element as u64 (they must be normalized
 * first) and rounded once at the end.
 */
#define KERNEL_SQUARES_BINS 144

struct kernel_squares {
    /* Fixed-point digits, plus counts of infinities and NaNs; see squares.c. */
    uint64_t bins[KERNEL_SQUARES_BINS];
};

void kernel_squares_init(struct kernel_squares *squares);
shoal_status kernel_squares_add(struct kernel_squares *squares, shoal_dtype dtype, const void *src,
                                size_t count);
/* |x|^power instead of x * x: exact for 1, otherwise each power is rounded to f64 before it is added. Real floats
   only. */
shoal_status kernel_powers_add(struct kernel_squares *squares, shoal_dtype dtype, const void *src,
                               size_t count, double power);
/* Carries digits so that up to 2^31 of them can be added. */
void kernel_squares_normalise(struct kernel_squares *squares);
void kernel_squares_merge(struct kernel_squares *into, const struct kernel_squares *from);
/* Rounded to nearest even; infinity and NaN as a sum of doubles would give. */
double kernel_squares_round(const struct kernel_squares *squares);

/* Lists: many tensors in one call ---------------------------------------------------------------------- */

/* Contiguous elements, of one tensor among many. */
struct kernel_piece {
    struct address data;
    size_t count;
    shoal_dtype dtype;
};

/* kernel_scale and kernel_clamp of all pieces, in place. */
shoal_status kernel_scale_list(const struct kernel_piece *pieces, size_t n_pieces, double factor);
shoal_status kernel_clamp_list(const struct kernel_piece *pieces, size_t n_pieces, double limit);
/* `largest`, an f64 that is 0 or the result of an earlier call, becomes the largest |x| of all. NaN wins. */
shoal_status kernel_largest_list(const struct kernel_piece *pieces, size_t n_pieces, struct address largest);
/* Adds to `bins`, those of a struct kernel_squares: squares if the power is 2, and else kernel_powers_add. */
shoal_status kernel_powers_list(const struct kernel_piece *pieces, size_t n_pieces, double power,
                                struct address bins);

/* How parameters are updated. Each operation is rounded, in this order. */
enum kernel_rule {
    KERNEL_SGD,   /* p = p - lr * g */
    KERNEL_ADAMW, /* p = p - decay * p;  m = beta1 * m + one_minus_beta1 * g;
                     v = beta2 * v + one_minus_beta2 * (g * g);  p = p - step * m / (sqrt(v) / root + eps) */
    KERNEL_RULE_COUNT
};

/* Each is first rounded to the type that is computed in. */
struct kernel_rates {
    double lr; /* SGD; the others are AdamW's */
    double decay;
    double beta1;
    double one_minus_beta1;
    double beta2;
    double one_minus_beta2;
    double step;
    double root;
    double eps;
};

/* A parameter and its gradient, real floats with arithmetic. f64 parameters are computed in f64, others in f32: moments
   have that dtype, gradients are rounded to it, and a parameter of 16 bits is rounded once. */
struct kernel_update {
    struct address data;
    struct address gradient;
    struct address moments[2]; /* AdamW */
    size_t count;
    shoal_dtype dtype;
    shoal_dtype gradient_dtype;
    struct kernel_rates rates;
};

shoal_status kernel_update(enum kernel_rule rule, const struct kernel_update *updates, size_t n_updates);

/* Packing (chunk-cat) and unpacking (split-copy) ------------------------------------------------------- */

/* One tensor as rows x row_elems, contiguous. Chunk w of W holds rows [w*c, (w+1)*c), c = ceil(rows / W). */
struct kernel_pack_item {
    struct address data;
    int64_t rows;
    int64_t row_elems;
};

/* Elements per packed row: the sum over items of ceil(rows / n_ranks) * row_elems. */
int64_t kernel_pack_row_elems(const struct kernel_pack_item *items, size_t n_items, int64_t n_ranks);

/*
 * Writes rows of dst [n_ranks, S]. Row w is, for each item in order, its chunk w followed by zeros up to c * row_elems.
 * Elements are cast on the way. Only the n_rows rows from first_rank on are written; dst points at row first_rank.
 */
void kernel_pack(shoal_dtype dst_dtype, struct address dst, shoal_dtype src_dtype,
                 const struct kernel_pack_item *items, size_t n_items, int64_t n_ranks, int64_t first_rank,
                 int64_t n_rows);

/* A destination of kernel_unpack: contiguous [n_rows, elems]. */
struct kernel_unpack_item {
    struct address data;
    int64_t elems;
};

/* src [n_rows, sum of elems] -> each item's columns, cast on the way. */
void kernel_unpack(shoal_dtype dst_dtype, const struct kernel_unpack_item *items, size_t n_items,
                   shoal_dtype src_dtype, struct address src, int64_t n_rows);

#endif
