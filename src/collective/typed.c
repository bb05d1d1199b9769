/* SPDX-License-Identifier: MIT */
/*
 * The typed functions of shoal/collective.h: box the arguments, call the row. Under a tracer every collective is
 * followed by its wait, so that a graph says where data is needed; only what stands for a send of its own is left alone.
 */
#include "shoal/collective.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "op/box.h"
#include "tensor/scope.h"

/* Calling ---------------------------------------------------------------------------------------------- */

static bool is_traced(void)
{
    return scope_current() && scope_current()->tracer;
}

static shoal_tensor *wait_if_traced(shoal_tensor *tensor)
{
    return tensor && is_traced() ? BOX_ONE(wait_tensor, box_tensor(tensor)) : tensor;
}

static shoal_tensor *const *wait_list_if_traced(shoal_tensor *const *tensors, size_t n_tensors)
{
    if (!tensors || !is_traced()) {
        return tensors;
    }
    shoal_tensor **waited = scope_alloc(scope_current(), n_tensors * sizeof waited[0]);
    if (!waited) {
        (void)scope_fail(SHOAL_ERR_NO_MEMORY);
        return NULL;
    }
    for (size_t i = 0; i < n_tensors; i++) {
        waited[i] = BOX_ONE(wait_tensor, box_tensor(tensors[i]));
        if (!waited[i]) {
            return NULL;
        }
    }
    return waited;
}

#define COLLECT_ONE(name, ...) wait_if_traced(BOX_ONE(name, __VA_ARGS__))

/* A number that is no operator becomes a name that is none, and prints as that number. */
struct reduce_name {
    char text[24];
};

static shoal_value box_reduce(shoal_reduce reduce, struct reduce_name *name)
{
    if (reduce >= SHOAL_SUM && reduce <= SHOAL_PREMUL_SUM) {
        return box_string(shoal_reduce_name(reduce));
    }
    (void)snprintf(name->text, sizeof name->text, "%d", (int)reduce);
    return box_string(name->text);
}

#define BOX_REDUCE(reduce) box_reduce(reduce, &(struct reduce_name){{0}})
#define BOX_PREMUL box_string("premul_sum")

/* Waiting ---------------------------------------------------------------------------------------------- */

shoal_tensor *shoal_wait_tensor(shoal_tensor *self)
{
    return BOX_ONE(wait_tensor, box_tensor(self));
}

shoal_tensor *const *shoal_wait_tensors(shoal_tensor *const *tensors, size_t n_tensors)
{
    return BOX_MANY(wait_tensors, NULL, box_tensors(tensors, n_tensors));
}

/* Reductions ------------------------------------------------------------------------------------------- */

shoal_tensor *shoal_all_reduce(shoal_tensor *self, shoal_reduce reduce, shoal_group *group)
{
    return COLLECT_ONE(all_reduce, box_tensor(self), BOX_REDUCE(reduce), box_group(group));
}

shoal_tensor *shoal_all_reduce_(shoal_tensor *self, shoal_reduce reduce, shoal_group *group)
{
    return COLLECT_ONE(all_reduce_, box_tensor(self), BOX_REDUCE(reduce), box_group(group));
}

shoal_tensor *shoal_all_reduce_premul(shoal_tensor *self, double factor, shoal_group *group)
{
    return COLLECT_ONE(all_reduce, box_tensor(self), BOX_PREMUL, box_group(group), box_float(factor));
}

shoal_tensor *shoal_all_reduce_premul_(shoal_tensor *self, double factor, shoal_group *group)
{
    return COLLECT_ONE(all_reduce_, box_tensor(self), BOX_PREMUL, box_group(group), box_float(factor));
}

shoal_tensor *const *shoal_all_reduce_coalesced(shoal_tensor *const *tensors, size_t n_tensors,
                                                shoal_reduce reduce, shoal_group *group)
{
    return wait_list_if_traced(BOX_MANY(all_reduce_coalesced, NULL, box_tensors(tensors, n_tensors),
                                        BOX_REDUCE(reduce), box_group(group)),
                               n_tensors);
}

