/* SPDX-License-Identifier: MIT */
/*
 * Memory of the device. Its addresses are a reservation that nobody can access. The bytes lie at the same distance in
 * a second mapping, with room around it that cannot be accessed either, so that kernels that reach far out end the
 * process.
 *
 * A piece that is freed can be given out again at once to the stream that has freed it: the work of the stream keeps
 * both uses in order. Another stream gets it when the first one has executed the free, and waits for that, which
 * takes no time; what pools may be told about reuse is kept and changes nothing. All of a piece is filled with NaN
 * where its stream executes the allocation, and where it executes the free.
 */
#include "fakecuda/memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define WHOLE_BYTES (FAKE_SHARED_OFFSET + FAKE_SHARED_BYTES)
#define ALIGNMENT 256
#define BUCKETS 4096

struct piece {
    struct piece *next;
    struct CUmemPoolHandle_st *pool; /* that has reserved it; NULL: none, it is left over */
    size_t offset;
    size_t bytes; /* multiples of ALIGNMENT, here and below */
    size_t used;
    uint64_t stream;            /* the number of the one that has freed it */
    struct fake_counter *freed; /* 1 when that has happened; NULL: it was never used */
};

static char *space; /* device addresses */
static char *bytes_of_space;

pthread_mutex_t fake_memory_lock = PTHREAD_MUTEX_INITIALIZER;
/* Under the lock. */
static size_t carved;               /* bytes of the space that are pieces */
static struct piece *used[BUCKETS]; /* by their addresses */
static struct piece *freed;         /* the last one that was freed comes first */

FAKE_EXPORT uint64_t cuda_host_distance;

/* The space ---------------------------------------------------------------------------------------------- */

bool fake_memory_open(void)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *reserved = mmap(NULL, WHOLE_BYTES, PROT_NONE, flags, -1, 0);
    char *guarded = mmap(NULL, WHOLE_BYTES + 2 * FAKE_GUARD_BYTES, PROT_NONE, flags, -1, 0);
    if (reserved == MAP_FAILED || guarded == MAP_FAILED ||
        mprotect(guarded + FAKE_GUARD_BYTES, FAKE_SPACE_BYTES, PROT_READ | PROT_WRITE) != 0) {
        return false; /* the process has no room; tests end then */
    }
    space = reserved;
    bytes_of_space = guarded + FAKE_GUARD_BYTES;
    cuda_host_distance = (uint64_t)(uintptr_t)bytes_of_space - (uint64_t)(uintptr_t)space;
    return true;
}

void *fake_reach(cuda_address address, size_t bytes)
{
    uint64_t offset = address - (uint64_t)(uintptr_t)space;
    bool is_inside = offset <= FAKE_SPACE_BYTES && bytes <= FAKE_SPACE_BYTES - offset;
    if (!space || (!is_inside && !fake_shared_is_accessible(address, bytes))) {
        fake_fail(CUDA_ILLEGAL_ADDRESS,
                  "work was given %#llx with %zu bytes, which is no address of the device",
                  (unsigned long long)address, bytes);
        return NULL;
    }
    return bytes_of_space + offset;
}

cuda_address fake_address_at(size_t offset)
{
    return (cuda_address)(uintptr_t)space + offset;
}

char *fake_bytes_at(size_t offset)
{
    return bytes_of_space + offset;
}

/* Pieces ------------------------------------------------------------------------------------------------- */

static struct piece **bucket_of(size_t offset)
{
    return &used[offset / ALIGNMENT % BUCKETS];
}

/* Not much larger than what is wanted, and nobody can be using it. */
static bool fits(const struct piece *piece, const struct CUmemPoolHandle_st *pool, size_t bytes,
                 uint64_t stream)
{
    if ((piece->pool && piece->pool != pool) || piece->bytes < bytes || piece->bytes - bytes > bytes / 4) {
        return false;
    }
    /* Relaxed: that the free was executed is no order for the host. The stream waits for it. */
    return piece->stream == stream || atomic_load_explicit(&piece->freed->n, memory_order_relaxed) == 1;
}

/* Under the lock: takes a piece off the list of freed ones. */
static struct piece *take_freed(const struct CUmemPoolHandle_st *pool, size_t bytes, uint64_t stream)
{
    struct piece **at = &freed;
    while (*at && !fits(*at, pool, bytes, stream)) {
        at = &(*at)->next;
    }
    struct piece *piece = *at;
    if (piece) {
        *at = piece->next;
    }
    return piece;
}

/* Under the lock. */
static struct piece *carve(size_t bytes)
{
    struct piece *piece = bytes <= FAKE_SPACE_BYTES - carved ? malloc(sizeof *piece) : NULL;
    if (piece) {
        *piece = (struct piece){.offset = carved, .bytes = bytes};
        carved += bytes;
    }
    return piece;
}

static void raise_to(uint64_t *high, uint64_t value)
{
    *high = value > *high ? value : *high;
}

/* Under the lock: what a pool reserves grows by what it has not had before. */
static bool reserve(struct CUmemPoolHandle_st *pool, struct piece *piece)
{
    if (piece->pool) {
        return true;
    }
    if (pool->most_bytes > 0 && piece->bytes > pool->most_bytes - pool->reserved) {
        return false;
    }
    piece->pool = pool;
    pool->reserved += piece->bytes;
    raise_to(&pool->reserved_high, pool->reserved);
    return true;
}

