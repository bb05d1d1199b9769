/* SPDX-License-Identifier: MIT */
/*
 * Calling an op; the picture is in dispatch.h. Shapes, results, the tape and room in the scope are settled before the
 * kernel runs, and built-in kernels allocate before they write: a failed call of a built-in op has changed nothing.
 */
#include "op/dispatch.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/trace.h"
#include "base/try.h"
#include "op/tape.h"
#include "op/tracer.h"
#include "device/device.h"
#include "tensor/dtype.h"
#include "tensor/handle.h"
#include "tensor/scope.h"

shoal_status shoal_fail(shoal_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    status = error_set_v(status == SHOAL_OK ? SHOAL_ERR_INTERNAL : status, format, arguments);
    va_end(arguments);
    return status;
}

/* The number of tensors in an argument: 1 for a tensor, or those of a list. */
static size_t count_tensors(const shoal_value *value)
{
    if (value->kind == SHOAL_VALUE_TENSOR) {
        return value->as.tensor ? 1 : 0;
    }
    return value->kind == SHOAL_VALUE_TENSORS ? value->count : 0;
}

static shoal_tensor *get_tensor(const shoal_value *value, size_t index)
{
    return value->kind == SHOAL_VALUE_TENSOR ? value->as.tensor : value->as.tensors[index];
}

/* Outputs ---------------------------------------------------------------------------------------------- */

void op_context_init(shoal_op_call_context *call, const shoal_op *op)
{
    call->op = op;
    call->arguments = NULL;
    call->device = SHOAL_CPU;
    call->mode = OP_RUNS;
    call->slab = NULL;
    call->outputs = call->inline_outputs;
    call->n_outputs = 0;
    call->capacity = OP_INLINE_OUTPUTS;
    call->needs_gradient = NULL;
    call->n_needs_gradient = 0;
    call->is_kernel = false;
    call->workspace = NULL;
    call->workspace_bytes = 0;
    call->scratches = NULL;
}

size_t op_workspace_bytes(const shoal_op *op, const shoal_value *arguments, shoal_tensor *const *outputs,
                          size_t n_outputs)
{
    if (!op->workspace) {
        return 0;
    }
    shoal_op_call_context call;
    op_context_init(&call, op);
    call.arguments = arguments;
    return op->workspace(&call, arguments, outputs, n_outputs);
}

static void release_outputs(shoal_op_call_context *call)
{
    for (size_t i = 0; i < call->n_outputs; i++) {
        shoal_tensor_unref(call->outputs[i].tensor);
    }
    if (call->outputs != call->inline_outputs) {
        mem_free(call->outputs);
    }
}

/* Takes the caller's reference, on failure too. */
static shoal_status add_output(shoal_op_call_context *call, shoal_tensor *tensor, bool is_argument)
{
    if (call->n_outputs == call->capacity) {
        struct op_output *outputs = mem_alloc(2 * call->capacity * sizeof(*outputs));
        if (!outputs) {
            shoal_tensor_unref(tensor);
            return SHOAL_ERR_NO_MEMORY;
        }
        memcpy(outputs, call->outputs, call->n_outputs * sizeof(*outputs));
        if (call->outputs != call->inline_outputs) {
            mem_free(call->outputs);
        }
        call->outputs = outputs;
        call->capacity *= 2;
    }
    call->outputs[call->n_outputs++] = (struct op_output){.tensor = tensor, .is_argument = is_argument};
    return SHOAL_OK;
}

shoal_status shoal_op_output(shoal_op_call_context *call, const int64_t *shape, int n_dims, shoal_dtype dtype)
{
    shoal_tensor *tensor;
    if (call->slab) {
        TRY(tensor_create_shape(call->slab, dtype, n_dims, shape, &tensor));
    } else if (call->mode == OP_TRACES) {
        TRY(tensor_create_traced(call->device, dtype, n_dims, shape, call->op->name, &tensor));
    } else {
        TRY(tensor_create_empty(call->device, dtype, n_dims, shape, &tensor));
    }
    return add_output(call, tensor, /*is_argument=*/false);
}

