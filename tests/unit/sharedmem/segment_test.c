/* SPDX-License-Identifier: MIT */
/* Shared memory segments: sizes, one mapping per process, descriptors that are not to be believed, shortage. */
#include "sharedmem/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/test.h"
#include "base/free_memory.h"

#if defined(__SANITIZE_THREAD__)
#define HAS_THREAD_SANITIZER 1
#else
#define HAS_THREAD_SANITIZER 0
#endif

TEST(memory_is_zeroed_whole_pages_and_counted)
{
    size_t before = segment_mapped_bytes();
    int fd = -1;
    REQUIRE_OK(segment_create_fd("some", 5000, &fd));
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    struct segment *segment = NULL;
    REQUIRE_OK(segment_map(fd, 5000, &segment));
    CHECK_INT(close(fd), 0);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    CHECK(segment_bytes(segment) >= 5000);
    CHECK_INT(segment_bytes(segment) % page, 0);
    CHECK_INT(segment_mapped_bytes() - before, segment_bytes(segment));
    char *base = segment_base(segment);
    for (size_t i = 0; i < segment_bytes(segment); i++) {
        REQUIRE(base[i] == 0);
    }
    memset(base, 7, segment_bytes(segment));
    segment_unref(segment);
    CHECK_INT(segment_mapped_bytes(), before);
    segment_unref(NULL);
}

TEST(proc_says_what_it_is_for)
{
    int fd = -1;
    char path[64];
    char target[128] = "";
    REQUIRE_OK(segment_create_fd("window/0000002a", 100, &fd));
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    CHECK(readlink(path, target, sizeof target - 1) > 0);
    CHECK(strncmp(target, "/memfd:shoal:window/0000002a", strlen("/memfd:shoal:window/0000002a")) == 0);
    CHECK_INT(close(fd), 0);
}

TEST(a_process_maps_a_segment_once)
{
    int fd = -1;
    REQUIRE_OK(segment_create_fd("once", 100, &fd));
    int other = dup(fd);
    struct segment *first = NULL;
    struct segment *second = NULL;
    REQUIRE_OK(segment_map(fd, 100, &first));
    REQUIRE_OK(segment_map(other, 50, &second));
    CHECK(first == second);
    CHECK(segment_ref(first) == first);
    segment_unref(first);
    segment_unref(first);
    *(char *)segment_base(second) = 1;
    segment_unref(second);
    /* A new mapping of the same memory finds what was written. */
    REQUIRE_OK(segment_map(fd, 100, &first));
    CHECK_INT(*(char *)segment_base(first), 1);
    segment_unref(first);
    (void)close(fd);
    (void)close(other);
}

TEST(the_read_only_mapping_shows_the_same_and_can_not_be_written)
{
    int fd = -1;
    REQUIRE_OK(segment_create_fd("both", 100, &fd));
    struct segment *segment = NULL;
    REQUIRE_OK(segment_map(fd, 100, &segment));
    (void)close(fd);
    const void *base = NULL;
    const void *again = NULL;
    REQUIRE_OK(segment_read_only(segment, &base));
    REQUIRE_OK(segment_read_only(segment, &again));
    CHECK(base == again);
    *(char *)segment_base(segment) = 42;
    CHECK_INT(*(const char *)base, 42);
    if (!HAS_THREAD_SANITIZER) {
        CHECK(base != segment_base(segment));
        int ends[2];
        REQUIRE(pipe(ends) == 0);
        CHECK_INT(write(ends[1], "x", 1), 1);
        CHECK_INT(read(ends[0], (void *)(uintptr_t)base, 1), -1);
        CHECK_INT(errno, EFAULT);
        (void)close(ends[0]);
        (void)close(ends[1]);
    }
    segment_unref(segment);
}

TEST(touching_changes_nothing)
{
    int fd = -1;
    REQUIRE_OK(segment_create_fd("touched", 1 << 20, &fd));
    struct segment *segment = NULL;
    REQUIRE_OK(segment_map(fd, 1 << 20, &segment));
    (void)close(fd);
    memset(segment_base(segment), 3, segment_bytes(segment));
    segment_touch(segment, 0, segment_bytes(segment));
    segment_touch(segment, 4097, 1);
    segment_touch(segment, segment_bytes(segment) - 1, SIZE_MAX);
    segment_touch(segment, segment_bytes(segment), 1);
    segment_touch(segment, 0, 0);
    const char *base = segment_base(segment);
    for (size_t i = 0; i < segment_bytes(segment); i++) {
        REQUIRE(base[i] == 3);
    }
    segment_unref(segment);
}

