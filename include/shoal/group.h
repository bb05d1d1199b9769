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
 * Ownership: shoal_group_free gives up the handle; started work goes on.
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

/* One more handle to the same group; returns its argument. */
SHOAL_API shoal_group *shoal_group_ref(shoal_group *group);
/* NULL is allowed; the world's own group is left alone. */
SHOAL_API void shoal_group_free(shoal_group *group);

SHOAL_API int shoal_group_rank(const shoal_group *group); /* the caller's, in the group */
SHOAL_API int shoal_group_n_ranks(const shoal_group *group);
SHOAL_API const char *shoal_group_tag(const shoal_group *group);
/*
 * Ranks and tag as one text, the same on all members, that no other group of the world has: "0,2", "0,2/tag"; "world"
 * and "world/tag" for all ranks in order; a hash in the place of ranks that are too many to list. It never has to be
 * agreed upon, and shoal_group_of_name (shoal/collective.h) gives the group back.
 */
SHOAL_API const char *shoal_group_name(const shoal_group *group);
SHOAL_API shoal_world *shoal_group_world(const shoal_group *group);

/* Between ranks of the group and of the world; -1 for a rank that is not in the group. */
SHOAL_API int shoal_group_world_rank(const shoal_group *group, int group_rank);
SHOAL_API int shoal_group_rank_of(const shoal_group *group, int world_rank);

/* Collectives that were started on this rank so far. */
SHOAL_API uint64_t shoal_group_sequence(const shoal_group *group);

/* How long an operation may take; for those that start from now on. */
SHOAL_API double shoal_group_timeout(const shoal_group *group);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_set_timeout(shoal_group *group, double seconds);

/*
 * Ends everything on the group, here and on its other members, with SHOAL_ERR_CANCELLED and the reason; from any
 * thread. `reason` may be NULL.
 */
SHOAL_API shoal_status shoal_group_abort(shoal_group *group, const char *reason);

/*
 * SHOAL_OK, or why every call on the group fails, with its text. Asks nobody: a member that has not used the group yet
 * hears of a failure with its first call.
 */
SHOAL_API shoal_status shoal_group_error(shoal_group *group);

/* Collectives ------------------------------------------------------------------------------------------ */

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_barrier(shoal_group *group);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_barrier_start(shoal_group *group, shoal_work **work_out);

/* count elements of the root into everybody's buffer. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_broadcast(shoal_group *group, void *buffer, size_t count,
                                                              shoal_dtype dtype, int root);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_broadcast_start(shoal_group *group, void *buffer,
                                                                    size_t count, shoal_dtype dtype, int root,
                                                                    shoal_work **work_out);

/* send == recv: in place. SHOAL_PREMUL_SUM needs the _premul form. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_reduce(shoal_group *group, const void *send,
                                                               void *recv, size_t count, shoal_dtype dtype,
                                                               shoal_reduce reduce);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_reduce_start(shoal_group *group, const void *send,
                                                                     void *recv, size_t count,
                                                                     shoal_dtype dtype, shoal_reduce reduce,
                                                                     shoal_work **work_out);

/* recv is written on the root only, and may be NULL elsewhere. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce(shoal_group *group, const void *send, void *recv,
                                                           size_t count, shoal_dtype dtype,
                                                           shoal_reduce reduce, int root);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce_start(shoal_group *group, const void *send,
                                                                 void *recv, size_t count, shoal_dtype dtype,
                                                                 shoal_reduce reduce, int root,
                                                                 shoal_work **work_out);

/* recv has n_ranks * count elements. In place: send == recv + rank * count. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_gather(shoal_group *group, const void *send,
                                                               void *recv, size_t count, shoal_dtype dtype);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_gather_start(shoal_group *group, const void *send,
                                                                     void *recv, size_t count,
                                                                     shoal_dtype dtype,
                                                                     shoal_work **work_out);

/* counts[r] elements of rank r, one after the other; the same counts on every rank. */
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
                                                                   shoal_dtype dtype, shoal_reduce reduce);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce_scatter_start(shoal_group *group, const void *send,
                                                                         void *recv, size_t count,
                                                                         shoal_dtype dtype,
                                                                         shoal_reduce reduce,
                                                                         shoal_work **work_out);