/* Outputs may be views of arguments only, because gradients could not be passed on through anything else. */
static shoal_status check_is_argument(const shoal_op_call_context *call, const shoal_tensor *tensor)
{
    for (size_t i = 0; call->arguments && i < call->op->n_params; i++) {
        for (size_t k = 0; k < count_tensors(&call->arguments[i]); k++) {
            if (get_tensor(&call->arguments[i], k) == tensor) {
                return SHOAL_OK;
            }
        }
    }
    return error_set(SHOAL_ERR_INVALID, "output %zu is a view of a tensor that is not an argument",
                     call->n_outputs);
}

shoal_status shoal_op_output_view(shoal_op_call_context *call, shoal_tensor *base, const int64_t *shape,
                                  const int64_t *strides, int n_dims, int64_t offset)
{
    shoal_tensor *tensor;
    int64_t count;
    struct layout layout;
    if (!base || (n_dims > 0 && !strides)) {
        return error_set(SHOAL_ERR_INVALID, "output_view: %s is NULL", base ? "strides" : "base");
    }
    if (!op_is_builtin(call->op)) {
        TRY(check_is_argument(call, base));
    }
    TRY(layout_count(n_dims, shape, &count)); /* dims fit */
    layout.n_dims = n_dims;
    layout.offset = offset;
    for (int i = 0; i < n_dims; i++) {
        layout.shape[i] = shape[i];
        layout.strides[i] = strides[i];
    }
    TRY(call->slab ? tensor_create_shape_view(call->slab, base, &layout, count, &tensor)
                   : tensor_create_view(base, &layout, &tensor));
    return add_output(call, tensor, /*is_argument=*/false);
}

shoal_status op_output_view_as(shoal_op_call_context *call, shoal_tensor *base, shoal_dtype dtype,
                               const struct layout *layout)
{
    shoal_tensor *tensor;
    TRY(tensor_create_view_as(base, dtype, layout, &tensor));
    return add_output(call, tensor, /*is_argument=*/false);
}

shoal_status shoal_op_output_alias(shoal_op_call_context *call, shoal_tensor *argument)
{
    if (!argument) {
        return error_set(SHOAL_ERR_INVALID, "output_alias: argument is NULL");
    }
    if (!op_is_builtin(call->op)) {
        TRY(check_is_argument(call, argument));
    }
    return add_output(call, shoal_tensor_ref(argument), /*is_argument=*/true);
}

bool shoal_op_needs_gradient(const shoal_op_call_context *call, size_t index)
{
    return call && index < call->n_needs_gradient && call->needs_gradient[index];
}

void *shoal_op_context(const shoal_op_call_context *call)
{
    return call ? call->op->context : NULL;
}

/* Arguments -------------------------------------------------------------------------------------------- */

static const char *const kind_names[] = {
    [SHOAL_VALUE_NONE] = "nothing", [SHOAL_VALUE_TENSOR] = "tensor", [SHOAL_VALUE_TENSORS] = "tensors",
    [SHOAL_VALUE_INT] = "int",      [SHOAL_VALUE_INTS] = "ints",     [SHOAL_VALUE_FLOAT] = "float",
    [SHOAL_VALUE_BOOL] = "bool",    [SHOAL_VALUE_DTYPE] = "dtype",   [SHOAL_VALUE_STRING] = "string",
    [SHOAL_VALUE_GROUP] = "group",
};

static const char *const param_words[] = {
#define PARAM(NAME, word, kind) [OP_PARAM_##NAME] = word,
    OP_PARAM_TYPES(PARAM)
#undef PARAM
};

static shoal_status fail_kind(const struct op_param *param, const shoal_value *value)
{
    bool is_typed = (unsigned)param->type < sizeof(param_words) / sizeof(param_words[0]);
    bool is_known = (unsigned)value->kind < sizeof(kind_names) / sizeof(kind_names[0]);
    return error_set(SHOAL_ERR_INVALID, "%s: the value is of kind %s, %s expected", param->name,
                     is_known ? kind_names[value->kind] : "?",
                     is_typed ? param_words[param->type] : "nothing");
}

