/* SPDX-License-Identifier: MIT */
/*
 * JSON text that is written: headers of safetensors files, and indices of checkpoints. A text is written twice by the
 * same code, first without memory to learn its length.
 */
#ifndef CHECKPOINT_JSON_TEXT_H
#define CHECKPOINT_JSON_TEXT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct json_text {
    char *text; /* NULL: only counted */
    size_t bytes;
};

void json_text_put(struct json_text *out, const char *text, size_t bytes);
void json_text_add(struct json_text *out, const char *text);
void json_text_number(struct json_text *out, int64_t number);
/* In quotes; nothing is escaped that JSON does not want escaped. The string is UTF-8. */
void json_text_string(struct json_text *out, const char *string);
/* "[2, 3]", with `between` between the numbers. */
void json_text_numbers(struct json_text *out, const char *between, const int64_t *numbers, int n_numbers);

/* For readers: what a JSON value is, for "X, not Y". NULL is "missing". */
const char *json_text_type(const json_t *value);

#endif
