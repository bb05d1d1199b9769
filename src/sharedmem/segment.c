/* SPDX-License-Identifier: MIT */
/*
 * Shared memory segments: making them, mapping each once per process, and the table of what is mapped.
 *
 * A segment is sealed against changes of its size, so that no rank can truncate memory that another one has mapped. A
 * descriptor that came from another process is accepted only if it has that seal.
 */
#include "sharedmem/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fail_point.h"
#include "base/fork.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/try.h"
#include "base/free_memory.h"

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
    int fd;          /* of a sparse segment; -1 for others */
    struct segment *next;
};

/* Everything that this process has mapped. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct segment *table;

__attribute__((constructor)) static void hold_in_forks(void)
{
    fork_hold(FORK_SEGMENTS, &table_lock);
}

static size_t round_to_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* Making ------------------------------------------------------------------------------------------------ */

/*
 * Reserving more memory than there is does not always fail: without a limit on shared memory the kernel kills some
 * process instead. So this is checked before the memory is reserved.
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

/*
 * A segment is a file to the kernel. Growing one beyond the limit on file sizes does not only fail: the signal that
 * comes with the failure (SIGXFSZ) ends the process. So this is checked first as well.
 */
static shoal_status check_file_limit(const char *name, size_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) {
        return error_set(SHOAL_ERR_NO_MEMORY, "shared memory \"%.100s\" of %zu bytes: %s", name, bytes,
                         error_errno_text(EFBIG));
    }
    return SHOAL_OK;
}

static shoal_status reserve(int fd, const char *name, size_t offset, size_t bytes)
{
    if (os_memory_file_reserve(fd, offset, bytes) == 0) {
        return SHOAL_OK;
    }
    bool is_shortage = errno == ENOSPC || errno == ENOMEM || errno == EFBIG;
    return error_set(is_shortage ? SHOAL_ERR_NO_MEMORY : SHOAL_ERR_SYSTEM,
                     "shared memory \"%.100s\": %zu bytes could not be reserved: %s", name, bytes,
                     error_errno_text(errno));
}

static shoal_status seal(int fd)
{
    if (os_memory_file_seal(fd) != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "shared memory could not be sealed: %s", strerror(errno));
    }
    return SHOAL_OK;
}

static shoal_status resize(int fd, const char *name, size_t bytes)
{
    return os_memory_file_resize(fd, bytes) == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_SYSTEM, "shared memory \"%.100s\" cannot have %zu bytes: %s", name,
                           bytes, error_errno_text(errno));
}

static shoal_status create_fd(const char *name, size_t bytes, bool is_sparse, int *fd_out)
{
    if (bytes == 0 || bytes > SIZE_MAX / 4) {
        return error_set(SHOAL_ERR_INVALID, "shared memory \"%.100s\" cannot have %zu bytes", name, bytes);
    }
    size_t whole_bytes = round_to_pages(bytes);
    TRY(check_file_limit(name, whole_bytes));
    TRY(is_sparse ? SHOAL_OK : check_free_memory(name, whole_bytes));
    FAIL_POINT("segment create");
    /* What /proc shows of it says what it is for. */
    char label[128];
    (void)snprintf(label, sizeof label, "shoal:%.100s", name);
    int fd = os_memory_file(label);
    if (fd < 0) {
        return error_set(SHOAL_ERR_SYSTEM, "shared memory \"%.100s\": %s", name, error_errno_text(errno));
    }
    shoal_status status;
    TRY_GOTO(status, is_sparse ? resize(fd, name, whole_bytes) : reserve(fd, name, 0, whole_bytes), close_fd);
    TRY_GOTO(status, seal(fd), close_fd);
    *fd_out = fd;
    return SHOAL_OK;

close_fd:
    (void)close(fd);
    return status;
}

shoal_status segment_create_fd(const char *name, size_t bytes, int *fd_out)
{
    return create_fd(name, bytes, /*is_sparse=*/false, fd_out);
}

shoal_status segment_create_sparse_fd(const char *name, size_t bytes, int *fd_out)
{
    return create_fd(name, bytes, /*is_sparse=*/true, fd_out);
}

/* Mapping ----------------------------------------------------------------------------------------------- */

static shoal_status check_fd(int fd, size_t bytes, struct stat *stat_out)
{
    if (fstat(fd, stat_out) != 0) {
        return error_set(SHOAL_ERR_INVALID, "descriptor %d: %s", fd, strerror(errno));
    }
    if (!S_ISREG(stat_out->st_mode) || !os_memory_file_is_sealed(fd)) {
        return error_set(SHOAL_ERR_INVALID, "descriptor %d is not sealed shared memory", fd);
    }
    if (bytes == 0 || stat_out->st_size < 0 || (uint64_t)stat_out->st_size < bytes) {
        return error_set(SHOAL_ERR_INVALID, "descriptor %d is shared memory of %lld bytes, %zu expected", fd,
                         (long long)stat_out->st_size, bytes);
    }
    return SHOAL_OK;
}

