/* SPDX-License-Identifier: MIT */
/*
 * Pinned memory. The driver takes a long time to make it and to free it, so blocks are kept. A block that a stream still uses
 * has an event behind that use, and is free when the event is done.
 */
#include <pthread.h>
#include <stdbool.h>

#include "base/mem.h"
#include "cuda/driver.h"
#include "cuda/failure.h"
#include "cuda/gpu.h"
#include "cuda/memory.h"
#include "cuda/services.h"
#include "cuda/stream.h"

#define LEAST_BYTES ((size_t)64 << 10)

struct block {
    struct block *next;
    void *memory;
    size_t bytes; /* a power of two */
    void *event;  /* behind the last use; NULL if nothing uses it */
    bool is_taken;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *first;
static uint64_t n_bytes; /* under the lock */

static size_t round_up(size_t bytes)
{
    size_t rounded = LEAST_BYTES;
    while (rounded < bytes) {
        rounded *= 2;
    }
    return rounded;
}

/* Under the lock. What cannot be asked is left alone: the device has failed. */
static bool is_free(struct block *block)
{
    bool is_done = false;
    if (block->is_taken) {
        return false;
    }
    if (block->event && cuda_streams.query(block->event, &is_done) == SHOAL_OK && is_done) {
        cuda_streams.drop(block->event);
        block->event = NULL;
    }
    return !block->event;
}

/* Under the lock. Blocks of twice the size and more are left to those that need them. */
static struct block *find(size_t bytes)
{
    struct block *block = first;
    while (block && (block->bytes != bytes || !is_free(block))) {
        block = block->next;
    }
    return block;
}

static void set_no_memory(size_t bytes)
{
    (void)cuda_services->set_error(SHOAL_ERR_NO_MEMORY, "device %s: no pinned memory for %zu bytes",
                                   cuda_row->name, bytes);
}

static struct block *make(size_t bytes)
{
    struct block *block = mem_alloc(sizeof *block);
    cuda_result result = CUDA_OUT_OF_MEMORY;
    if (!block) {
        set_no_memory(bytes);
        return NULL;
    }
    *block = (struct block){.bytes = bytes, .is_taken = true};
    if (cuda_enter()) {
        result = cuda.cuMemHostAlloc(&block->memory, bytes, CUDA_HOST_PORTABLE);
        if (result != CUDA_OK && result != CUDA_OUT_OF_MEMORY) {
            cuda_fail("cuMemHostAlloc", result, NULL);
        }
        cuda_leave();
    }
    if (result != CUDA_OK) {
        mem_free(block);
        if (cuda_failure() == SHOAL_OK) {
            set_no_memory(bytes);
        }
        return NULL;
    }
    return block;
}

void *cuda_pinned_take(size_t bytes)
{
    if (bytes > SIZE_MAX / 2) {
        set_no_memory(bytes);
        return NULL;
    }
    size_t rounded = round_up(bytes);
    (void)pthread_mutex_lock(&lock);
    struct block *block = find(rounded);
    if (block) {
        block->is_taken = true;
    }
    (void)pthread_mutex_unlock(&lock);
    if (block) {
        return block->memory;
    }
    block = make(rounded);
    if (!block) {
        return NULL;
    }
    (void)pthread_mutex_lock(&lock);
    block->next = first;
    first = block;
    n_bytes += block->bytes;
    (void)pthread_mutex_unlock(&lock);
    return block->memory;
}

uint64_t cuda_pinned_bytes(void)
{
    (void)pthread_mutex_lock(&lock);
    uint64_t bytes = n_bytes;
    (void)pthread_mutex_unlock(&lock);
    return bytes;
}

static void give(void *memory, void *event)
{
    (void)pthread_mutex_lock(&lock);
    struct block *block = first;
    while (block->memory != memory) {
        block = block->next;
    }
    block->event = event;
    block->is_taken = false;
    (void)pthread_mutex_unlock(&lock);
}

void cuda_pinned_give(void *memory)
{
    give(memory, NULL);
}

/* Without an event nobody knows when the memory is free: it stays taken. That happens when the device has failed. */
void cuda_pinned_give_later(void *memory, struct CUstream_st *stream)
{
    void *event;
    if (cuda_streams.record(stream, &event) == SHOAL_OK) {
        give(memory, event);
    }
}
