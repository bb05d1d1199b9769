/* SPDX-License-Identifier: MIT */
/*
 * Storages that are made inside of others.
 *
 *   - What a cat puts together for a collective is computed straight into its place there, if only the cat uses it: a gradient into
 *     its bucket.
 *   - What is copied into an input of the graph is computed there: from the node that makes it on nobody may need the input's old
 *     contents, and nobody may change either of the two later. Where that node itself reads the input it must be an op with a twin
 *     that works in place.
 *
 * Both are decided from the graph alone.
 */
#include "base/try.h"
#include "graph/lower.h"
#include "op/op.h"

static uint32_t place_of(const struct shoal_lowering *lowering, const struct shoal_node *node)
{
    return lowering->nodes[node->id].place;
}

/* Whether a kernel makes it: neither an input, nor communication, nor what looks at something else. */
static bool is_computed(const struct shoal_lowering *lowering, const struct lowered_storage *storage)
{
    const struct shoal_node *creator = storage->creator;
    const uint32_t others = SHOAL_OP_COLLECTIVE | SHOAL_OP_WAIT | SHOAL_OP_SIDE_EFFECT | SHOAL_OP_IN_PLACE;
    return creator->kind == SHOAL_NODE_CALL && (node_flags(creator) & others) == 0 &&
           creator->op->index != OP_empty && !lowering->nodes[creator->id].is_absorbed &&
           storage->inside == PLAN_NONE;
}

/* All of its storage, in order. */
static bool is_whole(const shoal_tensor *value, const struct lowered_storage *storage)
{
    return value->is_contiguous && value->layout.offset == 0 && tensor_bytes(value) == storage->bytes;
}

/* Buckets ---------------------------------------------------------------------------------------------- */

/* A dimension in front of which all others are 1: pieces lie one after the other. */
static bool has_plain_pieces(const struct shoal_node *cat)
{
    const struct layout *layout = &cat->values[0]->layout;
    int64_t dim = cat->args[1].kind == SHOAL_ARG_INT ? cat->args[1].as.integer : -1;
    dim = dim < 0 ? dim + layout->n_dims : dim;
    for (int64_t i = 0; i < dim && i < layout->n_dims; i++) {
        if (layout->shape[i] != 1) {
            return false;
        }
    }
    return cat->args[0].kind == SHOAL_ARG_LIST && layout->n_dims > 0;
}

static bool feeds_collective(const struct shoal_lowering *lowering, const struct shoal_node *cat)
{
    const struct lowered_storage *storage = &lowering->storages[lower_number(lowering, cat->values[0])];
    const struct shoal_node *node = cat;
    while (node->n_users == 1 && (node_flags(node->first_use->user) & SHOAL_OP_COLLECTIVE) == 0 &&
           lower_is_view(lowering, node->first_use->user)) {
        node = node->first_use->user;
    }
    return storage->n_uses == 1 && node->n_users == 1 &&
           (node_flags(node->first_use->user) & SHOAL_OP_COLLECTIVE) != 0;
}

/* The storage of a piece that only this cat uses; NULL: somebody else does, or it can not be computed elsewhere. */
static struct lowered_storage *find_piece(const struct shoal_lowering *lowering, const struct shoal_node *cat,
                                          size_t index)
{
    size_t value = 0;
    const struct shoal_node *item =
        lower_strip_views(lowering, cat->args[0].as.list.items[index].as.node, &value);
    const shoal_tensor *tensor = lower_here(lowering, item, value);
    struct lowered_storage *storage = &lowering->storages[lower_number(lowering, item->values[value])];
    bool is_ours = storage->last_use == place_of(lowering, cat) && storage->n_uses == storage->n_writes + 1 &&
                   storage->last_user == storage->last_use;
    return is_ours && is_computed(lowering, storage) && is_whole(tensor, storage) &&
                   tensor->dtype == cat->values[0]->dtype && storage->bytes > 0
               ? storage
               : NULL;
}

static void find_slots_of(struct shoal_lowering *lowering, struct shoal_node *cat)
{
    uint32_t whole = lower_number(lowering, cat->values[0]);
    size_t at = 0;
    if (!has_plain_pieces(cat) || !feeds_collective(lowering, cat)) {
        return;
    }
    for (size_t i = 0; i < cat->args[0].as.list.count; i++) {
        struct lowered_storage *piece = find_piece(lowering, cat, i);
        /* Where all that look at it find a whole number of their elements before it. */
        if (piece && at % piece->element_bytes == 0) {
            piece->inside = whole;
            piece->inside_at = at;
            piece->is_slot = true;
            lowering->nodes[cat->id].has_slots = true;
        }
        at += tensor_bytes(cat->args[0].as.list.items[i].as.node->values[0]);
    }
}

