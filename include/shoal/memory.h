/* SPDX-License-Identifier: MIT */
/*
 * Where the library's host memory comes from. An application that has its own allocator installs it once,
 * before any other call; all host memory of the library then goes through it.
 *
 * Ownership: the table is copied; its context must outlive the process's last call.
 * Threads: the two functions are called from any thread, several at a time.
 * Errors: SHOAL_ERR_STATE when something was allocated already, SHOAL_ERR_INVALID for a missing function.
 */
#ifndef SHOAL_MEMORY_H
#define SHOAL_MEMORY_H

#include <stddef.h>

#include "shoal/api.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_allocator {
    size_t struct_size; /* sizeof(shoal_allocator) */
    void *context;
    /* At least `bytes` (never 0) at a multiple of `alignment` (a power of two), or NULL. */
    void *(*allocate)(void *context, size_t bytes, size_t alignment);
    /* `memory` came from allocate and is never NULL. */
    void (*release)(void *context, void *memory);
} shoal_allocator;
#define SHOAL_ALLOCATOR_INIT SHOAL_SIZED(shoal_allocator)

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_allocator_set(const shoal_allocator *allocator);

SHOAL_END_DECLS

#endif
