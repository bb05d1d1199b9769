/* SPDX-License-Identifier: MIT */
/*
 * Elements and vectors of elements in registers. An element is held as its bits, in four words, so that a kernel
 * loads and stores all dtypes in one place and a switch over dtypes is left to what is computed in between. Lanes are
 * the numbers of a vector of 16 bytes, in f32: 4 elements of f32, or 8 of f16 or bf16.
 */
#ifndef CUDA_KERNELS_NUMBERS_H
#define CUDA_KERNELS_NUMBERS_H

#include "cuda/kernels/halves.h"
#include "cuda/kernels/vector.h"

CUDA_SHARED_CODE_BEGIN
#include "kernel/element.h"
#include "shoal/dtype.h"
CUDA_SHARED_CODE_END

#define LANES_MOST 8 /* of f16 and bf16 */

struct number_bits {
    uint32_t words[VECTOR_WORDS];
};

/* Elements at any address: `is_aligned` says that the address is a multiple of the size. */
DEVICE_FUNCTION struct number_bits number_load(uint64_t address, uint32_t bytes, bool is_aligned)
{
    struct number_bits bits = {{0, 0, 0, 0}};
    if (is_aligned) {
        vector_load(bits.words, address, bytes);
        return bits;
    }
    uint64_t low = 0;
    uint64_t high = 0;
    NOT_UNROLLED
    for (uint32_t i = 0; i < bytes; i++) {
        uint32_t byte;
        vector_load(&byte, address + i, 1);
        if (i < sizeof(low)) {
            low |= (uint64_t)byte << (8 * i);
        } else {
            high |= (uint64_t)byte << (8 * i - 64);
        }
    }
    bits.words[0] = (uint32_t)low;
    bits.words[1] = (uint32_t)(low >> 32);
    bits.words[2] = (uint32_t)high;
    bits.words[3] = (uint32_t)(high >> 32);
    return bits;
}

DEVICE_FUNCTION void number_store(uint64_t address, struct number_bits bits, uint32_t bytes, bool is_aligned)
{
    if (is_aligned) {
        vector_store(address, bits.words, bytes);
        return;
    }
    uint64_t low = bits.words[0] | (uint64_t)bits.words[1] << 32;
    uint64_t high = bits.words[2] | (uint64_t)bits.words[3] << 32;
    NOT_UNROLLED
    for (uint32_t i = 0; i < bytes; i++) {
        uint32_t byte = (uint32_t)(i < sizeof(low) ? low >> (8 * i) : high >> (8 * i - 64)) & 0xff;
        vector_store(address + i, &byte, 1);
    }
}

/* number_value_F16: the element of a dtype that has these bits; number_compute_F16: a value of the type that is
   computed in. number_bits_F16: the bits of an element. */
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits)            \
    DEVICE_FUNCTION value_##NAME number_value_##NAME(struct number_bits bits)     \
    {                                                                             \
        value_##NAME value;                                                       \
        memcpy(&value, bits.words, sizeof(value));                                \
        return value;                                                             \
    }                                                                             \
    DEVICE_FUNCTION compute_##NAME number_compute_##NAME(struct number_bits bits) \
    {                                                                             \
        compute_##NAME value;                                                     \
        memcpy(&value, bits.words, sizeof(value));                                \
        return value;                                                             \
    }                                                                             \
    DEVICE_FUNCTION struct number_bits number_bits_##NAME(value_##NAME value) {   \
        struct number_bits bits = {{0, 0, 0, 0}};                                 \
        memcpy(bits.words, &value, sizeof(value));                                \
        return bits;                                                              \
    }
#include "tensor/dtypes.def"
#undef DTYPE

/* f16 and bf16 ------------------------------------------------------------------------------------------- */

/* One element of f32, f16 or bf16. */
DEVICE_FUNCTION float number_widen(uint32_t dtype, struct number_bits bits)
{
    switch (dtype) {
    case SHOAL_F16:
        return halves_from_f16(bits.words[0] & 0xffff);
    case SHOAL_BF16:
        return half_f32_from_bits(bits.words[0] << 16);
    default:
        return half_f32_from_bits(bits.words[0]);
    }
}

