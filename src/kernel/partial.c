/* SPDX-License-Identifier: MIT */
/*
 * Folds that are made in several places, one after the other: a partial holds what was folded so far, in the type in
 * which kernel_reduce folds. The bits are those of one kernel_reduce over all sources.
 */
#include <stdalign.h>
#include <stdint.h>
#include <string.h>

#include "base/fp_mode.h"
#include "base/mem.h"
#include "base/try.h"
#include "kernel/kernel.h"
#include "tensor/dtype.h"

enum {
    BLOCK_BYTES = 8192,
    GROUP_SOURCES = 16,
    WIDE_BYTES = 16,
    NARROW_INTEGER_BYTES = 4 /* sums of so many bytes fit into 64 bits, whatever the number of ranks */
};

__extension__ typedef __int128 wide_integer;
_Static_assert(sizeof(wide_integer) == WIDE_BYTES, "partials of averages of 64-bit integers");

static bool is_integer(shoal_dtype dtype)
{
    enum dtype_kind kind = dtype_kind(dtype);
    return kind == DTYPE_KIND_SIGNED || kind == DTYPE_KIND_UNSIGNED;
}

static bool is_wide(shoal_reduce_op op, shoal_dtype dtype)
{
    return op == SHOAL_AVG && is_integer(dtype) && dtype_bytes(dtype) > NARROW_INTEGER_BYTES;
}

/* Of a partial that is not wide. */
static shoal_dtype partial_dtype(shoal_reduce_op op, shoal_dtype dtype)
{
    return op == SHOAL_AVG && is_integer(dtype) ? SHOAL_I64 : dtype_rows[dtype].accumulation;
}

size_t kernel_partial_bytes(shoal_reduce_op op, shoal_dtype dtype)
{
    return is_wide(op, dtype) ? WIDE_BYTES : dtype_bytes(partial_dtype(op, dtype));
}

bool kernel_reduce_has_order(shoal_reduce_op op, shoal_dtype dtype)
{
    (void)op;
    return !is_integer(dtype) && dtype_kind(dtype) != DTYPE_KIND_BOOLEAN;
}

/* What partials of an operator are folded by: averages are sums until the end, premul_sum multiplies before. */
static shoal_reduce_op partial_op(shoal_reduce_op op)
{
    return op == SHOAL_AVG || op == SHOAL_PREMUL_SUM ? SHOAL_SUM : op;
}

/* Sums of 64-bit integers in 128 bits ------------------------------------------------------------------- */

static wide_integer read_wide(const char *at)
{
    wide_integer value;
    memcpy(&value, at, sizeof value);
    return value;
}

static void write_wide(char *at, wide_integer value)
{
    memcpy(at, &value, sizeof value);
}

static wide_integer read_integer(shoal_dtype dtype, const char *at)
{
    uint64_t bits;
    memcpy(&bits, at, sizeof bits);
    return dtype == SHOAL_U64 ? (wide_integer)bits : (wide_integer)(int64_t)bits;
}

static void fold_wide(shoal_dtype dtype, char *partial, const char *before, const void *const *srcs,
                      size_t n_srcs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        wide_integer sum = before ? read_wide(before + i * WIDE_BYTES) : 0;
        for (size_t s = 0; s < n_srcs; s++) {
            sum += read_integer(dtype, (const char *)srcs[s] + i * sizeof(uint64_t));
        }
        write_wide(partial + i * WIDE_BYTES, sum);
    }
}

static void finish_wide(char *dst, const char *partial, size_t n_folded, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t quotient = (uint64_t)(read_wide(partial + i * WIDE_BYTES) / (wide_integer)n_folded);
        memcpy(dst + i * sizeof quotient, &quotient, sizeof quotient);
    }
}

/* Everything else ---------------------------------------------------------------------------------------- */

/* Sources that have the type of partials. */
static shoal_status fold_same(shoal_reduce_op op, shoal_dtype dtype, void *partial, const void *before,
                              const void *const *srcs, size_t n_srcs, size_t count)
{
    const void *group[GROUP_SOURCES];
    for (size_t s = 0; s < n_srcs;) {
        size_t n_group = 0;
        if (before) {
            group[n_group++] = before;
        }
        while (s < n_srcs && n_group < GROUP_SOURCES) {
            group[n_group++] = srcs[s++];
        }
        TRY(kernel_reduce(op, dtype, partial, group, n_group, count, 0.0));
        before = partial;
    }
    return SHOAL_OK;
}

