/* SPDX-License-Identifier: MIT */
/* Compares the lists of items of all ranks before a save or a load, and finds the first difference. */
#ifndef CHECKPOINT_RANKS_LIST_H
#define CHECKPOINT_RANKS_LIST_H

#include "checkpoint/items/items.h"
#include "shoal/group.h"

/*
 * Collective. Lists are the same if they have the same sections, names, dtypes, shapes and aliases of tensors, of
 * which the same may be missing, and the same names and kinds of numbers and strings, in the same order. Otherwise all
 * ranks get SHOAL_ERR_MISMATCH, with the first difference of the first rank whose list differs from rank 0's.
 *
 * Every rank compares the bytes of rank 0's list with its own.
 */
shoal_status list_agree(shoal_group *group, const shoal_items *items);

#endif
