/* SPDX-License-Identifier: MIT */
/*
 * Groups of ranks, and what they do together: collectives and point to point on raw memory.
 *
 * A group is an ordered list of ranks and a tag. Making one is local; its members connect when it is first used. Ranks
 * that make a group of the same ranks and tag, in any order of calls, have the same group. With another tag the same
 * ranks have another group, whose operations run independently.
 *
 * All members call the same collectives in the same order on a group. Ranks compare their calls before any result can
 * be read; if they differ, the call is SHOAL_ERR_MISMATCH and the text names both. Operations of one group run in
 * order. Groups do not wait for each other.
 *
 * Buffers: pointers to host memory of any alignment. They must not overlap except as each call says. `count` is in
 * elements and may be 0; the pointer may then be NULL. Buffers belong to the operation until it has ended: do not free
 * or write them, nor read what it writes. Only shoal_group_collective and shoal_group_collective_start also take memory
 * of a device (field `device`).
 *
 * Bits: a reduction combines values in rank order, from rank 0 on, in the accumulation type, and rounds once. Every
 * rank gets the same bits, whatever the algorithm and transport.
 *
 * Ownership: a group lives until shoal_group_close, shoal_group_abandon or until its world is closed. Handles are not
 * counted: the same ranks and tag always give the same handle.
 * Threads: any. Calls from several threads of a rank are queued in the order in which they arrive.
 * Errors: a wrong argument is reported at once and changes nothing. After a mismatch, a timeout, an abort, the death of
 * a member, a lack of memory in the middle of a collective, or of descriptors or threads for an operation, the group
 * has failed: every call on it returns the first failure's status and text, on every member that can be reached. Other
 * groups go on, with one exception: MPI cannot be used any more after a rank has died, so that all groups that
 * communicate through MPI then fail with SHOAL_ERR_PEER, even groups without that rank.
 *
 * Each collective comes as a blocking call and as _start, which returns at once and gives a work (shoal/work.h) in
 * *work_out. (shoal_group_check_equal and shoal_group_close only block.)
 */
#ifndef SHOAL_GROUP_H
#define SHOAL_GROUP_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/status.h"
#include "shoal/tensor.h"
#include "shoal/work.h"
#include "shoal/world.h"

SHOAL_BEGIN_DECLS

/* Groups ----------------------------------------------------------------------------------------------- */

