/* SPDX-License-Identifier: MIT */
/*
 * Collectives as functions on tensors.
 *
 * A call returns at once if its inputs have arrived. Its result is a tensor in flight: the first use of the contents
 * waits for them. Uses are shoal_data, any op that is not a view, printing and exporting. Views do not wait, nor do
 * questions about shape and dtype. Waiting twice costs nothing. A tensor in flight may be passed to anything that takes
 * a tensor. SHOAL_SYNC=1 makes every collective wait before it returns.
 *
 * Inputs may be released at once. They are not changed, except by calls whose names end in `_`, `_out` or `_inplace`,
 * by receiving, and by copies into symmetric memory. They must not be written through an old pointer before the result
 * has arrived; shoal_mutable_data and ops wait for that by themselves.
 *
 * Waiting is by bytes. Calls on separate parts of one storage, such as slices of one buffer of gradients, are in flight
 * together, fail independently, and may be made in different orders on different groups. A view with gaps counts as all
 * bytes from its first to its last. So calls that write interleaved views, such as columns, wait for each other in the
 * order of the calls. If ranks make such calls in different orders on several groups, they may deadlock.
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
 * Gradients: every rank differentiates its own loss, and the gradient of a collective is its adjoint over the whole
 * group. If every rank computes the same loss, gradients are therefore summed over ranks. The backward pass makes
 * collectives too: the same tensors must require a gradient on all ranks, and all ranks must run backward passes
 * through the same calls in the same order. Ranks compare which call a gradient belongs to. An operation that has no
 * gradient is an error that names it.
 *
 * Ownership: results belong to the innermost scope. Groups are borrowed; they live until they are closed. A backward
 * pass through a collective after shoal_group_close or shoal_world_close is SHOAL_ERR_STATE and names the group.
 * Threads: any, each in its own scope.
 * Errors: a wrong argument fails the call (NULL, with the reason in the scope), and the group goes on as if it had not
 * been made. A failure that is found later (another rank made a different call, died, or did not arrive in time) is the
 * error of every use of a tensor with bytes that the call was to write, until one call overwrites all of those bytes.
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

/* Reduces the tensor over all ranks; every rank gets the result. The form with `_` writes it into `self`. Gradient of
   sum, avg and premul_sum: the same reduction of the gradients. Of min and max: the summed gradient, on every rank
   whose element was the result (also if several were) or was NaN. Other operators have none: shoal_backward says so. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_all_reduce(shoal_tensor *self, shoal_reduce_op reduce,
                                                          shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_all_reduce_(shoal_tensor *self, shoal_reduce_op reduce,
                                                           shoal_group *group);
/* Reduces each tensor of the list by itself, with one synchronization for all. One dtype, any shapes. In this and all
   other calls with lists, tensors that are written in place must not share memory; they may be interleaved, as columns
   are. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *const *shoal_all_reduce_coalesced(shoal_tensor *const *tensors,
                                                                           size_t n_tensors,
                                                                           shoal_reduce_op reduce,
                                                                           shoal_group *group);
/* Reduces the tensor over all ranks. The root gets the result, the others zeros. Gradient of sum: a broadcast of the
   root's gradient. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_reduce(shoal_tensor *self, shoal_reduce_op reduce, int root,
                                                      shoal_group *group);

/*
 * Cuts the tensor into G equal blocks along scatter_dim, and reduces them over all ranks; rank r gets block r. Gradient
 * of sum, avg and premul_sum: all_gather_tensor, with the same scaling.
 */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_reduce_scatter_tensor(shoal_tensor *self,
                                                                     shoal_reduce_op reduce,
                                                                     int64_t scatter_dim, shoal_group *group);
/* Reduces and scatters each tensor of the list, with one synchronization for all. scatter_dims has one entry for each
   tensor; NULL means dimension 0 for all. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *const *shoal_reduce_scatter_tensor_coalesced(
    shoal_tensor *const *tensors, size_t n_tensors, shoal_reduce_op reduce, const int64_t *scatter_dims,
    shoal_group *group);

/* Moving data ------------------------------------------------------------------------------------------ */

/* Concatenates the tensors of all ranks, in rank order, along gather_dim. Gradient: reduce_scatter_tensor, sum. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_all_gather_tensor(shoal_tensor *self, int64_t gather_dim,
                                                                 shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *const *shoal_all_gather_into_tensor_coalesced(
    shoal_tensor *const *tensors, size_t n_tensors, shoal_group *group);

/*
 * Exchanges rows (of dimension 0): sends input_splits[q] of them to rank q, and receives output_splits[q] from rank q.
 * Both lists have n_splits == G entries; or both are NULL and n_splits is 0, which means G equal blocks. A rank must
 * send as many rows as its peer expects. Gradient: all_to_all_single with the lists exchanged.
 */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_all_to_all_single(shoal_tensor *self,
                                                                 const int64_t *output_splits,
                                                                 const int64_t *input_splits, size_t n_splits,
                                                                 shoal_group *group);

/* Gives every rank the tensor of rank `root`. Gradient: the sum of all gradients on the root, zeros elsewhere. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_broadcast(shoal_tensor *self, int root, shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_broadcast_(shoal_tensor *self, int root, shoal_group *group);

/* Point to point: streams and tags as in shoal/group.h ------------------------------------------------- */

/* A failure that is already known (a message has arrived, and has another shape) fails the call, not the first use.
   SHOAL_SYNC does not make these calls wait: if the peer waited first too, both would deadlock. */

/* Sends `self`. Returns an empty tensor of the same dtype; waiting for it waits until `self` may be reused. */
SHOAL_API shoal_tensor *shoal_isend(shoal_tensor *self, int destination, int tag, shoal_group *group);
/* Receives into `self`, and returns it: in flight until the message has arrived. */
SHOAL_API shoal_tensor *shoal_irecv(shoal_tensor *self, int source, int tag, shoal_group *group);

typedef struct shoal_p2p_op {
    shoal_direction direction;
    shoal_tensor *tensor;
    int peer;
    int tag;
} shoal_p2p_op;

/* Posts all of them before any waits. Returns a list: for each, in order, what shoal_isend or shoal_irecv returns. */
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
 * shoal_compat/torch.h has functions for all of these.
 */
SHOAL_API SHOAL_COLLECTIVE SHOAL_MUST_CHECK shoal_status shoal_op_call_collective(
    const shoal_op *op, const shoal_value *arguments, size_t n_arguments, shoal_value *result_out);

SHOAL_END_DECLS

#endif
