/* SPDX-License-Identifier: MIT */
/*
 * Reads shoal.index.json: see index.h. Checks the sum first, then the version, then everything else. jansson parses it
 * (UTF-8, syntax, duplicate keys); what is kept is copied into one arena, and jansson's values are freed.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stddef.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/io/hexfloat.h"
#include "checkpoint/index/index.h"
#include "checkpoint/index/check.h"
#include "checkpoint/index/names.h"
#include "checkpoint/index/text.h"
#include "checkpoint/items/items.h"
#include "checkpoint/io/json_text.h"
#include "checkpoint/safetensors/header.h"
#include "tensor/layout.h"

/* What `memory` of an index points to. */
struct index_memory {
    struct arena arena;
    struct map names;
};

struct reader {
    struct checkpoint_index *index;
    struct arena *arena;
    struct index_tensor *tensor; /* that is being read */
};

/* Values of JSON -------------------------------------------------------------------------------------------- */

/* Reads a value into `into`, which is of the type that the field has. */
typedef shoal_status parse_function(struct reader *reader, json_t *value, void *into);

struct field {
    const char *key;
    parse_function *parse;
    size_t offset; /* of the field in the structure that is read */
};

static shoal_status check_key(const char *key, const struct field *fields, size_t n_fields)
{
    char text[SAFETENSORS_NAME_BYTES];
    if (strncmp(key, "x-", 2) == 0) {
        return SHOAL_OK; /* what others add */
    }
    for (size_t i = 0; i < n_fields; i++) {
        if (strcmp(key, fields[i].key) == 0) {
            return SHOAL_OK;
        }
    }
    return error_set(SHOAL_ERR_INVALID, "version %d has no key %s", INDEX_VERSION,
                     safetensors_format_name(text, key));
}

static shoal_status check_type(const json_t *value, bool is_right, const char *wanted)
{
    return is_right ? SHOAL_OK : error_set(SHOAL_ERR_INVALID, "is %s, not %s", json_text_type(value), wanted);
}

/* Reads an object that has exactly these fields, in the order of the table. */
static shoal_status parse_fields(struct reader *reader, json_t *object, const struct field *fields,
                                 size_t n_fields, void *into)
{
    TRY(check_type(object, json_is_object(object), "an object"));
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        TRY(check_key(json_object_iter_key(at), fields, n_fields));
    }
    for (size_t i = 0; i < n_fields; i++) {
        json_t *value = json_object_get(object, fields[i].key);
        shoal_status status = value ? fields[i].parse(reader, value, (char *)into + fields[i].offset)
                                    : error_set(SHOAL_ERR_INVALID, "is missing");
        if (status != SHOAL_OK) {
            return error_prefix(status, "%s", fields[i].key);
        }
    }
    return SHOAL_OK;
}
#define PARSE_FIELDS(reader, object, fields, into) \
    parse_fields((reader), (object), (fields), sizeof(fields) / sizeof((fields)[0]), (into))

/* Makes an array of zeros and reads the values into its elements. */
static shoal_status parse_array(struct reader *reader, json_t *value, parse_function *parse,
                                size_t item_bytes, void **items_out, size_t *n_items_out)
{
    TRY(check_type(value, json_is_array(value), "an array"));
    size_t n_items = json_array_size(value);
    char *items = arena_alloc(reader->arena, n_items, item_bytes);
    if (!items) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *items_out = items;
    *n_items_out = n_items;
    for (size_t i = 0; i < n_items; i++) {
        shoal_status status = parse(reader, json_array_get(value, i), items + i * item_bytes);
        if (status != SHOAL_OK) {
            return error_prefix(status, "number %zu", i);
        }
    }
    return SHOAL_OK;
}

static shoal_status get_number(json_t *value, int64_t least, int64_t most, int64_t *number_out)
{
    TRY(check_type(value, json_is_integer(value), "an integer"));
    int64_t number = json_integer_value(value);
    if (number < least || number > most) {
        return error_set(SHOAL_ERR_INVALID, "%" PRId64 " is not within %" PRId64 "..%" PRId64, number, least,
                         most);
    }
    *number_out = number;
    return SHOAL_OK;
}

/* Into an int64_t or uint64_t. */
static shoal_status parse_count(struct reader *reader, json_t *value, void *into)
{
    (void)reader;
    return get_number(value, 0, INT64_MAX, into);
}