/*
 * Makes the group of these world ranks, in this order: {0, 1} and {1, 0} are two groups. `tag` may be NULL, which means
 * "". Only members call it. SHOAL_ERR_INVALID: the caller is no member, there are no ranks, a rank is listed twice or
 * is not in the world.
 *
 * There is no call that splits a group by colours, as MPI_Comm_split does. Each rank computes the ranks of its own part
 * and makes that group; ranks of other parts make theirs. For blocks see shoal_group_create_blocks, for rows and
 * columns a mesh (shoal/mesh.h).
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_create(shoal_world *world, const int *ranks, int n_ranks,
                                                           const char *tag, shoal_group **group_out);

/* Cuts the world into blocks of block_ranks consecutive ranks, and makes the group of the caller's block. The number of
   ranks must be a multiple of block_ranks. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_create_blocks(shoal_world *world, int block_ranks,
                                                                  const char *tag, shoal_group **group_out);

/*
 * Makes the group of the one list, of several lists of world ranks, that has the caller. All lists are equally long;
 * n_ranks[i] is the length of lists[i]. Every rank checks all lists, so that a mistake in any fails on every rank.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_create_lists(shoal_world *world, const int *const *lists,
                                                                 const int *n_ranks, int n_lists,
                                                                 const char *tag, shoal_group **group_out);

/*
 * Finds the group of a name that shoal_group_name gave: "0,2/tag", "world/tag"; "" and "world" are all ranks. If this
 * rank has no such group yet, it is made; not if the name has a hash instead of ranks, from which they cannot be read.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_find(shoal_world *world, const char *name,
                                                         shoal_group **group_out);

/*
 * Frees the group on all members: its shared memory, its threads and descriptors. Collective: every member calls it,
 * after its last call on the group. It is optional: closing the world closes the groups that are left. NULL is allowed.
 *
 * Operations that were started before end first. The call waits for the other members as long as the group's timeout.
 * When all have called it, sends that were started have half of the timeout to be received. What is unfinished then,
 * and a receive without a sender, ends with SHOAL_ERR_CANCELLED. (A transfer whose own deadline passes before that
 * fails the group, as always.) If a member makes another call instead, that is a mismatch, and nothing has been freed.
 *
 * A group that has failed is closed by each rank for itself, without waiting for the others; so a close that fails can
 * be repeated. Its ranks and tag stay failed in this world, which remembers the last 1024 such groups: make the next
 * group with another tag. After a close that succeeded, the same ranks and tag give a new group.
 *
 * While close runs, other threads of this rank may still be waiting in a call or for a work of the group. They may call
 * shoal_group_error and shoal_group_abort, and must not begin any other call on it.
 *
 * Afterwards the handle must not be used; calls that recognize it return SHOAL_ERR_STATE. Works can still be asked how
 * they ended, symmetric memory stays, windows can be read and freed. SHOAL_ERR_INVALID: it is the world's own group.
 * SHOAL_ERR_STATE: a sharded or replicated model, or a save in the background, uses the group; or the call is made in a
 * callback of a work.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_close(SHOAL_TAKES shoal_group *group);

/*
 * Frees this rank's part of the group without the other members, for programs that do not drop groups on all ranks at
 * the same point: bindings whose handles are garbage-collected. Not collective, and not a failure of the group: it
 * waits for no call of another member (over messages up to 2 s until they have taken what was sent to them). Close the
 * group wherever all members can. NULL is allowed.
 *
 * What this rank did before counts: a collective that it has ended ends on the others too, and a message that it has
 * sent can be received. A call of another member that waits for more than that, now or later, is SHOAL_ERR_PEER within
 * about 100 ms, its text names this rank, and the group has failed then. The world's other groups go on.
 *
 * Works on the group that have not ended on this rank end with SHOAL_ERR_CANCELLED, unless the others have done their
 * part; the others then get SHOAL_ERR_PEER, also in calls that they are in. Sends that were not received are lost if
 * the transport could not keep them. A blocking collective of another thread of this rank is SHOAL_ERR_STATE, and
 * nothing has been freed; blocking sends and receives end with SHOAL_ERR_CANCELLED.
 *
 * This rank cannot make a group of these ranks and this tag again in this world: SHOAL_ERR_STATE. On the others the
 * handle stays; they abandon the group too, or close it, which each then does alone. (If close is the first call that
 * needs this rank, it is SHOAL_ERR_PEER as any other, and the next close frees the group.) Shared memory is freed when
 * all members have. A member that has not made the group yet remembers the last 1024 groups that others have abandoned.
 *
 * Afterwards the handle must not be used, as after shoal_group_close. SHOAL_ERR_INVALID: it is the world's own group.
 * SHOAL_ERR_STATE: as with close; or this rank has abandoned the group before. SHOAL_ERR_SYSTEM: the group was freed,
 * but a member could not be told (this process has no descriptors left, or thousands of messages wait for a member that
 * is stopped), and may wait for this rank until its deadline.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_abandon(SHOAL_TAKES shoal_group *group);

/* The caller's rank in the group, and the number of its ranks. */
SHOAL_API int shoal_group_rank(const shoal_group *group);
SHOAL_API int shoal_group_n_ranks(const shoal_group *group);
/*
 * Ranks and tag as one text: "0,2", "0,2/tag"; "world" and "world/tag" for all ranks in order; a hash instead of the
 * ranks if they are too many to list. The same on all members without communication, and different for every group of
 * the world. shoal_group_find finds the group by it.
 */
SHOAL_API const char *shoal_group_name(const shoal_group *group);
/* The world that the group was made in. */
SHOAL_API shoal_world *shoal_group_world(const shoal_group *group);

/* Translate a rank in the group to the rank in the world, and back; -1 for a rank that is not in the group. */
SHOAL_API int shoal_group_world_rank(const shoal_group *group, int group_rank);
SHOAL_API int shoal_group_rank_of(const shoal_group *group, int world_rank);

/* How many collectives this rank has started on the group so far. */
SHOAL_API uint64_t shoal_group_sequence(const shoal_group *group);

/* How many seconds an operation may take; past it the group has failed. Setting it holds for operations that start from
   now on, including operations of FSDP and DDP on this group. More than 0 and at most 1e9. */
SHOAL_API double shoal_group_timeout(const shoal_group *group);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_set_timeout(shoal_group *group, double seconds);

/*
 * Fails the group: every operation on it, on all members, ends with SHOAL_ERR_CANCELLED and the reason. This
 * includes operations of FSDP and DDP. Call it from any thread to end a wait that has become pointless. Calls that wait
 * notice it within about 100 ms. Abort itself does not wait: a member that is stopped learns of it when it continues.
 * `reason` may be NULL.
 */
SHOAL_API shoal_status shoal_group_abort(shoal_group *group, const char *reason);

