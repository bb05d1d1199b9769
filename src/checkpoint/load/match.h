/* SPDX-License-Identifier: MIT */
/*
 * Finds which tensor of a checkpoint belongs to which item of a list, by section and name. Aliases count on both sides:
 * tied parameters are loaded under any of their names, whether they are tied in the list or in the checkpoint.
 */
#ifndef CHECKPOINT_LOAD_MATCH_H
#define CHECKPOINT_LOAD_MATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "checkpoint/index/index.h"
#include "checkpoint/items/items.h"
#include "checkpoint/load/read.h"

struct load_rules {
    const char *section; /* only this one; NULL means all, and numbers and strings */
    bool allows_missing;
    bool allows_unexpected;
    bool casts;
    bool is_foreign; /* items of other sections than the model's, numbers and strings keep their values */
};

struct load_value {
    const struct item_value *to;
    const struct index_value *from;
};

struct load_match {
    struct load_want *wants; /* in the order of the list; without regions and parts */
    size_t n_wants;
    struct load_value *values;
    size_t n_values;
    size_t n_missing;    /* items, numbers and strings that keep their values */
    size_t n_unexpected; /* tensors */
};

/*
 * SHOAL_ERR_INVALID if something is missing, unexpected, or has another shape, dtype or kind; the text has how many
 * there are of each, and the first names. The match borrows from both. On failure nothing is left to free.
 */
shoal_status load_match_make(const shoal_items *items, const struct checkpoint_index *index,
                             const struct load_rules *rules, struct load_match *match_out);

/* Zeros are allowed. */
void load_match_free(struct load_match *match);

/* Copies numbers and strings of the checkpoint to the program's variables. */
void load_match_set_values(const struct load_match *match);

#endif
