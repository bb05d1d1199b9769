/* SPDX-License-Identifier: MIT */
/* JSON text that is written: see json_text.h. */
#include "checkpoint/io/json_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void json_text_put(struct json_text *out, const char *text, size_t bytes)
{
    if (out->text) {
        memcpy(out->text + out->bytes, text, bytes);
    }
    out->bytes += bytes;
}

void json_text_add(struct json_text *out, const char *text)
{
    json_text_put(out, text, strlen(text));
}

void json_text_number(struct json_text *out, int64_t number)
{
    char text[24];
    json_text_put(out, text, (size_t)snprintf(text, sizeof text, "%" PRId64, number));
}

void json_text_numbers(struct json_text *out, const char *between, const int64_t *numbers, int n_numbers)
{
    json_text_add(out, "[");
    for (int i = 0; i < n_numbers; i++) {
        json_text_add(out, i > 0 ? between : "");
        json_text_number(out, numbers[i]);
    }
    json_text_add(out, "]");
}

/* The escape sequence that JSON requires for the character; NULL if there is none. */
static const char *escape(unsigned char c, char code[8])
{
    static const char *const escapes[128] = {['"'] = "\\\"", ['\\'] = "\\\\", ['\b'] = "\\b", ['\f'] = "\\f",
                                             ['\n'] = "\\n", ['\r'] = "\\r",  ['\t'] = "\\t"};
    static const char digits[] = "0123456789abcdef";
    if (c < 128 && escapes[c]) {
        return escapes[c];
    }
    if (c >= 0x20) {
        return NULL;
    }
    memcpy(code, "\\u00", 4);
    code[4] = digits[c >> 4];
    code[5] = digits[c & 15];
    code[6] = '\0';
    return code;
}

void json_text_string(struct json_text *out, const char *string)
{
    const char *plain = string; /* not written yet, and needs no escapes */
    json_text_add(out, "\"");
    for (; *string; string++) {
        char code[8];
        const char *escaped = escape((unsigned char)*string, code);
        if (escaped) {
            json_text_put(out, plain, (size_t)(string - plain));
            json_text_add(out, escaped);
            plain = string + 1;
        }
    }
    json_text_put(out, plain, (size_t)(string - plain));
    json_text_add(out, "\"");
}

const char *json_text_type(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",
        [JSON_ARRAY] = "an array",
        [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number",
        [JSON_REAL] = "a number with a fraction or exponent",
        [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",
        [JSON_NULL] = "null",
    };
    return value ? names[json_typeof(value)] : "missing";
}
