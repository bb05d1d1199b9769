/* SPDX-License-Identifier: MIT */
/*
 * kernel_cast: any dtype to any dtype. The rules, besides those of kernel.h:
 *
 *   integer to integer   modulo 2^bits: the low bits, read as the target reads them
 *   integer to float     rounded once, to nearest even; f16 and e5m2 overflow to infinity, e4m3fn to NaN
 *   float to integer     truncated, then cut to the target's range; NaN gives 0
 *   complex to bool      true unless both components are zero
 *   bool as a source     any byte but 0 reads as 1
 *
 * A pair without a loop of its own goes through blocks of wide values, f64, i64 or u64 by the source's
 * kind: widening is exact, so that storing is the only rounding.
 */
#include "base/fp_mode.h"
#include "kernel/element.h"
#include "kernel/kernel.h"
#include "kernel/simd.h"

enum {
    BLOCK_ELEMS = 256
};

enum wide {
    WIDE_REAL,
    WIDE_SIGNED,
    WIDE_UNSIGNED,
    WIDE_COUNT
};

typedef void cast_function(void *dst, const void *src, size_t count);

/* From memory to wide values --------------------------------------------------------------------------- */

#define LOAD(NAME, wide, expression)                                  \
    static void load_##NAME(void *dst, const void *src, size_t count) \
    {                                                                 \
        wide *to = dst;                                               \
        const element_##NAME *from = src;                             \
        for (size_t i = 0; i < count; i++) {                          \
            to[i] = (expression);                                     \
        }                                                             \
    }
#define LOAD_FLOAT(NAME) LOAD(NAME, double, (double)element_load_##NAME(from[i]))
#define LOAD_FLOAT8 LOAD_FLOAT
#define LOAD_SIGNED(NAME) LOAD(NAME, int64_t, from[i])
#define LOAD_UNSIGNED(NAME) LOAD(NAME, uint64_t, from[i])
#define LOAD_BOOLEAN(NAME) LOAD(NAME, uint64_t, from[i] != 0)
#define LOAD_COMPLEX(NAME) LOAD(NAME, double, (double)from[i].re)

#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) LOAD_##kind(NAME)
#include "tensor/dtypes.def"
#undef DTYPE

static cast_function *const loads[DTYPE_COUNT] = {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) [SHOAL_##NAME] = load_##NAME,
#include "tensor/dtypes.def"
#undef DTYPE
};

static const enum wide wides[] = {
    [DTYPE_KIND_FLOAT] = WIDE_REAL,        [DTYPE_KIND_SIGNED] = WIDE_SIGNED,
    [DTYPE_KIND_UNSIGNED] = WIDE_UNSIGNED, [DTYPE_KIND_BOOLEAN] = WIDE_UNSIGNED,
    [DTYPE_KIND_COMPLEX] = WIDE_REAL,      [DTYPE_KIND_FLOAT8] = WIDE_REAL,
};

/* From wide values to one element ---------------------------------------------------------------------- */

static inline double round_odd_REAL(double value)
{
    return value;
}

/*
 * Exact below 2^53; above, the low 11 bits become one that says whether any was set. Rounding the result to
 * at most 40 bits gives what rounding the integer would.
 */
static inline double round_odd_UNSIGNED(uint64_t value)
{
    uint64_t low = value & 0x7ff;
    uint64_t odd = (value - low) | (uint64_t)(low != 0) << 11;
    return (double)(value < (1ull << 53) ? value : odd);
}

static inline double round_odd_SIGNED(int64_t value)
{
    uint64_t magnitude = value < 0 ? -(uint64_t)value : (uint64_t)value;
    double rounded = round_odd_UNSIGNED(magnitude);
    return value < 0 ? -rounded : rounded;
}

/*
 * f32 takes the same way as bf16: clang 14 vectorizes a plain (float) of an i64 into two roundings. An integer
 * that is not exact as a double is far beyond f16 and 8-bit floats: its first rounding does not matter.
 */
