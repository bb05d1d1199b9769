/* SPDX-License-Identifier: MIT */
/*
 * Files that are written safely: see file.h.
 *
 * Writers hold a shared flock. Whoever removes temporary files of dead writers asks for an exclusive one, and gets it
 * only if nobody writes. A file that was made but not locked yet may be removed this way: its writer then sees that the
 * file has no name any more, and makes another one.
 *
 * Directories are opened at the beginning, so that the program may change its working directory meanwhile, and so that
 * missing permissions are found before anything is written.
 */
#include "checkpoint/io/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/try.h"
#include "base/write.h"
#include "checkpoint/io/path.h"

#define MARK ".partial-"
#define MARK_BYTES (sizeof(MARK) - 1)
#define NUMBER_DIGITS 16
#define MAX_ATTEMPTS 100

/* Names ------------------------------------------------------------------------------------------------ */

/* How many bytes of the target's name fit into the name of the temporary file. */
static size_t count_kept(const char *name)
{
    const size_t most = NAME_MAX - MARK_BYTES - NUMBER_DIGITS;
    size_t length = strlen(name);
    size_t kept = length < most ? length : most;
    /* Not in the middle of a character. */
    while (kept < length && kept > 0 && ((unsigned char)name[kept] & 0xC0) == 0x80) {
        kept--;
    }
    return kept;
}

static bool is_temporary_of(const char *entry, const char *name)
{
    size_t kept = count_kept(name);
    return strlen(entry) == kept + MARK_BYTES + NUMBER_DIGITS && strncmp(entry, name, kept) == 0 &&
           strncmp(entry + kept, MARK, MARK_BYTES) == 0 &&
           strspn(entry + kept + MARK_BYTES, "0123456789abcdef") == NUMBER_DIGITS;
}

/* The path of a temporary file beside the target, without its number; number_out: where that goes. */
static char *make_path(const char *target, char **number_out)
{
    size_t kept = (size_t)(path_name(target) - target) + count_kept(path_name(target));
    char *path = mem_alloc(kept + MARK_BYTES + NUMBER_DIGITS + 1);
    if (path) {
        memcpy(path, target, kept);
        memcpy(path + kept, MARK, MARK_BYTES);
        *number_out = path + kept + MARK_BYTES;
    }
    return path;
}

/* Locks ------------------------------------------------------------------------------------------------ */

/* Locks a new file. *is_lost_out: somebody has removed it, or is about to, as that of a dead writer. */
static shoal_status lock(int fd, const char *path, bool *is_lost_out)
{
    struct stat info;
    /* On a file system without locks, those who remove files get none either. */
    *is_lost_out = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (*is_lost_out) {
        return SHOAL_OK;
    }
    if (fstat(fd, &info) != 0) {
        return path_fail(path, "stat", errno);
    }
    *is_lost_out = info.st_nlink == 0;
    return SHOAL_OK;
}

static void remove_unless_locked(int directory_fd, const char *entry)
{
    struct stat info;
    int fd = openat(directory_fd, entry, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        FAIL_POINT_CODE("unlink") == 0) {
        (void)unlinkat(directory_fd, entry, 0);
    }
    (void)close(fd);
}

/* Removes what dead writers left. What cannot be removed stays; it does no harm. */
static void remove_left(const struct file *file)
{
    const char *name = path_name(file->target);
    int fd = openat(file->directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (!directory) {
        (void)(fd < 0 ? 0 : close(fd));
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (is_temporary_of(entry->d_name, name)) {
            remove_unless_locked(file->directory_fd, entry->d_name);
        }
    }
    (void)closedir(directory);
}

/* Making ----------------------------------------------------------------------------------------------- */

/* Tries one number. -1 in file->fd: it is taken, or was lost. */
static shoal_status try_number(struct file *file, char *number)
{
    uint64_t random;
    bool is_lost;
    file->fd = -1;
    if (!os_random(&random, sizeof(random))) {
        return path_fail(file->path, "find a free name", errno);
    }
    (void)snprintf(number, NUMBER_DIGITS + 1, "%0*" PRIx64, NUMBER_DIGITS, random);
    int fd = path_create_file(file->directory_fd, path_name(file->path), O_EXCL);
    if (fd < 0) {
        return errno == EEXIST ? SHOAL_OK : path_fail(file->path, "create", errno);
    }
    shoal_status status = lock(fd, file->path, &is_lost);
    if (status != SHOAL_OK || is_lost) {
        (void)close(fd);
        return status;
    }
    file->fd = fd;
    file->is_temporary = true;
    return SHOAL_OK;
}

static shoal_status create_temporary(struct file *file, mode_t mode)
{
    char *number;
    file->path = make_path(file->target, &number);
    if (!file->path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    remove_left(file);
    for (int i = 0; file->fd < 0; i++) {
        if (i == MAX_ATTEMPTS) {
            return path_fail(file->path, "create", EEXIST);
        }
        TRY(try_number(file, number));
    }
    if (mode != 0 && fchmod(file->fd, mode) != 0) {
        return path_fail(file->path, "set the permissions", errno);
    }
    return SHOAL_OK;
}

shoal_status file_create(const char *target, struct file *file_out)
{
    struct file file = {.fd = -1, .directory_fd = -1, .owner = getpid()};
    mode_t mode = 0;
    TRY(path_resolve(target, &file.target, &mode));
    shoal_status status = path_open_parent(file.target, &file.directory_fd);
    if (status == SHOAL_OK) {
        status = create_temporary(&file, mode);
    }
    if (status != SHOAL_OK) {
        file_close(&file);
        return status;
    }
    *file_out = file;
    return SHOAL_OK;
}

static shoal_status open_joined(const char *path, int *fd_out)
{
    struct stat info;
    bool is_lost = false;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return path_fail(path, "open", errno);
    }
    shoal_status status = SHOAL_OK;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        status = error_set(SHOAL_ERR_INVALID, "%.240s: is not a regular file", path);
    } else {
        status = lock(fd, path, &is_lost);
    }
    if (status == SHOAL_OK && is_lost) {
        status =
            error_set(SHOAL_ERR_STATE, "%.240s: was removed when the process that created it ended", path);
    }
    if (status != SHOAL_OK) {
        (void)close(fd);
        return status;
    }
    *fd_out = fd;
    return SHOAL_OK;
}

