/* SPDX-License-Identifier: MIT */
/*
 * Files of a checkpoint that is loaded: see load/file.h.
 *
 * The blocks of a file are numbered through all its runs. Every run begins with a new block, because its sums are
 * counted from its own start. Files are read and not mapped: a process that truncates a mapped file kills its
 * readers.
 */
#include "checkpoint/load/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/path.h"
#include "checkpoint/safetensors/header.h"

#define SHOWN_CHARS 200

/* Under this key the header of each file has the id of its save. */
#define ID_KEY "shoal.save"

/* Making ----------------------------------------------------------------------------------------------- */

static char *join_path(const char *directory, const char *name)
{
    size_t bytes = strlen(directory) + 1 + strlen(name) + 1;
    char *path = mem_alloc(bytes);
    if (path) {
        (void)snprintf(path, bytes, "%s/%s", directory, name);
    }
    return path;
}

/* The path for texts: a long one loses its beginning. */
static const char *shown(const struct load_file *file)
{
    size_t length = strlen(file->path);
    return length > SHOWN_CHARS ? file->path + length - SHOWN_CHARS : file->path;
}

static bool has_sums(const struct load_file *file)
{
    return file->id && file->info->n_runs > 0 && !file->skips_sums;
}

static shoal_status make_blocks(struct load_file *file)
{
    const struct index_file *info = file->info;
    size_t n_blocks = 0;
    file->first_blocks = mem_alloc_zeroed(info->n_runs + 1, sizeof(file->first_blocks[0]));
    if (!file->first_blocks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < info->n_runs; i++) {
        file->first_blocks[i] = n_blocks;
        n_blocks += (size_t)checksum_n_blocks(info->runs[i].bytes);
    }
    file->first_blocks[info->n_runs] = n_blocks;
    file->marks = mem_alloc_zeroed(n_blocks / 8 + 1, 1);
    return file->marks ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

shoal_status load_file_make(const char *directory, const struct index_file *info, const char *id,
                            bool skips_sums, struct load_file *file_out)
{
    struct load_file file = {
        .info = info, .id = id, .skips_sums = skips_sums, .fd = -1, .path = join_path(directory, info->name)};
    shoal_status status = file.path ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    if (status == SHOAL_OK && has_sums(&file)) {
        status = make_blocks(&file);
    }
    if (status != SHOAL_OK) {
        load_file_free(&file);
        return status;
    }
    *file_out = file;
    return SHOAL_OK;
}

static void close_file(struct load_file *file)
{
    if (file->fd >= 0) {
        (void)close(file->fd);
    }
    file->fd = -1;
}

void load_file_free(struct load_file *file)
{
    if (file->path) {
        close_file(file);
    }
    mem_free(file->path);
    mem_free(file->first_blocks);
    mem_free(file->marks);
    *file = (struct load_file){.fd = -1};
}

/* Blocks ----------------------------------------------------------------------------------------------- */

struct block {
    size_t number; /* in the file */
    uint64_t at;
    size_t bytes;
    uint64_t sum;
};

/* The run that has that byte: runs cover the file. */
static size_t find_run(const struct load_file *file, uint64_t at)
{
    size_t first = 0;
    size_t end = file->info->n_runs;
    while (end - first > 1) {
        size_t middle = first + (end - first) / 2;
        if (file->info->runs[middle].at <= at) {
            first = middle;
        } else {
            end = middle;
        }
    }
    return first;
}

static struct block get_block(const struct load_file *file, size_t run, size_t number)
{
    const struct index_run *info = &file->info->runs[run];
    uint64_t offset = (uint64_t)number * CHECKSUM_BLOCK_BYTES;
    uint64_t left = info->bytes - offset;
    return (struct block){.number = file->first_blocks[run] + number,
                          .at = info->at + offset,
                          .bytes = left < CHECKSUM_BLOCK_BYTES ? (size_t)left : CHECKSUM_BLOCK_BYTES,
                          .sum = info->sums[number]};
}

static struct block find_block(const struct load_file *file, uint64_t at)
{
    size_t run = find_run(file, at);
    return get_block(file, run, (size_t)((at - file->info->runs[run].at) / CHECKSUM_BLOCK_BYTES));
}

static bool is_marked(const struct load_file *file, size_t number)
{
    return (file->marks[number / 8] >> (number % 8) & 1) != 0;
}

void load_file_mark(struct load_file *file, uint64_t at, uint64_t bytes)
{
    file->is_used = file->is_used || bytes > 0;
    if (!has_sums(file)) {
        return;
    }
    for (uint64_t end = at + bytes; at < end;) {
        struct block block = find_block(file, at);
        file->marks[block.number / 8] |= (unsigned char)(1u << (block.number % 8));
        at = block.at + block.bytes;
    }
}

/* Opening ---------------------------------------------------------------------------------------------- */

static shoal_status open_file(struct load_file *file, struct stat *info_out)
{
    /* Without O_NONBLOCK, opening a pipe would wait for its writer. Regular files ignore it. */
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return path_fail(file->path, "open", errno);
    }
    file->fd = fd;
    if (fstat(fd, info_out) != 0) {
        return path_fail(file->path, "stat", errno);
    }
    if (!S_ISREG(info_out->st_mode)) {
        return error_set(SHOAL_ERR_INVALID, "%s: is not a regular file", shown(file));
    }
    return SHOAL_OK;
}

