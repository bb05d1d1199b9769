/* SPDX-License-Identifier: MIT */
/*
 * Memory that ranks of a group share. There are two kinds:
 *
 * Symmetric memory has a block of the same size for every rank of a group on one host. Each rank can read and write the
 * blocks of all others. Collectives whose buffers lie in symmetric memory on every rank copy less: they skip staging.
 *
 * A window is one block for all ranks of a host, into which a value is gathered whose parts the ranks have: each rank
 * writes its own part, and all read the whole. It exists once per host, not once per rank. FSDP gathers parameters into
 * windows. A group over several hosts has one block on each of them.
 *
 * Groups over shared memory (transport "shm") have both; groups over several hosts have windows if shared memory is
 * used within the hosts; groups over messages alone (transports "socket" and "mpi") have neither. Creating what a
 * group's transport does not have is SHOAL_ERR_UNSUPPORTED.
 *
 * Ownership: each rank frees its handle; the memory is freed when the last rank has done so. Closing the world frees
 * what is left. Symmetric memory outlives its group: after shoal_group_close all blocks can still be read and written,
 * and collectives on any other group use it without staging if all members of that group have a block in it. A window
 * whose group was closed can be read and freed, but not gathered into or released.
 * Threads: any. Creating is collective, in the order of the group's other collectives.
 * Errors: status and text. Creating compares with what is free, in the control groups of the process too, and commits
 * all pages. So if there is not enough memory, creating fails with the sizes; using the memory never does, and raises
 * no SIGBUS. Who lowers such a limit later may have a rank killed all the same.
 */
#ifndef SHOAL_WINDOW_H
#define SHOAL_WINDOW_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/group.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

/* Symmetric memory ------------------------------------------------------------------------------------- */

typedef struct shoal_symmetric shoal_symmetric;

/*
 * Makes symmetric memory with a block of `bytes` bytes for every rank of the group. Collective. Blocks are zeroed and
 * begin at a page. The size cannot be changed; shoal_symmetric_reserve makes memory that can grow. 0 bytes are
 * allowed; such blocks must not be read or written.
 *
 *     status = shoal_symmetric_create(group, bytes, &memory);         on all members, once for a large block
 *     float *gradients = shoal_symmetric_data(memory);                divide it as you like
 *     status = shoal_group_all_reduce(group, gradients, gradients, count, SHOAL_F32, SHOAL_SUM);
 *     ...
 *     shoal_symmetric_free(memory);
 *
 * SHOAL_ERR_INVALID on all ranks, and the group can still be used: sizes differ, or some ranks create a window instead.
 * If one rank cannot map the memory, the call fails on all ranks with its reason.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_symmetric_create(shoal_group *group, size_t bytes, SHOAL_GIVES shoal_symmetric **symmetric_out);
/*
 * Makes symmetric memory on a device (shoal/tensor.h), as shoal_symmetric_create does in memory of the host: blocks
 * have addresses of the device, all ranks map them, and collectives on them (shoal_collective.device, or functional
 * ones) go from block to block. It cannot grow. A freed block is unmapped behind the work of the device so far.
 *
 * SHOAL_ERR_INVALID on all ranks, and the group can still be used: ranks have different devices. SHOAL_ERR_UNSUPPORTED:
 * ranks cannot share memory of the device, or the group's transport has no symmetric memory there.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_symmetric_create_on(
    shoal_group *group, size_t bytes, shoal_device device, SHOAL_GIVES shoal_symmetric **symmetric_out);
/*
 * Makes symmetric memory that can grow: as shoal_symmetric_create, with addresses for reserve_bytes bytes in every
 * block, of which `bytes` can be used at first. Only these take memory. Collective.
 *
 *     status = shoal_symmetric_reserve(group, bytes, (size_t)64 << 30, &memory);
 *     ...
 *     status = shoal_symmetric_grow(group, memory, 2 * bytes);        addresses and contents stay
 *
 * A program must not read or write behind the bytes that a block has: such pages take memory that nobody has compared
 * with what is free. Each process keeps a descriptor open for the memory; a program that closes descriptors which it
 * does not know can go on using the memory, but not let it grow.
 *
 * SHOAL_ERR_INVALID on all ranks, and the group can still be used: ranks differ in a size, or reserve_bytes is less
 * than bytes.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_symmetric_reserve(
    shoal_group *group, size_t bytes, size_t reserve_bytes, SHOAL_GIVES shoal_symmetric **symmetric_out);
/*
 * Lets all blocks grow to `bytes` bytes, which are compared with what is free, and committed, as if they were created.
 * Blocks stay where they are, with what is in them; what is new is zeroed. Collective. `group` has the ranks of the
 * group that the memory was made for, in any order. The size that the blocks have is allowed, and changes nothing. No
 * other call on this memory may be made meanwhile on this rank.
 *
 * After an error this rank's size is the old one. Unless a rank has died meanwhile, so is that of all others, and the
 * group can still be used. SHOAL_ERR_INVALID: ranks differ in the size or the memory, or the size is less than before
 * or more than was reserved. SHOAL_ERR_STATE: on some rank a collective of the group has not ended; wait for it first.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_symmetric_grow(shoal_group *group,
                                                                              shoal_symmetric *symmetric,
                                                                              size_t bytes);
/* The caller's own block. */
SHOAL_API void *shoal_symmetric_data(shoal_symmetric *symmetric);
/* The block of any rank of the group, mapped into this process. NULL, with the reason in shoal_error_text: there is no
   such rank. Ranks order their reads and writes themselves, by a barrier for example. */