#define ROUND_TO_FLOATS(WIDE, wide)                            \
    static inline double round_##WIDE##_F64(wide value)        \
    {                                                          \
        return (double)value;                                  \
    }                                                          \
    static inline float round_##WIDE##_F32(wide value)         \
    {                                                          \
        return (float)round_odd_##WIDE(value);                 \
    }                                                          \
    static inline uint16_t round_##WIDE##_F16(wide value)      \
    {                                                          \
        return half_f64_to_f16((double)value);                 \
    }                                                          \
    static inline uint16_t round_##WIDE##_BF16(wide value)     \
    {                                                          \
        return half_f64_to_bf16(round_odd_##WIDE(value));      \
    }                                                          \
    static inline uint8_t round_##WIDE##_F8_E4M3FN(wide value) \
    {                                                          \
        return half_f64_to_f8_e4m3fn((double)value);           \
    }                                                          \
    static inline uint8_t round_##WIDE##_F8_E5M2(wide value)   \
    {                                                          \
        return half_f64_to_f8_e5m2((double)value);             \
    }
ROUND_TO_FLOATS(REAL, double)
ROUND_TO_FLOATS(SIGNED, int64_t)
ROUND_TO_FLOATS(UNSIGNED, uint64_t)

static inline int64_t integer_SIGNED_from_REAL(double value, size_t bits)
{
    uint64_t limit = 1ull << (bits - 1);
    if (value >= (double)limit) {
        return (int64_t)(limit - 1);
    }
    if (value < -(double)limit) {
        return -(int64_t)(limit - 1) - 1;
    }
    return value == value ? (int64_t)value : 0;
}

static inline uint64_t integer_UNSIGNED_from_REAL(double value, size_t bits)
{
    uint64_t half = 1ull << (bits - 1);
    if (value >= 2.0 * (double)half) {
        return half - 1 + half;
    }
    return value > 0 ? (uint64_t)value : 0;
}

#define CONVERT_FLOAT(WIDE, NAME, ctype, value) round_##WIDE##_##NAME(value)
#define CONVERT_FLOAT8 CONVERT_FLOAT
#define CONVERT_SIGNED(WIDE, NAME, ctype, value) CONVERT_INTEGER_##WIDE(SIGNED, ctype, value)
#define CONVERT_UNSIGNED(WIDE, NAME, ctype, value) CONVERT_INTEGER_##WIDE(UNSIGNED, ctype, value)
#define CONVERT_INTEGER_REAL(kind, ctype, value) (ctype) integer_##kind##_from_REAL(value, 8 * sizeof(ctype))
#define CONVERT_INTEGER_SIGNED(kind, ctype, value) (ctype)(value)
#define CONVERT_INTEGER_UNSIGNED(kind, ctype, value) (ctype)(value)
#define CONVERT_BOOLEAN(WIDE, NAME, ctype, value) (value) != 0
#define CONVERT_COMPLEX(WIDE, NAME, ctype, value)   \
    (ctype)                                         \
    {                                               \
        .re = round_##WIDE##_##NAME(value), .im = 0 \
    }
#define round_REAL_C64 round_REAL_F32
#define round_REAL_C128 round_REAL_F64
#define round_SIGNED_C64 round_SIGNED_F32
#define round_SIGNED_C128 round_SIGNED_F64
#define round_UNSIGNED_C64 round_UNSIGNED_F32
#define round_UNSIGNED_C128 round_UNSIGNED_F64

/* From wide values to memory --------------------------------------------------------------------------- */

#define STORE(WIDE, wide, NAME, ctype, kind)                                    \
    static void store_##WIDE##_##NAME(void *dst, const void *src, size_t count) \
    {                                                                           \
        element_##NAME *to = dst;                                               \
        const wide *from = src;                                                 \
        for (size_t i = 0; i < count; i++) {                                    \
            to[i] = CONVERT_##kind(WIDE, NAME, ctype, from[i]);                 \
        }                                                                       \
    }

#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) \
    STORE(REAL, double, NAME, ctype, kind)                             \
    STORE(SIGNED, int64_t, NAME, ctype, kind)                          \
    STORE(UNSIGNED, uint64_t, NAME, ctype, kind)
#include "tensor/dtypes.def"
#undef DTYPE

static cast_function *const stores[WIDE_COUNT][DTYPE_COUNT] = {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits)                                \
    [WIDE_REAL][SHOAL_##NAME] = store_REAL_##NAME, [WIDE_SIGNED][SHOAL_##NAME] = store_SIGNED_##NAME, \
    [WIDE_UNSIGNED][SHOAL_##NAME] = store_UNSIGNED_##NAME,
#include "tensor/dtypes.def"
#undef DTYPE
};

/* Pairs with a loop of their own ----------------------------------------------------------------------- */

#define DIRECT(TO, FROM, expression)                                         \
    static void cast_##FROM##_##TO(void *dst, const void *src, size_t count) \
    {                                                                        \
        element_##TO *to = dst;                                              \
        const element_##FROM *from = src;                                    \
        for (size_t i = 0; i < count; i++) {                                 \
            to[i] = (expression);                                            \
        }                                                                    \
    }
DIRECT(F64, F32, (double)from[i])
DIRECT(F32, F64, (float)from[i])
DIRECT(F32, I8, (float)from[i])
DIRECT(F32, I16, (float)from[i])
DIRECT(F32, I32, (float)from[i])
DIRECT(F32, U8, (float)from[i])
DIRECT(F32, U16, (float)from[i])
DIRECT(F32, U32, (float)from[i])
DIRECT(F32, BOOL, from[i] != 0 ? 1.0f : 0.0f)
DIRECT(F32, F8_E4M3FN, half_f8_e4m3fn_to_f32(from[i]))
DIRECT(F32, F8_E5M2, half_f8_e5m2_to_f32(from[i]))
DIRECT(F8_E4M3FN, F32, half_f32_to_f8_e4m3fn(from[i]))
DIRECT(F8_E5M2, F32, half_f32_to_f8_e5m2(from[i]))
DIRECT(BOOL, BOOL, from[i] != 0)
DIRECT(BOOL, C64, from[i].re != 0 || from[i].im != 0)
DIRECT(BOOL, C128, from[i].re != 0 || from[i].im != 0)

#define DIRECT_SIMD(TO, FROM, member, to_bytes)                                                            \
    static void cast_##FROM##_##TO(void *dst, const void *src, size_t count)                               \
    {                                                                                                      \
        const struct simd_table *table = simd_table();                                                     \
        (simd_is_streaming(count * (to_bytes)) ? table->member##_stream : table->member)(dst, src, count); \
    }
DIRECT_SIMD(BF16, F32, cast_f32_bf16, 2)
DIRECT_SIMD(F16, F32, cast_f32_f16, 2)
DIRECT_SIMD(F32, BF16, cast_bf16_f32, 4)
DIRECT_SIMD(F32, F16, cast_f16_f32, 4)

/* [to][from] */
static cast_function *const directs[DTYPE_COUNT][DTYPE_COUNT] = {
    [SHOAL_F64][SHOAL_F32] = cast_F32_F64,
    [SHOAL_F32][SHOAL_F64] = cast_F64_F32,
    [SHOAL_BF16][SHOAL_F32] = cast_F32_BF16,
    [SHOAL_F16][SHOAL_F32] = cast_F32_F16,
    [SHOAL_F32][SHOAL_BF16] = cast_BF16_F32,
    [SHOAL_F32][SHOAL_F16] = cast_F16_F32,
    [SHOAL_BOOL][SHOAL_BOOL] = cast_BOOL_BOOL,
    [SHOAL_BOOL][SHOAL_C64] = cast_C64_BOOL,
    [SHOAL_BOOL][SHOAL_C128] = cast_C128_BOOL,
    [SHOAL_F32][SHOAL_I8] = cast_I8_F32,
    [SHOAL_F32][SHOAL_I16] = cast_I16_F32,
    [SHOAL_F32][SHOAL_I32] = cast_I32_F32,
    [SHOAL_F32][SHOAL_U8] = cast_U8_F32,
    [SHOAL_F32][SHOAL_U16] = cast_U16_F32,
    [SHOAL_F32][SHOAL_U32] = cast_U32_F32,
    [SHOAL_F32][SHOAL_BOOL] = cast_BOOL_F32,
    [SHOAL_F32][SHOAL_F8_E4M3FN] = cast_F8_E4M3FN_F32,
    [SHOAL_F8_E4M3FN][SHOAL_F32] = cast_F32_F8_E4M3FN,
    [SHOAL_F32][SHOAL_F8_E5M2] = cast_F8_E5M2_F32,
    [SHOAL_F8_E5M2][SHOAL_F32] = cast_F32_F8_E5M2,
};

/* The pairs of two complex dtypes are pairs of their components. */
static shoal_dtype component_of(shoal_dtype dtype)
{
    return dtype == SHOAL_C64 ? SHOAL_F32 : SHOAL_F64;
}

/* Apart: its blocks would make the frame of every cast large. */
static __attribute__((noinline)) void cast_by_blocks(shoal_dtype dst_dtype, void *dst, shoal_dtype src_dtype,
                                                     const void *src, size_t count)
{
    cast_function *load = loads[src_dtype];
    cast_function *store = stores[wides[dtype_kind(src_dtype)]][dst_dtype];
    _Static_assert(sizeof(double) == sizeof(uint64_t), "one block serves all wide types");
    union {
        double real[BLOCK_ELEMS];
        int64_t with_sign[BLOCK_ELEMS];
        uint64_t without_sign[BLOCK_ELEMS];
    } block;
    const char *from = src;
    char *to = dst;
    while (count > 0) {
        size_t part = count < BLOCK_ELEMS ? count : BLOCK_ELEMS;
        load(&block, from, part);
        store(to, &block, part);
        from += part * dtype_bytes(src_dtype);
        to += part * dtype_bytes(dst_dtype);
        count -= part;
    }
}

void kernel_cast(shoal_dtype dst_dtype, void *dst, shoal_dtype src_dtype, const void *src, size_t count)
{
    cast_function *direct = directs[dst_dtype][src_dtype];
    if (direct) {
        uint64_t mode = fp_mode_enter();
        direct(dst, src, count);
        fp_mode_leave(mode);
        return;
    }
    if (dst_dtype == src_dtype) {
        if (dst != src) {
            kernel_copy(dst, src, count * dtype_bytes(dst_dtype));
        }
        return;
    }
    if (dtype_kind(dst_dtype) == DTYPE_KIND_COMPLEX && dtype_kind(src_dtype) == DTYPE_KIND_COMPLEX) {
        kernel_cast(component_of(dst_dtype), dst, component_of(src_dtype), src, 2 * count);
        return;
    }
    uint64_t mode = fp_mode_enter();
    cast_by_blocks(dst_dtype, dst, src_dtype, src, count);
    fp_mode_leave(mode);
}