/* Under the lock. */
static void let_go(struct piece *piece)
{
    if (piece->pool) {
        piece->pool->reserved -= piece->bytes;
        piece->pool = NULL;
    }
}

/* Under the lock. */
static struct piece *take(struct CUmemPoolHandle_st *pool, size_t bytes, uint64_t stream)
{
    struct piece *piece = take_freed(pool, bytes, stream);
    bool is_new = !piece;
    piece = piece ? piece : carve(bytes);
    if (!piece) {
        return NULL;
    }
    if (!reserve(pool, piece)) {
        if (is_new) {
            carved -= bytes;
            free(piece);
        } else {
            piece->next = freed;
            freed = piece;
        }
        return NULL;
    }
    piece->used = bytes;
    piece->next = *bucket_of(piece->offset);
    *bucket_of(piece->offset) = piece;
    pool->used += bytes;
    raise_to(&pool->used_high, pool->used);
    (void)atomic_fetch_add_explicit(&fakecuda_settings.n_bytes, bytes, memory_order_relaxed);
    return piece;
}

/* Under the lock: takes a piece off its list of used ones. NULL if there is none at that address. */
static struct piece *take_used(cuda_address address)
{
    size_t offset = (size_t)(address - (uint64_t)(uintptr_t)space);
    struct piece **at = bucket_of(offset);
    while (*at && (*at)->offset != offset) {
        at = &(*at)->next;
    }
    struct piece *piece = *at;
    if (piece) {
        *at = piece->next;
    }
    return piece;
}

/* Allocating --------------------------------------------------------------------------------------------- */

struct poisoning {
    struct fake_job job;
    void *at;
    size_t bytes;
};

static void poison(struct fake_job *job)
{
    const struct poisoning *poisoning = (const struct poisoning *)job;
    memset(poisoning->at, FAKE_POISON, poisoning->bytes);
}

cuda_result cuMemAllocFromPoolAsync(cuda_address *memory_out, size_t bytes, struct CUmemPoolHandle_st *pool,
                                    struct CUstream_st *handle)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    if (!memory_out || bytes == 0 || bytes > FAKE_SPACE_BYTES || !fake_is_pool(pool)) {
        return CUDA_INVALID_VALUE; /* also of more than the device has, which is as unkind as may be */
    }
    struct CUstream_st *stream = fake_stream(handle);
    if (!stream) {
        return FAKE_INVALID_HANDLE;
    }
    struct poisoning *job = fake_has_memory() ? fake_job(sizeof *job, poison) : NULL;
    struct piece *piece = NULL;
    if (job) {
        (void)pthread_mutex_lock(&fake_memory_lock);
        piece = take(pool, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, stream->number);
        (void)pthread_mutex_unlock(&fake_memory_lock);
    }
    if (!piece) {
        free(job);
        return CUDA_OUT_OF_MEMORY;
    }
    job->job.awaited = piece->freed;
    job->at = bytes_of_space + piece->offset;
    job->bytes = piece->bytes;
    *memory_out = (cuda_address)(uintptr_t)(space + piece->offset);
    fake_push(stream, &job->job);
    return CUDA_OK;
}

/* Under the lock, as pushing is: whoever takes the piece pushes behind it. */
static void give_up(struct piece *piece, struct CUstream_st *stream, struct poisoning *job,
                    struct fake_counter *counter)
{
    if (piece->pool) {
        piece->pool->used -= piece->used;
    }
    (void)atomic_fetch_sub_explicit(&fakecuda_settings.n_bytes, piece->used, memory_order_relaxed);
    piece->stream = stream->number;
    piece->freed = counter;
    job->job.done = counter;
    job->at = bytes_of_space + piece->offset;
    job->bytes = piece->bytes;
    fake_push(stream, &job->job);
    piece->next = freed;
    freed = piece;
}

cuda_result cuMemFreeAsync(cuda_address memory, struct CUstream_st *handle)
{
    cuda_result result = fake_begin_query();
    if (!fake_may_free(result)) {
        return result;
    }
    struct CUstream_st *stream = fake_stream(handle);
    if (!stream) {
        return FAKE_INVALID_HANDLE;
    }
    struct poisoning *job = fake_job(sizeof *job, poison);
    struct fake_counter *counter = fake_counter_make();
    if (!job || !counter) {
        free(job);
        return CUDA_OUT_OF_MEMORY;
    }
    (void)pthread_mutex_lock(&fake_memory_lock);
    struct piece *piece = take_used(memory);
    if (piece) {
        give_up(piece, stream, job, counter);
    } else {
        free(job);
    }
    (void)pthread_mutex_unlock(&fake_memory_lock);
    return piece ? result : CUDA_INVALID_VALUE;
}

/* Left over -------------------------------------------------------------------------------------------------- */

void fake_memory_trim(const struct CUmemPoolHandle_st *pool, uint64_t least)
{
    for (struct piece *piece = freed; piece; piece = piece->next) {
        /* Acquire: a driver would have to wait for the free to be executed. */
        if (piece->pool == pool && pool->reserved > least &&
            atomic_load_explicit(&piece->freed->n, memory_order_acquire) == 1) {
            let_go(piece);
        }
    }
}

void fake_memory_let_go(const struct CUmemPoolHandle_st *pool)
{
    for (size_t i = 0; i <= BUCKETS; i++) {
        for (struct piece *piece = i < BUCKETS ? used[i] : freed; piece; piece = piece->next) {
            if (piece->pool == pool) {
                let_go(piece);
            }
        }
    }
}
