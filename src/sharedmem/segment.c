/* SPDX-License-Identifier: MIT */
/*
 * Shared memory segments: making them, mapping each once per process, and the table of what is mapped.
 *
 * A segment is sealed against changes of its size, so that no rank can truncate memory that another one has mapped. A
 * descriptor that came from another process is accepted only if it has that seal.
 */
#include "sharedmem/segment.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fail_point.h"
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

static shoal_status reserve(int fd, const char *name, size_t bytes)
{
    if (os_memory_file_reserve(fd, bytes) == 0) {
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

shoal_status segment_create_fd(const char *name, size_t bytes, int *fd_out)
{
    if (bytes == 0 || bytes > SIZE_MAX / 4) {
        return error_set(SHOAL_ERR_INVALID, "shared memory \"%.100s\" cannot have %zu bytes", name, bytes);
    }
    size_t whole_bytes = round_to_pages(bytes);
    TRY(check_file_limit(name, whole_bytes));
    TRY(check_free_memory(name, whole_bytes));
    FAIL_POINT("segment create");
    /* What /proc shows of it says what it is for. */
    char label[128];
    (void)snprintf(label, sizeof label, "shoal:%.100s", name);
    int fd = os_memory_file(label);
    if (fd < 0) {
        return error_set(SHOAL_ERR_SYSTEM, "shared memory \"%.100s\": %s", name, error_errno_text(errno));
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
    if (!S_ISREG(stat_out->st_mode) || !os_memory_file_is_sealed(fd)) {
        return error_set(SHOAL_ERR_INVALID, "descriptor %d is not sealed shared memory", fd);
    }
    if (bytes == 0 || stat_out->st_size < 0 || (uint64_t)stat_out->st_size < bytes) {
        return error_set(SHOAL_ERR_INVALID, "descriptor %d is shared memory of %lld bytes, %zu expected", fd,
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
    os_unmap(segment->base, segment->bytes);
    if (segment->read_only && segment->read_only != segment->base) {
        os_unmap(segment->read_only, segment->bytes);
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
