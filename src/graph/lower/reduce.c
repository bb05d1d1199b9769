/* SPDX-License-Identifier: MIT */
/* Functions of lowerings.def that reduce. Arguments are those of ops.def, and meta functions have checked them. */
#include <math.h>

#include "base/error.h"
#include "base/try.h"
#include "graph/lower/lower.h"
#include "op/box.h"
#include "op/op.h"

/* `factor` is NULL if the op has none. */
static shoal_status set_reduction(struct plan_collective *collective, enum collective_kind kind,
                                  shoal_dtype dtype, const shoal_value *reduce, const shoal_value *factor)
{
    collective->call.kind = kind;
    collective->call.dtype = dtype;
    TRY(shoal_reduce_op_find(reduce->as.string, &collective->call.reduce));
    bool has_factor = factor && collective->call.reduce == SHOAL_PREMUL_SUM;
    collective->call.factor = has_factor ? factor->as.real : 0.0;
    return SHOAL_OK;
}

/* all_reduce ------------------------------------------------------------------------------------------- */

/* Whether it is a sum that is small enough for a blocking call in comm memory. */
static bool is_small_sum(const struct shoal_lowering *lowering, const shoal_tensor *tensor,
                         const shoal_value *reduce)
{
    const shoal_compile_options *options = lowering->options;
    shoal_reduce_op op;
    return options->one_shot && shoal_reduce_op_find(reduce->as.string, &op) == SHOAL_OK && op == SHOAL_SUM &&
           tensor_bytes(tensor) <= options->one_shot_max_bytes;
}

/* Whether the tensor lies in comm memory of another group, so that a blocking call needs a copy of it. */
static bool is_elsewhere(const struct shoal_lowering *lowering, const shoal_tensor *tensor, uint32_t group)
{
    const struct plan_buffer *buffer = &lowering->plan->buffers[lower_buffer_of(lowering, tensor)];
    return group != PLAN_NONE && buffer->place == PLAN_COMM && buffer->index != group;
}

/* Reduces in place if `send` is NULL. */
static shoal_status all_reduce(struct shoal_lowering *lowering, uint32_t group, shoal_tensor *send,
                               shoal_tensor *recv, const shoal_value *reduce, const shoal_value *factor,
                               bool is_blocking)
{
    struct plan_collective *collective;
    TRY(lower_begin_collective(lowering, group, 1, &collective));
    TRY(set_reduction(collective, COLLECTIVE_ALL_REDUCE, recv->dtype, reduce, factor));
    lower_set_piece(collective, 0, send, recv, recv->count);
    TRY(lower_say_shape(lowering, recv));
    return lower_end_collective(lowering, is_blocking);
}

static shoal_status all_reduce_one_shot(struct shoal_lowering *lowering, struct shoal_node *node,
                                        const shoal_value *arguments, uint32_t group)
{
    shoal_tensor *send;
    shoal_tensor *recv;
    TRY(lower_input(lowering, arguments[0].as.tensor, &send));
    lower_realize(lowering, send, group);
    TRY(lower_tensor(lowering, node, 0, &recv));
    return all_reduce(lowering, group, send, recv, &arguments[1], &arguments[3], /*is_blocking=*/true);
}

LOWERING_FUNCTION(lower_all_reduce)
{
    uint32_t group = lower_group(lowering, node);
    bool is_small = is_small_sum(lowering, arguments[0].as.tensor, &arguments[1]);
    shoal_tensor *data;
    if (is_small && lower_can_realize(lowering, arguments[0].as.tensor, group)) {
        return all_reduce_one_shot(lowering, node, arguments, group);
    }
    bool is_copied = is_small && is_elsewhere(lowering, arguments[0].as.tensor, group);
    TRY(lower_take(lowering, node, 0, node->args[0].as.node, 0, &data));
    bool is_blocking = is_copied && lower_can_realize(lowering, data, group);
    lower_realize(lowering, data, group);
    return all_reduce(lowering, group, NULL, data, &arguments[1], &arguments[3], is_blocking);
}

/* A blocking call on a copy in the comm memory of this group. */
static shoal_status all_reduce_elsewhere(struct shoal_lowering *lowering, shoal_tensor *self,
                                         const shoal_value *arguments, uint32_t group)
{
    shoal_tensor *copy;
    TRY(lower_fresh(lowering, lowering->node->name, self->dtype, self->layout.n_dims, self->layout.shape,
                    &copy));
    TRY(lower_copy(lowering, copy, self));
    lower_realize(lowering, copy, group);
    TRY(all_reduce(lowering, group, NULL, copy, &arguments[1], &arguments[3], /*is_blocking=*/true));
    return lower_copy(lowering, self, copy);
}

