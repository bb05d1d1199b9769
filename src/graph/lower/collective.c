/* SPDX-License-Identifier: MIT */
/* Helpers of the functions in lowerings.def: collectives, their buffers, and copies before and after them. */
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/lower/lower.h"
#include "op/op.h"

/* Comm memory ------------------------------------------------------------------------------------------ */

bool lower_can_realize(const struct shoal_lowering *lowering, const shoal_tensor *tensor, uint32_t group)
{
    const struct plan_buffer *buffer = &lowering->plan->buffers[lower_buffer_of(lowering, tensor)];
    if (lowering->options->no_comm_buffers || group == PLAN_NONE) {
        return false;
    }
    return buffer->place == PLAN_POOL || (buffer->place == PLAN_COMM && buffer->index == group);
}

void lower_realize(struct shoal_lowering *lowering, const shoal_tensor *tensor, uint32_t group)
{
    struct plan_buffer *buffer = &lowering->plan->buffers[lower_buffer_of(lowering, tensor)];
    if (buffer->place != PLAN_COMM && lower_can_realize(lowering, tensor, group)) {
        buffer->place = PLAN_COMM;
        buffer->index = group;
        buffer->comm_id = ++lowering->n_comm_ids;
    }
}

/* Collectives ------------------------------------------------------------------------------------------ */

static struct plan_collective *current(const struct shoal_lowering *lowering)
{
    return &lowering->plan->collectives[lowering->plan->n_collectives - 1];
}

shoal_status lower_begin_collective(struct shoal_lowering *lowering, uint32_t group, size_t n_pieces,
                                    struct plan_collective **collective_out)
{
    struct shoal_plan *plan = lowering->plan;
    struct arena *arena = &plan->arena;
    TRY(mem_grow((void **)&plan->collectives, &plan->collectives_capacity, plan->n_collectives + 1,
                 sizeof *plan->collectives));
    struct plan_collective *collective = &plan->collectives[plan->n_collectives];
    struct collective_piece *pieces = arena_alloc(arena, n_pieces, sizeof *pieces);
    const char *unit = lowering->node->unit;
    *collective = (struct plan_collective){
        .node = arena_string(arena, lowering->node->name),
        .unit = unit ? arena_string(arena, unit) : NULL,
        .op = lowering->node->op,
        .group = group,
        .window = PLAN_NONE,
        .sends = arena_alloc(arena, n_pieces, sizeof(shoal_tensor *)),
        .receives = arena_alloc(arena, n_pieces, sizeof(shoal_tensor *)),
        .n_pieces = n_pieces,
        .call = {.n_pieces = n_pieces, .pieces = pieces},
    };
    if (!pieces || !collective->node || (unit && !collective->unit) || !collective->sends ||
        !collective->receives) {
        return SHOAL_ERR_NO_MEMORY;
    }
    collective->ordinal = plan->groups[group].n_collectives++;
    if (!lower_add_start(lowering, (uint32_t)plan->n_collectives)) {
        return SHOAL_ERR_NO_MEMORY;
    }
    plan->n_collectives++;
    lowering->n_details = 0;
    *collective_out = collective;
    return SHOAL_OK;
}

void lower_set_piece(struct plan_collective *collective, size_t index, shoal_tensor *send, shoal_tensor *recv,
                     int64_t count)
{
    struct collective_piece *pieces = (struct collective_piece *)(uintptr_t)collective->call.pieces;
    collective->sends[index] = send;
    collective->receives[index] = recv;
    pieces[index].count = (size_t)count;
}

const struct shoal_node *lower_item(const shoal_arg *arg, size_t index, size_t *value_out)
{
    bool is_node = arg->kind == SHOAL_ARG_NODE;
    *value_out = is_node ? index : 0;
    return is_node ? arg->as.node : arg->as.list.items[index].as.node;
}

static shoal_status say(struct shoal_lowering *lowering, int64_t number)
{
    TRY(mem_grow((void **)&lowering->details, &lowering->details_capacity, lowering->n_details + 1,
                 sizeof *lowering->details));
    lowering->details[lowering->n_details++] = number;
    return SHOAL_OK;
}

