/* SPDX-License-Identifier: MIT */
/* Directories and names: see path.h. */
#include "checkpoint/path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/try.h"

/* As many as the kernel follows. */
#define MAX_LINKS 40

/* Error texts ------------------------------------------------------------------------------------------ */

shoal_status path_fail(const char *path, const char *operation, int code)
{
    const size_t most = 240;
    size_t length = strlen(path);
    bool is_long = length > most;
    return error_set(SHOAL_ERR_SYSTEM, "%s%s: %s: %s", is_long ? "..." : "",
                     is_long ? path + length - most : path, operation, error_errno_text(code));
}

const char *path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

shoal_status path_absolute(const char *path, char **absolute_out)
{
    char current[PATH_MAX] = "";
    bool is_relative = path[0] != '/';
    if (is_relative && !getcwd(current, sizeof current)) {
        return path_fail(path, "find the working directory", errno);
    }
    size_t bytes = strlen(current) + 1 + strlen(path) + 1;
    char *absolute = mem_alloc(bytes);
    if (!absolute) {
        return SHOAL_ERR_NO_MEMORY;
    }
    (void)snprintf(absolute, bytes, "%s%s%s", current, is_relative ? "/" : "", path);
    *absolute_out = absolute;
    return SHOAL_OK;
}

/* Links ------------------------------------------------------------------------------------------------ */

/* Replaces `path`, which is a link, by the link's target; a relative target begins in the link's directory. */
static shoal_status follow(char path[PATH_MAX])
{
    char link[PATH_MAX];
    ssize_t length = readlink(path, link, sizeof link);
    if (length < 0) {
        return path_fail(path, "read the symbolic link", errno);
    }
    size_t kept = link[0] == '/' ? 0 : (size_t)(path_name(path) - path);
    if (length == 0 || kept + (size_t)length >= PATH_MAX) {
        return path_fail(path, "follow the symbolic link", length == 0 ? ENOENT : ENAMETOOLONG);
    }
    memcpy(path + kept, link, (size_t)length);
    path[kept + (size_t)length] = '\0';
    return SHOAL_OK;
}

/* *is_link_out: it has to be followed. */
static shoal_status look_at(const char *path, bool *is_link_out, mode_t *mode_out)
{
    struct stat info;
    *is_link_out = false;
    if (path_name(path)[0] == '\0') {
        return path_fail(path, "is not a file", path[0] == '\0' ? ENOENT : EISDIR);
    }
    if (lstat(path, &info) != 0) {
        return errno == ENOENT ? SHOAL_OK : path_fail(path, "stat", errno);
    }
    *is_link_out = S_ISLNK(info.st_mode);
    if (!*is_link_out && !S_ISREG(info.st_mode)) {
        return error_set(SHOAL_ERR_INVALID, "%.240s: is %s, not a regular file", path,
                         S_ISDIR(info.st_mode) ? "a directory" : "a device, pipe or socket");
    }
    *mode_out = S_ISREG(info.st_mode) ? info.st_mode & 0777 : 0;
    return SHOAL_OK;
}

shoal_status path_resolve(const char *path, char **resolved_out, mode_t *mode_out)
{
    char resolved[PATH_MAX];
    mode_t mode = 0;
    bool is_link = true;
    if (strlen(path) >= sizeof resolved) {
        return path_fail(path, "stat", ENAMETOOLONG);
    }
    memcpy(resolved, path, strlen(path) + 1);
    for (int n_links = 0; is_link; n_links++) {
        if (n_links > MAX_LINKS) {
            return path_fail(path, "follow the symbolic link", ELOOP);
        }
        TRY(look_at(resolved, &is_link, &mode));
        if (is_link) {
            TRY(follow(resolved));
        }
    }
    char *copy = mem_copy_string(resolved);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *resolved_out = copy;
    *mode_out = mode;
    return SHOAL_OK;
}

/* Directories ------------------------------------------------------------------------------------------ */

shoal_status path_open_parent(const char *path, int *fd_out)
{
    char parent[PATH_MAX] = ".";
    size_t length = strlen(path);
    while (length > 0 && path[length - 1] == '/') {
        length--; /* the name of a directory may end in slashes */
    }
    while (length > 0 && path[length - 1] != '/') {
        length--;
    }
    if (length >= sizeof parent) {
        return path_fail(path, "open its directory", ENAMETOOLONG);
    }
    if (length > 0) {
        memcpy(parent, path, length);
        parent[length] = '\0';
    }
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return path_fail(path, "open its directory", errno);
    }
    *fd_out = fd;
    return SHOAL_OK;
}

shoal_status path_sync(int directory_fd, const char *path)
{
    int code;
    do {
        code = FAIL_POINT_CODE("sync directory");
        if (code == 0 && fsync(directory_fd) != 0) {
            code = errno;
        }
    } while (code == EINTR);
    bool is_kept = code == EINVAL; /* a file system that makes directories durable by itself */
    return code == 0 || is_kept ? SHOAL_OK : path_fail(path, "fsync of its directory", code);
}

