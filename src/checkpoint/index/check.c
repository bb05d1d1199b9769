/* SPDX-License-Identifier: MIT */
/* Whether the parts of an index contradict each other: see index/check.h. */
#include "checkpoint/index/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/safetensors/header.h"
#include "checkpoint/io/tiling.h"
#include "tensor/dtype.h"
#include "tensor/layout.h"

/* Tensors --------------------------------------------------------------------------------------------------- */

shoal_status index_check_shape(const struct index_tensor *tensor)
{
    int64_t count;
    int64_t bytes;
    TRY(layout_count(tensor->n_dims, tensor->shape, &count));
    if (__builtin_mul_overflow(count, (int64_t)dtype_bytes(tensor->dtype), &bytes)) {
        char text[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "the bytes of %s %s are more than 63 bits can count",
                         shoal_dtype_name(tensor->dtype), layout_format(text, tensor->n_dims, tensor->shape));
    }
    return SHOAL_OK;
}

/* Cannot overflow: the tensor's bytes can be counted, and the piece has no more. */
static uint64_t piece_bytes(const struct index_tensor *tensor, const struct index_piece *piece)
{
    return (uint64_t)region_count(&piece->region, tensor->n_dims) * dtype_bytes(tensor->dtype);
}

shoal_status index_check_piece(const struct checkpoint_index *index, const struct index_tensor *tensor,
                               const struct index_piece *piece)
{
    const struct index_file *file = &index->files[piece->file];
    for (int i = 0; i < tensor->n_dims; i++) {
        int64_t begin = piece->region.begin[i];
        int64_t length = piece->region.length[i];
        if (length < 1 || begin < 0 || length > tensor->shape[i] || begin > tensor->shape[i] - length) {
            return error_set(SHOAL_ERR_INVALID,
                             "%" PRId64 " indices from %" PRId64 " on are not within the %" PRId64
                             " of dimension %d",
                             length, begin, tensor->shape[i], i);
        }
        if (index->format == SHOAL_CHECKPOINT_WHOLE && i > 0 && length != tensor->shape[i]) {
            return error_set(SHOAL_ERR_INVALID,
                             "it has %" PRId64 " of %" PRId64
                             " indices in dimension %d, but pieces of whole files are rows",
                             length, tensor->shape[i], i);
        }
    }
    uint64_t bytes = piece_bytes(tensor, piece);
    if (piece->at > file->bytes || bytes > file->bytes - piece->at) {
        char text[SAFETENSORS_NAME_BYTES];
        return error_set(SHOAL_ERR_INVALID,
                         "%" PRIu64 " bytes from %" PRIu64 " on are not within the %" PRIu64 " of file %s",
                         bytes, piece->at, file->bytes, safetensors_format_name(text, file->name));
    }
    return SHOAL_OK;
}

/* Compares all indices: those beyond the last dimension are 0 in an index that was read. */
static int compare_begins(const void *a, const void *b)
{
    const struct index_piece *first = a;
    const struct index_piece *second = b;
    return region_compare(&first->region, &second->region, SHOAL_MAX_DIMS);
}

shoal_status index_check_pieces(struct index_tensor *tensor)
{
    int64_t count;
    char text[LAYOUT_TEXT_BYTES];
    struct tiling_fault fault;
    TRY(layout_count(tensor->n_dims, tensor->shape, &count));
    if (count == 0) {
        return SHOAL_OK; /* no piece lies within it */
    }
    if (tensor->n_pieces == 0) {
        return error_set(SHOAL_ERR_INVALID, "it has %" PRId64 " elements and no pieces", count);
    }
    qsort(tensor->pieces, tensor->n_pieces, sizeof(tensor->pieces[0]), compare_begins);
    TRY(tiling_check(tensor->n_dims, tensor->shape, &tensor->pieces[0].region, sizeof(tensor->pieces[0]),
                     tensor->n_pieces, &fault));
    if (fault.n_regions != 1) {
        return error_set(SHOAL_ERR_INVALID,
                         "element %s of %" PRId64 " is in %" PRId64 " pieces instead of one",
                         layout_format(text, tensor->n_dims, fault.element), count, fault.n_regions);
    }
    return SHOAL_OK;
}

/* Files ----------------------------------------------------------------------------------------------------- */

static int compare_runs(const void *a, const void *b)
{
    const struct index_run *first = a;
    const struct index_run *second = b;
    return (first->at > second->at) - (first->at < second->at);
}

shoal_status index_check_runs(struct index_file *file)
{
    uint64_t end = 0;
    qsort(file->runs, file->n_runs, sizeof(file->runs[0]), compare_runs);
    for (size_t i = 0; i < file->n_runs; i++) {
        const struct index_run *run = &file->runs[i];
        if (run->at != end) {
            return error_set(SHOAL_ERR_INVALID,
                             "a run begins at byte %" PRIu64 ", but those before it end at %" PRIu64, run->at,
                             end);
        }
        if (run->bytes == 0 || run->bytes > file->bytes - end) {
            return error_set(SHOAL_ERR_INVALID,
                             "a run of %" PRIu64 " bytes from %" PRIu64
                             " on is empty or not within the %" PRIu64 " of the file",
                             run->bytes, run->at, file->bytes);
        }
        end += run->bytes;
    }
    if (end != file->bytes) {
        return error_set(SHOAL_ERR_INVALID, "the runs end at byte %" PRIu64 " of %" PRIu64, end, file->bytes);
    }
    return SHOAL_OK;
}

