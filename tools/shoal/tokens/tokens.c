/* SPDX-License-Identifier: MIT */
/* `shoal tokens`: text to tokens, and back. Files may be larger than memory: they are read in blocks. */
#include "common/commands.h"
#include "common/paths.h"
#include "common/tool.h"
#include "run/job.h"
#include "text/token_file.h"
#include "text/tokenizer.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BLOCK_BYTES = 1 << 20,
    BLOCK_TOKENS = 4096
};

struct arguments {
    const char *file;
    const char *tokenizer;
    const char *out;
    bool decodes;
};

#define AT(member) offsetof(struct arguments, member)

static const struct tool_option rows[] = {
    {"FILE", "file", TOOL_OPTION_TEXT, AT(file), .missing = "needs a file of text, or - for standard input",
     .help = "text, or with --decode a file of tokens; - is standard input, of text only"},
    {"--tokenizer", "PATH", TOOL_OPTION_TEXT, AT(tokenizer), .missing = "needs --tokenizer PATH",
     .help = "directory with vocab.json and merges.txt, or llm.c's tokenizer.bin"},
    {"--out", "FILE", TOOL_OPTION_TEXT, AT(out), .alias = "-o",
     .help = "writes a file for shoal train --tokens, or with --decode text"},
    {"--decode", NULL, TOOL_OPTION_FLAG, AT(decodes), .help = "FILE has tokens: gives the text"},
};

const struct tool_options command_tokens_options = {
    .about = "Turns text into tokens as GPT-2 does, and tokens into text.\n",
    TOOL_OPTIONS_ROWS(rows),
    .notes = "Without --out tokens are printed in one line, separated by commas, and text as it is.\n",
};

struct course {
    const struct arguments *arguments;
    struct tokenizer *tokenizer;
    int in;
    /* One of these, or standard output: */
    struct token_writer *tokens_out;
    struct file *text_out;
    uint64_t n_written; /* tokens, or bytes of text */
};

static shoal_status fail_file(const char *path)
{
    return error_set(SHOAL_ERR_SYSTEM, "%s: %s", path, error_errno_text(errno));
}

/* Reads as many bytes as there are, at most n_bytes. */
static shoal_status read_some(const struct course *course, char *bytes, size_t n_bytes, size_t *n_read_out)
{
    *n_read_out = 0;
    while (*n_read_out < n_bytes) {
        ssize_t n_read = read(course->in, bytes + *n_read_out, n_bytes - *n_read_out);
        if (n_read == 0) {
            return SHOAL_OK;
        }
        if (n_read < 0 && errno != EINTR) {
            return fail_file(course->arguments->file);
        }
        *n_read_out += n_read > 0 ? (size_t)n_read : 0;
    }
    return SHOAL_OK;
}

/* Text to tokens ----------------------------------------------------------------------------------------- */

static shoal_status write_tokens(struct course *course, const struct token_list *list)
{
    if (course->tokens_out) {
        return token_writer_add(course->tokens_out, list->tokens, list->count);
    }
    for (size_t i = 0; i < list->count; i++) {
        printf("%s%" PRId32, course->n_written++ > 0 ? "," : "", list->tokens[i]);
    }
    return SHOAL_OK;
}

struct buffer {
    char *bytes;
    size_t n_bytes;
    size_t capacity;
};

/* Adds a block to what the last call of the tokenizer has left. */
static shoal_status encode_block(struct course *course, struct buffer *buffer, struct token_list *list,
                                 bool *is_last_out)
{
    size_t n_read = 0;
    size_t n_taken = 0;
    TRY(mem_grow((void **)&buffer->bytes, &buffer->capacity, buffer->n_bytes + BLOCK_BYTES, 1));
    TRY(read_some(course, buffer->bytes + buffer->n_bytes, BLOCK_BYTES, &n_read));
    buffer->n_bytes += n_read;
    *is_last_out = n_read < BLOCK_BYTES;
    list->count = 0;
    TRY(tokenizer_encode(course->tokenizer, buffer->bytes, buffer->n_bytes, *is_last_out, list, &n_taken));
    buffer->n_bytes -= n_taken;
    memmove(buffer->bytes, buffer->bytes + n_taken, buffer->n_bytes);
    return write_tokens(course, list);
}

static shoal_status encode(struct course *course)
{
    struct buffer buffer = {0};
    struct token_list list = {0};
    bool is_last = false;
    shoal_status status = SHOAL_OK;
    while (status == SHOAL_OK && !is_last) {
        status = encode_block(course, &buffer, &list, &is_last);
    }
    mem_free(buffer.bytes);
    mem_free(list.tokens);
    return status;
}

static shoal_status encode_to_file(struct course *course)
{
    struct token_writer writer;
    const char *path = course->arguments->out;
    TRY(token_writer_create(path, tokenizer_n_tokens(course->tokenizer), &writer));
    course->tokens_out = &writer;
    shoal_status status = encode(course);
    if (status == SHOAL_OK) {
        status = token_writer_finish(&writer);
    }
    if (status == SHOAL_OK) {
        printf("%" PRIu64 " tokens of %zu bytes in %s; the vocabulary is %" PRId64 "\n", writer.n_tokens,
               writer.token_bytes, path, tokenizer_n_tokens(course->tokenizer));
    }
    token_writer_close(&writer);
    return status;
}

