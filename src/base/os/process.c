/* SPDX-License-Identifier: MIT */
/* Memory of another process. */
#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/os/fault.h"
#include "base/os/os.h"

int64_t os_process(void)
{
    return getpid();
}

int64_t os_read_process(int64_t process, uint64_t address, void *target, size_t bytes)
{
    struct iovec here = {.iov_base = target, .iov_len = bytes};
    struct iovec there = {.iov_base = (void *)(uintptr_t)address, .iov_len = bytes};
    ssize_t n_read;
    if (os_fault("read process")) {
        return -1;
    }
    do {
        n_read = process_vm_readv((pid_t)process, &here, 1, &there, 1, /*flags=*/0);
    } while (n_read < 0 && errno == EINTR);
    return n_read;
}

/* The kernel's rule who may attach to a process; '0' where it has none but the user. */
static char read_attach_rule(void)
{
    char rule = '0';
    int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, &rule, 1) != 1) {
            rule = '0';
        }
        (void)close(fd);
    }
    return rule;
}

void os_let_siblings_read(void)
{
    pid_t parent = getppid();
    /* Everybody is a child of process 1: with it as the parent, all processes of the user would be let in. */
    if (parent > 1 && read_attach_rule() == '1') {
        (void)prctl(PR_SET_PTRACER, (unsigned long)parent, 0, 0, 0);
    }
}

int os_take_descriptor(int64_t process, int fd, const char **call_out)
{
    *call_out = "pidfd_open";
    int opened = (int)syscall(SYS_pidfd_open, (pid_t)process, 0);
    if (opened < 0) {
        return -1;
    }
    *call_out = "pidfd_getfd";
    int taken = (int)syscall(SYS_pidfd_getfd, opened, fd, 0);
    int reason = errno;
    (void)close(opened);
    errno = reason;
    return taken;
}
