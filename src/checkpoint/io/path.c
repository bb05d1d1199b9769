/* SPDX-License-Identifier: MIT */
/* Directories and names: see path.h. */
#include "checkpoint/io/path.h"

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

/* Trees ------------------------------------------------------------------------------------------------- */

/*
 * An entry is named by the descriptor of its directory and by its name in there, never by a path: between two calls
 * somebody might put a symbolic link in the place of a directory, and a path would lead through it. unlinkat does not
 * follow links, and O_NOFOLLOW refuses to open one.
 */

static shoal_status remove_at(int directory_fd, const char *name, int flags, const char *path)
{
    const char *operation = flags == AT_REMOVEDIR ? "rmdir" : "unlink";
    int code = FAIL_POINT_CODE(operation);
    if (code == 0 && unlinkat(directory_fd, name, flags) != 0) {
        code = errno;
    }
    return code == 0 || code == ENOENT ? SHOAL_OK : path_fail(path, operation, code);
}

/* Removes the entry unless it is a directory. *is_directory_out: it is one, and not a link to one. */
static shoal_status remove_unless_directory(int directory_fd, const char *name, const char *path,
                                            bool *is_directory_out)
{
    struct stat info;
    *is_directory_out = false;
    if (fstatat(directory_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        return errno == ENOENT ? SHOAL_OK : path_fail(path, "stat", errno);
    }
    *is_directory_out = S_ISDIR(info.st_mode);
    return *is_directory_out ? SHOAL_OK : remove_at(directory_fd, name, 0, path);
}

/* Removes what is in a directory up to the first directory in it, whose name goes to `inner`; that is "" if the
   directory is empty now. */
static shoal_status remove_files(int directory_fd, const char *path, char inner[NAME_MAX + 1])
{
    inner[0] = '\0';
    int fd = openat(directory_fd, ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (!directory) {
        shoal_status status = path_fail(path, "open", errno);
        (void)(fd < 0 ? 0 : close(fd));
        return status;
    }
    shoal_status status = SHOAL_OK;
    for (struct dirent *entry; status == SHOAL_OK && inner[0] == '\0' && (entry = readdir(directory));) {
        bool is_directory = false;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        status = remove_unless_directory(directory_fd, entry->d_name, path, &is_directory);
        if (is_directory) {
            (void)snprintf(inner, NAME_MAX + 1, "%s", entry->d_name);
        }
    }
    (void)closedir(directory);
    return status;
}

/*
 * Goes down from the directory `name` of `top_fd` while there are directories, removes files on its way, and removes
 * the directory at which it ends. *is_top_out: that was the one at which it began. Two descriptors are enough for trees
 * of any depth.
 */
static shoal_status remove_deepest(int top_fd, const char *name, const char *path, bool *is_top_out)
{
    char at[NAME_MAX + 1];
    char inner[NAME_MAX + 1] = "";
    int parent_fd = top_fd;
    shoal_status status = SHOAL_OK;
    (void)snprintf(at, sizeof at, "%s", name);
    for (bool is_inner = true; is_inner && status == SHOAL_OK;) {
        int fd = openat(parent_fd, at, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) { /* ENOENT: somebody else has removed it */
            status = errno == ENOENT ? SHOAL_OK : path_fail(path, "open", errno);
            break;
        }
        status = remove_files(fd, path, inner);
        is_inner = inner[0] != '\0';
        if (!is_inner || status != SHOAL_OK) {
            (void)close(fd);
            break;
        }
        (void)(parent_fd == top_fd ? 0 : close(parent_fd));
        parent_fd = fd;
        memcpy(at, inner, sizeof at);
    }
    if (status == SHOAL_OK) {
        status = remove_at(parent_fd, at, AT_REMOVEDIR, path);
    }
    *is_top_out = parent_fd == top_fd;
    (void)(parent_fd == top_fd ? 0 : close(parent_fd));
    return status;
}

shoal_status path_remove_tree(const char *path)
{
    const char *name = path_name(path);
    int parent_fd;
    bool is_left = false;
    if (name[0] == '\0' || strlen(name) > NAME_MAX) {
        return path_fail(path, "remove", name[0] == '\0' ? EISDIR : ENAMETOOLONG);
    }
    TRY(path_open_parent(path, &parent_fd));
    shoal_status status = remove_unless_directory(parent_fd, name, path, &is_left);
    while (is_left && status == SHOAL_OK) {
        bool is_top = false;
        status = remove_deepest(parent_fd, name, path, &is_top);
        is_left = !is_top;
    }
    (void)close(parent_fd);
    return status;
}
