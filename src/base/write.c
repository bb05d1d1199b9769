/* SPDX-License-Identifier: MIT */
/* Writing to files. SIGXFSZ goes to the thread that writes: blocked there, it waits until it is taken back. */
#include "base/write.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static int write_with_signals(int fd, const char *bytes, size_t n_bytes)
{
    while (n_bytes > 0) {
        ssize_t n_written = write(fd, bytes, n_bytes);
        if (n_written < 0 && errno == EINTR) {
            continue;
        }
        if (n_written <= 0) {
            return n_written < 0 ? errno : EIO;
        }
        bytes += n_written;
        n_bytes -= (size_t)n_written;
    }
    return 0;
}

int write_all(int fd, const void *bytes, size_t n_bytes)
{
    sigset_t limit;
    sigset_t before;
    sigset_t pending;
    (void)sigemptyset(&limit);
    (void)sigaddset(&limit, SIGXFSZ);
    (void)pthread_sigmask(SIG_BLOCK, &limit, &before);
    /* One that the application has kept waiting stays. */
    bool is_anothers = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    int code = write_with_signals(fd, bytes, n_bytes);
    if (code == EFBIG && !is_anothers) {
        const struct timespec none = {.tv_sec = 0};
        (void)sigtimedwait(&limit, NULL, &none);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}