/*
 * SHOAL_OK, or the status and text with which every call on the group fails. Every 100 ms it also looks whether a
 * member has died, which fails the group. Otherwise it does not communicate: a member that has not used the group yet
 * may learn of another failure only by its first call.
 */
SHOAL_API shoal_status shoal_group_error(shoal_group *group);

/* Collectives ------------------------------------------------------------------------------------------ */

/* Ends when all members have called it. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_barrier(shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_group_barrier_start(shoal_group *group, SHOAL_GIVES shoal_work **work_out);

/* Copies `count` elements of the root's buffer into the buffer of every other rank. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_broadcast(shoal_group *group,
                                                                               void *buffer, size_t count,
                                                                               shoal_dtype dtype, int root);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_group_broadcast_start(shoal_group *group, void *buffer, size_t count, shoal_dtype dtype, int root,
                            SHOAL_GIVES shoal_work **work_out);

/* Reduces `count` elements over all ranks; every rank gets the result. send == recv: in place. For SHOAL_PREMUL_SUM,
   which needs a factor, use shoal_group_collective. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_all_reduce(shoal_group *group,
                                                                                const void *send, void *recv,
                                                                                size_t count,
                                                                                shoal_dtype dtype,
                                                                                shoal_reduce_op reduce);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_group_all_reduce_start(shoal_group *group, const void *send, void *recv, size_t count,
                             shoal_dtype dtype, shoal_reduce_op reduce, SHOAL_GIVES shoal_work **work_out);

/* Reduces `count` elements over all ranks. recv is written on the root only, and may be NULL elsewhere. send == recv:
   in place. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_reduce(shoal_group *group,
                                                                            const void *send, void *recv,
                                                                            size_t count, shoal_dtype dtype,
                                                                            shoal_reduce_op reduce, int root);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_group_reduce_start(shoal_group *group, const void *send, void *recv, size_t count, shoal_dtype dtype,
                         shoal_reduce_op reduce, int root, SHOAL_GIVES shoal_work **work_out);

/* Concatenates `count` elements of each rank, in rank order, on every rank. recv has n_ranks * count elements. In
   place: send == recv + rank * count. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_all_gather(shoal_group *group,
                                                                                const void *send, void *recv,
                                                                                size_t count,
                                                                                shoal_dtype dtype);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_group_all_gather_start(shoal_group *group, const void *send, void *recv, size_t count,
                             shoal_dtype dtype, SHOAL_GIVES shoal_work **work_out);

/* Concatenates counts[r] elements of each rank r, in rank order, on every rank. All ranks give the same counts. In
   place: send points to the rank's own part of recv. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_all_gather_v(
    shoal_group *group, const void *send, void *recv, const size_t *counts, shoal_dtype dtype);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_group_all_gather_v_start(shoal_group *group, const void *send, void *recv, const size_t *counts,
                               shoal_dtype dtype, SHOAL_GIVES shoal_work **work_out);

/* Reduces n_ranks * count elements over all ranks; rank r gets block r of the result, `count` elements. In place:
   recv == send + rank * count. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_reduce_scatter(shoal_group *group,
                                                                                    const void *send,
                                                                                    void *recv, size_t count,
                                                                                    shoal_dtype dtype,
                                                                                    shoal_reduce_op reduce);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_reduce_scatter_start(
    shoal_group *group, const void *send, void *recv, size_t count, shoal_dtype dtype, shoal_reduce_op reduce,
    SHOAL_GIVES shoal_work **work_out);

/* Reduces send, as many elements as all counts together, over all ranks; rank r gets its part, counts[r] elements. All
   ranks give the same counts. In place: recv points to the rank's own part of send. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_group_reduce_scatter_v(shoal_group *group, const void *send, void *recv, const size_t *counts,
                             shoal_dtype dtype, shoal_reduce_op reduce);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_reduce_scatter_v_start(
    shoal_group *group, const void *send, void *recv, const size_t *counts, shoal_dtype dtype,
    shoal_reduce_op reduce, SHOAL_GIVES shoal_work **work_out);

/* Sends block r of send to rank r, and receives block r of recv from it; a block has `count` elements. send == recv: in
   place. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_all_to_all(shoal_group *group,
                                                                                const void *send, void *recv,
                                                                                size_t count,
                                                                                shoal_dtype dtype);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_group_all_to_all_start(shoal_group *group, const void *send, void *recv, size_t count,
                             shoal_dtype dtype, SHOAL_GIVES shoal_work **work_out);

/* Sends send_counts[r] elements to rank r, and receives recv_counts[r] from it. The parts lie one after the other in
   rank order. Never in place. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_group_all_to_all_v(shoal_group *group, const void *send, const size_t *send_counts, void *recv,
                         const size_t *recv_counts, shoal_dtype dtype);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_all_to_all_v_start(
    shoal_group *group, const void *send, const size_t *send_counts, void *recv, const size_t *recv_counts,
    shoal_dtype dtype, SHOAL_GIVES shoal_work **work_out);

/* Concatenates `count` elements of each rank on the root. recv, n_ranks * count elements, is written on the root only.
   In place on the root: send == recv + root * count. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_gather(shoal_group *group,
                                                                            const void *send, void *recv,
                                                                            size_t count, shoal_dtype dtype,
                                                                            int root);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_group_gather_start(shoal_group *group, const void *send, void *recv, size_t count, shoal_dtype dtype,
                         int root, SHOAL_GIVES shoal_work **work_out);

/* Concatenates counts[r] elements of each rank r on the root. All ranks give the same counts. In place on the root:
   send points to the root's own part of recv. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_gather_v(shoal_group *group,
                                                                              const void *send, void *recv,
                                                                              const size_t *counts,
                                                                              shoal_dtype dtype, int root);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_group_gather_v_start(shoal_group *group, const void *send, void *recv, const size_t *counts,
                           shoal_dtype dtype, int root, SHOAL_GIVES shoal_work **work_out);

/* Gives rank r block r of the root's send, `count` elements. send, n_ranks * count elements, is read on the root only.
   In place on the root: recv == send + root * count. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_scatter(shoal_group *group,
                                                                             const void *send, void *recv,
                                                                             size_t count, shoal_dtype dtype,
                                                                             int root);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_group_scatter_start(shoal_group *group, const void *send, void *recv, size_t count, shoal_dtype dtype,
                          int root, SHOAL_GIVES shoal_work **work_out);

/* Gives rank r its part of the root's send, counts[r] elements. All ranks give the same counts. In place on the root:
   recv points to the root's own part of send. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_scatter_v(shoal_group *group,
                                                                               const void *send, void *recv,
                                                                               const size_t *counts,
                                                                               shoal_dtype dtype, int root);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status
shoal_group_scatter_v_start(shoal_group *group, const void *send, void *recv, const size_t *counts,
                            shoal_dtype dtype, int root, SHOAL_GIVES shoal_work **work_out);

/* Settings --------------------------------------------------------------------------------------------- */

