/* SPDX-License-Identifier: MIT */
/* Entries and names of a list of items: see items/list.h. */
#include "checkpoint/items/list.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
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

/* Where the name is, or where it would be put. There is a free slot. */
static struct item_slot *find_slot(struct item_slot *slots, size_t n_slots, const char *section,
                                   const char *name)
{
    uint64_t hash = hash_bytes(hash_bytes(0, section, strlen(section)), name, strlen(name));
    size_t at = (size_t)hash & (n_slots - 1);
    while (slots[at].section &&
           (strcmp(slots[at].name, name) != 0 || strcmp(slots[at].section, section) != 0)) {
        at = (at + 1) & (n_slots - 1);
    }
    return &slots[at];
}

const struct item_slot *items_list_find(const shoal_items *items, const char *section, const char *name)
{
    const struct item_slot *slot =
        items->n_slots > 0 ? find_slot(items->slots, items->n_slots, section, name) : NULL;
    return slot && slot->section ? slot : NULL;
}

/* Room for so many more, with half of the slots free. */
static shoal_status reserve_names(shoal_items *items, size_t n_more)
{
    size_t n_slots = items->n_slots > 0 ? items->n_slots : 16;
    while (2 * (items->n_names + n_more) > n_slots) {
        n_slots *= 2;
    }
    if (n_slots == items->n_slots) {
        return SHOAL_OK;
    }
    struct item_slot *slots = mem_alloc_zeroed(n_slots, sizeof(slots[0]));
    if (!slots) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < items->n_slots; i++) {
        if (items->slots[i].section) {
            *find_slot(slots, n_slots, items->slots[i].section, items->slots[i].name) = items->slots[i];
        }
    }
    mem_free(items->slots);
    items->slots = slots;
    items->n_slots = n_slots;
    return SHOAL_OK;
}

static void put_name(shoal_items *items, const char *section, const char *name, size_t number)
{
    *find_slot(items->slots, items->n_slots, section, name) =
        (struct item_slot){.section = section, .name = name, .number = number};
    items->n_names++;
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
    return items_list_find(items, section, name) ? report_twice(argument, section, name) : SHOAL_OK;
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

/* Makes a copy of `before`, and after it `first` and `second` joined. NULL: no memory. */
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
    TRY(reserve_names(items, 1));
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
    put_name(items, added.section, added.name, items->n_entries);
    items->entries[items->n_entries++] = added;
    return SHOAL_OK;
}

shoal_status items_list_add_alias(shoal_items *items, size_t number, const char *prefix, const char *path)
{
    struct item_entry *entry = &items->entries[number];
    const char *name;
    TRY(mem_grow((void **)&entry->aliases, &entry->alias_capacity, entry->n_aliases + 1,
                 sizeof(entry->aliases[0])));
    TRY(reserve_names(items, 1));
    char *alias = join(NULL, prefix, path, &name);
    if (!alias) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = items_list_check_name(items, entry->section, "name", name);
    if (status != SHOAL_OK) {
        mem_free(alias);
        return status;
    }
    put_name(items, entry->section, alias, number);
    entry->aliases[entry->n_aliases++] = alias;
    return SHOAL_OK;
}

shoal_status items_list_add_value(shoal_items *items, const struct item_value *value)
{
    struct item_value added = *value;
    TRY(mem_grow((void **)&items->values, &items->value_capacity, items->n_values + 1,
                 sizeof(items->values[0])));
    TRY(reserve_names(items, 1));
    added.name = mem_copy_string(value->name);
    if (!added.name) {
        return SHOAL_ERR_NO_MEMORY;
    }
    put_name(items, ITEMS_VALUES, added.name, items->n_values);
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
    mem_free(items->slots);
    items_tensors_clear(&items->tensors);
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
    for (size_t i = 0; i < from->n_entries; i++) {
        const struct item_entry *entry = &from->entries[i];
        if (items_list_find(items, entry->section, entry->name)) {
            return report_twice("name", entry->section, entry->name);
        }
        for (size_t j = 0; j < entry->n_aliases; j++) {
            if (items_list_find(items, entry->section, entry->aliases[j])) {
                return report_twice("name", entry->section, entry->aliases[j]);
            }
        }
    }
    for (size_t i = 0; i < from->n_values; i++) {
        if (items_list_find(items, ITEMS_VALUES, from->values[i].name)) {
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
    TRY(reserve_names(items, from->n_names));
    for (size_t i = 0; i < from->n_slots; i++) {
        const struct item_slot *slot = &from->slots[i];
        if (slot->section) {
            bool is_value = slot->section[0] == '\0';
            put_name(items, slot->section, slot->name,
                     slot->number + (is_value ? items->n_values : items->n_entries));
        }
    }
    for (size_t i = 0; i < from->n_entries; i++) {
        items->entries[items->n_entries++] = from->entries[i];
    }
    for (size_t i = 0; i < from->n_values; i++) {
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