shoal_status file_join(const char *path, struct file *file_out)
{
    struct file file = {.fd = -1, .directory_fd = -1, .owner = getpid()};
    file.path = mem_copy_string(path);
    if (!file.path) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = open_joined(path, &file.fd);
    if (status != SHOAL_OK) {
        file_close(&file);
        return status;
    }
    *file_out = file;
    return SHOAL_OK;
}

shoal_status file_open_in_place(const char *path, struct file *file_out)
{
    struct file file = {.fd = -1, .directory_fd = -1, .owner = getpid()};
    file.fd = path_create_file(AT_FDCWD, path, 0);
    if (file.fd < 0) {
        return path_fail(path, "create", errno);
    }
    file.path = mem_copy_string(path);
    if (!file.path) {
        file_close(&file);
        return SHOAL_ERR_NO_MEMORY;
    }
    *file_out = file;
    return SHOAL_OK;
}

/* Writing ---------------------------------------------------------------------------------------------- */

shoal_status file_write(const struct file *file, uint64_t offset, const void *data, size_t bytes)
{
    char what[80];
    if (bytes == 0) {
        return SHOAL_OK;
    }
    int code = FAIL_POINT_CODE("write");
    code = code != 0 ? code : write_all_at(file->fd, offset, data, bytes);
    if (code == 0) {
        return SHOAL_OK;
    }
    (void)snprintf(what, sizeof what, "write of %zu bytes at byte %" PRIu64, bytes, offset);
    return path_fail(file->path, what, code);
}

shoal_status file_resize(const struct file *file, uint64_t bytes)
{
    char what[48];
    int code = FAIL_POINT_CODE("truncate");
    code = code != 0 ? code : write_resize(file->fd, bytes);
    if (code == 0) {
        return SHOAL_OK;
    }
    (void)snprintf(what, sizeof what, "set the size of %" PRIu64 " bytes", bytes);
    return path_fail(file->path, what, code);
}

void file_begin_sync(const struct file *file, uint64_t offset, uint64_t bytes)
{
    /* Without waiting, because a wait would report errors here that fsync then no longer reports. */
    (void)sync_file_range(file->fd, (off_t)offset, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
}

shoal_status file_sync(const struct file *file)
{
    int code;
    do {
        code = FAIL_POINT_CODE("fsync");
        if (code == 0 && fsync(file->fd) != 0) {
            code = errno;
        }
    } while (code == EINTR);
    return code == 0 ? SHOAL_OK : path_fail(file->path, "fsync", code);
}

shoal_status file_commit(struct file *file)
{
    TRY(file_sync(file));
    int code = FAIL_POINT_CODE("rename");
    if (code == 0 && renameat(file->directory_fd, path_name(file->path), file->directory_fd,
                              path_name(file->target)) != 0) {
        code = errno;
    }
    if (code != 0) {
        return path_fail(file->target, "rename", code);
    }
    file->is_temporary = false;
    return path_sync(file->directory_fd, file->target);
}

void file_close(struct file *file)
{
    if (file->is_temporary && file->owner == getpid() && FAIL_POINT_CODE("unlink") == 0) {
        (void)unlinkat(file->directory_fd, path_name(file->path), 0);
    }
    if (file->fd >= 0) {
        (void)close(file->fd);
    }
    if (file->directory_fd >= 0) {
        (void)close(file->directory_fd);
    }
    mem_free(file->path);
    mem_free(file->target);
    *file = (struct file){.fd = -1, .directory_fd = -1};
}

shoal_status file_save(const char *target, const void *data, size_t bytes)
{
    struct file file;
    TRY(file_create(target, &file));
    shoal_status status = file_write(&file, 0, data, bytes);
    if (status == SHOAL_OK) {
        status = file_commit(&file);
    }
    file_close(&file);
    return status;
}

/* Reading ---------------------------------------------------------------------------------------------- */

shoal_status file_read_at(int fd, uint64_t offset, void *out, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = pread(fd, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return error_set(SHOAL_ERR_SYSTEM, "reading %zu bytes at %" PRIu64 ": %s", bytes, offset,
                             strerror(errno));
        }
        if (got == 0) {
            return error_set(SHOAL_ERR_SYSTEM,
                             "the file ends at byte %" PRIu64 ", before %" PRIu64 ": it has become shorter",
                             offset + done, offset + bytes);
        }
        done += (size_t)got;
    }
    return SHOAL_OK;
}
