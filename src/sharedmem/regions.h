/* SPDX-License-Identifier: MIT */
/*
 * The symmetric memory of a world: address ranges of this rank, and where the peers' blocks are mapped. Collectives ask
 * whether a buffer lies in one, and where a peer's buffer of the same region is.
 *
 * Threads: any. A region that was found stays valid as long as the caller's operation may use it: freeing symmetric
 * memory that an unfinished operation uses is an error of the program (shoal/window.h).
 */
#ifndef SHAREDMEM_REGIONS_H
#define SHAREDMEM_REGIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct regions;

/* A part of a region. If `id` is 0, there is no region. */
struct region_place {
    uint32_t id;
    uint64_t offset; /* of the buffer in its rank's block */
};

struct regions *regions_create(void); /* NULL if memory runs out */
void regions_free(struct regions *regions);

/*
 * Adds a region. Block k of the segment belongs to world_ranks[k], lies at base + k * stride and has `bytes` bytes;
 * `own` is the caller's k. `id` is not 0 and is the same on all members. SHOAL_ERR_STATE when a region with this id is
 * known.
 */
shoal_status regions_add(struct regions *regions, uint32_t id, char *base, size_t stride, size_t bytes,
                         const int *world_ranks, int n_ranks, int own);
void regions_remove(struct regions *regions, uint32_t id);

/*
 * Returns an id for a new region whose first member is `world_rank`. No other rank proposes the same id, and no region
 * known here has it. After 65535 proposals ids repeat; regions_add fails on a member that still has a region with that
 * id.
 */
uint32_t regions_propose_id(struct regions *regions, int world_rank);

/* Where [buffer, buffer + bytes) lies; id 0 when not wholly inside the caller's block of one region. */
struct region_place regions_find(struct regions *regions, const void *buffer, size_t bytes);

/* Whether all these ranks had a block when the region was made: then each of them can reach what lies in it. */
bool regions_cover(struct regions *regions, uint32_t id, const int *world_ranks, int n_ranks);

/*
 * Returns the address in this process of a peer's place. Returns NULL when the region is unknown here, when the rank is
 * not in it, or when [offset, offset + bytes) is not inside the block: what a peer wrote is not trusted.
 */
void *regions_peer(struct regions *regions, struct region_place place, int world_rank, size_t bytes);

#endif
