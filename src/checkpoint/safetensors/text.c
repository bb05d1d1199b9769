/* SPDX-License-Identifier: MIT */
/*
 * The text of a header, always in the same form: no spaces except those at the end that align the data, keys in the
 * order of the reference implementation, and only the escapes that JSON requires. It is written twice, first without
 * memory, to find its length.
 */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/io/json_text.h"
#include "checkpoint/safetensors/layout.h"

#define ALIGNMENT 8

/* UTF-8 ------------------------------------------------------------------------------------------------ */

/* Returns the number of bytes of the UTF-8 character that begins here; 0 if it is invalid (cut off, overlong, a
   surrogate, too large). */
static size_t measure_character(const unsigned char *bytes)
{
    static const struct {
        unsigned char mask, lead;
        uint32_t least;
    } rows[] = {{0x80, 0x00, 0}, {0xE0, 0xC0, 0x80}, {0xF0, 0xE0, 0x800}, {0xF8, 0xF0, 0x10000}};
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
        if ((bytes[0] & rows[n].mask) != rows[n].lead) {
            continue;
        }
        uint32_t code = bytes[0] & (unsigned char)~rows[n].mask;
        for (size_t i = 1; i <= n; i++) {
            if ((bytes[i] & 0xC0) != 0x80) {
                return 0; /* also where the string ends */
            }
            code = code << 6 | (bytes[i] & 0x3F);
        }
        bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
        return code < rows[n].least || is_surrogate || code > 0x10FFFF ? 0 : n + 1;
    }
    return 0;
}

shoal_status safetensors_text_check(const char *what, const char *string)
{
    const unsigned char *at = (const unsigned char *)string;
    while (*at) {
        size_t bytes = measure_character(at);
        if (bytes == 0) {
            char text[SAFETENSORS_NAME_BYTES];
            return error_set(SHOAL_ERR_INVALID, "%s: %s is not UTF-8 at byte %zu", what,
                             safetensors_format_name(text, string),
                             (size_t)(at - (const unsigned char *)string));
        }
        at += bytes;
    }
    return SHOAL_OK;
}

/* Writing ---------------------------------------------------------------------------------------------- */

static void put_metadata(struct json_text *out, const struct safetensors_pair *pairs, size_t n_pairs)
{
    json_text_add(out, "\"" SAFETENSORS_METADATA_KEY "\":{");
    for (size_t i = 0; i < n_pairs; i++) {
        json_text_add(out, i > 0 ? "," : "");
        json_text_string(out, pairs[i].key);
        json_text_add(out, ":");
        json_text_string(out, pairs[i].value);
    }
    json_text_add(out, "}");
}

static void put_tensor(struct json_text *out, const struct safetensors_tensor *tensor)
{
    json_text_string(out, tensor->name);
    json_text_add(out, ":{\"dtype\":\"");
    json_text_add(out, safetensors_dtype_name(safetensors_dtype_row(tensor->dtype)));
    json_text_add(out, "\",\"shape\":");
    json_text_numbers(out, ",", tensor->shape, tensor->n_dims);
    json_text_add(out, ",\"data_offsets\":");
    json_text_numbers(out, ",", (const int64_t[]){(int64_t)tensor->begin, (int64_t)tensor->end}, 2);
    json_text_add(out, "}");
}

static void put_length(struct json_text *out, uint64_t length)
{
    char bytes[SAFETENSORS_LENGTH_BYTES];
    for (int i = 0; i < SAFETENSORS_LENGTH_BYTES; i++) {
        bytes[i] = (char)(length >> (8 * i) & 0xFF);
    }
    json_text_put(out, bytes, sizeof bytes);
}

struct contents {
    const struct safetensors_tensor *const *tensors;
    size_t n_tensors;
    const struct safetensors_pair *pairs;
    size_t n_pairs;
};

static void put_header(struct json_text *out, const struct contents *contents, size_t text_bytes)
{
    put_length(out, text_bytes);
    json_text_add(out, "{");
    if (contents->n_pairs > 0) {
        put_metadata(out, contents->pairs, contents->n_pairs);
    }
    for (size_t i = 0; i < contents->n_tensors; i++) {
        json_text_add(out, i > 0 || contents->n_pairs > 0 ? "," : "");
        put_tensor(out, contents->tensors[i]);
    }
    json_text_add(out, "}");
    while (out->bytes % ALIGNMENT != 0) {
        json_text_add(out, " ");
    }
}

shoal_status safetensors_text_make(const struct safetensors_tensor *const *tensors, size_t n_tensors,
                                   const struct safetensors_pair *pairs, size_t n_pairs, char **header_out,
                                   size_t *header_bytes_out)
{
    const struct contents contents = {
        .tensors = tensors, .n_tensors = n_tensors, .pairs = pairs, .n_pairs = n_pairs};
    struct json_text counted = {0};
    put_header(&counted, &contents, 0);
    size_t text_bytes = counted.bytes - SAFETENSORS_LENGTH_BYTES;
    if (text_bytes > SAFETENSORS_MAX_HEADER_BYTES) {
        return error_set(SHOAL_ERR_INVALID,
                         "the header of %zu tensors would have %zu bytes, more than the %d that are allowed",
                         n_tensors, text_bytes, SAFETENSORS_MAX_HEADER_BYTES);
    }
    struct json_text out = {.text = mem_alloc(counted.bytes)};
    if (!out.text) {
        return SHOAL_ERR_NO_MEMORY;
    }
    put_header(&out, &contents, text_bytes);
    *header_out = out.text;
    *header_bytes_out = out.bytes;
    return SHOAL_OK;
}