LOWERING_FUNCTION(lower_all_reduce_in_place)
{
    uint32_t group = lower_group(lowering, node);
    shoal_tensor *self = arguments[0].as.tensor;
    bool is_small = is_small_sum(lowering, self, &arguments[1]);
    shoal_tensor *data;
    if (is_small && is_elsewhere(lowering, self, group)) {
        return all_reduce_elsewhere(lowering, self, arguments, group);
    }
    bool is_blocking = is_small && self->is_contiguous && lower_can_realize(lowering, self, group);
    TRY(lower_input(lowering, self, &data));
    lower_realize(lowering, data, group);
    TRY(all_reduce(lowering, group, NULL, data, &arguments[1], &arguments[3], is_blocking));
    return lower_write_back(lowering, self, data);
}

/* Lists ------------------------------------------------------------------------------------------------ */

/* Lists are not put into comm memory: transports do not read the parts of an all-reduce of a list there. */
static shoal_status all_reduce_list(struct shoal_lowering *lowering, shoal_tensor *const *data, size_t count,
                                    const shoal_value *arguments)
{
    struct plan_collective *collective;
    uint32_t group = lower_group(lowering, lowering->node);
    TRY(lower_begin_collective(lowering, group, count, &collective));
    TRY(set_reduction(collective, COLLECTIVE_ALL_REDUCE, data[0]->dtype, &arguments[1], &arguments[3]));
    for (size_t i = 0; i < count; i++) {
        lower_set_piece(collective, i, NULL, data[i], data[i]->count);
        TRY(lower_say_shape(lowering, data[i]));
    }
    return lower_end_collective(lowering, /*is_blocking=*/false);
}

LOWERING_FUNCTION(lower_all_reduce_list)
{
    shoal_tensor **data = arena_alloc(&lowering->scratch, node->n_values, sizeof(shoal_tensor *));
    if (!data) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < node->n_values; i++) {
        size_t index;
        const struct shoal_node *item = lower_item(&node->args[0], i, &index);
        TRY(lower_take(lowering, node, i, item, index, &data[i]));
    }
    return all_reduce_list(lowering, data, node->n_values, arguments);
}

LOWERING_FUNCTION(lower_all_reduce_list_in_place)
{
    shoal_tensor **data = arena_alloc(&lowering->scratch, node->n_values, sizeof(shoal_tensor *));
    if (!data) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < node->n_values; i++) {
        TRY(lower_input(lowering, arguments[0].as.tensors[i], &data[i]));
    }
    TRY(all_reduce_list(lowering, data, node->n_values, arguments));
    for (size_t i = 0; i < node->n_values; i++) {
        TRY(lower_write_back(lowering, arguments[0].as.tensors[i], data[i]));
    }
    return SHOAL_OK;
}

/* reduce ----------------------------------------------------------------------------------------------- */

static shoal_status fill_zeros(struct shoal_lowering *lowering, shoal_tensor *tensor)
{
    shoal_value *arguments = arena_alloc(&lowering->plan->arena, 3, sizeof *arguments);
    if (!arguments) {
        return SHOAL_ERR_NO_MEMORY;
    }
    arguments[0] = box_ints(tensor->layout.shape, (size_t)tensor->layout.n_dims);
    arguments[1] = box_dtype(tensor->dtype);
    arguments[2] = box_string("cpu");
    return lower_call(lowering, op_get(OP_zeros), arguments, &tensor, 1);
}

LOWERING_FUNCTION(lower_reduce)
{
    uint32_t group = lower_group(lowering, node);
    int root = (int)arguments[2].as.integer;
    bool is_root = lowering->plan->groups[group].rank == root;
    struct plan_collective *collective;
    shoal_tensor *send;
    shoal_tensor *recv;
    TRY(lower_input(lowering, arguments[0].as.tensor, &send));
    lower_realize(lowering, send, group);
    TRY(lower_tensor(lowering, node, 0, &recv));
    if (!is_root) {
        TRY(fill_zeros(lowering, recv));
    }
    TRY(lower_begin_collective(lowering, group, 1, &collective));
    TRY(set_reduction(collective, COLLECTIVE_REDUCE, send->dtype, &arguments[1], &arguments[4]));
    collective->call.root = root;
    lower_set_piece(collective, 0, send, is_root ? recv : NULL, send->count);
    TRY(lower_say_shape(lowering, arguments[0].as.tensor));
    return lower_end_collective(lowering, /*is_blocking=*/false);
}

