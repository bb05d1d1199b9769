/* SPDX-License-Identifier: MIT */
/* Names in an index: checks which are allowed, and finds tensors by name. */
#ifndef CHECKPOINT_INDEX_NAMES_H
#define CHECKPOINT_INDEX_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "checkpoint/index/index.h"

#define INDEX_SECTION_CHARS 63

/* The names of shoal_checkpoint_format in an index. */
#define INDEX_N_LAYOUTS 2
extern const char *const index_layout_names[INDEX_N_LAYOUTS];

/* A section consists of letters, digits, '_', '-' and '.', at least one. SHOAL_ERR_INVALID otherwise. */
shoal_status index_check_section(const char *name);

/* Checks that the name is that of a file in the directory of the index, and not of the index itself. */
shoal_status index_check_file(const char *name);

/* Tensors by section and name or alias. All zeros at first. */
struct index_names {
    struct index_name {
        const struct index_tensor *tensor; /* NULL: free */
        const char *name;                  /* its own or an alias */
    } * slots;
    size_t n_slots; /* a power of two, of which half are free */
};

/* Makes room for n_names, which is not 0, in memory of the arena. */
shoal_status index_names_make(struct index_names *names, struct arena *arena, size_t n_names);

/* False: the section has that name already, and *other_out has it. */
bool index_names_add(struct index_names *names, const struct index_tensor *tensor, const char *name,
                     const struct index_tensor **other_out);

/* NULL: there is none. */
const struct index_tensor *index_names_find(const struct index_names *names, const char *section,
                                            const char *name);

#endif
