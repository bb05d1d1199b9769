/* SPDX-License-Identifier: MIT */
/*
 * Writes JSON text: headers of safetensors files, and indices of checkpoints. The same code writes a text twice, first
 * without memory, to find its length.
 */
#ifndef CHECKPOINT_IO_JSON_TEXT_H
#define CHECKPOINT_IO_JSON_TEXT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct json_text {
    char *text; /* NULL if the text is only counted */
    size_t bytes;
};

void json_text_put(struct json_text *out, const char *text, size_t bytes);
void json_text_add(struct json_text *out, const char *text);
void json_text_number(struct json_text *out, int64_t number);
/* In quotes; only what JSON requires is escaped. The string must be UTF-8. */
void json_text_string(struct json_text *out, const char *string);
/* "[2, 3]", with `between` between the numbers. */
void json_text_numbers(struct json_text *out, const char *between, const int64_t *numbers, int n_numbers);

/* For readers: the type of a JSON value, for error texts. NULL is "missing". */
const char *json_text_type(const json_t *value);

#endif
