/* SPDX-License-Identifier: MIT */
/*
 * typed_<name> for every row OP_OF_RANKS of ops.def: the same call through the typed function of shoal/collective.h or
 * shoal_compat/torch.h. A row without one, or a typed function that is missing or takes something else, does not compile.
 */
#ifndef CONFORMANCE_ROW_TYPED_H
#define CONFORMANCE_ROW_TYPED_H

#include <strings.h>

#include "conformance/functional/row_case.h"

static inline shoal_reduce_op reduce_of(const shoal_value *value)
{
    shoal_reduce_op reduce = SHOAL_SUM;
    (void)CHECK_OK(shoal_reduce_op_find(value->as.string, &reduce));
    return reduce;
}

#define TENSOR(i) (v[i].as.tensor)
#define LIST(i) (v[i].as.tensors), (v[i].count)
#define INT(i) (v[i].as.integer)
#define RANK(i) ((int)v[i].as.integer)
#define REDUCE(i) reduce_of(&v[i])
#define GROUP(i) (v[i].as.group)
#define SPLITS(i) (v[i].as.integers), (v[(i) + 1].as.integers), (v[i].count)

/* Gives one tensor, or as many as there are outputs. */
typedef const void *(*typed_row)(const struct row_case *c, const shoal_value *v);

#define TYPED(name) static inline const void *typed_##name(const struct row_case *c, const shoal_value *v)
#define TYPED_ROW(name, ...)              \
    TYPED(name)                           \
    {                                     \
        return shoal_##name(__VA_ARGS__); \
    }

static inline bool typed_has_premul(const shoal_value *reduce)
{
    return strcasecmp(reduce->as.string, "premul_sum") == 0;
}

TYPED_ROW(wait_tensor, TENSOR(0))
TYPED_ROW(wait_tensors, LIST(0))

/* Rows with a factor: the typed function that takes it, and the one that takes the other operators. */
#define TYPED_PREMUL(name, reduce, premul_call, call)             \
    TYPED(name)                                                   \
    {                                                             \
        return typed_has_premul(&v[reduce]) ? premul_call : call; \
    }
#define FACTOR(i) (v[i].as.real)
TYPED_PREMUL(all_reduce, 1, shoal_all_reduce_premul(TENSOR(0), FACTOR(3), GROUP(2)),
             shoal_all_reduce(TENSOR(0), REDUCE(1), GROUP(2)))
TYPED_PREMUL(all_reduce_, 1, shoal_all_reduce_premul_(TENSOR(0), FACTOR(3), GROUP(2)),
             shoal_all_reduce_(TENSOR(0), REDUCE(1), GROUP(2)))
TYPED_PREMUL(all_reduce_coalesced, 1, shoal_all_reduce_coalesced_premul(LIST(0), FACTOR(3), GROUP(2)),
             shoal_all_reduce_coalesced(LIST(0), REDUCE(1), GROUP(2)))
TYPED_PREMUL(all_reduce_coalesced_, 1, shoal_all_reduce_coalesced_premul_(LIST(0), FACTOR(3), GROUP(2)),
             shoal_all_reduce_coalesced_(LIST(0), REDUCE(1), GROUP(2)))
TYPED_PREMUL(reduce, 1, shoal_reduce_premul(TENSOR(0), FACTOR(4), RANK(2), GROUP(3)),
             shoal_reduce(TENSOR(0), REDUCE(1), RANK(2), GROUP(3)))
TYPED_PREMUL(reduce_scatter_tensor, 1,
             shoal_reduce_scatter_tensor_premul(TENSOR(0), FACTOR(4), INT(2), GROUP(3)),
             shoal_reduce_scatter_tensor(TENSOR(0), REDUCE(1), INT(2), GROUP(3)))
TYPED_PREMUL(reduce_scatter_tensor_out, 2,
             shoal_reduce_scatter_tensor_premul_out(TENSOR(1), FACTOR(4), GROUP(3), TENSOR(0)),
             shoal_reduce_scatter_tensor_out(TENSOR(1), REDUCE(2), GROUP(3), TENSOR(0)))
TYPED_PREMUL(reduce_scatter_tensor_inplace, 2,
             shoal_reduce_scatter_tensor_premul_inplace(TENSOR(0), TENSOR(1), FACTOR(5), INT(3), GROUP(4)),
             shoal_reduce_scatter_tensor_inplace(TENSOR(0), TENSOR(1), REDUCE(2), INT(3), GROUP(4)))
