/* SPDX-License-Identifier: MIT */
/* Checkpoints of other tools: see load/foreign.h. jansson parses the text; what is kept is copied. */
#include "checkpoint/load/foreign.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/safetensors/header.h"
#include "shoal/items.h"
#include "shoal/safetensors.h"

/* One entry of the weight_map. Strings are jansson's. */
struct weight {
    const char *name;
    const char *file;
};

struct builder {
    const char *directory;
    struct weight *weights; /* by file, then by name */
    size_t n_weights;
    size_t tensor_capacity;
    struct checkpoint_index index;
};

/* The weight_map --------------------------------------------------------------------------------------- */

static int compare_weights(const void *a, const void *b)
{
    const struct weight *first = a;
    const struct weight *second = b;
    int order = strcmp(first->file, second->file);
    return order ? order : strcmp(first->name, second->name);
}

static shoal_status check_file_name(const char *name, const char *file)
{
    bool is_plain =
        file[0] != '\0' && !strchr(file, '/') && strcmp(file, ".") != 0 && strcmp(file, "..") != 0;
    char text[SAFETENSORS_NAME_BYTES];
    char other[SAFETENSORS_NAME_BYTES];
    return is_plain ? SHOAL_OK
                    : error_set(SHOAL_ERR_INVALID,
                                "weight_map: tensor %s is in %s, which is not the name of a file",
                                safetensors_format_name(text, name), safetensors_format_name(other, file));
}

static shoal_status take_weights(struct builder *builder, json_t *root)
{
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map)) {
        return error_set(SHOAL_ERR_INVALID, "has no object \"weight_map\"");
    }
    builder->weights = mem_alloc_zeroed(json_object_size(map) + 1, sizeof(builder->weights[0]));
    if (!builder->weights) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (void *at = json_object_iter(map); at; at = json_object_iter_next(map, at)) {
        const char *name = json_object_iter_key(at);
        const char *file = json_string_value(json_object_iter_value(at));
        if (!file) {
            char text[SAFETENSORS_NAME_BYTES];
            return error_set(SHOAL_ERR_INVALID, "weight_map: the file of tensor %s is not a string",
                             safetensors_format_name(text, name));
        }
        TRY(check_file_name(name, file));
        builder->weights[builder->n_weights++] = (struct weight){.name = name, .file = file};
    }
    if (builder->n_weights > 0) {
        qsort(builder->weights, builder->n_weights, sizeof(builder->weights[0]), compare_weights);
    }
    return SHOAL_OK;
}

static shoal_status parse(const char *text, size_t bytes, json_t **root_out)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root && json_error_code(&error) == json_error_out_of_memory) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for the JSON of %zu bytes", bytes);
    }
    if (!root) {
        return error_set(SHOAL_ERR_INVALID, "is not valid JSON: %s, at byte %d of %zu", error.text,
                         error.position, bytes);
    }
    *root_out = root;
    return SHOAL_OK;
}

/* Tensors ---------------------------------------------------------------------------------------------- */

static shoal_status add_tensor(struct builder *builder, const shoal_safetensors *file, int64_t number)
{
    struct checkpoint_index *index = &builder->index;
    shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
    TRY(shoal_safetensors_get(file, number, &info));
    TRY(mem_grow((void **)&index->tensors, &builder->tensor_capacity, index->n_tensors + 1,
                 sizeof(index->tensors[0])));
    struct index_tensor tensor = {.section = SHOAL_SECTION_MODEL,
                                  .dtype = info.dtype,
                                  .n_dims = info.n_dims,
                                  .n_pieces = info.bytes > 0};
    tensor.name = mem_copy_string(info.name);
    tensor.pieces = mem_alloc_zeroed(1, sizeof(tensor.pieces[0]));
    if (!tensor.name || !tensor.pieces) {
        mem_free((char *)tensor.name);
        mem_free(tensor.pieces);
        return SHOAL_ERR_NO_MEMORY;
    }
    memcpy(tensor.shape, info.shape, (size_t)info.n_dims * sizeof(tensor.shape[0]));
    tensor.pieces[0] = (struct index_piece){.file = index->n_files - 1, .at = info.file_offset};
    region_make(&tensor.pieces[0].region, info.n_dims, info.shape, -1, 0, 0);
    index->tensors[index->n_tensors++] = tensor;
    return SHOAL_OK;
}

