/* SPDX-License-Identifier: MIT */
#include "report/html.h"

#include <math.h>
#include <string.h>

/* How many bytes the character at `text` has; 0 if it is not UTF-8. */
static size_t character_bytes(const char *text)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t n_bytes = bytes[0] < 0x80                       ? 1
                     : bytes[0] >= 0xc2 && bytes[0] < 0xe0 ? 2
                     : bytes[0] >= 0xe0 && bytes[0] < 0xf0 ? 3
                     : bytes[0] >= 0xf0 && bytes[0] < 0xf5 ? 4
                                                           : 0;
    for (size_t i = 1; i < n_bytes; i++) {
        if ((bytes[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return n_bytes;
}

/* Calls of both writers: escapes[byte] stands for a byte, and '?' for what is no character that can be shown. */
static void put(FILE *out, const char *text, const char *const escapes[256])
{
    while (*text) {
        unsigned char byte = (unsigned char)*text;
        size_t n_bytes = character_bytes(text);
        if (escapes[byte]) {
            fputs(escapes[byte], out);
        } else if (n_bytes == 0 || byte < ' ' || byte == 0x7f) {
            fputc('?', out);
        } else {
            (void)fwrite(text, 1, n_bytes, out);
        }
        text += n_bytes > 0 ? n_bytes : 1;
    }
}

void html_text(FILE *out, const char *text)
{
    static const char *const escapes[256] = {
        ['<'] = "&lt;", ['>'] = "&gt;", ['&'] = "&amp;", ['"'] = "&quot;", ['\''] = "&#39;"};
    put(out, text, escapes);
}

void html_json(FILE *out, const char *text)
{
    static const char *const escapes[256] = {
        ['<'] = "\\u003c", ['>'] = "\\u003e", ['&'] = "\\u0026", ['"'] = "\\\"", ['\\'] = "\\\\"};
    fputc('"', out);
    put(out, text, escapes);
    fputc('"', out);
}

static const char digits_64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void html_base64(FILE *out, const void *bytes, size_t n_bytes)
{
    const unsigned char *at = bytes;
    char text[4096];
    size_t length = 0;
    for (size_t i = 0; i < n_bytes; i += 3) {
        size_t n_left = n_bytes - i;
        uint32_t word = (uint32_t)at[i] << 16 | (n_left > 1 ? (uint32_t)at[i + 1] << 8 : 0) |
                        (n_left > 2 ? (uint32_t)at[i + 2] : 0);
        text[length++] = digits_64[word >> 18 & 63];
        text[length++] = digits_64[word >> 12 & 63];
        text[length++] = n_left > 1 ? digits_64[word >> 6 & 63] : '=';
        text[length++] = n_left > 2 ? digits_64[word & 63] : '=';
        if (length == sizeof text) {
            (void)fwrite(text, 1, length, out);
            length = 0;
        }
    }
    (void)fwrite(text, 1, length, out);
}

static unsigned value_of(char digit)
{
    const char *digits = "0123456789abcdef";
    const char *found = strchr(digits, digit);
    return found ? (unsigned)(found - digits) : 0;
}

void html_hash(FILE *out, const char *digits)
{
    unsigned char bytes[32] = {0};
    for (size_t i = 0; i < sizeof bytes && digits[2 * i]; i++) {
        bytes[i] = (unsigned char)(value_of(digits[2 * i]) << 4 | value_of(digits[2 * i + 1]));
    }
    html_base64(out, bytes, sizeof bytes);
}

void html_amount(FILE *out, double value)
{
    if (!isfinite(value)) {
        fputs("\xe2\x80\x93", out);
        return;
    }
    int n_decimals = fabs(value) < 10.0 ? 2 : fabs(value) < 1000.0 ? 1 : 0;
    fprintf(out, "%.*f", n_decimals, value);
}
