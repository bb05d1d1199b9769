/* SPDX-License-Identifier: MIT */
/*
 * Lists for saves and loads in which an item that several sets of ranks have, each with values of its own (an expert),
 * is as many items: "w", "w#1", "w#2". Each rank has a part of one of them, and nothing of the others.
 */
#include <stdio.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "checkpoint/items/items.h"
#include "checkpoint/items/list.h"

static shoal_status look_in_original(struct item_entry *entry, enum item_use use,
                                     struct item_place *place_out)
{
    if (entry->original) {
        return items_list_look(entry->original, entry->number, use, place_out);
    }
    *place_out = (struct item_place){.dim = 0}; /* an empty part */
    return SHOAL_OK;
}

static const struct item_source original_source = {.look = look_in_original};

/* Of the name and its number, which the first copy does not have. */
enum {
    SUFFIX_BYTES = 16
};

static void write_suffix(int copy, char suffix[SUFFIX_BYTES])
{
    suffix[0] = '\0';
    if (copy > 0) {
        (void)snprintf(suffix, SUFFIX_BYTES, "#%d", copy);
    }
}

static shoal_status add_copy(shoal_items *spread, const shoal_items *items, size_t index, int copy,
                             bool is_mine)
{
    const struct item_entry *from = &items->entries[index];
    struct item_entry entry = {.source = &original_source,
                               .dtype = from->dtype,
                               .n_dims = from->n_dims,
                               .may_be_missing = from->may_be_missing,
                               .original = is_mine ? items : NULL,
                               .number = index};
    char suffix[SUFFIX_BYTES];
    for (int i = 0; i < from->n_dims; i++) {
        entry.shape[i] = from->shape[i];
    }
    write_suffix(copy, suffix);
    TRY(items_list_add(spread, from->section, from->name, suffix, &entry));
    for (size_t i = 0; i < from->n_aliases; i++) {
        TRY(items_list_add_alias(spread, spread->n_entries - 1, from->aliases[i], suffix));
    }
    return SHOAL_OK;
}

static shoal_status fill(shoal_items *spread, const shoal_items *items, const struct item_copies *copies)
{
    for (size_t i = 0; i < items->n_entries; i++) {
        for (int copy = 0; copy < copies[i].n_copies; copy++) {
            TRY(add_copy(spread, items, i, copy, copy == copies[i].mine));
        }
    }
    for (size_t i = 0; i < items->n_values; i++) {
        TRY(items_list_add_value(spread, &items->values[i]));
    }
    return SHOAL_OK;
}

shoal_status items_spread(const shoal_items *items, const struct item_copies *copies,
                          shoal_items **spread_out)
{
    shoal_items *spread;
    TRY(shoal_items_create(&spread));
    shoal_status status = fill(spread, items, copies);
    if (status != SHOAL_OK) {
        shoal_items_free(spread);
        return status;
    }
    *spread_out = spread;
    return SHOAL_OK;
}
