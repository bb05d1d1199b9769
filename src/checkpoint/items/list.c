/* SPDX-License-Identifier: MIT */
/* Entries and names of a list of items: see items/list.h. */
#include "checkpoint/items/list.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/safetensors/header.h"
#include "checkpoint/safetensors/layout.h"
#include "tensor/dtype.h"
#include "tensor/layout.h"

const char *items_list_format(char text[ITEMS_TEXT_BYTES], const char *section, const char *name)
{
    char quoted[SAFETENSORS_NAME_BYTES];
    (void)snprintf(text, ITEMS_TEXT_BYTES, "%.64s%s%s", section, section[0] != '\0' ? " " : "",
                   safetensors_format_name(quoted, name));
    return text;
}

/* Names ------------------------------------------------------------------------------------------------ */

static uint64_t hash_name(const char *section, const char *name)
{
    return hash_bytes(hash_bytes(0, section, strlen(section)), name, strlen(name));
}

struct wanted {
    const char *section;
    const char *name;
};

static bool is_entry(const void *context, const void *wanted_name, size_t number)
{
    const shoal_items *items = context;
    const struct item_entry *entry = &items->entries[number];
    const struct wanted *wanted = wanted_name;
    bool has_name = strcmp(entry->name, wanted->name) == 0;
    for (size_t i = 0; i < entry->n_aliases && !has_name; i++) {
        has_name = strcmp(entry->aliases[i], wanted->name) == 0;
    }
    return has_name && strcmp(entry->section, wanted->section) == 0;
}

static bool is_value(const void *context, const void *wanted_name, size_t number)
{
    const shoal_items *items = context;
    const struct wanted *wanted = wanted_name;
    return strcmp(items->values[number].name, wanted->name) == 0;
}

bool items_list_find(const shoal_items *items, const char *section, const char *name, size_t *number_out)
{
    const struct wanted wanted = {.section = section, .name = name};
    uint64_t hash = hash_name(section, name);
    return section[0] == '\0' ? map_find(&items->value_names, hash, is_value, items, &wanted, number_out)
                              : map_find(&items->entry_names, hash, is_entry, items, &wanted, number_out);
}

static shoal_status report_twice(const char *argument, const char *section, const char *name)
{
    char text[ITEMS_TEXT_BYTES];
    return error_set(SHOAL_ERR_INVALID, "%s: there is an item %s already", argument,
                     items_list_format(text, section, name));
}

shoal_status items_list_check_name(const shoal_items *items, const char *section, const char *argument,
                                   const char *name)
{
    if (!name || name[0] == '\0') {
        return error_set(SHOAL_ERR_INVALID, "%s is %s", argument, name ? "empty" : "NULL");
    }
    TRY(safetensors_text_check(argument, name));
    if (strcmp(name, SAFETENSORS_METADATA_KEY) == 0) {
        return error_set(SHOAL_ERR_INVALID, "%s: \"%s\" is reserved for the metadata of files", argument,
                         name);
    }
    size_t number;
    return items_list_find(items, section, name, &number) ? report_twice(argument, section, name) : SHOAL_OK;
}