/* reduce_scatter --------------------------------------------------------------------------------------- */

/* Adds the collective, whose operands have been made. */
static shoal_status reduce_scatter(struct shoal_lowering *lowering, uint32_t group, const shoal_tensor *self,
                                   int dim, shoal_tensor *send, shoal_tensor *recv, const shoal_value *reduce,
                                   const shoal_value *factor)
{
    struct plan_collective *collective;
    TRY(lower_begin_collective(lowering, group, 1, &collective));
    TRY(set_reduction(collective, COLLECTIVE_REDUCE_SCATTER, recv->dtype, reduce, factor));
    lower_set_piece(collective, 0, send, recv, recv->count);
    TRY(lower_say_shape(lowering, self));
    TRY(lower_say_number(lowering, dim));
    return lower_end_collective(lowering, /*is_blocking=*/false);
}

LOWERING_FUNCTION(lower_reduce_scatter)
{
    uint32_t group = lower_group(lowering, node);
    size_t n_ranks = lowering->plan->groups[group].size;
    shoal_tensor *self = arguments[0].as.tensor;
    shoal_tensor *send;
    shoal_tensor *recv;
    int dim;
    TRY(layout_normalise_dim("scatter_dim", arguments[2].as.integer, self->layout.n_dims, &dim));
    if (!lower_can_block(self, dim, n_ranks)) {
        return lower_eager(lowering, node, arguments);
    }
    TRY(lower_input_blocks(lowering, self, dim, n_ranks, &send));
    lower_realize(lowering, send, group);
    TRY(lower_tensor(lowering, node, 0, &recv));
    return reduce_scatter(lowering, group, self, dim, send, recv, &arguments[1], &arguments[4]);
}

/* (out, self, reduce, [dim,] group, factor) */
LOWERING_FUNCTION(lower_reduce_scatter_out)
{
    uint32_t group = lower_group(lowering, node);
    size_t n_ranks = lowering->plan->groups[group].size;
    bool has_dim = node->op->index == OP_reduce_scatter_tensor_inplace;
    shoal_tensor *out = arguments[0].as.tensor;
    shoal_tensor *self = arguments[1].as.tensor;
    shoal_tensor *send;
    shoal_tensor *recv = out;
    int dim = 0;
    if (has_dim) {
        TRY(layout_normalise_dim("scatter_dim", arguments[3].as.integer, self->layout.n_dims, &dim));
    }
    if (!lower_can_block(self, dim, n_ranks) || !lower_is_apart(out, self, dim, n_ranks)) {
        return lower_eager(lowering, node, arguments);
    }
    TRY(lower_input_blocks(lowering, self, dim, n_ranks, &send));
    lower_realize(lowering, send, group);
    if (!out->is_contiguous) {
        TRY(lower_fresh(lowering, node->name, out->dtype, out->layout.n_dims, out->layout.shape, &recv));
    }
    TRY(reduce_scatter(lowering, group, self, dim, send, recv, &arguments[2], &arguments[has_dim ? 5 : 4]));
    return lower_write_back(lowering, out, recv);
}

static int scatter_dim_at(const shoal_value *dims, size_t index, int n_dims)
{
    int64_t dim = dims->count > 0 ? dims->as.integers[index] : 0;
    return (int)(dim < 0 ? dim + n_dims : dim);
}

/* Puts a list into comm memory, if all of it can be there: otherwise transports do not read it directly. */
static void realize_list(struct shoal_lowering *lowering, shoal_tensor *const *sends, size_t count,
                         uint32_t group)
{
    bool can_all = true;
    for (size_t i = 0; i < count; i++) {
        can_all = can_all && lower_can_realize(lowering, sends[i], group);
    }
    for (size_t i = 0; can_all && i < count; i++) {
        lower_realize(lowering, sends[i], group);
    }
}

