/* SPDX-License-Identifier: MIT */
/*
 * Reducing over ranks. Sums, averages, minima and maxima of floats go to the vector tables (simd.h).
 * Everything else goes block by block: a block of each source is brought to the accumulation type in a buffer
 * on the stack, which stays in the first-level cache however many sources there are, and folded there.
 *
 * Invariant: a block of dst is written after that block of every source was read, so dst may be a source.
 */
#include "kernel/kernel.h"

#include "base/error.h"
#include "base/fp_mode.h"
#include "base/mem.h"
#include "base/try.h"
#include "kernel/element.h"
#include "kernel/simd.h"
#include "tensor/dtype.h"

#include <stdalign.h>
#include <stdint.h>
#include <string.h>

enum {
#define REDUCE(NAME, name) REDUCE_INDEX_##NAME,
#include "tensor/reduces.def"
#undef REDUCE
    REDUCE_COUNT,
    KIND_COUNT = DTYPE_KIND_FLOAT8 + 1,
    BLOCK_BYTES = 4096,
    WIDE_BLOCK_COUNT = 256,
    NARROW_BYTES = 4,
    MOST_EXACT_SOURCES = 1 << 20 /* sums of so many integers of 32 bits have less than 53 */
};

/* Everything about one call; complex numbers have become twice as many real ones. */
struct reduction {
    shoal_reduce_op op;
    shoal_dtype dtype;
    void *dst;
    const void *const *srcs;
    size_t n_srcs;
    size_t count;
    double factor;
};

/* Which operators have a meaning: none for 8-bit floats. */
static const bool is_offered[KIND_COUNT][REDUCE_COUNT] = {
    [DTYPE_KIND_FLOAT] = {[SHOAL_SUM] = true,
                          [SHOAL_AVG] = true,
                          [SHOAL_PRODUCT] = true,
                          [SHOAL_MIN] = true,
                          [SHOAL_MAX] = true,
                          [SHOAL_PREMUL_SUM] = true},
#define INTEGER_OPERATORS                                                                   \
    {                                                                                       \
        [SHOAL_SUM] = true, [SHOAL_AVG] = true, [SHOAL_PRODUCT] = true, [SHOAL_MIN] = true, \
        [SHOAL_MAX] = true, [SHOAL_BAND] = true, [SHOAL_BOR] = true, [SHOAL_BXOR] = true    \
    }
    [DTYPE_KIND_SIGNED] = INTEGER_OPERATORS,
    [DTYPE_KIND_UNSIGNED] = INTEGER_OPERATORS,
    [DTYPE_KIND_BOOLEAN] = {[SHOAL_SUM] = true,
                            [SHOAL_PRODUCT] = true,
                            [SHOAL_MIN] = true,
                            [SHOAL_MAX] = true,
                            [SHOAL_BAND] = true,
                            [SHOAL_BOR] = true,
                            [SHOAL_BXOR] = true},
    [DTYPE_KIND_COMPLEX] = {[SHOAL_SUM] = true, [SHOAL_AVG] = true, [SHOAL_PREMUL_SUM] = true},
};

/* Folding one block of the accumulation type ------------------------------------------------------------ */

typedef void fold_function(void *folded, const void *next, size_t count);

/* `a` is what was folded so far, `b` the next source. */
#define DEFINE_FOLD(function, ctype, expression)                       \
    static void function(void *folded, const void *next, size_t count) \
    {                                                                  \
        ctype *folded_elems = folded;                                  \
        const ctype *next_elems = next;                                \
        for (size_t i = 0; i < count; i++) {                           \
            const ctype a = folded_elems[i];                           \
            const ctype b = next_elems[i];                             \
            folded_elems[i] = (ctype)(expression);                     \
        }                                                              \
    }