shoal_tensor *const *shoal_all_reduce_coalesced_(shoal_tensor *const *tensors, size_t n_tensors,
                                                 shoal_reduce reduce, shoal_group *group)
{
    return wait_list_if_traced(BOX_MANY(all_reduce_coalesced_, NULL, box_tensors(tensors, n_tensors),
                                        BOX_REDUCE(reduce), box_group(group)),
                               n_tensors);
}

shoal_tensor *const *shoal_all_reduce_coalesced_premul(shoal_tensor *const *tensors, size_t n_tensors,
                                                       double factor, shoal_group *group)
{
    return wait_list_if_traced(BOX_MANY(all_reduce_coalesced, NULL, box_tensors(tensors, n_tensors),
                                        BOX_PREMUL, box_group(group), box_float(factor)),
                               n_tensors);
}

shoal_tensor *const *shoal_all_reduce_coalesced_premul_(shoal_tensor *const *tensors, size_t n_tensors,
                                                        double factor, shoal_group *group)
{
    return wait_list_if_traced(BOX_MANY(all_reduce_coalesced_, NULL, box_tensors(tensors, n_tensors),
                                        BOX_PREMUL, box_group(group), box_float(factor)),
                               n_tensors);
}

shoal_tensor *shoal_reduce_tensor(shoal_tensor *self, shoal_reduce reduce, int root, shoal_group *group)
{
    return COLLECT_ONE(reduce_tensor, box_tensor(self), BOX_REDUCE(reduce), box_int(root), box_group(group));
}

shoal_tensor *shoal_reduce_tensor_premul(shoal_tensor *self, double factor, int root, shoal_group *group)
{
    return COLLECT_ONE(reduce_tensor, box_tensor(self), BOX_PREMUL, box_int(root), box_group(group),
                       box_float(factor));
}

shoal_tensor *shoal_reduce_scatter_tensor(shoal_tensor *self, shoal_reduce reduce, int64_t scatter_dim,
                                          shoal_group *group)
{
    return COLLECT_ONE(reduce_scatter_tensor, box_tensor(self), BOX_REDUCE(reduce), box_int(scatter_dim),
                       box_group(group));
}

shoal_tensor *shoal_reduce_scatter_tensor_premul(shoal_tensor *self, double factor, int64_t scatter_dim,
                                                 shoal_group *group)
{
    return COLLECT_ONE(reduce_scatter_tensor, box_tensor(self), BOX_PREMUL, box_int(scatter_dim),
                       box_group(group), box_float(factor));
}

shoal_tensor *shoal_reduce_scatter_tensor_out(shoal_tensor *self, shoal_reduce reduce, shoal_group *group,
                                              shoal_tensor *out)
{
    return COLLECT_ONE(reduce_scatter_tensor_out, box_tensor(out), box_tensor(self), BOX_REDUCE(reduce),
                       box_group(group));
}

shoal_tensor *shoal_reduce_scatter_tensor_premul_out(shoal_tensor *self, double factor, shoal_group *group,
                                                     shoal_tensor *out)
{
    return COLLECT_ONE(reduce_scatter_tensor_out, box_tensor(out), box_tensor(self), BOX_PREMUL,
                       box_group(group), box_float(factor));
}

/* `reduce` and `factor` are boxed: the latter is nothing for all operators but one. */
static shoal_tensor *const *reduce_scatter_coalesced(shoal_tensor *const *tensors, size_t n_tensors,
                                                     shoal_value reduce, const int64_t *scatter_dims,
                                                     shoal_group *group, shoal_value factor)
{
    if (!scatter_dims && scope_enter() == SHOAL_OK) {
        int64_t *zeros = scope_alloc(scope_current(), n_tensors * sizeof zeros[0]);
        if (!zeros) {
            (void)scope_fail(SHOAL_ERR_NO_MEMORY);
            return NULL;
        }
        memset(zeros, 0, n_tensors * sizeof zeros[0]);
        scatter_dims = zeros;
    }
    return wait_list_if_traced(BOX_MANY(reduce_scatter_tensor_coalesced, NULL,
                                        box_tensors(tensors, n_tensors), reduce,
                                        box_ints(scatter_dims, n_tensors), box_group(group), factor),
                               n_tensors);
}

