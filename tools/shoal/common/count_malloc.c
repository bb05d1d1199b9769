/* SPDX-License-Identifier: MIT */
#include "common/count_malloc.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#define COUNT_HAS_FEATURE(name) __has_feature(name)
#else
#define COUNT_HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || COUNT_HAS_FEATURE(address_sanitizer) || \
    COUNT_HAS_FEATURE(thread_sanitizer) || !defined(__GLIBC__)
#define COUNT_WORKS 0
#else
#define COUNT_WORKS 1
#endif

/* Relaxed accesses: who begins and ends has waited for the threads whose calls count. */
static _Atomic bool is_counting;
static _Atomic uint64_t n_calls;

bool count_malloc_works(void)
{
    return COUNT_WORKS;
}

void count_malloc_begin(void)
{
    atomic_store_explicit(&n_calls, 0, memory_order_relaxed);
    atomic_store_explicit(&is_counting, true, memory_order_relaxed);
}

uint64_t count_malloc_end(void)
{
    atomic_store_explicit(&is_counting, false, memory_order_relaxed);
    return atomic_load_explicit(&n_calls, memory_order_relaxed);
}

#if COUNT_WORKS

#define EXPORTED __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

void *__libc_malloc(size_t bytes);                     /* NOLINT */
void *__libc_calloc(size_t count, size_t bytes);       /* NOLINT */
void *__libc_realloc(void *memory, size_t bytes);      /* NOLINT */
void *__libc_memalign(size_t alignment, size_t bytes); /* NOLINT */

static bool is_blas(const void *caller)
{
    Dl_info info;
    if (dladdr(caller, &info) == 0 || !info.dli_fname) {
        return false;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    return strstr(slash ? slash : info.dli_fname, "blas") != NULL;
}

static void count(const void *caller)
{
    if (atomic_load_explicit(&is_counting, memory_order_relaxed) && !is_blas(caller)) {
        atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed);
    }
}

EXPORTED void *malloc(size_t bytes)
{
    count(CALLER);
    return __libc_malloc(bytes);
}

EXPORTED void *calloc(size_t n_elements, size_t bytes)
{
    count(CALLER);
    return __libc_calloc(n_elements, bytes);
}

EXPORTED void *realloc(void *memory, size_t bytes)
{
    count(CALLER);
    return __libc_realloc(memory, bytes);
}

EXPORTED void *aligned_alloc(size_t alignment, size_t bytes)
{
    count(CALLER);
    return __libc_memalign(alignment, bytes);
}

EXPORTED void *memalign(size_t alignment, size_t bytes)
{
    count(CALLER);
    return __libc_memalign(alignment, bytes);
}

EXPORTED int posix_memalign(void **memory_out, size_t alignment, size_t bytes)
{
    count(CALLER);
    void *memory = __libc_memalign(alignment, bytes);
    if (!memory) {
        return ENOMEM;
    }
    *memory_out = memory;
    return 0;
}

#endif
