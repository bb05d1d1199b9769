/* SPDX-License-Identifier: MIT */
/* The end of a save on the first rank: runs of all ranks become shoal.index.json; weight maps for other tools. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json_text.h"
#include "checkpoint/save/save.h"
#include "tensor/dtype.h"

shoal_status save_write_text(const struct save *save, const char *name, const char *text, size_t bytes)
{
    char path[PATH_MAX];
    struct file file;
    if (snprintf(path, sizeof path, "%s/%s", save->path, name) >= (int)sizeof path) {
        return error_set(SHOAL_ERR_INVALID, "%.240s: the path of the file %s is too long", save->path, name);
    }
    TRY(file_open_in_place(path, &file));
    shoal_status status = file_write(&file, 0, text, bytes);
    if (status == SHOAL_OK) {
        status = file_sync(&file);
    }
    file_close(&file);
    return status;
}

/* Runs as numbers: file, at, bytes, sums. ---------------------------------------------------------------- */

#define RUN_NUMBERS 3

shoal_status save_pack_runs(const struct save *save, char **data_out, size_t *bytes_out)
{
    size_t count = 0;
    for (size_t i = 0; i < save->n_runs; i++) {
        count += RUN_NUMBERS + save->runs[i].sums.n_sums;
    }
    uint64_t *numbers = mem_alloc_zeroed(count + 1, sizeof(numbers[0]));
    if (!numbers) {
        return SHOAL_ERR_NO_MEMORY;
    }
    uint64_t *to = numbers;
    for (size_t i = 0; i < save->n_runs; i++) {
        const struct save_run *run = &save->runs[i];
        *to++ = run->file;
        *to++ = run->at;
        *to++ = run->bytes;
        for (size_t k = 0; k < run->sums.n_sums; k++) {
            *to++ = run->sums.sums[k];
        }
    }
    *data_out = (char *)numbers;
    *bytes_out = count * sizeof(numbers[0]);
    return SHOAL_OK;
}

struct found_run {
    uint64_t file;
    struct index_run run;
};

static int compare_runs(const void *a, const void *b)
{
    const struct found_run *left = a;
    const struct found_run *right = b;
    if (left->file != right->file) {
        return left->file < right->file ? -1 : 1;
    }
    return left->run.at == right->run.at ? 0 : left->run.at < right->run.at ? -1 : 1;
}

/* Sums stay in `numbers`. If `runs` is NULL, only counts. */
static size_t unpack_runs(uint64_t *numbers, size_t count, struct found_run *runs)
{
    size_t n_runs = 0;
    for (size_t i = 0; i + RUN_NUMBERS <= count; n_runs++) {
        uint64_t bytes = numbers[i + 2];
        if (runs) {
            runs[n_runs] = (struct found_run){numbers[i], {numbers[i + 1], bytes, &numbers[i + RUN_NUMBERS]}};
        }
        i += RUN_NUMBERS + (size_t)checksum_n_blocks(bytes);
    }
    return n_runs;
}

/* The index ---------------------------------------------------------------------------------------------- */

struct building {
    struct found_run *found;
    struct index_run *runs;
    struct index_file *files;
    struct index_tensor *tensors;
    struct index_piece *pieces;
};

/* Assigns the sorted runs to their files. Runs that do not cover their file are an internal error. */
static shoal_status add_files(const struct save *save, struct building *building, size_t n_runs)
{
    size_t next = 0;
    for (size_t i = 0; i < save->n_files; i++) {
        struct index_file *file = &building->files[i];
        *file = (struct index_file){
            .name = save->files[i].name, .bytes = save->files[i].bytes, .runs = &building->runs[next]};
        uint64_t end = 0;
        for (; next < n_runs && building->found[next].file == i; next++) {
            const struct index_run *run = &building->found[next].run;
            if (run->at != end) {
                break;
            }
            end += run->bytes;
            building->runs[next] = *run;
            file->n_runs++;
        }
        if (end != file->bytes) {
            return error_set(SHOAL_ERR_INTERNAL,
                             "%s: ranks have written %" PRIu64 " bytes from its beginning on, not %" PRIu64,
                             file->name, end, file->bytes);
        }
    }
    return SHOAL_OK;
}

