/* SPDX-License-Identifier: MIT */
/*
 * Records ops: what the dispatcher calls around a kernel (op/tape.h), and the backward pass through a recorded op.
 *
 * Everything that can fail happens in prepare, and so does every copy of data that the kernel is about to overwrite. An
 * op that cannot be differentiated is refused there, so that no gradient is lost silently.
 */
#include "autograd/tape.h"

#include <string.h>

#include "autograd/gradients.h"
#include "autograd/leaf.h"
#include "autograd/node.h"
#include "base/closable.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "op/dispatch.h"
#include "shoal/ops.h"
#include "tensor/dtype.h"
#include "tensor/scope.h"

struct note {
    const void *place; /* only compared */
    uint64_t number;
};

/* A recorded call of an op. */
struct tape_entry {
    struct node node; /* first: a node's address is the entry's */
    const shoal_op *op;
    /* One per parameter. Numbers and strings are copied to the end of the block. Tensors are the node's inputs, in the
       order of the parameters, and are filled in during the backward pass. */
    shoal_value arguments[OP_MAX_PARAMS];
    bool saves_result;
    struct note note;
};

/* `made` by the kernel that ran last; `walked` is that of the call whose gradient function is running. */
static _Thread_local struct note made;
static _Thread_local struct note walked;

void tape_note(const void *place, uint64_t number)
{
    made = (struct note){.place = place, .number = number};
}

uint64_t tape_noted(const void *place)
{
    return walked.place == place ? walked.number : 0;
}

/* Arguments -------------------------------------------------------------------------------------------- */

static bool is_tensor_param(const struct op_param *param)
{
    return param->type == OP_PARAM_TENSOR || param->type == OP_PARAM_OPTIONAL_TENSOR ||
           param->type == OP_PARAM_TENSORS;
}

/* How many of the node's inputs belong to a parameter; an absent "tensor?" counts as one. */
static size_t count_param_tensors(const struct op_param *param, const shoal_value *value)
{
    if (param->type == OP_PARAM_TENSORS) {
        return value->count;
    }
    return is_tensor_param(param) ? 1 : 0;
}

/* NULL for an absent "tensor?". */
static shoal_tensor *get_tensor(const shoal_value *value, size_t index)
{
    if (value->kind == SHOAL_VALUE_TENSORS) {
        return value->as.tensors[index];
    }
    return value->kind == SHOAL_VALUE_TENSOR ? value->as.tensor : NULL;
}

/* Puts the name of a tensor argument in front of the error. */
static shoal_status name_argument(shoal_status status, const struct op_param *param, size_t index)
{
    return param->type == OP_PARAM_TENSORS ? error_prefix(status, "%s[%zu]", param->name, index)
                                           : error_prefix(status, "%s", param->name);
}

/* The bytes that a value points to, rounded up to whole int64_t. */
static size_t count_value_bytes(const shoal_value *value)
{
    size_t bytes = 0;
    if (value->kind == SHOAL_VALUE_INTS) {
        bytes = value->count * sizeof(int64_t);
    } else if (value->kind == SHOAL_VALUE_STRING) {
        bytes = strlen(value->as.string) + 1;
    }
    return (bytes + sizeof(int64_t) - 1) / sizeof(int64_t) * sizeof(int64_t);
}

/* Every group begins with this (comm/group/group.h). */
static struct closable *group_closable(const shoal_value *value)
{
    return (struct closable *)value->as.group;
}

/* Copies a value, and what it points to, to `place`; returns the address after it. */
static char *copy_value(shoal_value *copy, const shoal_value *value, char *place)
{
    *copy = *value;
    if (value->kind == SHOAL_VALUE_INTS) {
        if (value->count > 0) {
            memcpy(place, value->as.integers, value->count * sizeof(int64_t));
        }
        copy->as.integers = (const int64_t *)place;
    } else if (value->kind == SHOAL_VALUE_STRING) {
        memcpy(place, value->as.string, strlen(value->as.string) + 1);
        copy->as.string = place;
    } else if (value->kind == SHOAL_VALUE_GROUP) {
        closable_ref(group_closable(value));
    }
    return place + count_value_bytes(value);
}

/* Refusing --------------------------------------------------------------------------------------------- */

