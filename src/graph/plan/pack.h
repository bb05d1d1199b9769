/* SPDX-License-Identifier: MIT */
/* Packs items, which have a size and a lifetime, into few bytes: items whose lifetimes overlap share no byte. */
#ifndef GRAPH_PLAN_PACK_H
#define GRAPH_PLAN_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct pack_item {
    size_t bytes;   /* above 0 */
    uint32_t first; /* beginning of its lifetime */
    uint32_t last;  /* end of its lifetime, included */
    size_t *offset; /* where the offset is written to */
};

/* Sets the offsets of all items, and gives how many bytes they need. */
shoal_status pack(struct pack_item *items, size_t n_items, size_t *bytes_out);

#endif
