/* SPDX-License-Identifier: MIT */
/* Reads a file as a whole. Pipes and devices are refused, because they may never end. */
#include "common/read_file.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static shoal_status fail(const char *path)
{
    shoal_status status = errno == ENOENT || errno == ENOTDIR ? SHOAL_ERR_STATE : SHOAL_ERR_SYSTEM;
    return error_set(status, "%s: %s", path, error_errno_text(errno));
}

static shoal_status read_all(const char *path, int fd, char *text, size_t n_bytes, size_t *bytes_out)
{
    size_t at = 0;
    while (at < n_bytes) {
        ssize_t n_read = read(fd, text + at, n_bytes - at);
        if (n_read == 0) {
            break;
        }
        if (n_read < 0 && errno != EINTR) {
            return fail(path);
        }
        at += n_read > 0 ? (size_t)n_read : 0;
    }
    text[at] = '\0';
    *bytes_out = at;
    return SHOAL_OK;
}

static shoal_status read_open(const char *path, int fd, size_t max_bytes, char **text_out, size_t *bytes_out)
{
    struct stat about;
    if (fstat(fd, &about) != 0) {
        return fail(path);
    }
    if (!S_ISREG(about.st_mode) || (size_t)about.st_size > max_bytes) {
        return error_set(SHOAL_ERR_INVALID, "%s is not a regular file of at most %zu bytes", path, max_bytes);
    }
    char *text = mem_alloc((size_t)about.st_size + 1);
    TRY(text ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
    shoal_status status = read_all(path, fd, text, (size_t)about.st_size, bytes_out);
    if (status != SHOAL_OK) {
        mem_free(text);
        return status;
    }
    *text_out = text;
    return SHOAL_OK;
}

shoal_status tool_read_file(const char *path, size_t max_bytes, char **text_out, size_t *bytes_out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not hold it up */
    if (fd < 0) {
        return fail(path);
    }
    shoal_status status = read_open(path, fd, max_bytes, text_out, bytes_out);
    (void)close(fd);
    return status;
}
