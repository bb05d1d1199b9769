/* SPDX-License-Identifier: MIT */
/* The lock of a directory of checkpoints, and the directory itself. */
#include "train/lock.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "base/write.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOCK_NAME ".run"
#define PATIENCE_NS 3000000000 /* a process that was killed may need a moment to end */
#define PAUSE_NS 20000000

enum {
    HOLDER_BYTES = 128
};

struct train_lock {
    char directory[PATH_MAX];
    char path[PATH_MAX + sizeof LOCK_NAME];
    size_t n_made; /* directories, from the last one of the path upwards */
    int fd;        /* -1 if there is none */
};

/* Directories -------------------------------------------------------------------------------------------- */

static shoal_status fail_directory(const struct train_lock *lock, const char *part)
{
    return error_set(SHOAL_ERR_SYSTEM, "--checkpoint: %s cannot be created: %s: %s", lock->directory, part,
                     error_errno_text(errno));
}

/* Makes what is missing of the path. */
static shoal_status make_directories(struct train_lock *lock)
{
    char part[PATH_MAX];
    size_t length = strlen(lock->directory);
    memcpy(part, lock->directory, length + 1);
    for (size_t end = 1; end <= length; end++) {
        if (part[end - 1] == '/' || (part[end] != '/' && part[end] != '\0')) {
            continue;
        }
        part[end] = '\0';
        if (mkdir(part, 0777) == 0) {
            lock->n_made++;
        } else {
            int reason = errno; /* a link that leads nowhere exists, too */
            if (access(part, F_OK) != 0) {
                errno = reason;
                return fail_directory(lock, part);
            }
        }
        part[end] = lock->directory[end];
    }
    return SHOAL_OK;
}

/* Only empty ones go. */
static void remove_directories(struct train_lock *lock)
{
    size_t length = strlen(lock->directory);
    for (; lock->n_made > 0 && rmdir(lock->directory) == 0; lock->n_made--) {
        while (length > 0 && lock->directory[length - 1] == '/') {
            length--;
        }
        while (length > 0 && lock->directory[length - 1] != '/') {
            length--;
        }
        lock->directory[length] = '\0';
    }
}

/* The file ----------------------------------------------------------------------------------------------- */

/* Opens the file and tries to lock it. *is_held_out: another process has it. */
static shoal_status try_lock(struct train_lock *lock, bool *is_held_out)
{
    struct stat about;
    *is_held_out = false;
    lock->fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
    if (lock->fd < 0) {
        return error_set(SHOAL_ERR_SYSTEM, "--checkpoint: %s: %s", lock->path, error_errno_text(errno));
    }
    if (flock(lock->fd, LOCK_EX | LOCK_NB) != 0) {
        *is_held_out = errno == EWOULDBLOCK;
        return SHOAL_OK;
    }
    /* Who held it has removed the file since it was opened: it locks nothing any more. */
    *is_held_out = fstat(lock->fd, &about) == 0 && about.st_nlink == 0;
    return SHOAL_OK;
}

/* "process 4711 on this-host", as its holder has written it. */
static void read_holder(const struct train_lock *lock, char holder[HOLDER_BYTES])
{
    ssize_t length = pread(lock->fd, holder, HOLDER_BYTES - 1, 0);
    holder[length > 0 ? length : 0] = '\0';
    holder[strcspn(holder, "\n")] = '\0';
}

static void write_holder(const struct train_lock *lock)
{
    char host[64] = "";
    char holder[HOLDER_BYTES];
    (void)gethostname(host, sizeof host - 1);
    int length = snprintf(holder, sizeof holder, "process %ld on %s\n", (long)getpid(), host);
    /* What cannot be written is missing from a message, and does not matter otherwise. */
    (void)write_resize(lock->fd, 0);
    (void)write_all_at(lock->fd, 0, holder, (size_t)length);
}

static shoal_status lock_file(struct train_lock *lock)
{
    int64_t until_ns = clock_now_ns() + PATIENCE_NS;
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    bool is_held = true;
    while (is_held) {
        TRY(try_lock(lock, &is_held));
        if (is_held && clock_now_ns() >= until_ns) {
            char holder[HOLDER_BYTES];
            read_holder(lock, holder);
            return error_set(SHOAL_ERR_STATE,
                             "--checkpoint: another run saves in %s (%s): wait for its end, or name another "
                             "directory",
                             lock->directory, holder[0] ? holder : "its process is not known");
        }
        if (is_held) {
            (void)close(lock->fd);
            lock->fd = -1;
            (void)nanosleep(&pause, NULL);
        }
    }
    write_holder(lock);
    return SHOAL_OK;
}

shoal_status train_lock_take(const char *directory, struct train_lock **lock_out)
{
    struct train_lock *lock = mem_alloc_zeroed(1, sizeof *lock);
    if (!lock) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for the lock of %s", directory);
    }
    lock->fd = -1;
    (void)snprintf(lock->directory, sizeof lock->directory, "%s", directory);
    (void)snprintf(lock->path, sizeof lock->path, "%s/" LOCK_NAME, lock->directory);
    shoal_status status = make_directories(lock);
    if (status == SHOAL_OK) {
        status = lock_file(lock);
    }
    if (status != SHOAL_OK) {
        if (lock->fd >= 0) {
            (void)close(lock->fd); /* the file is another run's */
        }
        remove_directories(lock);
        mem_free(lock);
        return status;
    }
    *lock_out = lock;
    return SHOAL_OK;
}

void train_lock_free(struct train_lock *lock)
{
    if (!lock) {
        return;
    }
    (void)unlink(lock->path);
    (void)close(lock->fd);
    remove_directories(lock);
    mem_free(lock);
}