shoal_status lower_say_numbers(struct shoal_lowering *lowering, const int64_t *numbers, size_t n)
{
    TRY(say(lowering, (int64_t)n));
    for (size_t i = 0; i < n; i++) {
        TRY(say(lowering, numbers[i]));
    }
    return SHOAL_OK;
}

shoal_status lower_say_shape(struct shoal_lowering *lowering, const shoal_tensor *tensor)
{
    return lower_say_numbers(lowering, tensor->layout.shape, (size_t)tensor->layout.n_dims);
}

shoal_status lower_say_number(struct shoal_lowering *lowering, int64_t number)
{
    TRY(say(lowering, DETAIL_NUMBER));
    return say(lowering, number);
}

shoal_status lower_end_collective(struct shoal_lowering *lowering, bool is_blocking)
{
    struct plan_collective *collective = current(lowering);
    int64_t *details = arena_alloc(&lowering->plan->arena, lowering->n_details + 1, sizeof *details);
    if (!details) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < lowering->n_details; i++) {
        details[i] = lowering->details[i];
    }
    collective->purpose = (struct purpose){.argument = (uint32_t)collective->op->index + 1,
                                           .details = details,
                                           .n_details = lowering->n_details,
                                           .words = collective->node,
                                           .has_lasting_words = false};
    struct plan_step step = {.kind = is_blocking ? PLAN_BLOCK : PLAN_START,
                             .op = collective->op,
                             .group = PLAN_NONE,
                             .collective = (uint32_t)lowering->plan->n_collectives - 1,
                             .window = PLAN_NONE};
    lowering->starts[lowering->n_starts - 1].skips_wait = is_blocking;
    lowering->starts[lowering->n_starts - 1].step = (uint32_t)lowering->plan->n_steps;
    return lower_add_step(lowering, &step);
}

shoal_status lower_copy_late(struct shoal_lowering *lowering, shoal_tensor *to, shoal_tensor *from)
{
    struct lowered_start *start = &lowering->starts[lowering->n_starts - 1];
    struct late_copy *copy = arena_alloc(&lowering->scratch, 1, sizeof *copy);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *copy = (struct late_copy){.to = to, .from = from};
    if (start->last_copy) {
        start->last_copy->next = copy;
    } else {
        start->copies = copy;
    }
    start->last_copy = copy;
    return SHOAL_OK;
}

/* Operands --------------------------------------------------------------------------------------------- */

shoal_status lower_input(struct shoal_lowering *lowering, shoal_tensor *tensor, shoal_tensor **contiguous_out)
{
    *contiguous_out = tensor;
    if (tensor->is_contiguous) {
        return SHOAL_OK;
    }
    TRY(lower_fresh(lowering, lowering->node->name, tensor->dtype, tensor->layout.n_dims,
                    tensor->layout.shape, contiguous_out));
    return lower_copy(lowering, *contiguous_out, tensor);
}

shoal_status lower_write_back(struct shoal_lowering *lowering, shoal_tensor *tensor, shoal_tensor *data)
{
    return data == tensor ? SHOAL_OK : lower_copy_late(lowering, tensor, data);
}

bool lower_is_apart(const shoal_tensor *other, const shoal_tensor *blocks, int dim, size_t n_ranks)
{
    bool is_direct =
        other->is_contiguous && blocks->is_contiguous && lower_has_plain_blocks(blocks, dim, n_ranks);
    return is_direct || !tensor_may_overlap(other, blocks);
}

bool lower_has_plain_blocks(const shoal_tensor *like, int dim, size_t n_ranks)
{
    if (like->count == 0 || n_ranks == 1) {
        return true;
    }
    for (int i = 0; i < dim; i++) {
        if (like->layout.shape[i] != 1) {
            return false;
        }
    }
    return true;
}

bool lower_can_block(const shoal_tensor *tensor, int dim, size_t n_ranks)
{
    return lower_has_plain_blocks(tensor, dim, n_ranks) || tensor->layout.n_dims < SHOAL_MAX_DIMS;
}

