/* SPDX-License-Identifier: MIT */
/*
 * Files of whole tensors, as other tools read them: SECTION-00001-of-0000n.safetensors for each section, with its
 * tensors in the order of the list. A new file begins when the data of one would become too large; a single file is
 * called SECTION.safetensors. Aliases are in the metadata, alias to name, as safetensors' save_model writes them.
 *
 * A piece whose bytes are contiguous in the file is written by the rank that has it. The others are exchanged.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/safetensors/layout.h"
#include "checkpoint/save/save.h"
#include "tensor/dtype.h"
#include "tensor/layout.h"

/* Sections ----------------------------------------------------------------------------------------------- */

struct by_section {
    const char *section;
    size_t tensor;
};

static int compare_sections(const void *a, const void *b)
{
    const struct by_section *left = a;
    const struct by_section *right = b;
    int order = strcmp(left->section, right->section);
    return order != 0 ? order : left->tensor < right->tensor ? -1 : 1;
}

static uint64_t count_bytes(const struct table_tensor *tensor)
{
    uint64_t bytes = dtype_bytes(tensor->dtype);
    for (int i = 0; i < tensor->n_dims; i++) {
        bytes *= (uint64_t)tensor->shape[i];
    }
    return bytes;
}

/* Whether a section's name ends like that of one of several files: then its file could be taken for another
   section's. */
static bool looks_numbered(const char *section)
{
    static const char pattern[] = "-00000-of-00000";
    size_t length = strlen(section);
    size_t bytes = sizeof pattern - 1;
    if (length < bytes) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        char c = section[length - bytes + i];
        if (pattern[i] == '0' ? c < '0' || c > '9' : c != pattern[i]) {
            return false;
        }
    }
    return true;
}

/* Sections must be usable as file names. */
static shoal_status check_section(const char *section)
{
    if (looks_numbered(section)) {
        return error_set(SHOAL_ERR_INVALID, "section \"%s\": looks like the name of a numbered file",
                         section);
    }
    return SHOAL_OK;
}

/* How many tensors from `first` on go into one file. */
static size_t count_in_file(const struct save *save, const struct by_section *tensors, size_t n_tensors)
{
    uint64_t bytes = 0;
    size_t count = 0;
    while (count < n_tensors && strcmp(tensors[count].section, tensors[0].section) == 0) {
        uint64_t more = count_bytes(&save->table.tensors[tensors[count].tensor]);
        if (count > 0 &&
            (more > save->options.max_file_bytes || bytes > save->options.max_file_bytes - more)) {
            break;
        }
        bytes += more;
        count++;
    }
    return count;
}

/* Files -------------------------------------------------------------------------------------------------- */

static shoal_status add_aliases(const struct table_tensor *tensor, shoal_safetensors_layout *layout)
{
    static const char *const taken[] = {"format", "shoal.save", "shoal.file"};
    for (size_t i = 0; i < tensor->n_aliases; i++) {
        bool is_taken = false;
        for (size_t k = 0; k < sizeof taken / sizeof taken[0]; k++) {
            is_taken = is_taken || strcmp(tensor->aliases[i], taken[k]) == 0;
        }
        if (!is_taken) { /* the index has it anyway */
            TRY(shoal_safetensors_layout_add_metadata(layout, tensor->aliases[i], tensor->name));
        }
    }
    return SHOAL_OK;
}

static shoal_status describe(const struct save *save, size_t file, const struct by_section *tensors,
                             size_t n_tensors, shoal_safetensors_layout *layout)
{
    char number[24];
    (void)snprintf(number, sizeof number, "%zu", file);
    TRY(shoal_safetensors_layout_add_metadata(layout, "format", "pt"));
    TRY(shoal_safetensors_layout_add_metadata(layout, "shoal.save", save->id));
    TRY(shoal_safetensors_layout_add_metadata(layout, "shoal.file", number));
    for (size_t i = 0; i < n_tensors; i++) {
        const struct table_tensor *tensor = &save->table.tensors[tensors[i].tensor];
        TRY(shoal_safetensors_layout_add(layout, tensor->name, tensor->shape, tensor->n_dims, tensor->dtype));
        TRY(add_aliases(tensor, layout));
    }
    return SHOAL_OK;
}

static shoal_status add_file(struct save *save, const char *name, const struct by_section *tensors,
                             size_t n_tensors)
{
    size_t file = save->n_files;
    shoal_safetensors_layout *layout;
    TRY(shoal_safetensors_layout_create(&layout));
    shoal_status status = describe(save, file, tensors, n_tensors, layout);
    if (status != SHOAL_OK) {
        shoal_safetensors_layout_free(layout);
        return status;
    }
    TRY(save_add_file(save, name, layout));
    for (size_t i = 0; i < n_tensors; i++) {
        save->places[tensors[i].tensor] = (struct save_place){file, safetensors_layout_offset(layout, i)};
    }
    return (int)(file % (size_t)save->n_ranks) == save->rank ? save_add_header_job(save, file) : SHOAL_OK;
}

