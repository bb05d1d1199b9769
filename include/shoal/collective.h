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
 * as all bytes from its first to its last. So calls that write views which lie between each other, such as columns, wait
 * for each other in the order of the calls; made in different orders on several groups they may wait for ever.
 *
 *     shoal_tensor *mean = shoal_all_reduce(gradient, SHOAL_AVG, shoal_world_group(world));
 *     ... compute something else ...
 *     const float *values = shoal_data(mean);
 *
 * All members of a group call the same collectives in the same order (shoal/group.h). Results are contiguous. Tensors
 * may be empty; inputs may have any strides. Dimensions may be negative. G is the number of ranks of the group, ranks are
 * ranks of the group, and every rank gives the same shape unless a call says otherwise.
 *
 * Gradients: each rank's own; the gradient of a collective is its adjoint over the whole group. A loss that every rank
 * has, in the same form, therefore gives the sum over ranks. Backward is made of collectives too: the same tensors must
 * require a gradient on all ranks, and all must walk back alike. What can not be differentiated says so.
 *
 * Ownership: results belong to the innermost scope. Groups are borrowed; they live as long as their world. What was
 * recorded for backward holds them too: backward comes before shoal_world_close.
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
#include "shoal/tensor.h"
#include "shoal/window.h"
#include "shoal/world.h"

SHOAL_BEGIN_DECLS

/* The group argument ----------------------------------------------------------------------------------- */

/*
 * Ways to say which group. All give a borrowed group, which lives as long as the world, and the same one whenever they
 * are asked for the same. On failure: NULL, with the reason in shoal_error_text and, if one is open, in the scope, so
 * that they can be written in the place of an argument.
 */

/* A name as shoal_group_name gives it: "0,2/tag", "world/tag". "" and "world": all ranks. */
SHOAL_API shoal_group *shoal_group_of_name(shoal_world *world, const char *name);
/* World ranks in order, of which the caller is one. `tag` may be NULL. */
SHOAL_API shoal_group *shoal_group_of_ranks(shoal_world *world, const int *ranks, int n_ranks,
                                            const char *tag);
/* Of several lists, all equally long, the one that the caller is in. n_ranks[i] is the length of lists[i]. */
SHOAL_API shoal_group *shoal_group_of_rank_lists(shoal_world *world, const int *const *lists,
                                                 const int *n_ranks, int n_lists, const char *tag);
/* That of a mesh of one dimension. */
SHOAL_API shoal_group *shoal_group_of_mesh(const shoal_mesh *mesh);
SHOAL_API shoal_group *shoal_group_of_mesh_dim(const shoal_mesh *mesh, int dim);

/* Waiting ---------------------------------------------------------------------------------------------- */

/* Waits for the contents and returns the same tensor. */
SHOAL_API shoal_tensor *shoal_wait_tensor(shoal_tensor *self);
SHOAL_API shoal_tensor *const *shoal_wait_tensors(shoal_tensor *const *tensors, size_t n_tensors);

/* Reductions ------------------------------------------------------------------------------------------- */

/* Gradient: sum, avg and premul_sum likewise; min and max: the summed gradient where the input was the result, to
   every rank that was (ties), or was NaN. The others have none, which shoal_backward says. */
SHOAL_API shoal_tensor *shoal_all_reduce(shoal_tensor *self, shoal_reduce reduce, shoal_group *group);
SHOAL_API shoal_tensor *shoal_all_reduce_(shoal_tensor *self, shoal_reduce reduce, shoal_group *group);
/* _premul, here and below: the sum of factor * value; the same factor on every rank. */
SHOAL_API shoal_tensor *shoal_all_reduce_premul(shoal_tensor *self, double factor, shoal_group *group);
SHOAL_API shoal_tensor *shoal_all_reduce_premul_(shoal_tensor *self, double factor, shoal_group *group);
/* Each tensor of the list by itself, but one synchronisation for all. One dtype, any shapes. Those that are written in place
   must not share memory; they may lie between each other, as columns do. So in all lists that are written. */
SHOAL_API shoal_tensor *const *shoal_all_reduce_coalesced(shoal_tensor *const *tensors, size_t n_tensors,
                                                          shoal_reduce reduce, shoal_group *group);
