/* SPDX-License-Identifier: MIT */
/*
 * Pinned memory of the host. Copies read and write it when they are executed, so it must not be freed before: then the
 * device fails, and the memory stays for the copies.
 */
#include "fakecuda/fake.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES 4096
#define FLAGS_MOST 7 /* portable, mapped, write-combined */

struct fake_pinned {
    struct fake_pinned *next;
    char *memory;
    size_t bytes;
    _Atomic uint32_t n_uses; /* by copies that were not executed yet */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_pinned *first;
static struct fake_pinned *lost; /* freed too early */

cuda_result fake_pinned_use(const void *data, size_t bytes, struct fake_pinned **pinned_out)
{
    uintptr_t begin = (uintptr_t)data;
    cuda_result result = CUDA_OK;
    *pinned_out = NULL;
    (void)pthread_mutex_lock(&lock);
    for (struct fake_pinned *pinned = first; pinned; pinned = pinned->next) {
        uintptr_t memory = (uintptr_t)pinned->memory;
        if (begin >= memory && bytes <= pinned->bytes && begin - memory <= pinned->bytes - bytes) {
            (void)atomic_fetch_add_explicit(&pinned->n_uses, 1, memory_order_relaxed);
            *pinned_out = pinned;
        } else if (begin < memory + pinned->bytes && memory < begin + bytes) {
            result = CUDA_INVALID_VALUE; /* no copy is of both kinds of memory */
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return result;
}

/* Relaxed: that a copy is done is told by its stream only. */
void fake_pinned_unuse(struct fake_pinned *pinned)
{
    if (pinned) {
        (void)atomic_fetch_sub_explicit(&pinned->n_uses, 1, memory_order_relaxed);
    }
}

cuda_result cuMemHostAlloc(void **memory_out, size_t bytes, unsigned flags)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    if (!memory_out || bytes == 0 || flags > FLAGS_MOST) {
        return CUDA_INVALID_VALUE;
    }
    size_t rounded = bytes < SIZE_MAX / 2 ? (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES : SIZE_MAX / 2;
    struct fake_pinned *pinned = fake_has_memory() ? malloc(sizeof *pinned) : NULL;
    char *memory = pinned && rounded < SIZE_MAX / 2 ? aligned_alloc(PAGE_BYTES, rounded) : NULL;
    if (!memory) {
        free(pinned);
        return CUDA_OUT_OF_MEMORY;
    }
    memset(memory, FAKE_POISON, rounded);
    *pinned = (struct fake_pinned){.memory = memory, .bytes = bytes};
    (void)pthread_mutex_lock(&lock);
    pinned->next = first;
    first = pinned;
    (void)pthread_mutex_unlock(&lock);
    *memory_out = memory;
    return CUDA_OK;
}

/* Takes a block off the list; NULL if none begins there. */
static struct fake_pinned *take(const void *memory, bool *is_used_out)
{
    (void)pthread_mutex_lock(&lock);
    struct fake_pinned **at = &first;
    while (*at && (*at)->memory != memory) {
        at = &(*at)->next;
    }
    struct fake_pinned *pinned = *at;
    if (pinned) {
        *at = pinned->next;
    }
    *is_used_out = pinned && atomic_load_explicit(&pinned->n_uses, memory_order_relaxed) > 0;
    if (*is_used_out) {
        pinned->next = lost;
        lost = pinned;
    }
    (void)pthread_mutex_unlock(&lock);
    return pinned;
}

cuda_result cuMemFreeHost(void *memory)
{
    cuda_result result = fake_begin_query();
    if (!fake_may_free(result)) {
        return result;
    }
    bool is_used;
    struct fake_pinned *pinned = take(memory, &is_used);
    if (!pinned) {
        return CUDA_INVALID_VALUE;
    }
    if (is_used) {
        fake_fail(CUDA_ILLEGAL_ADDRESS, "pinned memory is freed while a copy uses it");
        return fake_failure();
    }
    free(pinned->memory);
    free(pinned);
    return result;
}
