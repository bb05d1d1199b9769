/* SPDX-License-Identifier: MIT */
/*
 * The table of a save or load: the tensors of the list, which is the same on all ranks, and which rank has which region
 * of each. Every rank makes the same table.
 */
#ifndef CHECKPOINT_RANKS_TABLE_H
#define CHECKPOINT_RANKS_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/items/items.h"
#include "checkpoint/io/region.h"
#include "shoal/group.h"

/* A region that some ranks have. Regions of a tensor are disjoint, not empty, and together the whole. */
struct table_region {
    struct region region;
    const int *ranks; /* ascending */
    int n_ranks;
};

struct table_tensor {
    const char *section;
    const char *name;
    shoal_dtype dtype;
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    const char *const *aliases;
    size_t n_aliases;
    struct table_region *regions; /* by begin */
    size_t n_regions;             /* 0 if the tensor has no elements */
};

struct table {
    int n_ranks;
    struct table_tensor *tensors; /* in the order of the list */
    size_t n_tensors;
    void *memory; /* of strings, regions and ranks: one owner for all of it */
};

/*
 * Collective. SHOAL_ERR_MISMATCH on all ranks if lists differ in sections, names, dtypes, shapes, aliases, or the
 * names and kinds of numbers and strings; the text has the first difference. SHOAL_ERR_INVALID on all ranks if
 * regions overlap without being equal, or if no rank has some indices; the text has the item and the ranks.
 */
shoal_status table_make(shoal_group *group, const shoal_items *items, struct table *table_out);

/* Zeros are allowed. */
void table_free(struct table *table);

#endif
