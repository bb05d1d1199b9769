/* SPDX-License-Identifier: MIT */
/* Writing to files: everything or a code, and no signal when a file may not grow. */
#include "base/write.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "harness/test.h"

#define LIMIT_BYTES 1000

static bool is_pending(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
}

/* A file that may have LIMIT_BYTES, of which three are left. */
static int open_full_file(struct rlimit *before_out)
{
    static const char bytes[LIMIT_BYTES - 3] = "some";
    int fd = memfd_create("full", MFD_CLOEXEC);
    CHECK(getrlimit(RLIMIT_FSIZE, before_out) == 0);
    struct rlimit lowered = {.rlim_cur = LIMIT_BYTES, .rlim_max = before_out->rlim_max};
    CHECK(setrlimit(RLIMIT_FSIZE, &lowered) == 0);
    CHECK_INT(write_all(fd, bytes, sizeof bytes), 0);
    return fd;
}

static void write_beyond(void *context)
{
    struct rlimit before;
    int fd = open_full_file(&before);
    CHECK_INT(write_all(fd, "12", 2), 0);
    CHECK_INT(write_all(fd, "3456", 4), EFBIG);
    CHECK(!is_pending());
    CHECK_INT(lseek(fd, 0, SEEK_END), LIMIT_BYTES);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK_INT(write_all(fd, "456", 3), 0);
    CHECK(close(fd) == 0);
}

TEST(a_limit_is_a_code_and_no_signal)
{
    test_in_child(write_beyond, NULL);
}

/* One that was there before belongs to the application, and its mask stays as it was. */
static void write_with_one_pending(void *context)
{
    struct rlimit before;
    sigset_t blocked;
    sigset_t after;
    (void)sigemptyset(&blocked);
    (void)sigaddset(&blocked, SIGXFSZ);
    REQUIRE(pthread_sigmask(SIG_BLOCK, &blocked, NULL) == 0);
    int fd = open_full_file(&before);
    CHECK_INT(write_all(fd, "1234", 4), EFBIG);
    CHECK(!is_pending());
    REQUIRE(raise(SIGXFSZ) == 0);
    CHECK_INT(write_all(fd, "1234", 4), EFBIG);
    CHECK(is_pending());
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &after) == 0 && sigismember(&after, SIGXFSZ) == 1);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(close(fd) == 0);
}

TEST(a_signal_of_the_application_stays)
{
    test_in_child(write_with_one_pending, NULL);
}

TEST(what_can_not_be_written_gives_its_code)
{
    CHECK_INT(write_all(-1, "1", 1), EBADF);
    CHECK_INT(write_all(-1, NULL, 0), 0);
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        CHECK_INT(write_all(fd, "1", 1), ENOSPC);
        CHECK(close(fd) == 0);
    }
}

static void write_at_and_resize(void *context)
{
    struct rlimit before;
    char bytes[6] = "";
    (void)context;
    int fd = open_full_file(&before);
    /* Half of it fits: that half is written, and the rest is the code. */
    CHECK_INT(write_all_at(fd, LIMIT_BYTES - 2, "abcd", 4), EFBIG);
    CHECK(!is_pending());
    CHECK_INT(pread(fd, bytes, 4, LIMIT_BYTES - 2), 2);
    CHECK_STRING(bytes, "ab");
    CHECK_INT(write_all_at(fd, 0, "first", 5), 0);
    CHECK_INT(pread(fd, bytes, 5, 0), 5);
    CHECK_STRING(bytes, "first");
    /* The position is where write_all left it. */
    CHECK_INT(lseek(fd, 0, SEEK_CUR), LIMIT_BYTES - 3);
    CHECK_INT(write_resize(fd, LIMIT_BYTES + 1), EFBIG);
    CHECK(!is_pending());
    CHECK_INT(write_resize(fd, 10), 0);
    CHECK_INT(lseek(fd, 0, SEEK_END), 10);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(close(fd) == 0);
}

TEST(a_limit_is_a_code_at_offsets_too)
{
    test_in_child(write_at_and_resize, NULL);
}

TEST(offsets_that_no_file_has)
{
    CHECK_INT(write_all_at(-1, 0, "1", 1), EBADF);
    CHECK_INT(write_all_at(-1, UINT64_MAX, "1", 1), EFBIG);
    CHECK_INT(write_all_at(-1, INT64_MAX, "12", 2), EFBIG);
    CHECK_INT(write_resize(-1, 1), EBADF);
    CHECK_INT(write_resize(-1, (uint64_t)INT64_MAX + 1), EFBIG);
}
