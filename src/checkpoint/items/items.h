/* SPDX-License-Identifier: MIT */
/*
 * Lists of items (shoal/items.h), as saves and loads use them.
 *
 * Entries of modules and contexts are looked up when the list is used: items_part gives what an entry is at that
 * moment. Names, dtypes and shapes are fixed when an entry is added; a value that no longer fits them is an error.
 */
#ifndef CHECKPOINT_ITEMS_ITEMS_H
#define CHECKPOINT_ITEMS_ITEMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/io/region.h"
#include "device/address.h"
#include "shoal/items.h"
#include "shoal/tensor.h"

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
    void *data; /* of the part's first element; NULL if the part is empty, or has no memory (meta device) */
    int64_t strides[SHOAL_MAX_DIMS]; /* of the memory, in elements */
    /* If the values are on a device that the host cannot access: what `data` is then, and where they are. */
    void *copy;
    shoal_tensor *tensor;
    struct address address; /* used if there is no tensor */
    shoal_device device;
    size_t bytes;
};

void items_info(const shoal_items *items, size_t index, struct item_info *info_out);

/* Gives only where this rank's part lies in the whole. Does not wait. */
shoal_status items_region(const shoal_items *items, size_t index, struct region *region_out);

/* Gives the part for reading; waits for work in flight. SHOAL_ERR_STATE, with the item's name, if it has no
   memory, or is a shard of a parameter that was on the meta device and has not been written yet. Ranks may read
   different items. */
shoal_status items_part(const shoal_items *items, size_t index, double timeout_s, struct item_part *part_out);

/* Both may allocate a copy: call items_part_close at the end; before it, after items_mutable_part, items_part_store
   writes what was put into the copy to where the values are. Waits until a device has done what was asked of it, as long
   as op_read_bytes says (op/operand.h). */
shoal_status items_part_store(const struct item_part *part);
void items_part_close(struct item_part *part);

/* Checks whether items_mutable_part would succeed, without counting as a change. Does not check contexts of FSDP. */
shoal_status items_check_mutable(const shoal_items *items, size_t index);

/* Gives the part for writing; also waits for readers, and counts as a change of the tensor (shoal_mutable_data). Shards
   have memory even if the parameter was on the meta device; other tensors on the meta device are SHOAL_ERR_STATE. All
   ranks must call it for the same items, also for empty parts: contexts of FSDP compare which shards may be written. */
shoal_status items_mutable_part(shoal_items *items, size_t index, double timeout_s,
                                struct item_part *part_out);

/* A number for the ranks that have the same values of the item, in parts (shoal_item.owners); 0 if all ranks have. */
shoal_status items_owners(const shoal_items *items, size_t index, uint64_t *owners_out);

/* How many sets of ranks have values of an item, and which of them has this rank. */
struct item_copies {
    int n_copies; /* from 1 up */
    int mine;
};

/*
 * Makes a list that stands for `items`: in place of item i it has copies[i].n_copies items, of which this rank has a
 * part of one. The first has the name of the item, others a number behind it ("w#1"). Numbers and strings are the same;
 * functions of shoal_items_on_loaded are not in it. Free it before `items`. SHOAL_ERR_INVALID if a name is taken.
 */
shoal_status items_spread(const shoal_items *items, const struct item_copies *copies,
                          shoal_items **spread_out);

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

/* Calls all functions of shoal_items_on_loaded. Returns the first failure. */
shoal_status items_loaded(const shoal_items *items);

#endif
