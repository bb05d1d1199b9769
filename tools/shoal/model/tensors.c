/* SPDX-License-Identifier: MIT */
/* Reads the index of a checkpoint, or the headers of foreign files (checkpoint/load/foreign.h), and sorts the names. */
#include "model/tensors.h"
#include "common/read_file.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/index/directory.h"
#include "checkpoint/items/items.h"
#include "checkpoint/load/foreign.h"
#include "shoal/dtype.h"
#include "shoal/items.h"
#include "shoal/safetensors.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    CHUNK_BYTES = 4096, /* of tensors that are compared */
    NAME_BYTES = 128
};

#define MAX_INDEX_BYTES ((size_t)1 << 30)

/* Opening ---------------------------------------------------------------------------------------------- */

static int compare_names(const void *left, const void *right)
{
    const struct index_tensor *const *a = left;
    const struct index_tensor *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

/* Reads a file of the directory. NULL in *text_out: there is no such file. */
static shoal_status read_named(const char *directory, const char *name, char **text_out, size_t *bytes_out)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path) {
        return error_set(SHOAL_ERR_INVALID, "a path of %zu bytes is too long", strlen(directory));
    }
    *text_out = NULL;
    shoal_status status = tool_read_file(path, MAX_INDEX_BYTES, text_out, bytes_out);
    return status == SHOAL_ERR_STATE ? SHOAL_OK : status;
}

static shoal_status read_own(struct model_tensors *tensors, bool *is_there_out)
{
    char *text = NULL;
    size_t n_bytes = 0;
    TRY(read_named(tensors->path, INDEX_NAME, &text, &n_bytes));
    *is_there_out = text != NULL;
    if (!text) {
        return SHOAL_OK;
    }
    shoal_status status = index_read(text, n_bytes, &tensors->index);
    mem_free(text);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s/" INDEX_NAME, tensors->path);
}

static shoal_status read_foreign(struct model_tensors *tensors)
{
    char *text = NULL;
    size_t n_bytes = 0;
    TRY(read_named(tensors->path, FOREIGN_INDEX_NAME, &text, &n_bytes));
    shoal_status status = load_foreign_read(tensors->path, text, n_bytes, &tensors->index);
    mem_free(text);
    return status;
}

