/* SPDX-License-Identifier: MIT */
/*
 * The text of a header, in one form only: no spaces but those at the end that align the data, keys in the order of
 * the reference implementation, which also escapes nothing that JSON does not want escaped. Written twice, first
 * without memory to learn its length.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/safetensors_layout.h"

#define ALIGNMENT 8

/* UTF-8 ------------------------------------------------------------------------------------------------ */

/* Bytes of the character that begins here; 0: it is none (cut off, too long for what it says, a surrogate, too
   large). */
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

struct output {
    char *text; /* NULL: only counted */
    size_t bytes;
};

static void put(struct output *output, const char *text, size_t bytes)
{
    if (output->text) {
        memcpy(output->text + output->bytes, text, bytes);
    }
    output->bytes += bytes;
}

static void put_text(struct output *output, const char *text)
{
    put(output, text, strlen(text));
}

static void put_number(struct output *output, uint64_t number)
{
    char text[24];
    put(output, text, (size_t)snprintf(text, sizeof text, "%" PRIu64, number));
}

/* What JSON wants in place of the character; NULL: the character itself. */
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

static void put_string(struct output *output, const char *string)
{
    const char *plain = string; /* not written yet, and needs no escapes */
    put_text(output, "\"");
    for (; *string; string++) {
        char code[8];
        const char *escaped = escape((unsigned char)*string, code);
        if (escaped) {
            put(output, plain, (size_t)(string - plain));
            put_text(output, escaped);
            plain = string + 1;
        }
    }
    put(output, plain, (size_t)(string - plain));
    put_text(output, "\"");
}

static void put_metadata(struct output *output, const struct safetensors_pair *pairs, size_t n_pairs)
{
    put_text(output, "\"" SAFETENSORS_METADATA_KEY "\":{");
    for (size_t i = 0; i < n_pairs; i++) {
        put_text(output, i > 0 ? "," : "");
        put_string(output, pairs[i].key);
        put_text(output, ":");
        put_string(output, pairs[i].value);
    }
    put_text(output, "}");
}

static void put_tensor(struct output *output, const struct safetensors_tensor *tensor)
{
    put_string(output, tensor->name);
    put_text(output, ":{\"dtype\":\"");
    put_text(output, safetensors_dtype_name(safetensors_dtype_row(tensor->dtype)));
    put_text(output, "\",\"shape\":[");
    for (int i = 0; i < tensor->n_dims; i++) {
        put_text(output, i > 0 ? "," : "");
        put_number(output, (uint64_t)tensor->shape[i]);
    }
    put_text(output, "],\"data_offsets\":[");
    put_number(output, tensor->begin);
    put_text(output, ",");
    put_number(output, tensor->end);
    put_text(output, "]}");
}

static void put_length(struct output *output, uint64_t length)
{
    char bytes[SAFETENSORS_LENGTH_BYTES];
    for (int i = 0; i < SAFETENSORS_LENGTH_BYTES; i++) {
        bytes[i] = (char)(length >> (8 * i) & 0xFF);
    }
    put(output, bytes, sizeof bytes);
}

struct contents {
    const struct safetensors_tensor *const *tensors;
    size_t n_tensors;
    const struct safetensors_pair *pairs;
    size_t n_pairs;
};

static void put_header(struct output *output, const struct contents *contents, size_t text_bytes)
{
    put_length(output, text_bytes);
    put_text(output, "{");
    if (contents->n_pairs > 0) {
        put_metadata(output, contents->pairs, contents->n_pairs);
    }
    for (size_t i = 0; i < contents->n_tensors; i++) {
        put_text(output, i > 0 || contents->n_pairs > 0 ? "," : "");
        put_tensor(output, contents->tensors[i]);
    }
    put_text(output, "}");
    while (output->bytes % ALIGNMENT != 0) {
        put_text(output, " ");
    }
}

shoal_status safetensors_text_make(const struct safetensors_tensor *const *tensors, size_t n_tensors,
                                   const struct safetensors_pair *pairs, size_t n_pairs, char **header_out,
                                   size_t *header_bytes_out)
{
    const struct contents contents = {
        .tensors = tensors, .n_tensors = n_tensors, .pairs = pairs, .n_pairs = n_pairs};
    struct output counted = {0};
    put_header(&counted, &contents, 0);
    size_t text_bytes = counted.bytes - SAFETENSORS_LENGTH_BYTES;
    if (text_bytes > SAFETENSORS_MAX_HEADER_BYTES) {
        return error_set(SHOAL_ERR_INVALID,
                         "the header of %zu tensors would have %zu bytes, more than the %d that are allowed",
                         n_tensors, text_bytes, SAFETENSORS_MAX_HEADER_BYTES);
    }
    struct output output = {.text = mem_alloc(counted.bytes)};
    if (!output.text) {
        return SHOAL_ERR_NO_MEMORY;
    }
    put_header(&output, &contents, text_bytes);
    *header_out = output.text;
    *header_bytes_out = output.bytes;
    return SHOAL_OK;
}
