/* SPDX-License-Identifier: MIT */
/*
 * Reads the header of a safetensors file. jansson parses it (UTF-8, syntax, duplicate keys); what is kept is copied, so
 * that it counts as the library's memory.
 */
#include "checkpoint/safetensors/header.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/io/json_text.h"
#include "tensor/dtype.h"
#include "tensor/layout.h"

struct dtype_name {
    const char *name;
    shoal_dtype dtype;
};

static const struct dtype_name dtype_names[] = {
#define SAFETENSORS_DTYPE(name, NAME) {#name, SHOAL_##NAME},
#include "checkpoint/safetensors/dtypes.def"
#undef SAFETENSORS_DTYPE
};
#define N_DTYPE_NAMES (sizeof(dtype_names) / sizeof(dtype_names[0]))

int safetensors_dtype_row(shoal_dtype dtype)
{
    for (size_t i = 0; i < N_DTYPE_NAMES; i++) {
        if (dtype_names[i].dtype == dtype) {
            return (int)i;
        }
    }
    return -1;
}

const char *safetensors_dtype_name(int row)
{
    return dtype_names[row].name;
}

bool safetensors_dtype_find(const char *name, shoal_dtype *dtype_out)
{
    for (size_t i = 0; i < N_DTYPE_NAMES; i++) {
        if (strcmp(name, dtype_names[i].name) == 0) {
            *dtype_out = dtype_names[i].dtype;
            return true;
        }
    }
    return false;
}

/* Error texts ------------------------------------------------------------------------------------------ */

const char *safetensors_format_name(char text[SAFETENSORS_NAME_BYTES], const char *name)
{
    const size_t most = SAFETENSORS_NAME_BYTES - 6; /* two quotes, dots, and the end */
    size_t length = strnlen(name, most + 1);
    size_t kept = length > most ? most : length;
    /* Not in the middle of a character. */
    while (kept < length && kept > 0 && ((unsigned char)name[kept] & 0xC0) == 0x80) {
        kept--;
    }
    char *to = text;
    *to++ = '\'';
    for (size_t i = 0; i < kept; i++) {
        unsigned char c = (unsigned char)name[i];
        *to++ = c < 0x20 || c == 0x7F ? '?' : (char)c;
    }
    memcpy(to, kept < length ? "...'" : "'", kept < length ? 5 : 2);
    return text;
}

/* The length ------------------------------------------------------------------------------------------- */

shoal_status safetensors_header_length(const unsigned char *length, uint64_t file_bytes,
                                       size_t *header_bytes_out)
{
    if (file_bytes < SAFETENSORS_LENGTH_BYTES) {
        return error_set(SHOAL_ERR_INVALID,
                         "not a safetensors file, or damaged: %" PRIu64
                         " bytes are less than the %d of the header's length",
                         file_bytes, SAFETENSORS_LENGTH_BYTES);
    }
    uint64_t bytes = 0;
    for (int i = SAFETENSORS_LENGTH_BYTES - 1; i >= 0; i--) {
        bytes = bytes << 8 | length[i];
    }
    if (bytes > SAFETENSORS_MAX_HEADER_BYTES) {
        return error_set(SHOAL_ERR_INVALID,
                         "not a safetensors file, or damaged: a header of %" PRIu64
                         " bytes is longer than the %d allowed",
                         bytes, SAFETENSORS_MAX_HEADER_BYTES);
    }
    if (bytes > file_bytes - SAFETENSORS_LENGTH_BYTES) {
        return error_set(SHOAL_ERR_INVALID,
                         "not a safetensors file, or damaged: a header of %" PRIu64
                         " bytes does not fit the file of %" PRIu64,
                         bytes, file_bytes);
    }
    *header_bytes_out = (size_t)bytes;
    return SHOAL_OK;
}

/* One tensor ------------------------------------------------------------------------------------------- */

static shoal_status parse_dtype(const json_t *value, struct safetensors_tensor *tensor)
{
    if (!json_is_string(value)) {
        return error_set(SHOAL_ERR_INVALID, "dtype is %s, not a string", json_text_type(value));
    }
    const char *name = json_string_value(value);
    if (safetensors_dtype_find(name, &tensor->dtype)) {
        return SHOAL_OK;
    }
    char text[SAFETENSORS_NAME_BYTES];
    return error_set(SHOAL_ERR_UNSUPPORTED, "dtype %s is not supported", safetensors_format_name(text, name));
}