static shoal_status parse_string(struct reader *reader, json_t *value, void *into)
{
    TRY(check_type(value, json_is_string(value), "a string"));
    const char *string = arena_string(reader->arena, json_string_value(value));
    *(const char **)into = string;
    return string ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static shoal_status check_hex(const char *text, size_t n_digits)
{
    char shown[SAFETENSORS_NAME_BYTES];
    if (strlen(text) != n_digits || strspn(text, "0123456789abcdef") != n_digits) {
        return error_set(SHOAL_ERR_INVALID, "%s is not %zu lower-case hexadecimal digits",
                         safetensors_format_name(shown, text), n_digits);
    }
    return SHOAL_OK;
}

/* The text was checked. */
static uint64_t hex_value(const char *text)
{
    uint64_t value = 0;
    for (; *text; text++) {
        value = value << 4 | (uint64_t)(*text <= '9' ? *text - '0' : *text - 'a' + 10);
    }
    return value;
}

static shoal_status parse_sum(struct reader *reader, json_t *value, void *into)
{
    (void)reader;
    TRY(check_type(value, json_is_string(value), "a string"));
    TRY(check_hex(json_string_value(value), INDEX_SUM_CHARS));
    *(uint64_t *)into = hex_value(json_string_value(value));
    return SHOAL_OK;
}

/* For fields that were read before. */
static shoal_status parse_nothing(struct reader *reader, json_t *value, void *into)
{
    (void)reader;
    (void)value;
    (void)into;
    return SHOAL_OK;
}

/* Files ----------------------------------------------------------------------------------------------------- */

static shoal_status parse_sums(struct reader *reader, json_t *value, void *into)
{
    struct index_run *run = into;
    size_t n_sums;
    TRY(parse_array(reader, value, parse_sum, sizeof(run->sums[0]), (void **)&run->sums, &n_sums));
    if (n_sums != checksum_n_blocks(run->bytes)) {
        return error_set(SHOAL_ERR_INVALID,
                         "%zu checksums are given for %" PRIu64 " blocks in %" PRIu64 " bytes", n_sums,
                         checksum_n_blocks(run->bytes), run->bytes);
    }
    return SHOAL_OK;
}

static shoal_status parse_run(struct reader *reader, json_t *value, void *into)
{
    static const struct field fields[] = {
        {"at", parse_count, offsetof(struct index_run, at)},
        {"bytes", parse_count, offsetof(struct index_run, bytes)},
        {"sums", parse_sums, 0},
    };
    return PARSE_FIELDS(reader, value, fields, into);
}

static shoal_status parse_runs(struct reader *reader, json_t *value, void *into)
{
    struct index_file *file = into;
    TRY(parse_array(reader, value, parse_run, sizeof(file->runs[0]), (void **)&file->runs, &file->n_runs));
    return index_check_runs(file);
}

static shoal_status parse_file_name(struct reader *reader, json_t *value, void *into)
{
    TRY(parse_string(reader, value, into));
    return index_check_file(*(const char **)into);
}

static shoal_status parse_file(struct reader *reader, json_t *value, void *into)
{
    static const struct field fields[] = {
        {"name", parse_file_name, offsetof(struct index_file, name)},
        {"bytes", parse_count, offsetof(struct index_file, bytes)},
        {"runs", parse_runs, 0},
    };
    return PARSE_FIELDS(reader, value, fields, into);
}

static shoal_status parse_files(struct reader *reader, json_t *value, void *into)
{
    struct checkpoint_index *index = into;
    return parse_array(reader, value, parse_file, sizeof(index->files[0]), (void **)&index->files,
                       &index->n_files);
}

/* Tensors --------------------------------------------------------------------------------------------------- */

/* Into an array of SHOAL_MAX_DIMS numbers. */
static shoal_status get_numbers(json_t *value, int64_t *numbers, size_t least, size_t most, int *n_out)
{
    TRY(check_type(value, json_is_array(value), "an array"));
    size_t n_numbers = json_array_size(value);
    if (n_numbers < least || n_numbers > most) {
        return error_set(SHOAL_ERR_INVALID, "%zu dimensions are not within %zu..%zu", n_numbers, least, most);
    }
    for (size_t i = 0; i < n_numbers; i++) {
        shoal_status status = get_number(json_array_get(value, i), 0, INT64_MAX, &numbers[i]);
        if (status != SHOAL_OK) {
            return error_prefix(status, "number %zu", i);
        }
    }
    *n_out = (int)n_numbers;
    return SHOAL_OK;
}

static shoal_status parse_indices(struct reader *reader, json_t *value, void *into)
{
    size_t n_dims = (size_t)reader->tensor->n_dims;
    int n_numbers;
    return get_numbers(value, into, n_dims, n_dims, &n_numbers);
}

static shoal_status parse_piece_file(struct reader *reader, json_t *value, void *into)
{
    int64_t file;
    TRY(get_number(value, 0, (int64_t)reader->index->n_files - 1, &file));
    *(size_t *)into = (size_t)file;
    return SHOAL_OK;
}

static shoal_status parse_piece(struct reader *reader, json_t *value, void *into)
{
    static const struct field fields[] = {
        {"file", parse_piece_file, offsetof(struct index_piece, file)},
        {"at", parse_count, offsetof(struct index_piece, at)},
        {"begin", parse_indices, offsetof(struct index_piece, region.begin)},
        {"length", parse_indices, offsetof(struct index_piece, region.length)},
    };
    TRY(PARSE_FIELDS(reader, value, fields, into));
    return index_check_piece(reader->index, reader->tensor, into);
}

static shoal_status parse_pieces(struct reader *reader, json_t *value, void *into)
{
    struct index_tensor *tensor = into;
    TRY(parse_array(reader, value, parse_piece, sizeof(tensor->pieces[0]), (void **)&tensor->pieces,
                    &tensor->n_pieces));
    return index_check_pieces(tensor);
}

static shoal_status parse_dtype(struct reader *reader, json_t *value, void *into)
{
    char text[SAFETENSORS_NAME_BYTES];
    (void)reader;
    TRY(check_type(value, json_is_string(value), "a string"));
    if (!safetensors_dtype_find(json_string_value(value), into)) {
        return error_set(SHOAL_ERR_INVALID, "there is no dtype %s",
                         safetensors_format_name(text, json_string_value(value)));
    }
    return SHOAL_OK;
}

static shoal_status parse_shape(struct reader *reader, json_t *value, void *into)
{
    struct index_tensor *tensor = into;
    (void)reader;
    TRY(get_numbers(value, tensor->shape, 0, SHOAL_MAX_DIMS, &tensor->n_dims));
    return index_check_shape(tensor);
}

static shoal_status parse_aliases(struct reader *reader, json_t *value, void *into)
{
    struct index_tensor *tensor = into;
    return parse_array(reader, value, parse_string, sizeof(tensor->aliases[0]), (void **)&tensor->aliases,
                       &tensor->n_aliases);
}

static shoal_status parse_tensor(struct reader *reader, json_t *value, struct index_tensor *tensor)
{
    static const struct field fields[] = {
        {"dtype", parse_dtype, offsetof(struct index_tensor, dtype)},
        {"shape", parse_shape, 0},
        {"aliases", parse_aliases, 0},
        {"pieces", parse_pieces, 0},
    };
    reader->tensor = tensor;
    return PARSE_FIELDS(reader, value, fields, tensor);
}

static shoal_status parse_section(struct reader *reader, const char *name, json_t *object)
{
    TRY(index_check_section(name));
    const char *section = arena_string(reader->arena, name);
    if (!section) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        struct index_tensor *tensor = &reader->index->tensors[reader->index->n_tensors++];
        tensor->section = section;
        tensor->name = arena_string(reader->arena, json_object_iter_key(at));
        if (!tensor->name) {
            return SHOAL_ERR_NO_MEMORY;
        }
        shoal_status status = parse_tensor(reader, json_object_iter_value(at), tensor);
        if (status != SHOAL_OK) {
            char text[SAFETENSORS_NAME_BYTES];
            return error_prefix(status, "section '%s': tensor %s", section,
                                safetensors_format_name(text, tensor->name));
        }
    }
    return SHOAL_OK;
}