static void describe_tensor(const struct table_tensor *from, struct index_tensor *to)
{
    *to = (struct index_tensor){.section = from->section,
                                .name = from->name,
                                .dtype = from->dtype,
                                .n_dims = from->n_dims,
                                .aliases = (const char **)(uintptr_t)from->aliases,
                                .n_aliases = from->n_aliases};
    memcpy(to->shape, from->shape, sizeof to->shape);
}

/* A tensor of whole files is one piece. */
static void add_whole_tensors(const struct save *save, struct building *building)
{
    for (size_t i = 0; i < save->table.n_tensors; i++) {
        const struct table_tensor *from = &save->table.tensors[i];
        struct index_tensor *to = &building->tensors[i];
        struct index_piece *piece = &building->pieces[i];
        describe_tensor(from, to);
        piece->file = save->places[i].file;
        piece->at = save->places[i].at;
        region_make(&piece->region, from->n_dims, from->shape, -1, 0, 0);
        to->pieces = piece;
        to->n_pieces = from->n_regions > 0;
    }
}

static void add_pieces_of_tensors(const struct save *save, struct building *building)
{
    size_t next = 0;
    for (size_t i = 0; i < save->table.n_tensors; i++) {
        struct index_tensor *to = &building->tensors[i];
        describe_tensor(&save->table.tensors[i], to);
        to->pieces = &building->pieces[next];
        for (; next < save->n_pieces && save->pieces[next].tensor == i; next++) {
            building->pieces[next] = (struct index_piece){save->places[next].file, save->places[next].at,
                                                          save->pieces[next].region};
            to->n_pieces++;
        }
    }
}

static shoal_status write_index(struct save *save, const struct building *building)
{
    struct checkpoint_index index = {.step = save->options.step,
                                     .format = save->options.format,
                                     .progress = save->options.progress,
                                     .tensors = building->tensors,
                                     .n_tensors = save->table.n_tensors,
                                     .values = save->values,
                                     .n_values = save->n_values,
                                     .files = building->files,
                                     .n_files = save->n_files};
    char *text = NULL;
    size_t bytes = 0;
    memcpy(index.id, save->id, sizeof index.id);
    TRY(index_write(&index, &text, &bytes));
    shoal_status status = save_write_text(save, INDEX_NAME, text, bytes);
    mem_free(text);
    return status;
}

static shoal_status build(struct save *save, uint64_t *numbers, size_t count, struct building *building)
{
    size_t n_runs = unpack_runs(numbers, count, NULL);
    size_t n_tensors = save->table.n_tensors;
    size_t n_pieces = save->n_pieces > n_tensors ? save->n_pieces : n_tensors;
    building->found = mem_alloc_zeroed(n_runs + 1, sizeof(building->found[0]));
    building->runs = mem_alloc_zeroed(n_runs + 1, sizeof(building->runs[0]));
    building->files = mem_alloc_zeroed(save->n_files + 1, sizeof(building->files[0]));
    building->tensors = mem_alloc_zeroed(n_tensors + 1, sizeof(building->tensors[0]));
    building->pieces = mem_alloc_zeroed(n_pieces + 1, sizeof(building->pieces[0]));
    if (!building->found || !building->runs || !building->files || !building->tensors || !building->pieces) {
        return SHOAL_ERR_NO_MEMORY;
    }
    (void)unpack_runs(numbers, count, building->found);
    if (n_runs > 1) {
        qsort(building->found, n_runs, sizeof(building->found[0]), compare_runs);
    }
    TRY(add_files(save, building, n_runs));
    if (save->options.format == SHOAL_CHECKPOINT_WHOLE) {
        add_whole_tensors(save, building);
    } else {
        add_pieces_of_tensors(save, building);
    }
    return write_index(save, building);
}