static shoal_status check_in_place_target(const shoal_op *op, const shoal_value *written, size_t index)
{
    const shoal_tensor *tensor = get_tensor(written, index);
    if (leaf_of(tensor)) {
        return error_set(SHOAL_ERR_STATE,
                         "this leaf requires a gradient: it cannot be changed in place while "
                         "gradients are on (shoal_scope_set_grad(false) around updates)");
    }
    if (tensor->is_view) {
        return error_set(SHOAL_ERR_STATE,
                         "this is a view: while gradients are recorded it cannot be changed in place, "
                         "because the tensor that it is a view of would not record the change");
    }
    for (size_t i = 0; i < index; i++) {
        if (get_tensor(written, i) == tensor) {
            return error_set(SHOAL_ERR_STATE,
                             "this is also %s[%zu]: one call cannot record two changes of it",
                             op->params[0].name, i);
        }
    }
    return SHOAL_OK;
}

static shoal_status check_argument(const shoal_op *op, const shoal_value *arguments, size_t param,
                                   size_t index)
{
    const shoal_tensor *tensor = get_tensor(&arguments[param], index);
    if (!tensor) {
        return SHOAL_OK;
    }
    if (param == 0 && op_is_in_place(op)) {
        TRY(check_in_place_target(op, &arguments[0], index));
    }
    return history_check_current(tensor);
}

static shoal_status check_arguments(const shoal_op *op, const shoal_value *arguments)
{
    for (size_t i = 0; i < op->n_params; i++) {
        size_t n_tensors = count_param_tensors(&op->params[i], &arguments[i]);
        for (size_t k = 0; k < n_tensors; k++) {
            shoal_status status = check_argument(op, arguments, i, k);
            if (status != SHOAL_OK) {
                return name_argument(status, &op->params[i], k);
            }
        }
    }
    return SHOAL_OK;
}

/* Whether an output is an argument itself, as `contiguous` of a contiguous tensor: that is not recorded. */
static bool is_handed_through(const shoal_op *op, const shoal_value *arguments, const shoal_tensor *output)
{
    /* A new tensor has one owner, an argument at least two: most outputs need no search. */
    if (op_is_in_place(op) || atomic_load(&output->references) == 1) {
        return false;
    }
    for (size_t i = 0; i < op->n_params; i++) {
        size_t n_tensors = count_param_tensors(&op->params[i], &arguments[i]);
        for (size_t k = 0; k < n_tensors; k++) {
            if (get_tensor(&arguments[i], k) == output) {
                return true;
            }
        }
    }
    return false;
}

/* Whether an output is a view, as a dtype without gradients, of memory that needs one: the gradient would be lost. */
static bool hides_gradient(const shoal_op *op, const shoal_value *arguments, const shoal_tensor *output)
{
    bool is_view = (op->flags & SHOAL_OP_VIEW) != 0 && arguments[0].kind == SHOAL_VALUE_TENSOR;
    const shoal_tensor *self = is_view ? arguments[0].as.tensor : NULL;
    return self && self->history && self->dtype != output->dtype;
}

/* Counts the outputs that will have a gradient. It is an error if one cannot have a gradient but should. */
static shoal_status count_recorded(const shoal_op *op, const shoal_value *arguments,
                                   shoal_tensor *const *outputs, size_t n_outputs, size_t *n_recorded_out)
{
    size_t n_recorded = 0;
    for (size_t i = 0; i < n_outputs; i++) {
        if (is_handed_through(op, arguments, outputs[i])) {
            continue;
        }
        enum dtype_kind kind = dtype_kind(outputs[i]->dtype);
        if (kind == DTYPE_KIND_COMPLEX || kind == DTYPE_KIND_FLOAT8) {
            return error_set(SHOAL_ERR_UNSUPPORTED,
                             "an input requires a gradient, but gradients of %s results are not supported",
                             shoal_dtype_name(outputs[i]->dtype));
        }
        bool is_hiding = hides_gradient(op, arguments, outputs[i]);
        n_recorded += is_hiding || shoal_dtype_is_floating(outputs[i]->dtype) ? 1 : 0;
    }
    if (n_recorded > 0 && !gradients_find(op)) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "an input requires a gradient, but %s has no gradient function", op->name);
    }
    *n_recorded_out = n_recorded;
    return SHOAL_OK;
}

/* Saving ----------------------------------------------------------------------------------------------- */

/* A saved tensor that the kernel is about to overwrite is kept as a copy. */
static shoal_status save_copy(struct saved_tensor *saved, shoal_tensor *tensor)
{
    TRY(shoal_scope_begin());
    shoal_status status = shoal_scope_set_grad(false);
    if (status == SHOAL_OK) {
        shoal_tensor *copy = shoal_clone(tensor);
        if (copy) {
            saved_note(saved, copy);
            saved_keep_data(saved, copy->storage);
        }
    }
    shoal_status end_status = shoal_scope_end();
    return status == SHOAL_OK ? end_status : status;
}