static shoal_status check_list(const struct op_param *param, const shoal_value *value)
{
    if (value->count > 0 && !value->as.tensors) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL with %zu tensors", param->name, value->count);
    }
    for (size_t i = 0; i < value->count; i++) {
        if (!value->as.tensors[i]) {
            return error_set(SHOAL_ERR_INVALID, "%s: tensor %zu of %zu is NULL", param->name, i,
                             value->count);
        }
        if (handle_is_dead(value->as.tensors[i])) {
            return error_prefix(handle_fail(value->as.tensors[i]), "%s: tensor %zu of %zu", param->name, i,
                                value->count);
        }
    }
    return SHOAL_OK;
}

static shoal_status check_handle(const struct op_param *param, const shoal_value *value)
{
    if (value->kind != SHOAL_VALUE_TENSOR) {
        return fail_kind(param, value);
    }
    return value->as.tensor && handle_is_dead(value->as.tensor)
               ? error_prefix(handle_fail(value->as.tensor), "%s", param->name)
               : SHOAL_OK;
}

/* The value's kind fits the parameter, and what it points at is there. */
static shoal_status check_value(const struct op_param *param, const shoal_value *value)
{
    switch (param->type) {
    case OP_PARAM_TENSOR:
        if (value->kind == SHOAL_VALUE_NONE || (value->kind == SHOAL_VALUE_TENSOR && !value->as.tensor)) {
            return error_set(SHOAL_ERR_INVALID, "%s is NULL", param->name);
        }
        return check_handle(param, value);
    case OP_PARAM_OPTIONAL_TENSOR:
        return value->kind == SHOAL_VALUE_NONE ? SHOAL_OK : check_handle(param, value);
    case OP_PARAM_TENSORS:
        return value->kind == SHOAL_VALUE_TENSORS ? check_list(param, value) : fail_kind(param, value);
    case OP_PARAM_INT:
        return value->kind == SHOAL_VALUE_INT ? SHOAL_OK : fail_kind(param, value);
    case OP_PARAM_INTS:
        if (value->kind == SHOAL_VALUE_INTS && value->count > 0 && !value->as.integers) {
            return error_set(SHOAL_ERR_INVALID, "%s is NULL with %zu numbers", param->name, value->count);
        }
        return value->kind == SHOAL_VALUE_INTS ? SHOAL_OK : fail_kind(param, value);
    case OP_PARAM_FLOAT:
        return value->kind == SHOAL_VALUE_FLOAT ? SHOAL_OK : fail_kind(param, value);
    case OP_PARAM_SCALAR:
        return value->kind == SHOAL_VALUE_FLOAT || value->kind == SHOAL_VALUE_INT ? SHOAL_OK
                                                                                  : fail_kind(param, value);
    case OP_PARAM_BOOL:
        return value->kind == SHOAL_VALUE_BOOL ? SHOAL_OK : fail_kind(param, value);
    case OP_PARAM_DTYPE:
        return value->kind == SHOAL_VALUE_DTYPE ? dtype_check(value->as.dtype, param->name)
                                                : fail_kind(param, value);
    case OP_PARAM_STRING:
        return value->kind == SHOAL_VALUE_STRING && value->as.string ? SHOAL_OK : fail_kind(param, value);
    case OP_PARAM_GROUP:
        if (value->kind == SHOAL_VALUE_GROUP && !value->as.group) {
            return error_set(SHOAL_ERR_INVALID, "%s is NULL", param->name);
        }
        return value->kind == SHOAL_VALUE_GROUP ? SHOAL_OK : fail_kind(param, value);
    }
    return fail_kind(param, value);
}

static shoal_status complete_arguments(const shoal_op *op, const shoal_value *given, size_t n_given,
                                       shoal_value arguments[OP_MAX_PARAMS])
{
    if (n_given > op->n_params) {
        return error_set(SHOAL_ERR_INVALID, "%zu arguments are given for %zu parameters (%s)", n_given,
                         op->n_params, op->signature);
    }
    if (n_given > 0 && !given) {
        return error_set(SHOAL_ERR_INVALID, "arguments is NULL");
    }
    for (size_t i = 0; i < op->n_params; i++) {
        const struct op_param *param = &op->params[i];
        bool is_given = i < n_given && (given[i].kind != SHOAL_VALUE_NONE || !param->has_default);
        if (!is_given && !param->has_default) {
            return error_set(SHOAL_ERR_INVALID, "%s is missing (%s)", param->name, op->signature);
        }
        arguments[i] = is_given ? given[i] : param->default_value;
        TRY(check_value(param, &arguments[i]));
    }
    return SHOAL_OK;
}