/* Unsigned arithmetic of 64 bits wraps; cutting it to the type's size is wrapping in that size. */
#define DEFINE_FOLDS_UNSIGNED(name, ctype)                            \
    DEFINE_FOLD(sum_##name, ctype, (uint64_t)a + (uint64_t)b)         \
    DEFINE_FOLD(product_##name, ctype, ((uint64_t)a) * ((uint64_t)b)) \
    DEFINE_FOLD(band_##name, ctype, (a & b))                          \
    DEFINE_FOLD(bor_##name, ctype, a | b)                             \
    DEFINE_FOLD(bxor_##name, ctype, a ^ b)                            \
    DEFINE_FOLDS_SIGNED(name, ctype)

/* The others give the bits of the unsigned integer of that size. */
#define DEFINE_FOLDS_SIGNED(name, ctype)          \
    DEFINE_FOLD(min_##name, ctype, b < a ? b : a) \
    DEFINE_FOLD(max_##name, ctype, b > a ? b : a)

#define DEFINE_FOLDS_FLOAT(name, ctype)
#define DEFINE_FOLDS_FLOAT8(name, ctype)
#define DEFINE_FOLDS_COMPLEX(name, ctype)
#define DEFINE_FOLDS_BOOLEAN(name, ctype)    \
    DEFINE_FOLD(bor_##name, ctype, a | b)    \
    DEFINE_FOLD(band_##name, ctype, (a & b)) \
    DEFINE_FOLD(bxor_##name, ctype, a ^ b)

#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) \
    DEFINE_FOLDS_##kind(name, element_##NAME)
#include "tensor/dtypes.def"
#undef DTYPE

DEFINE_FOLD(sum_f32, element_F32, a + b)
DEFINE_FOLD(product_f32, element_F32, (a * b))
DEFINE_FOLD(sum_f64, element_F64, a + b)
DEFINE_FOLD(product_f64, element_F64, (a * b))

#define FOLDS_FLOAT(name)                                                 \
    {                                                                     \
        [SHOAL_PREMUL_SUM] = sum_##name, [SHOAL_PRODUCT] = product_##name \
    }
#define FOLDS_INTEGER(name, order_name)                                                             \
    {                                                                                               \
        [SHOAL_SUM] = sum_##name, [SHOAL_PRODUCT] = product_##name, [SHOAL_MIN] = min_##order_name, \
        [SHOAL_MAX] = max_##order_name, [SHOAL_BAND] = band_##name, [SHOAL_BOR] = bor_##name,       \
        [SHOAL_BXOR] = bxor_##name                                                                  \
    }
#define FOLDS_I8 FOLDS_INTEGER(u8, i8)
#define FOLDS_I16 FOLDS_INTEGER(u16, i16)
#define FOLDS_I32 FOLDS_INTEGER(u32, i32)
#define FOLDS_I64 FOLDS_INTEGER(u64, i64)
#define FOLDS_BOOLEAN(name)                                                                 \
    {                                                                                       \
        [SHOAL_SUM] = bor_##name, [SHOAL_PRODUCT] = band_##name, [SHOAL_MIN] = band_##name, \
        [SHOAL_MAX] = bor_##name, [SHOAL_BAND] = band_##name, [SHOAL_BOR] = bor_##name,     \
        [SHOAL_BXOR] = bxor_##name                                                          \
    }
#define ROW_FLOAT(NAME, name)
#define ROW_FLOAT8(NAME, name)
#define ROW_COMPLEX(NAME, name)
#define ROW_SIGNED(NAME, name) [SHOAL_##NAME] = FOLDS_##NAME,
#define ROW_UNSIGNED(NAME, name) [SHOAL_##NAME] = FOLDS_INTEGER(name, name),
#define ROW_BOOLEAN(NAME, name) [SHOAL_##NAME] = FOLDS_BOOLEAN(name),

/* By accumulation dtype. */
static fold_function *const folds[DTYPE_COUNT][REDUCE_COUNT] = {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) ROW_##kind(NAME, name)
#include "tensor/dtypes.def"
#undef DTYPE
    [SHOAL_F32] = FOLDS_FLOAT(f32),
    [SHOAL_F64] = FOLDS_FLOAT(f64),
};

static const void *element_at(const void *base, shoal_dtype dtype, size_t index)
{
    return (const char *)base + index * dtype_bytes(dtype);
}

/* A block of a source in the accumulation type, already multiplied where the operator says so. */
static shoal_status load_block(const struct reduction *reduction, size_t source, size_t begin, size_t count,
                               void *block)
{
    shoal_dtype accumulation = dtype_rows[reduction->dtype].accumulation;
    const void *from = element_at(reduction->srcs[source], reduction->dtype, begin);
    kernel_cast(accumulation, block, reduction->dtype, from, count);
    if (reduction->op == SHOAL_PREMUL_SUM) {
        TRY(kernel_scale(accumulation, block, block, count, reduction->factor));
    }
    return SHOAL_OK;
}

static shoal_status reduce_blocks(const struct reduction *reduction)
{
    alignas(MEM_DATA_ALIGNMENT) unsigned char folded[BLOCK_BYTES];
    alignas(MEM_DATA_ALIGNMENT) unsigned char next[BLOCK_BYTES];
    shoal_dtype dtype = reduction->dtype;
    shoal_dtype accumulation = dtype_rows[dtype].accumulation;
    fold_function *fold = folds[accumulation][reduction->op];
    size_t block_count = BLOCK_BYTES / dtype_bytes(accumulation);
    size_t count;
    for (size_t begin = 0; begin < reduction->count; begin += count) {
        size_t left = reduction->count - begin;
        count = left < block_count ? left : block_count;
        TRY(load_block(reduction, 0, begin, count, folded));
        for (size_t s = 1; s < reduction->n_srcs; s++) {
            TRY(load_block(reduction, s, begin, count, next));
            fold(folded, next, count);
        }
        kernel_cast(dtype, (char *)reduction->dst + begin * dtype_bytes(dtype), accumulation, folded, count);
    }
    return SHOAL_OK;
}

/* Averages of integers ---------------------------------------------------------------------------------- */

__extension__ typedef __int128 wide_integer;

/* Of a block. Sums of integers of up to 32 bits are narrow, whatever the number of sources. */
union sums {
    int64_t narrow[WIDE_BLOCK_COUNT];
    wide_integer wide[WIDE_BLOCK_COUNT];
};

struct average_functions {
    void (*add)(union sums *sums, const void *next, size_t count);
    void (*divide)(void *quotients, const union sums *sums, size_t divisor, size_t count);
};

/*
 * Truncated quotients. Vectors have no division of integers, but one of doubles, which is exact here: if the quotient is
 * not whole, it is at least 1 / divisor away from the next whole number, and rounding moves it by less as long as
 * |sum| + divisor is below 2^53.
 */
static int64_t divide_narrow(int64_t sum, size_t divisor)
{
    return (int64_t)((double)sum / (double)divisor);
}

/* Dividing 128 bits is a call of a function; most sums need 64. */
static wide_integer divide_wide(wide_integer sum, size_t divisor)
{
    return sum == (int64_t)sum ? (wide_integer)((int64_t)sum / (int64_t)divisor)
                               : sum / (wide_integer)divisor;
}

#define DEFINE_INTEGER_AVERAGE(name, ctype)                                                          \
    static void add_##name(union sums *sums, const void *next, size_t count)                         \
    {                                                                                                \
        const ctype *next_elems = next;                                                              \
        for (size_t i = 0; sizeof(ctype) <= NARROW_BYTES && i < count; i++) {                        \
            sums->narrow[i] += (int64_t)next_elems[i];                                               \
        }                                                                                            \
        for (size_t i = 0; sizeof(ctype) > NARROW_BYTES && i < count; i++) {                         \
            sums->wide[i] += (wide_integer)next_elems[i];                                            \
        }                                                                                            \
    }                                                                                                \
    static void divide_##name(void *quotients, const union sums *sums, size_t divisor, size_t count) \
    {                                                                                                \
        ctype *quotient_elems = quotients;                                                           \
        bool is_exact = divisor < MOST_EXACT_SOURCES;                                                \
        for (size_t i = 0; sizeof(ctype) <= NARROW_BYTES && is_exact && i < count; i++) {            \
            quotient_elems[i] = (ctype)divide_narrow(sums->narrow[i], divisor);                      \
        }                                                                                            \
        for (size_t i = 0; sizeof(ctype) <= NARROW_BYTES && !is_exact && i < count; i++) {           \
            quotient_elems[i] = (ctype)(sums->narrow[i] / (int64_t)divisor);                         \
        }                                                                                            \
        for (size_t i = 0; sizeof(ctype) > NARROW_BYTES && i < count; i++) {                         \
            quotient_elems[i] = (ctype)divide_wide(sums->wide[i], divisor);                          \
        }                                                                                            \
    }

#define DEFINE_AVERAGE_FLOAT(name, ctype)
#define DEFINE_AVERAGE_FLOAT8(name, ctype)
#define DEFINE_AVERAGE_COMPLEX(name, ctype)
#define DEFINE_AVERAGE_BOOLEAN(name, ctype)
#define DEFINE_AVERAGE_SIGNED DEFINE_INTEGER_AVERAGE
#define DEFINE_AVERAGE_UNSIGNED DEFINE_INTEGER_AVERAGE
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) \
    DEFINE_AVERAGE_##kind(name, element_##NAME)
#include "tensor/dtypes.def"
#undef DTYPE

#define AVERAGE_FLOAT(NAME, name)
#define AVERAGE_FLOAT8(NAME, name)
#define AVERAGE_COMPLEX(NAME, name)
#define AVERAGE_BOOLEAN(NAME, name)
#define AVERAGE_SIGNED(NAME, name) [SHOAL_##NAME] = {.add = add_##name, .divide = divide_##name},
#define AVERAGE_UNSIGNED AVERAGE_SIGNED

static const struct average_functions averages[DTYPE_COUNT] = {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) AVERAGE_##kind(NAME, name)
#include "tensor/dtypes.def"
#undef DTYPE
};

static void average_integers(const struct reduction *reduction)
{
    union sums sums;
    alignas(MEM_DATA_ALIGNMENT) unsigned char block[WIDE_BLOCK_COUNT * sizeof(uint64_t)];
    const struct average_functions *functions = &averages[reduction->dtype];
    size_t element_bytes = dtype_bytes(reduction->dtype);
    size_t count;
    for (size_t begin = 0; begin < reduction->count; begin += count) {
        size_t left = reduction->count - begin;
        count = left < WIDE_BLOCK_COUNT ? left : WIDE_BLOCK_COUNT;
        memset(&sums, 0, sizeof(sums));
        for (size_t s = 0; s < reduction->n_srcs; s++) {
            memcpy(block, element_at(reduction->srcs[s], reduction->dtype, begin), count * element_bytes);
            functions->add(&sums, block, count);
        }
        functions->divide(block, &sums, reduction->n_srcs, count);
        memcpy((char *)reduction->dst + begin * element_bytes, block, count * element_bytes);
    }
}

/* Floats ------------------------------------------------------------------------------------------------ */

static bool is_source(const struct reduction *reduction)
{
    for (size_t s = 0; s < reduction->n_srcs; s++) {
        if (reduction->srcs[s] == reduction->dst) {
            return true;
        }
    }
    return false;
}

static void reduce_floats(const struct reduction *reduction, enum simd_fold fold)
{
    static const enum simd_float types[DTYPE_COUNT] = {
        [SHOAL_F32] = SIMD_F32, [SHOAL_F64] = SIMD_F64, [SHOAL_BF16] = SIMD_BF16, [SHOAL_F16] = SIMD_F16};
    enum simd_float type = types[reduction->dtype];
    /* What was just read is in the cache: writing it there past the cache gains nothing. */
    bool is_stream =
        simd_is_streaming(reduction->count * dtype_bytes(reduction->dtype)) && !is_source(reduction);
    const struct simd_table *table = simd_table();
    simd_reduce_function *reduce = is_stream ? table->reduce_stream[type][fold] : table->reduce[type][fold];
    reduce(reduction->dst, reduction->srcs, reduction->n_srcs, 0, reduction->count);
}

/* The fold that the vector tables have for the operator; SIMD_FOLD_COUNT when there is none. */
static enum simd_fold find_simd_fold(shoal_reduce_op op)
{
    static const struct {
        shoal_reduce_op op;
        enum simd_fold fold;
    } rows[] = {
        {.op = SHOAL_SUM, .fold = SIMD_SUM},
        {.op = SHOAL_AVG, .fold = SIMD_AVG},
        {.op = SHOAL_MIN, .fold = SIMD_MIN},
        {.op = SHOAL_MAX, .fold = SIMD_MAX},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].op == op) {
            return rows[i].fold;
        }
    }
    return SIMD_FOLD_COUNT;
}

/* ------------------------------------------------------------------------------------------------------- */

shoal_status kernel_reduce_check(shoal_reduce_op op, shoal_dtype dtype)
{
    if (dtype_is_valid(dtype) && (int)op >= 0 && (int)op < REDUCE_COUNT &&
        is_offered[dtype_kind(dtype)][op]) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_UNSUPPORTED, "reduce operator %s (%d) is not supported for dtype %s (%d)",
                     shoal_reduce_op_name(op), (int)op, shoal_dtype_name(dtype), (int)dtype);
}

static shoal_status reduce(const struct reduction *reduction)
{
    enum simd_fold fold = find_simd_fold(reduction->op);
    if (dtype_kind(reduction->dtype) == DTYPE_KIND_FLOAT && fold != SIMD_FOLD_COUNT) {
        reduce_floats(reduction, fold);
        return SHOAL_OK;
    }
    if (reduction->op == SHOAL_AVG) {
        average_integers(reduction);
        return SHOAL_OK;
    }
    return reduce_blocks(reduction);
}

shoal_status kernel_reduce(shoal_reduce_op op, shoal_dtype dtype, void *dst, const void *const *srcs,
                           size_t n_srcs, size_t count, double factor)
{
    TRY(kernel_reduce_check(op, dtype));
    struct reduction reduction = {.op = op,
                                  .dtype = dtype,
                                  .dst = dst,
                                  .srcs = srcs,
                                  .n_srcs = n_srcs,
                                  .count = count,
                                  .factor = factor};
    if (dtype_kind(dtype) == DTYPE_KIND_COMPLEX) {
        reduction.dtype = dtype == SHOAL_C64 ? SHOAL_F32 : SHOAL_F64;
        reduction.count = 2 * count;
    }
    uint64_t mode = fp_mode_enter();
    shoal_status status = reduce(&reduction);
    fp_mode_leave(mode);
    return status;
}
