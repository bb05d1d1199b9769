/* SPDX-License-Identifier: MIT */
/*
 * Hugging Face's vocab.json, an object of tokens and their numbers, and merges.txt, a pair of tokens in each line, by
 * rank. Both write bytes as characters (text/alphabet.h).
 */
#include "text/alphabet.h"
#include "text/build.h"
#include "text/unicode.h"
#include "common/read_file.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
    N_CHARACTERS = 0x180, /* more than stand for bytes */
    N_SHOWN = 48          /* bytes of a line in an error */
};

struct reading {
    struct tokenizer *tokenizer;
    const char *path;              /* of the file that is read */
    int16_t byte_of[N_CHARACTERS]; /* -1 if the character stands for none */
    char *bytes;                   /* of the word that is read */
    size_t capacity;
};

/* Gives the bytes that a word stands for, in reading->bytes. False if a character stands for none. */
static shoal_status read_word(struct reading *reading, const char *word, size_t length, size_t *n_bytes_out,
                              bool *is_plain_out)
{
    size_t n_bytes = 0;
    TRY(mem_grow((void **)&reading->bytes, &reading->capacity, length, 1));
    *is_plain_out = false;
    for (size_t at = 0; at < length;) {
        uint32_t code;
        at += unicode_read(word + at, length - at, &code);
        int byte = code < N_CHARACTERS ? reading->byte_of[code] : -1;
        if (byte < 0) {
            return SHOAL_OK;
        }
        reading->bytes[n_bytes++] = (char)byte;
    }
    *n_bytes_out = n_bytes;
    *is_plain_out = true;
    return SHOAL_OK;
}

/* The vocabulary --------------------------------------------------------------------------------------- */

/* A word with other characters is a token that was added: it stands for itself, and is not made from text. */
static shoal_status add_word(struct reading *reading, const char *word, const json_t *number)
{
    struct tokenizer *tokenizer = reading->tokenizer;
    size_t n_bytes = strlen(word);
    bool is_plain = false;
    if (!json_is_integer(number)) {
        return error_set(SHOAL_ERR_INVALID, "\"%.*s\" has no whole number", N_SHOWN, word);
    }
    bool is_end = strcmp(word, TOKENIZER_END_OF_TEXT) == 0;
    if (!is_end) {
        TRY(read_word(reading, word, n_bytes, &n_bytes, &is_plain));
    }
    json_int_t token = json_integer_value(number);
    TRY(tokenizer_add(tokenizer, token, is_plain ? reading->bytes : word, n_bytes, is_plain));
    if (is_end) {
        tokenizer->end_of_text = (int32_t)token;
    }
    return SHOAL_OK;
}

static shoal_status add_words(struct reading *reading, json_t *vocabulary)
{
    const char *word;
    json_t *number;
    if (!json_is_object(vocabulary) || json_object_size(vocabulary) == 0) {
        return error_set(SHOAL_ERR_INVALID, "is not an object of tokens and their numbers");
    }
    json_object_foreach(vocabulary, word, number)
    {
        TRY(add_word(reading, word, number));
    }
    return SHOAL_OK;
}

static shoal_status read_vocabulary(struct reading *reading)
{
    json_error_t error;
    char *text = NULL;
    size_t n_bytes = 0;
    TRY(tool_read_file(reading->path, TOKENIZER_MAX_FILE_BYTES, &text, &n_bytes));
    json_t *vocabulary = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    mem_free(text);
    if (!vocabulary) {
        return error_set(SHOAL_ERR_INVALID, "%s:%d: %s", reading->path, error.line, error.text);
    }
    shoal_status status = add_words(reading, vocabulary);
    json_decref(vocabulary);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", reading->path);
}

/* Merges ----------------------------------------------------------------------------------------------- */

static shoal_status find_word(struct reading *reading, const char *word, size_t length, int32_t *token_out)
{
    size_t n_bytes = 0;
    bool is_plain = false;
    TRY(read_word(reading, word, length, &n_bytes, &is_plain));
    *token_out = is_plain ? tokenizer_find(reading->tokenizer, reading->bytes, n_bytes) : -1;
    return *token_out >= 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "'%.*s' is not a token of " TOKENIZER_VOCABULARY_NAME,
                           (int)(length < N_SHOWN ? length : N_SHOWN), word);
}

