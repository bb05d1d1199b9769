/* SPDX-License-Identifier: MIT */
/* Adds buffers, tensors and steps to a plan. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/ir/boxing.h"
#include "graph/lower/lower.h"
#include "graph/ir/twins.h"
#include "op/box.h"
#include "op/dispatch.h"
#include "op/op.h"
#include "tensor/scope.h"

/* Buffers ---------------------------------------------------------------------------------------------- */

/* Makes a storage without memory; plan_bind gives it memory. */
static struct storage *make_storage(size_t bytes)
{
    struct storage *storage = mem_alloc(sizeof *storage);
    if (storage) {
        storage_init(storage, NULL, SHOAL_CPU, bytes, NULL);
    }
    return storage;
}

/* Takes over the reference on the storage, on failure too. NULL stands for a storage that could not be made. */
static shoal_status add_buffer(struct shoal_lowering *lowering, struct plan_buffer buffer,
                               uint32_t *buffer_out)
{
    struct shoal_plan *plan = lowering->plan;
    buffer.name = arena_string(&plan->arena, buffer.name);
    shoal_status status = buffer.storage && buffer.name ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    if (status == SHOAL_OK) {
        status = mem_grow((void **)&plan->buffers, &plan->buffers_capacity, plan->n_buffers + 1,
                          sizeof *plan->buffers);
    }
    if (status == SHOAL_OK) {
        size_t known;
        status = map_get_or_add(&lowering->buffers, map_key(buffer.storage), plan->n_buffers, &known);
    }
    if (status != SHOAL_OK) {
        storage_unref(buffer.storage);
        return status;
    }
    buffer.first = PLAN_NONE;
    buffer.last = 0;
    plan->buffers[plan->n_buffers] = buffer;
    *buffer_out = (uint32_t)plan->n_buffers++;
    return SHOAL_OK;
}

shoal_status lower_add_buffer(struct shoal_lowering *lowering, enum plan_place place, size_t bytes,
                              const char *name, uint32_t *buffer_out)
{
    struct plan_buffer buffer = {
        .place = place, .bytes = bytes, .name = name, .storage = make_storage(bytes)};
    return add_buffer(lowering, buffer, buffer_out);
}

/* Places a storage inside the buffer of another one. Tensors there use the storage of that buffer. */
static shoal_status add_slot(struct shoal_lowering *lowering, struct lowered_storage *storage)
{
    TRY(lower_need_buffer(lowering, storage->inside));
    const struct lowered_storage *whole = &lowering->storages[storage->inside];
    storage->buffer = whole->buffer;
    storage->offset = whole->offset + storage->inside_at;
    if (!storage->is_slot) {
        return SHOAL_OK;
    }
    uint32_t number;
    struct plan_buffer slot = {.place = PLAN_SLOT,
                               .index = whole->buffer,
                               .offset = storage->offset,
                               .bytes = storage->bytes,
                               .name = storage->creator->name,
                               .storage = storage_ref(lowering->plan->buffers[whole->buffer].storage)};
    return add_buffer(lowering, slot, &number);
}

static shoal_status add_constant(struct shoal_lowering *lowering, struct lowered_storage *storage)
{
    struct storage *own = storage->creator->values[0]->storage;
    return add_buffer(lowering,
                      (struct plan_buffer){.place = PLAN_CONSTANT,
                                           .bytes = storage->bytes,
                                           .name = storage->creator->name,
                                           .storage = storage_ref(own)},
                      &storage->buffer);
}

shoal_status lower_need_buffer(struct shoal_lowering *lowering, uint32_t number)
{
    struct lowered_storage *storage = &lowering->storages[number];
    if (storage->buffer != PLAN_NONE) {
        return SHOAL_OK;
    }
    if (storage->inside != PLAN_NONE) {
        return add_slot(lowering, storage);
    }
    if (storage->creator->kind == SHOAL_NODE_CONSTANT) {
        return add_constant(lowering, storage);
    }
    enum plan_place place = storage->creator->kind == SHOAL_NODE_PLACEHOLDER ? PLAN_INPUT : PLAN_POOL;
    return lower_add_buffer(lowering, place, storage->bytes, storage->creator->name, &storage->buffer);
}