/*
 * Compares a setting of the program on all ranks: a learning rate, a sequence length, a seed. The library compares what
 * its own calls are given; of what only the program knows, a difference would show late, as other results, or never.
 *
 *     status = shoal_group_check_equal_real(group, "learning rate", rate);
 *
 * `name` has 1 to 64 bytes, the value 1 to 1024; both are copied. Values are compared as bytes, so bytes of padding
 * count, -0.0 is not 0.0, and a NaN equals a NaN of the same bits.
 *
 * Collective: it waits for all members and keeps its place in the order of the group's calls. SHOAL_ERR_INVALID, on all
 * members: values differ, and the text names the setting, the values and the ranks that have them (integers and real
 * numbers as such, bytes that are printable as text, of other bytes 16 in hexadecimal); or ranks compare settings of
 * different names, sizes or types; or an argument of one rank is wrong, which it says. (If that is the group, the other
 * ranks do not learn of it.) The group can be used afterwards.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_check_equal(shoal_group *group,
                                                                                 const char *name,
                                                                                 const void *value,
                                                                                 size_t bytes);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_check_equal_integer(shoal_group *group,
                                                                                         const char *name,
                                                                                         int64_t value);
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_check_equal_real(shoal_group *group,
                                                                                      const char *name,
                                                                                      double value);

/* By descriptor ---------------------------------------------------------------------------------------- */