shoal_tensor *const *shoal_reduce_scatter_tensor_coalesced(shoal_tensor *const *tensors, size_t n_tensors,
                                                           shoal_reduce reduce, const int64_t *scatter_dims,
                                                           shoal_group *group)
{
    return reduce_scatter_coalesced(tensors, n_tensors, BOX_REDUCE(reduce), scatter_dims, group,
                                    (shoal_value){.kind = SHOAL_VALUE_NONE});
}

shoal_tensor *const *shoal_reduce_scatter_tensor_coalesced_premul(shoal_tensor *const *tensors,
                                                                  size_t n_tensors, double factor,
                                                                  const int64_t *scatter_dims,
                                                                  shoal_group *group)
{
    return reduce_scatter_coalesced(tensors, n_tensors, BOX_PREMUL, scatter_dims, group, box_float(factor));
}

/* Moving data ------------------------------------------------------------------------------------------ */

shoal_tensor *shoal_all_gather_tensor(shoal_tensor *self, int64_t gather_dim, shoal_group *group)
{
    return COLLECT_ONE(all_gather_tensor, box_tensor(self), box_int(gather_dim), box_group(group));
}

shoal_tensor *shoal_all_gather_into_tensor(shoal_tensor *self, shoal_group *group)
{
    return COLLECT_ONE(all_gather_into_tensor, box_tensor(self), box_group(group));
}

shoal_tensor *shoal_all_gather_into_tensor_out(shoal_tensor *self, shoal_group *group, shoal_tensor *out)
{
    return COLLECT_ONE(all_gather_into_tensor_out, box_tensor(out), box_tensor(self), box_group(group));
}

shoal_tensor *const *shoal_all_gather_into_tensor_coalesced(shoal_tensor *const *tensors, size_t n_tensors,
                                                            shoal_group *group)
{
    return wait_list_if_traced(
        BOX_MANY(all_gather_into_tensor_coalesced, NULL, box_tensors(tensors, n_tensors), box_group(group)),
        n_tensors);
}

/* Lists without entries would count as absent. */
static bool has_empty_splits(const char *name, const int64_t *output_splits, const int64_t *input_splits,
                             size_t n_splits)
{
    if (n_splits > 0 || (!output_splits && !input_splits) || scope_enter() != SHOAL_OK) {
        return false;
    }
    (void)scope_fail(error_set(SHOAL_ERR_INVALID, "%s: splits are given, but n_splits is 0", name));
    return true;
}

shoal_tensor *shoal_all_to_all_single(shoal_tensor *self, const int64_t *output_splits,
                                      const int64_t *input_splits, size_t n_splits, shoal_group *group)
{
    if (has_empty_splits("all_to_all_single", output_splits, input_splits, n_splits)) {
        return NULL;
    }
    return COLLECT_ONE(all_to_all_single, box_tensor(self),
                       box_ints(output_splits, output_splits ? n_splits : 0),
                       box_ints(input_splits, input_splits ? n_splits : 0), box_group(group));
}

shoal_tensor *shoal_broadcast(shoal_tensor *self, int root, shoal_group *group)
{
    return COLLECT_ONE(broadcast, box_tensor(self), box_int(root), box_group(group));
}

shoal_tensor *shoal_broadcast_(shoal_tensor *self, int root, shoal_group *group)
{
    return COLLECT_ONE(broadcast_, box_tensor(self), box_int(root), box_group(group));
}

shoal_tensor *shoal_permute_tensor(shoal_tensor *self, const int64_t *destinations, size_t n_destinations,
                                   shoal_group *group)
{
    return COLLECT_ONE(permute_tensor, box_tensor(self), box_ints(destinations, n_destinations),
                       box_group(group));
}

shoal_tensor *shoal_shard_dim_alltoall(shoal_tensor *self, int64_t gather_dim, int64_t shard_dim,
                                       shoal_group *group)
{
    return COLLECT_ONE(shard_dim_alltoall, box_tensor(self), box_int(gather_dim), box_int(shard_dim),
                       box_group(group));
}

/* Point to point --------------------------------------------------------------------------------------- */

shoal_tensor *shoal_isend(shoal_tensor *self, int destination, int tag, shoal_group *group)
{
    return BOX_ONE(isend, box_tensor(self), box_int(destination), box_int(tag), box_group(group));
}

