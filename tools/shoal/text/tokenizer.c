/* SPDX-License-Identifier: MIT */
/* The tokens of a tokenizer; encoding piece by piece, and decoding. */
#include "text/build.h"
#include "text/split.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/try.h"

#include <string.h>

/* Tokens ----------------------------------------------------------------------------------------------- */

shoal_status token_list_add(struct token_list *list, int32_t token)
{
    TRY(mem_grow((void **)&list->tokens, &list->capacity, list->count + 1, sizeof(list->tokens[0])));
    list->tokens[list->count++] = token;
    return SHOAL_OK;
}

static bool is_same(const void *context, const void *wanted, size_t value)
{
    const struct tokenizer *tokenizer = context;
    const struct tokenizer_token *token = wanted;
    const struct tokenizer_token *other = &tokenizer->tokens[value];
    return token->n_bytes == other->n_bytes && memcmp(token->bytes, other->bytes, token->n_bytes) == 0;
}

int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *bytes, size_t n_bytes)
{
    const struct tokenizer_token wanted = {bytes, n_bytes};
    size_t found = 0;
    return map_find(&tokenizer->plain, hash_bytes(0, bytes, n_bytes), is_same, tokenizer, &wanted, &found)
               ? (int32_t)found
               : -1;
}

/* Makes room for a token, with those before it that are not there yet. */
static shoal_status make_room(struct tokenizer *tokenizer, size_t n_tokens)
{
    TRY(mem_grow((void **)&tokenizer->tokens, &tokenizer->capacity, n_tokens, sizeof(tokenizer->tokens[0])));
    while (tokenizer->n_tokens < n_tokens) {
        tokenizer->tokens[tokenizer->n_tokens++] = (struct tokenizer_token){0};
    }
    return SHOAL_OK;
}

shoal_status tokenizer_add(struct tokenizer *tokenizer, int64_t token, const char *bytes, size_t n_bytes,
                           bool is_plain)
{
    if (token < 0 || token >= TOKENIZER_MAX_TOKENS) {
        return error_set(SHOAL_ERR_INVALID, "token %lld is not from 0 to %d", (long long)token,
                         TOKENIZER_MAX_TOKENS - 1);
    }
    TRY(make_room(tokenizer, (size_t)token + 1));
    if (tokenizer->tokens[token].bytes) {
        return error_set(SHOAL_ERR_INVALID, "token %lld is there twice", (long long)token);
    }
    char *copy = arena_take(&tokenizer->arena, n_bytes, 1);
    TRY(copy ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
    memcpy(copy, bytes, n_bytes);
    tokenizer->tokens[token] = (struct tokenizer_token){copy, n_bytes};
    if (!is_plain || tokenizer_find(tokenizer, copy, n_bytes) >= 0) {
        return SHOAL_OK;
    }
    if (n_bytes == 1) {
        tokenizer->of_bytes[(unsigned char)copy[0]] = (int32_t)token;
    }
    return map_add(&tokenizer->plain, hash_bytes(0, copy, n_bytes), (size_t)token);
}

int64_t tokenizer_n_tokens(const struct tokenizer *tokenizer)
{
    return (int64_t)tokenizer->n_tokens;
}

int32_t tokenizer_end_of_text(const struct tokenizer *tokenizer)
{
    return tokenizer->end_of_text;
}

const char *tokenizer_decode(const struct tokenizer *tokenizer, int64_t token, size_t *n_bytes_out)
{
    if (token < 0 || (uint64_t)token >= tokenizer->n_tokens) {
        return NULL;
    }
    *n_bytes_out = tokenizer->tokens[token].n_bytes;
    return tokenizer->tokens[token].bytes;
}

void tokenizer_free(struct tokenizer *tokenizer)
{
    if (!tokenizer) {
        return;
    }
    arena_free(&tokenizer->arena);
    mem_free(tokenizer->tokens);
    map_free(&tokenizer->plain);
    bpe_free(&tokenizer->bpe);
    mem_free(tokenizer->work.tokens);
    mem_free(tokenizer);
}

/* Encoding --------------------------------------------------------------------------------------------- */

static shoal_status encode_piece(struct tokenizer *tokenizer, const char *text, size_t n_bytes,
                                 struct token_list *list)
{
    struct token_list *work = &tokenizer->work;
    work->count = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        int32_t token = tokenizer->of_bytes[(unsigned char)text[i]];
        if (token < 0) {
            return error_set(SHOAL_ERR_INVALID, "the tokenizer has no token for the byte 0x%02x",
                             (unsigned)(unsigned char)text[i]);
        }
        TRY(token_list_add(work, token));
    }
    TRY(bpe_join(&tokenizer->bpe, work->tokens, &work->count));
    TRY(mem_grow((void **)&list->tokens, &list->capacity, list->count + work->count,
                 sizeof(list->tokens[0])));
    memcpy(list->tokens + list->count, work->tokens, work->count * sizeof(work->tokens[0]));
    list->count += work->count;
    return SHOAL_OK;
}

shoal_status tokenizer_encode(struct tokenizer *tokenizer, const char *text, size_t n_bytes, bool is_last,
                              struct token_list *list, size_t *n_taken_out)
{
    size_t at = 0;
    while (at < n_bytes) {
        size_t length = split_next(text + at, n_bytes - at);
        if (!is_last && n_bytes - at - length < SPLIT_LOOK_AHEAD) {
            break;
        }
        TRY(encode_piece(tokenizer, text + at, length, list));
        at += length;
    }
    *n_taken_out = at;
    return SHOAL_OK;
}
