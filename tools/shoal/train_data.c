/* SPDX-License-Identifier: MIT */
/* Opening a text or a file of tokens, and drawing the rows of a batch from it. */
#include "train_data.h"
#include "train_source.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/try.h"
#include "shoal_nn/random.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BYTE_VOCABULARY = 256,
    VOCABULARY_STEP = 64, /* a file's vocabulary is rounded up to a multiple */
    HASHED_BYTES = 1 << 16
};

/* Opening ---------------------------------------------------------------------------------------------- */

static shoal_status fail_file(const char *path)
{
    return error_set(SHOAL_ERR_SYSTEM, "%s: %s", path, error_errno_text(errno));
}

static shoal_status map_open_file(struct train_data *data, const char *path, int fd)
{
    struct stat about;
    if (fstat(fd, &about) != 0) {
        return fail_file(path);
    }
    if (!S_ISREG(about.st_mode)) {
        return error_set(SHOAL_ERR_INVALID, "%s is not a regular file", path);
    }
    if (about.st_size == 0) {
        return error_set(SHOAL_ERR_INVALID, "%s is empty", path);
    }
    void *mapping = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapping == MAP_FAILED) {
        return fail_file(path);
    }
    data->mapping = mapping;
    data->mapping_bytes = (size_t)about.st_size;
    return SHOAL_OK;
}

static shoal_status map_file(struct train_data *data, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return fail_file(path);
    }
    shoal_status status = map_open_file(data, path, fd);
    (void)close(fd);
    (void)snprintf(data->name, sizeof data->name, "%s", path);
    return status;
}

static shoal_status open_words(const struct train_options *options, struct train_data *data)
{
    TRY(map_file(data, options->tokens));
    if (data->mapping_bytes % sizeof(uint16_t) != 0) {
        return error_set(SHOAL_ERR_INVALID, "%s has %zu bytes, which is no whole number of u16 tokens",
                         options->tokens, data->mapping_bytes);
    }
    data->words = data->mapping;
    data->n_tokens = data->mapping_bytes / sizeof(uint16_t);
    uint16_t largest = 0;
    for (size_t i = 0; i < data->n_tokens; i++) {
        largest = data->words[i] > largest ? data->words[i] : largest;
    }
    data->vocabulary = options->vocabulary;
    if (data->vocabulary == 0) {
        data->vocabulary = (largest / VOCABULARY_STEP + 1) * VOCABULARY_STEP;
    }
    if (largest >= data->vocabulary) {
        return error_set(SHOAL_ERR_INVALID, "%s has token %u, but --vocabulary is %lld", options->tokens,
                         (unsigned)largest, (long long)data->vocabulary);
    }
    return SHOAL_OK;
}

static shoal_status open_bytes(const struct train_options *options, struct train_data *data)
{
    data->vocabulary = BYTE_VOCABULARY;
    if (options->data) {
        TRY(map_file(data, options->data));
        data->bytes = data->mapping;
        data->n_tokens = data->mapping_bytes;
        return SHOAL_OK;
    }
    TRY(train_source_read(&data->text, &data->n_tokens, data->name));
    data->bytes = (const unsigned char *)data->text;
    return SHOAL_OK;
}

static uint64_t hash_tokens(const struct train_data *data)
{
    size_t n_bytes = data->n_tokens * (data->bytes ? 1 : sizeof(uint16_t));
    const char *bytes = data->bytes ? (const char *)data->bytes : (const char *)data->words;
    size_t n_hashed = n_bytes < HASHED_BYTES ? n_bytes : HASHED_BYTES;
    uint64_t hash = hash_bytes(n_bytes, bytes, n_hashed);
    return hash_bytes(hash, bytes + n_bytes - n_hashed, n_hashed);
}

shoal_status train_data_open(const struct train_options *options, struct train_data *data)
{
    *data = (struct train_data){0};
    shoal_status status = options->tokens ? open_words(options, data) : open_bytes(options, data);
    if (status == SHOAL_OK) {
        data->hash = hash_tokens(data);
    } else {
        train_data_close(data);
    }
    return status;
}

shoal_status train_data_check(const struct train_data *data, int64_t context, int64_t n_samples)
{
    if (data->n_tokens < (size_t)context + 1) {
        return error_set(SHOAL_ERR_INVALID, "%s has %zu tokens; one row of --context %lld needs %lld",
                         data->name, data->n_tokens, (long long)context, (long long)context + 1);
    }
    int64_t n_rows = ((int64_t)data->n_tokens - 1) / context;
    if (n_rows < n_samples) {
        return error_set(
            SHOAL_ERR_INVALID,
            "%s has %lld rows of %lld tokens, but a step takes %lld (ranks x batch x accumulate)", data->name,
            (long long)n_rows, (long long)context, (long long)n_samples);
    }
    return SHOAL_OK;
}

void train_data_close(struct train_data *data)
{
    if (data->mapping) {
        (void)munmap(data->mapping, data->mapping_bytes);
    }
    free(data->text);
    *data = (struct train_data){0};
}

/* Batches ---------------------------------------------------------------------------------------------- */

static int32_t token_at(const struct train_data *data, size_t at)
{
    return data->bytes ? data->bytes[at] : data->words[at];
}

static shoal_status find_row(const struct train_data *data, const shoal_nn_draws *draws, int64_t context,
                             size_t *first_out)
{
    uint32_t words[2];
    size_t n_places = data->n_tokens - (size_t)context;
    TRY(shoal_nn_words(draws, 0, 2, words));
    *first_out = (size_t)((words[0] | (uint64_t)words[1] << 32) % n_places);
    return SHOAL_OK;
}

shoal_status train_data_fill(const struct train_data *data, uint64_t seed, int64_t step, int64_t first,
                             int64_t n_rows, int64_t context, int32_t *tokens, int32_t *targets)
{
    for (int64_t row = 0; row < n_rows; row++) {
        const shoal_nn_draws draws = {seed, shoal_nn_stream("data"), (uint64_t)step, (uint64_t)(first + row)};
        size_t at = 0;
        TRY(find_row(data, &draws, context, &at));
        for (int64_t i = 0; i < context; i++) {
            tokens[row * context + i] = token_at(data, at + (size_t)i);
            targets[row * context + i] = token_at(data, at + (size_t)i + 1);
        }
    }
    return SHOAL_OK;
}
