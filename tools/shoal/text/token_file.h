/* SPDX-License-Identifier: MIT */
/*
 * Files of tokens. Those of llm.c have a header (text/header.h) and tokens of 16 bits (GPT-2's) or of 32 bits (Llama
 * 3's). Any other file is tokens of 16 bits and nothing else. All are little-endian.
 */
#ifndef TEXT_TOKEN_FILE_H
#define TEXT_TOKEN_FILE_H

#include "checkpoint/io/file.h"
#include "shoal/status.h"

#include <stddef.h>
#include <stdint.h>

struct token_format {
    size_t header_bytes; /* 0 if there is none */
    size_t token_bytes;  /* 2 or 4 */
    size_t n_tokens;
};

/* Which format an open file of n_bytes bytes has. Errors name the file as `name`. */
shoal_status token_file_recognize(int fd, const char *name, uint64_t n_bytes,
                                  struct token_format *format_out);

/* What an open file of llm.c is, "tokens" for example; NULL if it does not begin as one. */
const char *token_file_kind(int fd, uint64_t n_bytes);

/* The numbers of `count` tokens in memory, of token_bytes bytes each: 1, 2 or 4. */
void token_file_widen(const void *words, size_t token_bytes, size_t count, int32_t *tokens_out);

/* A file of llm.c that is being written: it appears when it is complete. */
struct token_writer {
    struct file file;
    size_t token_bytes;
    uint64_t n_tokens;
};

/* For tokens below `vocabulary`, which decides whether they have 16 bits or 32. */
shoal_status token_writer_create(const char *path, int64_t vocabulary, struct token_writer *writer_out);
shoal_status token_writer_add(struct token_writer *writer, const int32_t *tokens, size_t count);
shoal_status token_writer_finish(struct token_writer *writer);
/* Without token_writer_finish nothing is left. */
void token_writer_close(struct token_writer *writer);

#endif
