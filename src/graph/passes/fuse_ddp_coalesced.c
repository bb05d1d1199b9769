/* SPDX-License-Identifier: MIT */
/*
 * fuse_ddp_with_coalesced_op: the gradients of a bucket are divided by one call and reduced by one call. Each keeps
 * memory of its own. Divisions by a tensor stay separate, because foreach_div takes only numbers.
 */
#include "base/try.h"
#include "graph/passes/ddp_fuse.h"
#include "graph/passes/passes.h"

/* Gives the tensors to reduce: a node that gives a list, or a list of nodes. */
static shoal_status call_division(struct ddp_join *join, shoal_arg *tensors_out,
                                  struct shoal_node **reader_out)
{
    const struct shoal_node *division = join->blocks[join->n_blocks - 1]->division;
    bool is_by_number = division && node_calls(division, OP_div_scalar);
    for (size_t i = 0; i < join->n_blocks; i++) {
        const struct ddp_block *block = join->blocks[i];
        join->args[i] = ddp_node_arg(block->division && !is_by_number ? block->division : block->gradient);
    }
    *tensors_out = ddp_list_arg(join->args, join->n_blocks);
    if (is_by_number) {
        shoal_arg args[] = {*tensors_out, division->args[1]};
        TRY(ddp_call(join, OP_foreach_div, args, 2, reader_out));
        *tensors_out = ddp_node_arg(*reader_out);
    }
    return SHOAL_OK;
}

static shoal_status build(struct ddp_join *join)
{
    shoal_arg tensors;
    struct shoal_node *reader = NULL;
    struct shoal_node *start;
    TRY(call_division(join, &tensors, &reader));
    TRY(ddp_call_start(join, OP_all_reduce_coalesced, tensors, &start));
    for (size_t i = 0; i < join->n_blocks; i++) {
        shoal_arg args[] = {ddp_node_arg(start), ddp_int_arg((int64_t)i)};
        TRY(ddp_call(join, OP_getitem, args, 2, &join->nodes[i]));
    }
    for (size_t i = 0; i < join->n_blocks; i++) {
        shoal_arg piece = ddp_node_arg(join->nodes[i]);
        struct shoal_node *wait;
        TRY(ddp_call(join, OP_wait_tensor, &piece, 1, &wait));
        join->blocks[i]->new_reader = reader ? reader : start;
        join->blocks[i]->result = wait;
    }
    return SHOAL_OK;
}

shoal_status pass_fuse_ddp_with_coalesced_op(shoal_graph *graph, const shoal_pass_options *options,
                                             shoal_pass_report *report, void *context)
{
    (void)context;
    return ddp_fuse(graph, options, report, build);
}