/*
 * The general form of the calls above: one struct for all kinds, filled in by an initializer of its kind. Use it for
 * what the plain calls do not have: factors, several operations at once, a buffer for every rank, a deadline of the
 * call's own, functions that are called at its end.
 *
 *     shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(send, recv, count, SHOAL_F32, SHOAL_PREMUL_SUM);
 *     call.factor = 0.5;
 *     call.timeout_s = 10;
 *     status = shoal_group_collective(group, &call);
 *
 * Blocks that lie anywhere in memory, one for each rank, without a buffer that has all of them. Here a gather to rank
 * 0; all_gather, scatter and all_to_all take blocks in the same way. If their sizes differ, use
 * SHOAL_COLLECTIVE_GATHER_V and counts.
 *
 *     void *blocks[] = {from_rank_0, from_rank_1, from_rank_2};
 *     shoal_collective call = SHOAL_COLLECTIVE_GATHER(send, NULL, count, SHOAL_F32, 0);
 *     if (shoal_group_rank(group) == 0) call.recv_blocks = blocks;
 *     status = shoal_group_collective(group, &call);
 *
 * Several tensors of any sizes at the cost of one call:
 *
 *     shoal_part parts[] = {{.send = w, .recv = w, .count = w_count},
 *                           {.send = bias, .recv = bias, .count = bias_count}};
 *     shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(NULL, NULL, 0, SHOAL_F32, SHOAL_AVG);
 *     call.parts = parts;
 *     call.n_parts = 2;
 *     status = shoal_group_collective(group, &call);
 *
 * Buffers in memory of a device, here with the result of shoal_device_find:
 *
 *     shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(send, recv, count, SHOAL_F32, SHOAL_SUM);
 *     call.device = device;
 *     status = shoal_group_collective(group, &call);
 *
 * shoal/work.h has an example with on_done and release.
 *
 * A field that the kind does not use and that is not 0 is SHOAL_ERR_INVALID, which names field, kind and value. Ranks
 * may mix the forms: a plain call on one rank meets the same call by descriptor on another.
 */
typedef enum shoal_collective_kind {
    SHOAL_KIND_BARRIER = 1,
    SHOAL_KIND_BROADCAST = 2,
    SHOAL_KIND_ALL_REDUCE = 3,
    SHOAL_KIND_REDUCE = 4,
    SHOAL_KIND_ALL_GATHER = 5,
    SHOAL_KIND_ALL_GATHER_V = 6,
    SHOAL_KIND_REDUCE_SCATTER = 7,
    SHOAL_KIND_REDUCE_SCATTER_V = 8,
    SHOAL_KIND_ALL_TO_ALL = 9,
    SHOAL_KIND_ALL_TO_ALL_V = 10,
    SHOAL_KIND_GATHER = 11,
    SHOAL_KIND_GATHER_V = 12,
    SHOAL_KIND_SCATTER = 13,
    SHOAL_KIND_SCATTER_V = 14,
    SHOAL_KIND_COUNT = 15 /* one more than the last */
} shoal_collective_kind;

/* One of several operations that cost one synchronization together. Memory that one part writes must not be read or
   written by another. */
typedef struct shoal_part {
    const void *send;
    void *recv;
    size_t count;        /* as in the plain call */
    shoal_device device; /* of send and recv, as in shoal_collective; the same in all parts */
} shoal_part;

/*
 * A call, described. Start from the initializer of its kind (below), and set further fields as needed. Lists and counts
 * are copied, and may be freed when the call returns. Buffers belong to the operation until it has ended.
 */
typedef struct shoal_collective {
    size_t struct_size; /* sizeof(shoal_collective) */
    shoal_collective_kind kind;
    shoal_dtype dtype;
    shoal_reduce_op reduce;
    int root;
    const void *send;
    void *recv; /* of a broadcast: the buffer */
    size_t count;
    /* For all_gather_v, reduce_scatter_v, gather_v and scatter_v: n_ranks of them, the same on every rank. */
    const size_t *counts;
    /* For all_to_all_v. */
    const size_t *send_counts;
    const size_t *recv_counts;
    /* Instead of a send or recv that has a block for every rank: the address of each block, n_ranks of them. Ranks need
       not agree on how blocks lie. In place as in the plain calls: the rank's own block, and in all_to_all any
       recv_blocks[r] == send_blocks[r]. */
    const void *const *send_blocks;
    void *const *recv_blocks;
    /* Several calls at once, instead of send, recv and count; for kinds without counts. All parts have the same dtype;
       calls that only move data can give bytes as SHOAL_U8. */
    const shoal_part *parts;
    size_t n_parts;
    /* With SHOAL_PREMUL_SUM: the result is the sum of factor * value. The same on every rank; floating and complex
       dtypes. */
    double factor;
    /* How many seconds this call may take, counted from now, at most 1e9; 0 means the group's timeout. Past it the
       group has failed, as with the group's own timeout. A call that is queued behind others is not checked before they
       have ended. */
    double timeout_s;
    /* For shoal_group_collective_start only. Called with `context` when the call has ended (on_done) and when its
       buffers may be reused (release): exactly once each, also if the work was freed, the group aborted or the world
       closed. If shoal_group_collective_start fails, nothing was started and neither is called. See shoal/work.h. */
    shoal_done_function on_done;
    shoal_release_function release;
    void *context;
    /*
     * The device whose memory send, recv and all blocks are; 0 is SHOAL_CPU, host memory. Parts have fields of their
     * own: it stays 0 with them, and if they differ, the call is SHOAL_ERR_INVALID and names both devices. Ranks that
     * give different devices have made different calls, which is a mismatch on all of them.
     *
     * The call reads and writes behind the work that ops of this process have given the device so far. When it has
     * ended, the result is in the device's memory: nothing else has to be waited for. Counts, lists of parts and lists
     * of blocks are host memory.
     *
     * SHOAL_ERR_UNSUPPORTED names the device: it has no memory (SHOAL_META), the ranks of the group are on several
     * hosts, SHOAL_ALGO asks for oneshot, or earlier calls of the group had memory of another device. Except for the
     * first, the group has then failed.
     *
     * The library does not know whose memory a pointer is. If it is not the device's, the device may notice: the call
     * is then SHOAL_ERR_SYSTEM, and the device cannot be used any more. If it does not notice, or if memory of a device
     * is given as host memory, the process may end or other data may change.
     */
    shoal_device device;
} shoal_collective;