DEVICE_FUNCTION struct number_bits number_narrow(uint32_t dtype, float value)
{
    struct number_bits bits = {{0, 0, 0, 0}};
    bits.words[0] = dtype == SHOAL_F16    ? halves_to_f16(value, 0.0f)
                    : dtype == SHOAL_BF16 ? halves_to_bf16(value, 0.0f)
                                          : half_f32_bits(value);
    return bits;
}

/* Lanes -------------------------------------------------------------------------------------------------- */

/*
 * lanes_widen_F16 and so on: the numbers of a vector, and back. lanes_widen, lanes_narrow: of a dtype that is known
 * when the kernel runs. All counts are constants: clang optimizes a function before it inlines it, and arrays that
 * are indexed by what is not known then do not get into registers.
 */
DEVICE_FUNCTION void lanes_widen_F32(const uint32_t *words, float *lanes)
{
    UNROLLED
    for (int i = 0; i < VECTOR_WORDS; i++) {
        lanes[i] = half_f32_from_bits(words[i]);
    }
}

DEVICE_FUNCTION void lanes_narrow_F32(const float *lanes, uint32_t *words)
{
    UNROLLED
    for (int i = 0; i < VECTOR_WORDS; i++) {
        words[i] = half_f32_bits(lanes[i]);
    }
}

#define LANES_HALF(NAME, low, high, halves)                                       \
    DEVICE_FUNCTION void lanes_widen_##NAME(const uint32_t *words, float *lanes)  \
    {                                                                             \
        UNROLLED                                                                  \
        for (int i = 0; i < VECTOR_WORDS; i++) {                                  \
            lanes[2 * i] = low(words[i]);                                         \
            lanes[2 * i + 1] = high(words[i]);                                    \
        }                                                                         \
    }                                                                             \
    DEVICE_FUNCTION void lanes_narrow_##NAME(const float *lanes, uint32_t *words) \
    {                                                                             \
        UNROLLED                                                                  \
        for (int i = 0; i < VECTOR_WORDS; i++) {                                  \
            words[i] = halves(lanes[2 * i], lanes[2 * i + 1]);                    \
        }                                                                         \
    }
#define LOW_F16(word) halves_from_f16((word)&0xffff)
#define HIGH_F16(word) halves_from_f16((word) >> 16)
#define LOW_BF16(word) half_f32_from_bits((word) << 16)
#define HIGH_BF16(word) half_f32_from_bits((word)&0xffff0000u)
LANES_HALF(F16, LOW_F16, HIGH_F16, halves_to_f16)
LANES_HALF(BF16, LOW_BF16, HIGH_BF16, halves_to_bf16)

DEVICE_FUNCTION void lanes_widen(uint32_t dtype, const uint32_t *words, float *lanes)
{
    switch (dtype) {
    case SHOAL_F16:
        lanes_widen_F16(words, lanes);
        break;
    case SHOAL_BF16:
        lanes_widen_BF16(words, lanes);
        break;
    default:
        lanes_widen_F32(words, lanes);
        break;
    }
}

DEVICE_FUNCTION void lanes_narrow(uint32_t dtype, const float *lanes, uint32_t *words)
{
    switch (dtype) {
    case SHOAL_F16:
        lanes_narrow_F16(lanes, words);
        break;
    case SHOAL_BF16:
        lanes_narrow_BF16(lanes, words);
        break;
    default:
        lanes_narrow_F32(lanes, words);
        break;
    }
}

DEVICE_FUNCTION double lanes_f64(const uint32_t *words)
{
    return half_f64_from_bits(words[0] | (uint64_t)words[1] << 32);
}

DEVICE_FUNCTION void lanes_set_f64(uint32_t *words, double value)
{
    uint64_t bits = half_f64_bits(value);
    words[0] = (uint32_t)bits;
    words[1] = (uint32_t)(bits >> 32);
}

#endif
