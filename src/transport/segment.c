/* SPDX-License-Identifier: MIT */
/*
 * Shared memory segments: making, mapping once per process, and the table of what is mapped.
 *
 * A segment is sealed against changes of its size, so that no rank can take the ground from under another's
 * mapping. A descriptor that came from somewhere else is believed only if it has that seal.
 */
#include "transport/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/try.h"
#include "transport/free_memory.h"

#if defined(__SANITIZE_THREAD__)
#define HAS_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAS_THREAD_SANITIZER 1
#endif
#endif
#ifndef HAS_THREAD_SANITIZER
#define HAS_THREAD_SANITIZER 0
#endif

/* Since Linux 5.14; older headers do not know it, older kernels refuse it. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define GIB (1024.0 * 1024.0 * 1024.0)
/* Below this a shortage is not worth asking about: reserving it tells. */
#define ASK_BYTES ((size_t)1 << 20)

struct segment {
    uint32_t references; /* under the table's lock, with everything that changes */
    dev_t device;        /* with the inode: the same memory, whatever the descriptor */
    ino_t inode;
    char *base;
    size_t bytes;
    void *read_only; /* NULL until somebody asks */
    struct segment *next;
};

/* Everything that this process has mapped. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct segment *table;

static size_t round_to_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* Making ------------------------------------------------------------------------------------------------ */

/*
 * Reserving more than there is does not fail everywhere: without a limit on this kind of memory the kernel ends
 * some process instead. So the question comes first.
 */
static shoal_status check_free_memory(const char *name, size_t bytes)
{
    if (bytes < ASK_BYTES) {
        return SHOAL_OK;
    }
    uint64_t free_bytes = free_memory_bytes();
    if (bytes > free_bytes) {
        return error_set(SHOAL_ERR_NO_MEMORY,
                         "shared memory \"%.100s\" of %zu bytes (%.2f GiB): only %.2f GiB are free", name,
                         bytes, (double)bytes / GIB, (double)free_bytes / GIB);
    }
    return SHOAL_OK;
}

static shoal_status reserve(int fd, const char *name, size_t bytes)
{
    int result;
    do {
        result = fallocate(fd, /*mode=*/0, /*offset=*/0, (off_t)bytes);
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
        return SHOAL_OK;
    }
    bool is_shortage = errno == ENOSPC || errno == ENOMEM || errno == EFBIG;
    return error_set(is_shortage ? SHOAL_ERR_NO_MEMORY : SHOAL_ERR_SYSTEM,
                     "shared memory \"%.100s\": %zu bytes could not be reserved: %s", name, bytes,
                     strerror(errno));
}

static shoal_status seal(int fd)
{
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "shared memory could not be sealed: %s", strerror(errno));
    }
    return SHOAL_OK;
}

shoal_status segment_create_fd(const char *name, size_t bytes, int *fd_out)
{
    if (bytes == 0 || bytes > SIZE_MAX / 4) {
        return error_set(SHOAL_ERR_INVALID, "shared memory \"%.100s\" of %zu bytes", name, bytes);
    }
    size_t whole_bytes = round_to_pages(bytes);
    TRY(check_free_memory(name, whole_bytes));
    FAIL_POINT("segment create");
    /* What /proc shows of it says what it is for. */
    char label[128];
    (void)snprintf(label, sizeof label, "shoal:%.100s", name);
    int fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return error_set(SHOAL_ERR_SYSTEM, "shared memory \"%.100s\": %s", name, strerror(errno));
    }
    shoal_status status;
    TRY_GOTO(status, reserve(fd, name, whole_bytes), close_fd);
    TRY_GOTO(status, seal(fd), close_fd);
    *fd_out = fd;
    return SHOAL_OK;

close_fd:
    (void)close(fd);
    return status;
}

/* Mapping ----------------------------------------------------------------------------------------------- */

static shoal_status check_fd(int fd, size_t bytes, struct stat *stat_out)
{
    if (fstat(fd, stat_out) != 0) {
        return error_set(SHOAL_ERR_INVALID, "descriptor %d: %s", fd, strerror(errno));
    }
    int seals = fcntl(fd, F_GET_SEALS);
    if (!S_ISREG(stat_out->st_mode) || seals < 0 || !(seals & F_SEAL_SHRINK)) {
        return error_set(SHOAL_ERR_INVALID, "descriptor %d is not sealed shared memory", fd);
    }
    if (bytes == 0 || stat_out->st_size < 0 || (uint64_t)stat_out->st_size < bytes) {
        return error_set(SHOAL_ERR_INVALID, "descriptor %d: shared memory of %lld bytes, %zu expected", fd,
                         (long long)stat_out->st_size, bytes);
    }
    return SHOAL_OK;
}

