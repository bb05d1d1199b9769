/* SPDX-License-Identifier: MIT */
/*
 * Writes shoal.index.json: see index.h. One text for equal contents: a line for each tensor and file, sections by name,
 * tensors of a section in the order of the index.
 */
#include "checkpoint/index/index.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/io/hexfloat.h"
#include "checkpoint/index/names.h"
#include "checkpoint/index/text.h"
#include "checkpoint/items/items.h"
#include "checkpoint/io/json_text.h"
#include "checkpoint/safetensors/header.h"
#include "checkpoint/safetensors/layout.h"

/* What can be written -------------------------------------------------------------------------------------- */

static shoal_status check_tensor(const struct index_tensor *tensor)
{
    TRY(index_check_section(tensor->section));
    TRY(safetensors_text_check("name", tensor->name));
    for (size_t i = 0; i < tensor->n_aliases; i++) {
        TRY(safetensors_text_check("alias", tensor->aliases[i]));
    }
    if (safetensors_dtype_row(tensor->dtype) < 0) {
        char text[SAFETENSORS_NAME_BYTES];
        return error_set(SHOAL_ERR_UNSUPPORTED, "tensor %s: safetensors files do not support %s",
                         safetensors_format_name(text, tensor->name), shoal_dtype_name(tensor->dtype));
    }
    return SHOAL_OK;
}

static shoal_status check_index(const struct checkpoint_index *index)
{
    for (size_t i = 0; i < index->n_tensors; i++) {
        TRY(check_tensor(&index->tensors[i]));
    }
    for (size_t i = 0; i < index->n_values; i++) {
        const struct index_value *value = &index->values[i];
        TRY(safetensors_text_check("name", value->name));
        if (value->kind == ITEM_STRING) {
            TRY(safetensors_text_check(value->name, value->string));
        }
    }
    for (size_t i = 0; i < index->n_files; i++) {
        TRY(index_check_file(index->files[i].name));
        TRY(safetensors_text_check("file", index->files[i].name));
    }
    return SHOAL_OK;
}

/* Tensors -------------------------------------------------------------------------------------------------- */

static void put_key(struct json_text *out, const char *before, const char *key)
{
    json_text_add(out, before);
    json_text_string(out, key);
    json_text_add(out, ": ");
}

static void put_number(struct json_text *out, const char *before, const char *key, uint64_t number)
{
    put_key(out, before, key);
    json_text_number(out, (int64_t)number);
}

static void put_piece(struct json_text *out, const struct index_piece *piece, int n_dims)
{
    put_number(out, "{", "file", piece->file);
    put_number(out, ", ", "at", piece->at);
    put_key(out, ", ", "begin");
    json_text_numbers(out, ", ", piece->region.begin, n_dims);
    put_key(out, ", ", "length");
    json_text_numbers(out, ", ", piece->region.length, n_dims);
    json_text_add(out, "}");
}

static void put_tensor(struct json_text *out, const struct index_tensor *tensor)
{
    put_key(out, "", tensor->name);
    put_key(out, "{", "dtype");
    json_text_string(out, safetensors_dtype_name(safetensors_dtype_row(tensor->dtype)));
    put_key(out, ", ", "shape");
    json_text_numbers(out, ", ", tensor->shape, tensor->n_dims);
    put_key(out, ", ", "aliases");
    json_text_add(out, "[");
    for (size_t i = 0; i < tensor->n_aliases; i++) {
        json_text_add(out, i > 0 ? ", " : "");
        json_text_string(out, tensor->aliases[i]);
    }
    put_key(out, "], ", "pieces");
    json_text_add(out, "[");
    for (size_t i = 0; i < tensor->n_pieces; i++) {
        json_text_add(out, i > 0 ? ", " : "");
        put_piece(out, &tensor->pieces[i], tensor->n_dims);
    }
    json_text_add(out, "]}");
}

static int compare_sections(const void *a, const void *b)
{
    const struct index_tensor *first = *(const struct index_tensor *const *)a;
    const struct index_tensor *second = *(const struct index_tensor *const *)b;
    int order = strcmp(first->section, second->section);
    return order ? order : (first > second) - (first < second); /* of one array */
}

static void put_sections(struct json_text *out, const struct index_tensor *const *tensors, size_t n_tensors)
{
    put_key(out, ",\n", "sections");
    json_text_add(out, "{");
    for (size_t i = 0; i < n_tensors; i++) {
        if (i > 0 && strcmp(tensors[i - 1]->section, tensors[i]->section) == 0) {
            json_text_add(out, ",\n");
        } else {
            put_key(out, i > 0 ? "},\n" : "\n", tensors[i]->section);
            json_text_add(out, "{\n");
        }
        put_tensor(out, tensors[i]);
    }
    json_text_add(out, n_tensors > 0 ? "}}" : "}");
}

/* Numbers, strings, files ---------------------------------------------------------------------------------- */