/* Runs the call and waits for its end. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_collective(shoal_group *group,
                                                                                const shoal_collective *call);
/* Starts the call and returns. work_out may be NULL if on_done or release is set. */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_group_collective_start(
    shoal_group *group, const shoal_collective *call, SHOAL_GIVES shoal_work **work_out);

/* No kind yet, all else 0. */
#define SHOAL_COLLECTIVE_INIT SHOAL_SIZED(shoal_collective)

/* All fields: the initializers of the kinds end here. */
#define SHOAL_COLLECTIVE_OF(kind, dtype, reduce, root, send, recv, count, counts, send_counts, recv_counts) \
    {                                                                                                       \
        sizeof(shoal_collective), kind, dtype, reduce, root, send, recv, count, counts, send_counts,        \
            recv_counts, NULL, NULL, NULL, 0, 0.0, 0.0, NULL, NULL, NULL, SHOAL_CPU                         \
    }

/* Parameters as in the plain calls. */
#define SHOAL_COLLECTIVE_BARRIER                                                                        \
    SHOAL_COLLECTIVE_OF(SHOAL_KIND_BARRIER, (shoal_dtype)0, (shoal_reduce_op)0, 0, NULL, NULL, 0, NULL, \
                        NULL, NULL)
#define SHOAL_COLLECTIVE_BROADCAST(buffer, count, dtype, root)                                            \
    SHOAL_COLLECTIVE_OF(SHOAL_KIND_BROADCAST, dtype, (shoal_reduce_op)0, root, NULL, buffer, count, NULL, \
                        NULL, NULL)
#define SHOAL_COLLECTIVE_ALL_REDUCE(send, recv, count, dtype, reduce) \
    SHOAL_COLLECTIVE_OF(SHOAL_KIND_ALL_REDUCE, dtype, reduce, 0, send, recv, count, NULL, NULL, NULL)
#define SHOAL_COLLECTIVE_REDUCE(send, recv, count, dtype, reduce, root) \
    SHOAL_COLLECTIVE_OF(SHOAL_KIND_REDUCE, dtype, reduce, root, send, recv, count, NULL, NULL, NULL)
#define SHOAL_COLLECTIVE_ALL_GATHER(send, recv, count, dtype)                                               \
    SHOAL_COLLECTIVE_OF(SHOAL_KIND_ALL_GATHER, dtype, (shoal_reduce_op)0, 0, send, recv, count, NULL, NULL, \
                        NULL)
#define SHOAL_COLLECTIVE_ALL_GATHER_V(send, recv, counts, dtype)                                            \
    SHOAL_COLLECTIVE_OF(SHOAL_KIND_ALL_GATHER_V, dtype, (shoal_reduce_op)0, 0, send, recv, 0, counts, NULL, \
                        NULL)
#define SHOAL_COLLECTIVE_REDUCE_SCATTER(send, recv, count, dtype, reduce) \
    SHOAL_COLLECTIVE_OF(SHOAL_KIND_REDUCE_SCATTER, dtype, reduce, 0, send, recv, count, NULL, NULL, NULL)
#define SHOAL_COLLECTIVE_REDUCE_SCATTER_V(send, recv, counts, dtype, reduce) \
    SHOAL_COLLECTIVE_OF(SHOAL_KIND_REDUCE_SCATTER_V, dtype, reduce, 0, send, recv, 0, counts, NULL, NULL)
#define SHOAL_COLLECTIVE_ALL_TO_ALL(send, recv, count, dtype)                                               \
    SHOAL_COLLECTIVE_OF(SHOAL_KIND_ALL_TO_ALL, dtype, (shoal_reduce_op)0, 0, send, recv, count, NULL, NULL, \
                        NULL)
