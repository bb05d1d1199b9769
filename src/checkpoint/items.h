/* SPDX-License-Identifier: MIT */
/*
 * Lists of items (shoal/items.h), as saves and loads use them.
 *
 * Entries of modules and contexts are looked up when the list is used: items_part tells what an entry is at that
 * moment. Names, dtypes and shapes are those of adding; what does not fit them any more is an error.
 */
#ifndef CHECKPOINT_ITEMS_H
#define CHECKPOINT_ITEMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/region.h"
#include "shoal/items.h"

/* What does not change. Strings live until the list is changed. */
struct item_info {
    const char *section;
    const char *name;
    shoal_dtype dtype;
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS]; /* of the whole */
    bool may_be_missing;
    const char *const *aliases; /* in the order of adding */
    size_t n_aliases;
};

/* What this rank has of it, now. */
struct item_part {
    struct region region; /* of the whole */
    void *data; /* of the part's first element; NULL: the part is empty, or has no memory (meta device) */
    int64_t strides[SHOAL_MAX_DIMS]; /* of the memory, in elements */
};

void items_info(const shoal_items *items, size_t index, struct item_info *info_out);

/* Only where the part lies in the whole: data is NULL, nothing is waited for. */
shoal_status items_region(const shoal_items *items, size_t index, struct region *region_out);

/* For reading: waits for what is in flight. A part without memory, and a shard of a parameter that was on the meta
   device and was not written yet, are SHOAL_ERR_STATE, with the item's name. Ranks may differ in what they read. */
shoal_status items_part(const shoal_items *items, size_t index, struct item_part *part_out);

/* Whether items_mutable_part would succeed, without counting as a change. Of contexts of FSDP it does not know. */
shoal_status items_check_mutable(const shoal_items *items, size_t index);

/* For writing: waits for readers, too, and tensors count it as a change (shoal_mutable_data). Shards have memory also
   where the parameter was on the meta device; anything else there is SHOAL_ERR_STATE. Ranks call it for the same items,
   empty parts included: contexts of FSDP compare who was about to write. */
shoal_status items_mutable_part(shoal_items *items, size_t index, struct item_part *part_out);

/* Numbers and strings, in the order of adding. */
enum item_value_kind {
    ITEM_INTEGER,
    ITEM_REAL,
    ITEM_STRING
};
struct item_value {
    enum item_value_kind kind;
    const char *name;
    void *value;  /* int64_t, double or char */
    size_t bytes; /* of a string's memory */
};
size_t items_n_values(const shoal_items *items);
const struct item_value *items_value(const shoal_items *items, size_t index);

/* Calls all functions of shoal_items_on_loaded; the first failure is its own. */
shoal_status items_loaded(const shoal_items *items);

#endif
