/* SPDX-License-Identifier: MIT */
/*
 * Tokenizers: text to tokens and back, as GPT-2 does it (byte-level BPE). Text is cut into pieces (text/split.h), and
 * the bytes of a piece are joined to longer and longer tokens, the pair of the lowest rank first. Bytes that are not
 * UTF-8 are encoded like any others, so every text comes back as it was.
 *
 * A tokenizer is read from a directory with Hugging Face's vocab.json and merges.txt, or from a file of llm.c
 * (tokenizer.bin). The latter has no merges; there the rank of a pair is the number of the token that it makes, as it is
 * in GPT-2's vocabulary. Special tokens such as <|endoftext|> are never made from text; they are decoded.
 */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "shoal/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOKENIZER_VOCABULARY_NAME "vocab.json"
#define TOKENIZER_MERGES_NAME "merges.txt"

struct tokenizer;

/* Tokens, appended to. Zeros are an empty list; mem_free(list.tokens) frees it. */
struct token_list {
    int32_t *tokens;
    size_t count;
    size_t capacity;
};

shoal_status token_list_add(struct token_list *list, int32_t token);

/* Errors name the file and, if there is one, the line. */
shoal_status tokenizer_open(const char *path, struct tokenizer **tokenizer_out);
/* NULL is allowed. */
void tokenizer_free(struct tokenizer *tokenizer);
/* Whether a directory has the files of a tokenizer. */
bool tokenizer_is_there(const char *directory);

/* The largest token plus one. */
int64_t tokenizer_n_tokens(const struct tokenizer *tokenizer);
/* The token <|endoftext|>; -1 if there is none. */
int32_t tokenizer_end_of_text(const struct tokenizer *tokenizer);

/*
 * Appends the tokens of a text. If the text goes on behind these bytes, is_last is false: the last pieces, which what
 * follows may change, are then left for the next call. *n_taken_out is how many bytes were encoded.
 */
shoal_status tokenizer_encode(struct tokenizer *tokenizer, const char *text, size_t n_bytes, bool is_last,
                              struct token_list *list, size_t *n_taken_out);

/* The bytes of a token; NULL if the tokenizer does not have it. */
const char *tokenizer_decode(const struct tokenizer *tokenizer, int64_t token, size_t *n_bytes_out);

#endif