/* Running ---------------------------------------------------------------------------------------------- */

/* What was found out about all arguments. */
struct survey {
    const struct op_tape *tape; /* NULL if no argument needs a gradient */
    bool has_tensors;
};

/* Puts the name of a tensor argument in front of the error. */
static shoal_status name_tensor(const shoal_op *op, size_t param, size_t index, shoal_status status)
{
    const struct op_param *named = &op->params[param];
    return named->type == OP_PARAM_TENSORS ? error_prefix(status, "%s[%zu]", named->name, index)
                                           : error_prefix(status, "%s", named->name);
}

shoal_status op_check_current(const shoal_tensor *tensor)
{
    if (tensor->history || tensor->is_detached || !atomic_load(&tensor->storage->has_history)) {
        return SHOAL_OK;
    }
    const char *name = shoal_tensor_name(tensor);
    return error_set(SHOAL_ERR_STATE,
                     "tensor %s is a view that was made before an in-place operation gave its storage a "
                     "gradient; make the view again, or detach it",
                     name[0] ? name : "(unnamed)");
}

static shoal_status survey_tensor(shoal_op_call_context *call, struct survey *survey, bool has_grad,
                                  shoal_tensor *tensor)
{
    shoal_device device = tensor->storage->device;
    if (!survey->has_tensors) {
        TRY(device_check_process(device));
        survey->has_tensors = true;
        call->device = device;
    } else if (device != call->device) {
        return error_set(
            SHOAL_ERR_INVALID,
            "one call has tensors on devices %s and %s (in a gradient function: list what it reads in saves)",
            device_name(call->device), device_name(device));
    }
    if (has_grad && tensor->history) {
        survey->tape = tensor->history->tape;
        return SHOAL_OK;
    }
    return has_grad ? op_check_current(tensor) : SHOAL_OK;
}

/* Checks that what an in-place op writes may be written. */
static shoal_status check_written(const shoal_op *op, const shoal_value *written)
{
    for (size_t k = 0; k < count_tensors(written); k++) {
        shoal_status status = storage_check_writable(get_tensor(written, k)->storage);
        if (status != SHOAL_OK) {
            return name_tensor(op, 0, k, status);
        }
    }
    return SHOAL_OK;
}

static shoal_status survey_arguments(shoal_op_call_context *call, const shoal_value *arguments, bool has_grad,
                                     struct survey *survey)
{
    *survey = (struct survey){.tape = NULL};
    if (op_is_in_place(call->op)) {
        TRY(check_written(call->op, &arguments[0]));
    }
    for (size_t i = 0; i < call->op->n_params; i++) {
        size_t n = count_tensors(&arguments[i]);
        for (size_t k = 0; k < n; k++) {
            TRY(survey_tensor(call, survey, has_grad, get_tensor(&arguments[i], k)));
        }
    }
    return SHOAL_OK;
}

/* Functions of registered ops are guarded (scope_callback_begin). Built-in ones are not, which saves time in small
   calls. */
static shoal_status call_meta(shoal_op_call_context *call, const shoal_value *arguments)
{
    if (op_is_builtin(call->op)) {
        return call->op->meta(call, arguments);
    }
    struct scope_callback callback = scope_callback_begin();
    return scope_callback_end(callback, "the meta function", call->op->meta(call, arguments));
}

/* The kernel of a registered op; NULL if it has none for the device. */
static shoal_op_kernel find_kernel(const shoal_op *op, shoal_device device)
{
    if (device_is_host(device)) {
        return op->kernel;
    }
    /* Acquire: pairs with the release in shoal_op_add_kernel. */
    const struct op_device_kernel *added = atomic_load_explicit(&op->device_kernels, memory_order_acquire);
    while (added && added->device != device) {
        added = added->next;
    }
    return added ? added->kernel : NULL;
}