/* Rank r gets counts[r] elements; the same counts on every rank. In place: recv at its own part of send. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce_scatter_v(shoal_group *group, const void *send,
                                                                     void *recv, const size_t *counts,
                                                                     shoal_dtype dtype, shoal_reduce reduce);
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_group_reduce_scatter_v_start(shoal_group *group, const void *send, void *recv, const size_t *counts,
                                   shoal_dtype dtype, shoal_reduce reduce, shoal_work **work_out);

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

/* send, n_ranks * count elements, is read on the root only. In place there: recv == send + root * count. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_scatter(shoal_group *group, const void *send, void *recv,
                                                            size_t count, shoal_dtype dtype, int root);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_scatter_start(shoal_group *group, const void *send,
                                                                  void *recv, size_t count, shoal_dtype dtype,
                                                                  int root, shoal_work **work_out);

/* Sums of factor * value; the same factor on every rank. Floating and complex dtypes. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_reduce_premul(shoal_group *group, const void *send,
                                                                      void *recv, size_t count,
                                                                      shoal_dtype dtype, double factor);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_reduce_premul_start(shoal_group *group,
                                                                            const void *send, void *recv,
                                                                            size_t count, shoal_dtype dtype,
                                                                            double factor,
                                                                            shoal_work **work_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce_scatter_premul(shoal_group *group,
                                                                          const void *send, void *recv,
                                                                          size_t count, shoal_dtype dtype,
                                                                          double factor);
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_group_reduce_scatter_premul_start(shoal_group *group, const void *send, void *recv, size_t count,
                                        shoal_dtype dtype, double factor, shoal_work **work_out);

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce_premul(shoal_group *group, const void *send,
                                                                  void *recv, size_t count, shoal_dtype dtype,
                                                                  double factor, int root);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce_premul_start(shoal_group *group, const void *send,
                                                                        void *recv, size_t count,
                                                                        shoal_dtype dtype, double factor,
                                                                        int root, shoal_work **work_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce_scatter_v_premul(shoal_group *group,
                                                                            const void *send, void *recv,
                                                                            const size_t *counts,
                                                                            shoal_dtype dtype, double factor);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce_scatter_v_premul_start(
    shoal_group *group, const void *send, void *recv, const size_t *counts, shoal_dtype dtype, double factor,
    shoal_work **work_out);

/* Several at once -------------------------------------------------------------------------------------- */

/* One of a list of operations that cost one synchronisation together. `count` as in the single call. What one part
   writes, no other may read or write. The list is copied; it may be freed when the call returns. */
typedef struct shoal_part {
    const void *send;
    void *recv;
    size_t count;
} shoal_part;

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_reduce_list(shoal_group *group,
                                                                    const shoal_part *parts, size_t n_parts,
                                                                    shoal_dtype dtype, shoal_reduce reduce);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_reduce_list_start(shoal_group *group,
                                                                          const shoal_part *parts,
                                                                          size_t n_parts, shoal_dtype dtype,
                                                                          shoal_reduce reduce,
                                                                          shoal_work **work_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_gather_list(shoal_group *group,
                                                                    const shoal_part *parts, size_t n_parts,
                                                                    shoal_dtype dtype);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_gather_list_start(shoal_group *group,
                                                                          const shoal_part *parts,
                                                                          size_t n_parts, shoal_dtype dtype,
                                                                          shoal_work **work_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce_scatter_list(shoal_group *group,
                                                                        const shoal_part *parts,
                                                                        size_t n_parts, shoal_dtype dtype,
                                                                        shoal_reduce reduce);
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_group_reduce_scatter_list_start(shoal_group *group, const shoal_part *parts, size_t n_parts,
                                      shoal_dtype dtype, shoal_reduce reduce, shoal_work **work_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_all_reduce_list_premul(shoal_group *group,
                                                                           const shoal_part *parts,
                                                                           size_t n_parts, shoal_dtype dtype,
                                                                           double factor);
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_group_all_reduce_list_premul_start(shoal_group *group, const shoal_part *parts, size_t n_parts,
                                         shoal_dtype dtype, double factor, shoal_work **work_out);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_reduce_scatter_list_premul(
    shoal_group *group, const shoal_part *parts, size_t n_parts, shoal_dtype dtype, double factor);
SHOAL_API SHOAL_MUST_CHECK shoal_status
shoal_group_reduce_scatter_list_premul_start(shoal_group *group, const shoal_part *parts, size_t n_parts,
                                             shoal_dtype dtype, double factor, shoal_work **work_out);
/* send is ignored; recv is the buffer. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_broadcast_list(shoal_group *group,
                                                                   const shoal_part *parts, size_t n_parts,
                                                                   shoal_dtype dtype, int root);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_group_broadcast_list_start(shoal_group *group,
                                                                         const shoal_part *parts,
                                                                         size_t n_parts, shoal_dtype dtype,
                                                                         int root, shoal_work **work_out);

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
 * A failure that is known when _start returns is returned by it, and there is no work.
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

/* All of them posted before any is waited for: rings and exchanges can not deadlock. One work for the batch,
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