static bool is_overwritten(const shoal_op *op, const shoal_value *arguments, const shoal_tensor *tensor)
{
    size_t n_written = op_is_in_place(op) ? count_param_tensors(&op->params[0], &arguments[0]) : 0;
    for (size_t i = 0; i < n_written; i++) {
        const shoal_tensor *written = get_tensor(&arguments[0], i);
        if (written->storage == tensor->storage || tensor_may_overlap(written, tensor)) {
            return true;
        }
    }
    return false;
}

/* Whether the gradient function of this call will read a tensor that is saved like this. */
static bool is_wanted(const shoal_op *op, const shoal_value *arguments, const struct op_saving *saving)
{
    int saved_for = saving->saved_for;
    if (!saving->is_saved || !op_saves_when(op, saving, arguments)) {
        return false;
    }
    if (saved_for == OP_SAVED_FOR_ANY) {
        return true;
    }
    size_t n_tensors = count_param_tensors(&op->params[saved_for], &arguments[saved_for]);
    for (size_t i = 0; i < n_tensors; i++) {
        const shoal_tensor *tensor = get_tensor(&arguments[saved_for], i);
        if (tensor && tensor->history) {
            return true;
        }
    }
    return false;
}

static shoal_status save_input(struct tape_entry *entry, const shoal_value *arguments, size_t param,
                               size_t input, shoal_tensor *tensor)
{
    const shoal_op *op = entry->op;
    struct saved_tensor *saved = &entry->node.inputs[input].saved;
    node_set_input(&entry->node, input, tensor);
    if (param == 0 && (op->flags & SHOAL_OP_OVERWRITES) != 0) {
        /* The old values do not matter. Without this, a buffer that is reused would keep their whole record alive. */
        node_drop_edge(&entry->node, input);
    }
    if (!is_wanted(op, arguments, &op->params[param].saving)) {
        return SHOAL_OK;
    }
    if (is_overwritten(op, arguments, tensor)) {
        return save_copy(saved, tensor);
    }
    saved_keep_data(saved, tensor->storage);
    return SHOAL_OK;
}

static shoal_status save_arguments(struct tape_entry *entry, const shoal_value *arguments, char *place)
{
    size_t input = 0;
    for (size_t i = 0; i < entry->op->n_params; i++) {
        size_t n_tensors = count_param_tensors(&entry->op->params[i], &arguments[i]);
        place = copy_value(&entry->arguments[i], &arguments[i], place);
        for (size_t k = 0; k < n_tensors; k++, input++) {
            shoal_tensor *tensor = get_tensor(&arguments[i], k);
            if (tensor) {
                TRY(save_input(entry, arguments, i, input, tensor));
            }
        }
    }
    return SHOAL_OK;
}

/* The backward pass ------------------------------------------------------------------------------------ */

static const char *name_entry(const struct node *node)
{
    return ((const struct tape_entry *)node)->op->name;
}

/* Restores the tensors of one parameter; the first of them is input `first` of the node. */
static shoal_status restore_param(const struct tape_entry *entry, size_t param, size_t first,
                                  shoal_value *value)
{
    const struct op_param *description = &entry->op->params[param];
    size_t n_tensors = count_param_tensors(description, value);
    shoal_tensor *one = NULL;
    shoal_tensor **tensors = &one;
    if (description->type == OP_PARAM_TENSORS) {
        tensors = scope_alloc(scope_current(), n_tensors * sizeof(tensors[0]));
        if (!tensors) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    for (size_t k = 0; k < n_tensors; k++) {
        const struct node_input *input = &entry->node.inputs[first + k];
        shoal_status status = input->is_present ? saved_restore(&input->saved, &tensors[k]) : SHOAL_OK;
        if (status != SHOAL_OK) {
            return name_argument(status, description, k);
        }
    }
    if (description->type == OP_PARAM_TENSORS) {
        value->as.tensors = tensors;
    } else {
        value->as.tensor = one;
    }
    return SHOAL_OK;
}

static shoal_status restore_arguments(const struct tape_entry *entry, shoal_value arguments[OP_MAX_PARAMS])
{
    size_t input = 0;
    for (size_t i = 0; i < entry->op->n_params; i++) {
        const struct op_param *param = &entry->op->params[i];
        arguments[i] = entry->arguments[i];
        if (arguments[i].kind == SHOAL_VALUE_GROUP) {
            TRY(closable_check(group_closable(&arguments[i])));
        }
        if (is_tensor_param(param)) {
            TRY(restore_param(entry, i, input, &arguments[i]));
            input += count_param_tensors(param, &arguments[i]);
        }
    }
    return SHOAL_OK;
}

static shoal_status restore_outputs(const struct node *node, shoal_tensor ***outputs_out)
{
    shoal_tensor **outputs = scope_alloc(scope_current(), node->n_outputs * sizeof(outputs[0]));
    if (!outputs) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < node->n_outputs; i++) {
        shoal_status status = saved_restore(&node->outputs[i].saved, &outputs[i]);
        if (status != SHOAL_OK) {
            return error_prefix(status, "result[%zu]", i);
        }
    }
    *outputs_out = outputs;
    return SHOAL_OK;
}

