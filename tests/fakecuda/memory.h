/* SPDX-License-Identifier: MIT */
/* Between memory.c, pool.c, shared.c and range.c: what they know of each other's, and their lock. */
#ifndef FAKECUDA_MEMORY_H
#define FAKECUDA_MEMORY_H

#include "fakecuda/fake.h"

struct CUmemPoolHandle_st {
    _Atomic uint32_t state;
    /* Under the lock. */
    uint64_t most_bytes; /* 0: no limit */
    int follows_events;
    int reuses_by_chance;
    int adds_dependencies;
    uint64_t keeps;
    uint64_t reserved;
    uint64_t reserved_high;
    uint64_t used;
    uint64_t used_high;
};

extern pthread_mutex_t fake_memory_lock;

bool fake_is_pool(const struct CUmemPoolHandle_st *pool);
/* Under the lock: a pool leaves what nobody uses to others, until it has no more than `least` bytes. */
void fake_memory_trim(const struct CUmemPoolHandle_st *pool, uint64_t least);
/* Under the lock: a pool ends, and leaves its memory to others. */
void fake_memory_let_go(const struct CUmemPoolHandle_st *pool);

/* The space: FAKE_SPACE_BYTES for what is allocated, then room that is never used, then shared memory. */
#define FAKE_GUARD_BYTES ((size_t)1 << 32)
#define FAKE_SHARED_OFFSET (FAKE_SPACE_BYTES + FAKE_GUARD_BYTES)
#define FAKE_SHARED_BYTES ((size_t)1 << 35)
#define FAKE_GRANULARITY ((size_t)1 << 16) /* of shared memory and its addresses */

/* The address of a place in the space, and where the processor reaches it. */
cuda_address fake_address_at(size_t offset);
char *fake_bytes_at(size_t offset);
/* Whether work may use these bytes, which are of the part for shared memory. */
bool fake_shared_is_accessible(cuda_address address, size_t bytes);
/* Under the lock: bytes that this process has created to share them. */
uint64_t fake_shared_created(void);

/* What a handle of memory stands for. */
struct fake_memory {
    _Atomic uint32_t state;
    /* Under the lock. */
    int fd;
    size_t bytes;
    bool is_exportable;
    bool is_created;  /* here; otherwise it was imported */
    bool is_released; /* and is there until it is not mapped any more */
    uint32_t n_mapped;
};

/* NULL if it is no handle. */
struct fake_memory *fake_memory_of(cuda_memory handle);
/* Under the lock: memory ends when it is not mapped and has no handle. */
void fake_memory_end_if_unused(struct fake_memory *memory);

#endif