TYPED_PREMUL(reduce_scatter_tensor_coalesced, 1,
             shoal_reduce_scatter_tensor_coalesced_premul(LIST(0), FACTOR(4), v[2].as.integers, GROUP(3)),
             shoal_reduce_scatter_tensor_coalesced(LIST(0), REDUCE(1), v[2].as.integers, GROUP(3)))

TYPED_ROW(all_gather_tensor, TENSOR(0), INT(1), GROUP(2))
TYPED_ROW(all_gather_tensor_inplace, TENSOR(0), TENSOR(1), INT(2), GROUP(3))
TYPED_ROW(all_gather_into_tensor, TENSOR(0), GROUP(1))
TYPED_ROW(all_gather_into_tensor_out, TENSOR(1), GROUP(2), TENSOR(0))
TYPED_ROW(all_gather_into_tensor_coalesced, LIST(0), GROUP(1))
TYPED_ROW(all_gather_inplace, LIST(0), TENSOR(1), GROUP(2))
TYPED_ROW(all_to_all_single, TENSOR(0), SPLITS(1), GROUP(3))
TYPED_ROW(all_to_all_inplace, TENSOR(0), TENSOR(1), SPLITS(2), GROUP(4))
TYPED_ROW(broadcast, TENSOR(0), RANK(1), GROUP(2))
TYPED_ROW(broadcast_, TENSOR(0), RANK(1), GROUP(2))
TYPED_ROW(permute_tensor, TENSOR(0), v[1].as.integers, v[1].count, GROUP(2))
TYPED_ROW(shard_dim_alltoall, TENSOR(0), INT(1), INT(2), GROUP(3))
TYPED_ROW(isend, TENSOR(0), RANK(1), RANK(2), GROUP(3))
TYPED_ROW(irecv, TENSOR(0), RANK(1), RANK(2), GROUP(3))
TYPED_ROW(one_shot_all_reduce, TENSOR(0), REDUCE(1), GROUP(2))
TYPED_ROW(one_shot_all_reduce_out, TENSOR(1), REDUCE(2), GROUP(3), TENSOR(0))
TYPED_ROW(one_shot_all_reduce_copy, TENSOR(0), TENSOR(1), REDUCE(2), GROUP(3))
TYPED_ROW(one_shot_all_reduce_copy_out, TENSOR(1), TENSOR(2), REDUCE(3), GROUP(4), TENSOR(0))
TYPED_ROW(two_shot_all_reduce_, TENSOR(0), REDUCE(1), GROUP(2))
TYPED_ROW(two_shot_all_reduce_out, TENSOR(1), REDUCE(2), GROUP(3), TENSOR(0))

TYPED(batch_p2p_ops)
{
    shoal_p2p_op ops[ROW_MAX_TENSORS] = {{0}};
    for (size_t i = 0; i < v[0].count; i++) {
        ops[i] = (shoal_p2p_op){.direction = c->outputs[i].same ? SHOAL_RECV : SHOAL_SEND,
                                .tensor = v[0].as.tensors[i],
                                .peer = (int)v[2].as.integers[i],
                                .tag = (int)v[3].as.integers[i]};
    }
    return shoal_batch_p2p_ops(ops, v[0].count, GROUP(4));
}

/* False on failure; the error is then in the scope. */
static inline bool typed_call(const struct row_case *c, shoal_value *result)
{
    static const typed_row rows[OP_COUNT] = {
#define OP(...)
#define OP_OF_RANKS(name, signature, flags, meta, kernel, gradient, saves, doc) [OP_##name] = typed_##name,
#include "op/ops.def"
#undef OP
    };
    const void *given = rows[c->op->index](c, c->values);
    if (c->op->returns_list) {
        *result = box_tensors(given, c->n_outputs);
    } else {
        *result = box_tensor((shoal_tensor *)(uintptr_t)given);
    }
    return given != NULL;
}

#undef TENSOR
#undef LIST
#undef INT
#undef RANK
#undef REDUCE
#undef GROUP
#undef SPLITS
#undef TYPED
#undef TYPED_ROW
#undef TYPED_PREMUL
#undef FACTOR

#endif
