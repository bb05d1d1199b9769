/* SPDX-License-Identifier: MIT */
/*
 * Memory that units use in turn: a pool of blocks, each of which one unit has at a time.
 *
 *   windows   where full parameters are gathered: one window per host for each block
 *   buffers   where gradients are reduced: symmetric memory, so one piece per rank for each block; or plain memory, if
 *             there is nobody to reduce with or the transport has no other
 *
 * A unit gets the smallest free block that is large enough, unless more than half of that would lie idle. Then, and
 * when no free block is large enough, the pool makes a block of the unit's own size in place of the largest free block
 * that is too small. Before it would hold more than its limit, it uses a block that is far too large, or gives up
 * further free blocks. So one large unit does not make all blocks large.
 *
 * A loop that repeats itself must not make memory in every step. When the pool has to make a block of a size that it
 * has given up before, it replaces nothing any more, and only gives up what the limit asks for. With that, a loop makes
 * nothing after its second step, unless its units are so many and so large that the limit decides.
 *
 * A unit may own a block (SHOAL_SHARDED_STATE: whole gradients that stay). The pool counts it and frees it at the end,
 * and leaves it alone otherwise.
 *
 * Windows and symmetric memory are made by all ranks together, and all ranks must choose the same block. The choice
 * depends on sizes and on the order of calls, which are the same on all ranks, and never on time.
 */
#ifndef PARALLEL_FSDP_ENGINE_STATE_POOL_H
#define PARALLEL_FSDP_ENGINE_STATE_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include "device/address.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "shoal/group.h"
#include "shoal/window.h"
#include "transport/purpose.h"

struct fsdp_block {
    shoal_device device;
    size_t bytes;
    bool is_taken;
    bool is_owned;              /* by a unit that takes it again and again (fsdp_block_own) */
    size_t n_landed;            /* gradients of shards that lie in it; it stays taken until they are gone */
    shoal_window *window;       /* in a pool of windows */
    int fault_number;           /* of the window (base/explain_faults.h) */
    shoal_symmetric *symmetric; /* in a pool of buffers; NULL if the block is plain memory */
    struct address data;        /* in a pool of buffers */
};

enum fsdp_pool_kind {
    FSDP_WINDOWS,
    FSDP_BUFFERS
};

struct fsdp_pool {
    enum fsdp_pool_kind kind;
    shoal_device device;
    shoal_group *group;         /* NULL if the pool has buffers of plain memory */
    struct fsdp_block **blocks; /* the address of a block does not change */
    size_t n_blocks;
    size_t capacity;
    size_t bytes;     /* of all blocks */
    size_t *given_up; /* sizes of blocks that were given up, each once */
    size_t n_given_up;
    size_t given_up_capacity;
    bool keeps;       /* one of these sizes was asked for again: blocks are not replaced any more */
    size_t n_sharing; /* ranks that share a block: its bytes are divided by this when they are counted */
    struct fsdp_memory *memory; /* where blocks are counted */
};

void fsdp_pool_init(struct fsdp_pool *pool, enum fsdp_pool_kind kind, shoal_group *group,
                    struct fsdp_memory *memory);
/* Says where blocks lie; the CPU if it is not called. Call before the first is made. */
void fsdp_pool_set_device(struct fsdp_pool *pool, shoal_device device);
void fsdp_pool_free(struct fsdp_pool *pool);
/* Call when the world is closed: the group is gone, and windows and symmetric memory will be. */
void fsdp_pool_forget(struct fsdp_pool *pool);

/* Takes the smallest free block that is large enough and not more than twice as large. Returns NULL if there is
   none. */
struct fsdp_block *fsdp_pool_take(struct fsdp_pool *pool, size_t bytes);
/*
 * Makes a block when fsdp_pool_take has found none, by the rules at the head of this file. Collective, unless the
 * pool has to use a block that is far too large; all ranks pass the same purpose. A failure is one on all ranks, and
 * the blocks that were to be replaced are then gone on all of them.
 */
shoal_status fsdp_pool_make(struct fsdp_pool *pool, size_t bytes, size_t limit, const struct purpose *purpose,
                            struct fsdp_block **block_out);
/* Gives the block to one unit for good: no other unit takes or replaces it. All ranks must call this in the
   same order. */
void fsdp_block_own(struct fsdp_block *block);
/* Undoes fsdp_block_own: any unit may take the block again, and the pool may give it up. */
void fsdp_block_disown(struct fsdp_block *block);
/* Takes a block that the unit owns. Returns false if something of the unit is still in it. */
bool fsdp_block_take(struct fsdp_block *block);

/* The unit does not need the block any more. */
void fsdp_pool_give_back(struct fsdp_block *block);
/* fsdp_pool_give_back for a window in which something was gathered. */
shoal_status fsdp_pool_release_window(struct fsdp_block *block);

/* fsdp_block_keep: the gradient of a shard stays in the block, so it stays taken. fsdp_block_drop: that gradient is
   gone. */
void fsdp_block_keep(struct fsdp_block *block);
void fsdp_block_drop(struct fsdp_block *block);

#endif