shoal_tensor *shoal_irecv(shoal_tensor *self, int source, int tag, shoal_group *group)
{
    return COLLECT_ONE(irecv, box_tensor(self), box_int(source), box_int(tag), box_group(group));
}

/* What the row takes: lists side by side. */
struct p2p_lists {
    shoal_tensor **tensors;
    int64_t *peers;
    int64_t *tags;
    char *directions;
};

static bool alloc_lists(size_t n_ops, struct p2p_lists *lists)
{
    struct scope *scope = scope_current();
    lists->tensors = scope_alloc(scope, n_ops * sizeof lists->tensors[0]);
    lists->peers = scope_alloc(scope, n_ops * sizeof lists->peers[0]);
    lists->tags = scope_alloc(scope, n_ops * sizeof lists->tags[0]);
    lists->directions = scope_alloc(scope, n_ops * sizeof "isend" + 1);
    return lists->tensors && lists->peers && lists->tags && lists->directions;
}

static shoal_status fill_lists(const shoal_p2p_op *ops, size_t n_ops, struct p2p_lists *lists)
{
    if (n_ops > 0 && !ops) {
        return error_set(SHOAL_ERR_INVALID, "batch_p2p_ops: ops is NULL with %zu of them", n_ops);
    }
    if (n_ops > SIZE_MAX / 64) {
        return error_set(SHOAL_ERR_INVALID, "batch_p2p_ops: %zu ops are more than memory can hold", n_ops);
    }
    if (!alloc_lists(n_ops, lists)) {
        return SHOAL_ERR_NO_MEMORY;
    }
    char *word = lists->directions;
    for (size_t i = 0; i < n_ops; i++) {
        if (ops[i].direction != SHOAL_SEND && ops[i].direction != SHOAL_RECV) {
            return error_set(SHOAL_ERR_INVALID, "batch_p2p_ops: ops[%zu]: %d is no direction", i,
                             (int)ops[i].direction);
        }
        lists->tensors[i] = ops[i].tensor;
        lists->peers[i] = ops[i].peer;
        lists->tags[i] = ops[i].tag;
        memcpy(word, ops[i].direction == SHOAL_SEND ? "isend " : "irecv ", sizeof "isend");
        word += sizeof "isend";
    }
    *word = '\0';
    return SHOAL_OK;
}

shoal_tensor *const *shoal_batch_p2p_ops(const shoal_p2p_op *ops, size_t n_ops, shoal_group *group)
{
    struct p2p_lists lists = {NULL, NULL, NULL, NULL};
    if (scope_enter() != SHOAL_OK) {
        return NULL;
    }
    error_clear();
    shoal_status status = fill_lists(ops, n_ops, &lists);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
        return NULL;
    }
    return wait_list_if_traced(BOX_MANY(batch_p2p_ops, NULL, box_tensors(lists.tensors, n_ops),
                                        box_string(lists.directions), box_ints(lists.peers, n_ops),
                                        box_ints(lists.tags, n_ops), box_group(group)),
                               n_ops);
}

/* Into the caller's tensors ---------------------------------------------------------------------------- */

shoal_tensor *shoal_all_reduce_inplace(shoal_tensor *self, shoal_reduce reduce, shoal_group *group)
{
    return shoal_all_reduce_(self, reduce, group);
}

shoal_tensor *shoal_all_reduce_premul_inplace(shoal_tensor *self, double factor, shoal_group *group)
{
    return shoal_all_reduce_premul_(self, factor, group);
}

shoal_tensor *shoal_all_gather_tensor_inplace(shoal_tensor *out, shoal_tensor *self, int64_t gather_dim,
                                              shoal_group *group)
{
    return COLLECT_ONE(all_gather_tensor_inplace, box_tensor(out), box_tensor(self), box_int(gather_dim),
                       box_group(group));
}

shoal_tensor *shoal_reduce_scatter_tensor_inplace(shoal_tensor *out, shoal_tensor *self, shoal_reduce reduce,
                                                  int64_t scatter_dim, shoal_group *group)
{
    return COLLECT_ONE(reduce_scatter_tensor_inplace, box_tensor(out), box_tensor(self), BOX_REDUCE(reduce),
                       box_int(scatter_dim), box_group(group));
}

