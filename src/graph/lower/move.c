/* SPDX-License-Identifier: MIT */
/* Functions of lowerings.def that move data. Arguments are those of ops.def, and meta functions have checked them. */
#include "base/error.h"
#include "base/try.h"
#include "graph/lower/lower.h"
#include "op/op.h"

static size_t ranks_of(const struct shoal_lowering *lowering, uint32_t group)
{
    return lowering->plan->groups[group].size;
}

/* all_gather ------------------------------------------------------------------------------------------- */

static shoal_status gather_dim_of(const struct shoal_node *node, const shoal_value *arguments,
                                  const shoal_tensor *out, int *dim_out)
{
    int64_t dim = 0;
    if (node->op->index == OP_all_gather_tensor) {
        dim = arguments[1].as.integer;
    } else if (node->op->index == OP_all_gather_tensor_inplace) {
        dim = arguments[2].as.integer;
    }
    return layout_normalise_dim("gather_dim", dim, out->layout.n_dims, dim_out);
}

static shoal_status all_gather(struct shoal_lowering *lowering, uint32_t group, const shoal_tensor *self,
                               int dim, shoal_tensor *send, shoal_tensor *recv)
{
    struct plan_collective *collective;
    TRY(lower_begin_collective(lowering, group, 1, &collective));
    collective->call.kind = COLLECTIVE_ALL_GATHER;
    collective->call.dtype = self->dtype;
    lower_set_piece(collective, 0, send, recv, send->count);
    TRY(lower_say_shape(lowering, self));
    return lower_say_number(lowering, dim);
}

/* Copies operands that are not contiguous: self before the collective, out after it. */
static shoal_status gather_into(struct shoal_lowering *lowering, uint32_t group, shoal_tensor *self, int dim,
                                shoal_tensor *out)
{
    size_t n_ranks = ranks_of(lowering, group);
    struct lowered_blocks blocks;
    shoal_tensor *send;
    TRY(lower_input(lowering, self, &send));
    TRY(lower_make_blocks(lowering, out, dim, n_ranks, &blocks));
    TRY(all_gather(lowering, group, self, dim, send, blocks.contiguous));
    TRY(lower_end_collective(lowering, /*is_blocking=*/false));
    return lower_write_back(lowering, blocks.view, blocks.contiguous);
}

LOWERING_FUNCTION(lower_all_gather)
{
    uint32_t group = lower_group(lowering, node);
    const shoal_tensor *value = node->values[0];
    shoal_tensor *out;
    int dim;
    TRY(gather_dim_of(node, arguments, value, &dim));
    if (!lower_can_block(value, dim, ranks_of(lowering, group))) {
        return lower_eager(lowering, node, arguments);
    }
    TRY(lower_tensor(lowering, node, 0, &out));
    return gather_into(lowering, group, arguments[0].as.tensor, dim, out);
}

LOWERING_FUNCTION(lower_all_gather_out)
{
    uint32_t group = lower_group(lowering, node);
    shoal_tensor *out = arguments[0].as.tensor;
    int dim;
    TRY(gather_dim_of(node, arguments, out, &dim));
    if (!lower_can_block(out, dim, ranks_of(lowering, group)) ||
        !lower_is_apart(arguments[1].as.tensor, out, dim, ranks_of(lowering, group))) {
        return lower_eager(lowering, node, arguments);
    }
    return gather_into(lowering, group, arguments[1].as.tensor, dim, out);
}

LOWERING_FUNCTION(lower_all_gather_list)
{
    uint32_t group = lower_group(lowering, node);
    struct plan_collective *collective;
    shoal_tensor **outs;
    shoal_tensor **sends = arena_alloc(&lowering->scratch, node->n_values, sizeof(shoal_tensor *));
    if (!sends) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < node->n_values; i++) {
        TRY(lower_input(lowering, arguments[0].as.tensors[i], &sends[i]));
    }
    TRY(lower_tensors(lowering, node, &outs));
    TRY(lower_begin_collective(lowering, group, node->n_values, &collective));
    collective->call.kind = COLLECTIVE_ALL_GATHER;
    collective->call.dtype = outs[0]->dtype;
    for (size_t i = 0; i < node->n_values; i++) {
        lower_set_piece(collective, i, sends[i], outs[i], sends[i]->count);
        TRY(lower_say_shape(lowering, sends[i]));
        TRY(lower_say_number(lowering, 0));
    }
    return lower_end_collective(lowering, /*is_blocking=*/false);
}

