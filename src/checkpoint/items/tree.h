/* SPDX-License-Identifier: MIT */
/*
 * Whether the tree of a module has the parameters and buffers that it had when it was added to a list of items. The
 * list has one entry for each tensor that was there; what came later would be left out of a checkpoint, and tensors that
 * were tied or untied since would be saved under the wrong names.
 */
#ifndef CHECKPOINT_ITEMS_TREE_H
#define CHECKPOINT_ITEMS_TREE_H

#include "shoal/module.h"
#include "shoal/status.h"

/* Shared by the entries of one shoal_items_add_module, one reference each. Holds no reference on the module, which the
   entries do. */
struct items_tree;

shoal_status items_tree_create(shoal_module *module, struct items_tree **tree_out);
struct items_tree *items_tree_ref(struct items_tree *tree);
void items_tree_unref(struct items_tree *tree); /* NULL is allowed */

/* SHOAL_ERR_STATE if the tree has changed. If nothing has changed anywhere (base/changes.h), this is one comparison. */
shoal_status items_tree_check(struct items_tree *tree);

#endif
