/* SPDX-License-Identifier: MIT */
/*
 * Items: a list of what a program saves in a checkpoint, and loads from one (shoal/checkpoint.h). Items are named
 * tensors, of which each rank has the whole or a part, and named numbers and strings. Modules, contexts of FSDP and
 * optimizers add theirs with one call each; a program adds its own.
 *
 *     shoal_items *items;
 *     status = shoal_items_create(&items);
 *     status = shoal_items_add_module(items, "", model);
 *     status = shoal_nn_optimizer_add_items(optimizer, items);         moments, named after their parameters
 *     status = shoal_items_add_integer(items, "epoch", &epoch);
 *
 * Tensors belong to sections: "model", "optimizer" or one of the program's own. The same name may be used in two
 * sections. Checkpoints that other tools read have a file per section. Numbers and strings have a section of their own,
 * without a name.
 *
 * A list may be made once and used for every save: what parameters are is looked up when the list is used. Making one
 * is local; all ranks that save or load together make the same list.
 *
 * Ownership: shoal_items_free frees the list. It references tensors and modules. Memory that was given by its address,
 * and contexts of FSDP, stay the caller's and must live as long as the list is used. Names are copied.
 * Threads: one at a time per list.
 * Errors: status and text. A call that fails has added nothing. SHOAL_ERR_INVALID: a wrong argument, or a name that its
 * section has already. SHOAL_ERR_UNSUPPORTED: a c128 tensor, which the file format does not have.
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
/* Names of sections have 1 to 63 letters, digits, '_' and '-'. */
#define SHOAL_MAX_SECTION_NAME 63

/* Makes an empty list. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_create(SHOAL_GIVES shoal_items **items_out);
/* Frees a list; what it names stays. NULL is allowed. */
SHOAL_API void shoal_items_free(SHOAL_TAKES shoal_items *items);

/* Tensors ---------------------------------------------------------------------------------------------------- */

/*
 * A tensor, or the part of one that this rank has: `length` indices from `offset` on along dimension `dim`. All ranks
 * of the group that saves have an item of the same name, dtype and shape. Their parts together are the whole; ranks
 * that have the same part have the same values in it, unless `owners` says otherwise. A part may be empty.
 */
typedef struct shoal_item {
    size_t struct_size;  /* sizeof(shoal_item) */
    const char *section; /* NULL means SHOAL_SECTION_MODEL */
    const char *name;
    shoal_dtype dtype;
    int n_dims;           /* of the whole; 0 for a single number */
    const int64_t *shape; /* of the whole */
    int dim; /* along which ranks have parts; -1 if this rank has the whole, and offset and length are 0 */
    int64_t offset;
    int64_t length;
    /* The memory of the part, one of the two: a tensor of the part's shape, with any strides (a load waits for
       operations in flight, and counts as a change); or the address of contiguous memory, aligned for the dtype. */
    shoal_tensor *tensor;
    void *data;
    bool may_be_missing; /* a load leaves it alone, instead of failing, if the checkpoint does not have it */
    /* A number for the ranks that have the item in common, from 1 up; 0 means all ranks. Ranks with different numbers
       have values of their own (an expert): it is saved once for each number, in the order of ranks, as "name",
       "name#1", "name#2" and so on. A parameter of FSDP has the number of its mesh (shoal_shard_layout). */
    uint64_t owners;
    shoal_device
        device; /* where `data` is; 0 is the CPU. Saves and loads copy what is elsewhere to host memory */
} shoal_item;
#define SHOAL_ITEM_INIT SHOAL_SIZED(shoal_item)

/* Adds an item. Its name is UTF-8 and not yet used in its section: neither by an item, nor an alias, nor a parameter of
   a module that was added. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add(shoal_items *items, const shoal_item *item);

/* Adds a tensor that every rank has whole, with the same values. If `section` is NULL, it is "model". */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_tensor(shoal_items *items, const char *section,
                                                               const char *name, shoal_tensor *tensor);

