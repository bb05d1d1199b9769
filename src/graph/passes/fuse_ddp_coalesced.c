/* SPDX-License-Identifier: MIT */
/*
 * fuse_ddp_with_coalesced_op: the gradients of a bucket are divided by one call and reduced by one call. Each keeps
 * memory of its own. Divisions by a tensor stay separate, because foreach_div takes only numbers.
 */
#include "base/try.h"
#include "graph/passes/bucket.h"
#include "graph/passes/passes.h"

/* Gives the tensors to reduce: a node that gives a list, or a list of nodes. */
static shoal_status call_division(struct bucket_join *join, const struct shoal_node *division,
                                  shoal_arg *tensors_out, struct shoal_node **reader_out)
{
    bool is_by_number = division && node_calls(division, OP_div_scalar);
    for (size_t i = 0; i < join->n_members; i++) {
        const struct bucket_member *member = join->members[i];
        join->args[i] = bucket_node_arg(member->division && !is_by_number ? member->division : member->input);
    }
    *tensors_out = bucket_list_arg(join->args, join->n_members);
    if (is_by_number) {
        shoal_arg args[] = {*tensors_out, division->args[1]};
        TRY(bucket_call(join, OP_foreach_div, args, 2, reader_out));
        *tensors_out = bucket_node_arg(*reader_out);
    }
    return SHOAL_OK;
}

static shoal_status pack(struct bucket_join *join, struct shoal_node **start_out)
{
    const struct bucket_member *last = join->members[join->n_members - 1];
    shoal_arg tensors;
    struct shoal_node *reader = NULL;
    TRY(call_division(join, last->division, &tensors, &reader));
    TRY(bucket_call_start(join, last->start, OP_all_reduce_coalesced, tensors, start_out));
    for (size_t i = 0; i < join->n_members; i++) {
        join->members[i]->packed = reader ? reader : *start_out;
    }
    return SHOAL_OK;
}

static shoal_status unpack(struct bucket_join *join, struct shoal_node *start)
{
    for (size_t i = 0; i < join->n_members; i++) {
        shoal_arg args[] = {bucket_node_arg(start), bucket_int_arg((int64_t)i)};
        TRY(bucket_call(join, OP_getitem, args, 2, &join->members[i]->result));
    }
    for (size_t i = 0; i < join->n_members; i++) {
        shoal_arg piece = bucket_node_arg(join->members[i]->result);
        TRY(bucket_call(join, OP_wait_tensor, &piece, 1, &join->members[i]->result));
    }
    return SHOAL_OK;
}

static const struct bucket_kind coalesced = {
    .rules = &bucket_gradients, .pack = pack, .unpack = unpack, .is_coalesced = true};

shoal_status pass_fuse_ddp_with_coalesced_op(shoal_graph *graph, const shoal_pass_options *options,
                                             shoal_pass_report *report, void *context)
{
    (void)context;
    return bucket_gradients_pass(graph, &coalesced, options, report);
}