SHOAL_API shoal_tensor *const *shoal_all_reduce_coalesced_(shoal_tensor *const *tensors, size_t n_tensors,
                                                           shoal_reduce reduce, shoal_group *group);
SHOAL_API shoal_tensor *const *shoal_all_reduce_coalesced_premul(shoal_tensor *const *tensors,
                                                                 size_t n_tensors, double factor,
                                                                 shoal_group *group);
SHOAL_API shoal_tensor *const *shoal_all_reduce_coalesced_premul_(shoal_tensor *const *tensors,
                                                                  size_t n_tensors, double factor,
                                                                  shoal_group *group);
/* The reduction on the root, zeros elsewhere. Gradient: of sum, the root's broadcast. */
SHOAL_API shoal_tensor *shoal_reduce_tensor(shoal_tensor *self, shoal_reduce reduce, int root,
                                            shoal_group *group);
SHOAL_API shoal_tensor *shoal_reduce_tensor_premul(shoal_tensor *self, double factor, int root,
                                                   shoal_group *group);

/*
 * Block r, of G equal ones along scatter_dim, reduced over all ranks, on rank r. Gradient of sum, avg and premul_sum:
 * all_gather_tensor, scaled likewise.
 */
SHOAL_API shoal_tensor *shoal_reduce_scatter_tensor(shoal_tensor *self, shoal_reduce reduce,
                                                    int64_t scatter_dim, shoal_group *group);
SHOAL_API shoal_tensor *shoal_reduce_scatter_tensor_premul(shoal_tensor *self, double factor,
                                                           int64_t scatter_dim, shoal_group *group);
/* Along dimension 0, into `out`. */
SHOAL_API shoal_tensor *shoal_reduce_scatter_tensor_out(shoal_tensor *self, shoal_reduce reduce,
                                                        shoal_group *group, shoal_tensor *out);
SHOAL_API shoal_tensor *shoal_reduce_scatter_tensor_premul_out(shoal_tensor *self, double factor,
                                                               shoal_group *group, shoal_tensor *out);
/* scatter_dims has one entry for each tensor; NULL: dimension 0 for all. */
SHOAL_API shoal_tensor *const *shoal_reduce_scatter_tensor_coalesced(shoal_tensor *const *tensors,
                                                                     size_t n_tensors, shoal_reduce reduce,
                                                                     const int64_t *scatter_dims,
                                                                     shoal_group *group);
SHOAL_API shoal_tensor *const *shoal_reduce_scatter_tensor_coalesced_premul(shoal_tensor *const *tensors,
                                                                            size_t n_tensors, double factor,
                                                                            const int64_t *scatter_dims,
                                                                            shoal_group *group);

/* Moving data ------------------------------------------------------------------------------------------ */

/* Blocks of all ranks, in their order, along gather_dim. Gradient: reduce_scatter_tensor, sum. */
SHOAL_API shoal_tensor *shoal_all_gather_tensor(shoal_tensor *self, int64_t gather_dim, shoal_group *group);
/* Along dimension 0; a 0-d tensor gives [G]. */
SHOAL_API shoal_tensor *shoal_all_gather_into_tensor(shoal_tensor *self, shoal_group *group);
SHOAL_API shoal_tensor *shoal_all_gather_into_tensor_out(shoal_tensor *self, shoal_group *group,
                                                         shoal_tensor *out);
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

/*
 * destinations[m] is the rank that gets the tensor of rank m; none twice, n_destinations <= G. A rank to which nobody
 * sends gets a tensor whose dimension 0 is 0. Gradient: the way back.
 */
SHOAL_API shoal_tensor *shoal_permute_tensor(shoal_tensor *self, const int64_t *destinations,
                                             size_t n_destinations, shoal_group *group);

/* From shards along gather_dim to shards along shard_dim: that one is divided by G, the other multiplied. */
SHOAL_API shoal_tensor *shoal_shard_dim_alltoall(shoal_tensor *self, int64_t gather_dim, int64_t shard_dim,
                                                 shoal_group *group);

/* Point to point: streams and tags as in shoal/group.h ------------------------------------------------- */

/* What is wrong and known already (a message has arrived, and differs) fails the call, not the first use. SHOAL_SYNC makes
   none of these wait: the peer may do the same first. */

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

/* Into the caller's tensors ---------------------------------------------------------------------------- */

