/* SPDX-License-Identifier: MIT */
/* The plain writer and reader, and what is needed around them: see bench/checkpoint.h. */
#include "bench/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CALL_BYTES = 8 << 20, /* of one read or write */
    MOST_OPEN = 16,       /* directories, while a tree is removed */
    PATH_BYTES = BENCH_CHECKPOINT_PATH + 300
};

/* Beyond this part of the files, what is left in the page cache is worth more force. */
#define MUCH_CACHED 0.01

static bool fail(const char *path, const char *what)
{
    fprintf(stderr, "shoal bench checkpoint: %s: %s: %s\n", path, what, strerror(errno));
    return false;
}

/* Walking ------------------------------------------------------------------------------------------------ */

/* Of each regular file; false ends the walk. */
typedef bool (*file_visit)(void *context, const char *path, size_t bytes);

static bool visit_entry(const char *directory, const char *name, file_visit visit, void *context)
{
    char path[PATH_BYTES];
    struct stat info;
    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return fail(directory, name);
    }
    if (lstat(path, &info) != 0) {
        return fail(path, "stat");
    }
    return !S_ISREG(info.st_mode) || visit(context, path, (size_t)info.st_size);
}

static bool walk(const char *directory, file_visit visit, void *context)
{
    DIR *stream = opendir(directory);
    bool is_good = stream != NULL;
    if (!stream) {
        return fail(directory, "open");
    }
    for (const struct dirent *entry = readdir(stream); entry && is_good; entry = readdir(stream)) {
        is_good = visit_entry(directory, entry->d_name, visit, context);
    }
    (void)closedir(stream);
    return is_good;
}

static bool list_file(void *context, const char *path, size_t bytes)
{
    struct bench_checkpoint_files *files = context;
    if (files->n_files == BENCH_CHECKPOINT_MAX_FILES) {
        errno = EMFILE;
        return fail(path, "files of a checkpoint");
    }
    files->bytes[files->n_files++] = bytes;
    return true;
}

bool bench_checkpoint_list(const char *directory, struct bench_checkpoint_files *files_out)
{
    files_out->n_files = 0;
    return walk(directory, list_file, files_out);
}

/* Plain -------------------------------------------------------------------------------------------------- */

/* Memory that is gone through over and over. */
struct ring {
    char *memory;
    size_t bytes;
    size_t at;
};

/* At most so many bytes of it in one piece. */
static char *take(struct ring *ring, size_t *bytes)
{
    char *piece = ring->memory + ring->at;
    size_t left = ring->bytes - ring->at;
    *bytes = *bytes < CALL_BYTES ? *bytes : CALL_BYTES;
    *bytes = *bytes < left ? *bytes : left;
    ring->at += *bytes;
    ring->at = ring->at == ring->bytes ? 0 : ring->at;
    return piece;
}

static bool transfer(int fd, const char *path, size_t bytes, struct ring *ring, bool writes)
{
    while (bytes > 0) {
        size_t portion = bytes;
        char *piece = take(ring, &portion);
        for (size_t done = 0; done < portion;) {
            ssize_t moved =
                writes ? write(fd, piece + done, portion - done) : read(fd, piece + done, portion - done);
            if (moved < 0 && errno == EINTR) {
                continue;
            }
            if (moved <= 0) {
                errno = moved == 0 ? EIO : errno;
                return fail(path, writes ? "write" : "read");
            }
            done += (size_t)moved;
        }
        bytes -= portion;
    }
    return !writes || fsync(fd) == 0 || fail(path, "fsync");
}

static bool transfer_all(const char *directory, const struct bench_checkpoint_files *files, struct ring *ring,
                         bool writes)
{
    for (size_t i = 0; i < files->n_files; i++) {
        char path[PATH_BYTES];
        (void)snprintf(path, sizeof path, "%s/plain-%zu", directory, i);
        int fd = open(path, writes ? O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0666);
        if (fd < 0) {
            return fail(path, "open");
        }
        bool is_good = transfer(fd, path, files->bytes[i], ring, writes);
        (void)close(fd);
        if (!is_good) {
            return false;
        }
    }
    return true;
}

bool bench_checkpoint_write_plain(const char *directory, const struct bench_checkpoint_files *files,
                                  const char *memory, size_t bytes)
{
    struct ring ring = {.memory = (char *)memory, .bytes = bytes};
    if (!transfer_all(directory, files, &ring, /*writes=*/true)) {
        return false;
    }
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return fail(directory, "open");
    }
    bool is_good = fsync(fd) == 0 || fail(directory, "fsync");
    (void)close(fd);
    return is_good;
}

bool bench_checkpoint_read_plain(const char *directory, const struct bench_checkpoint_files *files,
                                 char *memory, size_t bytes)
{
    struct ring ring = {.memory = memory, .bytes = bytes};
    return transfer_all(directory, files, &ring, /*writes=*/false);
}

/* The page cache ----------------------------------------------------------------------------------------- */

struct cache_count {
    size_t n_pages;
    size_t n_cached;
};

static bool drop_file(void *context, const char *path, size_t bytes)
{
    (void)context;
    (void)bytes;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return fail(path, "open");
    }
    /* Only pages that are on the disk can be dropped. */
    bool is_good = fsync(fd) == 0 || fail(path, "fsync");
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* what it has done is looked at */
    (void)close(fd);
    return is_good;
}

static void count_pages(void *mapped, size_t bytes, struct cache_count *count)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t n_pages = (bytes + page - 1) / page;
    unsigned char *states = malloc(n_pages);
    if (states && mincore(mapped, bytes, states) == 0) {
        count->n_pages += n_pages;
        for (size_t i = 0; i < n_pages; i++) {
            count->n_cached += states[i] & 1u;
        }
    }
    free(states);
}

static bool count_file(void *context, const char *path, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return fail(path, "open");
    }
    void *mapped = bytes > 0 ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    (void)close(fd);
    if (mapped != MAP_FAILED) {
        count_pages(mapped, bytes, context);
        (void)munmap(mapped, bytes);
    }
    return true;
}

static bool count_cached(const char *directory, double *cached_out)
{
    struct cache_count count = {0};
    if (!walk(directory, count_file, &count)) {
        return false;
    }
    *cached_out = count.n_pages > 0 ? (double)count.n_cached / (double)count.n_pages : 0.0;
    return true;
}

/* The page cache of the whole machine, where that is allowed. */
static void drop_everything(void)
{
    int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n_written = write(fd, "1", 1);
        (void)n_written; /* what it has done is looked at */
        (void)close(fd);
    }
}

bool bench_checkpoint_drop(const char *directory, double *cached_out)
{
    if (!walk(directory, drop_file, NULL) || !count_cached(directory, cached_out)) {
        return false;
    }
    if (*cached_out > MUCH_CACHED) {
        drop_everything();
        return count_cached(directory, cached_out);
    }
    return true;
}

void bench_checkpoint_settle(const char *directory)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)syncfs(fd);
        (void)close(fd);
    }
}

/* Removing ----------------------------------------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

bool bench_checkpoint_remove(const char *directory)
{
    return nftw(directory, remove_entry, MOST_OPEN, FTW_DEPTH | FTW_PHYS) == 0 || fail(directory, "remove");
}