/* What was not computed into its place is copied there; what stands in the list twice has only one. */
shoal_status lower_cat(struct shoal_lowering *lowering, struct shoal_node *cat)
{
    shoal_tensor *whole;
    uint32_t number = lower_number(lowering, cat->values[0]);
    size_t at = 0;
    TRY(lower_tensor(lowering, cat, 0, &whole));
    for (size_t i = 0; i < cat->args[0].as.list.count; i++) {
        const struct shoal_node *item = cat->args[0].as.list.items[i].as.node;
        const struct lowered_storage *storage = &lowering->storages[lower_number(lowering, item->values[0])];
        shoal_tensor *piece;
        shoal_tensor *place;
        TRY(lower_tensor(lowering, item, 0, &piece));
        bool is_there = storage->inside == number && storage->inside_at == at;
        if (!is_there && piece->count > 0) {
            struct layout layout = piece->layout;
            layout.offset = whole->layout.offset + (int64_t)(at / shoal_dtype_bytes(whole->dtype));
            layout_fill_strides(layout.n_dims, layout.shape, layout.strides);
            TRY(lower_view(lowering, whole, &layout, &place));
            TRY(lower_copy(lowering, place, piece));
        }
        at += tensor_bytes(piece);
    }
    return SHOAL_OK;
}

/* Inputs that are written at the end ------------------------------------------------------------------- */

const shoal_op *lower_in_place_twin(const shoal_op *op)
{
    static const enum op_id twins[OP_COUNT] = {
        [OP_add] = OP_add_,
        [OP_sub] = OP_sub_,
        [OP_mul] = OP_mul_,
        [OP_div] = OP_div_,
        [OP_neg] = OP_neg_,
        [OP_add_scalar] = OP_add_scalar_,
        [OP_sub_scalar] = OP_sub_scalar_,
        [OP_mul_scalar] = OP_mul_scalar_,
        [OP_div_scalar] = OP_div_scalar_,
    };
    return op_is_builtin(op) && twins[op->index] != 0 ? op_get(twins[op->index]) : NULL;
}

/* Whether `maker` reads the input as its first argument only, element by element, and has a twin that works in place. */
static bool can_work_in_place(const struct shoal_lowering *lowering, const struct shoal_node *maker,
                              uint32_t input)
{
    if (!lower_in_place_twin(maker->op) || maker->args[0].kind != SHOAL_ARG_NODE) {
        return false;
    }
    const shoal_tensor *self = maker->args[0].as.node->values[0];
    const shoal_tensor *result = maker->values[0];
    if (lower_number(lowering, self) != input || !is_whole(self, &lowering->storages[input]) ||
        self->dtype != result->dtype ||
        !layout_is_same_shape(self->layout.n_dims, self->layout.shape, result->layout.n_dims,
                              result->layout.shape)) {
        return false;
    }
    return maker->n_args < 2 || maker->args[1].kind != SHOAL_ARG_NODE ||
           lower_number(lowering, maker->args[1].as.node->values[0]) != input;
}

/* copy_(input, made) */
static void find_home_of(struct shoal_lowering *lowering, struct shoal_node *copy)
{
    size_t value = 0;
    const struct shoal_node *target = copy->args[0].as.node;
    const struct shoal_node *source = lower_strip_views(lowering, copy->args[1].as.node, &value);
    uint32_t number = lower_number(lowering, target->values[0]);
    const struct lowered_storage *input = &lowering->storages[number];
    struct lowered_storage *made = &lowering->storages[lower_number(lowering, source->values[value])];
    const shoal_tensor *from = copy->args[1].as.node->values[0];
    const shoal_tensor *to = target->values[0];
    uint32_t place = place_of(lowering, copy);
    if (input->creator->kind != SHOAL_NODE_PLACEHOLDER || input->creator != target ||
        !is_computed(lowering, made) || made->is_output || made->creator->n_values != 1 ||
        from->dtype != to->dtype || !is_whole(from, made) || !is_whole(to, input) ||
        !layout_is_same_shape(from->layout.n_dims, from->layout.shape, to->layout.n_dims, to->layout.shape)) {
        return;
    }
    uint32_t made_at = made->created_at;
    bool is_last_copy = input->last_copy == place && !lower_is_written(lowering, number, place, UINT32_MAX);
    bool is_source_kept =
        !lower_is_written(lowering, lower_number(lowering, source->values[value]), place, UINT32_MAX);
    bool is_read_before = input->before_copy < made_at;
    if (!is_read_before && input->before_copy == made_at &&
        can_work_in_place(lowering, made->creator, number)) {
        is_read_before = true;
        lowering->nodes[made->creator->id].is_in_place = is_last_copy && is_source_kept;
    }
    if (is_last_copy && is_source_kept && is_read_before) {
        made->inside = number;
        lowering->nodes[copy->id].is_absorbed = true;
    }
}

shoal_status lower_find_slots(struct shoal_lowering *lowering)
{
    GRAPH_EACH(lowering->graph, node)
    {
        if (node->kind != SHOAL_NODE_CALL || !node->op || lowering->nodes[node->id].is_absorbed) {
            continue;
        }
        if (node->op->index == OP_cat) {
            find_slots_of(lowering, node);
        } else if (node->op->index == OP_copy_) {
            find_home_of(lowering, node);
        }
    }
    return SHOAL_OK;
}
