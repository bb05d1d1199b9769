/* SPDX-License-Identifier: MIT */
/* Recognizes token files by the magic number with which they begin, and writes those of llm.c. */
#include "text/token_file.h"
#include "text/header.h"

#include "base/error.h"
#include "base/try.h"

#include <stdbool.h>
#include <string.h>

enum {
    COUNT_WORD = 2,      /* of the header */
    BLOCK_TOKENS = 4096, /* that are written at once */
    WORD_VOCABULARY = 65536
};

static const struct kind {
    uint32_t magic;
    uint32_t version;
    size_t token_bytes; /* 0: not a file of tokens */
    const char *name;
} kinds[] = {
    {20240520, 1, sizeof(uint16_t), "tokens"}, {20240801, 7, sizeof(uint32_t), "tokens"},
    {20240328, 0, 0, "a tokenizer"},           {20240326, 0, 0, "a model"},
    {20240327, 0, 0, "the state of a model"},  {20240522, 0, 0, "an evaluation"},
};

static const struct kind *find_kind(uint32_t magic)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (kinds[i].magic == magic) {
            return &kinds[i];
        }
    }
    return NULL;
}

static shoal_status check_header(const char *name, uint64_t n_bytes, const uint32_t *words,
                                 const struct kind *kind, struct token_format *format)
{
    uint64_t n_tokens = words[COUNT_WORD];
    if (kind->token_bytes == 0) {
        return error_set(SHOAL_ERR_INVALID, "%s is %s of llm.c, not a file of tokens", name, kind->name);
    }
    if (words[HEADER_VERSION] != kind->version) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "%s is a file of llm.c (%u) of version %u; version %u is read", name,
                         (unsigned)kind->magic, (unsigned)words[HEADER_VERSION], (unsigned)kind->version);
    }
    if (HEADER_BYTES + n_tokens * kind->token_bytes != n_bytes) {
        return error_set(
            SHOAL_ERR_INVALID, "%s has %llu bytes; its header says %llu tokens of %zu bytes behind %d bytes",
            name, (unsigned long long)n_bytes, (unsigned long long)n_tokens, kind->token_bytes, HEADER_BYTES);
    }
    *format = (struct token_format){HEADER_BYTES, kind->token_bytes, (size_t)n_tokens};
    return SHOAL_OK;
}

shoal_status token_file_recognize(int fd, const char *name, uint64_t n_bytes, struct token_format *format_out)
{
    uint32_t words[HEADER_WORDS] = {0};
    const struct kind *kind = NULL;
    if (n_bytes >= sizeof words[0]) {
        shoal_status status =
            file_read_at(fd, 0, words, n_bytes < sizeof words ? (size_t)n_bytes : sizeof words);
        if (status != SHOAL_OK) {
            return error_prefix(status, "%s", name);
        }
        kind = find_kind(words[HEADER_MAGIC]);
    }
    if (kind && n_bytes < sizeof words) {
        return error_set(SHOAL_ERR_INVALID,
                         "%s begins as %s of llm.c, and has %llu bytes: it was cut, as the header has %d",
                         name, kind->name, (unsigned long long)n_bytes, HEADER_BYTES);
    }
    if (kind) {
        return check_header(name, n_bytes, words, kind, format_out);
    }
    if (n_bytes % sizeof(uint16_t) != 0) {
        return error_set(SHOAL_ERR_INVALID, "%s has %llu bytes, which is not a whole number of u16 tokens",
                         name, (unsigned long long)n_bytes);
    }
    *format_out = (struct token_format){0, sizeof(uint16_t), n_bytes / sizeof(uint16_t)};
    return SHOAL_OK;
}

const char *token_file_kind(int fd, uint64_t n_bytes)
{
    uint32_t magic = 0;
    bool is_read = n_bytes >= HEADER_BYTES && file_read_at(fd, 0, &magic, sizeof magic) == SHOAL_OK;
    const struct kind *kind = is_read ? find_kind(magic) : NULL;
    return kind ? kind->name : NULL;
}

void token_file_widen(const void *words, size_t token_bytes, size_t count, int32_t *tokens_out)
{
    const char *bytes = words;
    for (size_t i = 0; i < count; i++) {
        uint32_t token = 0;
        memcpy(&token, bytes + i * token_bytes, token_bytes);
        tokens_out[i] = (int32_t)token;
    }
}

/* Writing ---------------------------------------------------------------------------------------------- */

shoal_status token_writer_create(const char *path, int64_t vocabulary, struct token_writer *writer_out)
{
    *writer_out = (struct token_writer){.token_bytes = vocabulary <= WORD_VOCABULARY ? sizeof(uint16_t)
                                                                                     : sizeof(uint32_t)};
    return file_create(path, &writer_out->file);
}

static shoal_status write_block(struct token_writer *writer, const int32_t *tokens, size_t count)
{
    char block[BLOCK_TOKENS * sizeof(uint32_t)];
    for (size_t i = 0; i < count; i++) {
        memcpy(block + i * writer->token_bytes, &tokens[i], writer->token_bytes);
    }
    uint64_t at = HEADER_BYTES + writer->n_tokens * writer->token_bytes;
    TRY(file_write(&writer->file, at, block, count * writer->token_bytes));
    writer->n_tokens += count;
    return SHOAL_OK;
}

shoal_status token_writer_add(struct token_writer *writer, const int32_t *tokens, size_t count)
{
    for (size_t at = 0; at < count; at += BLOCK_TOKENS) {
        TRY(write_block(writer, tokens + at, count - at < BLOCK_TOKENS ? count - at : BLOCK_TOKENS));
    }
    return SHOAL_OK;
}

shoal_status token_writer_finish(struct token_writer *writer)
{
    uint32_t words[HEADER_WORDS] = {0};
    const struct kind *kind = &kinds[writer->token_bytes == sizeof(uint16_t) ? 0 : 1];
    if (writer->n_tokens > UINT32_MAX) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "a file of llm.c has at most %u tokens, not %llu", UINT32_MAX,
                         (unsigned long long)writer->n_tokens);
    }
    words[HEADER_MAGIC] = kind->magic;
    words[HEADER_VERSION] = kind->version;
    words[COUNT_WORD] = (uint32_t)writer->n_tokens;
    TRY(file_write(&writer->file, 0, words, sizeof words));
    return file_commit(&writer->file);
}

void token_writer_close(struct token_writer *writer)
{
    file_close(&writer->file);
}