/* Entry i of the array `what`, which is not negative. */
static shoal_status parse_number(const json_t *array, size_t i, const char *what, int64_t *number_out)
{
    const json_t *entry = json_array_get(array, i);
    if (!json_is_integer(entry)) {
        return error_set(SHOAL_ERR_INVALID, "%s[%zu] is %s, not an integer", what, i, json_text_type(entry));
    }
    if (json_integer_value(entry) < 0) {
        return error_set(SHOAL_ERR_INVALID, "%s[%zu] is %" JSON_INTEGER_FORMAT ", which is negative", what, i,
                         json_integer_value(entry));
    }
    *number_out = json_integer_value(entry);
    return SHOAL_OK;
}

static shoal_status parse_shape(const json_t *value, struct safetensors_tensor *tensor)
{
    if (!json_is_array(value)) {
        return error_set(SHOAL_ERR_INVALID, "shape is %s, not an array", json_text_type(value));
    }
    size_t n_dims = json_array_size(value);
    if (n_dims > SHOAL_MAX_DIMS) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "shape: %zu dimensions are not within 0..%d", n_dims,
                         SHOAL_MAX_DIMS);
    }
    for (size_t i = 0; i < n_dims; i++) {
        TRY(parse_number(value, i, "shape", &tensor->shape[i]));
    }
    tensor->n_dims = (int)n_dims;
    return SHOAL_OK;
}

static shoal_status parse_offsets(const json_t *value, struct safetensors_tensor *tensor)
{
    if (!json_is_array(value) || json_array_size(value) != 2) {
        return error_set(SHOAL_ERR_INVALID, "data_offsets is %s%s, not an array of 2", json_text_type(value),
                         json_is_array(value) ? " of another length" : "");
    }
    int64_t begin;
    int64_t end;
    TRY(parse_number(value, 0, "data_offsets", &begin));
    TRY(parse_number(value, 1, "data_offsets", &end));
    if (begin > end) {
        return error_set(SHOAL_ERR_INVALID, "data_offsets [%" PRId64 ", %" PRId64 "] end before they begin",
                         begin, end);
    }
    tensor->begin = (uint64_t)begin;
    tensor->end = (uint64_t)end;
    return SHOAL_OK;
}

struct member {
    const char *key;
    shoal_status (*parse)(const json_t *value, struct safetensors_tensor *tensor);
};

static const struct member members[] = {
    {"dtype", parse_dtype},
    {"shape", parse_shape},
    {"data_offsets", parse_offsets},
};
#define N_MEMBERS (sizeof(members) / sizeof(members[0]))

static bool is_member(const char *key)
{
    for (size_t i = 0; i < N_MEMBERS; i++) {
        if (strcmp(key, members[i].key) == 0) {
            return true;
        }
    }
    return false;
}

static shoal_status check_members(json_t *object)
{
    if (!json_is_object(object)) {
        return error_set(SHOAL_ERR_INVALID, "is %s, not an object", json_text_type(object));
    }
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        const char *key = json_object_iter_key(at);
        if (!is_member(key)) {
            char text[SAFETENSORS_NAME_BYTES];
            return error_set(SHOAL_ERR_INVALID, "the key %s is none of dtype, shape, data_offsets",
                             safetensors_format_name(text, key));
        }
    }
    return SHOAL_OK;
}

/* Checks that the offsets lie in the data, and that their distance fits dtype and shape. */
static shoal_status check_size(const struct safetensors_tensor *tensor, uint64_t data_bytes)
{
    int64_t count;
    size_t bytes;
    char text[LAYOUT_TEXT_BYTES];
    TRY(layout_count(tensor->n_dims, tensor->shape, &count));
    if (!mem_multiply((size_t)count, dtype_bytes(tensor->dtype), &bytes)) {
        return error_set(SHOAL_ERR_INVALID, "the bytes of %s %s are more than 64 bits can count",
                         shoal_dtype_name(tensor->dtype), layout_format(text, tensor->n_dims, tensor->shape));
    }
    if (tensor->end - tensor->begin != bytes) {
        return error_set(SHOAL_ERR_INVALID,
                         "%s %s has %zu bytes, data_offsets [%" PRIu64 ", %" PRIu64 "] have %" PRIu64,
                         shoal_dtype_name(tensor->dtype), layout_format(text, tensor->n_dims, tensor->shape),
                         bytes, tensor->begin, tensor->end, tensor->end - tensor->begin);
    }
    if (tensor->end > data_bytes) {
        return error_set(SHOAL_ERR_INVALID,
                         "data_offsets [%" PRIu64 ", %" PRIu64 "] are not within the %" PRIu64
                         " bytes of data in the file",
                         tensor->begin, tensor->end, data_bytes);
    }
    return SHOAL_OK;
}

