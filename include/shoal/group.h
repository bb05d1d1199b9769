/* SPDX-License-Identifier: MIT */
/*
 * Groups of ranks, and what they do together: collectives and point to point on raw memory.
 *
 * A group is an ordered list of ranks and a tag. Making one is local; members connect when it is first used.
 * The same ranks and tag are the same group, whoever made it in whatever order; another tag is another lane
 * over the same ranks. All members call the same collectives in the same order on a group; what they call is
 * compared before data moves, and a difference is SHOAL_ERR_MISMATCH that names both calls. Operations of one
 * group run in order; groups do not wait for each other.
 *
 * Buffers: pointers to host memory of any alignment, not overlapping except as each call says. `count` is in
 * elements and may be 0, where NULL is allowed. Buffers belong to the operation until it has ended.
 *
 * Bits: a reduction is a left fold in rank order in the accumulation type, rounded once; every rank gets the
 * same bits, whatever the algorithm.
 *
 * Ownership: a group lives until shoal_group_close or until its world is closed. Handles are not counted: the same
 * ranks and tag always give the same handle.
 * Threads: any. Calls from several threads are taken in the order in which they come.
 * Errors: a wrong argument is reported at once and changes nothing. After a mismatch, a timeout, an abort or the
 * death of a member every call on the group fails with the first reason, on every member that can be reached; other
 * groups go on.
 *
 * Each collective comes as a blocking call and as _start, which returns at once and gives a work
 * (shoal/work.h) in *work_out.
 */
#ifndef SHOAL_GROUP_H
#define SHOAL_GROUP_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/status.h"
#include "shoal/work.h"
#include "shoal/world.h"

SHOAL_BEGIN_DECLS

/* Groups ----------------------------------------------------------------------------------------------- */

/*
 * The group of these world ranks, in this order. `tag` may be NULL, which is "". Only members can have it: on
 * another rank it is SHOAL_ERR_INVALID. Errors: no ranks, a rank twice, a rank outside the world. The order counts:
 * {0, 1} and {1, 0} are two groups.
 *
 * There is no call that splits a group by colours, as MPI_Comm_split does: each rank knows the ranks of its own part
 * and makes that group, the others do not call. Blocks are below; rows and columns come from a mesh (shoal/mesh.h).
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_create(shoal_world *world, const int *ranks, int n_ranks,
                                                           const char *tag, shoal_group **group_out);

/* The caller's part of a world cut into consecutive blocks of block_ranks, which must divide the world. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_create_blocks(shoal_world *world, int block_ranks,
                                                                  const char *tag, shoal_group **group_out);

/*
 * The caller's part of a world, out of several lists of world ranks, all equally long. n_ranks[i] is the length of
 * lists[i]. The lists are checked as a whole: what is wrong is wrong on every rank.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_create_lists(shoal_world *world, const int *const *lists,
                                                                 const int *n_ranks, int n_lists,
                                                                 const char *tag, shoal_group **group_out);

/*
 * The group of a name as shoal_group_name gives it: "0,2/tag", "world/tag"; "" and "world": all ranks. It is made if
 * need be, except that ranks cannot be read from a hash.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_find(shoal_world *world, const char *name,
                                                         shoal_group **group_out);

/*
 * Frees the group on all members: its shared memory, its threads and descriptors. Collective: every member calls it,
 * after its last call on the group; operations that were started before end first. What else a member calls in its
 * place is a mismatch, and then nothing has been freed. Waits for the members as long as the group's timeout. When all
 * have called it, sends that were started have half of the timeout to be received; what is unfinished then, and a
 * receive that nobody has sent to, ends with SHOAL_ERR_CANCELLED. (A transfer whose own deadline passes before that
 * fails the group, as always.)
 *
 * A group that has failed is closed by each rank for itself, without waiting for anybody; so a close that fails can be
 * repeated. Its ranks and tag stay failed in this world, which remembers the last 1024 such groups: make the next group
 * with another tag. After a close that went well, the same ranks and tag are a new group.
 *
 * Other threads of this rank may be in a call that waits, or wait for a work of the group, meanwhile; they may ask
 * shoal_group_error and abort the group. They must not begin any other call on it.
 *
 * Afterwards the handle must not be used; calls that still find it give SHOAL_ERR_STATE. Works can still be asked how
 * they ended, symmetric memory stays, windows can be read and freed. The world's own group, and a group that a sharded
 * or replicated model uses, cannot be closed. Closing the world closes what is left. NULL is allowed. SHOAL_ERR_STATE
 * in a callback of a work.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_close(shoal_group *group);

SHOAL_API int shoal_group_rank(const shoal_group *group); /* the caller's, in the group */
SHOAL_API int shoal_group_n_ranks(const shoal_group *group);
SHOAL_API const char *shoal_group_tag(const shoal_group *group);
/*
 * Ranks and tag as one text, the same on all members, that no other group of the world has: "0,2", "0,2/tag"; "world"
 * and "world/tag" for all ranks in order; a hash in the place of ranks that are too many to list. It never has to be
 * agreed upon, and shoal_group_find gives the group back.
 */