/* Sources that are brought to the type of partials first, a block at a time. */
static shoal_status fold_cast(shoal_reduce_op op, shoal_dtype dtype, char *partial, const char *before,
                              const void *const *srcs, size_t n_srcs, size_t count, double factor)
{
    alignas(MEM_DATA_ALIGNMENT) unsigned char block[BLOCK_BYTES];
    shoal_dtype wide = partial_dtype(op, dtype);
    size_t wide_bytes = dtype_bytes(wide);
    size_t most = BLOCK_BYTES / wide_bytes;
    size_t n_block;
    for (size_t begin = 0; begin < count; begin += n_block) {
        n_block = count - begin < most ? count - begin : most;
        char *target = partial + begin * wide_bytes;
        const char *folded = before ? before + begin * wide_bytes : NULL;
        for (size_t s = 0; s < n_srcs; s++) {
            void *values = folded ? (void *)block : (void *)target;
            kernel_cast(wide, values, dtype, (const char *)srcs[s] + begin * dtype_bytes(dtype), n_block);
            if (op == SHOAL_PREMUL_SUM) {
                TRY(kernel_scale(wide, values, values, n_block, factor));
            }
            if (folded) {
                const void *both[] = {folded, block};
                TRY(kernel_reduce(partial_op(op), wide, target, both, 2, n_block, 0.0));
            }
            folded = target;
        }
    }
    return SHOAL_OK;
}

shoal_status kernel_partial_fold(shoal_reduce_op op, shoal_dtype dtype, void *partial, const void *before,
                                 const void *const *srcs, size_t n_srcs, size_t count, double factor)
{
    TRY(kernel_reduce_check(op, dtype));
    if (is_wide(op, dtype)) {
        fold_wide(dtype, partial, before, srcs, n_srcs, count);
        return SHOAL_OK;
    }
    uint64_t mode = fp_mode_enter();
    shoal_status status = partial_dtype(op, dtype) == dtype && op != SHOAL_PREMUL_SUM
                              ? fold_same(partial_op(op), dtype, partial, before, srcs, n_srcs, count)
                              : fold_cast(op, dtype, partial, before, srcs, n_srcs, count, factor);
    fp_mode_leave(mode);
    return status;
}

/* Quotients of sums, a block at a time ------------------------------------------------------------------- */

#define DEFINE_DIVIDE(name, ctype)                                                              \
    static void divide_##name(void *quotients, const char *sums, size_t n_folded, size_t count) \
    {                                                                                           \
        ctype *results = quotients;                                                             \
        for (size_t i = 0; i < count; i++) {                                                    \
            ctype sum;                                                                          \
            memcpy(&sum, sums + i * sizeof sum, sizeof sum);                                    \
            results[i] = sum / (ctype)n_folded;                                                 \
        }                                                                                       \
    }
DEFINE_DIVIDE(f32, float)
DEFINE_DIVIDE(f64, double)
DEFINE_DIVIDE(i64, int64_t)

static void finish_average(shoal_dtype dtype, shoal_dtype wide, char *dst, const char *partial,
                           size_t n_folded, size_t count)
{
    alignas(MEM_DATA_ALIGNMENT) unsigned char block[BLOCK_BYTES];
    size_t wide_bytes = dtype_bytes(wide);
    size_t most = BLOCK_BYTES / wide_bytes;
    size_t n_block;
    for (size_t begin = 0; begin < count; begin += n_block) {
        n_block = count - begin < most ? count - begin : most;
        const char *sums = partial + begin * wide_bytes;
        if (wide == SHOAL_I64) {
            divide_i64(block, sums, n_folded, n_block);
        } else if (wide == SHOAL_F32) {
            divide_f32(block, sums, n_folded, n_block);
        } else {
            divide_f64(block, sums, n_folded, n_block);
        }
        kernel_cast(dtype, dst + begin * dtype_bytes(dtype), wide, block, n_block);
    }
}

static void finish(shoal_reduce_op op, shoal_dtype dtype, void *dst, const void *partial, size_t n_folded,
                   size_t count)
{
    if (dtype_kind(dtype) == DTYPE_KIND_COMPLEX) {
        dtype = dtype == SHOAL_C64 ? SHOAL_F32 : SHOAL_F64;
        count *= 2;
    }
    shoal_dtype wide = partial_dtype(op, dtype);
    if (op == SHOAL_AVG) {
        finish_average(dtype, wide, dst, partial, n_folded, count);
    } else if (wide == dtype) {
        kernel_copy(dst, partial, count * dtype_bytes(dtype));
    } else {
        kernel_cast(dtype, dst, wide, partial, count);
    }
}

void kernel_partial_finish(shoal_reduce_op op, shoal_dtype dtype, void *dst, const void *partial,
                           size_t n_folded, size_t count)
{
    if (is_wide(op, dtype)) {
        finish_wide(dst, partial, n_folded, count);
        return;
    }
    uint64_t mode = fp_mode_enter();
    finish(op, dtype, dst, partial, n_folded, count);
    fp_mode_leave(mode);
}