shoal_status save_write_index(struct save *save, const char *packed, const uint64_t *offsets)
{
    struct building building = {0};
    size_t count = (size_t)offsets[save->n_ranks] / sizeof(uint64_t);
    shoal_status status = build(save, (uint64_t *)(uintptr_t)packed, count, &building);
    mem_free(building.found);
    mem_free(building.runs);
    mem_free(building.files);
    mem_free(building.tensors);
    mem_free(building.pieces);
    return status;
}

/* Weight maps -------------------------------------------------------------------------------------------- */

struct weight {
    const struct table_tensor *tensor;
    const char *file;
};

/* By section, then by name. */
static int compare_weights(const void *a, const void *b)
{
    const struct weight *left = a;
    const struct weight *right = b;
    int order = strcmp(left->tensor->section, right->tensor->section);
    return order != 0 ? order : strcmp(left->tensor->name, right->tensor->name);
}

static uint64_t sum_bytes(const struct weight *weights, size_t n_weights)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n_weights; i++) {
        uint64_t bytes = dtype_bytes(weights[i].tensor->dtype);
        for (int d = 0; d < weights[i].tensor->n_dims; d++) {
            bytes *= (uint64_t)weights[i].tensor->shape[d];
        }
        sum += bytes;
    }
    return sum;
}

/* As transformers writes it: sorted, two spaces. */
static void put_map(struct json_text *out, const struct weight *weights, size_t n_weights)
{
    json_text_add(out, "{\n  \"metadata\": {\n    \"total_size\": ");
    json_text_number(out, (int64_t)sum_bytes(weights, n_weights));
    json_text_add(out, "\n  },\n  \"weight_map\": {");
    for (size_t i = 0; i < n_weights; i++) {
        json_text_add(out, i > 0 ? ",\n    " : "\n    ");
        json_text_string(out, weights[i].tensor->name);
        json_text_add(out, ": ");
        json_text_string(out, weights[i].file);
    }
    json_text_add(out, "\n  }\n}\n");
}

static shoal_status write_map(const struct save *save, const struct weight *weights, size_t n_weights)
{
    char name[192];
    struct json_text out = {0};
    put_map(&out, weights, n_weights);
    out.text = mem_alloc(out.bytes);
    if (!out.text) {
        return SHOAL_ERR_NO_MEMORY;
    }
    out.bytes = 0;
    put_map(&out, weights, n_weights);
    (void)snprintf(name, sizeof name, "%s.safetensors.index.json", weights[0].tensor->section);
    shoal_status status = save_write_text(save, name, out.text, out.bytes);
    mem_free(out.text);
    return status;
}

static shoal_status write_maps(const struct save *save, struct weight *weights)
{
    size_t n_weights = save->table.n_tensors;
    for (size_t i = 0; i < n_weights; i++) {
        weights[i] = (struct weight){&save->table.tensors[i], save->files[save->places[i].file].name};
    }
    if (n_weights > 1) {
        qsort(weights, n_weights, sizeof(weights[0]), compare_weights);
    }
    size_t count = 0;
    for (size_t first = 0; first < n_weights; first += count) {
        const char *section = weights[first].tensor->section;
        bool is_one_file = true;
        for (count = 0; first + count < n_weights; count++) {
            const struct weight *weight = &weights[first + count];
            if (strcmp(weight->tensor->section, section) != 0) {
                break;
            }
            is_one_file = is_one_file && strcmp(weight->file, weights[first].file) == 0;
        }
        if (!is_one_file) {
            TRY(write_map(save, weights + first, count));
        }
    }
    return SHOAL_OK;
}

shoal_status save_write_weight_maps(const struct save *save)
{
    struct weight *weights = mem_alloc_zeroed(save->table.n_tensors + 1, sizeof(*weights));
    if (!weights) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = write_maps(save, weights);
    mem_free(weights);
    return status;
}
