/* SPDX-License-Identifier: MIT */
/*
 * Memory that the ranks of a group share on one host.
 *
 * Symmetric memory: as many bytes for every rank; each can reach all the others'. Collectives whose buffers lie
 * in symmetric memory on every rank skip staging.
 * A window: one block for all ranks of the host. A gather into it is each rank writing its own part in place.
 *
 * A group whose transport has no such memory refuses both (SHOAL_ERR_UNSUPPORTED).
 *
 * Ownership: freed by each rank; the memory goes when the last has. Closing the world frees what is left. Symmetric
 * memory outlives its group: after shoal_group_close its blocks can be read and written, those of peers too, and
 * collectives on any other group use it without staging if all members of that group have a block of it. A window whose
 * group was closed can be read and freed, but not gathered into.
 * Threads: any; creating is collective and follows the order of the group's other collectives.
 * Errors: status and text; a shortage of memory is an error with sizes at creation, never a signal later.
 */
#ifndef SHOAL_WINDOW_H
#define SHOAL_WINDOW_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/group.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

/* Symmetric memory ------------------------------------------------------------------------------------- */

typedef struct shoal_symmetric shoal_symmetric;

/*
 * An allocator over it, for tensors that may be in use longer than the group they were made with:
 *
 *     shoal_symmetric_create(group, bytes, &memory);          all members, once for a large block
 *     float *gradients = shoal_symmetric_data(memory);        cut into tensors as the program likes
 *     shoal_group_all_reduce(group, gradients, gradients, count, SHOAL_F32, SHOAL_SUM);
 *     shoal_group_close(group);                               the memory stays
 *     shoal_symmetric_free(memory);                           when the last tensor in it is gone
 *
 * It does not grow: where it is too small, make another one.
 */
/* Collective: the same size on every rank, otherwise SHOAL_ERR_INVALID on all of them and the group stays usable.
   Zeroed, starts at a page. A rank that cannot have it makes it fail on all. 0 bytes are allowed: blocks that must not
   be read or written. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_symmetric_create(shoal_group *group, size_t bytes,
                                                               shoal_symmetric **symmetric_out);
SHOAL_API void *shoal_symmetric_data(shoal_symmetric *symmetric);
/* The block of another rank of the group, mapped here; NULL, with an error text, for a rank out of range. */
SHOAL_API void *shoal_symmetric_peer(shoal_symmetric *symmetric, int group_rank);
SHOAL_API size_t shoal_symmetric_bytes(const shoal_symmetric *symmetric);
/* Local. No operation on this memory may be unfinished on this rank, and none may be started later by a peer whose
   buffers lie in its own block together with this rank's: free it on all ranks. NULL is allowed. */
SHOAL_API void shoal_symmetric_free(shoal_symmetric *symmetric);

/* Windows ---------------------------------------------------------------------------------------------- */

typedef struct shoal_window shoal_window;

/* Collective, with the same rules. `bytes` once for the whole group, zeroed. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_window_create(shoal_group *group, size_t bytes,
                                                            shoal_window **window_out);
/* Read-only. Its contents are defined between a gather's end and the release that follows it. */
SHOAL_API const void *shoal_window_data(const shoal_window *window);
SHOAL_API size_t shoal_window_bytes(const shoal_window *window);
/* Local. No gather into it may be unfinished on this rank. NULL is allowed. */
SHOAL_API void shoal_window_free(shoal_window *window);

/* Something a rank writes into the window: `count` elements from `data` to a byte offset, cast on the way. */
typedef struct shoal_window_piece {
    const void *data;
    size_t count;
    shoal_dtype data_dtype;
    shoal_dtype window_dtype;
    size_t offset; /* in bytes */
} shoal_window_piece;

/*
 * Collective on the window's group. Begins the next generation of the window: waits until every rank has released
 * the one before, writes this rank's pieces, and ends when all ranks have written theirs. Only then are the calls
 * compared: what lies in a window before its gather has ended is nobody's data. Ranks may write different numbers of
 * pieces; what several of them write to the same place is undefined. `label` (such as the number of a layer) must be
 * the same on all ranks.
 *
 * A generation may be started before this rank has released the one before; the blocking call would then wait for its
 * own caller and is SHOAL_ERR_STATE.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_window_gather(shoal_window *window,
                                                            const shoal_window_piece *pieces, size_t n_pieces,
                                                            uint64_t label);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_window_gather_start(shoal_window *window,
                                                                  const shoal_window_piece *pieces,
                                                                  size_t n_pieces, uint64_t label,
                                                                  shoal_work **work_out);

/*
 * Says that this rank has read what it needs of the oldest generation that it has not released yet. Releasing before
 * the gather has finished means that this rank will not read that generation. Never blocks. SHOAL_ERR_STATE if no
 * gather was begun, or its generation was released already.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_window_release(shoal_window *window);

SHOAL_END_DECLS

#endif
