/* SPDX-License-Identifier: MIT */
/* Makes nodes that several kinds of buckets need. */
#include <string.h>

#include "base/try.h"
#include "graph/passes/bucket.h"
#include "tensor/tensor.h"

shoal_status bucket_call(struct bucket_join *join, enum op_id id, const shoal_arg *args, size_t n_args,
                         struct shoal_node **node_out)
{
    return graph_call(join->graph, op_get(id), args, n_args, node_out);
}

shoal_status bucket_call_start(struct bucket_join *join, const struct shoal_node *start, enum op_id id,
                               shoal_arg tensors, struct shoal_node **start_out)
{
    shoal_arg args[OP_MAX_PARAMS];
    memcpy(args, start->args, start->n_args * sizeof(args[0]));
    args[0] = tensors;
    return bucket_call(join, id, args, start->n_args, start_out);
}

shoal_status bucket_call_flat(struct bucket_join *join, struct shoal_node **flat_out)
{
    for (size_t i = 0; i < join->n_members; i++) {
        struct bucket_member *member = join->members[i];
        shoal_arg input = bucket_node_arg(member->input);
        TRY(bucket_call(join, OP_flatten, &input, 1, &member->packed));
        join->args[i] = bucket_node_arg(member->packed);
    }
    shoal_arg flat = bucket_list_arg(join->args, join->n_members);
    return bucket_call(join, OP_cat, &flat, 1, flat_out);
}

static shoal_status call_result(struct bucket_join *join, struct shoal_node *pieces, size_t index)
{
    struct bucket_member *member = join->members[index];
    const struct layout *layout = &member->start->values[0]->layout;
    struct shoal_node *node;
    shoal_arg sizes[SHOAL_MAX_DIMS];
    for (int i = 0; i < layout->n_dims; i++) {
        sizes[i] = bucket_int_arg(layout->shape[i]);
    }
    TRY(bucket_call(join, OP_getitem, (shoal_arg[]){bucket_node_arg(pieces), bucket_int_arg((int64_t)index)},
                    2, &node));
    shoal_arg args[] = {bucket_node_arg(node), bucket_list_arg(sizes, (size_t)layout->n_dims)};
    TRY(bucket_call(join, OP_reshape, args, 2, &node));
    if (!node->values[0]->is_contiguous) { /* users may view it in a shape that needs contiguous memory */
        shoal_arg arg = bucket_node_arg(node);
        TRY(bucket_call(join, OP_contiguous, &arg, 1, &node));
    }
    member->result = node;
    return SHOAL_OK;
}

shoal_status bucket_call_results(struct bucket_join *join, struct shoal_node *whole, int64_t dim)
{
    struct shoal_node *pieces;
    shoal_arg args[] = {bucket_node_arg(whole), bucket_list_arg(join->args, join->n_members),
                        bucket_int_arg(dim)};
    TRY(bucket_call(join, OP_split_with_sizes, args, 3, &pieces));
    for (size_t i = 0; i < join->n_members; i++) {
        TRY(call_result(join, pieces, i));
    }
    return SHOAL_OK;
}

shoal_status bucket_unpack_flat(struct bucket_join *join, struct shoal_node *wait)
{
    for (size_t i = 0; i < join->n_members; i++) {
        join->args[i] = bucket_int_arg(join->members[i]->start->values[0]->count);
    }
    return bucket_call_results(join, wait, 0);
}