SHOAL_API const char *shoal_group_name(const shoal_group *group);
SHOAL_API shoal_world *shoal_group_world(const shoal_group *group);

/* Between ranks of the group and of the world; -1 for a rank that is not in the group. */
SHOAL_API int shoal_group_world_rank(const shoal_group *group, int group_rank);
SHOAL_API int shoal_group_rank_of(const shoal_group *group, int world_rank);

/* Collectives that were started on this rank so far. */
SHOAL_API uint64_t shoal_group_sequence(const shoal_group *group);

/* How long an operation may take; for those that start from now on, also inside of FSDP and DDP on this group. More
   than 0 and at most 1e9 seconds. */
SHOAL_API double shoal_group_timeout(const shoal_group *group);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_set_timeout(shoal_group *group, double seconds);

/*
 * Ends everything on the group, here and on its other members, with SHOAL_ERR_CANCELLED and the reason; from any
 * thread. This includes what FSDP and DDP do on the group. Calls that wait notice it within about 100 ms. The call
 * itself waits for nobody: a member that is stopped hears of it when it goes on. `reason` may be NULL.
 */
SHOAL_API shoal_status shoal_group_abort(shoal_group *group, const char *reason);

/*
 * SHOAL_OK, or why every call on the group fails, with its text. Asks nobody: a member that has not used the group yet
 * may hear of a failure only with its first call.
 */
SHOAL_API shoal_status shoal_group_error(shoal_group *group);

/* Collectives ------------------------------------------------------------------------------------------ */

