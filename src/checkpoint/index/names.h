/* SPDX-License-Identifier: MIT */
/* Names in an index: checks which are allowed, and finds tensors by name. */
#ifndef CHECKPOINT_INDEX_NAMES_H
#define CHECKPOINT_INDEX_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/map.h"
#include "checkpoint/index/index.h"

#define INDEX_SECTION_CHARS 63

/* The names of shoal_checkpoint_format in an index. */
#define INDEX_N_LAYOUTS 2
extern const char *const index_layout_names[INDEX_N_LAYOUTS];

/* A section consists of letters, digits, '_', '-' and '.', at least one. SHOAL_ERR_INVALID otherwise. */
shoal_status index_check_section(const char *name);

/* Checks that the name is that of a file in the directory of the index, and not of the index itself. */
shoal_status index_check_file(const char *name);

/* A map from hashes of sections and names or aliases to indices of index->tensors. */

/* Adds a name of a tensor, for which there is room. Returns false if the section has that name already, and *other_out
   has it. */
bool index_names_add(struct map *names, const struct checkpoint_index *index, size_t number, const char *name,
                     const struct index_tensor **other_out);

/* Returns NULL if there is none. */
const struct index_tensor *index_names_find(const struct map *names, const struct checkpoint_index *index,
                                            const char *section, const char *name);

#endif