uint32_t lower_buffer_of(const struct shoal_lowering *lowering, const shoal_tensor *tensor)
{
    size_t number = 0;
    (void)map_get(&lowering->buffers, map_key(tensor->storage), &number);
    return (uint32_t)number;
}

/* Tensors ---------------------------------------------------------------------------------------------- */

static shoal_status make_tensor(struct shoal_lowering *lowering, struct storage *storage, shoal_dtype dtype,
                                const struct layout *layout, shoal_tensor **tensor_out)
{
    struct shoal_plan *plan = lowering->plan;
    TRY(mem_grow((void **)&plan->tensors, &plan->tensors_capacity, plan->n_tensors + 1,
                 sizeof(shoal_tensor *)));
    if (!storage->memory) {
        TRY(storage_need_alignment(storage, dtype_rows[dtype].alignment)); /* for the addresses of inputs */
    }
    TRY(tensor_create(storage_ref(storage), dtype, layout, tensor_out));
    plan->tensors[plan->n_tensors++] = *tensor_out;
    return SHOAL_OK;
}

shoal_status lower_view(struct shoal_lowering *lowering, const shoal_tensor *like,
                        const struct layout *layout, shoal_tensor **tensor_out)
{
    return make_tensor(lowering, like->storage, like->dtype, layout, tensor_out);
}

shoal_status lower_fresh(struct shoal_lowering *lowering, const char *name, shoal_dtype dtype, int n_dims,
                         const int64_t *shape, shoal_tensor **tensor_out)
{
    struct layout layout = {.n_dims = n_dims};
    int64_t count = 1;
    uint32_t buffer;
    for (int i = 0; i < n_dims; i++) {
        layout.shape[i] = shape[i];
        count *= shape[i];
    }
    layout_fill_strides(n_dims, layout.shape, layout.strides);
    TRY(lower_add_buffer(lowering, PLAN_POOL, (size_t)count * shoal_dtype_bytes(dtype), name, &buffer));
    return make_tensor(lowering, lowering->plan->buffers[buffer].storage, dtype, &layout, tensor_out);
}

static shoal_status make_value(struct shoal_lowering *lowering, const struct shoal_node *node, size_t index,
                               shoal_tensor **tensor_out)
{
    const shoal_tensor *here = lower_here(lowering, node, index);
    uint32_t number = lower_number(lowering, node->values[index]);
    TRY(lower_need_buffer(lowering, number));
    const struct lowered_storage *storage = &lowering->storages[number];
    struct layout layout = here->layout;
    layout.offset += (int64_t)(storage->offset / shoal_dtype_bytes(here->dtype));
    return make_tensor(lowering, lowering->plan->buffers[storage->buffer].storage, here->dtype, &layout,
                       tensor_out);
}