/* Gives an item of the list a second name. It is saved once, under its first name, and loaded from either. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_alias(shoal_items *items, const char *section,
                                                              const char *name, const char *alias);

/*
 * Adds all parameters and buffers of a module and of the modules inside it to the section "model", named `prefix` and
 * their path. Parameters may be whole (also if shoal_ddp wrapped the module) or shards (shoal_fully_shard). A tied
 * parameter is added under its first path, with its other paths as aliases. The tensors are looked up when the list is
 * used; use it between calls of the module. Names, dtypes and shapes must be unchanged then, and no parameter or buffer
 * may have been added, tied or untied (SHOAL_ERR_STATE otherwise: make a new list).
 *
 * A shard of a parameter that was made on the meta device can be loaded into, and saved once it has been written. Other
 * tensors on the meta device can neither be saved nor loaded into. SHOAL_ERR_INVALID: the module is inside a unit that
 * has its parameters; add the module that was given to shoal_fully_shard.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_module(shoal_items *items, const char *prefix,
                                                               shoal_module *module);

/*
 * Adds all parameters of a context of FSDP, named `prefix` and the parameter's name; each must have one, and they must
 * differ. A load counts as shoal_fsdp_load: make it between steps, not between a forward pass and its backward pass.
 * Keep the context until the list is freed.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_fsdp(shoal_items *items, const char *prefix,
                                                             shoal_fsdp *fsdp);

/*
 * Adds an array of the program that is cut like a parameter of FSDP: a moment of the program's own optimizer, or a
 * master copy. `data` is this rank's part of it: contiguous and aligned memory of `dtype`, which need not be the
 * parameter's, with as many elements as the parameter's shard (shard_count of shoal_shard_layout), in its order. It may
 * be NULL if that is 0. The item is an array of the whole parameter's shape, and can be loaded on any number of ranks,
 * however these cut the parameter. If `section` is NULL, it is "model".
 *
 *     status = shoal_items_add_fsdp_array(items, SHOAL_SECTION_OPTIMIZER, "w0.momentum", shoal_fsdp_param_of(f, w0),
 *                                         SHOAL_F32, momentum);
 *
 * All ranks add the array, also those whose part is empty; replicas of a shard have the same values. A load writes to
 * the memory, which must live as long as the list is used. The list does not keep the parameter: its context or module
 * may be freed first.
 *
 * SHOAL_ERR_INVALID: there is no such parameter; `data` is NULL although the part has elements, or is not aligned; or
 * it holds the values of the parameter itself, which shoal_items_add_fsdp or shoal_items_add_module adds.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_fsdp_array(shoal_items *items, const char *section,
                                                                   const char *name, shoal_fsdp_param *param,
                                                                   shoal_dtype dtype, void *data);

/* Numbers and strings ---------------------------------------------------------------------------------------- */

/* Add a number or string by its address. A save reads it on the group's first rank; a load writes it on every rank. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_integer(shoal_items *items, const char *name,
                                                                int64_t *value);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_real(shoal_items *items, const char *name,
                                                             double *value);
/* `value` has room for `bytes` bytes: a text in UTF-8 and a zero. If a checkpoint has a longer text, the load fails. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_add_string(shoal_items *items, const char *name,
                                                               char *value, size_t bytes);

/* Moves everything from another list to the end of this one; the other is empty afterwards. Use it to add several
   items, all of them or none. SHOAL_ERR_INVALID: both have an item of the same name; neither list is changed. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_append(shoal_items *items, shoal_items *from);

/* What is in a list -------------------------------------------------------------------------------------------- */

/* The number of tensors, which are numbered from 0 in the order in which they were added. Aliases do not count. */
SHOAL_API size_t shoal_items_count(const shoal_items *items);
/* Describes tensor number `index`. Strings and shape belong to the list and live until it is changed.
   SHOAL_ERR_INVALID: there is no such tensor. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_get(const shoal_items *items, size_t index,
                                                        shoal_item *item_out);
/* Return the number of the item with that section (NULL means "model") and name, or of the item of that tensor; -1 if
   there is none. An alias finds its item. */
SHOAL_API int64_t shoal_items_find(const shoal_items *items, const char *section, const char *name);
SHOAL_API int64_t shoal_items_find_tensor(const shoal_items *items, const shoal_tensor *tensor);

/*
 * Adds a function that a load calls on every rank when all values have been loaded, in the order in which functions
 * were added. Use it if something is derived from the values, or to check them. If it returns an error, the load fails
 * with it; the other functions are still called, and the values stay loaded. `destroy`, which may be NULL, is called
 * with the context when the list is freed.
 */
typedef shoal_status (*shoal_items_loaded)(void *context);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_items_on_loaded(shoal_items *items, shoal_items_loaded function,
                                                              void *context, void (*destroy)(void *context));

SHOAL_END_DECLS

#endif
