/* SPDX-License-Identifier: MIT */
/* Elements of any dtype, at any address. */
#ifndef CUDA_KERNELS_ANY_H
#define CUDA_KERNELS_ANY_H

#include "cuda/kernels/target.h"
#include "cuda/kernels/vector.h"

CUDA_SHARED_CODE_BEGIN
#include "kernel/convert.h"
CUDA_SHARED_CODE_END

/* The bytes of a fill, which is repeated, from byte `first` on. A unit that is shorter than a word lies within one. */
DEVICE_FUNCTION struct vector any_fill(const uint32_t *fill, uint32_t first)
{
    uint32_t word = first / 4;
    struct vector found = {fill[word % 4] >> (8 * (first % 4)), fill[(word + 1) % 4], fill[(word + 2) % 4],
                           fill[(word + 3) % 4]};
    return found;
}

DEVICE_FUNCTION uint32_t any_bytes(uint32_t dtype)
{
    switch ((shoal_dtype)dtype) {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) \
    case SHOAL_##NAME:                                                 \
        return (uint32_t)sizeof(value_##NAME);
#include "tensor/dtypes.def"
#undef DTYPE
    }
    return 1;
}

/* An element that is not aligned is moved byte by byte. */
DEVICE_FUNCTION struct convert_element any_load(uint64_t address, uint32_t bytes)
{
    uint64_t low = 0;
    uint64_t high = 0;
    if ((address & (bytes - 1)) == 0) { /* a power of two; a division would take longer than the rest */
        struct vector value = vector_get(address, bytes);
        low = value.x | (uint64_t)value.y << 32;
        high = value.z | (uint64_t)value.w << 32;
    } else {
        NOT_UNROLLED
        for (uint32_t i = bytes; i > 0; i--) {
            high = high << 8 | low >> 56;
            low = low << 8 | vector_get(address + i - 1, 1).x;
        }
    }
    struct convert_element element = {{low, high}};
    return element;
}

DEVICE_FUNCTION void any_store(uint64_t address, struct convert_element element, uint32_t bytes)
{
    uint64_t low = element.words[0];
    uint64_t high = element.words[1];
    if ((address & (bytes - 1)) == 0) { /* a power of two; a division would take longer than the rest */
        struct vector value = {(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)};
        vector_put(address, value, bytes);
        return;
    }
    NOT_UNROLLED
    for (uint32_t i = 0; i < bytes; i++) {
        struct vector byte = {(uint32_t)low, 0, 0, 0};
        vector_put(address + i, byte, 1);
        low = low >> 8 | high << 56;
        high >>= 8;
    }
}

#endif
