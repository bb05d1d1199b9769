/* SPDX-License-Identifier: MIT */
/*
 * All host memory of the library, through one table of two functions.
 *
 * The table is chosen once: by shoal_allocator_set, or by the first allocation, whichever comes first; the
 * pointer `table` never changes after that, so every block is released by the table that allocated it.
 */
#include "base/mem.h"

#include <assert.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/os/os.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "shoal/memory.h"

/* The smallest array mem_grow makes, in elements. */
#define GROW_FIRST_COUNT 8

static void *allocate_default(void *context, size_t bytes, size_t alignment)
{
    if (alignment <= alignof(max_align_t)) {
        return malloc(bytes);
    }
    /* C11 wants a whole number of alignments; bytes <= PTRDIFF_MAX keeps this from overflowing. */
    return aligned_alloc(alignment, (bytes + alignment - 1) & ~(alignment - 1));
}

static void release_default(void *context, void *memory)
{
    free(memory);
}

static const shoal_allocator default_table = {
    .struct_size = sizeof(shoal_allocator),
    .allocate = allocate_default,
    .release = release_default,
};
static shoal_allocator custom_table;
static atomic_bool is_custom_claimed;

/* NULL until it is chosen. */
static _Atomic(const shoal_allocator *) table;

static const shoal_allocator *choose_table(void)
{
    /* Acquire: pairs with the release in shoal_allocator_set, which wrote custom_table. */
    const shoal_allocator *chosen = atomic_load_explicit(&table, memory_order_acquire);
    if (chosen) {
        return chosen;
    }
    const shoal_allocator *expected = NULL;
    /* Acquire on failure: pairs with the same release. */
    if (atomic_compare_exchange_strong_explicit(&table, &expected, &default_table, memory_order_acq_rel,
                                                memory_order_acquire)) {
        return &default_table;
    }
    return expected;
}

shoal_status shoal_allocator_set(const shoal_allocator *allocator)
{
    shoal_allocator given;
    error_clear();
    TRY(struct_size_read("allocator", allocator, sizeof given, &given, sizeof given));
    if (!given.allocate || !given.release) {
        return error_set(SHOAL_ERR_INVALID, "allocator: %s is NULL", given.allocate ? "release" : "allocate");
    }
    /* The claim keeps everybody but the first caller from writing custom_table, which may be in use. */
    if (atomic_exchange(&is_custom_claimed, true)) {
        return error_set(SHOAL_ERR_STATE, "the allocator can be set only once");
    }
    custom_table = given;
    const shoal_allocator *expected = NULL;
    /* Release: pairs with the acquire in choose_table. */
    if (!atomic_compare_exchange_strong_explicit(&table, &expected, &custom_table, memory_order_acq_rel,
                                                 memory_order_acquire)) {
        return error_set(SHOAL_ERR_STATE, "the allocator must be set before the first allocation");
    }
    return SHOAL_OK;
}