static struct segment *find_mapped(const struct stat *stat)
{
    for (struct segment *segment = table; segment; segment = segment->next) {
        if (segment->device == stat->st_dev && segment->inode == stat->st_ino) {
            return segment;
        }
    }
    return NULL;
}

static shoal_status map_new(int fd, const struct stat *stat, struct segment **segment_out)
{
    struct segment *segment = mem_alloc(sizeof(*segment));
    if (!segment) {
        return SHOAL_ERR_NO_MEMORY;
    }
    size_t bytes = (size_t)stat->st_size;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, /*offset=*/0);
    if (base == MAP_FAILED) {
        shoal_status status =
            error_set(errno == ENOMEM ? SHOAL_ERR_NO_MEMORY : SHOAL_ERR_SYSTEM,
                      "%zu bytes of shared memory could not be mapped: %s", bytes, strerror(errno));
        mem_free(segment);
        return status;
    }
    *segment = (struct segment){.references = 1,
                                .device = stat->st_dev,
                                .inode = stat->st_ino,
                                .base = base,
                                .bytes = bytes,
                                .next = table};
    table = segment;
    *segment_out = segment;
    return SHOAL_OK;
}

shoal_status segment_map(int fd, size_t bytes, struct segment **segment_out)
{
    struct stat stat;
    TRY(check_fd(fd, bytes, &stat));
    (void)pthread_mutex_lock(&table_lock);
    shoal_status status = SHOAL_OK;
    struct segment *segment = find_mapped(&stat);
    if (segment) {
        segment->references++;
        *segment_out = segment;
    } else {
        status = map_new(fd, &stat, segment_out);
    }
    (void)pthread_mutex_unlock(&table_lock);
    return status;
}

struct segment *segment_ref(struct segment *segment)
{
    (void)pthread_mutex_lock(&table_lock);
    segment->references++;
    (void)pthread_mutex_unlock(&table_lock);
    return segment;
}

static void unmap(struct segment *segment)
{
    struct segment **link = &table;
    while (*link != segment) {
        link = &(*link)->next;
    }
    *link = segment->next;
    /* Fails only for addresses that are not ours. */
    (void)munmap(segment->base, segment->bytes);
    if (segment->read_only && segment->read_only != segment->base) {
        (void)munmap(segment->read_only, segment->bytes);
    }
    mem_free(segment);
}

void segment_unref(struct segment *segment)
{
    if (!segment) {
        return;
    }
    /* Unmapped under the lock: somebody who maps the same memory meanwhile must not find half of it. */
    (void)pthread_mutex_lock(&table_lock);
    if (--segment->references == 0) {
        unmap(segment);
    }
    (void)pthread_mutex_unlock(&table_lock);
}

void *segment_base(const struct segment *segment)
{
    return segment->base;
}

size_t segment_bytes(const struct segment *segment)
{
    return segment->bytes;
}

/* The same pages at a second address: a mapping of length 0 that is moved leaves the first one in place. */
static void *map_again(struct segment *segment)
{
    if (HAS_THREAD_SANITIZER) {
        return segment->base;
    }
    void *base = mremap(segment->base, /*old_size=*/0, segment->bytes, MREMAP_MAYMOVE);
    if (base == MAP_FAILED) {
        return NULL;
    }
    if (mprotect(base, segment->bytes, PROT_READ) != 0) {
        (void)munmap(base, segment->bytes);
        return NULL;
    }
    return base;
}

shoal_status segment_read_only(struct segment *segment, const void **base_out)
{
    (void)pthread_mutex_lock(&table_lock);
    if (!segment->read_only) {
        segment->read_only = map_again(segment);
    }
    void *base = segment->read_only;
    (void)pthread_mutex_unlock(&table_lock);
    if (!base) {
        return error_set(SHOAL_ERR_NO_MEMORY, "%zu bytes of shared memory could not be mapped a second time",
                         segment->bytes);
    }
    *base_out = base;
    return SHOAL_OK;
}

void segment_touch(struct segment *segment, size_t offset, size_t bytes)
{
    if (offset >= segment->bytes || bytes == 0) {
        return;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t begin = offset / page * page;
    size_t end = bytes > segment->bytes - offset ? segment->bytes : round_to_pages(offset + bytes);
    if (madvise(segment->base + begin, end - begin, MADV_POPULATE_WRITE) == 0) {
        return;
    }
    /* By hand. Peers may be writing there: adding no bits to a byte changes nothing, whoever is second. */
    for (size_t at = begin; at < end; at += page) {
        (void)__atomic_fetch_or(segment->base + at, 0, __ATOMIC_RELAXED);
    }
}

size_t segment_mapped_bytes(void)
{
    (void)pthread_mutex_lock(&table_lock);
    size_t bytes = 0;
    for (const struct segment *segment = table; segment; segment = segment->next) {
        bytes += segment->bytes;
    }
    (void)pthread_mutex_unlock(&table_lock);
    return bytes;
}