shoal_status path_sync_parent(const char *path)
{
    int fd;
    TRY(path_open_parent(path, &fd));
    shoal_status status = path_sync(fd, path);
    (void)close(fd);
    return status;
}

int path_create_file(int directory_fd, const char *path, int flags)
{
    int fd;
    int code;
    do {
        code = FAIL_POINT_CODE("create");
        fd = code != 0 ? -1
                       : openat(directory_fd, path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | flags, 0666);
        if (fd < 0) {
            code = code != 0 ? code : errno;
        }
    } while (code == EINTR);
    if (fd < 0) {
        errno = code;
    }
    return fd;
}

shoal_status path_make_directory(const char *path, bool *is_new_out)
{
    struct stat info;
    int code = FAIL_POINT_CODE("mkdir");
    if (code == 0 && mkdir(path, 0777) != 0) {
        code = errno;
    }
    if (code == EEXIST && stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        *is_new_out = false;
        return SHOAL_OK;
    }
    if (code != 0) {
        return path_fail(path, "mkdir", code);
    }
    shoal_status status = path_sync_parent(path);
    if (status != SHOAL_OK) {
        (void)rmdir(path);
        return status;
    }
    *is_new_out = true;
    return SHOAL_OK;
}

shoal_status path_rename(const char *from, const char *to, bool *is_done_out)
{
    int code = FAIL_POINT_CODE("rename");
    if (code == 0 && rename(from, to) != 0) {
        code = errno;
    }
    if (is_done_out) {
        *is_done_out = code == 0;
    }
    return code == 0 ? path_sync_parent(to) : path_fail(to, "rename", code);
}

shoal_status path_exchange(const char *a, const char *b, bool *is_possible_out, bool *is_done_out)
{
    int code = FAIL_POINT_CODE("exchange");
    if (code == 0 && os_exchange_names(a, b) != 0) {
        code = errno;
    }
    *is_done_out = code == 0;
    *is_possible_out = code != EINVAL && code != ENOSYS && code != ENOTSUP;
    if (code != 0) {
        return *is_possible_out ? path_fail(b, "exchange of names", code) : SHOAL_OK;
    }
    return path_sync_parent(b);
}

shoal_status path_remove(const char *path)
{
    int code = FAIL_POINT_CODE("unlink");
    if (code == 0 && unlink(path) != 0) {
        code = errno;
    }
    return code == 0 || code == ENOENT ? SHOAL_OK : path_fail(path, "unlink", code);
}

shoal_status path_remove_directory(const char *path)
{
    int code = FAIL_POINT_CODE("rmdir");
    if (code == 0 && rmdir(path) != 0) {
        code = errno;
    }
    return code == 0 || code == ENOENT ? SHOAL_OK : path_fail(path, "rmdir", code);
}

/* *is_directory_out: and not a link to one. */
static shoal_status remove_entry(const char *path, bool *is_directory_out)
{
    struct stat info;
    *is_directory_out = false;
    if (lstat(path, &info) != 0) {
        return errno == ENOENT ? SHOAL_OK : path_fail(path, "stat", errno);
    }
    *is_directory_out = S_ISDIR(info.st_mode);
    return *is_directory_out ? SHOAL_OK : path_remove(path);
}

/* Removes the files of a directory. If there is a directory in it, `inner` gets its path; otherwise "". */
static shoal_status remove_files(const char *path, char inner[PATH_MAX])
{
    inner[0] = '\0';
    DIR *directory = opendir(path);
    if (!directory) {
        return errno == ENOENT ? SHOAL_OK : path_fail(path, "open", errno);
    }
    shoal_status status = SHOAL_OK;
    for (struct dirent *entry; status == SHOAL_OK && inner[0] == '\0' && (entry = readdir(directory));) {
        char child[PATH_MAX];
        bool is_directory = false;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        if (snprintf(child, sizeof child, "%s/%s", path, entry->d_name) >= (int)sizeof child) {
            status = path_fail(path, "path of an entry", ENAMETOOLONG);
            break;
        }
        status = remove_entry(child, &is_directory);
        if (is_directory) {
            memcpy(inner, child, strlen(child) + 1);
        }
    }
    (void)closedir(directory);
    return status;
}

shoal_status path_remove_tree(const char *path)
{
    char at[PATH_MAX];
    char inner[PATH_MAX];
    size_t length = strlen(path);
    if (length >= sizeof at) {
        return path_fail(path, "remove", ENAMETOOLONG);
    }
    memcpy(at, path, length + 1);
    /* Goes down while there are directories; removes an empty one, and goes on with its parent. */
    while (strlen(at) >= length) {
        TRY(remove_files(at, inner));
        if (inner[0] != '\0') {
            memcpy(at, inner, strlen(inner) + 1);
            continue;
        }
        TRY(path_remove_directory(at));
        if (strlen(at) == length) {
            break;
        }
        at[(size_t)(path_name(at) - at) - 1] = '\0';
    }
    return SHOAL_OK;
}
