/* SPDX-License-Identifier: MIT */
/*
 * Checksums of what is written and read: 64 bits (XXH3, seed 0) for each block of 1 MiB, the last one shorter. They
 * find damage, not forgery. The values are the same on every machine, and belong to the format of checkpoints.
 */
#ifndef CHECKPOINT_IO_CHECKSUM_H
#define CHECKPOINT_IO_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

#define CHECKSUM_BLOCK_BYTES ((size_t)1 << 20)

/* Blocks of so many bytes. */
static inline uint64_t checksum_n_blocks(uint64_t bytes)
{
    return bytes / CHECKSUM_BLOCK_BYTES + (bytes % CHECKSUM_BLOCK_BYTES != 0);
}

/* The sum of one block, which is in memory. */
uint64_t checksum_block(const void *data, size_t bytes);

/* The sums of bytes that come one after another, in portions of any size. All zeros at first. */
struct checksums {
    uint64_t *sums; /* of the blocks that are complete */
    size_t n_sums;
    size_t capacity;
    void *state;        /* of the block that is not; NULL if none was ever needed */
    size_t state_bytes; /* of that block, so far */
};

/* On failure nothing was added. */
shoal_status checksums_add(struct checksums *checksums, const void *data, size_t bytes);

/* No bytes follow: the last block is as long as it is. */
void checksums_end(struct checksums *checksums);

void checksums_free(struct checksums *checksums);

#endif