LOWERING_FUNCTION(lower_reduce_scatter_list)
{
    uint32_t group = lower_group(lowering, node);
    size_t n_ranks = lowering->plan->groups[group].size;
    shoal_tensor *const *selves = arguments[0].as.tensors;
    struct plan_collective *collective;
    shoal_tensor **recv;
    shoal_tensor **sends = arena_alloc(&lowering->scratch, node->n_values, sizeof(shoal_tensor *));
    if (!sends) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < node->n_values; i++) {
        if (!lower_can_block(selves[i], scatter_dim_at(&arguments[2], i, selves[i]->layout.n_dims),
                             n_ranks)) {
            return lower_eager(lowering, node, arguments);
        }
    }
    for (size_t i = 0; i < node->n_values; i++) {
        int dim = scatter_dim_at(&arguments[2], i, selves[i]->layout.n_dims);
        TRY(lower_input_blocks(lowering, selves[i], dim, n_ranks, &sends[i]));
    }
    realize_list(lowering, sends, node->n_values, group);
    TRY(lower_tensors(lowering, node, &recv));
    TRY(lower_begin_collective(lowering, group, node->n_values, &collective));
    TRY(set_reduction(collective, COLLECTIVE_REDUCE_SCATTER, recv[0]->dtype, &arguments[1], &arguments[4]));
    for (size_t i = 0; i < node->n_values; i++) {
        lower_set_piece(collective, i, sends[i], recv[i], recv[i]->count);
        TRY(lower_say_shape(lowering, selves[i]));
        TRY(lower_say_number(lowering, scatter_dim_at(&arguments[2], i, selves[i]->layout.n_dims)));
    }
    return lower_end_collective(lowering, /*is_blocking=*/false);
}

/* Packed lists (lower/pack.c) -------------------------------------------------------------------------- */

/* Gives the tensor of a source as rows. */
static shoal_status find_rows(struct shoal_lowering *lowering, const struct pack_source *source,
                              shoal_tensor **rows_out)
{
    struct layout layout = {
        .n_dims = 2, .shape = {source->rows, source->row_elems}, .strides = {source->row_elems, 1}};
    TRY(lower_tensor(lowering, source->node, source->value, rows_out));
    if ((*rows_out)->layout.n_dims > 0 && (*rows_out)->layout.shape[0] == source->rows) {
        return SHOAL_OK;
    }
    layout.offset = (*rows_out)->layout.offset;
    return lower_view(lowering, *rows_out, &layout, rows_out);
}

/* Packs the list into a buffer in comm memory that has one row for each rank. */
static shoal_status pack_rows(struct shoal_lowering *lowering, const struct shoal_node *node, int64_t n_ranks,
                              int64_t total, shoal_tensor **packed_out)
{
    shoal_value *arguments = arena_alloc(&lowering->plan->arena, 4, sizeof *arguments);
    shoal_tensor **rows = arena_alloc(&lowering->plan->arena, node->n_values, sizeof(shoal_tensor *));
    if (!arguments || !rows) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < node->n_values; i++) {
        TRY(find_rows(lowering, &lowering->nodes[node->id].pack[i], &rows[i]));
    }
    shoal_dtype dtype = node->values[0]->dtype;
    TRY(lower_fresh(lowering, node->name, dtype, 2, (int64_t[]){n_ranks, total}, packed_out));
    lower_realize(lowering, *packed_out, lower_group(lowering, node));
    arguments[0] = box_tensors(rows, node->n_values);
    arguments[1] = box_int(n_ranks);
    arguments[2] = box_dtype(dtype);
    arguments[3] = box_int(0);
    return lower_call(lowering, op_get(OP_chunk_cat), arguments, packed_out, 1);
}

shoal_status lower_packed_scatter(struct shoal_lowering *lowering, struct shoal_node *node)
{
    const struct pack_source *sources = lowering->nodes[node->id].pack;
    uint32_t group = lower_group(lowering, node);
    int64_t n_ranks = (int64_t)lowering->plan->groups[group].size;
    shoal_value reduce = box_string(node->args[1].as.string);
    bool is_float = node->args[4].kind == SHOAL_ARG_FLOAT;
    shoal_value factor = box_float(is_float ? node->args[4].as.real : (double)node->args[4].as.integer);
    struct plan_collective *collective;
    shoal_tensor *packed;
    shoal_tensor *recv;
    int64_t total = 0;
    for (size_t i = 0; i < node->n_values; i++) {
        total += sources[i].result_elems;
    }
    TRY(pack_rows(lowering, node, n_ranks, total, &packed));
    TRY(lower_fresh(lowering, node->name, packed->dtype, 1, &total, &recv));
    size_t at = 0;
    for (size_t i = 0; i < node->n_values; i++) {
        struct lowered_storage *result = &lowering->storages[lower_number(lowering, node->values[i])];
        result->buffer = lower_buffer_of(lowering, recv);
        result->offset = at;
        at += result->bytes;
    }
    TRY(lower_begin_collective(lowering, group, 1, &collective));
    TRY(set_reduction(collective, COLLECTIVE_REDUCE_SCATTER, packed->dtype, &reduce, &factor));
    lower_set_piece(collective, 0, packed, recv, total);
    for (size_t i = 0; i < node->n_values; i++) {
        TRY(lower_say_shape(lowering, node->values[i]));
    }
    return lower_end_collective(lowering, /*is_blocking=*/false);
}