SHOAL_API void *shoal_symmetric_peer(shoal_symmetric *symmetric, int group_rank);
/* The size of one block. */
SHOAL_API size_t shoal_symmetric_bytes(const shoal_symmetric *symmetric);
/*
 * Frees this rank's handle. Not collective, but every rank calls it. Before that, operations on this memory must have
 * ended on this rank; afterwards no peer may start one whose buffers lie in this memory on all ranks. NULL is allowed.
 */
SHOAL_API void shoal_symmetric_free(SHOAL_TAKES shoal_symmetric *symmetric);

/* Windows ---------------------------------------------------------------------------------------------- */

typedef struct shoal_window shoal_window;

/* Makes a window of `bytes` bytes, zeroed, once per host. Collective; fails as shoal_symmetric_create does. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_window_create(shoal_group *group, size_t bytes, SHOAL_GIVES shoal_window **window_out);
/*
 * Makes a window on a device (shoal/tensor.h), as shoal_window_create makes one in memory of the host: all ranks map
 * memory of the device, and the data of pieces is memory of the device. A gather comes behind the work of the device so
 * far, as ops do, and the work of ops that read the window need not be done when it is released: the next gather waits
 * for it.
 *
 * SHOAL_ERR_INVALID on all ranks, and the group can still be used: ranks have different devices. SHOAL_ERR_UNSUPPORTED:
 * ranks cannot share memory of the device, or the group's transport has no windows there.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_window_create_on(
    shoal_group *group, size_t bytes, shoal_device device, SHOAL_GIVES shoal_window **window_out);
/* The window's memory, read-only. Its contents are defined from the end of a gather until this rank releases it. On a
   device it is an address of the device (shoal_from_device_memory), and nothing keeps a program from writing there. */
SHOAL_API const void *shoal_window_data(const shoal_window *window);
/* The size of the window. */
SHOAL_API size_t shoal_window_bytes(const shoal_window *window);
/* Frees this rank's handle. Not collective, but every rank calls it. No gather into the window may be unfinished on
   this rank. NULL is allowed. */
SHOAL_API void shoal_window_free(SHOAL_TAKES shoal_window *window);

/* What a rank writes into a window: `count` elements of data_dtype at `data`, converted to window_dtype on the way, to
   a place in the window. `data` is read until the gather has ended. */
typedef struct shoal_window_piece {
    const void *data;
    size_t count;
    shoal_dtype data_dtype;
    shoal_dtype window_dtype;
    size_t offset; /* in the window, in bytes */
} shoal_window_piece;

/*
 * Fills the window: waits until every rank has released its previous contents, writes this rank's pieces, and ends when
 * all ranks have written theirs. Collective. Each filling is a generation of the window. Ranks may write different
 * numbers of pieces, also none; if several write to the same place, its contents are undefined. `label`, the number of
 * a layer for example, must be the same on all ranks. Calls are compared at the end: if they differ, all ranks get
 * SHOAL_ERR_MISMATCH, and the window's contents are undefined.
 *
 * _start may be called before this rank has released the previous generation; the list of pieces is copied. The
 * blocking call would then wait for its own caller, and is SHOAL_ERR_STATE. SHOAL_ERR_INVALID: a piece does not fit
 * into the window, or has no dtype.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_window_gather(shoal_window *window,
                                                                             const shoal_window_piece *pieces,
                                                                             size_t n_pieces, uint64_t label);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_window_gather_start(shoal_window *window, const shoal_window_piece *pieces, size_t n_pieces,
                          uint64_t label, SHOAL_GIVES shoal_work **work_out);

/*
 * Says that this rank has read what it needs of the oldest generation that it has not released yet, so that the next
 * gather may overwrite it. Call it once for every gather. Releasing before the gather has ended means that this rank
 * will not read that generation. Never waits. SHOAL_ERR_STATE: there is no generation to release, the group was closed,
 * or a step is being captured.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_window_release(shoal_window *window);

SHOAL_END_DECLS

#endif