shoal_status lower_tensor(struct shoal_lowering *lowering, const struct shoal_node *node, size_t index,
                          shoal_tensor **tensor_out)
{
    struct lowered_node *lowered = &lowering->nodes[node->id];
    if (!lowered->tensors) {
        lowered->tensors = arena_alloc(&lowering->plan->arena, node->n_values + 1, sizeof(shoal_tensor *));
        if (!lowered->tensors) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    if (!lowered->tensors[index]) {
        TRY(make_value(lowering, node, index, &lowered->tensors[index]));
    }
    *tensor_out = lowered->tensors[index];
    return SHOAL_OK;
}

shoal_status lower_tensors(struct shoal_lowering *lowering, const struct shoal_node *node,
                           shoal_tensor ***tensors_out)
{
    shoal_tensor *tensor;
    for (size_t i = 0; i < node->n_values; i++) {
        TRY(lower_tensor(lowering, node, i, &tensor));
    }
    *tensors_out = lowering->nodes[node->id].tensors;
    return SHOAL_OK;
}

/* Arguments -------------------------------------------------------------------------------------------- */

static shoal_status box_one(void *context, const struct shoal_node *node, shoal_tensor **tensor_out)
{
    return lower_tensor(context, node, 0, tensor_out);
}

/* make_inputs has made the tensors, because this function cannot fail. */
static shoal_tensor *const *box_list(void *context, const struct shoal_node *node)
{
    const struct shoal_lowering *lowering = context;
    return lowering->nodes[node->id].tensors;
}

static struct shoal_group *box_no_group(void *context, const struct graph_group *row)
{
    (void)context;
    (void)row;
    return NULL;
}

static int64_t box_rank(void *context, const struct graph_group *row)
{
    const struct shoal_lowering *lowering = context;
    size_t index = 0;
    while (lowering->groups[index] != row) {
        index++;
    }
    return lowering->plan->groups[index].rank;
}

static shoal_status make_inputs(struct shoal_lowering *lowering, const struct shoal_node *node)
{
    shoal_tensor **tensors;
    for (size_t i = 0; i < node->n_inputs; i++) {
        if (node->inputs[i]->is_list) {
            TRY(lower_tensors(lowering, node->inputs[i], &tensors));
        }
    }
    return SHOAL_OK;
}

/* Copies strings and lists, which lie in the scope or in the graph, to the plan's arena. */
static shoal_status keep_value(struct arena *arena, shoal_value *value)
{
    size_t bytes = 0;
    const void *from = NULL;
    if (value->kind == SHOAL_VALUE_STRING) {
        from = value->as.string;
        bytes = value->as.string ? strlen(value->as.string) + 1 : 0;
    } else if (value->kind == SHOAL_VALUE_INTS) {
        from = value->as.integers;
        bytes = value->count * sizeof *value->as.integers;
    } else if (value->kind == SHOAL_VALUE_TENSORS) {
        from = value->as.tensors;
        bytes = value->count * sizeof(shoal_tensor *);
    }
    if (bytes == 0) {
        return SHOAL_OK;
    }
    void *copy = arena_alloc(arena, bytes, 1);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memcpy(copy, from, bytes);
    if (value->kind == SHOAL_VALUE_STRING) {
        value->as.string = copy;
    } else if (value->kind == SHOAL_VALUE_INTS) {
        value->as.integers = copy;
    } else {
        value->as.tensors = copy;
    }
    return SHOAL_OK;
}

static shoal_status box_in_scope(struct shoal_lowering *lowering, const struct shoal_node *node,
                                 shoal_value *values)
{
    struct boxing boxing = {.graph = lowering->graph,
                            .context = lowering,
                            .one = box_one,
                            .list = box_list,
                            .group = box_no_group,
                            .rank = box_rank};
    TRY(boxing_box(&boxing, node->op, node->args, node->n_args, values));
    for (size_t i = 0; i < node->n_args; i++) {
        TRY(keep_value(&lowering->plan->arena, &values[i]));
    }
    return SHOAL_OK;
}

shoal_status lower_box(struct shoal_lowering *lowering, const struct shoal_node *node,
                       shoal_value **arguments_out)
{
    shoal_value *values = arena_alloc(&lowering->plan->arena, node->n_args + 1, sizeof *values);
    if (!values) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(make_inputs(lowering, node));
    TRY(shoal_scope_begin());
    shoal_status status = box_in_scope(lowering, node, values);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    TRY(shoal_scope_end());
    *arguments_out = values;
    return SHOAL_OK;
}

/* Steps ------------------------------------------------------------------------------------------------ */

shoal_status lower_add_step(struct shoal_lowering *lowering, const struct plan_step *step)
{
    struct shoal_plan *plan = lowering->plan;
    if (plan->n_steps == PLAN_NONE - 1) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the plan would have too many steps");
    }
    TRY(mem_grow((void **)&plan->steps, &plan->steps_capacity, plan->n_steps + 1, sizeof *plan->steps));
    struct plan_step *added = &plan->steps[plan->n_steps];
    *added = *step;
    added->node = arena_string(&plan->arena, lowering->node->name);
    if (!added->node) {
        return SHOAL_ERR_NO_MEMORY;
    }
    plan->n_steps++;
    return SHOAL_OK;
}

