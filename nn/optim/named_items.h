/* SPDX-License-Identifier: MIT */
/* Items of checkpoints whose names have two parts, joined as they are. `call` is the name of the call, for texts. */
#ifndef NN_OPTIM_NAMED_ITEMS_H
#define NN_OPTIM_NAMED_ITEMS_H

#include <stdint.h>

#include "shoal/items.h"

/* The item's own name is not looked at. */
shoal_status nn_add_item(const char *call, shoal_items *items, const char *name, const char *suffix,
                         const shoal_item *item);
shoal_status nn_add_integer(const char *call, shoal_items *items, const char *prefix, const char *name,
                            int64_t *value);
shoal_status nn_add_real(const char *call, shoal_items *items, const char *prefix, const char *name,
                         double *value);

#endif
