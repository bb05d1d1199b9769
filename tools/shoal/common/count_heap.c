/* SPDX-License-Identifier: MIT */
/* A table of functions for shoal_allocator_set that counts: see count_heap.h. */
#include "common/count_heap.h"

#include "shoal/memory.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* Relaxed accesses: they are read when threads are idle. */
static _Atomic size_t live_bytes;
static _Atomic size_t peak_bytes;
static _Atomic uint64_t n_calls;

static void *allocate(void *context, size_t bytes, size_t alignment)
{
    void *memory = NULL;
    (void)context;
    if (posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes) != 0) {
        return NULL;
    }
    size_t size = malloc_usable_size(memory);
    size_t live = atomic_fetch_add_explicit(&live_bytes, size, memory_order_relaxed) + size;
    size_t peak = atomic_load_explicit(&peak_bytes, memory_order_relaxed);
    while (live > peak && !atomic_compare_exchange_weak_explicit(
                              &peak_bytes, &peak, live, memory_order_relaxed, memory_order_relaxed)) {
    }
    atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed);
    return memory;
}

static void release(void *context, void *memory)
{
    (void)context;
    atomic_fetch_sub_explicit(&live_bytes, malloc_usable_size(memory), memory_order_relaxed);
    free(memory);
}

shoal_status count_heap_begin(void)
{
    static bool has_begun;
    if (has_begun) {
        return SHOAL_OK;
    }
    const shoal_allocator allocator = {
        .struct_size = sizeof(allocator), .allocate = allocate, .release = release};
    shoal_status status = shoal_allocator_set(&allocator);
    has_begun = status == SHOAL_OK;
    return status;
}

uint64_t count_heap_calls(void)
{
    return atomic_load_explicit(&n_calls, memory_order_relaxed);
}

size_t count_heap_live(void)
{
    return atomic_load_explicit(&live_bytes, memory_order_relaxed);
}

size_t count_heap_peak(void)
{
    return atomic_load_explicit(&peak_bytes, memory_order_relaxed);
}

void count_heap_restart(void)
{
    atomic_store_explicit(&peak_bytes, count_heap_live(), memory_order_relaxed);
}
