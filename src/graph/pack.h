/* SPDX-License-Identifier: MIT */
/* Items with a size and a time, packed into few bytes: those that are there at a common time share none. */
#ifndef GRAPH_PACK_H
#define GRAPH_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct pack_item {
    size_t bytes;   /* above 0 */
    uint32_t first; /* from then */
    uint32_t last;  /* to then, both included */
    size_t *offset; /* where it is put */
};

/* Writes the offsets, and how many bytes they need. Sorts the items. */
shoal_status pack(struct pack_item *items, size_t n_items, size_t *bytes_out);

#endif