static shoal_status call_kernel(shoal_op_call_context *call, const shoal_value *arguments,
                                shoal_tensor *const *outputs)
{
    if (op_is_builtin(call->op)) {
        return call->op->kernel(call, arguments, outputs, call->n_outputs);
    }
    shoal_op_kernel kernel = find_kernel(call->op, call->device);
    if (!kernel) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "there is no kernel for device %s (shoal_op_add_kernel)",
                         device_name(call->device));
    }
    struct scope_callback callback = scope_callback_begin();
    return scope_callback_end(callback, "the kernel", kernel(call, arguments, outputs, call->n_outputs));
}

static shoal_status declare_outputs(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_op *op = call->op;
    shoal_status mistake = op_is_builtin(op) ? SHOAL_ERR_INTERNAL : SHOAL_ERR_INVALID;
    if (op->meta) {
        TRY(call_meta(call, arguments));
    } else {
        for (size_t k = 0; k < count_tensors(&arguments[0]); k++) {
            TRY(shoal_op_output_alias(call, get_tensor(&arguments[0], k)));
        }
    }
    if (!op->returns_list && call->n_outputs != 1) {
        return error_set(mistake, "the meta function declared %zu outputs, not 1", call->n_outputs);
    }
    for (size_t i = 0; (op->flags & SHOAL_OP_VIEW) != 0 && i < call->n_outputs; i++) {
        if (!call->outputs[i].is_argument && !call->outputs[i].tensor->is_view) {
            return error_set(mistake, "output %zu of a view op is a new tensor instead of a view", i);
        }
    }
    return SHOAL_OK;
}

/* Waiting for an argument failed. The error text is that of the call that was to write it; this adds the argument. */
static __attribute__((noinline, cold)) shoal_status fail_waiting(const shoal_op *op, size_t param,
                                                                 size_t index, shoal_status status)
{
    const struct op_param *late = &op->params[param];
    return late->type == OP_PARAM_TENSORS ? error_prefix(status, "%s[%zu] did not arrive", late->name, index)
                                          : error_prefix(status, "%s did not arrive", late->name);
}

/* Waits until inputs can be read and what an in-place op writes can be written. All must have memory. */
static shoal_status wait_for_arguments(const shoal_op *op, const shoal_value *arguments)
{
    for (size_t i = 0; i < op->n_params; i++) {
        bool is_written = i == 0 && op_is_in_place(op);
        size_t n = count_tensors(&arguments[i]);
        for (size_t k = 0; k < n; k++) {
            shoal_tensor *tensor = get_tensor(&arguments[i], k);
            shoal_status status = is_written
                                      ? tensor_wait_writable(tensor, (op->flags & SHOAL_OP_OVERWRITES) != 0)
                                      : tensor_wait_readable(tensor);
            if (status != SHOAL_OK) {
                return fail_waiting(op, i, k, status);
            }
            struct address base;
            TRY(storage_base(tensor->storage, &base));
        }
    }
    return SHOAL_OK;
}

/* Called after an in-place kernel has succeeded: failures of writes that it has overwritten no longer matter. Built-in
   collectives have replaced them by their own write in flight. */
static void forget_replaced(const shoal_op *op, const shoal_value *arguments)
{
    bool is_written = (op->flags & SHOAL_OP_OVERWRITES) != 0 && !op_is_asynchronous(op);
    size_t n = is_written ? count_tensors(&arguments[0]) : 0;
    for (size_t k = 0; k < n; k++) {
        tensor_forget_fences(get_tensor(&arguments[0], k));
    }
}

static void bump_versions(const shoal_op *op, const shoal_value *arguments)
{
    if (op_is_in_place(op)) {
        for (size_t k = 0; k < count_tensors(&arguments[0]); k++) {
            storage_bump_version(get_tensor(&arguments[0], k)->storage);
        }
    }
}

/* Outputs that are views or arguments need no kernel, unless the op also has an effect. */
static bool has_work(const shoal_op_call_context *call)
{
    const uint32_t flags = SHOAL_OP_IN_PLACE | SHOAL_OP_COLLECTIVE | SHOAL_OP_WAIT | SHOAL_OP_SIDE_EFFECT;
    if ((call->op->flags & flags) != 0) {
        return true;
    }
    for (size_t i = 0; i < call->n_outputs; i++) {
        if (!call->outputs[i].is_argument && !call->outputs[i].tensor->is_view) {
            return true;
        }
    }
    return false;
}

