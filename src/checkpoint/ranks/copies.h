/* SPDX-License-Identifier: MIT */
/* Finds items of which sets of ranks have values of their own: parameters of units on different meshes. */
#ifndef CHECKPOINT_RANKS_COPIES_H
#define CHECKPOINT_RANKS_COPIES_H

#include "checkpoint/items/items.h"
#include "shoal/group.h"

/*
 * Collective. Makes the list that a save or load uses instead of `items`, in which such an item is one for each set of
 * ranks (items_spread). *spread_out is NULL if there are none, which is usual, or if ranks have lists of different
 * lengths, which whoever compares lists reports. The caller frees it before `items`.
 */
shoal_status copies_make(shoal_group *group, const shoal_items *items, shoal_items **spread_out);

#endif
