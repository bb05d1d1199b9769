/* SPDX-License-Identifier: MIT */
/*
 * Collectives as functions on tensors.
 *
 * Every call whose inputs are there returns at once, with a tensor whose contents are on their way. The first use of it
 * waits: shoal_data, any op that is not a view, printing, exporting. Views do not wait, nor do questions about shape
 * and dtype. Waiting twice costs nothing. A tensor in flight may be handed to anything that takes a tensor, which then
 * waits. Inputs are not changed, except by names that end in `_`, `_out` or `_inplace`, by receiving and by copies into
 * symmetric memory, and may be dropped at once; they must not be written through an old pointer before the result has
 * arrived (shoal_mutable_data and ops wait for that by themselves). SHOAL_SYNC=1 makes every collective wait before it
 * returns.
 *
 * Waiting is by bytes: calls on parts of one storage that are apart, such as slices of one buffer of gradients, are in
 * flight together, fail by themselves, and may be made in different orders on different groups. A view with gaps counts
 * as all bytes from its first to its last. So calls that write views which lie between each other, such as columns,
 * wait for each other in the order of the calls; made in different orders on several groups they may wait for ever.
 *
 *     shoal_tensor *mean = shoal_all_reduce(gradient, SHOAL_AVG, shoal_world_group(world));
 *     ... compute something else ...
 *     const float *values = shoal_data(mean);
 *
 * All members of a group call the same collectives in the same order (shoal/group.h). Results are contiguous. Tensors
 * may be empty; inputs may have any strides. Dimensions may be negative. G is the number of ranks of the group, ranks
 * are ranks of the group, and every rank gives the same shape unless a call says otherwise. Ranks compare operation,
 * shapes, dimensions and permutations; a difference is SHOAL_ERR_MISMATCH on all ranks. Forms of one operation (in
 * place, into a tensor, coalesced with one tensor) may be mixed; functional and raw calls may not.
 *
 * Gradients: each rank's own; the gradient of a collective is its adjoint over the whole group. A loss that every rank
 * has, in the same form, therefore gives the sum over ranks. Backward is made of collectives too: the same tensors must
 * require a gradient on all ranks, and all must walk back alike; ranks compare which call a gradient belongs to. What
 * cannot be differentiated says so.
 *
 * Ownership: results belong to the innermost scope. Groups are borrowed; they live until they are closed. A backward
 * through a collective after shoal_group_close or shoal_world_close is SHOAL_ERR_STATE and names the group.
 * Threads: any, each in its own scope.
 * Errors: a wrong argument fails the call (NULL, with the reason in the scope), and the group goes on as if it had not
 * been made. What goes wrong later (another rank differs, died, or never came) is the error of the first use, and of
 * every later one, of any tensor with bytes that were to be written, until one call overwrites all of those.
 */
#ifndef SHOAL_COLLECTIVE_H
#define SHOAL_COLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/group.h"
#include "shoal/mesh.h"
#include "shoal/op.h"
#include "shoal/status.h"
#include "shoal/tensor.h"
#include "shoal/window.h"
#include "shoal/world.h"

SHOAL_BEGIN_DECLS

/* Reductions ------------------------------------------------------------------------------------------- */

/* Gradient: sum, avg and premul_sum likewise; min and max: the summed gradient where the input was the result, to
   every rank that was (ties), or was NaN. The others have none, which shoal_backward says. */
SHOAL_API shoal_tensor *shoal_all_reduce(shoal_tensor *self, shoal_reduce_op reduce, shoal_group *group);
SHOAL_API shoal_tensor *shoal_all_reduce_(shoal_tensor *self, shoal_reduce_op reduce, shoal_group *group);
/* Each tensor of the list by itself, but one synchronization for all. One dtype, any shapes. Those that are written in
   place must not share memory; they may lie between each other, as columns do. So in all lists that are written. */
SHOAL_API shoal_tensor *const *shoal_all_reduce_coalesced(shoal_tensor *const *tensors, size_t n_tensors,
                                                          shoal_reduce_op reduce, shoal_group *group);
/* The reduction on the root, zeros elsewhere. Gradient: of sum, the root's broadcast. */
SHOAL_API shoal_tensor *shoal_reduce(shoal_tensor *self, shoal_reduce_op reduce, int root,
                                     shoal_group *group);