/* All tensors of the file, or those of the weight_map from `first` on. */
static shoal_status add_tensors(struct builder *builder, const shoal_safetensors *file, size_t first)
{
    const char *name = builder->index.files[builder->index.n_files - 1].name;
    if (!builder->weights) {
        for (int64_t i = 0; i < shoal_safetensors_count(file); i++) {
            TRY(add_tensor(builder, file, i));
        }
        return SHOAL_OK;
    }
    for (size_t i = first; i < builder->n_weights && strcmp(builder->weights[i].file, name) == 0; i++) {
        int64_t number = shoal_safetensors_find(file, builder->weights[i].name);
        if (number < 0) {
            char text[SAFETENSORS_NAME_BYTES];
            return error_set(SHOAL_ERR_INVALID, "%s: has no tensor %s, which " FOREIGN_INDEX_NAME " says",
                             name, safetensors_format_name(text, builder->weights[i].name));
        }
        TRY(add_tensor(builder, file, number));
    }
    return SHOAL_OK;
}

/* The size of the file by its header, which was compared with the file when it was opened. */
static shoal_status measure(const shoal_safetensors *file, uint64_t *bytes_out)
{
    int64_t count = shoal_safetensors_count(file);
    *bytes_out = 0;
    if (count > 0) {
        /* The last one in the order of data ends where the file does. */
        shoal_safetensors_info info = SHOAL_SAFETENSORS_INFO_INIT;
        TRY(shoal_safetensors_get(file, count - 1, &info));
        *bytes_out = info.file_offset + info.bytes;
    }
    return SHOAL_OK;
}

static shoal_status add_file(struct builder *builder, const char *name, size_t first_weight)
{
    struct index_file *info = &builder->index.files[builder->index.n_files];
    shoal_safetensors *file = NULL;
    size_t path_bytes = strlen(builder->directory) + strlen(name) + 2;
    info->name = mem_copy_string(name);
    builder->index.n_files += info->name != NULL;
    char *path = mem_alloc(path_bytes);
    shoal_status status = path && info->name ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    if (status == SHOAL_OK) {
        (void)snprintf(path, path_bytes, "%s/%s", builder->directory, name);
        status = shoal_safetensors_open(path, &file);
    }
    mem_free(path);
    if (status == SHOAL_OK) {
        status = measure(file, &info->bytes);
    }
    if (status == SHOAL_OK) {
        status = add_tensors(builder, file, first_weight);
    }
    shoal_safetensors_close(file);
    return status;
}

static shoal_status add_files(struct builder *builder)
{
    builder->index.files = mem_alloc_zeroed(builder->n_weights + 1, sizeof(builder->index.files[0]));
    if (!builder->index.files) {
        return SHOAL_ERR_NO_MEMORY;
    }
    if (!builder->weights) {
        return add_file(builder, FOREIGN_FILE_NAME, 0);
    }
    for (size_t i = 0; i < builder->n_weights; i++) {
        const struct weight *weight = &builder->weights[i];
        if (i == 0 || strcmp(weight->file, weight[-1].file) != 0) {
            TRY(add_file(builder, weight->file, i));
        }
    }
    return SHOAL_OK;
}

/* All of it -------------------------------------------------------------------------------------------- */

static shoal_status build(struct builder *builder, const char *text, size_t bytes)
{
    json_t *root = NULL;
    shoal_status status = SHOAL_OK;
    if (text) {
        status = parse(text, bytes, &root);
        if (status == SHOAL_OK) {
            status = take_weights(builder, root);
        }
        if (status != SHOAL_OK) {
            status = error_prefix(status, "%.200s/" FOREIGN_INDEX_NAME, builder->directory);
        }
    }
    if (status == SHOAL_OK) {
        status = add_files(builder);
    }
    mem_free(builder->weights);
    json_decref(root);
    return status;
}

shoal_status load_foreign_read(const char *directory, const char *text, size_t bytes,
                               struct checkpoint_index *index_out)
{
    struct builder builder = {.directory = directory, .index = {.format = SHOAL_CHECKPOINT_WHOLE}};
    shoal_status status = build(&builder, text, bytes);
    if (status != SHOAL_OK) {
        load_foreign_free(&builder.index);
        return status;
    }
    *index_out = builder.index;
    return SHOAL_OK;
}

void load_foreign_free(struct checkpoint_index *index)
{
    for (size_t i = 0; i < index->n_tensors; i++) {
        mem_free((char *)index->tensors[i].name);
        mem_free(index->tensors[i].pieces);
    }
    for (size_t i = 0; i < index->n_files; i++) {
        mem_free((char *)index->files[i].name);
    }
    mem_free(index->tensors);
    mem_free(index->files);
    *index = (struct checkpoint_index){0};
}
