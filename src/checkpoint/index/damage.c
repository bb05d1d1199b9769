/* SPDX-License-Identifier: MIT */
/* Looks at a checkpoint's index and at the sizes of its files: see damage.h. */
#include "checkpoint/index/damage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "checkpoint/io/file.h"
#include "checkpoint/index/index.h"

/* Saves examine earlier checkpoints, which must take no more than milliseconds. */
#define MAX_INDEX_BYTES ((off_t)16 << 20)

static bool are_files_damaged(int directory_fd, const struct checkpoint_index *index)
{
    for (size_t i = 0; i < index->n_files; i++) {
        struct stat info;
        if (fstatat(directory_fd, index->files[i].name, &info, 0) != 0 || !S_ISREG(info.st_mode) ||
            (uint64_t)info.st_size != index->files[i].bytes) {
            return true;
        }
    }
    return false;
}

static bool is_text_damaged(int directory_fd, const char *text, size_t bytes)
{
    struct checkpoint_index index = {0};
    shoal_status status = index_read(text, bytes, &index);
    if (status != SHOAL_OK) {
        return status == SHOAL_ERR_INVALID;
    }
    bool is_damaged = are_files_damaged(directory_fd, &index);
    index_free(&index);
    return is_damaged;
}

static bool is_index_damaged(int directory_fd, int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return true;
    }
    char *text = info.st_size <= MAX_INDEX_BYTES ? mem_alloc((size_t)info.st_size + 1) : NULL;
    if (!text) {
        return false;
    }
    bool is_damaged = file_read_at(fd, 0, text, (size_t)info.st_size) != SHOAL_OK ||
                      is_text_damaged(directory_fd, text, (size_t)info.st_size);
    mem_free(text);
    return is_damaged;
}

bool damage_is_seen(const char *directory)
{
    int directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory_fd < 0) {
        return false;
    }
    int fd = openat(directory_fd, INDEX_NAME, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool is_damaged = fd >= 0 && is_index_damaged(directory_fd, fd);
    if (fd >= 0) {
        (void)close(fd);
    }
    (void)close(directory_fd);
    return is_damaged;
}