/* Whether the segment's descriptor is still its own: a program may close descriptors that it does not know, and open
   others under their numbers. */
static bool owns_fd(const struct segment *segment)
{
    struct stat stat;
    return segment->fd >= 0 && fstat(segment->fd, &stat) == 0 && stat.st_dev == segment->device &&
           stat.st_ino == segment->inode;
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
    void *base = os_map(fd, bytes);
    if (!base) {
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
                                .fd = -1,
                                .next = table};
    table = segment;
    *segment_out = segment;
    return SHOAL_OK;
}

static void unmap(struct segment *segment)
{
    struct segment **link = &table;
    while (*link != segment) {
        link = &(*link)->next;
    }
    *link = segment->next;
    if (owns_fd(segment)) {
        (void)close(segment->fd);
    }
    os_unmap(segment->base, segment->bytes);
    if (segment->read_only && segment->read_only != segment->base) {
        os_unmap(segment->read_only, segment->bytes);
    }
    mem_free(segment);
}

/* Under the table's lock. */
static shoal_status keep_fd(struct segment *segment, int fd)
{
    if (segment->fd >= 0) {
        return SHOAL_OK;
    }
    segment->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    return segment->fd >= 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_SYSTEM, "a descriptor of shared memory: %s", strerror(errno));
}

static shoal_status map(int fd, size_t bytes, bool is_sparse, struct segment **segment_out)
{
    struct stat stat;
    TRY(check_fd(fd, bytes, &stat));
    (void)pthread_mutex_lock(&table_lock);
    shoal_status status = SHOAL_OK;
    struct segment *segment = find_mapped(&stat);
    if (segment) {
        segment->references++;
    } else {
        status = map_new(fd, &stat, &segment);
    }
    if (status == SHOAL_OK && is_sparse) {
        status = keep_fd(segment, fd);
        if (status != SHOAL_OK && --segment->references == 0) {
            unmap(segment);
        }
    }
    (void)pthread_mutex_unlock(&table_lock);
    *segment_out = status == SHOAL_OK ? segment : NULL;
    return status;
}

shoal_status segment_map(int fd, size_t bytes, struct segment **segment_out)
{
    return map(fd, bytes, /*is_sparse=*/false, segment_out);
}

shoal_status segment_map_sparse(int fd, size_t bytes, struct segment **segment_out)
{
    return map(fd, bytes, /*is_sparse=*/true, segment_out);
}

struct segment *segment_ref(struct segment *segment)
{
    (void)pthread_mutex_lock(&table_lock);
    segment->references++;
    (void)pthread_mutex_unlock(&table_lock);
    return segment;
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

shoal_status segment_read_only(struct segment *segment, const void **base_out)
{
    (void)pthread_mutex_lock(&table_lock);
    if (!segment->read_only) {
        segment->read_only =
            HAS_THREAD_SANITIZER ? segment->base : os_map_again(segment->base, segment->bytes);
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

/* Parts of sparse segments ------------------------------------------------------------------------------ */

/* The pages of the parts in a block: where they begin, and how many bytes they have. */
static size_t part_begin(const struct segment_parts *parts)
{
    return round_to_pages(parts->from);
}

static size_t part_bytes(const struct segment_parts *parts)
{
    return round_to_pages(parts->to) - part_begin(parts);
}

static void release_blocks(const struct segment *segment, const struct segment_parts *parts, size_t n_blocks)
{
    for (size_t i = 0; i < n_blocks; i++) {
        /* If it fails, the pages stay until the segment is freed. */
        (void)os_memory_file_release(segment->fd, i * parts->stride + part_begin(parts), part_bytes(parts));
    }
}

shoal_status segment_reserve(struct segment *segment, const char *name, const struct segment_parts *parts)
{
    size_t bytes = part_bytes(parts);
    if (bytes == 0) {
        return SHOAL_OK;
    }
    if (!owns_fd(segment)) {
        return error_set(SHOAL_ERR_STATE,
                         "shared memory \"%.100s\" cannot grow: its descriptor was closed by the program",
                         name);
    }
    TRY(check_free_memory(name, parts->n_blocks * bytes));
    FAIL_POINT("segment reserve");
    for (size_t i = 0; i < parts->n_blocks; i++) {
        shoal_status status = reserve(segment->fd, name, i * parts->stride + part_begin(parts), bytes);
        if (status != SHOAL_OK) {
            release_blocks(segment, parts, i + 1);
            return status;
        }
    }
    return SHOAL_OK;
}

void segment_release(struct segment *segment, const struct segment_parts *parts)
{
    if (part_bytes(parts) > 0 && owns_fd(segment)) {
        release_blocks(segment, parts, parts->n_blocks);
    }
}

void segment_touch(struct segment *segment, size_t offset, size_t bytes)
{
    if (offset >= segment->bytes || bytes == 0) {
        return;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t begin = offset / page * page;
    size_t end = bytes > segment->bytes - offset ? segment->bytes : round_to_pages(offset + bytes);
    if (os_populate(segment->base + begin, end - begin) == 0) {
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
