/* SPDX-License-Identifier: MIT */
/*
 * Vectors of 1, 2, 4, 8 or 16 bytes between memory of the device and registers. What is shorter than a word lies in the
 * low bits of x; words that are not loaded are 0. Addresses are multiples of the size, which is a constant where speed
 * counts.
 *
 * Loads of several vectors that come before the first store are in flight together. Stores of 8 bytes or more do not
 * stay in the cache: that leaves it to what is read again.
 *
 * vector_get and vector_put pass a vector by value, with members instead of an array, so that it stays in registers:
 * clang optimizes a function that writes through a pointer before it inlines it, and then may choose between places in
 * memory. vector_load and vector_store take arrays, for code without branches around them.
 */
#ifndef CUDA_KERNELS_VECTOR_H
#define CUDA_KERNELS_VECTOR_H

#include "cuda/kernels/target.h"

#define VECTOR_BYTES 16
#define VECTOR_WORDS 4

struct vector {
    uint32_t x;
    uint32_t y;
    uint32_t z;
    uint32_t w;
};

/* What a kernel is compiled for: so many threads in each of its blocks, so that `n_blocks` of them fit into a
   multiprocessor. Stands before CUDA_KERNEL. */
#ifdef __CUDA__
#define CUDA_KERNEL_BOUNDS(name, type, n_threads, n_blocks) \
    extern "C" __attribute__((global, launch_bounds(n_threads, n_blocks))) void name(const type a);
#else
#define CUDA_KERNEL_BOUNDS(name, type, n_threads, n_blocks)
#endif

#ifdef __CUDA__

DEVICE_FUNCTION struct vector vector_get(uint64_t address, uint32_t bytes)
{
    uint32_t x = 0;
    uint32_t y = 0;
    uint32_t z = 0;
    uint32_t w = 0;
    switch (bytes) {
    case 1:
        asm volatile("ld.global.u8 %0, [%1];" : "=r"(x) : "l"(address));
        break;
    case 2:
        asm volatile("ld.global.u16 %0, [%1];" : "=r"(x) : "l"(address));
        break;
    case 4:
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(x) : "l"(address));
        break;
    case 8:
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "l"(address));
        break;
    default:
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                     : "l"(address));
        break;
    }
    struct vector loaded = {x, y, z, w};
    return loaded;
}

DEVICE_FUNCTION void vector_put(uint64_t address, struct vector value, uint32_t bytes)
{
    uint32_t x = value.x;
    uint32_t y = value.y;
    uint32_t z = value.z;
    uint32_t w = value.w;
    switch (bytes) {
    case 1:
        asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "r"(x) : "memory");
        break;
    case 2:
        asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "r"(x) : "memory");
        break;
    case 4:
        asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(x) : "memory");
        break;
    case 8:
        asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(x), "r"(y) : "memory");
        break;
    default:
        asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(x), "r"(y), "r"(z),
                     "r"(w)
                     : "memory");
        break;
    }
}

#else

/* GPUs refuse an address that is not aligned; so does this. */
DEVICE_FUNCTION void *vector_place(uint64_t address, uint32_t bytes)
{
    if (address % bytes != 0) {
        __builtin_trap();
    }
    return DEVICE_POINTER(void, address);
}

DEVICE_FUNCTION struct vector vector_get(uint64_t address, uint32_t bytes)
{
    struct vector loaded = {0, 0, 0, 0};
    memcpy(&loaded, vector_place(address, bytes), bytes);
    return loaded;
}

DEVICE_FUNCTION void vector_put(uint64_t address, struct vector value, uint32_t bytes)
{
    memcpy(vector_place(address, bytes), &value, bytes);
}

#endif

/* Of `words`, as many are set as the bytes fill. */
DEVICE_FUNCTION void vector_load(uint32_t *words, uint64_t address, uint32_t bytes)
{
    struct vector loaded = vector_get(address, bytes);
    words[0] = loaded.x;
    if (bytes > 4) {
        words[1] = loaded.y;
    }
    if (bytes > 8) {
        words[2] = loaded.z;
        words[3] = loaded.w;
    }
}

DEVICE_FUNCTION void vector_store(uint64_t address, const uint32_t *words, uint32_t bytes)
{
    struct vector value = {words[0], bytes > 4 ? words[1] : 0, bytes > 8 ? words[2] : 0,
                           bytes > 8 ? words[3] : 0};
    vector_put(address, value, bytes);
}

/* How many elements of 2, 4 or 8 bytes a vector has. A GPU has no instruction for a division. */
DEVICE_FUNCTION uint32_t vector_lanes(uint32_t bytes)
{
    return bytes == 2 ? 8 : bytes == 4 ? 4 : 2;
}

/* n / divisor, by the numbers of struct divisor (cuda/divisor.h): n and the divisor are at most 2^31. */
DEVICE_FUNCTION uint32_t vector_divide(uint32_t n, uint32_t magic, uint32_t shift)
{
    return ((uint32_t)(((uint64_t)n * magic) >> 32) + n) >> shift;
}

#endif
