/* SPDX-License-Identifier: MIT */
/*
 * The inside of a list of items: its entries, and where the values of an entry are. An entry comes from one of several
 * sources (the program, a module, a context of FSDP), which can be asked at any time what the entry is now.
 *
 * To add several entries, all or none, the caller makes a list of them, and items_list_move adds it to the other one.
 */
#ifndef CHECKPOINT_ITEMS_LIST_H
#define CHECKPOINT_ITEMS_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/map.h"
#include "checkpoint/items/items.h"
#include "checkpoint/items/tree.h"
#include "shoal/items.h"

/* What an entry is now: which part this rank has, and its values in either `tensor` or `data`. */
struct item_place {
    int dim; /* -1 if the rank has all of it; offset and length are 0 then */
    int64_t offset;
    int64_t length;
    shoal_tensor *tensor;
    void *data;          /* contiguous */
    shoal_device device; /* of `data` */
};

/* What a place is wanted for. */
enum item_use {
    ITEM_PLACE, /* only where it is */
    ITEM_READ,
    ITEM_WRITE
};

struct item_entry;

struct item_source {
    /* Gives the entry as it is now. The caller checks shape and dtype of the tensor. For ITEM_PLACE `data` may be
       NULL. */
    shoal_status (*look)(struct item_entry *entry, enum item_use use, struct item_place *place_out);
    /* Frees what the entry holds for its source. It is NULL if there is nothing to free. */
    void (*release)(struct item_entry *entry);
};

struct item_entry {
    const struct item_source *source;
    char *section; /* owns the memory of both strings */
    const char *name;
    shoal_dtype dtype;
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    bool may_be_missing;
    char **aliases;
    size_t n_aliases;
    size_t alias_capacity;

    /* Of the program: always the same. */
    struct item_place place;
    /* Of a module. */
    shoal_module *module;
    const char *path;        /* in `name` */
    struct items_tree *tree; /* one reference */
    bool is_buffer;
    /* Of a module, once its shard was found, or of a context. */
    shoal_fsdp_param *param;
    shoal_fsdp *fsdp;
    int id;
    uint64_t owners; /* without a parameter: as in shoal_item */
    /* Of a list that stands for another one (spread.c): that list, or NULL if this rank has nothing of the item; and the
       number of the item there. */
    const shoal_items *original;
    size_t number;
};

struct item_hook {
    shoal_items_loaded function;
    void *context;
    void (*destroy)(void *context);
};

struct shoal_items {
    struct item_entry *entries;
    size_t n_entries;
    size_t entry_capacity;
    struct item_value *values;
    size_t n_values;
    size_t value_capacity;
    struct item_hook *hooks;
    size_t n_hooks;
    size_t hook_capacity;
    struct map entry_names; /* from hashes of sections and names or aliases to indices of `entries` */
    struct map value_names; /* from hashes of names to indices of `values` */
    /* A cache: which tensor an entry had when somebody asked for a tensor. It may have another one by now. */
    struct map tensors;
};

/* A section of names for numbers and strings, which no tensor can have. */
#define ITEMS_VALUES ""

/* Removes everything. */
void items_list_clear(shoal_items *items);

/* Finds the entry, or in the section ITEMS_VALUES the value, that has the name. Returns false if nothing has it. */
bool items_list_find(const shoal_items *items, const char *section, const char *name, size_t *number_out);

/* Whether the name can be given to something new. `argument` names it in texts. */
shoal_status items_list_check_name(const shoal_items *items, const char *section, const char *argument,
                                   const char *name);
shoal_status items_list_check_section(const char *section);

/*
 * Adds an entry; its name is prefix followed by path. The list then owns its strings and what its source needs. On
 * failure these stay the caller's, and nothing has changed. The shape must have been checked.
 */
shoal_status items_list_add(shoal_items *items, const char *section, const char *prefix, const char *path,
                            const struct item_entry *entry);

/* Adds another name of an entry. */
shoal_status items_list_add_alias(shoal_items *items, size_t number, const char *prefix, const char *path);

/* Adds a number or string. Its name must have been checked, and is copied. */
shoal_status items_list_add_value(shoal_items *items, const struct item_value *value);

/* Moves everything from one list to the end of another; `from` is then empty. SHOAL_ERR_INVALID if both have the same
   name; the text has the first one. On failure nothing has changed. */
shoal_status items_list_move(shoal_items *items, shoal_items *from);

/* Gives what the entry is now, after checking that its tensor has the dtype of the entry and the shape of the
   part. Errors name the item. */
shoal_status items_list_look(const shoal_items *items, size_t number, enum item_use use,
                             struct item_place *place_out);

/* "model 'a.weight'": for texts. */
#define ITEMS_TEXT_BYTES 192
const char *items_list_format(char text[ITEMS_TEXT_BYTES], const char *section, const char *name);

#endif