/* Tokens to text ----------------------------------------------------------------------------------------- */

static shoal_status write_text(struct course *course, const char *bytes, size_t n_bytes)
{
    if (course->text_out) {
        TRY(file_write(course->text_out, course->n_written, bytes, n_bytes));
    } else {
        (void)fwrite(bytes, 1, n_bytes, stdout); /* main.c looks whether it was written */
    }
    course->n_written += n_bytes;
    return SHOAL_OK;
}

static shoal_status decode_tokens(struct course *course, const int32_t *tokens, size_t count,
                                  struct buffer *text)
{
    text->n_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        size_t n_bytes = 0;
        const char *bytes = tokenizer_decode(course->tokenizer, tokens[i], &n_bytes);
        if (!bytes) {
            return error_set(SHOAL_ERR_INVALID, "%s has token %" PRId32 ", which the tokenizer does not have",
                             course->arguments->file, tokens[i]);
        }
        TRY(mem_grow((void **)&text->bytes, &text->capacity, text->n_bytes + n_bytes, 1));
        memcpy(text->bytes + text->n_bytes, bytes, n_bytes);
        text->n_bytes += n_bytes;
    }
    return write_text(course, text->bytes, text->n_bytes);
}

static shoal_status decode_all(struct course *course, const struct token_format *format, struct buffer *text)
{
    char words[BLOCK_TOKENS * sizeof(uint32_t)];
    int32_t tokens[BLOCK_TOKENS];
    for (size_t at = 0; at < format->n_tokens; at += BLOCK_TOKENS) {
        size_t n = format->n_tokens - at < BLOCK_TOKENS ? format->n_tokens - at : BLOCK_TOKENS;
        shoal_status status = file_read_at(course->in, format->header_bytes + at * format->token_bytes, words,
                                           n * format->token_bytes);
        if (status != SHOAL_OK) {
            return error_prefix(status, "%s", course->arguments->file);
        }
        token_file_widen(words, format->token_bytes, n, tokens);
        TRY(decode_tokens(course, tokens, n, text));
    }
    return SHOAL_OK;
}

static shoal_status decode(struct course *course)
{
    const char *path = course->arguments->file;
    struct token_format format;
    struct buffer text = {0};
    struct stat about;
    if (fstat(course->in, &about) != 0) {
        return fail_file(path);
    }
    if (!S_ISREG(about.st_mode)) {
        return error_set(SHOAL_ERR_INVALID, "%s is not a regular file", path);
    }
    TRY(token_file_recognize(course->in, path, (uint64_t)about.st_size, &format));
    shoal_status status = decode_all(course, &format, &text);
    mem_free(text.bytes);
    return status;
}

static shoal_status decode_to_file(struct course *course)
{
    struct file file;
    TRY(file_create(course->arguments->out, &file));
    course->text_out = &file;
    shoal_status status = decode(course);
    if (status == SHOAL_OK) {
        status = file_commit(&file);
    }
    file_close(&file);
    return status;
}

/* The command -------------------------------------------------------------------------------------------- */

static shoal_status convert(struct course *course)
{
    const struct arguments *arguments = course->arguments;
    if (arguments->decodes) {
        return arguments->out ? decode_to_file(course) : decode(course);
    }
    if (arguments->out) {
        return encode_to_file(course);
    }
    TRY(encode(course));
    printf("\n");
    return SHOAL_OK;
}

static shoal_status open_and_convert(const struct arguments *arguments)
{
    struct course course = {.arguments = arguments, .in = STDIN_FILENO};
    struct stat about;
    bool is_file = strcmp(arguments->file, "-") != 0;
    TRY(tokenizer_open(arguments->tokenizer, &course.tokenizer));
    course.in = is_file ? open(arguments->file, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
    shoal_status status = SHOAL_OK;
    if (course.in < 0) {
        status = fail_file(arguments->file);
    } else if (fstat(course.in, &about) == 0 && S_ISDIR(about.st_mode)) {
        status = error_set(SHOAL_ERR_INVALID, "%s is a directory", arguments->file);
    } else {
        status = convert(&course);
    }
    if (is_file && course.in >= 0) {
        (void)close(course.in);
    }
    tokenizer_free(course.tokenizer);
    return status;
}

int command_tokens(int argc, char **argv)
{
    struct arguments arguments = {0};
    int exit_status;
    run_fill_standard_files();
    if (!tool_options_read(&command_tokens_options, argc, argv, &arguments, NULL, &exit_status)) {
        return exit_status;
    }
    const struct tool_path paths[] = {{"--out", arguments.out, true},
                                      {"what is read", arguments.file, false},
                                      {"the tokenizer", arguments.tokenizer, false}};
    if (!tool_paths_check(paths, sizeof paths / sizeof paths[0])) {
        return TOOL_USAGE;
    }
    if (open_and_convert(&arguments) != SHOAL_OK) {
        fprintf(stderr, "%s: %s\n", tool_name(), shoal_error_text());
        return TOOL_FAILED;
    }
    return TOOL_DONE;
}