shoal_status items_list_check_section(const char *section)
{
    char text[SAFETENSORS_NAME_BYTES];
    size_t length = strspn(section, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    if (length == 0 || section[length] != '\0' || length > SHOAL_MAX_SECTION_NAME) {
        return error_set(
            SHOAL_ERR_INVALID,
            "section: %s is not 1 to %d letters, digits, '_' and '-', as parts of file names are",
            safetensors_format_name(text, section), SHOAL_MAX_SECTION_NAME);
    }
    return SHOAL_OK;
}

/* Adding ----------------------------------------------------------------------------------------------- */

/* Makes a copy of `before`, and after it `first` and `second` joined. Returns NULL if memory runs out. */
static char *join(const char *before, const char *first, const char *second, const char **joined_out)
{
    size_t before_bytes = before ? strlen(before) + 1 : 0;
    size_t first_bytes = strlen(first);
    size_t second_bytes = strlen(second) + 1;
    char *strings = mem_alloc(before_bytes + first_bytes + second_bytes);
    if (!strings) {
        return NULL;
    }
    if (before) {
        memcpy(strings, before, before_bytes);
    }
    (void)snprintf(strings + before_bytes, first_bytes + second_bytes, "%s%s", first, second);
    *joined_out = strings + before_bytes;
    return strings;
}

shoal_status items_list_add(shoal_items *items, const char *section, const char *prefix, const char *path,
                            const struct item_entry *entry)
{
    struct item_entry added = *entry;
    TRY(mem_grow((void **)&items->entries, &items->entry_capacity, items->n_entries + 1,
                 sizeof(items->entries[0])));
    TRY(map_reserve(&items->entry_names, 1));
    added.section = join(section, prefix, path, &added.name);
    if (!added.section) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = items_list_check_name(items, section, "name", added.name);
    if (status != SHOAL_OK) {
        mem_free(added.section);
        return status;
    }
    added.path = added.name + strlen(prefix);
    map_put(&items->entry_names, hash_name(added.section, added.name), items->n_entries);
    items->entries[items->n_entries++] = added;
    return SHOAL_OK;
}

shoal_status items_list_add_alias(shoal_items *items, size_t number, const char *prefix, const char *path)
{
    struct item_entry *entry = &items->entries[number];
    const char *name;
    TRY(mem_grow((void **)&entry->aliases, &entry->alias_capacity, entry->n_aliases + 1,
                 sizeof(entry->aliases[0])));
    TRY(map_reserve(&items->entry_names, 1));
    char *alias = join(NULL, prefix, path, &name);
    if (!alias) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = items_list_check_name(items, entry->section, "name", name);
    if (status != SHOAL_OK) {
        mem_free(alias);
        return status;
    }
    map_put(&items->entry_names, hash_name(entry->section, alias), number);
    entry->aliases[entry->n_aliases++] = alias;
    return SHOAL_OK;
}

shoal_status items_list_add_value(shoal_items *items, const struct item_value *value)
{
    struct item_value added = *value;
    TRY(mem_grow((void **)&items->values, &items->value_capacity, items->n_values + 1,
                 sizeof(items->values[0])));
    TRY(map_reserve(&items->value_names, 1));
    added.name = mem_copy_string(value->name);
    if (!added.name) {
        return SHOAL_ERR_NO_MEMORY;
    }
    map_put(&items->value_names, hash_name(ITEMS_VALUES, added.name), items->n_values);
    items->values[items->n_values++] = added;
    return SHOAL_OK;
}

/* Removing --------------------------------------------------------------------------------------------- */

/* Frees the arrays, not what is in them. */
static void forget(shoal_items *items)
{
    mem_free(items->entries);
    mem_free(items->values);
    mem_free(items->hooks);
    map_free(&items->entry_names);
    map_free(&items->value_names);
    map_free(&items->tensors);
    *items = (shoal_items){0};
}

static void free_entry(struct item_entry *entry)
{
    if (entry->source->release) {
        entry->source->release(entry);
    }
    for (size_t i = 0; i < entry->n_aliases; i++) {
        mem_free(entry->aliases[i]);
    }
    mem_free(entry->aliases);
    mem_free(entry->section);
}

void items_list_clear(shoal_items *items)
{
    for (size_t i = 0; i < items->n_hooks; i++) {
        if (items->hooks[i].destroy) {
            items->hooks[i].destroy(items->hooks[i].context);
        }
    }
    for (size_t i = 0; i < items->n_entries; i++) {
        free_entry(&items->entries[i]);
    }
    for (size_t i = 0; i < items->n_values; i++) {
        mem_free((char *)items->values[i].name);
    }
    forget(items);
}

/* Moving ----------------------------------------------------------------------------------------------- */

/* The lists must have no name in common. The error has the first one, in the order of `from`. */
static shoal_status check_apart(const shoal_items *items, const shoal_items *from)
{
    size_t number;
    for (size_t i = 0; i < from->n_entries; i++) {
        const struct item_entry *entry = &from->entries[i];
        if (items_list_find(items, entry->section, entry->name, &number)) {
            return report_twice("name", entry->section, entry->name);
        }
        for (size_t j = 0; j < entry->n_aliases; j++) {
            if (items_list_find(items, entry->section, entry->aliases[j], &number)) {
                return report_twice("name", entry->section, entry->aliases[j]);
            }
        }
    }
    for (size_t i = 0; i < from->n_values; i++) {
        if (items_list_find(items, ITEMS_VALUES, from->values[i].name, &number)) {
            return report_twice("name", ITEMS_VALUES, from->values[i].name);
        }
    }
    return SHOAL_OK;
}

shoal_status items_list_move(shoal_items *items, shoal_items *from)
{
    TRY(check_apart(items, from));
    TRY(mem_grow((void **)&items->entries, &items->entry_capacity, items->n_entries + from->n_entries,
                 sizeof(items->entries[0])));
    TRY(mem_grow((void **)&items->values, &items->value_capacity, items->n_values + from->n_values,
                 sizeof(items->values[0])));
    TRY(mem_grow((void **)&items->hooks, &items->hook_capacity, items->n_hooks + from->n_hooks,
                 sizeof(items->hooks[0])));
    TRY(map_reserve(&items->entry_names, from->entry_names.count));
    TRY(map_reserve(&items->value_names, from->value_names.count));
    for (size_t i = 0; i < from->n_entries; i++) {
        const struct item_entry *entry = &from->entries[i];
        map_put(&items->entry_names, hash_name(entry->section, entry->name), items->n_entries);
        for (size_t j = 0; j < entry->n_aliases; j++) {
            map_put(&items->entry_names, hash_name(entry->section, entry->aliases[j]), items->n_entries);
        }
        items->entries[items->n_entries++] = *entry;
    }
    for (size_t i = 0; i < from->n_values; i++) {
        map_put(&items->value_names, hash_name(ITEMS_VALUES, from->values[i].name), items->n_values);
        items->values[items->n_values++] = from->values[i];
    }
    for (size_t i = 0; i < from->n_hooks; i++) {
        items->hooks[items->n_hooks++] = from->hooks[i];
    }
    forget(from);
    return SHOAL_OK;
}

/* Looking ---------------------------------------------------------------------------------------------- */

static shoal_status check_tensor(const struct item_entry *entry, const struct item_place *place)
{
    const shoal_tensor *tensor = place->tensor;
    struct region region;
    region_make(&region, entry->n_dims, entry->shape, place->dim, place->offset, place->length);
    if (shoal_tensor_dtype(tensor) != entry->dtype) {
        return error_set(SHOAL_ERR_STATE, "its tensor is %s, but was %s when it was added",
                         shoal_dtype_name(shoal_tensor_dtype(tensor)), shoal_dtype_name(entry->dtype));
    }
    if (!layout_is_same_shape(shoal_tensor_n_dims(tensor), shoal_tensor_shape(tensor), entry->n_dims,
                              region.length)) {
        char now[LAYOUT_TEXT_BYTES];
        char added[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_STATE, "its tensor has the shape %s instead of %s",
                         layout_format(now, shoal_tensor_n_dims(tensor), shoal_tensor_shape(tensor)),
                         layout_format(added, entry->n_dims, region.length));
    }
    return SHOAL_OK;
}

shoal_status items_list_look(const shoal_items *items, size_t number, enum item_use use,
                             struct item_place *place_out)
{
    struct item_entry *entry = &items->entries[number];
    struct item_place place = {.dim = -1};
    shoal_status status = entry->source->look(entry, use, &place);
    if (status == SHOAL_OK && place.tensor) {
        status = check_tensor(entry, &place);
    }
    if (status != SHOAL_OK) {
        char text[ITEMS_TEXT_BYTES];
        return error_prefix(status, "item %s", items_list_format(text, entry->section, entry->name));
    }
    *place_out = place;
    return SHOAL_OK;
}
