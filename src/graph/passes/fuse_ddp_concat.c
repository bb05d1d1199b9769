/* SPDX-License-Identifier: MIT */
/*
 * fuse_ddp_with_concat_op: the gradients of a bucket are flattened into one tensor, which is divided and reduced. The
 * results are views of it. If the gradients were reduced in place, the new tensor is.
 */
#include "base/try.h"
#include "graph/passes/bucket.h"
#include "graph/passes/passes.h"

static shoal_status pack(struct bucket_join *join, struct shoal_node **start_out)
{
    const struct bucket_member *last = join->members[join->n_members - 1];
    struct shoal_node *flat;
    TRY(bucket_call_flat(join, &flat));
    if (last->division) {
        shoal_arg args[] = {bucket_node_arg(flat), last->division->args[1]};
        TRY(bucket_call(join, (enum op_id)last->division->op->index, args, 2, &flat));
    }
    return bucket_call_start(join, last->start, (enum op_id)last->start->op->index, bucket_node_arg(flat),
                             start_out);
}

static const struct bucket_kind concat = {
    .rules = &bucket_gradients, .pack = pack, .unpack = bucket_unpack_flat};

shoal_status pass_fuse_ddp_with_concat_op(shoal_graph *graph, const shoal_pass_options *options,
                                          shoal_pass_report *report, void *context)
{
    (void)context;
    return bucket_gradients_pass(graph, &concat, options, report);
}
