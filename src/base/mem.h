/* SPDX-License-Identifier: MIT */
/*
 * All host memory of the library. Everything goes through the one table that shoal_allocator_set installs,
 * which is also where the tests make the k-th allocation fail.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/status.h"

/* Bulk data starts at multiples of this: a cache line, and the widest vector register. */
#define MEM_DATA_ALIGNMENT 64

/* NULL on failure, with the thread's error text saying how much was wanted. Contents undefined. */
void *mem_alloc(size_t bytes);
void *mem_alloc_aligned(size_t bytes, size_t alignment);

/* For memory that is written from its beginning to its end: from this size on it is made of large pages where there
   are any, because half of the time to fill it would be page faults otherwise. */
#define MEM_LARGE_BYTES ((size_t)1 << 21)
void *mem_alloc_large(size_t bytes);

/* Whether freed memory may be kept and used again: not under the address sanitizer, which could not see then who
   uses it after its end. */
#if defined(__SANITIZE_ADDRESS__)
#define MEM_KEEPS_FREED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MEM_KEEPS_FREED 0
#endif
#endif
#ifndef MEM_KEEPS_FREED
#define MEM_KEEPS_FREED 1
#endif

/*
 * Allocates blocks that are carved up and freed at once, such as those of a graph, at multiples of MEM_DATA_ALIGNMENT.
 * Freed blocks whose size is a power of two from 64 KiB to MEM_LARGE_BYTES are kept for the next caller that wants the
 * same size: up to MEM_SPARE_BYTES in the whole process. None are kept where the program has set its own allocator, or
 * under a sanitizer that looks for uses of freed memory.
 */
#define MEM_SPARE_BYTES ((size_t)1 << 23)
void *mem_alloc_block(size_t bytes);
/* `bytes` as it was allocated. NULL is allowed. */
void mem_free_block(void *block, size_t bytes);
/* For tests: how much is kept now. */
size_t mem_spare_bytes(void);

/* count * size bytes, zeroed; a product that overflows fails. */
void *mem_alloc_zeroed(size_t count, size_t size);

/* A copy of a string. */
char *mem_copy_string(const char *string);

/* Makes room for `needed` elements in an array that grows by doubling. On failure nothing changes. */
shoal_status mem_grow(void **array, size_t *capacity, size_t needed, size_t element_bytes);

/* NULL is allowed. */
void mem_free(void *memory);

/* product = a * b; false when it does not fit. */
bool mem_multiply(size_t a, size_t b, size_t *product);

#endif
