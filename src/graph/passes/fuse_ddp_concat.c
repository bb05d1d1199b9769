/* SPDX-License-Identifier: MIT */
/*
 * fuse_ddp_with_concat_op: the gradients of a bucket are flattened into one tensor, which is divided and reduced. The
 * results are views of it. If the gradients were reduced in place, the new tensor is.
 */
#include "base/try.h"
#include "graph/passes/ddp_fuse.h"
#include "graph/passes/passes.h"
#include "tensor/tensor.h"

static shoal_status call_flat(struct ddp_join *join, struct shoal_node **flat_out)
{
    for (size_t i = 0; i < join->n_blocks; i++) {
        shoal_arg gradient = ddp_node_arg(join->blocks[i]->gradient);
        TRY(ddp_call(join, OP_flatten, &gradient, 1, &join->nodes[i]));
        join->args[i] = ddp_node_arg(join->nodes[i]);
    }
    shoal_arg flat = ddp_list_arg(join->args, join->n_blocks);
    return ddp_call(join, OP_cat, &flat, 1, flat_out);
}

/* Adds the division, if there is one: replaces *node by its result. */
static shoal_status call_division(struct ddp_join *join, struct shoal_node **node)
{
    const struct shoal_node *division = join->blocks[join->n_blocks - 1]->division;
    if (!division) {
        return SHOAL_OK;
    }
    shoal_arg args[] = {ddp_node_arg(*node), division->args[1]};
    return ddp_call(join, (enum op_id)division->op->index, args, 2, node);
}

static shoal_status call_split(struct ddp_join *join, struct shoal_node *wait, struct shoal_node **split_out)
{
    for (size_t i = 0; i < join->n_blocks; i++) {
        join->args[i] = ddp_int_arg(join->blocks[i]->value->count);
    }
    shoal_arg args[] = {ddp_node_arg(wait), ddp_list_arg(join->args, join->n_blocks)};
    return ddp_call(join, OP_split_with_sizes, args, 2, split_out);
}

static shoal_status call_reshape(struct ddp_join *join, struct shoal_node *split, size_t index,
                                 struct shoal_node **result_out)
{
    const struct layout *layout = &join->blocks[index]->value->layout;
    struct shoal_node *piece;
    shoal_arg sizes[SHOAL_MAX_DIMS];
    for (int i = 0; i < layout->n_dims; i++) {
        sizes[i] = ddp_int_arg(layout->shape[i]);
    }
    TRY(ddp_call(join, OP_getitem, (shoal_arg[]){ddp_node_arg(split), ddp_int_arg((int64_t)index)}, 2,
                 &piece));
    shoal_arg args[] = {ddp_node_arg(piece), ddp_list_arg(sizes, (size_t)layout->n_dims)};
    return ddp_call(join, OP_reshape, args, 2, result_out);
}

static shoal_status build(struct ddp_join *join)
{
    const struct shoal_node *last = join->blocks[join->n_blocks - 1]->start;
    struct shoal_node *flat;
    struct shoal_node *start;
    struct shoal_node *wait;
    struct shoal_node *split;
    TRY(call_flat(join, &flat));
    TRY(call_division(join, &flat));
    TRY(ddp_call_start(join, (enum op_id)last->op->index, ddp_node_arg(flat), &start));
    TRY(ddp_call(join, OP_wait_tensor, (shoal_arg[]){ddp_node_arg(start)}, 1, &wait));
    TRY(call_split(join, wait, &split));
    for (size_t i = 0; i < join->n_blocks; i++) {
        struct shoal_node *result;
        TRY(call_reshape(join, split, i, &result));
        join->blocks[i]->new_reader = join->nodes[i];
        join->blocks[i]->result = result;
    }
    return SHOAL_OK;
}

shoal_status pass_fuse_ddp_with_concat_op(shoal_graph *graph, const shoal_pass_options *options,
                                          shoal_pass_report *report, void *context)
{
    (void)context;
    return ddp_fuse(graph, options, report, build);
}
