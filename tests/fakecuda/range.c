/* SPDX-License-Identifier: MIT */
/*
 * Addresses for memory that processes share. Its file is mapped over the second mapping of the space, so that work
 * reaches it at the same distance as all memory. Where nothing is mapped, or is not accessible yet, a copy makes the
 * device fail, and a kernel ends the process.
 *
 * A range is mapped as a whole. Ranges are taken in turn, with room between them, so that an old address is not soon
 * another one's. If work may use a range after it was unmapped, its bytes stay where they are and its addresses are
 * not used again. So it is with a copy that was not executed yet, which is a mistake of the program, and with any work
 * once the device has failed.
 */
#include "fakecuda/memory.h"

#include <sys/mman.h>

#define RANGES_MOST 4096
#define END_OFFSET (FAKE_SHARED_OFFSET + FAKE_SHARED_BYTES)
#define ALIGNMENT_MOST ((size_t)1 << 30)

struct fake_range {
    /* Under the lock. */
    size_t offset;
    size_t bytes; /* 0: it is no range */
    bool is_reserved;
    bool is_lost;
    bool is_accessible;
    struct fake_memory *mapped; /* NULL: none */
    _Atomic uint32_t n_uses;    /* by copies that were not executed yet */
};

/* Under the lock. */
static struct fake_range ranges[RANGES_MOST];
static size_t next_offset = FAKE_SHARED_OFFSET;

/* Finding ------------------------------------------------------------------------------------------------ */

/* Under the lock: the range that an address lies in; NULL if it is in none. */
static struct fake_range *find(cuda_address address)
{
    size_t offset = (size_t)(address - fake_address_at(0));
    for (size_t i = 0; i < RANGES_MOST; i++) {
        if (ranges[i].is_reserved && offset - ranges[i].offset < ranges[i].bytes) {
            return &ranges[i];
        }
    }
    return NULL;
}

/* Under the lock: the range that is just these bytes. */
static struct fake_range *find_whole(cuda_address address, size_t bytes)
{
    struct fake_range *range = find(address);
    return range && fake_address_at(range->offset) == address && range->bytes == bytes ? range : NULL;
}

bool fake_shared_is_accessible(cuda_address address, size_t bytes)
{
    (void)pthread_mutex_lock(&fake_memory_lock);
    const struct fake_range *range = find(address);
    bool is_accessible = range && range->is_accessible &&
                         bytes <= range->bytes - (size_t)(address - fake_address_at(range->offset));
    (void)pthread_mutex_unlock(&fake_memory_lock);
    return is_accessible;
}

struct fake_range *fake_range_use(cuda_address address)
{
    if (address - fake_address_at(0) < FAKE_SHARED_OFFSET) {
        return NULL; /* without the lock, as most are */
    }
    (void)pthread_mutex_lock(&fake_memory_lock);
    struct fake_range *range = find(address);
    if (range) {
        (void)atomic_fetch_add_explicit(&range->n_uses, 1, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&fake_memory_lock);
    return range;
}

/* Relaxed: that a copy is done is told by its stream only. */
void fake_range_unuse(struct fake_range *range)
{
    if (range) {
        (void)atomic_fetch_sub_explicit(&range->n_uses, 1, memory_order_relaxed);
    }
}

/* Reserving ---------------------------------------------------------------------------------------------- */

/* Under the lock: the first place behind an offset that no range takes, with room after it; 0 if there is none. */
static size_t find_place(size_t offset, size_t bytes, size_t alignment)
{
    bool has_moved = true;
    while (has_moved) {
        has_moved = false;
        offset = (offset + alignment - 1) / alignment * alignment;
        for (size_t i = 0; i < RANGES_MOST; i++) {
            size_t end = ranges[i].offset + ranges[i].bytes + FAKE_GRANULARITY;
            if (ranges[i].bytes > 0 && offset < end && ranges[i].offset < offset + bytes + FAKE_GRANULARITY) {
                offset = end;
                has_moved = true;
                break;
            }
        }
    }
    return offset + bytes <= END_OFFSET ? offset : 0;
}

/* Under the lock. */
static struct fake_range *reserve(size_t bytes, size_t alignment)
{
    size_t i = 0;
    size_t offset = find_place(next_offset, bytes, alignment);
    if (offset == 0) {
        offset = find_place(FAKE_SHARED_OFFSET, bytes, alignment);
    }
    while (i < RANGES_MOST && ranges[i].bytes > 0) {
        i++;
    }
    if (offset == 0 || i == RANGES_MOST) {
        return NULL;
    }
    ranges[i].offset = offset;
    ranges[i].bytes = bytes;
    ranges[i].is_reserved = true;
    next_offset = offset + bytes;
    return &ranges[i];
}

/* Whether the process may have so many addresses more: a driver takes them of the process. */
static bool has_addresses(size_t bytes)
{
    void *some = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return some != MAP_FAILED && munmap(some, bytes) == 0;
}

cuda_result cuMemAddressReserve(cuda_address *address_out, size_t bytes, size_t alignment,
                                cuda_address wanted, uint64_t flags)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    if (!address_out || bytes == 0 || bytes % FAKE_GRANULARITY != 0 || (alignment & (alignment - 1)) != 0 ||
        alignment > ALIGNMENT_MOST || flags != 0) {
        return CUDA_INVALID_VALUE;
    }
    const struct fake_range *range = NULL;
    if (bytes <= FAKE_SHARED_BYTES && has_addresses(bytes)) {
        (void)pthread_mutex_lock(&fake_memory_lock);
        range = reserve(bytes, alignment > FAKE_GRANULARITY ? alignment : FAKE_GRANULARITY);
        (void)pthread_mutex_unlock(&fake_memory_lock);
    }
    if (!range) {
        return CUDA_OUT_OF_MEMORY;
    }
    *address_out = fake_address_at(range->offset);
    return CUDA_OK;
}