struct place {
    size_t file;
    uint64_t at;
    uint64_t bytes;
    const struct index_tensor *tensor;
};

static int compare_places(const void *a, const void *b)
{
    const struct place *first = a;
    const struct place *second = b;
    int order = (first->file > second->file) - (first->file < second->file);
    return order ? order : (first->at > second->at) - (first->at < second->at);
}

static shoal_status check_places(const struct checkpoint_index *index, struct place *places, size_t n_places)
{
    qsort(places, n_places, sizeof(places[0]), compare_places);
    for (size_t i = 1; i < n_places; i++) {
        const struct place *before = &places[i - 1];
        const struct place *place = &places[i];
        if (place->file == before->file && place->at - before->at < before->bytes) {
            char file[SAFETENSORS_NAME_BYTES];
            char first[SAFETENSORS_NAME_BYTES];
            char second[SAFETENSORS_NAME_BYTES];
            return error_set(SHOAL_ERR_INVALID,
                             "pieces of tensors %s and %s share byte %" PRIu64 " of file %s",
                             safetensors_format_name(first, before->tensor->name),
                             safetensors_format_name(second, place->tensor->name), place->at,
                             safetensors_format_name(file, index->files[place->file].name));
        }
    }
    return SHOAL_OK;
}

static shoal_status check_bytes(const struct checkpoint_index *index)
{
    size_t n_places = 0;
    for (size_t i = 0; i < index->n_tensors; i++) {
        n_places += index->tensors[i].n_pieces;
    }
    struct place *places = mem_alloc_zeroed(n_places + 1, sizeof(places[0]));
    if (!places) {
        return SHOAL_ERR_NO_MEMORY;
    }
    n_places = 0;
    for (size_t i = 0; i < index->n_tensors; i++) {
        const struct index_tensor *tensor = &index->tensors[i];
        for (size_t k = 0; k < tensor->n_pieces; k++) {
            const struct index_piece *piece = &tensor->pieces[k];
            places[n_places++] = (struct place){
                .file = piece->file, .at = piece->at, .bytes = piece_bytes(tensor, piece), .tensor = tensor};
        }
    }
    shoal_status status = check_places(index, places, n_places);
    mem_free(places);
    return status;
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static shoal_status check_file_names(const struct checkpoint_index *index)
{
    shoal_status status = SHOAL_OK;
    const char **names = mem_alloc_zeroed(index->n_files + 1, sizeof(names[0]));
    if (!names) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < index->n_files; i++) {
        names[i] = index->files[i].name;
    }
    qsort(names, index->n_files, sizeof(names[0]), compare_strings);
    for (size_t i = 1; i < index->n_files && status == SHOAL_OK; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            char text[SAFETENSORS_NAME_BYTES];
            status = error_set(SHOAL_ERR_INVALID, "two files have the name %s",
                               safetensors_format_name(text, names[i]));
        }
    }
    mem_free(names);
    return status;
}

shoal_status index_check_files(const struct checkpoint_index *index)
{
    TRY(check_file_names(index));
    return check_bytes(index);
}

/* Names ----------------------------------------------------------------------------------------------------- */

static shoal_status add_name(struct map *names, const struct checkpoint_index *index, size_t number,
                             const char *name)
{
    const struct index_tensor *tensor = &index->tensors[number];
    const struct index_tensor *other;
    if (index_names_add(names, index, number, name, &other)) {
        return SHOAL_OK;
    }
    char text[SAFETENSORS_NAME_BYTES];
    char first[SAFETENSORS_NAME_BYTES];
    char second[SAFETENSORS_NAME_BYTES];
    return error_set(SHOAL_ERR_INVALID, "section '%s': %s is a name or alias of both %s and %s",
                     tensor->section, safetensors_format_name(text, name),
                     safetensors_format_name(first, other->name),
                     safetensors_format_name(second, tensor->name));
}

shoal_status index_check_names(const struct checkpoint_index *index, struct map *names)
{
    size_t n_names = 0;
    for (size_t i = 0; i < index->n_tensors; i++) {
        n_names += 1 + index->tensors[i].n_aliases;
    }
    TRY(map_reserve(names, n_names));
    for (size_t i = 0; i < index->n_tensors; i++) {
        TRY(add_name(names, index, i, index->tensors[i].name));
    }
    for (size_t i = 0; i < index->n_tensors; i++) {
        for (size_t k = 0; k < index->tensors[i].n_aliases; k++) {
            TRY(add_name(names, index, i, index->tensors[i].aliases[k]));
        }
    }
    return SHOAL_OK;
}
