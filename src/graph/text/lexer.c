/* SPDX-License-Identifier: MIT */
/* Cuts graph text into tokens. Nothing is copied: a token points into the text. */
#include "graph/text/lexer.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "graph/text/float_text.h"

#define MAX_FOUND_CHARS 40

static const char marks[] = "()[]{},:=*+-";

/* Errors ----------------------------------------------------------------------------------------------- */

/* Returns the column in characters, from 1: continuation bytes of UTF-8 do not count. */
static size_t column_of(const struct token *token)
{
    size_t column = 1;
    for (const char *c = token->line_start; c < token->start; c++) {
        column += ((unsigned char)*c & 0xC0) != 0x80;
    }
    return column;
}

void lexer_add_place(const struct token *token)
{
    (void)error_prefix(SHOAL_ERR_INVALID, "line %zu, column %zu", token->line, column_of(token));
}

shoal_status lexer_fail(const struct token *token, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)error_set_v(SHOAL_ERR_INVALID, format, arguments);
    va_end(arguments);
    return lexer_fail_at(token, SHOAL_ERR_INVALID);
}

shoal_status lexer_fail_expected(const struct lexer *lexer, const char *expected)
{
    const struct token *token = &lexer->token;
    char found[MAX_FOUND_CHARS + 1];
    size_t length = token->length < MAX_FOUND_CHARS ? token->length : MAX_FOUND_CHARS;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)token->start[i];
        found[i] = c < 0x20 || c >= 0x7F ? '?' : (char)c;
    }
    found[length] = '\0';
    if (token->kind == TOKEN_END) {
        return lexer_fail(token, "expected %s, found the end of the text", expected);
    }
    const char *quote = token->kind == TOKEN_STRING ? "" : "'";
    return lexer_fail(token, "expected %s, found %s%s%s%s", expected, quote, found,
                      length < token->length ? "..." : "", quote);
}

/* Tokens ----------------------------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_name_char(char c)
{
    return is_letter(c) || is_digit(c) || c == '.';
}

static void skip_blank(struct lexer *lexer)
{
    bool is_comment = false;
    for (; lexer->at < lexer->end; lexer->at++) {
        char c = *lexer->at;
        if (c == '\n') {
            is_comment = false;
            lexer->line++;
            lexer->line_start = lexer->at + 1;
        } else if (c == '#') {
            is_comment = true;
        } else if (c == '\0' || (!is_comment && c != ' ' && c != '\t' && c != '\r')) {
            return;
        }
    }
}

static void scan_name(struct lexer *lexer)
{
    while (lexer->at < lexer->end && is_name_char(*lexer->at)) {
        lexer->at++;
    }
}

/* Scans 12, 1.5, 1e-7 or 0x7f. A sign belongs to the number only after an "e" that is not a hexadecimal digit. */
static void scan_number(struct lexer *lexer)
{
    const char *start = lexer->at;
    bool is_hex = lexer->end - start > 1 && start[0] == '0' && start[1] == 'x';
    for (; lexer->at < lexer->end; lexer->at++) {
        char c = *lexer->at;
        char before = lexer->at > start ? lexer->at[-1] : '\0';
        bool is_sign = (c == '+' || c == '-') && !is_hex && (before == 'e' || before == 'E');
        if (!is_name_char(c) && !is_sign) {
            return;
        }
    }
}

/* Scans a string, with its quotes. */
static shoal_status scan_string(struct lexer *lexer)
{
    for (lexer->at++; lexer->at < lexer->end; lexer->at++) {
        if (*lexer->at == '"') {
            lexer->at++;
            return SHOAL_OK;
        }
        if (*lexer->at == '\0') {
            lexer->token.start = lexer->at;
            return lexer_fail(&lexer->token, "the text contains a zero byte");
        }
        if (*lexer->at == '\n') {
            break;
        }
        if (*lexer->at == '\\' && lexer->end - lexer->at > 1 && lexer->at[1] != '\n' &&
            lexer->at[1] != '\0') {
            lexer->at++;
        }
    }
    return lexer_fail(&lexer->token, "the string has no closing quote in its line");
}

