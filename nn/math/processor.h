/* SPDX-License-Identifier: MIT */
/* What the processor can do, whatever libraries make of it. */
#ifndef NN_MATH_PROCESSOR_H
#define NN_MATH_PROCESSOR_H

#include <stdbool.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Vectors of eight floats, fused multiply-add, and conversions of f16, which clang 14 cannot be asked for by name. */
static inline bool nn_processor_has_avx2(void)
{
#if defined(__x86_64__)
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
#else
    return false;
#endif
}

/* The vectors of a server since Skylake: AVX-512 with bytes, words and shorter vectors. */
static inline bool nn_processor_has_avx512(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

/* Products of bf16 in AVX-512. */
static inline bool nn_processor_has_avx512_bf16(void)
{
#if defined(__x86_64__)
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    return nn_processor_has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 5)) != 0;
#else
    return false;
#endif
}

/* Tiles, and products of bf16 on them. The system may still refuse them to a process. */
static inline bool nn_processor_has_amx(void)
{
#if defined(__x86_64__)
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    const unsigned tiles = 1u << 24;
    const unsigned bf16 = 1u << 22;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & tiles) != 0 && (d & bf16) != 0;
#else
    return false;
#endif
}

#endif