/* (outs, self, group): row r of a buffer becomes outs[r]. */
LOWERING_FUNCTION(lower_all_gather_apart)
{
    uint32_t group = lower_group(lowering, node);
    shoal_tensor *self = arguments[1].as.tensor;
    struct layout row = self->layout;
    int64_t shape[2] = {(int64_t)ranks_of(lowering, group), self->count};
    shoal_tensor *send;
    shoal_tensor *rows;
    TRY(lower_input(lowering, self, &send));
    TRY(lower_fresh(lowering, node->name, self->dtype, 2, shape, &rows));
    TRY(all_gather(lowering, group, self, 0, send, rows));
    TRY(lower_end_collective(lowering, /*is_blocking=*/false));
    layout_fill_strides(row.n_dims, row.shape, row.strides);
    for (size_t i = 0; i < arguments[0].count; i++) {
        shoal_tensor *from;
        row.offset = (int64_t)i * self->count;
        TRY(lower_view(lowering, rows, &row, &from));
        TRY(lower_copy_late(lowering, arguments[0].as.tensors[i], from));
    }
    return SHOAL_OK;
}

/* all_to_all ------------------------------------------------------------------------------------------- */

/* Returns, for each rank, the number of elements in its rows. Returns NULL if memory runs out. */
static const size_t *count_elements(struct shoal_lowering *lowering, const shoal_value *splits,
                                    const shoal_tensor *self)
{
    size_t row_elements = 1;
    size_t *counts = arena_alloc(&lowering->plan->arena, splits->count, sizeof *counts);
    for (int i = 1; i < self->layout.n_dims; i++) {
        row_elements *= (size_t)self->layout.shape[i];
    }
    for (size_t i = 0; counts && i < splits->count; i++) {
        counts[i] = (size_t)splits->as.integers[i] * row_elements;
    }
    return counts;
}

static shoal_status begin_exchange(struct shoal_lowering *lowering, uint32_t group, shoal_tensor *send,
                                   shoal_tensor *recv, struct plan_collective **collective_out)
{
    TRY(lower_begin_collective(lowering, group, 1, collective_out));
    (*collective_out)->call.kind = COLLECTIVE_ALL_TO_ALL;
    (*collective_out)->call.dtype = send->dtype;
    lower_set_piece(*collective_out, 0, send, recv, 0);
    return SHOAL_OK;
}

