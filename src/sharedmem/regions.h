/* SPDX-License-Identifier: MIT */
/*
 * Symmetric memory that a world knows: address ranges of this rank and where the peers' lie. Collectives ask
 * whether a buffer lies in one, and where a peer's buffer of the same region is.
 *
 * Threads: any. A region found stays valid as long as the caller's operation may use it: freeing symmetric memory
 * that an unfinished operation uses is an error of the caller (shoal/window.h).
 */
#ifndef SHAREDMEM_REGIONS_H
#define SHAREDMEM_REGIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct regions;

/* A part of one. id 0: no region. */
struct region_place {
    uint32_t id;
    uint64_t offset; /* of the buffer in its rank's block */
};

struct regions *regions_create(void); /* NULL: no memory */
void regions_free(struct regions *regions);

/*
 * Adds one: block k of the segment belongs to world_ranks[k], lies at base + k * stride and has `bytes` bytes; own
 * is the caller's k. `id` is not 0 and the same on all members. SHOAL_ERR_STATE when it is known already.
 */
shoal_status regions_add(struct regions *regions, uint32_t id, char *base, size_t stride, size_t bytes,
                         const int *world_ranks, int n_ranks, int own);
void regions_remove(struct regions *regions, uint32_t id);

/*
 * An id for something new that `world_rank` leads: no other rank proposes it, and nothing known here has it. (After
 * 65535 of them numbers come again; a member that still has the old one says so in regions_add.)
 */
uint32_t regions_propose_id(struct regions *regions, int world_rank);

/* Where [buffer, buffer + bytes) lies; id 0 when not wholly inside the caller's block of one region. */
struct region_place regions_find(struct regions *regions, const void *buffer, size_t bytes);

/* Whether all these ranks had a block when the region was made: then each of them can reach what lies in it. */
bool regions_cover(struct regions *regions, uint32_t id, const int *world_ranks, int n_ranks);

/*
 * This process's address of a peer's place; NULL when the region is unknown here, the rank is not in it, or
 * [offset, offset + bytes) is not inside the block. (What a peer wrote is not trusted.)
 */
void *regions_peer(struct regions *regions, struct region_place place, int world_rank, size_t bytes);

#endif
