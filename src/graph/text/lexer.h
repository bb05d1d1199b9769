/* SPDX-License-Identifier: MIT */
/* The tokens of graph text (docs/graph.md), and errors with their line and column. */
#ifndef GRAPH_TEXT_LEXER_H
#define GRAPH_TEXT_LEXER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/dtype.h"
#include "shoal/status.h"

enum token_kind {
    TOKEN_END,    /* of the text */
    TOKEN_WORD,   /* add, f32, placeholder */
    TOKEN_NODE,   /* %x */
    TOKEN_GROUP,  /* @shard */
    TOKEN_NUMBER, /* begins with a digit; not checked further */
    TOKEN_STRING, /* "..." with its quotes */
    TOKEN_MARK    /* one character of ( ) [ ] { } , : = * + - */
};

struct token {
    enum token_kind kind;
    const char *start;
    size_t length;
    size_t line; /* from 1 */
    const char *line_start;
};

struct lexer {
    struct token token; /* the current one */
    const char *at;     /* behind it */
    const char *end;
    size_t line;
    const char *line_start;
};

/* Begins at the first token. */
shoal_status lexer_begin(struct lexer *lexer, const char *text, size_t bytes);
shoal_status lexer_next(struct lexer *lexer);

bool lexer_is_mark(const struct lexer *lexer, char mark);
bool lexer_is_word(const struct lexer *lexer, const char *word);

/* Skips that mark; any other token is an error. */
shoal_status lexer_expect(struct lexer *lexer, char mark);
/* Skips that mark if it is there. */
shoal_status lexer_accept(struct lexer *lexer, char mark, bool *is_there_out);

/* SHOAL_ERR_INVALID, "line 3, column 14: ...". */
shoal_status lexer_fail(const struct token *token, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* "line 3, column 14: expected EXPECTED, found ...", about the current token. */
shoal_status lexer_fail_expected(const struct lexer *lexer, const char *expected);
/* Puts line and column in front of the current error text. */
void lexer_add_place(const struct token *token);

/* Puts line and column in front of the error of another call, whose status is given. Returns SHOAL_ERR_NO_MEMORY if it
   was that, otherwise SHOAL_ERR_INVALID. */
static inline shoal_status lexer_fail_at(const struct token *token, shoal_status status)
{
    lexer_add_place(token);
    return status == SHOAL_ERR_NO_MEMORY ? status : SHOAL_ERR_INVALID;
}

/* Copies the text of a string, name or word, with escapes resolved; needs at most 2 * token->length bytes. */
shoal_status lexer_copy(const struct token *token, char *to, size_t *bytes_out);

/* Reads an integer without a sign that is not larger than `most`. */
shoal_status lexer_integer(const struct token *token, uint64_t most, uint64_t *number_out);
/* Reads a number without a sign, also an integer, as a value of a floating dtype. */
shoal_status lexer_float(const struct token *token, shoal_dtype dtype, double *value_out);
/* Reads the bits of a NaN: "0x7ff8000000000001". */
shoal_status lexer_nan_bits(const struct token *token, uint64_t *bits_out);
/* Reads a string of hexadecimal digits as bytes, half as many as digits. */
shoal_status lexer_hex(const struct token *token, unsigned char *bytes);

#endif