static shoal_status add_op_step(struct shoal_lowering *lowering, struct plan_step step,
                                shoal_tensor *const *outputs)
{
    step.outputs = arena_alloc(&lowering->plan->arena, step.n_outputs + 1, sizeof(shoal_tensor *));
    if (!step.outputs) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < step.n_outputs; i++) {
        step.outputs[i] = outputs[i];
    }
    step.collective = PLAN_NONE;
    step.window = PLAN_NONE;
    return lower_add_step(lowering, &step);
}

shoal_status lower_call(struct shoal_lowering *lowering, const shoal_op *op, shoal_value *arguments,
                        shoal_tensor *const *outputs, size_t n_outputs)
{
    size_t workspace_bytes = op_workspace_bytes(op, arguments, outputs, n_outputs);
    if (workspace_bytes > PTRDIFF_MAX) {
        return error_set(SHOAL_ERR_NO_MEMORY, "%s: its scratch memory is more than memory can hold",
                         op->name);
    }
    return add_op_step(lowering,
                       (struct plan_step){.kind = PLAN_CALL,
                                          .op = op,
                                          .arguments = arguments,
                                          .n_outputs = n_outputs,
                                          .workspace_bytes = workspace_bytes,
                                          .group = PLAN_NONE},
                       outputs);
}

shoal_status lower_copy(struct shoal_lowering *lowering, shoal_tensor *to, shoal_tensor *from)
{
    shoal_value *arguments = arena_alloc(&lowering->plan->arena, 2, sizeof *arguments);
    if (!arguments) {
        return SHOAL_ERR_NO_MEMORY;
    }
    arguments[0] = box_tensor(to);
    arguments[1] = box_tensor(from);
    return lower_call(lowering, op_get(OP_copy_), arguments, &to, 1);
}

/* Lists all tensors that an eager start takes and gives, for its wait. */
static shoal_status gather_tensors(struct shoal_lowering *lowering, const struct shoal_node *node,
                                   const shoal_value *arguments, shoal_tensor *const *outputs,
                                   shoal_value *all_out)
{
    size_t n_tensors = node->n_values;
    for (size_t i = 0; i < node->n_args; i++) {
        n_tensors += arguments[i].kind == SHOAL_VALUE_TENSORS ? arguments[i].count : 1;
    }
    shoal_tensor **tensors = arena_alloc(&lowering->plan->arena, n_tensors, sizeof(shoal_tensor *));
    if (!tensors) {
        return SHOAL_ERR_NO_MEMORY;
    }
    n_tensors = 0;
    for (size_t i = 0; i < node->n_args; i++) {
        const shoal_value *value = &arguments[i];
        bool is_list = value->kind == SHOAL_VALUE_TENSORS;
        size_t count = is_list ? value->count : value->kind == SHOAL_VALUE_TENSOR ? 1 : 0;
        for (size_t k = 0; k < count; k++) {
            tensors[n_tensors++] = is_list ? value->as.tensors[k] : value->as.tensor;
        }
    }
    for (size_t i = 0; i < node->n_values; i++) {
        tensors[n_tensors++] = outputs[i];
    }
    *all_out = box_tensors(tensors, n_tensors);
    return SHOAL_OK;
}

shoal_status lower_eager(struct shoal_lowering *lowering, struct shoal_node *node,
                         const shoal_value *arguments)
{
    shoal_tensor **outputs;
    shoal_value *copy = arena_alloc(&lowering->plan->arena, node->n_args + 1, sizeof *copy);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < node->n_args; i++) {
        copy[i] = arguments[i];
    }
    TRY(lower_tensors(lowering, node, &outputs));
    TRY(add_op_step(lowering,
                    (struct plan_step){.kind = PLAN_EAGER,
                                       .op = node->op,
                                       .arguments = copy,
                                       .n_outputs = node->n_values,
                                       .group = lower_group(lowering, node)},
                    outputs));
    struct lowered_start *start = lower_add_start(lowering, PLAN_NONE);
    if (!start) {
        return SHOAL_ERR_NO_MEMORY;
    }
    return gather_tensors(lowering, node, arguments, outputs, &start->eager);
}
