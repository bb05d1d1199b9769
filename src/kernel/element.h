/* SPDX-License-Identifier: MIT */
/*
 * Types of elements in memory and in registers, for each row of dtypes.def:
 *
 *   element_F16   what memory holds, at any alignment: loops index pointers of this type
 *   value_F16     the same type, aligned
 *   compute_F16   the type that arithmetic uses: the dtype's accumulation type
 *   element_load_F16, element_store_F16   convert between element and compute type; the store rounds once; 8-bit floats,
 *                 with which nothing is computed, have no store
 */
#ifndef KERNEL_ELEMENT_H
#define KERNEL_ELEMENT_H

#include <stdint.h>

#include "kernel/half.h"
#include "tensor/dtype.h"

/* Reads and writes of a loop touch the same place only in the same iteration: in place is as good as apart. */
#if defined(__clang__)
#define ELEMENT_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define ELEMENT_LOOP _Pragma("GCC ivdep")
#endif

/* Complex elements are reached through their members, whose types are those of any other access. */
#define ELEMENT_ATTRIBUTES_FLOAT aligned(1), may_alias
#define ELEMENT_ATTRIBUTES_FLOAT8 aligned(1), may_alias
#define ELEMENT_ATTRIBUTES_SIGNED aligned(1), may_alias
#define ELEMENT_ATTRIBUTES_UNSIGNED aligned(1), may_alias
#define ELEMENT_ATTRIBUTES_BOOLEAN aligned(1), may_alias
#define ELEMENT_ATTRIBUTES_COMPLEX aligned(1)
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits)       \
    typedef ctype element_##NAME __attribute__((ELEMENT_ATTRIBUTES_##kind)); \
    typedef ctype value_##NAME;
#include "tensor/dtypes.def"
#undef DTYPE

#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) \
    typedef value_##accumulation compute_##NAME;
#include "tensor/dtypes.def"
#undef DTYPE

/* Dtypes that are computed as they lie in memory. */
#define ELEMENT_PLAIN(NAME)                                                \
    static inline compute_##NAME element_load_##NAME(value_##NAME element) \
    {                                                                      \
        return element;                                                    \
    }                                                                      \
    static inline value_##NAME element_store_##NAME(compute_##NAME value)  \
    {                                                                      \
        return value;                                                      \
    }
ELEMENT_PLAIN(F64)
ELEMENT_PLAIN(F32)
ELEMENT_PLAIN(I8)
ELEMENT_PLAIN(I16)
ELEMENT_PLAIN(I32)
ELEMENT_PLAIN(I64)
ELEMENT_PLAIN(U8)
ELEMENT_PLAIN(U16)
ELEMENT_PLAIN(U32)
ELEMENT_PLAIN(U64)
ELEMENT_PLAIN(C64)
ELEMENT_PLAIN(C128)
#undef ELEMENT_PLAIN

static inline float element_load_F16(uint16_t element)
{
    return half_f16_to_f32(element);
}

static inline uint16_t element_store_F16(float value)
{
    return half_f32_to_f16(value);
}

static inline float element_load_BF16(uint16_t element)
{
    return half_bf16_to_f32(element);
}

static inline uint16_t element_store_BF16(float value)
{
    return half_f32_to_bf16(value);
}

static inline float element_load_F8_E4M3FN(uint8_t element)
{
    return half_f8_e4m3fn_to_f32(element);
}

static inline float element_load_F8_E5M2(uint8_t element)
{
    return half_f8_e5m2_to_f32(element);
}

static inline uint8_t element_load_BOOL(uint8_t element)
{
    return element != 0;
}

static inline uint8_t element_store_BOOL(uint8_t value)
{
    return value;
}

#endif