static shoal_status run_gradient(struct node *node, const bool *needs_gradient, shoal_tensor **gradients,
                                 shoal_tensor **input_gradients)
{
    const struct tape_entry *entry = (const struct tape_entry *)node;
    shoal_value arguments[OP_MAX_PARAMS];
    shoal_tensor **outputs = NULL;
    shoal_op_call_context call;
    TRY(restore_arguments(entry, arguments));
    TRY(restore_outputs(node, &outputs));
    op_context_init(&call, entry->op);
    call.needs_gradient = needs_gradient;
    call.n_needs_gradient = node->n_inputs;
    call.n_outputs = node->n_outputs; /* for lists; there is nothing to declare here */
    struct note around = walked;
    struct scope_callback callback = scope_callback_begin();
    walked = entry->note;
    shoal_status status =
        scope_callback_end(callback, "the gradient function",
                           gradients_find(entry->op)(&call, arguments, outputs, gradients, input_gradients));
    walked = around;
    return status;
}

static void release_entry(struct node *node)
{
    struct tape_entry *entry = (struct tape_entry *)node;
    for (size_t i = 0; i < entry->op->n_params; i++) {
        if (entry->arguments[i].kind == SHOAL_VALUE_GROUP) {
            closable_unref(group_closable(&entry->arguments[i]));
        }
    }
}

static const struct node_kind entry_kind = {
    .tape = &autograd_tape, .name = name_entry, .backward = run_gradient, .release = release_entry};

/* The tape --------------------------------------------------------------------------------------------- */

static shoal_status prepare(const shoal_op *op, const shoal_value *arguments, shoal_tensor *const *outputs,
                            size_t n_outputs, struct tape_entry **entry_out)
{
    size_t n_recorded = 0;
    size_t n_inputs = 0;
    size_t extra_bytes = 0;
    void *extra;
    *entry_out = NULL;
    TRY(count_recorded(op, arguments, outputs, n_outputs, &n_recorded));
    if (n_recorded == 0) {
        return SHOAL_OK;
    }
    TRY(check_arguments(op, arguments));
    for (size_t i = 0; i < op->n_params; i++) {
        n_inputs += count_param_tensors(&op->params[i], &arguments[i]);
        extra_bytes += count_value_bytes(&arguments[i]);
    }
    struct node *node =
        node_create(&entry_kind, sizeof(struct tape_entry), n_inputs, n_outputs, extra_bytes, &extra);
    if (!node) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct tape_entry *entry = (struct tape_entry *)node;
    entry->op = op;
    entry->saves_result = is_wanted(op, arguments, &op->result_saving);
    shoal_status status = save_arguments(entry, arguments, extra);
    if (status != SHOAL_OK) {
        node_unref(node);
        return status;
    }
    for (size_t i = 0; i < n_outputs; i++) {
        node_set_output(node, i, outputs[i]);
        node->outputs[i].is_recorded =
            shoal_dtype_is_floating(outputs[i]->dtype) && !is_handed_through(op, arguments, outputs[i]);
    }
    made = (struct note){.number = 0};
    *entry_out = entry;
    return SHOAL_OK;
}

static void commit(struct tape_entry *entry, shoal_tensor *const *outputs, size_t n_outputs)
{
    struct node *node = &entry->node;
    entry->note = made;
    node_number(node);
    for (size_t i = 0; i < n_outputs; i++) {
        if (entry->saves_result) {
            saved_keep_data(&node->outputs[i].saved, outputs[i]->storage);
        }
        if (node->outputs[i].is_recorded) {
            node_attach(node, i, outputs[i]);
        }
        if (node->outputs[i].is_recorded && op_is_in_place(entry->op)) {
            /* From now on, views of the storage that are not recorded are refused (op_check_current). */
            atomic_store(&outputs[i]->storage->has_history, true);
        }
    }
    node_unref(node);
}

static void cancel(struct tape_entry *entry)
{
    node_unref(&entry->node);
}

const struct op_tape autograd_tape = {.prepare = prepare, .commit = commit, .cancel = cancel};