static shoal_status check_bytes(const struct load_file *file)
{
    uint64_t bytes = (uint64_t)file->seen.st_size;
    if (bytes == file->info->bytes) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_INVALID,
                     "%s: has %" PRIu64 " bytes instead of %" PRIu64 ": it %s, or belongs to another save",
                     shown(file), bytes, file->info->bytes,
                     bytes < file->info->bytes ? "was cut off" : "has become longer");
}

/* Opens the file again, and checks that it is the one that was checked before. */
static shoal_status reopen(struct load_file *file)
{
    struct stat info;
    TRY(open_file(file, &info));
    const struct stat *seen = &file->seen;
    bool is_same = info.st_dev == seen->st_dev && info.st_ino == seen->st_ino &&
                   info.st_size == seen->st_size && info.st_mtim.tv_sec == seen->st_mtim.tv_sec &&
                   info.st_mtim.tv_nsec == seen->st_mtim.tv_nsec;
    return is_same ? SHOAL_OK
                   : error_set(SHOAL_ERR_STATE, "%s: was replaced or changed during the load", shown(file));
}

/* The id ----------------------------------------------------------------------------------------------- */

static const char *find_pair(const struct safetensors_header *header, const char *key)
{
    for (size_t i = 0; i < header->n_pairs; i++) {
        if (strcmp(header->pairs[i].key, key) == 0) {
            return header->pairs[i].value;
        }
    }
    return NULL;
}

static shoal_status compare_id(const struct load_file *file, const struct safetensors_header *header)
{
    const char *id = find_pair(header, ID_KEY);
    if (!id) {
        return error_set(SHOAL_ERR_INVALID, "it does not belong to a checkpoint: its header has no " ID_KEY);
    }
    if (strcmp(id, file->id) != 0) {
        return error_set(SHOAL_ERR_INVALID, "it belongs to another save, %.40s, not to %s", id, file->id);
    }
    return SHOAL_OK;
}

/* Parses the header, compares the id of the save, and marks the header. */
static shoal_status check_header(struct load_file *file)
{
    unsigned char length[SAFETENSORS_LENGTH_BYTES] = {0};
    struct safetensors_header header = {0};
    size_t bytes = 0;
    if (file->info->bytes >= sizeof(length)) {
        TRY(file_read_at(file->fd, 0, length, sizeof(length)));
    }
    TRY(safetensors_header_length(length, file->info->bytes, &bytes));
    char *text = mem_alloc(bytes + 1);
    if (!text) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = file_read_at(file->fd, sizeof(length), text, bytes);
    if (status == SHOAL_OK) {
        status = safetensors_header_parse(text, bytes, file->info->bytes - sizeof(length) - bytes, &header);
    }
    mem_free(text);
    if (status == SHOAL_OK) {
        status = compare_id(file, &header);
    }
    if (status == SHOAL_OK) {
        load_file_mark(file, 0, sizeof(length) + bytes);
    }
    safetensors_header_free(&header);
    return status;
}