static shoal_status run_kernel(shoal_op_call_context *call, const shoal_value *arguments,
                               shoal_tensor *const *outputs)
{
    if (!has_work(call) || !device_has_data(call->device) || call->mode != OP_RUNS) {
        return SHOAL_OK;
    }
    if (!op_waits_itself(call->op)) {
        TRY(wait_for_arguments(call->op, arguments));
    }
    call->is_kernel = true;
    uint64_t begin_ticks = trace_begin();
    shoal_status status = call_kernel(call, arguments, outputs);
    trace_end(begin_ticks, TRACE_OP, call->op->name);
    if (call->scratches) {
        op_free_scratches(call);
    }
    TRY(status);
    if (!device_is_host(call->device)) {
        TRY(device_row(call->device)->failure());
    }
    forget_replaced(call->op, arguments);
    return SHOAL_OK;
}

/* A view that was made while gradients were off, or of a detached tensor, is not recorded on purpose. New tensors
   are not detached: an in-place op may still give them a history, which their views must follow. */
static bool is_detached(const shoal_value *arguments, const shoal_tensor *output, bool has_grad)
{
    if (!output->is_view || output->history) {
        return false;
    }
    return !has_grad || (count_tensors(&arguments[0]) > 0 && get_tensor(&arguments[0], 0)->is_detached);
}

/* Gives new outputs to the scope, which has room for them, and drops our references on arguments. */
static void hand_over(shoal_op_call_context *call, const shoal_value *arguments, struct scope *scope)
{
    for (size_t i = 0; i < call->n_outputs; i++) {
        if (call->outputs[i].is_argument) {
            shoal_tensor_unref(call->outputs[i].tensor);
        } else {
            shoal_tensor *tensor = call->outputs[i].tensor;
            tensor->is_detached = is_detached(arguments, tensor, scope->has_grad);
            scope_append(scope, tensor);
        }
    }
    if (call->outputs != call->inline_outputs) {
        mem_free(call->outputs);
    }
}

/* From declared outputs to computed ones. `outputs` has room for them all. */
static shoal_status compute(shoal_op_call_context *call, const shoal_value *arguments,
                            const struct survey *survey, shoal_tensor **outputs)
{
    struct tape_entry *entry = NULL;
    size_t n_outputs = call->n_outputs;
    for (size_t i = 0; i < n_outputs; i++) {
        outputs[i] = call->outputs[i].tensor;
    }
    if (survey->tape) {
        TRY(survey->tape->prepare(call->op, arguments, outputs, n_outputs, &entry));
    }
    shoal_status status = run_kernel(call, arguments, outputs);
    if (call->mode != OP_INFERS && (status == SHOAL_OK || !op_is_asynchronous(call->op))) {
        bump_versions(call->op, arguments); /* after a failure too: part of the data may have changed */
    }
    if (entry && status == SHOAL_OK) {
        survey->tape->commit(entry, outputs, n_outputs);
    } else if (entry) {
        survey->tape->cancel(entry);
    }
    return status;
}

static shoal_status execute(const shoal_op *op, const shoal_value *arguments, enum op_mode mode,
                            shoal_value *result_out)
{
    struct scope *scope = scope_current();
    shoal_op_call_context call;
    struct survey survey;
    shoal_tensor *inline_list[OP_INLINE_OUTPUTS];
    shoal_tensor **list = inline_list;
    op_context_init(&call, op);
    call.arguments = arguments;
    call.mode = mode;
    call.device = mode == OP_INFERS ? SHOAL_META : SHOAL_CPU;
    shoal_status status;
    TRY_GOTO(status, survey_arguments(&call, arguments, scope->has_grad, &survey), drop_outputs);
    TRY_GOTO(status, declare_outputs(&call, arguments), drop_outputs);
    TRY_GOTO(status, scope_reserve(scope, call.n_outputs), drop_outputs);
    if (op->returns_list) {
        list = scope_alloc(scope, call.n_outputs * sizeof(list[0]));
        TRY_GOTO(status, list ? SHOAL_OK : SHOAL_ERR_NO_MEMORY, drop_outputs);
    }
    size_t n_outputs = call.n_outputs;
    scope->n_promised += n_outputs;
    status = compute(&call, arguments, &survey, list);
    scope->n_promised -= n_outputs;
    TRY_GOTO(status, status, drop_outputs);
    hand_over(&call, arguments, scope);
    *result_out = op->returns_list
                      ? (shoal_value){.kind = SHOAL_VALUE_TENSORS, .count = n_outputs, .as.tensors = list}
                      : (shoal_value){.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = list[0]};
    return SHOAL_OK;

drop_outputs:
    release_outputs(&call);
    return status;
}

