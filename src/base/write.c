/* SPDX-License-Identifier: MIT */
/*
 * Writing to files. The kernel sends SIGXFSZ to the thread that writes. It is blocked there, stays pending, and is
 * removed.
 */
#include "base/write.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* The signal ------------------------------------------------------------------------------------------- */

struct blocked_signal {
    sigset_t limit;
    sigset_t before;
    bool is_anothers; /* one that the application has kept waiting stays */
};

static struct blocked_signal block_signal(void)
{
    struct blocked_signal blocked;
    sigset_t pending;
    (void)sigemptyset(&blocked.limit);
    (void)sigaddset(&blocked.limit, SIGXFSZ);
    (void)pthread_sigmask(SIG_BLOCK, &blocked.limit, &blocked.before);
    blocked.is_anothers = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    return blocked;
}

static void unblock_signal(const struct blocked_signal *blocked, int code)
{
    if (code == EFBIG && !blocked->is_anothers) {
        const struct timespec none = {.tv_sec = 0};
        (void)sigtimedwait(&blocked->limit, NULL, &none);
    }
    (void)pthread_sigmask(SIG_SETMASK, &blocked->before, NULL);
}

/* Writing ---------------------------------------------------------------------------------------------- */

#define AT_POSITION UINT64_MAX

static int write_with_signals(int fd, uint64_t offset, const char *bytes, size_t n_bytes)
{
    while (n_bytes > 0) {
        ssize_t n_written =
            offset == AT_POSITION ? write(fd, bytes, n_bytes) : pwrite(fd, bytes, n_bytes, (off_t)offset);
        if (n_written < 0 && errno == EINTR) {
            continue;
        }
        if (n_written <= 0) {
            return n_written < 0 ? errno : EIO;
        }
        bytes += n_written;
        n_bytes -= (size_t)n_written;
        offset += offset == AT_POSITION ? 0 : (uint64_t)n_written;
    }
    return 0;
}

static int write_anywhere(int fd, uint64_t offset, const void *bytes, size_t n_bytes)
{
    struct blocked_signal blocked = block_signal();
    int code = write_with_signals(fd, offset, bytes, n_bytes);
    unblock_signal(&blocked, code);
    return code;
}

int write_all(int fd, const void *bytes, size_t n_bytes)
{
    return write_anywhere(fd, AT_POSITION, bytes, n_bytes);
}

int write_all_at(int fd, uint64_t offset, const void *bytes, size_t n_bytes)
{
    if (offset > INT64_MAX || n_bytes > INT64_MAX - offset) {
        return EFBIG;
    }
    return write_anywhere(fd, offset, bytes, n_bytes);
}

int write_resize(int fd, uint64_t n_bytes)
{
    int result;
    if (n_bytes > INT64_MAX) {
        return EFBIG;
    }
    struct blocked_signal blocked = block_signal();
    do {
        result = ftruncate(fd, (off_t)n_bytes);
    } while (result != 0 && errno == EINTR);
    int code = result == 0 ? 0 : errno;
    unblock_signal(&blocked, code);
    return code;
}