/* Adds all files of the section that begins here. *n_done_out: the number of its tensors. */
static shoal_status add_section(struct save *save, const struct by_section *tensors, size_t n_tensors,
                                size_t *n_done_out)
{
    const char *section = tensors[0].section;
    size_t n_files = 0;
    size_t n_done = 0;
    TRY(check_section(section));
    while (n_done < n_tensors && strcmp(tensors[n_done].section, section) == 0) {
        n_done += count_in_file(save, tensors + n_done, n_tensors - n_done);
        n_files++;
    }
    size_t first = 0;
    for (size_t i = 0; i < n_files; i++) {
        char name[192];
        size_t count = count_in_file(save, tensors + first, n_tensors - first);
        if (n_files == 1) {
            (void)snprintf(name, sizeof name, "%s.safetensors", section);
        } else {
            (void)snprintf(name, sizeof name, "%s-%05zu-of-%05zu.safetensors", section, i + 1, n_files);
        }
        TRY(add_file(save, name, tensors + first, count));
        first += count;
    }
    *n_done_out = n_done;
    return SHOAL_OK;
}

static shoal_status add_files(struct save *save, struct by_section *tensors)
{
    size_t n_tensors = save->table.n_tensors;
    for (size_t i = 0; i < n_tensors; i++) {
        tensors[i] = (struct by_section){save->table.tensors[i].section, i};
    }
    if (n_tensors > 1) {
        qsort(tensors, n_tensors, sizeof(tensors[0]), compare_sections);
    }
    size_t n_done = 0;
    for (size_t first = 0; first < n_tensors; first += n_done) {
        TRY(add_section(save, tensors + first, n_tensors - first, &n_done));
    }
    return SHOAL_OK;
}

/* Pieces ------------------------------------------------------------------------------------------------- */

/* Whether the elements of the region are contiguous in the row-major tensor. */
static bool is_contiguous(const struct region *region, const struct table_tensor *tensor)
{
    int i = 0;
    while (i < tensor->n_dims && region->length[i] == 1) {
        i++;
    }
    for (i++; i < tensor->n_dims; i++) {
        if (region->length[i] != tensor->shape[i]) {
            return false;
        }
    }
    return true;
}

static uint64_t find_offset(const struct region *region, const struct table_tensor *tensor)
{
    int64_t strides[SHOAL_MAX_DIMS];
    int64_t offset = 0;
    layout_fill_strides(tensor->n_dims, tensor->shape, strides);
    for (int i = 0; i < tensor->n_dims; i++) {
        offset += region->begin[i] * strides[i];
    }
    return (uint64_t)offset * dtype_bytes(tensor->dtype);
}

/* The pieces of one tensor. */
static shoal_status add_pieces(struct save *save, size_t first, size_t n_pieces)
{
    size_t number = save->pieces[first].tensor;
    const struct table_tensor *tensor = &save->table.tensors[number];
    const struct save_place *place = &save->places[number];
    for (size_t i = first; i < first + n_pieces; i++) {
        if (!is_contiguous(&save->pieces[i].region, tensor)) {
            save->exchanged[save->n_exchanged++] = (struct save_exchanged){*place, number, first, n_pieces};
            return SHOAL_OK;
        }
    }
    for (size_t i = first; i < first + n_pieces; i++) {
        const struct split_piece *piece = &save->pieces[i];
        if (piece->rank == save->rank) {
            uint64_t offset = find_offset(&piece->region, tensor);
            TRY(save_add_piece_job(save, piece, place->file, place->at + offset));
        }
    }
    return SHOAL_OK;
}

static int compare_exchanged(const void *a, const void *b)
{
    const struct save_place *left = &((const struct save_exchanged *)a)->place;
    const struct save_place *right = &((const struct save_exchanged *)b)->place;
    if (left->file != right->file) {
        return left->file < right->file ? -1 : 1;
    }
    return left->at == right->at ? 0 : left->at < right->at ? -1 : 1;
}

static shoal_status add_all_pieces(struct save *save)
{
    size_t n_pieces = 0;
    for (size_t first = 0; first < save->n_pieces; first += n_pieces) {
        n_pieces = 1;
        while (first + n_pieces < save->n_pieces &&
               save->pieces[first + n_pieces].tensor == save->pieces[first].tensor) {
            n_pieces++;
        }
        TRY(add_pieces(save, first, n_pieces));
    }
    if (save->n_exchanged > 1) {
        qsort(save->exchanged, save->n_exchanged, sizeof(save->exchanged[0]), compare_exchanged);
    }
    return SHOAL_OK;
}

shoal_status save_plan_whole(struct save *save)
{
    size_t n_tensors = save->table.n_tensors;
    struct by_section *tensors = mem_alloc_zeroed(n_tensors + 1, sizeof(*tensors));
    save->files = mem_alloc_zeroed(n_tensors + 1, sizeof(save->files[0]));
    save->places = mem_alloc_zeroed(n_tensors + 1, sizeof(save->places[0]));
    save->exchanged = mem_alloc_zeroed(n_tensors + 1, sizeof(save->exchanged[0]));
    bool has_memory = tensors && save->files && save->places && save->exchanged;
    shoal_status status = has_memory ? add_files(save, tensors) : SHOAL_ERR_NO_MEMORY;
    mem_free(tensors);
    return status == SHOAL_OK ? add_all_pieces(save) : status;
}
