/* SPDX-License-Identifier: MIT */
/* The typed functions of shoal/collective.h: box the arguments, call the row, and under a tracer its wait
   (traced.h). */
#include "shoal/collective.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "collective/rows.h"
#include "collective/traced.h"
#include "op/box.h"
#include "tensor/scope.h"

/* Calling ---------------------------------------------------------------------------------------------- */

/* The calls of op/box.h, for rows that collective_hand_in adds. */
static shoal_tensor *call_one(enum op_id id, const shoal_value *arguments, size_t n_arguments)
{
    collective_hand_in();
    return box_call_one(id, arguments, n_arguments);
}

static shoal_tensor *const *call_many(enum op_id id, const shoal_value *arguments, size_t n_arguments)
{
    collective_hand_in();
    return box_call_many(id, arguments, n_arguments, NULL);
}

#define CALL_ONE(name, ...) call_one(OP_##name, BOX_LIST(__VA_ARGS__))
#define CALL_MANY(name, ...) call_many(OP_##name, BOX_LIST(__VA_ARGS__))
#define COLLECT_ONE(name, ...) traced_wait(CALL_ONE(name, __VA_ARGS__))

/* Holds the text of a number that is no operator: it is passed as the name, so that the error shows the number. */
struct reduce_name {
    char text[24];
};

static shoal_value box_reduce(shoal_reduce_op reduce, struct reduce_name *name)
{
    if (reduce >= SHOAL_SUM && reduce <= SHOAL_PREMUL_SUM) {
        return box_string(shoal_reduce_op_name(reduce));
    }
    (void)snprintf(name->text, sizeof name->text, "%d", (int)reduce);
    return box_string(name->text);
}

#define BOX_REDUCE(reduce) box_reduce(reduce, &(struct reduce_name){{0}})

/* Reductions ------------------------------------------------------------------------------------------- */

shoal_tensor *shoal_all_reduce(shoal_tensor *self, shoal_reduce_op reduce, shoal_group *group)
{
    return COLLECT_ONE(all_reduce, box_tensor(self), BOX_REDUCE(reduce), box_group(group));
}

shoal_tensor *shoal_all_reduce_(shoal_tensor *self, shoal_reduce_op reduce, shoal_group *group)
{
    return COLLECT_ONE(all_reduce_, box_tensor(self), BOX_REDUCE(reduce), box_group(group));
}

shoal_tensor *const *shoal_all_reduce_coalesced(shoal_tensor *const *tensors, size_t n_tensors,
                                                shoal_reduce_op reduce, shoal_group *group)
{
    return traced_wait_list(CALL_MANY(all_reduce_coalesced, box_tensors(tensors, n_tensors),
                                      BOX_REDUCE(reduce), box_group(group)),
                            n_tensors);
}

shoal_tensor *shoal_reduce(shoal_tensor *self, shoal_reduce_op reduce, int root, shoal_group *group)
{
    return COLLECT_ONE(reduce, box_tensor(self), BOX_REDUCE(reduce), box_int(root), box_group(group));
}

shoal_tensor *shoal_reduce_scatter_tensor(shoal_tensor *self, shoal_reduce_op reduce, int64_t scatter_dim,
                                          shoal_group *group)
{
    return COLLECT_ONE(reduce_scatter_tensor, box_tensor(self), BOX_REDUCE(reduce), box_int(scatter_dim),
                       box_group(group));
}

shoal_tensor *const *shoal_reduce_scatter_tensor_coalesced(shoal_tensor *const *tensors, size_t n_tensors,
                                                           shoal_reduce_op reduce,
                                                           const int64_t *scatter_dims, shoal_group *group)
{
    return traced_wait_list(CALL_MANY(reduce_scatter_tensor_coalesced, box_tensors(tensors, n_tensors),
                                      BOX_REDUCE(reduce),
                                      box_ints(scatter_dims, scatter_dims ? n_tensors : 0), box_group(group)),
                            n_tensors);
}

/* Moving data ------------------------------------------------------------------------------------------ */

shoal_tensor *shoal_all_gather_tensor(shoal_tensor *self, int64_t gather_dim, shoal_group *group)
{
    return COLLECT_ONE(all_gather_tensor, box_tensor(self), box_int(gather_dim), box_group(group));
}

shoal_tensor *const *shoal_all_gather_into_tensor_coalesced(shoal_tensor *const *tensors, size_t n_tensors,
                                                            shoal_group *group)
{
    return traced_wait_list(
        CALL_MANY(all_gather_into_tensor_coalesced, box_tensors(tensors, n_tensors), box_group(group)),
        n_tensors);
}

/* A list without entries would count as absent, so it is refused here. */
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

/* Point to point --------------------------------------------------------------------------------------- */

shoal_tensor *shoal_isend(shoal_tensor *self, int destination, int tag, shoal_group *group)
{
    return CALL_ONE(isend, box_tensor(self), box_int(destination), box_int(tag), box_group(group));
}

shoal_tensor *shoal_irecv(shoal_tensor *self, int source, int tag, shoal_group *group)
{
    return traced_wait_received(
        CALL_ONE(irecv, box_tensor(self), box_int(source), box_int(tag), box_group(group)));
}

/* The arguments as the row takes them: one list for each property. */
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
        return error_set(SHOAL_ERR_INVALID, "batch_p2p_ops: ops is NULL, but n_ops is %zu", n_ops);
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
            return error_set(SHOAL_ERR_INVALID,
                             "batch_p2p_ops: ops[%zu]: direction is %d, SHOAL_SEND or SHOAL_RECV expected", i,
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
    return traced_wait_received_list(CALL_MANY(batch_p2p_ops, box_tensors(lists.tensors, n_ops),
                                               box_string(lists.directions), box_ints(lists.peers, n_ops),
                                               box_ints(lists.tags, n_ops), box_group(group)),
                                     n_ops);
}
