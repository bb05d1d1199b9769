/* SPDX-License-Identifier: MIT */
/*
 * kernel_cast: any dtype to any dtype. The rules, besides those of kernel.h, are in convert.h, with the conversions of
 * single elements. A pair without a loop of its own goes through blocks of wide values.
 */
#include "base/fp_mode.h"
#include "kernel/convert.h"
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

#define LOAD(NAME, wide, element)                                     \
    static void load_##NAME(void *dst, const void *src, size_t count) \
    {                                                                 \
        wide *to = dst;                                               \
        const element_##NAME *from = src;                             \
        for (size_t i = 0; i < count; i++) {                          \
            to[i] = convert_load_##NAME(element);                     \
        }                                                             \
    }
#define LOAD_FLOAT(NAME) LOAD(NAME, double, from[i])
#define LOAD_FLOAT8 LOAD_FLOAT
#define LOAD_SIGNED(NAME) LOAD(NAME, int64_t, from[i])
#define LOAD_UNSIGNED(NAME) LOAD(NAME, uint64_t, from[i])
#define LOAD_BOOLEAN LOAD_UNSIGNED
#define LOAD_COMPLEX(NAME) LOAD(NAME, double, from[i].re)

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

/* From wide values to memory --------------------------------------------------------------------------- */

#define STORE(WIDE, wide, NAME, ctype, kind)                                    \
    static void store_##WIDE##_##NAME(void *dst, const void *src, size_t count) \
    {                                                                           \
        element_##NAME *to = dst;                                               \
        const wide *from = src;                                                 \
        for (size_t i = 0; i < count; i++) {                                    \
            to[i] = STORED_##kind(ctype, convert_##WIDE##_to_##NAME(from[i]));  \
        }                                                                       \
    }
#define STORED_FLOAT(ctype, value) (value)
#define STORED_FLOAT8 STORED_FLOAT
#define STORED_SIGNED STORED_FLOAT
#define STORED_UNSIGNED STORED_FLOAT
#define STORED_BOOLEAN STORED_FLOAT
#define STORED_COMPLEX(ctype, value) \
    (ctype)                          \
    {                                \
        .re = (value), .im = 0       \
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
