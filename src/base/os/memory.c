/* SPDX-License-Identifier: MIT */
/* Memory that processes share. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/os/fault.h"
#include "base/os/os.h"

/* Since Linux 5.14; older headers do not know it. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

int os_memory_file(const char *label)
{
    return os_fault("memory file") ? -1 : memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

int os_memory_file_resize(int fd, size_t bytes)
{
    return os_fault("resize") ? -1 : ftruncate(fd, (off_t)bytes);
}

int os_memory_file_reserve(int fd, size_t offset, size_t bytes)
{
    int result;
    if (os_fault("reserve")) {
        return -1;
    }
    do {
        result = fallocate(fd, /*mode=*/0, (off_t)offset, (off_t)bytes);
    } while (result != 0 && errno == EINTR);
    return result;
}

int os_memory_file_release(int fd, size_t offset, size_t bytes)
{
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
}

int os_memory_file_seal(int fd)
{
    return os_fault("seal") ? -1 : fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

bool os_memory_file_is_sealed(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK);
}

void *os_map(int fd, size_t bytes)
{
    if (os_fault("map")) {
        return NULL;
    }
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, /*offset=*/0);
    return base == MAP_FAILED ? NULL : base;
}

void *os_map_again(void *base, size_t bytes)
{
    if (os_fault("map again")) {
        return NULL;
    }
    /* A mapping of length 0 that is moved leaves the first one in place. */
    void *second = mremap(base, /*old_size=*/0, bytes, MREMAP_MAYMOVE);
    if (second == MAP_FAILED) {
        return NULL;
    }
    if (mprotect(second, bytes, PROT_READ) != 0) {
        int code = errno;
        (void)munmap(second, bytes);
        errno = code;
        return NULL;
    }
    return second;
}

void os_unmap(void *base, size_t bytes)
{
    (void)munmap(base, bytes);
}

void os_prefer_large_pages(void *base, size_t bytes)
{
    int code = errno;
    (void)madvise(base, bytes, MADV_HUGEPAGE);
    errno = code; /* a kernel without large pages is no failure */
}

int os_populate(void *base, size_t bytes)
{
    return os_fault("populate") ? -1 : madvise(base, bytes, MADV_POPULATE_WRITE);
}