static shoal_status sort_names(struct model_tensors *tensors)
{
    tensors->sorted = mem_alloc_zeroed(tensors->index.n_tensors + 1, sizeof(tensors->sorted[0]));
    TRY(tensors->sorted ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
    for (size_t i = 0; i < tensors->index.n_tensors; i++) {
        const struct index_tensor *tensor = &tensors->index.tensors[i];
        if (strcmp(tensor->section, SHOAL_SECTION_MODEL) == 0) {
            tensors->sorted[tensors->n_sorted++] = tensor;
        }
    }
    qsort(tensors->sorted, tensors->n_sorted, sizeof(tensors->sorted[0]), compare_names);
    return SHOAL_OK;
}

static shoal_status find_path(const char *directory, struct model_tensors *tensors)
{
    struct stat about;
    if (stat(directory, &about) != 0) {
        return error_set(SHOAL_ERR_SYSTEM, "%s: %s", directory, error_errno_text(errno));
    }
    if (!S_ISDIR(about.st_mode)) {
        return error_set(SHOAL_ERR_INVALID, "%s is not a directory", directory);
    }
    TRY(directory_find(directory, 0, INT64_MAX, &tensors->path, &tensors->step));
    return tensors->path ? SHOAL_OK
                         : error_set(SHOAL_ERR_STATE,
                                     "%s has no checkpoint, no " FOREIGN_FILE_NAME
                                     ", and no " FOREIGN_INDEX_NAME " of several files",
                                     directory);
}

static shoal_status open_tensors(const char *directory, struct model_tensors *tensors)
{
    bool is_own = false;
    TRY(find_path(directory, tensors));
    TRY(read_own(tensors, &is_own));
    tensors->is_foreign = !is_own;
    TRY(is_own ? SHOAL_OK : read_foreign(tensors));
    return sort_names(tensors);
}

shoal_status model_tensors_open(const char *directory, struct model_tensors *tensors_out)
{
    *tensors_out = (struct model_tensors){.step = -1};
    shoal_status status = open_tensors(directory, tensors_out);
    if (status != SHOAL_OK) {
        model_tensors_close(tensors_out);
    }
    return status;
}

void model_tensors_close(struct model_tensors *tensors)
{
    if (tensors->is_foreign) {
        load_foreign_free(&tensors->index);
    } else {
        index_free(&tensors->index);
    }
    mem_free(tensors->sorted);
    mem_free(tensors->path);
    *tensors = (struct model_tensors){0};
}

/* What is in it ---------------------------------------------------------------------------------------- */

const struct index_tensor *model_tensors_find(const struct model_tensors *tensors, const char *prefix,
                                              const char *name)
{
    char full[NAME_BYTES];
    (void)snprintf(full, sizeof full, "%s%s", prefix, name);
    const struct index_tensor wanted = {.name = full};
    const struct index_tensor *key = &wanted;
    const struct index_tensor **found =
        bsearch(&key, tensors->sorted, tensors->n_sorted, sizeof(tensors->sorted[0]), compare_names);
    return found ? *found : NULL;
}

bool model_tensors_has_string(const struct model_tensors *tensors, const char *name)
{
    for (size_t i = 0; i < tensors->index.n_values; i++) {
        const struct index_value *value = &tensors->index.values[i];
        if (value->kind == ITEM_STRING && strcmp(value->name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Comparing -------------------------------------------------------------------------------------------- */

/* A tensor in its file, which is open. */
struct place {
    shoal_safetensors *file;
    int64_t number;
};

static shoal_status open_place(const struct model_tensors *tensors, const struct index_tensor *tensor,
                               struct place *place)
{
    char path[PATH_MAX];
    const char *name = tensors->index.files[tensor->pieces[0].file].name;
    (void)snprintf(path, sizeof path, "%s/%s", tensors->path, name);
    TRY(shoal_safetensors_open(path, &place->file));
    place->number = shoal_safetensors_find(place->file, tensor->name);
    return SHOAL_OK;
}

/* Both have so many bytes. */
static shoal_status compare_places(const struct place places[2], size_t n_bytes, bool *is_same_out)
{
    char bytes[2][CHUNK_BYTES];
    *is_same_out = true;
    for (size_t at = 0; *is_same_out && at < n_bytes; at += CHUNK_BYTES) {
        size_t n = n_bytes - at < CHUNK_BYTES ? n_bytes - at : CHUNK_BYTES;
        for (int i = 0; i < 2; i++) {
            TRY(shoal_safetensors_read_range(places[i].file, places[i].number, at, bytes[i], n));
        }
        *is_same_out = memcmp(bytes[0], bytes[1], n) == 0;
    }
    return SHOAL_OK;
}

shoal_status model_tensors_compare(const struct model_tensors *tensors, const struct index_tensor *left,
                                   const struct index_tensor *right, bool *is_same_out)
{
    struct place places[2] = {{0}};
    size_t n_bytes = shoal_dtype_bytes(left->dtype) * (size_t)left->shape[0] * (size_t)left->shape[1];
    *is_same_out = left->dtype == right->dtype && left->n_dims == right->n_dims &&
                   left->shape[0] == right->shape[0] && left->shape[1] == right->shape[1];
    if (!*is_same_out || left->n_pieces == 0) {
        return SHOAL_OK;
    }
    shoal_status status = open_place(tensors, left, &places[0]);
    if (status == SHOAL_OK) {
        status = open_place(tensors, right, &places[1]);
    }
    if (status == SHOAL_OK) {
        status = compare_places(places, n_bytes, is_same_out);
    }
    shoal_safetensors_close(places[0].file);
    shoal_safetensors_close(places[1].file);
    return status;
}