static shoal_status scan_sign(struct lexer *lexer)
{
    lexer->token.kind = *lexer->at == '%' ? TOKEN_NODE : TOKEN_GROUP;
    lexer->at++;
    scan_name(lexer);
    return lexer->at - lexer->token.start > 1
               ? SHOAL_OK
               : lexer_fail(&lexer->token, "expected a name after '%c'", *lexer->token.start);
}

static shoal_status scan(struct lexer *lexer)
{
    char c = *lexer->at;
    if (c == '%' || c == '@') {
        return scan_sign(lexer);
    }
    if (c == '"') {
        lexer->token.kind = TOKEN_STRING;
        return scan_string(lexer);
    }
    if (is_digit(c)) {
        lexer->token.kind = TOKEN_NUMBER;
        scan_number(lexer);
    } else if (is_letter(c)) {
        lexer->token.kind = TOKEN_WORD;
        scan_name(lexer);
    } else if (c != '\0' && strchr(marks, c)) {
        lexer->token.kind = TOKEN_MARK;
        lexer->at++;
    } else if (c == '\0') {
        return lexer_fail(&lexer->token, "the text contains a zero byte");
    } else if ((unsigned char)c < 0x20 || (unsigned char)c >= 0x7F) {
        return lexer_fail(&lexer->token, "unexpected byte 0x%02x", (unsigned)(unsigned char)c);
    } else {
        return lexer_fail(&lexer->token, "unexpected '%c'", c);
    }
    return SHOAL_OK;
}

shoal_status lexer_next(struct lexer *lexer)
{
    skip_blank(lexer);
    lexer->token = (struct token){
        .kind = TOKEN_END, .start = lexer->at, .line = lexer->line, .line_start = lexer->line_start};
    if (lexer->at < lexer->end) {
        TRY(scan(lexer));
        lexer->token.length = (size_t)(lexer->at - lexer->token.start);
    }
    return SHOAL_OK;
}

shoal_status lexer_begin(struct lexer *lexer, const char *text, size_t bytes)
{
    *lexer = (struct lexer){.at = text, .end = text + bytes, .line = 1, .line_start = text};
    return lexer_next(lexer);
}

bool lexer_is_mark(const struct lexer *lexer, char mark)
{
    return lexer->token.kind == TOKEN_MARK && *lexer->token.start == mark;
}

bool lexer_is_word(const struct lexer *lexer, const char *word)
{
    const struct token *token = &lexer->token;
    return token->kind == TOKEN_WORD && token->length == strlen(word) &&
           memcmp(token->start, word, token->length) == 0;
}

shoal_status lexer_expect(struct lexer *lexer, char mark)
{
    if (!lexer_is_mark(lexer, mark)) {
        return lexer_fail_expected(lexer, (char[]){'\'', mark, '\'', '\0'});
    }
    return lexer_next(lexer);
}

shoal_status lexer_accept(struct lexer *lexer, char mark, bool *is_there_out)
{
    *is_there_out = lexer_is_mark(lexer, mark);
    return *is_there_out ? lexer_next(lexer) : SHOAL_OK;
}

/* Contents of tokens ----------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (is_digit(c)) {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Reads the character after a backslash, and moves *from behind it. It never reads past the token, because it stops at
   the closing quote. */
static shoal_status read_escape(const struct token *token, const char **from, char *c_out)
{
    static const char letters[] = "nrt\"\\";
    static const char meanings[] = "\n\r\t\"\\";
    const char *at = *from + 1;
    const char *letter = *at ? strchr(letters, *at) : NULL;
    struct token place = *token;
    place.start = *from;
    if (letter) {
        *c_out = meanings[letter - letters];
        *from = at + 1;
        return SHOAL_OK;
    }
    int high = *at == 'x' ? hex_digit(at[1]) : -1;
    int low = high >= 0 ? hex_digit(at[2]) : -1;
    if (low < 0) {
        return lexer_fail(&place, "expected \\n, \\r, \\t, \\\", \\\\ or \\x with two digits after a '\\'");
    }
    if (high + low == 0) {
        return lexer_fail(&place, "a string cannot have a zero byte");
    }
    *c_out = (char)(unsigned char)(high << 4 | low);
    *from = at + 3;
    return SHOAL_OK;
}

