/* SPDX-License-Identifier: MIT */
/* Layouts of files that are to be written: see safetensors/layout.h. */
#include "checkpoint/safetensors/layout.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/refcount.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "tensor/dtype.h"
#include "tensor/layout.h"

/* Names and keys by hash ------------------------------------------------------------------------------- */

static uint64_t hash_string(const char *string)
{
    return hash_bytes(0, string, strlen(string));
}

static bool is_name(const void *context, const void *wanted, size_t index)
{
    const shoal_safetensors_layout *layout = context;
    return strcmp(layout->tensors[index].name, wanted) == 0;
}

static bool is_key(const void *context, const void *wanted, size_t index)
{
    const shoal_safetensors_layout *layout = context;
    return strcmp(layout->pairs[index].key, wanted) == 0;
}

int64_t safetensors_layout_find(const shoal_safetensors_layout *layout, const char *name)
{
    size_t index;
    return map_find(&layout->names, hash_string(name), is_name, layout, name, &index) ? (int64_t)index : -1;
}

static bool has_key(const shoal_safetensors_layout *layout, const char *key)
{
    size_t index;
    return map_find(&layout->keys, hash_string(key), is_key, layout, key, &index);
}

/* Making ----------------------------------------------------------------------------------------------- */

shoal_status shoal_safetensors_layout_create(shoal_safetensors_layout **layout_out)
{
    error_clear();
    if (!layout_out) {
        return error_set(SHOAL_ERR_INVALID, "safetensors_layout_create: layout_out is NULL");
    }
    shoal_safetensors_layout *layout = mem_alloc_zeroed(1, sizeof(*layout));
    if (!layout) {
        return SHOAL_ERR_NO_MEMORY;
    }
    atomic_init(&layout->references, 1);
    *layout_out = layout;
    return SHOAL_OK;
}

void shoal_safetensors_layout_free(shoal_safetensors_layout *layout)
{
    if (!layout || !refcount_put(&layout->references)) {
        return;
    }
    for (size_t i = 0; i < layout->n_tensors; i++) {
        mem_free((char *)layout->tensors[i].name);
    }
    for (size_t i = 0; i < layout->n_pairs; i++) {
        mem_free((char *)layout->pairs[i].key);
        mem_free((char *)layout->pairs[i].value);
    }
    mem_free(layout->tensors);
    map_free(&layout->names);
    mem_free(layout->pairs);
    map_free(&layout->keys);
    mem_free(layout->header);
    mem_free(layout);
}

static shoal_status check_open(const shoal_safetensors_layout *layout)
{
    if (!layout) {
        return error_set(SHOAL_ERR_INVALID, "layout is NULL");
    }
    if (layout->is_fixed) {
        return error_set(SHOAL_ERR_STATE, "a writer uses the layout, so nothing can be added to it any more");
    }
    return SHOAL_OK;
}

static void forget_header(shoal_safetensors_layout *layout)
{
    mem_free(layout->header);
    layout->header = NULL;
}

static shoal_status check_name(const shoal_safetensors_layout *layout, const char *name)
{
    char text[SAFETENSORS_NAME_BYTES];
    if (!name) {
        return error_set(SHOAL_ERR_INVALID, "name is NULL");
    }
    TRY(safetensors_text_check("name", name));
    if (strcmp(name, SAFETENSORS_METADATA_KEY) == 0) {
        return error_set(SHOAL_ERR_INVALID, "name: %s is reserved for the metadata",
                         safetensors_format_name(text, name));
    }
    if (safetensors_layout_find(layout, name) >= 0) {
        return error_set(SHOAL_ERR_INVALID, "name: there is a tensor %s already",
                         safetensors_format_name(text, name));
    }
    return SHOAL_OK;
}

/* Everything but name and place. */
static shoal_status describe(const int64_t *shape, int n_dims, shoal_dtype dtype,
                             struct safetensors_tensor *tensor_out)
{
    int64_t count;
    size_t bytes;
    TRY(dtype_check(dtype, "dtype"));
    if (safetensors_dtype_row(dtype) < 0) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "dtype: safetensors files do not support %s",
                         dtype_rows[dtype].name);
    }
    if (!shape && n_dims > 0) {
        return error_set(SHOAL_ERR_INVALID, "shape is NULL");
    }
    TRY(layout_count(n_dims, shape, &count));
    if (!mem_multiply((size_t)count, dtype_bytes(dtype), &bytes) || bytes > INT64_MAX) {
        char text[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "shape: %s of %s has more bytes than 63 bits can count",
                         layout_format(text, n_dims, shape), dtype_rows[dtype].name);
    }
    *tensor_out = (struct safetensors_tensor){.dtype = dtype, .n_dims = n_dims, .end = bytes};
    for (int i = 0; i < n_dims; i++) {
        tensor_out->shape[i] = shape[i];
    }
    return SHOAL_OK;
}

static shoal_status add_tensor(shoal_safetensors_layout *layout, const char *name,
                               struct safetensors_tensor *tensor)
{
    TRY(mem_grow((void **)&layout->tensors, &layout->tensor_capacity, layout->n_tensors + 1,
                 sizeof(layout->tensors[0])));
    TRY(map_reserve(&layout->names, 1));
    tensor->name = mem_copy_string(name);
    if (!tensor->name) {
        return SHOAL_ERR_NO_MEMORY;
    }
    map_put(&layout->names, hash_string(name), layout->n_tensors);
    layout->tensors[layout->n_tensors++] = *tensor;
    forget_header(layout);
    return SHOAL_OK;
}