/* Symmetric memory ------------------------------------------------------------------------------------- */

/* Gives the tensor in comm memory: itself, or a copy. */
static shoal_status in_comm_memory(struct shoal_lowering *lowering, uint32_t group, shoal_tensor *tensor,
                                   shoal_tensor **comm_out)
{
    *comm_out = tensor;
    if (!tensor->is_contiguous ||
        (!lower_can_realize(lowering, tensor, group) && !lowering->options->no_comm_buffers)) {
        TRY(lower_fresh(lowering, lowering->node->name, tensor->dtype, tensor->layout.n_dims,
                        tensor->layout.shape, comm_out));
        TRY(lower_copy(lowering, *comm_out, tensor));
    }
    lower_realize(lowering, *comm_out, group);
    return SHOAL_OK;
}

LOWERING_FUNCTION(lower_symmetric)
{
    uint32_t group = lower_group(lowering, node);
    shoal_tensor *send;
    shoal_tensor *recv;
    TRY(in_comm_memory(lowering, group, arguments[0].as.tensor, &send));
    TRY(lower_tensor(lowering, node, 0, &recv));
    return all_reduce(lowering, group, send, recv, &arguments[1], NULL, /*is_blocking=*/false);
}

static shoal_status symmetric_into(struct shoal_lowering *lowering, uint32_t group, shoal_tensor *out,
                                   shoal_tensor *self, const shoal_value *reduce)
{
    shoal_tensor *send;
    shoal_tensor *recv = out;
    TRY(in_comm_memory(lowering, group, self, &send));
    if (!out->is_contiguous) {
        TRY(lower_fresh(lowering, lowering->node->name, out->dtype, out->layout.n_dims, out->layout.shape,
                        &recv));
    }
    bool is_in_place = tensor_is_same_view(send, recv);
    TRY(all_reduce(lowering, group, is_in_place ? NULL : send, recv, reduce, NULL, /*is_blocking=*/false));
    return lower_write_back(lowering, out, recv);
}

LOWERING_FUNCTION(lower_symmetric_out)
{
    if (tensor_may_overlap(arguments[0].as.tensor, arguments[1].as.tensor) &&
        !tensor_is_same_view(arguments[0].as.tensor, arguments[1].as.tensor)) {
        return lower_eager(lowering, node, arguments);
    }
    return symmetric_into(lowering, lower_group(lowering, node), arguments[0].as.tensor,
                          arguments[1].as.tensor, &arguments[2]);
}

LOWERING_FUNCTION(lower_symmetric_in_place)
{
    return symmetric_into(lowering, lower_group(lowering, node), arguments[0].as.tensor,
                          arguments[0].as.tensor, &arguments[1]);
}

/* (self, source, reduce, group). Later readers of self see the copy. */
LOWERING_FUNCTION(lower_symmetric_copy)
{
    uint32_t group = lower_group(lowering, node);
    shoal_tensor *send;
    shoal_tensor *recv;
    TRY(lower_copy(lowering, arguments[0].as.tensor, arguments[1].as.tensor));
    TRY(in_comm_memory(lowering, group, arguments[0].as.tensor, &send));
    TRY(lower_tensor(lowering, node, 0, &recv));
    return all_reduce(lowering, group, send, recv, &arguments[2], NULL, /*is_blocking=*/false);
}

/* (out, self, source, reduce, group) */
LOWERING_FUNCTION(lower_symmetric_copy_out)
{
    if (tensor_may_overlap(arguments[0].as.tensor, arguments[1].as.tensor)) {
        return lower_eager(lowering, node, arguments);
    }
    TRY(lower_copy(lowering, arguments[1].as.tensor, arguments[2].as.tensor));
    return symmetric_into(lowering, lower_group(lowering, node), arguments[0].as.tensor,
                          arguments[1].as.tensor, &arguments[3]);
}