static shoal_status parse_sections(struct reader *reader, json_t *value, void *into)
{
    struct checkpoint_index *index = into;
    size_t n_tensors = 0;
    TRY(check_type(value, json_is_object(value), "an object"));
    for (void *at = json_object_iter(value); at; at = json_object_iter_next(value, at)) {
        json_t *section = json_object_iter_value(at);
        TRY(check_type(section, json_is_object(section), "an object of objects"));
        n_tensors += json_object_size(section);
    }
    index->tensors = arena_alloc(reader->arena, n_tensors, sizeof(index->tensors[0]));
    if (!index->tensors) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (void *at = json_object_iter(value); at; at = json_object_iter_next(value, at)) {
        TRY(parse_section(reader, json_object_iter_key(at), json_object_iter_value(at)));
    }
    return SHOAL_OK;
}

/* Numbers and strings --------------------------------------------------------------------------------------- */

static shoal_status parse_value(struct reader *reader, json_t *json, struct index_value *value)
{
    if (value->kind == ITEM_INTEGER) {
        return get_number(json, INT64_MIN, INT64_MAX, &value->integer);
    }
    TRY(check_type(json, json_is_string(json), "a string"));
    if (value->kind == ITEM_STRING) {
        return parse_string(reader, json, &value->string);
    }
    if (!hexfloat_parse(json_string_value(json), &value->real)) {
        char text[SAFETENSORS_NAME_BYTES];
        return error_set(SHOAL_ERR_INVALID, "%s is not a number such as \"0x1.8p+1\"",
                         safetensors_format_name(text, json_string_value(json)));
    }
    return SHOAL_OK;
}