shoal_status op_execute(const shoal_op *op, const shoal_value *arguments, shoal_value *result_out)
{
    return execute(op, arguments, OP_RUNS, result_out);
}

shoal_status op_trace(const shoal_op *op, const shoal_value *arguments, shoal_value *result_out)
{
    return execute(op, arguments, OP_TRACES, result_out);
}

shoal_status op_infer(const shoal_op *op, const shoal_value *given, size_t n_given, shoal_value *result_out)
{
    shoal_value arguments[OP_MAX_PARAMS] = {{.kind = SHOAL_VALUE_NONE}};
    shoal_status status = complete_arguments(op, given, n_given, arguments);
    if (status == SHOAL_OK) {
        status = execute(op, arguments, OP_INFERS, result_out);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", op->name);
}

shoal_status op_infer_begin(const shoal_op *op, const shoal_value *given, size_t n_given, struct slab *slab,
                            struct shoal_op_call_context *call_out)
{
    shoal_value arguments[OP_MAX_PARAMS];
    shoal_status status;
    arguments[0].kind = SHOAL_VALUE_NONE;
    op_context_init(call_out, op);
    TRY_GOTO(status, complete_arguments(op, given, n_given, arguments), drop_outputs);
    call_out->arguments = arguments;
    call_out->mode = OP_INFERS;
    call_out->device = SHOAL_META;
    call_out->slab = slab;
    if (op_is_in_place(op)) {
        TRY_GOTO(status, check_written(op, &arguments[0]), drop_outputs);
    }
    TRY_GOTO(status, declare_outputs(call_out, arguments), drop_outputs);
    for (size_t i = 0; i < call_out->n_outputs; i++) {
        if (!call_out->outputs[i].is_argument) {
            shoal_tensor *tensor = call_out->outputs[i].tensor;
            tensor->is_detached = is_detached(arguments, tensor, /*has_grad=*/false);
        }
    }
    call_out->arguments = NULL;
    return SHOAL_OK;

drop_outputs:
    release_outputs(call_out);
    return error_prefix(status, "%s", op->name);
}

void op_infer_end(struct shoal_op_call_context *call)
{
    if (call->outputs != call->inline_outputs) {
        mem_free(call->outputs);
    }
}

shoal_status shoal_op_call(const shoal_op *op, const shoal_value *given, size_t n_given,
                           shoal_value *result_out)
{
    shoal_value arguments[OP_MAX_PARAMS];
    arguments[0].kind = SHOAL_VALUE_NONE; /* an op without parameters: its first argument is looked at, too */
    error_clear();
    shoal_status status = scope_enter();
    if (status != SHOAL_OK) {
        return scope_current() ? status : error_prefix(status, "%s", shoal_op_name(op));
    }
    if (!op || !result_out) {
        return scope_fail(error_set(SHOAL_ERR_INVALID, "op_call: %s is NULL", op ? "result_out" : "op"));
    }
    status = complete_arguments(op, given, n_given, arguments);
    if (status == SHOAL_OK) {
        struct op_tracer *tracer = scope_current()->tracer;
        status =
            tracer ? tracer->call(tracer, op, arguments, result_out) : op_execute(op, arguments, result_out);
    }
    return status == SHOAL_OK ? SHOAL_OK : scope_fail(error_prefix(status, "%s", op->name));
}

struct op_tracer *op_capture_running(void)
{
    const struct scope *scope = scope_current();
    return scope && scope->tracer && scope->tracer->capture ? scope->tracer : NULL;
}

shoal_status op_set_tracer(struct op_tracer *tracer)
{
    struct scope *scope = scope_current();
    if (!scope) {
        return error_set(SHOAL_ERR_STATE, "set_tracer: no scope is open on this thread");
    }
    scope->tracer = tracer;
    return SHOAL_OK;
}