/* For programs written against calls with an output argument. What is written is returned. */
SHOAL_API shoal_tensor *shoal_all_reduce_inplace(shoal_tensor *self, shoal_reduce reduce, shoal_group *group);
SHOAL_API shoal_tensor *shoal_all_reduce_premul_inplace(shoal_tensor *self, double factor,
                                                        shoal_group *group);
SHOAL_API shoal_tensor *shoal_all_gather_tensor_inplace(shoal_tensor *out, shoal_tensor *self,
                                                        int64_t gather_dim, shoal_group *group);
SHOAL_API shoal_tensor *shoal_reduce_scatter_tensor_inplace(shoal_tensor *out, shoal_tensor *self,
                                                            shoal_reduce reduce, int64_t scatter_dim,
                                                            shoal_group *group);
SHOAL_API shoal_tensor *shoal_reduce_scatter_tensor_premul_inplace(shoal_tensor *out, shoal_tensor *self,
                                                                   double factor, int64_t scatter_dim,
                                                                   shoal_group *group);
SHOAL_API shoal_tensor *shoal_all_to_all_inplace(shoal_tensor *out, shoal_tensor *self,
                                                 const int64_t *output_splits, const int64_t *input_splits,
                                                 size_t n_splits, shoal_group *group);
/* outs[r] gets the tensor of rank r; n_outs == G. */
SHOAL_API shoal_tensor *const *shoal_all_gather_inplace(shoal_tensor *const *outs, size_t n_outs,
                                                        shoal_tensor *self, shoal_group *group);

/* Symmetric memory ------------------------------------------------------------------------------------- */

/*
 * A contiguous tensor over the caller's block of symmetric memory, `offset` bytes from its start, which must suit the
 * dtype. It must not be used, or be in flight, after shoal_symmetric_free. Two tensors made by two calls do not know what
 * is in flight for the other: make one and take views of it.
 */
SHOAL_API shoal_tensor *shoal_symmetric_tensor(shoal_symmetric *symmetric, size_t offset,
                                               const int64_t *shape, int n_dims, shoal_dtype dtype);

/*
 * All-reduces of tensors that lie in symmetric memory of the group, anywhere in it; other memory is an error. Bits are
 * those of shoal_all_reduce, and the tables of algorithms choose how it is done.
 */
SHOAL_API shoal_tensor *shoal_one_shot_all_reduce(shoal_tensor *self, shoal_reduce reduce,
                                                  shoal_group *group);
SHOAL_API shoal_tensor *shoal_one_shot_all_reduce_out(shoal_tensor *self, shoal_reduce reduce,
                                                      shoal_group *group, shoal_tensor *out);
/* Copies `source`, which may lie anywhere, into the symmetric `self` first. */
SHOAL_API shoal_tensor *shoal_one_shot_all_reduce_copy(shoal_tensor *self, shoal_tensor *source,
                                                       shoal_reduce reduce, shoal_group *group);
SHOAL_API shoal_tensor *shoal_one_shot_all_reduce_copy_out(shoal_tensor *self, shoal_tensor *source,
                                                           shoal_reduce reduce, shoal_group *group,
                                                           shoal_tensor *out);
SHOAL_API shoal_tensor *shoal_two_shot_all_reduce_(shoal_tensor *self, shoal_reduce reduce,
                                                   shoal_group *group);
SHOAL_API shoal_tensor *shoal_two_shot_all_reduce_out(shoal_tensor *self, shoal_reduce reduce,
                                                      shoal_group *group, shoal_tensor *out);

/* Names that others use -------------------------------------------------------------------------------- */

/* The calls without _autograd: all of them have gradients. */
SHOAL_API shoal_tensor *shoal_all_gather_tensor_autograd(shoal_tensor *self, int64_t gather_dim,
                                                         shoal_group *group);
SHOAL_API shoal_tensor *shoal_reduce_scatter_tensor_autograd(shoal_tensor *self, shoal_reduce reduce,
                                                             int64_t scatter_dim, shoal_group *group);
SHOAL_API shoal_tensor *shoal_all_to_all_single_autograd(shoal_tensor *self, const int64_t *output_splits,
                                                         const int64_t *input_splits, size_t n_splits,
                                                         shoal_group *group);

SHOAL_END_DECLS

#endif
