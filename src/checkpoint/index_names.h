/* SPDX-License-Identifier: MIT */
/* Names in an index: which are allowed, and tensors by their names. */
#ifndef CHECKPOINT_INDEX_NAMES_H
#define CHECKPOINT_INDEX_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "checkpoint/index.h"

#define INDEX_SECTION_CHARS 63

/* What an index calls a shoal_checkpoint_format. */
#define INDEX_N_LAYOUTS 2
extern const char *const index_layout_names[INDEX_N_LAYOUTS];

/* Letters, digits, '_', '-' and '.', at least one. SHOAL_ERR_INVALID says what is wrong. */
shoal_status index_check_section(const char *name);

/* Names a file in the directory of the index, and not the index itself. */
shoal_status index_check_file(const char *name);

/* Tensors by section and name or alias. All zeros at first. */
struct index_names {
    struct index_name {
        const struct index_tensor *tensor; /* NULL: free */
        const char *name;                  /* its own or an alias */
    } * slots;
    size_t n_slots; /* a power of two, of which half are free */
};

/* Room for n_names, which is not 0. Memory of the arena. */
shoal_status index_names_make(struct index_names *names, struct arena *arena, size_t n_names);

/* False: the section has that name already, and *other_out has it. */
bool index_names_add(struct index_names *names, const struct index_tensor *tensor, const char *name,
                     const struct index_tensor **other_out);

/* NULL: there is none. */
const struct index_tensor *index_names_find(const struct index_names *names, const char *section,
                                            const char *name);

#endif
