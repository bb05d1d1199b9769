/* SPDX-License-Identifier: MIT */
/*
 * Finds storages that can be placed inside others, which saves copies:
 *
 *   - A piece of a cat that feeds a collective is computed directly into its place there, if only the cat uses it: a
 *     gradient is computed in its bucket.
 *   - A value that is copied into an input of the graph at the end is computed in the input. Conditions: the input's
 *     old contents are not needed once the value is computed, and neither of the two is written after the copy. If the
 *     node that computes the value reads the input itself, its op must have a twin that works in place. Otherwise, if
 *     its op has such a twin, the same is tried for its first argument, and so on.
 *
 * Both are decided from the graph alone. This file also lowers as_strided_scatter: its result takes over the storage of
 * `self`, if that is not needed any more.
 */
#include "base/try.h"
#include "graph/lower/lower.h"
#include "op/op.h"

static uint32_t place_of(const struct shoal_lowering *lowering, const struct shoal_node *node)
{
    return lowering->nodes[node->id].place;
}

/* Whether a kernel computes it, so that it can be computed elsewhere: it is no input, no result of communication, and
   not placed inside another storage yet. */
static bool is_computed(const struct shoal_lowering *lowering, const struct lowered_storage *storage)
{
    const struct shoal_node *creator = storage->creator;
    const uint32_t others = SHOAL_OP_COLLECTIVE | SHOAL_OP_WAIT | SHOAL_OP_SIDE_EFFECT | SHOAL_OP_IN_PLACE;
    return creator->kind == SHOAL_NODE_CALL && (node_flags(creator) & others) == 0 &&
           creator->op->index != OP_empty && !lowering->nodes[creator->id].is_absorbed &&
           storage->inside == PLAN_NONE;
}

/* Whether the value is its whole storage, contiguous. */
static bool is_whole(const shoal_tensor *value, const struct lowered_storage *storage)
{
    return value->is_contiguous && value->layout.offset == 0 && tensor_bytes(value) == storage->bytes;
}

/* Buckets ---------------------------------------------------------------------------------------------- */

/* Whether all dimensions before that of the cat are 1, so that its pieces lie one after the other. */
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

/* Returns the storage of a piece; NULL if other nodes read it, too, or it cannot be computed elsewhere. */
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
        /* Its offset must be a whole number of elements, for every dtype in which it is looked at. */
        if (piece && at % piece->element_bytes == 0) {
            piece->inside = whole;
            piece->inside_at = at;
            piece->is_slot = true;
            lowering->nodes[cat->id].has_slots = true;
        }
        at += tensor_bytes(cat->args[0].as.list.items[i].as.node->values[0]);
    }
}

/* Copies the pieces that are not computed in their place. A tensor that is in the list twice is computed in one place,
   and copied to the other. */
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

/* Parts that are written ------------------------------------------------------------------------------- */

/* Gives the source. If it has the storage of self, a copy is made first, because the two may overlap. */
static shoal_status separate_source(struct shoal_lowering *lowering, const struct shoal_node *node,
                                    shoal_tensor **source_out)
{
    const struct shoal_node *self = node->args[0].as.node;
    const struct shoal_node *from = node->args[1].as.node;
    shoal_tensor *source;
    TRY(lower_tensor(lowering, from, 0, &source));
    *source_out = source;
    if (lower_number(lowering, self->values[0]) != lower_number(lowering, from->values[0])) {
        return SHOAL_OK;
    }
    TRY(lower_fresh(lowering, node->name, source->dtype, source->layout.n_dims, source->layout.shape,
                    source_out));
    return lower_copy(lowering, *source_out, source);
}

/* Gives the result, with the contents of self. If the result has no place yet, it may take over the buffer of self. */
static shoal_status take_self(struct shoal_lowering *lowering, struct shoal_node *node,
                              shoal_tensor **whole_out)
{
    shoal_tensor *self;
    bool has_place = lowering->storages[lower_number(lowering, node->values[0])].inside != PLAN_NONE;
    if (!has_place) {
        return lower_take(lowering, node, 0, node->args[0].as.node, 0, whole_out);
    }
    TRY(lower_tensor(lowering, node, 0, whole_out));
    if (lowering->nodes[node->id].is_in_place) {
        return SHOAL_OK;
    }
    TRY(lower_tensor(lowering, node->args[0].as.node, 0, &self));
    return lower_copy(lowering, *whole_out, self);
}

shoal_status lower_scatter(struct shoal_lowering *lowering, struct shoal_node *node)
{
    shoal_value *arguments;
    shoal_tensor *source;
    shoal_tensor *whole;
    shoal_tensor *part;
    TRY(lower_box(lowering, node, &arguments));
    TRY(separate_source(lowering, node, &source));
    TRY(take_self(lowering, node, &whole));
    if (source->count == 0) {
        return SHOAL_OK;
    }
    struct layout layout = {.n_dims = source->layout.n_dims,
                            .offset = whole->layout.offset + arguments[4].as.integer};
    for (int i = 0; i < layout.n_dims; i++) {
        layout.shape[i] = arguments[2].as.integers[i];
        layout.strides[i] = arguments[3].as.integers[i];
    }
    TRY(lower_view(lowering, whole, &layout, &part));
    return lower_copy(lowering, part, source);
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

/* Whether `maker` has a twin that works in place, and reads the storage only as its first argument, all of it. */
static bool can_work_in_place(const struct shoal_lowering *lowering, const struct shoal_node *maker,
                              uint32_t input)
{
    bool has_twin = lower_in_place_twin(maker->op) || maker->op->index == OP_as_strided_scatter;
    if (!has_twin || maker->args[0].kind != SHOAL_ARG_NODE) {
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

/*
 * `maker` computes a value in the input. If its own first argument is computed, is not needed by anybody else, and the
 * input is not used in between, that argument is computed in the input, too, and so on backwards. So a chain of writes
 * to an input copies nothing.
 */
static void find_homes_before(struct shoal_lowering *lowering, struct shoal_node *maker, uint32_t input)
{
    uint32_t before_copy = lowering->storages[input].before_copy;
    bool is_at_input = false;
    while (!is_at_input && maker->args[0].kind == SHOAL_ARG_NODE) {
        uint32_t number = lower_number(lowering, maker->args[0].as.node->values[0]);
        struct lowered_storage *made = &lowering->storages[number];
        if (!is_computed(lowering, made) || made->is_output || made->creator->n_values != 1 ||
            made->bytes != lowering->storages[input].bytes || made->last_user != place_of(lowering, maker) ||
            before_copy > made->created_at || !is_whole(made->creator->values[0], made) ||
            !can_work_in_place(lowering, maker, number)) {
            return;
        }
        is_at_input = before_copy == made->created_at;
        if (is_at_input && !can_work_in_place(lowering, made->creator, input)) {
            return;
        }
        lowering->nodes[maker->id].is_in_place = true;
        lowering->nodes[made->creator->id].is_in_place = is_at_input;
        made->inside = input;
        maker = made->creator;
    }
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
        if (!lowering->nodes[made->creator->id].is_in_place) {
            find_homes_before(lowering, made->creator, number);
        }
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
