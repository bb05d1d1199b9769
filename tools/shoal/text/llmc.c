/* SPDX-License-Identifier: MIT */
/*
 * llm.c's tokenizer.bin: 256 words of 32 bits (magic, version, number of tokens and, from version 2 on, the token of the
 * end of a text), then for each token its length, a byte, and its bytes. It is made to decode. To encode, every pair of
 * tokens whose bytes are a third one is a merge, and the number of that token is its rank.
 */
#include "text/build.h"
#include "text/header.h"
#include "common/read_file.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"

#include <string.h>

enum {
    MAGIC = 20240328,
    N_TOKENS_WORD = 2,
    END_WORD = 3,
    USUAL_END = 50256 /* of version 1, which is GPT-2's */
};

static shoal_status add_tokens(struct tokenizer *tokenizer, const char *bytes, size_t n_bytes,
                               int64_t n_tokens)
{
    size_t at = 0;
    for (int64_t i = 0; i < n_tokens; i++) {
        size_t length = at < n_bytes ? (unsigned char)bytes[at] : 0;
        if (length == 0 || length > n_bytes - at - 1) {
            return error_set(SHOAL_ERR_INVALID, "ends within token %lld of %lld, or that token is empty",
                             (long long)i, (long long)n_tokens);
        }
        TRY(tokenizer_add(tokenizer, i, bytes + at + 1, length, i != tokenizer->end_of_text));
        at += length + 1;
    }
    return at == n_bytes ? SHOAL_OK
                         : error_set(SHOAL_ERR_INVALID, "has %zu bytes behind the last of its %lld tokens",
                                     n_bytes - at, (long long)n_tokens);
}

/* Every way to cut a token into two others. */
static shoal_status add_merges_of(struct tokenizer *tokenizer, int32_t token)
{
    const struct tokenizer_token *whole = &tokenizer->tokens[token];
    bool is_new = false;
    for (size_t cut = 1; cut < whole->n_bytes; cut++) {
        int32_t left = tokenizer_find(tokenizer, whole->bytes, cut);
        int32_t right = left < 0 ? -1 : tokenizer_find(tokenizer, whole->bytes + cut, whole->n_bytes - cut);
        if (right >= 0) {
            const struct bpe_merge merge = {(uint32_t)token, token};
            TRY(bpe_add(&tokenizer->bpe, left, right, merge, &is_new));
        }
    }
    return SHOAL_OK;
}

static shoal_status read_tokens(struct tokenizer *tokenizer, const char *text, size_t n_bytes)
{
    uint32_t words[HEADER_WORDS];
    if (n_bytes < sizeof words) {
        return error_set(SHOAL_ERR_INVALID, "has %zu bytes, fewer than the header of a tokenizer of llm.c",
                         n_bytes);
    }
    memcpy(words, text, sizeof words);
    if (words[HEADER_MAGIC] != MAGIC) {
        return error_set(SHOAL_ERR_INVALID, "is not a tokenizer of llm.c: it begins with %u, not with %d",
                         (unsigned)words[HEADER_MAGIC], MAGIC);
    }
    if (words[HEADER_VERSION] < 1 || words[HEADER_VERSION] > 2) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "is a tokenizer of version %u; versions 1 and 2 are read",
                         (unsigned)words[HEADER_VERSION]);
    }
    int64_t n_tokens = words[N_TOKENS_WORD];
    int64_t end = words[HEADER_VERSION] == 1 ? USUAL_END : words[END_WORD];
    tokenizer->end_of_text = end < n_tokens ? (int32_t)end : -1;
    TRY(add_tokens(tokenizer, text + sizeof words, n_bytes - sizeof words, n_tokens));
    for (size_t i = 0; i < tokenizer->n_tokens; i++) {
        bool is_plain =
            tokenizer_find(tokenizer, tokenizer->tokens[i].bytes, tokenizer->tokens[i].n_bytes) == (int32_t)i;
        TRY(is_plain ? add_merges_of(tokenizer, (int32_t)i) : SHOAL_OK);
    }
    return SHOAL_OK;
}

shoal_status tokenizer_read_llmc(struct tokenizer *tokenizer, const char *path)
{
    char *text = NULL;
    size_t n_bytes = 0;
    TRY(tool_read_file(path, TOKENIZER_MAX_FILE_BYTES, &text, &n_bytes));
    shoal_status status = read_tokens(tokenizer, text, n_bytes);
    mem_free(text);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", path);
}