void *mem_alloc_aligned(size_t bytes, size_t alignment)
{
    assert(alignment != 0 && (alignment & (alignment - 1)) == 0 && alignment <= MEM_LARGE_BYTES);
    const shoal_allocator *chosen = choose_table();
    void *memory = NULL;
    /* Half of the address space is the most that pointer differences can measure. */
    if (bytes <= PTRDIFF_MAX) {
        memory = chosen->allocate(chosen->context, bytes ? bytes : 1, alignment);
    }
    if (!memory) {
        (void)error_set(SHOAL_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
    }
    return memory;
}

void *mem_alloc(size_t bytes)
{
    return mem_alloc_aligned(bytes, alignof(max_align_t));
}

void *mem_alloc_large(size_t bytes)
{
    if (bytes < MEM_LARGE_BYTES) {
        return mem_alloc(bytes);
    }
    void *memory = mem_alloc_aligned(bytes, MEM_LARGE_BYTES);
    if (memory) {
        os_prefer_large_pages(memory, bytes & ~(MEM_LARGE_BYTES - 1));
    }
    return memory;
}

/* Blocks that are kept ------------------------------------------------------------------------------------ */

enum {
    FIRST_SPARE_BITS = 16,
    LAST_SPARE_BITS = 21, /* MEM_LARGE_BYTES */
    N_SPARE_SIZES = LAST_SPARE_BITS - FIRST_SPARE_BITS + 1
};

/* In the beginning of a block that is kept. */
struct spare {
    struct spare *next;
};

/* Nobody waits for the lock: whoever does not get it allocates and frees. So a child of fork is safe, too. */
static pthread_mutex_t spares_lock = PTHREAD_MUTEX_INITIALIZER;
static struct spare *spares[N_SPARE_SIZES]; /* by power of two; this and the next are under the lock */
static size_t n_spare_bytes;

/* The list for blocks of that size; NULL if they are not kept. */
static struct spare **find_spares(size_t bytes)
{
    bool is_kept = MEM_KEEPS_FREED && bytes >= (size_t)1 << FIRST_SPARE_BITS && bytes <= MEM_LARGE_BYTES &&
                   (bytes & (bytes - 1)) == 0 && choose_table() == &default_table;
    return is_kept ? &spares[__builtin_ctzl(bytes) - FIRST_SPARE_BITS] : NULL;
}

void *mem_alloc_block(size_t bytes)
{
    struct spare **list = find_spares(bytes);
    struct spare *spare = NULL;
    if (list && pthread_mutex_trylock(&spares_lock) == 0) {
        spare = *list;
        if (spare) {
            *list = spare->next;
            n_spare_bytes -= bytes;
        }
        (void)pthread_mutex_unlock(&spares_lock);
    }
    if (spare) {
        return spare;
    }
    return bytes < MEM_LARGE_BYTES ? mem_alloc_aligned(bytes, MEM_DATA_ALIGNMENT) : mem_alloc_large(bytes);
}

void mem_free_block(void *block, size_t bytes)
{
    struct spare **list = block ? find_spares(bytes) : NULL;
    bool is_kept = false;
    if (list && pthread_mutex_trylock(&spares_lock) == 0) {
        is_kept = bytes <= MEM_SPARE_BYTES - n_spare_bytes;
        if (is_kept) {
            struct spare *spare = block;
            spare->next = *list;
            *list = spare;
            n_spare_bytes += bytes;
        }
        (void)pthread_mutex_unlock(&spares_lock);
    }
    if (!is_kept) {
        mem_free(block);
    }
}

size_t mem_spare_bytes(void)
{
    (void)pthread_mutex_lock(&spares_lock);
    size_t bytes = n_spare_bytes;
    (void)pthread_mutex_unlock(&spares_lock);
    return bytes;
}

void *mem_alloc_zeroed(size_t count, size_t size)
{
    size_t bytes;
    if (!mem_multiply(count, size, &bytes)) {
        (void)error_set(SHOAL_ERR_NO_MEMORY, "no memory for %zu elements of %zu bytes", count, size);
        return NULL;
    }
    void *memory = mem_alloc_large(bytes);
    if (memory) {
        memset(memory, 0, bytes);
    }
    return memory;
}

char *mem_copy_string(const char *string)
{
    size_t bytes = strlen(string) + 1;
    char *copy = mem_alloc(bytes);
    if (copy) {
        memcpy(copy, string, bytes);
    }
    return copy;
}

shoal_status mem_grow(void **array, size_t *capacity, size_t needed, size_t element_bytes)
{
    if (needed <= *capacity) {
        return SHOAL_OK;
    }
    size_t count = *capacity > SIZE_MAX / 2 ? needed : *capacity * 2;
    count = count < GROW_FIRST_COUNT ? GROW_FIRST_COUNT : count;
    count = count < needed ? needed : count;
    size_t bytes;
    if (!mem_multiply(count, element_bytes, &bytes)) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for %zu elements of %zu bytes", count,
                         element_bytes);
    }
    void *grown = mem_alloc(bytes);
    if (!grown) {
        return SHOAL_ERR_NO_MEMORY;
    }
    if (*capacity > 0) {
        memcpy(grown, *array, *capacity * element_bytes);
    }
    mem_free(*array);
    *array = grown;
    *capacity = count;
    return SHOAL_OK;
}

void mem_free(void *memory)
{
    if (memory) {
        const shoal_allocator *chosen = choose_table();
        chosen->release(chosen->context, memory);
    }
}

bool mem_multiply(size_t a, size_t b, size_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}
