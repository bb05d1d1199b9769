/* SPDX-License-Identifier: MIT */
/* Names in an index: see index/names.h. */
#include "checkpoint/index/names.h"

#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "checkpoint/safetensors/header.h"

#define FILE_NAME_CHARS 255

const char *const index_layout_names[INDEX_N_LAYOUTS] = {
    [SHOAL_CHECKPOINT_PIECES] = "pieces", [SHOAL_CHECKPOINT_WHOLE] = "whole"};

shoal_status index_check_section(const char *name)
{
    char text[SAFETENSORS_NAME_BYTES];
    const char *allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
    size_t length = strlen(name);
    if (length == 0 || length > INDEX_SECTION_CHARS || strspn(name, allowed) != length) {
        return error_set(SHOAL_ERR_INVALID,
                         "section %s: a name has 1 to %d letters, digits, '_', '-' and '.'",
                         safetensors_format_name(text, name), INDEX_SECTION_CHARS);
    }
    return SHOAL_OK;
}

shoal_status index_check_file(const char *name)
{
    char text[SAFETENSORS_NAME_BYTES];
    size_t length = strlen(name);
    if (length == 0 || length > FILE_NAME_CHARS || name[0] == '.' || strchr(name, '/')) {
        return error_set(
            SHOAL_ERR_INVALID,
            "%s is not the name of a file in the directory: 1 to %d bytes, without '/' and without "
            "'.' at the beginning",
            safetensors_format_name(text, name), FILE_NAME_CHARS);
    }
    if (strcmp(name, INDEX_NAME) == 0) {
        return error_set(SHOAL_ERR_INVALID, "'" INDEX_NAME "' is the name of the index itself");
    }
    return SHOAL_OK;
}

/* By name -------------------------------------------------------------------------------------------------- */

shoal_status index_names_make(struct index_names *names, struct arena *arena, size_t n_names)
{
    size_t n_slots = 16;
    while (n_slots / 2 < n_names) {
        n_slots *= 2;
    }
    names->slots = arena_alloc(arena, n_slots, sizeof(names->slots[0]));
    if (!names->slots) {
        return SHOAL_ERR_NO_MEMORY;
    }
    names->n_slots = n_slots;
    return SHOAL_OK;
}

/* Where the name is, or where it would be put. */
static struct index_name *find_slot(const struct index_names *names, const char *section, const char *name)
{
    uint64_t hash = hash_bytes(hash_bytes(0, section, strlen(section)), name, strlen(name));
    size_t at = (size_t)hash & (names->n_slots - 1);
    while (names->slots[at].tensor && (strcmp(names->slots[at].name, name) != 0 ||
                                       strcmp(names->slots[at].tensor->section, section) != 0)) {
        at = (at + 1) & (names->n_slots - 1);
    }
    return &names->slots[at];
}

bool index_names_add(struct index_names *names, const struct index_tensor *tensor, const char *name,
                     const struct index_tensor **other_out)
{
    struct index_name *slot = find_slot(names, tensor->section, name);
    if (slot->tensor) {
        *other_out = slot->tensor;
        return false;
    }
    *slot = (struct index_name){.tensor = tensor, .name = name};
    return true;
}

const struct index_tensor *index_names_find(const struct index_names *names, const char *section,
                                            const char *name)
{
    return names->n_slots > 0 ? find_slot(names, section, name)->tensor : NULL;
}