#define SHOAL_COLLECTIVE_ALL_TO_ALL_V(send, send_counts, recv, recv_counts, dtype)                  \
    SHOAL_COLLECTIVE_OF(SHOAL_KIND_ALL_TO_ALL_V, dtype, (shoal_reduce_op)0, 0, send, recv, 0, NULL, \
                        send_counts, recv_counts)
#define SHOAL_COLLECTIVE_GATHER(send, recv, count, dtype, root)                                            \
    SHOAL_COLLECTIVE_OF(SHOAL_KIND_GATHER, dtype, (shoal_reduce_op)0, root, send, recv, count, NULL, NULL, \
                        NULL)
#define SHOAL_COLLECTIVE_GATHER_V(send, recv, counts, dtype, root)                                         \
    SHOAL_COLLECTIVE_OF(SHOAL_KIND_GATHER_V, dtype, (shoal_reduce_op)0, root, send, recv, 0, counts, NULL, \
                        NULL)
#define SHOAL_COLLECTIVE_SCATTER(send, recv, count, dtype, root)                                            \
    SHOAL_COLLECTIVE_OF(SHOAL_KIND_SCATTER, dtype, (shoal_reduce_op)0, root, send, recv, count, NULL, NULL, \
                        NULL)
#define SHOAL_COLLECTIVE_SCATTER_V(send, recv, counts, dtype, root)                                         \
    SHOAL_COLLECTIVE_OF(SHOAL_KIND_SCATTER_V, dtype, (shoal_reduce_op)0, root, send, recv, 0, counts, NULL, \
                        NULL)

/* Point to point --------------------------------------------------------------------------------------- */

/* As `peer` of the calls below: nobody. Nothing is sent or received, the buffer is not touched and may be NULL, the
   call returns at once, and a work that it gives has ended. So ranks at the border of a grid make the calls of those
   inside. It is not -1, with which shoal_group_rank_of says that a rank is not in the group: that stays an error. */
#define SHOAL_NO_RANK (-2)

/* As `peer` of a receive: whichever rank sends first; see shoal_group_recv_any, which also says who it was. Refused in
   sends. */
#define SHOAL_ANY_RANK (-3)

/*
 * Messages from one rank to another. `peer` is a rank of the group. Source, destination and tag make a stream, which is
 * independent of the collectives of the group and of other streams. Messages of a stream arrive in order. Tags are 0 or
 * more; a rank can use about a thousand of them to send to another.
 *
 * To send and receive at once, as MPI_Sendrecv does, or in a ring, use shoal_group_transfer: if two ranks both send to
 * each other first, and the message is large, they wait for each other until their deadline.
 *
 * A small send may return before it is received, because the message is copied. A rank may send to itself with _start;
 * a blocking call that would wait for its own thread is SHOAL_ERR_STATE. To be called at the end instead of waiting,
 * use shoal_work_on_done and free the work.
 *
 * A receive with another count or dtype than the send fails with SHOAL_ERR_MISMATCH, and so does everything on that
 * stream from then on, on both sides; other streams and the collectives go on. The deadline is the group's
 * (shoal_group_set_timeout); past it the whole group has failed, not just the stream. shoal_group_transfer_with takes a
 * deadline of the call's own, which does not fail the group. A failure that is known when _start returns is its status,
 * and there is no work.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_send(shoal_group *group, const void *buffer, size_t count,
                                                         shoal_dtype dtype, int peer, int tag);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_send_start(shoal_group *group, const void *buffer,
                                                               size_t count, shoal_dtype dtype, int peer,
                                                               int tag, SHOAL_GIVES shoal_work **work_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_recv(shoal_group *group, void *buffer, size_t count,
                                                         shoal_dtype dtype, int peer, int tag);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_recv_start(shoal_group *group, void *buffer, size_t count,
                                                               shoal_dtype dtype, int peer, int tag,
                                                               SHOAL_GIVES shoal_work **work_out);

/*
 * Receives a message with this tag from whichever member sends one, the rank itself included. *source_out becomes the
 * group rank of the sender; it is -1 until the message has arrived whole, and after a failure. It belongs to the
 * operation like the buffer, and may be NULL.
 *
 *     int source;
 *     status = shoal_group_recv_any(group, result, count, SHOAL_F32, 0, &source);
 *     status = shoal_group_send(group, next_task, n, SHOAL_F32, source, 1);
 *
 * Messages of one source are received in the order in which they were sent; between sources there is no order. Each
 * message goes to the receive that was posted first among those that it fits: receives from any rank, and receives that
 * name its source. The count and dtype must be those of the message that comes; if not, the stream to its sender has
 * failed as after any other mismatch.
 *
 * If a member has died or cannot be reached, or the stream from one has failed, the receive fails (SHOAL_ERR_PEER, or
 * the stream's failure) unless another member has a message there. Members that have closed their world, or abandoned
 * the group, do not matter as long as another member is left that could send.
 *
 * It cannot be part of a captured step, because there is nothing that a plan could repeat: SHOAL_ERR_STATE, and
 * shoal_irecv refuses SHOAL_ANY_RANK. In a group of one rank a blocking call is SHOAL_ERR_STATE unless the rank has
 * sent itself a message before.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_recv_any(shoal_group *group, void *buffer, size_t count,
                                                             shoal_dtype dtype, int tag, int *source_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_recv_any_start(shoal_group *group, void *buffer,
                                                                   size_t count, shoal_dtype dtype, int tag,
                                                                   int *source_out,
                                                                   SHOAL_GIVES shoal_work **work_out);

typedef enum shoal_direction {
    SHOAL_SEND = 0,
    SHOAL_RECV = 1
} shoal_direction;

typedef struct shoal_transfer {
    shoal_direction direction;
    void *buffer; /* read by a send, written by a receive */
    size_t count;
    shoal_dtype dtype;
    int peer;
    int tag;
} shoal_transfer;

