/* SPDX-License-Identifier: MIT */
/* Opening a text or a file of tokens, and drawing the rows of a batch from it. */
#include "config/data.h"
#include "config/source.h"
#include "text/token_file.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/try.h"
#include "checkpoint/io/checksum.h"
#include "shoal_nn/random.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BYTE_VOCABULARY = 256,
    VOCABULARY_STEP = 64, /* a file's vocabulary is rounded up to a multiple */
    ROW_TOKENS = 2048     /* of a row that are read at once */
};

/* Opening ---------------------------------------------------------------------------------------------- */

static shoal_status fail_file(const char *path)
{
    return error_set(SHOAL_ERR_SYSTEM, "%s: %s", path, error_errno_text(errno));
}

/* Of all tokens. */
static size_t count_bytes(const struct train_data *data)
{
    return data->n_tokens * data->token_bytes;
}

static shoal_status fail_short(const struct train_data *data)
{
    struct stat about = {0};
    (void)fstat(data->fd, &about);
    return error_set(SHOAL_ERR_STATE, "%s has become shorter: it had %zu bytes when this run began, now %lld",
                     data->name, data->header_bytes + count_bytes(data), (long long)about.st_size);
}

/* Bytes of tokens. A file is not mapped: if another process cut it, reading a mapping would end this one by a signal. */
static shoal_status read_bytes(const struct train_data *data, size_t at, void *to, size_t n_bytes)
{
    char *bytes = to;
    if (data->text) {
        memcpy(to, data->text + at, n_bytes);
        return SHOAL_OK;
    }
    while (n_bytes > 0) {
        ssize_t n_read = pread(data->fd, bytes, n_bytes, (off_t)(data->header_bytes + at));
        if (n_read == 0) {
            return fail_short(data);
        }
        if (n_read < 0 && errno != EINTR) {
            return fail_file(data->name);
        }
        size_t n_done = n_read > 0 ? (size_t)n_read : 0;
        bytes += n_done;
        at += n_done;
        n_bytes -= n_done;
    }
    return SHOAL_OK;
}

static shoal_status recognize(struct train_data *data, const char *path, size_t n_bytes)
{
    struct token_format format;
    TRY(token_file_recognize(data->fd, path, n_bytes, &format));
    data->header_bytes = format.header_bytes;
    data->token_bytes = format.token_bytes;
    data->n_tokens = format.n_tokens;
    return data->n_tokens > 0 ? SHOAL_OK : error_set(SHOAL_ERR_INVALID, "%s has no tokens", path);
}

/* Text: not what llm.c has in files, which begin with bytes that no text has. */
static shoal_status check_text(const struct train_data *data, const char *path)
{
    const char *kind = token_file_kind(data->fd, data->n_tokens);
    if (!kind) {
        return SHOAL_OK;
    }
    return strcmp(kind, "tokens") == 0
               ? error_set(SHOAL_ERR_INVALID, "%s is a file of tokens, not text: --tokens reads it", path)
               : error_set(SHOAL_ERR_INVALID, "%s is %s of llm.c, not text", path, kind);
}

static shoal_status open_file(struct train_data *data, const char *path, bool has_tokens)
{
    struct stat about;
    (void)snprintf(data->name, sizeof data->name, "%s", path);
    data->fd =
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not hold it up */
    if (data->fd < 0 || fstat(data->fd, &about) != 0) {
        return fail_file(path);
    }
    if (!S_ISREG(about.st_mode)) {
        return error_set(SHOAL_ERR_INVALID, "%s is not a regular file", path);
    }
    if (about.st_size == 0) {
        return error_set(SHOAL_ERR_INVALID, "%s is empty", path);
    }
    data->n_tokens = (size_t)about.st_size;
    return has_tokens ? recognize(data, path, (size_t)about.st_size) : check_text(data, path);
}

static shoal_status open_tokens(const struct train_options *options, struct train_data *data)
{
    data->token_bytes = 1;
    if (options->tokens || options->data) {
        return open_file(data, options->tokens ? options->tokens : options->data, options->tokens != NULL);
    }
    return train_source_read(&data->text, &data->n_tokens, data->name);
}

/* Of tokens in memory, and those before them. */
static uint32_t find_largest(const void *words, size_t token_bytes, size_t n_words, uint32_t largest)
{
    const char *bytes = words;
    for (size_t i = 0; i < n_words; i++) {
        uint32_t word = 0;
        memcpy(&word, bytes + i * token_bytes, token_bytes);
        largest = word > largest ? word : largest;
    }
    return largest;
}

