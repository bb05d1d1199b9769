/* SPDX-License-Identifier: MIT */
/*
 * Items: what a program wants to save, and what it loads into. A list of named tensors, of which each rank has all or
 * a part, and of numbers and strings. Modules, contexts of FSDP and optimizers add theirs with one call each; a
 * program adds its own. Checkpoints (shoal/checkpoint.h) save a list and load into one.
 *
 *     shoal_items *items;
 *     status = shoal_items_create(&items);
 *     status = shoal_items_add_module(items, "", model);
 *     status = shoal_nn_optimizer_add_items(optimizer, items);         moments, under the paths of their parameters
 *     status = shoal_items_add_integer(items, "epoch", &epoch);
 *
 * A name belongs to a section: "model", "optimizer" or one of the program's own. Sections keep names apart, and are
 * files of their own in checkpoints that other tools read. Numbers and strings have one section, which needs no name.
 *
 * A list borrows: tensors are referenced, but memory that was given as an address stays the caller's, and must live
 * as long as the list is used. A list describes parameters as they are when it is used, not when it was made: it may
 * be made once and be used for every save.
 *
 * Ownership: shoal_items_free. Names are copied.
 * Threads: one at a time for each list.
 * Errors: status and text. A call that fails has added nothing.
 */
#ifndef SHOAL_ITEMS_H
#define SHOAL_ITEMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/fsdp_unit.h"
#include "shoal/module.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_items shoal_items;

#define SHOAL_SECTION_MODEL "model"
#define SHOAL_SECTION_OPTIMIZER "optimizer"
/* The longest name of a section: letters, digits, '_' and '-'. */
#define SHOAL_MAX_SECTION_NAME 63

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_create(shoal_items **items_out);
/* NULL is allowed. */
SHOAL_API void shoal_items_free(shoal_items *items);

/* Tensors ---------------------------------------------------------------------------------------------------- */

/*
 * One tensor, or the part of one that this rank has: `length` indices from `offset` on along dimension `dim`. All
 * ranks of the group that saves have an item of the same name, dtype and shape; their parts together are the whole,
 * and ranks whose parts are the same have the same values. A part may be empty.
 */
typedef struct shoal_item {
    size_t struct_size;  /* sizeof(shoal_item) */
    const char *section; /* NULL: SHOAL_SECTION_MODEL */
    const char *name;
    shoal_dtype dtype;
    int n_dims;           /* 0: a single number */
    const int64_t *shape; /* of the whole */
    int dim; /* which dimension is cut; -1: none, this rank has all of it, and the next two are 0 */
    int64_t offset;
    int64_t length;
    /* The part, one of the two: a tensor of the part's shape (a load waits for what is in flight and counts as a
       change), or contiguous memory. */
    shoal_tensor *tensor;
    void *data;
    bool may_be_missing; /* in what is loaded: it then keeps its values */
} shoal_item;
#define SHOAL_ITEM_INIT SHOAL_SIZED(shoal_item)

/* Names are UTF-8. One that its section has already is an error, as an item, an alias or a name within a module. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add(shoal_items *items, const shoal_item *item);

/* A tensor that every rank has whole, with the same values. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_tensor(shoal_items *items, const char *section,
                                                               const char *name, shoal_tensor *tensor);

/* Another name for an item that there is: it is saved once, and either name loads. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_alias(shoal_items *items, const char *section,
                                                              const char *name, const char *alias);

/*
 * All parameters and buffers of a tree of modules in the section "model", under `prefix` followed by their paths:
 * whole ones (of a plain module, or one that shoal_ddp has wrapped), and shards of modules that are fully sharded. A
 * tied parameter is added under its first path, with the others as aliases. The module is referenced. Which tensors
 * it holds is looked up when the list is used, between calls of the module; names, dtypes and shapes must be the same
 * then. Shards of parameters that were on the meta device can be loaded into, and be saved once they were written;
 * other tensors there can neither be saved nor loaded into. Of a unit all is added: a module inside of one that has its
 * parameters in the unit is an error.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_module(shoal_items *items, const char *prefix,
                                                               shoal_module *module);

/* All parameters of a context, by their names, which must be there and differ. The context must outlive the list. For
   the context a load is what shoal_fsdp_load is: between steps, and not between a forward and its backward. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_fsdp(shoal_items *items, const char *prefix,
                                                             shoal_fsdp *fsdp);

/* Numbers and strings ---------------------------------------------------------------------------------------- */

/* Where a number or string is: read by a save, on the group's first rank, and written by a load, on every rank. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_integer(shoal_items *items, const char *name,
                                                                int64_t *value);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_real(shoal_items *items, const char *name,
                                                             double *value);
/* At most bytes - 1 characters of UTF-8 and a zero; a longer one in a checkpoint is an error of the load. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_string(shoal_items *items, const char *name,
                                                               char *value, size_t bytes);

/* Moves everything of another list, which is empty afterwards, to the end: for whoever adds several items, all of them
   or none. A name that both have is an error, and changes neither. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_append(shoal_items *items, shoal_items *from);

/* What is in a list -------------------------------------------------------------------------------------------- */

/* Tensors, without aliases, in the order of adding. */
SHOAL_API size_t shoal_items_count(const shoal_items *items);
/* SHOAL_ERR_INVALID for a number that is not within 0..count-1. Strings and shape live until the list is changed. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_get(const shoal_items *items, size_t index,
                                                        shoal_item *item_out);
/* The item of that section and name, or of that tensor; -1: none. An alias finds its item. */
SHOAL_API int64_t shoal_items_find(const shoal_items *items, const char *section, const char *name);
SHOAL_API int64_t shoal_items_find_tensor(const shoal_items *items, const shoal_tensor *tensor);

/*
 * A function that a load calls on every rank once all values are there, in the order of adding, and that may refuse
 * them: for whoever keeps something that depends on values. A refusal is the error of the load; the other functions are
 * called all the same, and what was there before is not brought back. `destroy` is called when the list ends, and may
 * be NULL.
 */
typedef shoal_status (*shoal_items_loaded)(void *context);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_on_loaded(shoal_items *items, shoal_items_loaded function,
                                                              void *context, void (*destroy)(void *context));

SHOAL_END_DECLS

#endif