/* Ends when all members have called it. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_barrier(shoal_group *group);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_barrier_start(shoal_group *group, shoal_work **work_out);

/* count elements of the root into everybody's buffer. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_broadcast(shoal_group *group, void *buffer, size_t count,
                                                              shoal_dtype dtype, int root);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_broadcast_start(shoal_group *group, void *buffer,
                                                                    size_t count, shoal_dtype dtype, int root,
                                                                    shoal_work **work_out);

/* send == recv: in place. SHOAL_PREMUL_SUM needs a factor, which shoal_group_run takes. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_reduce(shoal_group *group, const void *send,
                                                               void *recv, size_t count, shoal_dtype dtype,
                                                               shoal_reduce_op reduce);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_reduce_start(shoal_group *group, const void *send,
                                                                     void *recv, size_t count,
                                                                     shoal_dtype dtype,
                                                                     shoal_reduce_op reduce,
                                                                     shoal_work **work_out);

/* recv is written on the root only, and may be NULL elsewhere. send == recv: in place. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce(shoal_group *group, const void *send, void *recv,
                                                           size_t count, shoal_dtype dtype,
                                                           shoal_reduce_op reduce, int root);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce_start(shoal_group *group, const void *send,
                                                                 void *recv, size_t count, shoal_dtype dtype,
                                                                 shoal_reduce_op reduce, int root,
                                                                 shoal_work **work_out);

/* recv has n_ranks * count elements. In place: send == recv + rank * count. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_gather(shoal_group *group, const void *send,
                                                               void *recv, size_t count, shoal_dtype dtype);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_gather_start(shoal_group *group, const void *send,
                                                                     void *recv, size_t count,
                                                                     shoal_dtype dtype,
                                                                     shoal_work **work_out);

/* counts[r] elements of rank r, one after the other; the same counts on every rank. In place: send at its own part of
   recv. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_gather_v(shoal_group *group, const void *send,
                                                                 void *recv, const size_t *counts,
                                                                 shoal_dtype dtype);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_gather_v_start(shoal_group *group, const void *send,
                                                                       void *recv, const size_t *counts,
                                                                       shoal_dtype dtype,
                                                                       shoal_work **work_out);

/* send has n_ranks * count elements. In place: recv == send + rank * count. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce_scatter(shoal_group *group, const void *send,
                                                                   void *recv, size_t count,
                                                                   shoal_dtype dtype, shoal_reduce_op reduce);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce_scatter_start(shoal_group *group, const void *send,
                                                                         void *recv, size_t count,
                                                                         shoal_dtype dtype,
                                                                         shoal_reduce_op reduce,
                                                                         shoal_work **work_out);

/* Rank r gets counts[r] elements; the same counts on every rank. In place: recv at its own part of send. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce_scatter_v(shoal_group *group, const void *send,
                                                                     void *recv, const size_t *counts,
                                                                     shoal_dtype dtype,
                                                                     shoal_reduce_op reduce);
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_group_reduce_scatter_v_start(shoal_group *group, const void *send, void *recv, const size_t *counts,
                                   shoal_dtype dtype, shoal_reduce_op reduce, shoal_work **work_out);

/* Block r of send goes to rank r; count elements a block. send == recv: in place. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_to_all(shoal_group *group, const void *send,
                                                               void *recv, size_t count, shoal_dtype dtype);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_to_all_start(shoal_group *group, const void *send,
                                                                     void *recv, size_t count,
                                                                     shoal_dtype dtype,
                                                                     shoal_work **work_out);

/* send_counts[r] elements to rank r, recv_counts[r] from rank r, one after the other; never in place. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_to_all_v(shoal_group *group, const void *send,
                                                                 const size_t *send_counts, void *recv,
                                                                 const size_t *recv_counts,
                                                                 shoal_dtype dtype);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_to_all_v_start(shoal_group *group, const void *send,
                                                                       const size_t *send_counts, void *recv,
                                                                       const size_t *recv_counts,
                                                                       shoal_dtype dtype,
                                                                       shoal_work **work_out);

/* recv, n_ranks * count elements, is written on the root only. In place there: send == recv + root * count. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_gather(shoal_group *group, const void *send, void *recv,
                                                           size_t count, shoal_dtype dtype, int root);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_gather_start(shoal_group *group, const void *send,
                                                                 void *recv, size_t count, shoal_dtype dtype,
                                                                 int root, shoal_work **work_out);

/* counts[r] elements of rank r, one after the other, to the root; the same counts on every rank. In place there: send
   at its own part of recv. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_gather_v(shoal_group *group, const void *send, void *recv,
                                                             const size_t *counts, shoal_dtype dtype,
                                                             int root);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_gather_v_start(shoal_group *group, const void *send,
                                                                   void *recv, const size_t *counts,
                                                                   shoal_dtype dtype, int root,
                                                                   shoal_work **work_out);

/* send, n_ranks * count elements, is read on the root only. In place there: recv == send + root * count. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_scatter(shoal_group *group, const void *send, void *recv,
                                                            size_t count, shoal_dtype dtype, int root);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_scatter_start(shoal_group *group, const void *send,
                                                                  void *recv, size_t count, shoal_dtype dtype,
                                                                  int root, shoal_work **work_out);

/* Rank r gets counts[r] elements of the root's send; the same counts on every rank. In place there: recv at its own
   part of send. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_scatter_v(shoal_group *group, const void *send,
                                                              void *recv, const size_t *counts,
                                                              shoal_dtype dtype, int root);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_scatter_v_start(shoal_group *group, const void *send,
                                                                    void *recv, const size_t *counts,
                                                                    shoal_dtype dtype, int root,
                                                                    shoal_work **work_out);

/* By descriptor ---------------------------------------------------------------------------------------- */

/*
 * The general form of the calls above: one struct for all kinds, filled in by an initializer of its kind. Use it for
 * what the plain calls do not have: factors, several operations at once, a buffer for every rank, a deadline of the
 * call's own, functions that are called at its end.
 *
 *     shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(send, recv, count, SHOAL_F32, SHOAL_PREMUL_SUM);
 *     call.factor = 0.5;
 *     call.timeout_s = 10;
 *     status = shoal_group_run(group, &call);
 *
 * Tensors that lie anywhere, one for each rank, without a buffer for all of them between: gather to rank 0 (all_gather,
 * scatter and all_to_all likewise; with other sizes SHOAL_COLLECTIVE_GATHER_V and counts).
 *
 *     void *blocks[] = {from_rank_0, from_rank_1, from_rank_2};
 *     shoal_collective call = SHOAL_COLLECTIVE_GATHER(send, NULL, count, SHOAL_F32, 0);
 *     if (shoal_group_rank(group) == 0) call.recv_blocks = blocks;
 *     status = shoal_group_run(group, &call);
 *
 * Several tensors of any sizes at the cost of one call:
 *
 *     shoal_part parts[] = {{w, w, w_count}, {bias, bias, bias_count}};
 *     shoal_collective call = SHOAL_COLLECTIVE_ALL_REDUCE(NULL, NULL, 0, SHOAL_F32, SHOAL_AVG);
 *     call.parts = parts;
 *     call.n_parts = 2;
 *     status = shoal_group_run(group, &call);
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

/* One of several operations that cost one synchronization together. What one part writes, no other may read or
   write. */