/* All of it goes through `block` once, for the hash and, of tokens, for the largest one. */
static shoal_status scan_blocks(struct train_data *data, void *block, uint32_t *largest_out)
{
    size_t n_bytes = count_bytes(data);
    data->hash = n_bytes;
    for (size_t at = 0; at < n_bytes; at += CHECKSUM_BLOCK_BYTES) {
        size_t n = n_bytes - at < CHECKSUM_BLOCK_BYTES ? n_bytes - at : CHECKSUM_BLOCK_BYTES;
        TRY(read_bytes(data, at, block, n));
        uint64_t sum = checksum_block(block, n);
        data->hash = hash_bytes(data->hash, &sum, sizeof sum);
        data->first_hash = at == 0 ? sum : data->first_hash;
        if (data->token_bytes > 1) {
            *largest_out = find_largest(block, data->token_bytes, n / data->token_bytes, *largest_out);
        }
    }
    return SHOAL_OK;
}

static shoal_status scan(struct train_data *data, uint32_t *largest_out)
{
    void *block = malloc(CHECKSUM_BLOCK_BYTES);
    shoal_status status = block ? scan_blocks(data, block, largest_out)
                                : error_set(SHOAL_ERR_NO_MEMORY, "no memory for a block of %s", data->name);
    free(block);
    return status;
}

static shoal_status set_vocabulary(const struct train_options *options, struct train_data *data,
                                   uint32_t largest)
{
    data->vocabulary = data->token_bytes > 1 ? options->vocabulary : BYTE_VOCABULARY;
    if (largest >= TRAIN_MAX_VOCABULARY) {
        return error_set(SHOAL_ERR_INVALID, "%s has token %u; a vocabulary has at most %d", data->name,
                         (unsigned)largest, TRAIN_MAX_VOCABULARY);
    }
    if (data->vocabulary == 0) {
        data->vocabulary = (largest / VOCABULARY_STEP + 1) * VOCABULARY_STEP;
    }
    return largest < data->vocabulary
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s has token %u, but %s is %lld", data->name,
                           (unsigned)largest, options->load ? "the vocabulary of the model" : "--vocabulary",
                           (long long)data->vocabulary);
}

static shoal_status open_and_scan(const struct train_options *options, struct train_data *data)
{
    uint32_t largest = 0;
    TRY(open_tokens(options, data));
    data->n_train = data->n_tokens - (size_t)((double)data->n_tokens * options->val_fraction);
    TRY(scan(data, &largest));
    return set_vocabulary(options, data, largest);
}

shoal_status train_data_open(const struct train_options *options, struct train_data *data)
{
    *data = (struct train_data){.fd = -1};
    shoal_status status = open_and_scan(options, data);
    if (status != SHOAL_OK) {
        train_data_close(data);
    }
    return status;
}

shoal_status train_data_check(const struct train_data *data, int64_t context, int64_t n_samples)
{
    const char *rest = data->n_train < data->n_tokens ? " besides those of --val" : "";
    if (data->n_train < (size_t)context + 1) {
        return error_set(SHOAL_ERR_INVALID, "%s has %zu tokens%s; one row of --context %lld needs %lld",
                         data->name, data->n_train, rest, (long long)context, (long long)context + 1);
    }
    int64_t n_rows = ((int64_t)data->n_train - 1) / context;
    if (n_rows < n_samples) {
        return error_set(
            SHOAL_ERR_INVALID,
            "%s has %lld rows of %lld tokens%s, but a step takes %lld (ranks x batch x accumulate)",
            data->name, (long long)n_rows, (long long)context, rest, (long long)n_samples);
    }
    return SHOAL_OK;
}

void train_data_close(struct train_data *data)
{
    if (data->fd >= 0) {
        (void)close(data->fd);
    }
    free(data->text);
    *data = (struct train_data){.fd = -1};
}

/* Batches ---------------------------------------------------------------------------------------------- */

shoal_status train_data_row(const struct train_data *data, size_t at, int64_t context, int32_t *tokens,
                            int32_t *targets)
{
    char bytes[ROW_TOKENS * sizeof(uint32_t)];
    int32_t row[ROW_TOKENS];
    for (int64_t first = 0; first <= context; first += ROW_TOKENS) {
        int64_t n = context + 1 - first < ROW_TOKENS ? context + 1 - first : ROW_TOKENS;
        TRY(read_bytes(data, (at + (size_t)first) * data->token_bytes, bytes, (size_t)n * data->token_bytes));
        token_file_widen(bytes, data->token_bytes, (size_t)n, row);
        for (int64_t i = 0; i < n; i++) {
            if (first + i < context) {
                tokens[first + i] = row[i];
            }
            if (first + i > 0) {
                targets[first + i - 1] = row[i];
            }
        }
    }
    return SHOAL_OK;
}

static shoal_status find_row(const struct train_data *data, const shoal_nn_draws *draws, int64_t context,
                             size_t *first_out)
{
    uint32_t words[2];
    size_t n_places = data->n_train - (size_t)context;
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
        TRY(train_data_row(data, at, context, tokens + row * context, targets + row * context));
    }
    return SHOAL_OK;
}