static shoal_status parse_members(json_t *object, uint64_t data_bytes, struct safetensors_tensor *tensor)
{
    TRY(check_members(object));
    for (size_t i = 0; i < N_MEMBERS; i++) {
        const json_t *value = json_object_get(object, members[i].key);
        if (!value) {
            return error_set(SHOAL_ERR_INVALID, "has no %s", members[i].key);
        }
        TRY(members[i].parse(value, tensor));
    }
    return check_size(tensor, data_bytes);
}

/* All of them ------------------------------------------------------------------------------------------ */

static int compare_places(const void *a, const void *b)
{
    const struct safetensors_tensor *first = a;
    const struct safetensors_tensor *second = b;
    int order = (first->begin > second->begin) - (first->begin < second->begin);
    /* A tensor without bytes may lie where another one begins. */
    order = order ? order : (first->end > second->end) - (first->end < second->end);
    return order ? order : strcmp(first->name, second->name);
}

static int compare_names(const void *a, const void *b)
{
    const struct safetensors_tensor *const *first = a;
    const struct safetensors_tensor *const *second = b;
    return strcmp((*first)->name, (*second)->name);
}

/* Checks that the tensors, which are sorted, cover the data: no byte is left out or belongs to two of them. */
static shoal_status check_cover(const struct safetensors_header *header, uint64_t data_bytes)
{
    char text[SAFETENSORS_NAME_BYTES];
    char before[SAFETENSORS_NAME_BYTES];
    uint64_t end = 0;
    for (size_t i = 0; i < header->n_tensors; i++) {
        const struct safetensors_tensor *tensor = &header->tensors[i];
        if (tensor->begin < end) {
            return error_set(SHOAL_ERR_INVALID,
                             "tensor %s begins at byte %" PRIu64
                             " of the data, inside tensor %s, which ends at %" PRIu64,
                             safetensors_format_name(text, tensor->name), tensor->begin,
                             safetensors_format_name(before, header->tensors[i - 1].name), end);
        }
        if (tensor->begin > end) {
            return error_set(SHOAL_ERR_INVALID,
                             "bytes %" PRIu64 " to %" PRIu64
                             " of the data, before tensor %s, belong to no tensor",
                             end, tensor->begin, safetensors_format_name(text, tensor->name));
        }
        end = tensor->end;
    }
    if (end != data_bytes) {
        return error_set(SHOAL_ERR_INVALID,
                         "the tensors end at byte %" PRIu64 " of the data, which has %" PRIu64, end,
                         data_bytes);
    }
    return SHOAL_OK;
}

/* Copies a string to *next. There is room: the string is longer in the JSON text, at least by its quotes. */
static const char *keep_string(char **next, const char *string)
{
    size_t bytes = strlen(string) + 1;
    char *kept = memcpy(*next, string, bytes);
    *next += bytes;
    return kept;
}

static shoal_status parse_metadata(json_t *object, char **strings, struct safetensors_header *header)
{
    if (!json_is_object(object)) {
        return error_set(SHOAL_ERR_INVALID, SAFETENSORS_METADATA_KEY " is %s, not an object",
                         json_text_type(object));
    }
    header->pairs = mem_alloc_zeroed(json_object_size(object), sizeof(header->pairs[0]));
    if (!header->pairs) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        const char *key = json_object_iter_key(at);
        json_t *value = json_object_iter_value(at);
        if (!json_is_string(value)) {
            char text[SAFETENSORS_NAME_BYTES];
            return error_set(SHOAL_ERR_INVALID, SAFETENSORS_METADATA_KEY ": %s is %s, not a string",
                             safetensors_format_name(text, key), json_text_type(value));
        }
        struct safetensors_pair *pair = &header->pairs[header->n_pairs++];
        pair->key = keep_string(strings, key);
        pair->value = keep_string(strings, json_string_value(value));
    }
    return SHOAL_OK;
}

static shoal_status parse_entries(json_t *root, char *strings, uint64_t data_bytes,
                                  struct safetensors_header *header)
{
    for (void *at = json_object_iter(root); at; at = json_object_iter_next(root, at)) {
        const char *key = json_object_iter_key(at);
        json_t *value = json_object_iter_value(at);
        if (strcmp(key, SAFETENSORS_METADATA_KEY) == 0) {
            TRY(parse_metadata(value, &strings, header));
            continue;
        }
        struct safetensors_tensor *tensor = &header->tensors[header->n_tensors++];
        shoal_status status = parse_members(value, data_bytes, tensor);
        if (status != SHOAL_OK) {
            char text[SAFETENSORS_NAME_BYTES];
            return error_prefix(status, "tensor %s", safetensors_format_name(text, key));
        }
        tensor->name = keep_string(&strings, key);
    }
    return SHOAL_OK;
}