cuda_result cuMemAddressFree(cuda_address address, size_t bytes)
{
    cuda_result result = fake_begin_query();
    if (!fake_may_free(result)) {
        return result;
    }
    (void)pthread_mutex_lock(&fake_memory_lock);
    struct fake_range *range = find_whole(address, bytes);
    if (range && !range->mapped) {
        range->is_reserved = false;
        range->bytes = range->is_lost ? bytes : 0;
    } else {
        result = CUDA_INVALID_VALUE;
    }
    (void)pthread_mutex_unlock(&fake_memory_lock);
    return result;
}

/* Mapping ------------------------------------------------------------------------------------------------ */

cuda_result cuMemMap(cuda_address address, size_t bytes, size_t offset, cuda_memory handle, uint64_t flags)
{
    cuda_result result = fake_begin();
    struct fake_memory *memory = fake_memory_of(handle);
    if (result != CUDA_OK) {
        return result;
    }
    if (!memory || offset != 0 || flags != 0) {
        return CUDA_INVALID_VALUE;
    }
    (void)pthread_mutex_lock(&fake_memory_lock);
    struct fake_range *range = find_whole(address, bytes);
    if (!range || range->mapped || range->is_lost || bytes > memory->bytes) {
        result = CUDA_INVALID_VALUE;
    } else if (mmap(fake_bytes_at(range->offset), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd, 0) ==
               MAP_FAILED) {
        result = CUDA_OUT_OF_MEMORY;
    } else {
        range->mapped = memory;
        memory->n_mapped++;
    }
    (void)pthread_mutex_unlock(&fake_memory_lock);
    return result;
}

static bool are_known(const struct cuda_access *accesses, size_t n_accesses)
{
    bool are_so = accesses && n_accesses > 0;
    for (size_t i = 0; are_so && i < n_accesses; i++) {
        are_so = accesses[i].location == CUDA_LOCATION_DEVICE && fake_is_device(accesses[i].device) &&
                 (accesses[i].flags == CUDA_ACCESS_NONE || accesses[i].flags == CUDA_ACCESS_READ_WRITE);
    }
    return are_so;
}

/* All devices are one here: the last access is the one of all. */
cuda_result cuMemSetAccess(cuda_address address, size_t bytes, const struct cuda_access *accesses,
                           size_t n_accesses)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    if (!are_known(accesses, n_accesses)) {
        return CUDA_INVALID_VALUE;
    }
    bool is_accessible = accesses[n_accesses - 1].flags == CUDA_ACCESS_READ_WRITE;
    (void)pthread_mutex_lock(&fake_memory_lock);
    struct fake_range *range = find_whole(address, bytes);
    if (range && range->mapped && !range->is_lost) {
        (void)mprotect(fake_bytes_at(range->offset), bytes,
                       is_accessible ? PROT_READ | PROT_WRITE : PROT_NONE);
        range->is_accessible = is_accessible;
    } else {
        result = CUDA_INVALID_VALUE;
    }
    (void)pthread_mutex_unlock(&fake_memory_lock);
    return result;
}

/* Under the lock. */
static void unmap(struct fake_range *range)
{
    if (atomic_load_explicit(&range->n_uses, memory_order_relaxed) > 0) {
        fake_fail(CUDA_ILLEGAL_ADDRESS, "shared memory is unmapped while a copy uses it");
    }
    range->is_lost = fake_failure() != CUDA_OK;
    if (!range->is_lost) {
        (void)mmap(fake_bytes_at(range->offset), range->bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
    range->is_accessible = false;
    range->mapped->n_mapped--;
    fake_memory_end_if_unused(range->mapped);
    range->mapped = NULL;
}

cuda_result cuMemUnmap(cuda_address address, size_t bytes)
{
    cuda_result result = fake_begin_query();
    if (!fake_may_free(result)) {
        return result;
    }
    (void)pthread_mutex_lock(&fake_memory_lock);
    struct fake_range *range = find_whole(address, bytes);
    if (range && range->mapped) {
        unmap(range);
        result = fake_failure();
    } else {
        result = CUDA_INVALID_VALUE;
    }
    (void)pthread_mutex_unlock(&fake_memory_lock);
    return result;
}