/*
 * Block r, of G equal ones along scatter_dim, reduced over all ranks, on rank r. Gradient of sum, avg and premul_sum:
 * all_gather_tensor, scaled likewise.
 */
SHOAL_API shoal_tensor *shoal_reduce_scatter_tensor(shoal_tensor *self, shoal_reduce_op reduce,
                                                    int64_t scatter_dim, shoal_group *group);
/* scatter_dims has one entry for each tensor; NULL: dimension 0 for all. */
SHOAL_API shoal_tensor *const *shoal_reduce_scatter_tensor_coalesced(shoal_tensor *const *tensors,
                                                                     size_t n_tensors, shoal_reduce_op reduce,
                                                                     const int64_t *scatter_dims,
                                                                     shoal_group *group);

/* Moving data ------------------------------------------------------------------------------------------ */

/* Blocks of all ranks, in their order, along gather_dim. Gradient: reduce_scatter_tensor, sum. */
SHOAL_API shoal_tensor *shoal_all_gather_tensor(shoal_tensor *self, int64_t gather_dim, shoal_group *group);
SHOAL_API shoal_tensor *const *shoal_all_gather_into_tensor_coalesced(shoal_tensor *const *tensors,
                                                                      size_t n_tensors, shoal_group *group);

/*
 * Rows of dimension 0: input_splits[q] of them go to rank q, output_splits[q] come from rank q. Both lists have
 * n_splits == G entries; or both are NULL, n_splits 0: G equal blocks. What q sends here must be what is expected.
 * Gradient: the same with the lists exchanged.
 */
SHOAL_API shoal_tensor *shoal_all_to_all_single(shoal_tensor *self, const int64_t *output_splits,
                                                const int64_t *input_splits, size_t n_splits,
                                                shoal_group *group);

/* The tensor of rank `root`. Gradient: the sum to the root, zeros elsewhere. */
SHOAL_API shoal_tensor *shoal_broadcast(shoal_tensor *self, int root, shoal_group *group);
SHOAL_API shoal_tensor *shoal_broadcast_(shoal_tensor *self, int root, shoal_group *group);

/* Point to point: streams and tags as in shoal/group.h ------------------------------------------------- */

/* What is wrong and known already (a message has arrived, and differs) fails the call, not the first use. SHOAL_SYNC
   makes none of these wait: the peer may do the same first. */

/* Gives an empty tensor of the same dtype; waiting for it waits until `self` may be reused. */
SHOAL_API shoal_tensor *shoal_isend(shoal_tensor *self, int destination, int tag, shoal_group *group);
/* Fills `self` and returns it. */
SHOAL_API shoal_tensor *shoal_irecv(shoal_tensor *self, int source, int tag, shoal_group *group);

typedef struct shoal_p2p_op {
    shoal_direction direction;
    shoal_tensor *tensor;
    int peer;
    int tag;
} shoal_p2p_op;

/* All of them posted before any waits. For each, in order, what shoal_isend or shoal_irecv gives. */
SHOAL_API shoal_tensor *const *shoal_batch_p2p_ops(const shoal_p2p_op *ops, size_t n_ops, shoal_group *group);

/* Symmetric memory ------------------------------------------------------------------------------------- */

/*
 * A contiguous tensor over the caller's block of symmetric memory, `offset` bytes from its start, which must suit the
 * dtype. It must not be used, or be in flight, after shoal_symmetric_free. Two tensors made by two calls do not know
 * what is in flight for the other: make one and take views of it.
 */
SHOAL_API shoal_tensor *shoal_symmetric_tensor(shoal_symmetric *symmetric, size_t offset,
                                               const int64_t *shape, int n_dims, shoal_dtype dtype);

/* By name ---------------------------------------------------------------------------------------------- */

/*
 * shoal_op_call (shoal/op.h) for collectives, as the functions above make it: while the scope is traced, the result is
 * waited for in the trace, so that a graph says where data is needed. Use it for what has no function here: a sum of
 * factor * value, which is the operator "premul_sum" with the op's last argument, `factor` (the same on every rank);
 * outputs that the caller has ("all_gather_tensor_inplace"); tensors in symmetric memory ("one_shot_all_reduce").
 * shoal/compat_torch.h has functions for all of these.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_op_call_collective(const shoal_op *op,
                                                                 const shoal_value *arguments,
                                                                 size_t n_arguments, shoal_value *result_out);

SHOAL_END_DECLS

#endif