/* For large arrays, qsort may allocate memory that the library does not count. It also works without. */
static shoal_status sort(struct safetensors_header *header, uint64_t data_bytes)
{
    qsort(header->tensors, header->n_tensors, sizeof(header->tensors[0]), compare_places);
    for (size_t i = 0; i < header->n_tensors; i++) {
        header->by_name[i] = &header->tensors[i];
    }
    qsort(header->by_name, header->n_tensors, sizeof(header->by_name[0]), compare_names);
    return check_cover(header, data_bytes);
}

static shoal_status build(json_t *root, size_t text_bytes, uint64_t data_bytes,
                          struct safetensors_header *header_out)
{
    struct safetensors_header header = {0};
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    size_t n_keys = json_object_size(root);
    header.tensors = mem_alloc_zeroed(n_keys, sizeof(header.tensors[0]));
    header.by_name = header.tensors ? mem_alloc_zeroed(n_keys, sizeof(header.by_name[0])) : NULL;
    header.strings = header.by_name ? mem_alloc(text_bytes) : NULL;
    if (!header.strings) {
        goto failed;
    }
    TRY_GOTO(status, parse_entries(root, header.strings, data_bytes, &header), failed);
    TRY_GOTO(status, sort(&header, data_bytes), failed);
    *header_out = header;
    return SHOAL_OK;
failed:
    safetensors_header_free(&header);
    return status;
}

/* JSON ------------------------------------------------------------------------------------------------- */

/* After the object there may be only spaces, which align the data. */
static shoal_status check_ends(const char *text, size_t bytes)
{
    if (bytes == 0 || text[0] != '{') {
        return error_set(SHOAL_ERR_INVALID, "the header of %zu bytes does not begin with '{'", bytes);
    }
    size_t end = bytes;
    while (text[end - 1] == ' ') {
        end--;
    }
    if (text[end - 1] != '}') {
        return error_set(SHOAL_ERR_INVALID, "the header of %zu bytes does not end in '}' and spaces", bytes);
    }
    return SHOAL_OK;
}

static shoal_status load(const char *text, size_t bytes, json_t **root_out)
{
    json_error_t error;
    TRY(check_ends(text, bytes));
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root && json_error_code(&error) == json_error_out_of_memory) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for the JSON of a header of %zu bytes", bytes);
    }
    if (!root) {
        return error_set(SHOAL_ERR_INVALID, "the header is not valid JSON: %s, at byte %d of %zu", error.text,
                         error.position, bytes);
    }
    *root_out = root;
    return SHOAL_OK;
}

shoal_status safetensors_header_parse(const char *text, size_t bytes, uint64_t data_bytes,
                                      struct safetensors_header *header_out)
{
    json_t *root;
    TRY(load(text, bytes, &root));
    shoal_status status = build(root, bytes, data_bytes, header_out);
    json_decref(root);
    return status;
}

void safetensors_header_free(struct safetensors_header *header)
{
    mem_free(header->tensors);
    mem_free(header->by_name);
    mem_free(header->pairs);
    mem_free(header->strings);
    *header = (struct safetensors_header){0};
}

const struct safetensors_tensor *safetensors_header_find(const struct safetensors_header *header,
                                                         const char *name)
{
    struct safetensors_tensor wanted = {.name = name};
    const struct safetensors_tensor *key = &wanted;
    const struct safetensors_tensor *const *found =
        header->n_tensors == 0
            ? NULL
            : bsearch(&key, header->by_name, header->n_tensors, sizeof(header->by_name[0]), compare_names);
    return found ? *found : NULL;
}

shoal_status safetensors_check_range(const struct safetensors_tensor *tensor, uint64_t offset, size_t bytes)
{
    uint64_t tensor_bytes = tensor->end - tensor->begin;
    char text[SAFETENSORS_NAME_BYTES];
    if (offset <= tensor_bytes && bytes <= tensor_bytes - offset) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_INVALID,
                     "offset: %zu bytes from %" PRIu64 " on are not within the %" PRIu64 " of tensor %s",
                     bytes, offset, tensor_bytes, safetensors_format_name(text, tensor->name));
}