/* Returns the layout of the blocks along `dim`, with the blocks as the first dimension: [a, n * b] as [n, a, b]. */
static struct layout block_layout(const struct layout *layout, int dim, int64_t n_ranks)
{
    struct layout blocks = {.n_dims = layout->n_dims + 1, .offset = layout->offset};
    int64_t size = layout->shape[dim] / n_ranks;
    blocks.shape[0] = n_ranks;
    blocks.strides[0] = size * layout->strides[dim];
    for (int i = 0; i < layout->n_dims; i++) {
        blocks.shape[i + 1] = i == dim ? size : layout->shape[i];
        blocks.strides[i + 1] = layout->strides[i];
    }
    return blocks;
}

/* Makes a view of the blocks, and a new contiguous tensor of its shape. */
static shoal_status split_blocks(struct shoal_lowering *lowering, shoal_tensor *tensor, int dim,
                                 size_t n_ranks, struct lowered_blocks *blocks_out)
{
    struct layout layout = block_layout(&tensor->layout, dim, (int64_t)n_ranks);
    TRY(lower_view(lowering, tensor, &layout, &blocks_out->view));
    return lower_fresh(lowering, lowering->node->name, tensor->dtype, layout.n_dims, layout.shape,
                       &blocks_out->contiguous);
}

shoal_status lower_input_blocks(struct shoal_lowering *lowering, shoal_tensor *tensor, int dim,
                                size_t n_ranks, shoal_tensor **blocks_out)
{
    struct lowered_blocks blocks;
    if (lower_has_plain_blocks(tensor, dim, n_ranks)) {
        return lower_input(lowering, tensor, blocks_out);
    }
    TRY(split_blocks(lowering, tensor, dim, n_ranks, &blocks));
    *blocks_out = blocks.contiguous;
    return lower_copy(lowering, blocks.contiguous, blocks.view);
}

shoal_status lower_make_blocks(struct shoal_lowering *lowering, shoal_tensor *tensor, int dim, size_t n_ranks,
                               struct lowered_blocks *blocks_out)
{
    *blocks_out = (struct lowered_blocks){.contiguous = tensor, .view = tensor};
    if (!lower_has_plain_blocks(tensor, dim, n_ranks)) {
        return split_blocks(lowering, tensor, dim, n_ranks, blocks_out);
    }
    return tensor->is_contiguous
               ? SHOAL_OK
               : lower_fresh(lowering, lowering->node->name, tensor->dtype, tensor->layout.n_dims,
                             tensor->layout.shape, &blocks_out->contiguous);
}

/* Results that take their input's buffer --------------------------------------------------------------- */

/* Whether the result may take over the input's buffer: the value is its whole storage, which only this node and waits
   for it use from here on. */
static bool can_steal(const struct shoal_lowering *lowering, const struct shoal_node *node,
                      const struct shoal_node *input, size_t index)
{
    const struct lowered_storage *storage = &lowering->storages[lower_number(lowering, input->values[index])];
    const shoal_tensor *value = lower_here(lowering, input, index);
    if (storage->buffer == PLAN_NONE || storage->is_stolen || storage->n_in_flight > 0 ||
        storage->inside != PLAN_NONE || storage->last_use != lowering->nodes[node->id].place) {
        return false;
    }
    enum plan_place place = lowering->plan->buffers[storage->buffer].place;
    uint32_t group = lowering->plan->buffers[storage->buffer].index;
    return (place == PLAN_POOL || (place == PLAN_COMM && group == lower_group(lowering, node))) &&
           value->is_contiguous && value->layout.offset == 0 && tensor_bytes(value) == storage->bytes;
}

shoal_status lower_take(struct shoal_lowering *lowering, struct shoal_node *node, size_t index,
                        const struct shoal_node *input, size_t input_index, shoal_tensor **tensor_out)
{
    shoal_tensor *from;
    TRY(lower_tensor(lowering, input, input_index, &from));
    if (can_steal(lowering, node, input, input_index)) {
        struct lowered_storage *storage =
            &lowering->storages[lower_number(lowering, input->values[input_index])];
        struct lowered_storage *result = &lowering->storages[lower_number(lowering, node->values[index])];
        storage->is_stolen = true;
        result->buffer = storage->buffer;
        result->offset = storage->offset;
        return lower_tensor(lowering, node, index, tensor_out);
    }
    TRY(lower_tensor(lowering, node, index, tensor_out));
    return lower_copy(lowering, *tensor_out, from);
}