/* Posts all transfers of the list before it waits for any, so that rings and exchanges cannot deadlock. The batch ends
   when all of them have ended; its status is the first failure in the order of the list. Memory that one transfer
   receives into must not be used by another one of the list. The list is copied. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_transfer(shoal_group *group,
                                                             const shoal_transfer *transfers,
                                                             size_t n_transfers);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_transfer_start(shoal_group *group,
                                                                   const shoal_transfer *transfers,
                                                                   size_t n_transfers,
                                                                   SHOAL_GIVES shoal_work **work_out);

/* What shoal_group_transfer_with takes besides the list. */
typedef struct shoal_transfer_options {
    size_t struct_size; /* sizeof(shoal_transfer_options) */
    /* How many seconds this call may take, counted from now, at most 1e9; 0 means the group's timeout. */
    double timeout_s;
    /* One for every transfer of the list, or NULL. All become -1 at once; those of receives become the group rank of
       the sender when the message has arrived whole. They belong to the operation like the buffers. */
    int *sources;
} shoal_transfer_options;

#define SHOAL_TRANSFER_OPTIONS_INIT SHOAL_SIZED(shoal_transfer_options)

/*
 * shoal_group_transfer with a deadline of its own, and with the sources of receives from SHOAL_ANY_RANK. A list of one
 * transfer is a send or a receive. options == NULL is shoal_group_transfer.
 *
 *     shoal_transfer transfer = {SHOAL_RECV, buffer, count, SHOAL_F32, peer, tag};
 *     shoal_transfer_options options = SHOAL_TRANSFER_OPTIONS_INIT;
 *     options.timeout_s = 5;
 *     status = shoal_group_transfer_with(group, &transfer, 1, &options);
 *     if (status == SHOAL_ERR_TIMEOUT && shoal_group_error(group) == SHOAL_OK) ... nothing came: try again later
 *
 * When timeout_s has passed, the call is SHOAL_ERR_TIMEOUT, and the group does not fail: its collectives and its other
 * streams go on. What has become of a transfer of the list depends on how far it was:
 *
 *   - It had ended: the message was sent or received, as if there had been no deadline. `sources` tells it of receives.
 *   - Nothing of its message was moved: it is as if it had not been called. A message that comes later can be received
 *     by another call. A send is withdrawn; the peer never sees it.
 *   - A part of its message was moved: its stream has failed with SHOAL_ERR_TIMEOUT, on both sides and for good. So it
 *     is with a send that is longer than what is kept for a peer that does not receive (64 KiB).
 *
 * The text says which. A started call notices its deadline up to 100 ms late. If the group's members have not connected
 * yet and one that is needed for that does not answer, nothing was moved, and the next call connects again.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_transfer_with(shoal_group *group,
                                                                  const shoal_transfer *transfers,
                                                                  size_t n_transfers,
                                                                  const shoal_transfer_options *options);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_transfer_with_start(shoal_group *group,
                                                                        const shoal_transfer *transfers,
                                                                        size_t n_transfers,
                                                                        const shoal_transfer_options *options,
                                                                        SHOAL_GIVES shoal_work **work_out);

SHOAL_END_DECLS

#endif