/* There is room for the values. */
static shoal_status parse_values(struct reader *reader, json_t *object, int kind)
{
    TRY(check_type(object, json_is_object(object), "an object"));
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        struct index_value *value = &reader->index->values[reader->index->n_values++];
        value->kind = kind;
        value->name = arena_string(reader->arena, json_object_iter_key(at));
        if (!value->name) {
            return SHOAL_ERR_NO_MEMORY;
        }
        shoal_status status = parse_value(reader, json_object_iter_value(at), value);
        if (status != SHOAL_OK) {
            char text[SAFETENSORS_NAME_BYTES];
            return error_prefix(status, "%s", safetensors_format_name(text, value->name));
        }
    }
    return SHOAL_OK;
}

static shoal_status parse_integers(struct reader *reader, json_t *value, void *into)
{
    (void)into;
    return parse_values(reader, value, ITEM_INTEGER);
}

static shoal_status parse_reals(struct reader *reader, json_t *value, void *into)
{
    (void)into;
    return parse_values(reader, value, ITEM_REAL);
}

static shoal_status parse_strings(struct reader *reader, json_t *value, void *into)
{
    (void)into;
    return parse_values(reader, value, ITEM_STRING);
}

/* The index ------------------------------------------------------------------------------------------------- */

static shoal_status parse_id(struct reader *reader, json_t *value, void *into)
{
    (void)reader;
    TRY(check_type(value, json_is_string(value), "a string"));
    TRY(check_hex(json_string_value(value), INDEX_ID_CHARS));
    memcpy(into, json_string_value(value), INDEX_ID_CHARS + 1);
    return SHOAL_OK;
}

static shoal_status parse_layout(struct reader *reader, json_t *value, void *into)
{
    char text[SAFETENSORS_NAME_BYTES];
    (void)reader;
    TRY(check_type(value, json_is_string(value), "a string"));
    for (int i = 0; i < INDEX_N_LAYOUTS; i++) {
        if (strcmp(json_string_value(value), index_layout_names[i]) == 0) {
            *(shoal_checkpoint_format *)into = (shoal_checkpoint_format)i;
            return SHOAL_OK;
        }
    }
    return error_set(SHOAL_ERR_INVALID, "there is no layout %s",
                     safetensors_format_name(text, json_string_value(value)));
}

static shoal_status parse_progress(struct reader *reader, json_t *value, void *into)
{
    static const struct field fields[] = {
        {"n_ranks", parse_count, offsetof(shoal_checkpoint_progress, n_ranks)},
        {"batch", parse_count, offsetof(shoal_checkpoint_progress, batch)},
        {"n_accumulate", parse_count, offsetof(shoal_checkpoint_progress, n_accumulate)},
        {"sample", parse_count, offsetof(shoal_checkpoint_progress, sample)},
    };
    return PARSE_FIELDS(reader, value, fields, into);
}

/* Checks that this is an index, of a known version. Both keys and the sum mean the same in every version. */
static shoal_status check_version(json_t *root)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    if (!format || strcmp(format, "shoal") != 0) {
        return error_set(SHOAL_ERR_INVALID, "this is not the index of a checkpoint: format is not \"shoal\"");
    }
    int64_t version;
    shoal_status status = get_number(json_object_get(root, "version"), 1, INT64_MAX, &version);
    if (status != SHOAL_OK) {
        return error_prefix(status, "version");
    }
    if (version > INDEX_VERSION) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "the index has version %" PRId64 ", and this library reads versions up to %d",
                         version, INDEX_VERSION);
    }
    return SHOAL_OK;
}