shoal_status shoal_safetensors_layout_add(shoal_safetensors_layout *layout, const char *name,
                                          const int64_t *shape, int n_dims, shoal_dtype dtype)
{
    struct safetensors_tensor tensor;
    error_clear();
    shoal_status status = check_open(layout);
    if (status == SHOAL_OK) {
        status = check_name(layout, name);
    }
    if (status != SHOAL_OK) {
        return error_prefix(status, "safetensors_layout_add");
    }
    status = describe(shape, n_dims, dtype, &tensor);
    if (status == SHOAL_OK) {
        status = add_tensor(layout, name, &tensor);
    }
    if (status != SHOAL_OK) {
        char text[SAFETENSORS_NAME_BYTES];
        return error_prefix(status, "safetensors_layout_add: tensor %s", safetensors_format_name(text, name));
    }
    return SHOAL_OK;
}

static shoal_status add_pair(shoal_safetensors_layout *layout, const char *key, const char *value)
{
    TRY(mem_grow((void **)&layout->pairs, &layout->pair_capacity, layout->n_pairs + 1,
                 sizeof(layout->pairs[0])));
    TRY(map_reserve(&layout->keys, 1));
    char *own_key = mem_copy_string(key);
    char *own_value = own_key ? mem_copy_string(value) : NULL;
    if (!own_value) {
        mem_free(own_key);
        return SHOAL_ERR_NO_MEMORY;
    }
    map_put(&layout->keys, hash_string(key), layout->n_pairs);
    layout->pairs[layout->n_pairs++] = (struct safetensors_pair){.key = own_key, .value = own_value};
    forget_header(layout);
    return SHOAL_OK;
}

static shoal_status check_and_add_pair(shoal_safetensors_layout *layout, const char *key, const char *value)
{
    TRY(check_open(layout));
    if (!key || !value) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", key ? "value" : "key");
    }
    TRY(safetensors_text_check("key", key));
    TRY(safetensors_text_check("value", value));
    if (has_key(layout, key)) {
        char text[SAFETENSORS_NAME_BYTES];
        return error_set(SHOAL_ERR_INVALID, "key: there is %s already", safetensors_format_name(text, key));
    }
    return add_pair(layout, key, value);
}

shoal_status shoal_safetensors_layout_add_metadata(shoal_safetensors_layout *layout, const char *key,
                                                   const char *value)
{
    error_clear();
    shoal_status status = check_and_add_pair(layout, key, value);
    return status == SHOAL_OK ? status : error_prefix(status, "safetensors_layout_add_metadata");
}

/* Arranging -------------------------------------------------------------------------------------------- */

static int compare_in_file(const void *a, const void *b)
{
    const struct safetensors_tensor *const *first = a;
    const struct safetensors_tensor *const *second = b;
    int order = safetensors_dtype_row((*first)->dtype) - safetensors_dtype_row((*second)->dtype);
    return order != 0 ? order : strcmp((*first)->name, (*second)->name);
}

/* Places the tensors one after the other. They are in the order of the file. */
static shoal_status place(struct safetensors_tensor **tensors, size_t n_tensors, uint64_t *data_bytes_out)
{
    const uint64_t most = (uint64_t)INT64_MAX - SAFETENSORS_MAX_HEADER_BYTES - SAFETENSORS_LENGTH_BYTES;
    uint64_t at = 0;
    for (size_t i = 0; i < n_tensors; i++) {
        uint64_t bytes = tensors[i]->end - tensors[i]->begin;
        if (bytes > most - at) {
            char text[SAFETENSORS_NAME_BYTES];
            return error_set(SHOAL_ERR_INVALID,
                             "tensor %s: with it the file has more bytes than 63 bits can count",
                             safetensors_format_name(text, tensors[i]->name));
        }
        tensors[i]->begin = at;
        at += bytes;
        tensors[i]->end = at;
    }
    *data_bytes_out = at;
    return SHOAL_OK;
}

shoal_status safetensors_layout_arrange(shoal_safetensors_layout *layout)
{
    uint64_t data_bytes = 0;
    if (layout->header) {
        return SHOAL_OK;
    }
    struct safetensors_tensor **order = mem_alloc_zeroed(layout->n_tensors, sizeof(order[0]));
    if (!order) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < layout->n_tensors; i++) {
        order[i] = &layout->tensors[i];
    }
    qsort(order, layout->n_tensors, sizeof(order[0]), compare_in_file);
    shoal_status status = place(order, layout->n_tensors, &data_bytes);
    if (status == SHOAL_OK) {
        status =
            safetensors_text_make((const struct safetensors_tensor *const *)order, layout->n_tensors,
                                  layout->pairs, layout->n_pairs, &layout->header, &layout->header_bytes);
    }
    if (status == SHOAL_OK) {
        layout->file_bytes = layout->header_bytes + data_bytes;
    }
    mem_free(order);
    return status;
}

shoal_status safetensors_layout_fix(shoal_safetensors_layout *layout)
{
    TRY(safetensors_layout_arrange(layout));
    layout->is_fixed = true;
    refcount_get(&layout->references);
    return SHOAL_OK;
}

uint64_t safetensors_layout_offset(const shoal_safetensors_layout *layout, size_t index)
{
    return layout->header_bytes + layout->tensors[index].begin;
}
