/* SPDX-License-Identifier: MIT */
/*
 * Models that have learned bytes get a tokenizer of bytes: 256 tokens, each written as Hugging Face's byte-level
 * tokenizers write its byte, and no merges.
 */
#include "export/tokenizer.h"
#include "common/read_file.h"
#include "text/alphabet.h"
#include "text/tokenizer.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/io/file.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_FILE_BYTES = 1 << 28,
    VOCABULARY_BYTES = 8192 /* of 256 rows, each less than 20 */
};

shoal_status export_check_tokenizer(const char *directory, int64_t vocabulary)
{
    struct tokenizer *tokenizer = NULL;
    if (!tokenizer_is_there(directory)) {
        return error_set(SHOAL_ERR_INVALID, "--tokenizer: %s has no vocab.json and merges.txt", directory);
    }
    TRY(tokenizer_open(directory, &tokenizer));
    int64_t n_tokens = tokenizer_n_tokens(tokenizer);
    tokenizer_free(tokenizer);
    return n_tokens <= vocabulary
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID,
                           "--tokenizer: %s has %" PRId64 " tokens, but the model has %" PRId64, directory,
                           n_tokens, vocabulary);
}

static shoal_status save_file(const char *to, const char *name, const char *text, size_t n_bytes)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/%s", to, name);
    return file_save(path, text, n_bytes);
}

static shoal_status copy_file(const char *from, const char *to, const char *name)
{
    char path[PATH_MAX];
    char *text = NULL;
    size_t n_bytes = 0;
    (void)snprintf(path, sizeof path, "%s/%s", from, name);
    TRY(tool_read_file(path, MAX_FILE_BYTES, &text, &n_bytes));
    shoal_status status = save_file(to, name, text, n_bytes);
    mem_free(text);
    return status;
}

static shoal_status save_bytes(const char *to)
{
    static const char merges[] = "#version: 0.2\n";
    char string[VOCABULARY_BYTES];
    char word[ALPHABET_BYTES];
    struct text text = text_begin(string, sizeof string);
    for (int byte = 0; byte < 256; byte++) {
        alphabet_write((unsigned char)byte, word);
        bool is_special = strcmp(word, "\"") == 0 || strcmp(word, "\\") == 0;
        text_add(&text, "%s\"%s%s\": %d", byte == 0 ? "{" : ", ", is_special ? "\\" : "", word, byte);
    }
    text_add(&text, "}\n");
    TRY(save_file(to, TOKENIZER_VOCABULARY_NAME, string, text.length));
    return save_file(to, TOKENIZER_MERGES_NAME, merges, sizeof merges - 1);
}

shoal_status export_tokenizer(const char *from, const char *to)
{
    if (!from) {
        return save_bytes(to);
    }
    TRY(copy_file(from, to, TOKENIZER_VOCABULARY_NAME));
    return copy_file(from, to, TOKENIZER_MERGES_NAME);
}
