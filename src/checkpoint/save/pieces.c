/* SPDX-License-Identifier: MIT */
/*
 * Files of pieces: every rank that has something to write writes a file of its own. In it a piece is the tensor
 * "NAME@BEGIN+LENGTH,BEGIN+LENGTH", with a range for each dimension, and with "SECTION/" in front unless the section is
 * "model". So other tools do not take a piece for a whole tensor.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/safetensors/layout.h"
#include "checkpoint/save/save.h"

/* Names -------------------------------------------------------------------------------------------------- */

#define RANGES_BYTES (SHOAL_MAX_DIMS * 44)

static void format_ranges(char text[RANGES_BYTES], const struct region *region, int n_dims)
{
    struct text ranges = text_begin(text, RANGES_BYTES);
    for (int i = 0; i < n_dims; i++) {
        text_add(&ranges, "%s%" PRId64 "+%" PRId64, i > 0 ? "," : "", region->begin[i], region->length[i]);
    }
}

/* If names of two sections look alike, one of them gets a number. */
static shoal_status add_tensor(shoal_safetensors_layout *layout, const struct table_tensor *tensor,
                               const struct region *region)
{
    char ranges[RANGES_BYTES];
    format_ranges(ranges, region, tensor->n_dims);
    bool is_model = strcmp(tensor->section, SHOAL_SECTION_MODEL) == 0;
    size_t bytes = strlen(tensor->section) + strlen(tensor->name) + strlen(ranges) + 32;
    char *name = mem_alloc(bytes);
    if (!name) {
        return SHOAL_ERR_NO_MEMORY;
    }
    int length = snprintf(name, bytes, "%s%s%s@%s", is_model ? "" : tensor->section, is_model ? "" : "/",
                          tensor->name, ranges);
    for (int number = 2; safetensors_layout_find(layout, name) >= 0; number++) {
        (void)snprintf(name + length, bytes - (size_t)length, "~%d", number);
    }
    shoal_status status =
        shoal_safetensors_layout_add(layout, name, region->length, tensor->n_dims, tensor->dtype);
    mem_free(name);
    return status;
}

/* Files -------------------------------------------------------------------------------------------------- */

/* Pieces of all ranks, rank by rank. */
struct by_rank {
    size_t *pieces;
    size_t *begins; /* n_ranks + 1 */
};

static shoal_status sort_by_rank(const struct save *save, struct by_rank *by_rank)
{
    size_t n_ranks = (size_t)save->n_ranks;
    by_rank->pieces = mem_alloc_zeroed(save->n_pieces + 1, sizeof(size_t));
    by_rank->begins = mem_alloc_zeroed(n_ranks + 2, sizeof(size_t));
    if (!by_rank->pieces || !by_rank->begins) {
        return SHOAL_ERR_NO_MEMORY;
    }
    /* While pieces are added, this is where the next one of each rank goes. At the end it is where the next rank
       begins. */
    size_t *begins = by_rank->begins + 1;
    for (size_t i = 0; i < save->n_pieces; i++) {
        begins[save->pieces[i].rank + 1]++;
    }
    for (size_t rank = 0; rank < n_ranks; rank++) {
        begins[rank + 1] += begins[rank];
    }
    for (size_t i = 0; i < save->n_pieces; i++) {
        by_rank->pieces[begins[save->pieces[i].rank]++] = i;
    }
    return SHOAL_OK;
}

static shoal_status describe(const struct save *save, size_t file, const size_t *pieces, size_t n_pieces,
                             shoal_safetensors_layout *layout)
{
    char number[24];
    (void)snprintf(number, sizeof number, "%zu", file);
    TRY(shoal_safetensors_layout_add_metadata(layout, "shoal.save", save->id));
    TRY(shoal_safetensors_layout_add_metadata(layout, "shoal.file", number));
    for (size_t i = 0; i < n_pieces; i++) {
        const struct split_piece *piece = &save->pieces[pieces[i]];
        TRY(add_tensor(layout, &save->table.tensors[piece->tensor], &piece->region));
    }
    return SHOAL_OK;
}

static void place(struct save *save, size_t file, const size_t *pieces, size_t n_pieces)
{
    shoal_safetensors_layout *layout = save->files[file].layout;
    for (size_t i = 0; i < n_pieces; i++) {
        save->places[pieces[i]] = (struct save_place){file, safetensors_layout_offset(layout, i)};
    }
}

static shoal_status add_jobs(struct save *save, size_t file, const size_t *pieces, size_t n_pieces)
{
    TRY(save_add_header_job(save, file));
    for (size_t i = 0; i < n_pieces; i++) {
        TRY(save_add_piece_job(save, &save->pieces[pieces[i]], file, save->places[pieces[i]].at));
    }
    return SHOAL_OK;
}

/* Adds the file of a rank. Except for the first rank, ranks need only the numbers of each other's files. */
static shoal_status add_file(struct save *save, int rank, size_t n_files, const size_t *pieces,
                             size_t n_pieces)
{
    char name[64];
    shoal_safetensors_layout *layout;
    size_t file = save->n_files;
    if (save->rank != 0 && save->rank != rank) {
        save->files[save->n_files++] = (struct save_file){0};
        return SHOAL_OK;
    }
    TRY(shoal_safetensors_layout_create(&layout));
    shoal_status status = describe(save, file, pieces, n_pieces, layout);
    if (status != SHOAL_OK) {
        shoal_safetensors_layout_free(layout);
        return status;
    }
    (void)snprintf(name, sizeof name, "pieces-%05zu-of-%05zu.safetensors", file + 1, n_files);
    TRY(save_add_file(save, name, layout));
    place(save, file, pieces, n_pieces);
    if (save->rank == rank) {
        return add_jobs(save, file, pieces, n_pieces);
    }
    shoal_safetensors_layout_free(layout);
    save->files[file].layout = NULL;
    return SHOAL_OK;
}

static shoal_status add_files(struct save *save, const struct by_rank *by_rank)
{
    size_t n_files = 0;
    for (int rank = 0; rank < save->n_ranks; rank++) {
        n_files += by_rank->begins[rank + 1] > by_rank->begins[rank];
    }
    save->files = mem_alloc_zeroed(n_files + 1, sizeof(save->files[0]));
    save->places = mem_alloc_zeroed(save->n_pieces + 1, sizeof(save->places[0]));
    if (!save->files || !save->places) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (int rank = 0; rank < save->n_ranks; rank++) {
        size_t begin = by_rank->begins[rank];
        size_t n_pieces = by_rank->begins[rank + 1] - begin;
        if (n_pieces > 0) {
            TRY(add_file(save, rank, n_files, by_rank->pieces + begin, n_pieces));
        }
    }
    return SHOAL_OK;
}

shoal_status save_plan_pieces(struct save *save)
{
    struct by_rank by_rank = {0};
    shoal_status status = sort_by_rank(save, &by_rank);
    if (status == SHOAL_OK) {
        status = add_files(save, &by_rank);
    }
    mem_free(by_rank.pieces);
    mem_free(by_rank.begins);
    return status;
}