static shoal_status all_to_all(struct shoal_lowering *lowering, shoal_tensor *self, shoal_tensor *out,
                               const shoal_value *output_splits, const shoal_value *input_splits)
{
    uint32_t group = lower_group(lowering, lowering->node);
    struct plan_collective *collective;
    shoal_tensor *send;
    shoal_tensor *recv = out;
    TRY(lower_input(lowering, self, &send));
    if (!out->is_contiguous) {
        TRY(lower_fresh(lowering, lowering->node->name, out->dtype, out->layout.n_dims, out->layout.shape,
                        &recv));
    }
    TRY(begin_exchange(lowering, group, send, recv, &collective));
    TRY(lower_say_numbers(lowering, self->layout.shape + 1, (size_t)self->layout.n_dims - 1));
    if (output_splits->count == 0) {
        lower_realize(lowering, send, group);
        lower_set_piece(collective, 0, send, recv, self->count / (int64_t)ranks_of(lowering, group));
    } else {
        collective->call.send_counts = count_elements(lowering, input_splits, self);
        collective->call.recv_counts = count_elements(lowering, output_splits, self);
        if (!collective->call.send_counts || !collective->call.recv_counts) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    TRY(lower_end_collective(lowering, /*is_blocking=*/false));
    return lower_write_back(lowering, out, recv);
}

LOWERING_FUNCTION(lower_all_to_all)
{
    shoal_tensor *out;
    TRY(lower_tensor(lowering, node, 0, &out));
    return all_to_all(lowering, arguments[0].as.tensor, out, &arguments[1], &arguments[2]);
}

LOWERING_FUNCTION(lower_all_to_all_out)
{
    if (tensor_may_overlap(arguments[0].as.tensor, arguments[1].as.tensor)) {
        return lower_eager(lowering, node, arguments);
    }
    return all_to_all(lowering, arguments[1].as.tensor, arguments[0].as.tensor, &arguments[2], &arguments[3]);
}

LOWERING_FUNCTION(lower_shard_dim)
{
    uint32_t group = lower_group(lowering, node);
    size_t n_ranks = ranks_of(lowering, group);
    shoal_tensor *self = arguments[0].as.tensor;
    struct plan_collective *collective;
    struct lowered_blocks blocks;
    shoal_tensor *send;
    shoal_tensor *out;
    int gather_dim;
    int shard_dim;
    TRY(layout_normalise_dim("gather_dim", arguments[1].as.integer, self->layout.n_dims, &gather_dim));
    TRY(layout_normalise_dim("shard_dim", arguments[2].as.integer, self->layout.n_dims, &shard_dim));
    if (!lower_can_block(self, shard_dim, n_ranks) ||
        !lower_can_block(node->values[0], gather_dim, n_ranks)) {
        return lower_eager(lowering, node, arguments);
    }
    TRY(lower_input_blocks(lowering, self, shard_dim, n_ranks, &send));
    lower_realize(lowering, send, group);
    TRY(lower_tensor(lowering, node, 0, &out));
    TRY(lower_make_blocks(lowering, out, gather_dim, n_ranks, &blocks));
    TRY(begin_exchange(lowering, group, send, blocks.contiguous, &collective));
    lower_set_piece(collective, 0, send, blocks.contiguous, self->count / (int64_t)n_ranks);
    TRY(lower_say_shape(lowering, self));
    TRY(lower_say_number(lowering, gather_dim));
    TRY(lower_say_number(lowering, shard_dim));
    TRY(lower_end_collective(lowering, /*is_blocking=*/false));
    return lower_write_back(lowering, blocks.view, blocks.contiguous);
}

/* Each rank sends to one other rank: rank r to destinations[r]. */
LOWERING_FUNCTION(lower_permute)
{
    uint32_t group = lower_group(lowering, node);
    size_t n_ranks = ranks_of(lowering, group);
    size_t rank = (size_t)lowering->plan->groups[group].rank;
    const shoal_value *destinations = &arguments[1];
    struct plan_collective *collective;
    shoal_tensor *send;
    shoal_tensor *out;
    size_t *counts = arena_alloc(&lowering->plan->arena, 2 * n_ranks, sizeof *counts);
    if (!counts) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(lower_input(lowering, arguments[0].as.tensor, &send));
    TRY(lower_tensor(lowering, node, 0, &out));
    TRY(begin_exchange(lowering, group, send, out, &collective));
    for (size_t i = 0; i < destinations->count && i < n_ranks; i++) {
        size_t destination = (size_t)destinations->as.integers[i];
        if (i == rank) {
            counts[destination] = (size_t)send->count;
        }
        if (destination == rank) {
            counts[n_ranks + i] = (size_t)out->count;
        }
    }
    collective->call.send_counts = counts;
    collective->call.recv_counts = counts + n_ranks;
    TRY(lower_say_shape(lowering, arguments[0].as.tensor));
    TRY(lower_say_numbers(lowering, destinations->as.integers, destinations->count));
    return lower_end_collective(lowering, /*is_blocking=*/false);
}

/* broadcast -------------------------------------------------------------------------------------------- */

static shoal_status broadcast(struct shoal_lowering *lowering, uint32_t group, shoal_tensor *data, int root)
{
    struct plan_collective *collective;
    lower_realize(lowering, data, group);
    TRY(lower_begin_collective(lowering, group, 1, &collective));
    collective->call.kind = COLLECTIVE_BROADCAST;
    collective->call.dtype = data->dtype;
    collective->call.root = root;
    lower_set_piece(collective, 0, NULL, data, data->count);
    TRY(lower_say_shape(lowering, data));
    return lower_end_collective(lowering, /*is_blocking=*/false);
}

LOWERING_FUNCTION(lower_broadcast)
{
    shoal_tensor *data;
    TRY(lower_take(lowering, node, 0, node->args[0].as.node, 0, &data));
    return broadcast(lowering, lower_group(lowering, node), data, (int)arguments[1].as.integer);
}

LOWERING_FUNCTION(lower_broadcast_in_place)
{
    shoal_tensor *data;
    TRY(lower_input(lowering, arguments[0].as.tensor, &data));
    TRY(broadcast(lowering, lower_group(lowering, node), data, (int)arguments[1].as.integer));
    return lower_write_back(lowering, arguments[0].as.tensor, data);
}

/* Point to point --------------------------------------------------------------------------------------- */

LOWERING_FUNCTION(lower_point_to_point)
{
    return lower_eager(lowering, node, arguments);
}
