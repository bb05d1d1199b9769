/* SPDX-License-Identifier: MIT */
/*
 * The allocator of the library. By default host memory comes from malloc and aligned_alloc. A program that has its own
 * allocator installs it here, once, before any other call of the library. (Memory that ranks share is mapped and does
 * not come from here.)
 *
 * Ownership: the struct is copied. Its context must live until the process ends.
 * Threads: the library calls both functions from any thread, several at a time.
 * Errors: status and text. If `allocate` returns NULL, the call that needed memory fails with SHOAL_ERR_NO_MEMORY.
 */
#ifndef SHOAL_MEMORY_H
#define SHOAL_MEMORY_H

#include <stddef.h>

#include "shoal/api.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_allocator {
    size_t struct_size; /* sizeof(shoal_allocator) */
    void *context;      /* given to both functions */
    /* Returns at least `bytes` (never 0) at a multiple of `alignment` (a power of two, at most 2 MiB), or NULL. */
    void *(*allocate)(void *context, size_t bytes, size_t alignment);
    /* Frees what `allocate` returned; `memory` is never NULL. */
    void (*release)(void *context, void *memory);
} shoal_allocator;
#define SHOAL_ALLOCATOR_INIT SHOAL_SIZED(shoal_allocator)

/* Makes the library take all its host memory from `allocator`. SHOAL_ERR_STATE: the library has allocated something
   already, or an allocator was set before. SHOAL_ERR_INVALID: a function is NULL. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_allocator_set(const shoal_allocator *allocator);

SHOAL_END_DECLS

#endif
