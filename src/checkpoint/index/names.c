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

struct wanted {
    const char *section;
    const char *name;
};

static bool is_same(const void *context, const void *wanted_name, size_t number)
{
    const struct checkpoint_index *index = context;
    const struct index_tensor *tensor = &index->tensors[number];
    const struct wanted *wanted = wanted_name;
    bool has_name = strcmp(tensor->name, wanted->name) == 0;
    for (size_t i = 0; i < tensor->n_aliases && !has_name; i++) {
        has_name = strcmp(tensor->aliases[i], wanted->name) == 0;
    }
    return has_name && strcmp(tensor->section, wanted->section) == 0;
}

static uint64_t hash_name(const char *section, const char *name)
{
    return hash_bytes(hash_bytes(0, section, strlen(section)), name, strlen(name));
}

bool index_names_add(struct map *names, const struct checkpoint_index *index, size_t number, const char *name,
                     const struct index_tensor **other_out)
{
    const char *section = index->tensors[number].section;
    *other_out = index_names_find(names, index, section, name);
    if (!*other_out) {
        map_put(names, hash_name(section, name), number);
    }
    return !*other_out;
}

const struct index_tensor *index_names_find(const struct map *names, const struct checkpoint_index *index,
                                            const char *section, const char *name)
{
    size_t number;
    const struct wanted wanted = {.section = section, .name = name};
    return map_find(names, hash_name(section, name), is_same, index, &wanted, &number)
               ? &index->tensors[number]
               : NULL;
}
