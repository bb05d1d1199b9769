/* SPDX-License-Identifier: MIT */
/* Making a tokenizer, for the readers of the formats. */
#ifndef TEXT_BUILD_H
#define TEXT_BUILD_H

#include "text/bpe.h"
#include "text/tokenizer.h"

#include "base/arena.h"

enum {
    TOKENIZER_MAX_TOKENS = 1 << 22,
    TOKENIZER_MAX_FILE_BYTES = 1 << 28
};

#define TOKENIZER_END_OF_TEXT "<|endoftext|>"

struct tokenizer_token {
    const char *bytes; /* NULL if there is no such token */
    size_t n_bytes;
};

struct tokenizer {
    struct arena arena;
    struct tokenizer_token *tokens;
    size_t n_tokens; /* the largest plus one */
    size_t capacity;
    struct map plain;       /* from hashes of bytes to tokens that are made from text */
    int32_t of_bytes[256];  /* the tokens of single bytes; -1 if there is none */
    int32_t end_of_text;    /* -1 if there is none */
    struct bpe bpe;         /* what is joined */
    struct token_list work; /* of the piece that is being encoded */
};

/*
 * Adds a token. With is_plain it is made from text, unless an earlier token has the same bytes. SHOAL_ERR_INVALID: the
 * number is too large, or there is such a token already.
 */
shoal_status tokenizer_add(struct tokenizer *tokenizer, int64_t token, const char *bytes, size_t n_bytes,
                           bool is_plain);
/* The token that is made from these bytes; -1 if there is none. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *bytes, size_t n_bytes);

/* Readers. The tokenizer is empty; after an error it is in any state. */
shoal_status tokenizer_read_directory(struct tokenizer *tokenizer, const char *directory);
shoal_status tokenizer_read_llmc(struct tokenizer *tokenizer, const char *path);

#endif