static shoal_status parse_root(struct reader *reader, json_t *root, struct map *names)
{
    /* Files come before the pieces in them. */
    static const struct field fields[] = {
        {"format", parse_nothing, 0},
        {"version", parse_nothing, 0},
        {"sum", parse_nothing, 0},
        {"id", parse_id, offsetof(struct checkpoint_index, id)},
        {"step", parse_count, offsetof(struct checkpoint_index, step)},
        {"layout", parse_layout, offsetof(struct checkpoint_index, format)},
        {"progress", parse_progress, offsetof(struct checkpoint_index, progress)},
        {"files", parse_files, 0},
        {"sections", parse_sections, 0},
        {"integers", parse_integers, 0},
        {"reals", parse_reals, 0},
        {"strings", parse_strings, 0},
    };
    struct checkpoint_index *index = reader->index;
    TRY(check_version(root));
    size_t n_values = json_object_size(json_object_get(root, "integers")) +
                      json_object_size(json_object_get(root, "reals")) +
                      json_object_size(json_object_get(root, "strings"));
    index->values = arena_alloc(reader->arena, n_values, sizeof(index->values[0]));
    if (!index->values) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(PARSE_FIELDS(reader, root, fields, index));
    TRY(index_check_files(index));
    return index_check_names(index, names);
}

/* Checks that the text ends like every index, and that the sum is right. */
static shoal_status check_sum(const char *text, size_t bytes)
{
    char digits[INDEX_SUM_CHARS + 1] = {0};
    const size_t before_bytes = sizeof INDEX_SUM_BEFORE - 1;
    const size_t behind_bytes = sizeof INDEX_SUM_BEHIND - 1;
    const char *end = bytes < INDEX_END_BYTES ? NULL : text + bytes - INDEX_END_BYTES;
    if (!end || memcmp(end, INDEX_SUM_BEFORE, before_bytes) != 0 ||
        memcmp(end + before_bytes + INDEX_SUM_CHARS, INDEX_SUM_BEHIND, behind_bytes) != 0) {
        return error_set(SHOAL_ERR_INVALID,
                         "this is not the index of a checkpoint, or it was cut off: its %zu bytes do not end "
                         "in a checksum",
                         bytes);
    }
    memcpy(digits, end + before_bytes, INDEX_SUM_CHARS);
    TRY(check_hex(digits, INDEX_SUM_CHARS));
    uint64_t sum = checksum_block(text, (size_t)(end - text));
    if (sum != hex_value(digits)) {
        return error_set(SHOAL_ERR_INVALID,
                         "damaged: the checksum of the text is %016" PRIx64 ", but the text says %s", sum,
                         digits);
    }
    return SHOAL_OK;
}

static shoal_status load(const char *text, size_t bytes, json_t **root_out)
{
    json_error_t error;
    TRY(check_sum(text, bytes));
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root && json_error_code(&error) == json_error_out_of_memory) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for the JSON of an index of %zu bytes", bytes);
    }
    if (!root) {
        return error_set(SHOAL_ERR_INVALID, "this is not valid JSON: %s, at byte %d of %zu", error.text,
                         error.position, bytes);
    }
    *root_out = root;
    return SHOAL_OK;
}

shoal_status index_read(const char *text, size_t bytes, struct checkpoint_index *index_out)
{
    json_t *root = NULL;
    TRY(load(text, bytes, &root));
    struct checkpoint_index index = {0};
    struct index_memory *memory = mem_alloc_zeroed(1, sizeof(*memory));
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    if (memory) {
        struct reader reader = {.index = &index, .arena = &memory->arena};
        index.memory = memory;
        status = parse_root(&reader, root, &memory->names);
    }
    json_decref(root);
    if (status != SHOAL_OK) {
        index_free(&index);
        return status;
    }
    *index_out = index;
    return SHOAL_OK;
}

void index_free(struct checkpoint_index *index)
{
    struct index_memory *memory = index->memory;
    if (memory) {
        arena_free(&memory->arena);
        map_free(&memory->names);
        mem_free(memory);
    }
    *index = (struct checkpoint_index){0};
}

const struct index_tensor *index_find(const struct checkpoint_index *index, const char *section,
                                      const char *name)
{
    const struct index_memory *memory = index->memory;
    return memory ? index_names_find(&memory->names, index, section, name) : NULL;
}
