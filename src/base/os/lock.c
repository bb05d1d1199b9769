/* SPDX-License-Identifier: MIT */
/* Locks on bytes of a file, which belong to the process (fcntl). */
#include <fcntl.h>
#include <unistd.h>

#include "base/os/fault.h"
#include "base/os/os.h"

static struct flock lock_of(int64_t byte, short type)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
}

int os_lock_byte(int fd, int64_t byte)
{
    struct flock lock = lock_of(byte, F_WRLCK);
    return os_fault("lock") ? -1 : fcntl(fd, F_SETLK, &lock);
}

void os_unlock_byte(int fd, int64_t byte)
{
    struct flock lock = lock_of(byte, F_UNLCK);
    (void)fcntl(fd, F_SETLK, &lock);
}

bool os_is_byte_locked(int fd, int64_t byte)
{
    struct flock lock = lock_of(byte, F_WRLCK);
    return fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}
