/* SPDX-License-Identifier: MIT */
/* One gradient's communication: whether it is of the form that can be joined, and with which others. */
#ifndef GRAPH_DDP_BLOCK_H
#define GRAPH_DDP_BLOCK_H

#include "graph/ddp_blocks.h"

/* True when `start` begins a block; all fields but the lists are filled in. */
bool ddp_block_match(const struct accesses *accesses, struct shoal_node *start, struct ddp_block *block_out);

/* Blocks of one key can be joined. */
uint64_t ddp_block_hash(const struct ddp_block *block);
bool ddp_block_has_key_of(const struct ddp_block *a, const struct ddp_block *b);

#endif