static shoal_status copy_quoted(const struct token *token, char *to, size_t *bytes_out)
{
    const char *end = token->start + token->length - 1; /* the closing quote */
    char *start = to;
    for (const char *from = token->start + 1; from < end;) {
        if (*from == '\\') {
            TRY(read_escape(token, &from, to));
            to++;
        } else {
            *to++ = *from++;
        }
    }
    *to++ = '\0';
    *bytes_out = (size_t)(to - start);
    return SHOAL_OK;
}

shoal_status lexer_copy(const struct token *token, char *to, size_t *bytes_out)
{
    bool has_sign = token->kind == TOKEN_NODE || token->kind == TOKEN_GROUP;
    const char *from = token->start + has_sign;
    size_t length = token->length - has_sign;
    if (token->kind == TOKEN_STRING) {
        return copy_quoted(token, to, bytes_out);
    }
    memcpy(to, from, length);
    to[length] = '\0';
    *bytes_out = length + 1;
    return SHOAL_OK;
}

shoal_status lexer_integer(const struct token *token, uint64_t most, uint64_t *number_out)
{
    uint64_t number = 0;
    int shown = (int)(token->length < MAX_FOUND_CHARS ? token->length : MAX_FOUND_CHARS);
    for (size_t i = 0; i < token->length; i++) {
        if (!is_digit(token->start[i])) {
            return lexer_fail(token, "expected an integer, found '%.*s'", shown, token->start);
        }
    }
    for (size_t i = 0; i < token->length; i++) {
        uint64_t digit = (uint64_t)(token->start[i] - '0');
        if (number > (most - digit) / 10 || digit > most) {
            return lexer_fail(token, "%.*s is too large: at most %" PRIu64, shown, token->start, most);
        }
        number = number * 10 + digit;
    }
    *number_out = number;
    return SHOAL_OK;
}

shoal_status lexer_float(const struct token *token, shoal_dtype dtype, double *value_out)
{
    int shown = (int)(token->length < MAX_FOUND_CHARS ? token->length : MAX_FOUND_CHARS);
    switch (float_text_read(dtype, token->start, token->length, value_out)) {
    case FLOAT_TEXT_OK:
        return SHOAL_OK;
    case FLOAT_TEXT_TOO_LARGE:
        return lexer_fail(token, "%.*s is too large for %s", shown, token->start, shoal_dtype_name(dtype));
    case FLOAT_TEXT_TOO_SMALL:
        return lexer_fail(token, "%.*s is too small for %s", shown, token->start, shoal_dtype_name(dtype));
    case FLOAT_TEXT_NO_NUMBER:
        break;
    }
    if (token->length > FLOAT_TEXT_MAX_CHARS) {
        return lexer_fail(token, "a number has %zu characters, more than %d", token->length,
                          FLOAT_TEXT_MAX_CHARS);
    }
    return lexer_fail(token, "'%.*s' is not a number", shown, token->start);
}

shoal_status lexer_nan_bits(const struct token *token, uint64_t *bits_out)
{
    static const char expected[] = "expected the 16 hexadecimal digits of a NaN, such as 0x7ff8000000000001";
    const char *digits = token->start + 2;
    uint64_t bits = 0;
    if (token->kind != TOKEN_NUMBER || token->length != 18 || memcmp(token->start, "0x", 2) != 0) {
        return lexer_fail(token, "%s", expected);
    }
    for (int i = 0; i < 16; i++) {
        int digit = hex_digit(digits[i]);
        if (digit < 0) {
            return lexer_fail(token, "%s", expected);
        }
        bits = bits << 4 | (uint64_t)digit;
    }
    if ((bits << 1) <= 0xffe0000000000000u) {
        return lexer_fail(token, "%s", expected);
    }
    *bits_out = bits;
    return SHOAL_OK;
}

shoal_status lexer_hex(const struct token *token, unsigned char *bytes)
{
    const char *digits = token->start + 1;
    size_t n_digits = token->length - 2;
    for (size_t i = 0; i < n_digits; i++) {
        int digit = hex_digit(digits[i]);
        if (digit < 0) {
            struct token place = *token;
            place.start = digits + i;
            return lexer_fail(&place, "expected a hexadecimal digit");
        }
        bytes[i / 2] = (unsigned char)(i % 2 == 0 ? digit << 4 : bytes[i / 2] | digit);
    }
    return SHOAL_OK;
}