/* Sums ------------------------------------------------------------------------------------------------- */

static shoal_status check_sum(const struct load_file *file, const struct block *block, const void *data)
{
    uint64_t sum = checksum_block(data, block->bytes);
    if (sum == block->sum) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_INVALID,
                     "%s: bytes %" PRIu64 " to %" PRIu64 " are damaged: their checksum is %016" PRIx64
                     ", but the index says %016" PRIx64,
                     shown(file), block->at, block->at + block->bytes, sum, block->sum);
}

static shoal_status read_plain(const struct load_file *file, uint64_t at, void *out, size_t bytes)
{
    shoal_status status = file_read_at(file->fd, at, out, bytes);
    return status == SHOAL_OK ? status : error_prefix(status, "%s", shown(file));
}

/* A walk over the marked blocks. */
struct block_walk {
    size_t run;
    size_t next; /* block in the run */
};

/* Returns false if there are no more. */
static bool next_marked(const struct load_file *file, struct block_walk *walk, struct block *block_out)
{
    while (walk->run < file->info->n_runs) {
        size_t n_blocks = file->first_blocks[walk->run + 1] - file->first_blocks[walk->run];
        for (; walk->next < n_blocks; walk->next++) {
            if (is_marked(file, file->first_blocks[walk->run] + walk->next)) {
                *block_out = get_block(file, walk->run, walk->next++);
                return true;
            }
        }
        walk->run++;
        walk->next = 0;
    }
    return false;
}

/* Reads in the order of the file, which the system notices, and reads ahead. A request to do so (POSIX_FADV_WILLNEED)
   would fill its cache with single pages instead of large folios, which doubles the processor time of this read and of
   the next. */
static shoal_status check_sums(const struct load_file *file, void *buffer)
{
    struct block_walk walk = {0};
    struct block block;
    while (next_marked(file, &walk, &block)) {
        TRY(read_plain(file, block.at, buffer, block.bytes));
        TRY(check_sum(file, &block, buffer));
    }
    return SHOAL_OK;
}

static shoal_status look(struct load_file *file, void *buffer)
{
    TRY(open_file(file, &file->seen));
    TRY(check_bytes(file));
    if (file->id) {
        shoal_status status = check_header(file);
        if (status != SHOAL_OK) {
            return error_prefix(status, "%s", shown(file));
        }
    }
    return has_sums(file) ? check_sums(file, buffer) : SHOAL_OK;
}

shoal_status load_file_look(struct load_file *file, void *buffer)
{
    shoal_status status = look(file, buffer);
    if (status != SHOAL_OK || !file->stays_open) {
        close_file(file);
    }
    return status;
}

/* Reading ---------------------------------------------------------------------------------------------- */

shoal_status load_file_read(struct load_file *file, uint64_t at, void *out, size_t bytes)
{
    char *to = out;
    if (file->fd < 0) {
        TRY(reopen(file));
    }
    if (!has_sums(file)) {
        return read_plain(file, at, out, bytes);
    }
    while (bytes > 0) {
        struct block block = find_block(file, at);
        uint64_t left = block.at + block.bytes - at;
        size_t portion = bytes < left ? bytes : (size_t)left;
        TRY(read_plain(file, at, to, portion));
        if (portion == block.bytes) {
            TRY(check_sum(file, &block, to));
        }
        to += portion;
        at += portion;
        bytes -= portion;
    }
    return SHOAL_OK;
}

void load_file_done(struct load_file *file)
{
    if (!file->stays_open) {
        close_file(file);
    }
}
