/* SPDX-License-Identifier: MIT */
/* The lock that ranks have while the launcher is to wait for them. See run/hold.h. */
#include "run/hold.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* The number of the file, for ranks. It is not among the variables of the library, which go to other hosts, too. */
#define VARIABLE "_SHOAL_RUN_HOLD"

enum {
    LEAST_FD = 100
};

static int change_lock(int fd, int command, short type, short *type_out)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET};
    int result = fcntl(fd, command, &lock);
    *type_out = lock.l_type;
    return result;
}

/* Programs use small numbers for files of their own: a shell's "3>log" would end a hold. */
int run_hold_make(void)
{
    int low = memfd_create("shoal run hold", MFD_CLOEXEC);
    int fd = low >= 0 ? fcntl(low, F_DUPFD_CLOEXEC, LEAST_FD) : -1;
    if (fd < 0) {
        return low; /* files may not have such numbers here */
    }
    (void)close(low);
    return fd;
}

bool run_hold_pass(int fd)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%d", fd);
    return fcntl(fd, F_SETFD, 0) == 0 && setenv(VARIABLE, text, /*overwrite=*/1) == 0;
}

bool run_hold_is_taken(int fd)
{
    short found = F_UNLCK;
    return fd >= 0 && change_lock(fd, F_GETLK, F_WRLCK, &found) == 0 && found != F_UNLCK;
}

void run_hold_ask(int fd)
{
    (void)!pwrite(fd, "!", 1, 0);
}

bool run_hold_was_asked(int fd)
{
    char byte;
    return pread(fd, &byte, 1, 0) == 1;
}

/* A number that is not a file of this process does no harm: what is done with it fails. */
int run_hold_find(void)
{
    const char *text = getenv(VARIABLE);
    char *end = NULL;
    long fd = text ? strtol(text, &end, 10) : -1;
    return fd > 2 && fd < 1 << 20 && *end == '\0' ? (int)fd : -1;
}

static void set_lock(short type)
{
    int fd = run_hold_find();
    short ignored = F_UNLCK;
    if (fd >= 0) {
        (void)change_lock(fd, F_SETLK, type, &ignored);
    }
}

void run_hold_take(void)
{
    set_lock(F_RDLCK);
}

void run_hold_release(void)
{
    set_lock(F_UNLCK);
}