TEST(nobody_can_change_its_size)
{
    int fd = -1;
    REQUIRE_OK(segment_create_fd("sealed", 8192, &fd));
    CHECK(ftruncate(fd, 0) != 0);
    CHECK(ftruncate(fd, 1 << 20) != 0);
    (void)close(fd);
}

/* Descriptors that a peer could send. */
TEST(descriptors_are_not_believed)
{
    struct segment *segment = NULL;
    CHECK_STATUS(segment_map(-1, 10, &segment), SHOAL_ERR_INVALID);
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    CHECK_STATUS(segment_map(ends[0], 10, &segment), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("not sealed shared memory");
    (void)close(ends[0]);
    (void)close(ends[1]);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    CHECK_STATUS(segment_map(file, 10, &segment), SHOAL_ERR_INVALID);
    (void)close(file);
    int unsealed = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(ftruncate(unsealed, 4096) == 0);
    CHECK_STATUS(segment_map(unsealed, 10, &segment), SHOAL_ERR_INVALID);
    (void)close(unsealed);
    int fd = -1;
    REQUIRE_OK(segment_create_fd("small", 4096, &fd));
    CHECK_STATUS(segment_map(fd, (size_t)1 << 30, &segment), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("1073741824 expected");
    CHECK_STATUS(segment_map(fd, 0, &segment), SHOAL_ERR_INVALID);
    (void)close(fd);
    CHECK(segment == NULL);
}

TEST(shortage_is_an_error_with_both_sizes)
{
    int fd = -1;
    CHECK_STATUS(segment_create_fd("huge", (size_t)1 << 50, &fd), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT("\"huge\" of 1125899906842624 bytes (1048576.00 GiB): only ");
    CHECK_ERROR_TEXT(" GiB are free");
    CHECK_STATUS(segment_create_fd("none", 0, &fd), SHOAL_ERR_INVALID);
    CHECK_STATUS(segment_create_fd("all", SIZE_MAX, &fd), SHOAL_ERR_INVALID);
    CHECK_INT(fd, -1);
    uint64_t free_bytes = free_memory_bytes();
    CHECK(free_bytes > 0);
    CHECK(free_bytes < (uint64_t)1 << 50);
}

/* Parts of two blocks of four pages each get memory, and give it back. */
TEST(sparse_segments_get_memory_in_parts)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct segment *segment = NULL;
    struct stat stat;
    int fd = -1;
    REQUIRE_OK(segment_create_sparse_fd("sparse", 8 * page, &fd));
    CHECK(fstat(fd, &stat) == 0 && stat.st_blocks == 0 && stat.st_size == (off_t)(8 * page));
    CHECK(ftruncate(fd, 0) != 0);
    REQUIRE_OK(segment_map_sparse(fd, 8 * page, &segment));
    const struct {
        struct segment_parts parts;
        size_t n_pages; /* of both blocks, afterwards */
    } rows[] = {{{4 * page, 2, 0, 0}, 0},
                {{4 * page, 2, 0, 1}, 2},
                {{4 * page, 2, 1, page}, 2},
                {{4 * page, 2, page, 4 * page}, 8}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CHECK_OK(segment_reserve(segment, "sparse", &rows[i].parts));
        CHECK(fstat(fd, &stat) == 0);
        CHECK_INT((size_t)stat.st_blocks * 512, rows[i].n_pages * page);
    }
    segment_release(segment, &rows[3].parts);
    CHECK(fstat(fd, &stat) == 0);
    CHECK_INT((size_t)stat.st_blocks * 512, 2 * page);
    const struct segment_parts huge = {(size_t)1 << 49, 2, 0, (size_t)1 << 49};
    CHECK_STATUS(segment_reserve(segment, "sparse", &huge), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT("\"sparse\" of 1125899906842624 bytes (1048576.00 GiB): only ");
    (void)close(fd);
    CHECK_OK(segment_reserve(segment, "sparse", &rows[3].parts)); /* by a descriptor of its own */
    segment_unref(segment);
}

static shoal_status create_and_map(void *context)
{
    int fd = -1;
    shoal_status status = segment_create_fd("swept", 4096, &fd);
    if (status != SHOAL_OK) {
        return status;
    }
    struct segment *segment = NULL;
    status = segment_map(fd, 4096, &segment);
    segment_unref(segment);
    (void)close(fd);
    return status;
}

TEST(allocations_may_fail)
{
    CHECK(test_sweep_allocations(create_and_map, NULL) >= 1);
}
