/* SPDX-License-Identifier: MIT */
/* The communication of one gradient: whether it can be joined with others, and with which. */
#ifndef GRAPH_PASSES_DDP_BLOCK_H
#define GRAPH_PASSES_DDP_BLOCK_H

#include "graph/passes/ddp_blocks.h"

/* Whether `start` begins a block. Fills in the fields up to `limit`. */
bool ddp_block_match(const struct accesses *accesses, struct shoal_node *start, struct ddp_block *block_out);

/* The hash of a block's key, and whether two blocks have equal keys, so that they can be joined. */
uint64_t ddp_block_hash(const struct ddp_block *block);
bool ddp_block_has_key_of(const struct ddp_block *a, const struct ddp_block *b);

#endif
