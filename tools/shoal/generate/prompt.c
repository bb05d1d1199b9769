/* SPDX-License-Identifier: MIT */
/* Prompts become tokens, and tokens become text, by a tokenizer or byte by byte. */
#include "generate/prompt.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/option_parse.h"
#include "base/try.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    NUMBER_BYTES = 16
};

/* Writing ------------------------------------------------------------------------------------------------ */

shoal_status writing_open(const struct generate_options *options, const struct model_description *description,
                          struct writing *writing_out)
{
    const char *path = options->tokenizer                       ? options->tokenizer
                       : tokenizer_is_there(options->directory) ? options->directory
                                                                : NULL;
    *writing_out = (struct writing){.show = {.out = stdout}};
    if (path) {
        shoal_status status = tokenizer_open(path, &writing_out->tokenizer);
        return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "--tokenizer");
    }
    writing_out->is_bytes = description->is_bytes;
    return SHOAL_OK;
}

void writing_close(struct writing *writing)
{
    tokenizer_free(writing->tokenizer);
    writing->tokenizer = NULL;
}

static void print_number(struct writing *writing, int32_t token)
{
    printf("%s%" PRId32, writing->n_numbers++ > 0 ? "," : "", token);
}

/* Models may have more tokens than bytes or their tokenizer, because their vocabulary was rounded up: "<50300>". */
static void print_text(struct writing *writing, int32_t token)
{
    const char byte = (char)token;
    char number[NUMBER_BYTES];
    size_t n_bytes = 1;
    const char *bytes = writing->tokenizer ? tokenizer_decode(writing->tokenizer, token, &n_bytes)
                        : token < 256      ? &byte
                                           : NULL;
    if (!bytes) {
        n_bytes = (size_t)snprintf(number, sizeof number, "<%" PRId32 ">", token);
        bytes = number;
    }
    show_bytes(&writing->show, bytes, n_bytes);
}

void writing_print(struct writing *writing, int32_t token)
{
    if (writing->tokenizer || writing->is_bytes) {
        print_text(writing, token);
    } else {
        print_number(writing, token);
    }
    (void)fflush(stdout); /* models are slow: people read along */
}

void writing_end(struct writing *writing)
{
    show_end(&writing->show);
    (void)fflush(stdout);
}

/* Prompts ------------------------------------------------------------------------------------------------ */

static shoal_status read_numbers(const char *text, struct token_list *prompt)
{
    while (text) {
        char word[NUMBER_BYTES];
        size_t length = strcspn(text, ",");
        int64_t token = -1;
        (void)snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : 0), text);
        if (!option_parse_int(word, &token) || token < 0 || token > INT32_MAX) {
            return error_set(SHOAL_ERR_INVALID, "'%.*s' is not a token; tokens look like 15496,995",
                             (int)(length < NUMBER_BYTES ? length : NUMBER_BYTES), text);
        }
        TRY(token_list_add(prompt, (int32_t)token));
        text = text[length] == ',' ? text + length + 1 : NULL;
    }
    return SHOAL_OK;
}

static shoal_status read_text(struct writing *writing, const char *text, struct token_list *prompt)
{
    size_t n_taken = 0;
    if (writing->tokenizer) {
        return tokenizer_encode(writing->tokenizer, text, strlen(text), true, prompt, &n_taken);
    }
    if (!writing->is_bytes) {
        return error_set(SHOAL_ERR_INVALID,
                         "the tokens of this model are not bytes: give --tokenizer PATH, or --prompt-tokens");
    }
    for (; *text; text++) {
        TRY(token_list_add(prompt, (unsigned char)*text));
    }
    return SHOAL_OK;
}

/* Where texts begin: behind the end of the one before. */
static shoal_status read_nothing(struct writing *writing, struct token_list *prompt)
{
    int32_t end = writing->tokenizer ? tokenizer_end_of_text(writing->tokenizer) : -1;
    if (end >= 0) {
        return token_list_add(prompt, end);
    }
    return read_text(writing, "\n", prompt);
}

static shoal_status check_tokens(const struct token_list *prompt, int64_t vocabulary)
{
    for (size_t i = 0; i < prompt->count; i++) {
        if (prompt->tokens[i] >= vocabulary) {
            return error_set(SHOAL_ERR_INVALID,
                             "token %zu of the prompt is %" PRId32 ", but the model has %" PRId64 " tokens",
                             i, prompt->tokens[i], vocabulary);
        }
    }
    return SHOAL_OK;
}

shoal_status prompt_read(const struct generate_options *options, const struct model_description *description,
                         struct writing *writing, struct token_list *prompt_out)
{
    const char *name = options->prompt_tokens ? "--prompt-tokens" : options->prompt ? "--prompt" : NULL;
    *prompt_out = (struct token_list){0};
    shoal_status status = options->prompt_tokens ? read_numbers(options->prompt_tokens, prompt_out)
                          : options->prompt      ? read_text(writing, options->prompt, prompt_out)
                                                 : read_nothing(writing, prompt_out);
    if (status == SHOAL_OK) {
        status = check_tokens(prompt_out, description->gpt.vocabulary);
    }
    if (status != SHOAL_OK) {
        mem_free(prompt_out->tokens);
        *prompt_out = (struct token_list){0};
        return name ? error_prefix(status, "%s", name) : status;
    }
    return SHOAL_OK;
}