static void put_value(struct json_text *out, const struct index_value *value)
{
    char real[HEXFLOAT_BYTES];
    if (value->kind == ITEM_INTEGER) {
        json_text_number(out, value->integer);
    } else {
        json_text_string(out, value->kind == ITEM_REAL ? hexfloat_format(real, value->real) : value->string);
    }
}

static void put_values(struct json_text *out, const struct checkpoint_index *index)
{
    static const char *const keys[] = {
        [ITEM_INTEGER] = "integers", [ITEM_REAL] = "reals", [ITEM_STRING] = "strings"};
    for (int kind = 0; kind < (int)(sizeof keys / sizeof keys[0]); kind++) {
        const char *before = "{\n";
        put_key(out, ",\n", keys[kind]);
        for (size_t i = 0; i < index->n_values; i++) {
            if (index->values[i].kind == kind) {
                put_key(out, before, index->values[i].name);
                put_value(out, &index->values[i]);
                before = ",\n";
            }
        }
        json_text_add(out, before[0] == '{' ? "{}" : "}");
    }
}

static void put_hex(struct json_text *out, uint64_t number)
{
    char text[INDEX_SUM_CHARS + 1];
    (void)snprintf(text, sizeof text, "%016" PRIx64, number);
    json_text_add(out, text);
}

static void put_file(struct json_text *out, const struct index_file *file)
{
    put_key(out, "{", "name");
    json_text_string(out, file->name);
    put_number(out, ", ", "bytes", file->bytes);
    put_key(out, ", ", "runs");
    json_text_add(out, "[");
    for (size_t i = 0; i < file->n_runs; i++) {
        const struct index_run *run = &file->runs[i];
        put_number(out, i > 0 ? ", {" : "{", "at", run->at);
        put_number(out, ", ", "bytes", run->bytes);
        put_key(out, ", ", "sums");
        json_text_add(out, "[");
        for (uint64_t k = 0; k < checksum_n_blocks(run->bytes); k++) {
            json_text_add(out, k > 0 ? ", \"" : "\"");
            put_hex(out, run->sums[k]);
            json_text_add(out, "\"");
        }
        json_text_add(out, "]}");
    }
    json_text_add(out, "]}");
}

/* All ------------------------------------------------------------------------------------------------------- */

/* Up to where the sum stands. */
static void put_all(struct json_text *out, const struct checkpoint_index *index,
                    const struct index_tensor *const *tensors)
{
    json_text_add(out, "{\"format\": \"shoal\"");
    put_number(out, ", ", "version", INDEX_VERSION);
    put_key(out, ", ", "id");
    json_text_string(out, index->id);
    put_number(out, ", ", "step", (uint64_t)index->step);
    put_key(out, ", ", "layout");
    json_text_string(out, index_layout_names[index->format]);
    put_key(out, ",\n", "progress");
    put_number(out, "{", "n_ranks", (uint64_t)index->progress.n_ranks);
    put_number(out, ", ", "batch", (uint64_t)index->progress.batch);
    put_number(out, ", ", "n_accumulate", (uint64_t)index->progress.n_accumulate);
    put_number(out, ", ", "sample", (uint64_t)index->progress.sample);
    json_text_add(out, "}");
    put_sections(out, tensors, index->n_tensors);
    put_values(out, index);
    put_key(out, ",\n", "files");
    json_text_add(out, "[");
    for (size_t i = 0; i < index->n_files; i++) {
        json_text_add(out, i > 0 ? ",\n" : "\n");
        put_file(out, &index->files[i]);
    }
    json_text_add(out, "],\n");
}

static shoal_status write_text(const struct checkpoint_index *index,
                               const struct index_tensor *const *tensors, char **text_out, size_t *bytes_out)
{
    struct json_text counted = {0};
    put_all(&counted, index, tensors);
    struct json_text out = {.text = mem_alloc(counted.bytes + INDEX_END_BYTES)};
    if (!out.text) {
        return SHOAL_ERR_NO_MEMORY;
    }
    put_all(&out, index, tensors);
    uint64_t sum = checksum_block(out.text, out.bytes);
    json_text_add(&out, INDEX_SUM_BEFORE);
    put_hex(&out, sum);
    json_text_add(&out, INDEX_SUM_BEHIND);
    *text_out = out.text;
    *bytes_out = out.bytes;
    return SHOAL_OK;
}

shoal_status index_write(const struct checkpoint_index *index, char **text_out, size_t *bytes_out)
{
    TRY(check_index(index));
    const struct index_tensor **tensors = mem_alloc_zeroed(index->n_tensors + 1, sizeof(tensors[0]));
    if (!tensors) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < index->n_tensors; i++) {
        tensors[i] = &index->tensors[i];
    }
    qsort(tensors, index->n_tensors, sizeof(tensors[0]), compare_sections);
    shoal_status status = write_text(index, tensors, text_out, bytes_out);
    mem_free(tensors);
    return status;
}