/* The token of both words: their bytes one after the other. */
static shoal_status find_joined(struct reading *reading, const int32_t pair[2], int32_t *token_out)
{
    const struct tokenizer_token *tokens = reading->tokenizer->tokens;
    const struct tokenizer_token *left = &tokens[pair[0]];
    const struct tokenizer_token *right = &tokens[pair[1]];
    TRY(mem_grow((void **)&reading->bytes, &reading->capacity, left->n_bytes + right->n_bytes, 1));
    memcpy(reading->bytes, left->bytes, left->n_bytes);
    memcpy(reading->bytes + left->n_bytes, right->bytes, right->n_bytes);
    *token_out = tokenizer_find(reading->tokenizer, reading->bytes, left->n_bytes + right->n_bytes);
    return *token_out >= 0 ? SHOAL_OK
                           : error_set(SHOAL_ERR_INVALID,
                                       "both words together are not a token of " TOKENIZER_VOCABULARY_NAME);
}

static shoal_status add_merge(struct reading *reading, const char *line, size_t length)
{
    struct bpe *bpe = &reading->tokenizer->bpe;
    struct bpe_merge merge = {.rank = (uint32_t)bpe->n_merges};
    int32_t pair[2];
    bool is_new = false;
    const char *space = memchr(line, ' ', length);
    size_t left_length = space ? (size_t)(space - line) : 0;
    size_t right_length = space ? length - left_length - 1 : 0;
    if (left_length == 0 || right_length == 0 || memchr(space + 1, ' ', right_length)) {
        return error_set(SHOAL_ERR_INVALID, "'%.*s' is not two words",
                         (int)(length < N_SHOWN ? length : N_SHOWN), line);
    }
    TRY(find_word(reading, line, left_length, &pair[0]));
    TRY(find_word(reading, space + 1, right_length, &pair[1]));
    TRY(find_joined(reading, pair, &merge.token));
    TRY(bpe_add(bpe, pair[0], pair[1], merge, &is_new));
    return is_new ? SHOAL_OK
                  : error_set(SHOAL_ERR_INVALID, "'%.*s' is there twice",
                              (int)(length < N_SHOWN ? length : N_SHOWN), line);
}

/* Lines that are empty or begin with "#version" are no merges. */
static shoal_status add_merges(struct reading *reading, const char *text, size_t n_bytes)
{
    static const char version[] = "#version";
    int line = 0;
    for (size_t at = 0; at < n_bytes;) {
        const char *begin = text + at;
        const char *end = memchr(begin, '\n', n_bytes - at);
        size_t length = end ? (size_t)(end - begin) : n_bytes - at;
        at += length + 1;
        line++;
        length -= length > 0 && begin[length - 1] == '\r' ? 1 : 0;
        if (length == 0 || strncmp(begin, version, sizeof version - 1) == 0) {
            continue;
        }
        shoal_status status = add_merge(reading, begin, length);
        if (status != SHOAL_OK) {
            return error_prefix(status, "%s:%d", reading->path, line);
        }
    }
    return SHOAL_OK;
}

static shoal_status read_merges(struct reading *reading)
{
    char *text = NULL;
    size_t n_bytes = 0;
    TRY(tool_read_file(reading->path, TOKENIZER_MAX_FILE_BYTES, &text, &n_bytes));
    shoal_status status = add_merges(reading, text, n_bytes);
    mem_free(text);
    return status;
}

/* Both ------------------------------------------------------------------------------------------------- */

shoal_status tokenizer_read_directory(struct tokenizer *tokenizer, const char *directory)
{
    char path[PATH_MAX];
    struct reading reading = {.tokenizer = tokenizer, .path = path};
    for (uint32_t code = 0; code < N_CHARACTERS; code++) {
        reading.byte_of[code] = (int16_t)alphabet_read(code);
    }
    (void)snprintf(path, sizeof path, "%s/" TOKENIZER_VOCABULARY_NAME, directory);
    shoal_status status = read_vocabulary(&reading);
    if (status == SHOAL_OK) {
        (void)snprintf(path, sizeof path, "%s/" TOKENIZER_MERGES_NAME, directory);
        status = read_merges(&reading);
    }
    mem_free(reading.bytes);
    return status;
}
