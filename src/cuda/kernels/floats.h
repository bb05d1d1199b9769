/* SPDX-License-Identifier: MIT */
/* Up to four numbers of f32, f16 or bf16 in a vector. Arithmetic is that of f32. Those of a vector that has fewer
   are 0. */
#ifndef CUDA_KERNELS_FLOATS_H
#define CUDA_KERNELS_FLOATS_H

#include "cuda/kernels/halves.h"
#include "cuda/kernels/target.h"
#include "cuda/kernels/vector.h"

CUDA_SHARED_CODE_BEGIN
#include "shoal/dtype.h"
CUDA_SHARED_CODE_END

struct floats {
    float x;
    float y;
    float z;
    float w;
};

DEVICE_FUNCTION struct floats floats_from_f32(struct vector value)
{
    struct floats made = {half_f32_from_bits(value.x), half_f32_from_bits(value.y),
                          half_f32_from_bits(value.z), half_f32_from_bits(value.w)};
    return made;
}

DEVICE_FUNCTION struct floats floats_from_bf16(struct vector value)
{
    struct floats made = {half_bf16_to_f32((uint16_t)value.x), half_bf16_to_f32((uint16_t)(value.x >> 16)),
                          half_bf16_to_f32((uint16_t)value.y), half_bf16_to_f32((uint16_t)(value.y >> 16))};
    return made;
}

DEVICE_FUNCTION struct floats floats_from_f16(struct vector value)
{
    struct floats made = {halves_from_f16(value.x & 0xffff), halves_from_f16(value.x >> 16),
                          halves_from_f16(value.y & 0xffff), halves_from_f16(value.y >> 16)};
    return made;
}

DEVICE_FUNCTION struct vector floats_to_f32(struct floats values)
{
    struct vector made = {half_f32_bits(values.x), half_f32_bits(values.y), half_f32_bits(values.z),
                          half_f32_bits(values.w)};
    return made;
}

DEVICE_FUNCTION struct vector floats_to_bf16(struct floats values)
{
    struct vector made = {halves_to_bf16(values.x, values.y), halves_to_bf16(values.z, values.w), 0, 0};
    return made;
}

DEVICE_FUNCTION struct vector floats_to_f16(struct floats values)
{
    struct vector made = {halves_to_f16(values.x, values.y), halves_to_f16(values.z, values.w), 0, 0};
    return made;
}

DEVICE_FUNCTION struct floats floats_read(struct vector value, uint32_t dtype)
{
    return dtype == SHOAL_F32    ? floats_from_f32(value)
           : dtype == SHOAL_BF16 ? floats_from_bf16(value)
                                 : floats_from_f16(value);
}

DEVICE_FUNCTION struct vector floats_write(struct floats values, uint32_t dtype)
{
    return dtype == SHOAL_F32    ? floats_to_f32(values)
           : dtype == SHOAL_BF16 ? floats_to_bf16(values)
                                 : floats_to_f16(values);
}

/* Of one number. */
DEVICE_FUNCTION uint32_t floats_bytes(uint32_t dtype)
{
    return dtype == SHOAL_F32 ? 4 : 2;
}

/* n is a constant; each branch has a constant size. */
DEVICE_FUNCTION struct vector floats_load(uint64_t address, uint32_t n, uint32_t dtype)
{
    return dtype == SHOAL_F32 ? vector_get(address, 4 * n) : vector_get(address, 2 * n);
}

DEVICE_FUNCTION void floats_store(uint64_t address, struct floats values, uint32_t n, uint32_t dtype)
{
    struct vector made = floats_write(values, dtype);
    if (dtype == SHOAL_F32) {
        vector_put(address, made, 4 * n);
    } else {
        vector_put(address, made, 2 * n);
    }
}

#endif