shoal_tensor *shoal_reduce_scatter_tensor_premul_inplace(shoal_tensor *out, shoal_tensor *self, double factor,
                                                         int64_t scatter_dim, shoal_group *group)
{
    return COLLECT_ONE(reduce_scatter_tensor_inplace, box_tensor(out), box_tensor(self), BOX_PREMUL,
                       box_int(scatter_dim), box_group(group), box_float(factor));
}

shoal_tensor *shoal_all_to_all_inplace(shoal_tensor *out, shoal_tensor *self, const int64_t *output_splits,
                                       const int64_t *input_splits, size_t n_splits, shoal_group *group)
{
    if (has_empty_splits("all_to_all_inplace", output_splits, input_splits, n_splits)) {
        return NULL;
    }
    return COLLECT_ONE(all_to_all_inplace, box_tensor(out), box_tensor(self),
                       box_ints(output_splits, output_splits ? n_splits : 0),
                       box_ints(input_splits, input_splits ? n_splits : 0), box_group(group));
}

shoal_tensor *const *shoal_all_gather_inplace(shoal_tensor *const *outs, size_t n_outs, shoal_tensor *self,
                                              shoal_group *group)
{
    return wait_list_if_traced(
        BOX_MANY(all_gather_inplace, NULL, box_tensors(outs, n_outs), box_tensor(self), box_group(group)),
        n_outs);
}

/* Symmetric memory ------------------------------------------------------------------------------------- */

shoal_tensor *shoal_one_shot_all_reduce(shoal_tensor *self, shoal_reduce reduce, shoal_group *group)
{
    return COLLECT_ONE(one_shot_all_reduce, box_tensor(self), BOX_REDUCE(reduce), box_group(group));
}

shoal_tensor *shoal_one_shot_all_reduce_out(shoal_tensor *self, shoal_reduce reduce, shoal_group *group,
                                            shoal_tensor *out)
{
    return COLLECT_ONE(one_shot_all_reduce_out, box_tensor(out), box_tensor(self), BOX_REDUCE(reduce),
                       box_group(group));
}

shoal_tensor *shoal_one_shot_all_reduce_copy(shoal_tensor *self, shoal_tensor *source, shoal_reduce reduce,
                                             shoal_group *group)
{
    return COLLECT_ONE(one_shot_all_reduce_copy, box_tensor(self), box_tensor(source), BOX_REDUCE(reduce),
                       box_group(group));
}

shoal_tensor *shoal_one_shot_all_reduce_copy_out(shoal_tensor *self, shoal_tensor *source,
                                                 shoal_reduce reduce, shoal_group *group, shoal_tensor *out)
{
    return COLLECT_ONE(one_shot_all_reduce_copy_out, box_tensor(out), box_tensor(self), box_tensor(source),
                       BOX_REDUCE(reduce), box_group(group));
}

shoal_tensor *shoal_two_shot_all_reduce_(shoal_tensor *self, shoal_reduce reduce, shoal_group *group)
{
    return COLLECT_ONE(two_shot_all_reduce_, box_tensor(self), BOX_REDUCE(reduce), box_group(group));
}

shoal_tensor *shoal_two_shot_all_reduce_out(shoal_tensor *self, shoal_reduce reduce, shoal_group *group,
                                            shoal_tensor *out)
{
    return COLLECT_ONE(two_shot_all_reduce_out, box_tensor(out), box_tensor(self), BOX_REDUCE(reduce),
                       box_group(group));
}

/* Names that others use -------------------------------------------------------------------------------- */

shoal_tensor *shoal_all_gather_tensor_autograd(shoal_tensor *self, int64_t gather_dim, shoal_group *group)
{
    return shoal_all_gather_tensor(self, gather_dim, group);
}

shoal_tensor *shoal_reduce_scatter_tensor_autograd(shoal_tensor *self, shoal_reduce reduce,
                                                   int64_t scatter_dim, shoal_group *group)
{
    return shoal_reduce_scatter_tensor(self, reduce, scatter_dim, group);
}

shoal_tensor *shoal_all_to_all_single_autograd(shoal_tensor *self, const int64_t *output_splits,
                                               const int64_t *input_splits, size_t n_splits,
                                               shoal_group *group)
{
    return shoal_all_to_all_single(self, output_splits, input_splits, n_splits, group);
}