typedef struct shoal_part {
    const void *send;
    void *recv;
    size_t count; /* as in the plain call */
} shoal_part;

/*
 * Lists and counts are copied: they may be freed when the call returns, the buffers not before it has ended.
 *
 * - counts: for all_gather_v, reduce_scatter_v, gather_v and scatter_v; n_ranks of them, the same on every rank.
 * - send_counts, recv_counts: for all_to_all_v.
 * - factor: with SHOAL_PREMUL_SUM, which gives the sum of factor * value. The same on every rank; floating and complex
 *   dtypes.
 * - parts: instead of send, recv and count, for kinds without counts; several operations in one call. All parts have
 *   the one dtype; calls that only move data can give bytes as SHOAL_U8.
 * - send_blocks, recv_blocks: instead of a send or recv that has a block for every rank; the buffer of each block,
 *   n_ranks of them. Where its blocks are is each rank's own affair and not compared. In place as in the plain calls:
 *   the rank's own block, and in all_to_all any recv_blocks[r] == send_blocks[r].
 * - timeout_s: how long this call may take, counted from now, at most 1e9; 0: the group's timeout. After it the group
 *   has failed, as after its own. A call that waits behind others on its group is checked when they have ended.
 * - on_done, release: for shoal_group_start only. They are called with `context` when the call has ended and when its
 *   buffers are free (shoal/work.h), exactly once each, also when the work was given up, the group was aborted or the
 *   world closed. They are not called when shoal_group_start fails: then nothing was started.
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
    const size_t *counts;
    const size_t *send_counts;
    const size_t *recv_counts;
    const void *const *send_blocks;
    void *const *recv_blocks;
    const shoal_part *parts;
    size_t n_parts;
    double factor;
    double timeout_s;
    shoal_done_function on_done;
    shoal_release_function release;
    void *context;
} shoal_collective;

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_run(shoal_group *group, const shoal_collective *call);
/* With on_done or release, work_out may be NULL: nobody will wait. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_start(shoal_group *group, const shoal_collective *call,
                                                          shoal_work **work_out);

/* No kind yet, all else 0. */
#define SHOAL_COLLECTIVE_INIT SHOAL_SIZED(shoal_collective)

/* All fields: the initializers of the kinds end here. */
#define SHOAL_COLLECTIVE_OF(kind, dtype, reduce, root, send, recv, count, counts, send_counts, recv_counts) \
    {                                                                                                       \
        sizeof(shoal_collective), kind, dtype, reduce, root, send, recv, count, counts, send_counts,        \
            recv_counts, NULL, NULL, NULL, 0, 0.0, 0.0, NULL, NULL, NULL                                    \
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

/*
 * A stream per (source, destination, tag), apart from the collectives of the group. Messages of a stream arrive
 * in order; streams do not wait for each other. A receive that names another count or dtype than the send fails
 * with SHOAL_ERR_MISMATCH, and so does everything on that stream from then on, on both sides; other streams and the
 * collectives go on. A rank may send to itself with _start; a blocking call that would wait
 * for its own thread is SHOAL_ERR_STATE. A send may return before anybody receives: what is small is kept. A receive
 * names its source: there is none from whoever comes first.
 *
 * `peer` is a rank of the group. Tags are 0 or more; a rank can use about a thousand of them to send to another.
 * A failure that is known when _start returns is returned by it, and there is no work. The deadline is the group's
 * (shoal_group_set_timeout); past it the whole group has failed, not just the stream. Whoever will not wait asks for a
 * call at the end (shoal_work_on_done) and frees the work.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_send(shoal_group *group, const void *buffer, size_t count,
                                                         shoal_dtype dtype, int peer, int tag);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_send_start(shoal_group *group, const void *buffer,
                                                               size_t count, shoal_dtype dtype, int peer,
                                                               int tag, shoal_work **work_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_recv(shoal_group *group, void *buffer, size_t count,
                                                         shoal_dtype dtype, int peer, int tag);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_recv_start(shoal_group *group, void *buffer, size_t count,
                                                               shoal_dtype dtype, int peer, int tag,
                                                               shoal_work **work_out);

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

/* All of them posted before any is waited for: rings and exchanges cannot deadlock. One work for the batch,
   which ends when all have; its status is the first failure in the order of the list. What one receives, no other may
   send or receive. The list is copied. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_transfer(shoal_group *group,
                                                             const shoal_transfer *transfers,
                                                             size_t n_transfers);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_transfer_start(shoal_group *group,
                                                                   const shoal_transfer *transfers,
                                                                   size_t n_transfers, shoal_work **work_out);

SHOAL_END_DECLS

#endif
