/* SPDX-License-Identifier: MIT */
/* Numbers objects in the order in which they are first seen: a hash table of addresses. */
#ifndef MODULE_NUMBERS_H
#define MODULE_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/status.h"

struct number_cell {
    const void *object; /* NULL: free */
    size_t number;
};

/* A table of zeros is empty. */
struct numbers {
    struct number_cell *cells;
    size_t n_cells; /* zero or a power of two */
    size_t n_objects;
};

/* The number of an object. A new object gets the next number. */
shoal_status numbers_get(struct numbers *numbers, const void *object, size_t *number_out, bool *is_new_out);

void numbers_clear(struct numbers *numbers);

#endif
