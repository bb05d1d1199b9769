/* SPDX-License-Identifier: MIT */
/*
 * Runs the steps of a plan in order. Kernels are called directly, on tensors that were made together with the plan.
 * Nothing is allocated, except by eager steps and by kernels themselves.
 *
 * If a step fails, what was started is waited for and windows are released, so that the plan can run again, if its
 * groups have not failed. If something could not be waited for, its memory is still in use, and the plan refuses to run
 * again.
 */
#include <stdio.h>
#include <string.h>

#include "base/callback.h"
#include "base/error.h"
#include "base/options.h"
#include "base/trace.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "comm/call/prepared.h"
#include "device/device.h"
#include "graph/run/bind.h"
#include "op/dispatch.h"
#include "op/op.h"
#include "op/operand.h"
#include "op/tracer.h"
#include "shoal/compile.h"
#include "tensor/handle.h"

struct run {
    struct shoal_plan *plan;
    struct plan_binding *binding;
    shoal_tensor *const *inputs;
    shoal_tensor **outputs;
    size_t n_inputs;
    size_t n_outputs;
    bool has_begun; /* the first step was reached */
};

/* Before the first step ---------------------------------------------------------------------------------- */

static shoal_status check_input(const struct bound_input *bound, const shoal_tensor *tensor, size_t index)
{
    char given[TENSOR_TEXT_BYTES];
    char wanted[LAYOUT_TEXT_BYTES];
    if (!tensor) {
        return error_set(SHOAL_ERR_INVALID, "%%%s: input %zu is NULL", bound->name, index);
    }
    shoal_status status = handle_check(tensor);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%%%s: input %zu", bound->name, index);
    }
    if (tensor->dtype != bound->dtype || !layout_is_same_shape(tensor->layout.n_dims, tensor->layout.shape,
                                                               bound->layout.n_dims, bound->layout.shape)) {
        return error_set(SHOAL_ERR_INVALID, "%%%s: input %zu is %s, but the placeholder is %s %s",
                         bound->name, index, tensor_format(given, tensor), shoal_dtype_name(bound->dtype),
                         layout_format(wanted, bound->layout.n_dims, bound->layout.shape));
    }
    if (!tensor->is_contiguous) {
        return error_set(SHOAL_ERR_INVALID, "%%%s: input %zu, %s, is not contiguous: strides %s", bound->name,
                         index, tensor_format(given, tensor),
                         layout_format(wanted, tensor->layout.n_dims, tensor->layout.strides));
    }
    if (!device_has_data(tensor->storage->device)) {
        return error_set(SHOAL_ERR_INVALID, "%%%s: input %zu has no data: it is on device %s", bound->name,
                         index, device_name(tensor->storage->device));
    }
    return SHOAL_OK;
}

static shoal_status check(const struct run *run)
{
    const struct plan_binding *binding = run->binding;
    if (!binding) {
        return error_set(SHOAL_ERR_STATE, "the memory of the plan was not allocated");
    }
    if (binding->broken != SHOAL_OK) {
        return error_set(SHOAL_ERR_STATE, "the plan cannot run any more: %s", binding->broken_text);
    }
    if (run->plan->world) {
        TRY(world_check(run->plan->world)); /* a forked child must not write the parent's comm memory */
    }
    if ((run->n_inputs > 0 && !run->inputs) || (run->n_outputs > 0 && !run->outputs)) {
        bool is_inputs = run->n_inputs > 0 && !run->inputs;
        return error_set(SHOAL_ERR_INVALID, "%s is NULL, but n_%s is %zu", is_inputs ? "inputs" : "outputs",
                         is_inputs ? "inputs" : "outputs", is_inputs ? run->n_inputs : run->n_outputs);
    }
    if (run->n_inputs != run->plan->n_inputs) {
        return error_set(SHOAL_ERR_INVALID, "n_inputs is %zu, but the graph has %zu placeholders",
                         run->n_inputs, run->plan->n_inputs);
    }
    for (size_t i = 0; i < run->n_inputs; i++) {
        TRY(check_input(&binding->inputs[i], run->inputs[i], i));
    }
    if (run->n_outputs != run->plan->n_outputs) {
        return error_set(SHOAL_ERR_INVALID, "n_outputs is %zu, but the graph has %zu outputs", run->n_outputs,
                         run->plan->n_outputs);
    }
    const struct scope *scope = scope_current();
    if (scope && scope->tracer) {
        return error_set(SHOAL_ERR_STATE, "a plan cannot run while calls are captured or traced");
    }
    return run->plan->n_collectives > 0 ? callback_check("plan_run") : SHOAL_OK;
}

static bool overlaps(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    return b_bytes > 0 && (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* Whether this run must not begin before a work has ended that uses these bytes. What the last run has given out is
   about to be overwritten or moved. */
static bool must_wait(void *context, const void *data, size_t bytes, bool is_written)
{
    const struct run *run = context;
    for (size_t i = 0; i < run->n_inputs; i++) {
        const shoal_tensor *tensor = run->inputs[i];
        const struct memory *memory = tensor->storage->memory;
        struct span span = tensor_span(tensor);
        if ((is_written || run->binding->inputs[i].is_written) && memory &&
            overlaps(data, bytes, (const char *)address_pointer(memory->base) + span.first,
                     span.end - span.first)) {
            return true;
        }
    }
    return plan_has_given_out(run->plan, data, bytes);
}

/* Waits for works that the program has started on raw memory. Tensors do not know of them. */
static shoal_status wait_for_works(struct run *run)
{
    shoal_work *work = NULL;
    shoal_status status = SHOAL_OK;
    while (status == SHOAL_OK && run->plan->world &&
           (work = world_find_work(run->plan->world, must_wait, run)) != NULL) {
        status = shoal_work_wait(work, -1);
        shoal_work_free(work);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "a work in flight on the memory of the run");
}

/* Waits for what is in flight in an input, and puts its address under the placeholder's storage. */
static shoal_status take_input(const struct run *run, size_t index)
{
    struct bound_input *bound = &run->binding->inputs[index];
    const shoal_tensor *tensor = run->inputs[index];
    struct storage *storage = run->plan->buffers[run->plan->inputs[index]].storage;
    void *address = NULL;
    TRY(bound->is_written ? tensor_wait_writable(tensor, /*overwrites=*/false)
                          : tensor_wait_readable(tensor));
    if (tensor == bound->tensor && storage_has_fences(bound->source->storage)) {
        TRY(tensor_wait_writable(bound->source, /*overwrites=*/false));
    }
    TRY(tensor_host_address(tensor, &address));
    /* Relaxed: set when the plan was made. */
    size_t mask = atomic_load_explicit(&storage->alignment_mask, memory_order_relaxed);
    if (((uintptr_t)address & mask) != 0) {
        return error_set(SHOAL_ERR_INVALID,
                         "address %p is not a multiple of %zu, which a view as another dtype needs", address,
                         mask + 1);
    }
    storage->memory->base = address_of(address);
    bound->version = atomic_load_explicit(&storage->version, memory_order_relaxed);
    return SHOAL_OK;
}

static shoal_status take_inputs(const struct run *run)
{
    for (size_t i = 0; i < run->n_inputs; i++) {
        shoal_status status = take_input(run, i);
        if (status != SHOAL_OK) {
            return error_prefix(status, "%%%s", run->binding->inputs[i].name);
        }
    }
    TRY(plan_check_apart(run->plan));
    for (size_t i = 0; i < run->binding->n_pieces; i++) {
        const struct bound_piece *at = &run->binding->pieces[i];
        const struct plan_collective *collective = &run->plan->collectives[at->collective];
        struct collective_piece piece = plan_find_piece(collective, at->piece);
        if (collective->window != PLAN_NONE) {
            prepared_set_window_data(collective->prepared, at->piece, piece.send);
        } else {
            prepared_set_buffers(collective->prepared, at->piece, piece.send, piece.recv);
        }
    }
    return SHOAL_OK;
}

/* Steps ---------------------------------------------------------------------------------------------------- */

static shoal_status call_kernel(const struct run *run, const struct plan_step *step)
{
    shoal_op_call_context call;
    op_context_init(&call, step->op);
    call.arguments = step->arguments;
    call.is_kernel = true;
    call.workspace = step->workspace_bytes > 0 ? run->binding->pool + step->workspace_offset : NULL;
    call.workspace_bytes = step->workspace_bytes;
    uint64_t begin_ticks = trace_begin();
    shoal_status status;
    if (op_is_builtin(step->op)) {
        status = step->op->kernel(&call, step->arguments, step->outputs, step->n_outputs);
    } else {
        struct scope_callback callback = scope_callback_begin();
        status = scope_callback_end(callback, "the kernel",
                                    step->op->kernel(&call, step->arguments, step->outputs, step->n_outputs));
        scope_empty(&run->binding->scope);
    }
    trace_end(begin_ticks, TRACE_OP, step->op->name);
    if (call.scratches) {
        op_free_scratches(&call);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", step->op->name);
}

static bool is_argument(const struct plan_step *step, const shoal_tensor *tensor)
{
    for (size_t i = 0; i < step->op->n_params; i++) {
        const shoal_value *value = &step->arguments[i];
        size_t count = value->kind == SHOAL_VALUE_TENSORS ? value->count : 1;
        for (size_t k = 0; k < count; k++) {
            const shoal_tensor *argument = NULL;
            if (value->kind == SHOAL_VALUE_TENSORS) {
                argument = value->as.tensors[k];
            } else if (value->kind == SHOAL_VALUE_TENSOR) {
                argument = value->as.tensor;
            }
            if (argument && argument->storage == tensor->storage) {
                return true;
            }
        }
    }
    return false;
}

static shoal_status take_results(const struct plan_step *step, const shoal_value *result)
{
    bool is_list = result->kind == SHOAL_VALUE_TENSORS;
    for (size_t i = 0; i < step->n_outputs; i++) {
        shoal_tensor *tensor = is_list ? result->as.tensors[i] : result->as.tensor;
        if (tensor->count > 0 && !is_argument(step, tensor)) {
            TRY(tensor_wait_readable(tensor));
            TRY(op_copy_into(step->outputs[i], tensor));
        }
    }
    return SHOAL_OK;
}

static shoal_status wait_eager(const shoal_value *tensors)
{
    for (size_t i = 0; i < tensors->count; i++) {
        TRY(tensor_wait_writable(tensors->as.tensors[i], /*overwrites=*/false));
    }
    return SHOAL_OK;
}

static shoal_status call_eager(const struct run *run, const struct plan_step *step)
{
    shoal_value result = {.kind = SHOAL_VALUE_NONE};
    if (step->op->index == OP_wait_tensors) {
        return wait_eager(&step->arguments[0]);
    }
    shoal_status status = shoal_op_call(step->op, step->arguments, step->op->n_params, &result);
    if (status == SHOAL_OK) {
        status = take_results(step, &result);
    }
    scope_empty(&run->binding->scope);
    return status;
}

static shoal_status start(const struct run *run, const struct plan_collective *collective, bool is_blocking)
{
    if (collective->window != PLAN_NONE) {
        TRY(prepared_start(collective->prepared));
        run->binding->n_held[collective->window]++;
        return is_blocking ? prepared_wait(collective->prepared) : SHOAL_OK;
    }
    /* With SHOAL_SYNC every collective is waited for at once, so that the one that fails is named. */
    bool must_wait = is_blocking || option_choice(OPTION_SYNC) != 0;
    return must_wait ? prepared_run(collective->prepared) : prepared_start(collective->prepared);
}

static shoal_status release(const struct run *run, uint32_t window)
{
    TRY(shoal_window_release(run->plan->windows[window].window));
    run->binding->n_held[window]--;
    return SHOAL_OK;
}

static shoal_status run_step(const struct run *run, const struct plan_step *step)
{
    const struct shoal_plan *plan = run->plan;
    switch (step->kind) {
    case PLAN_CALL:
        return call_kernel(run, step);
    case PLAN_START:
    case PLAN_BLOCK:
        return start(run, &plan->collectives[step->collective], step->kind == PLAN_BLOCK);
    case PLAN_WAIT:
        return prepared_wait(plan->collectives[step->collective].prepared);
    case PLAN_RELEASE:
        return release(run, step->window);
    case PLAN_EAGER:
        return call_eager(run, step);
    }
    return error_set(SHOAL_ERR_INTERNAL, "a step of kind %d", (int)step->kind);
}

static shoal_status run_steps(const struct run *run)
{
    struct scope *scope = &run->binding->scope;
    shoal_status status = SHOAL_OK;
    uint64_t begin_ticks = trace_begin();
    scope_open(scope);
    scope->has_grad = false;
    for (size_t i = 0; status == SHOAL_OK && i < run->plan->n_steps; i++) {
        const struct plan_step *step = &run->plan->steps[i];
        status = run_step(run, step);
        if (status != SHOAL_OK) {
            status = error_prefix(status, "%%%s", step->node);
        }
    }
    scope_close(scope);
    trace_end(begin_ticks, TRACE_COMPILED, "plan");
    return status;
}

/* After the last ------------------------------------------------------------------------------------------- */

static void break_plan(const struct run *run, const char *why)
{
    run->binding->broken = SHOAL_ERR_STATE;
    (void)snprintf(run->binding->broken_text, sizeof run->binding->broken_text, "%s", why);
}

/* Waits for all collectives. Returns false if one could not be waited for. */
static bool end_collectives(const struct run *run)
{
    bool have_ended = true;
    for (size_t i = 0; i < run->plan->n_collectives; i++) {
        struct prepared *prepared = run->plan->collectives[i].prepared;
        if (prepared_is_running(prepared)) {
            (void)prepared_wait(prepared);
            have_ended = have_ended && !prepared_is_running(prepared);
        }
    }
    return have_ended;
}

/* Cleans up after a step that failed. Returns `status`, and keeps the thread's error text. */
static shoal_status clean_up(const struct run *run, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    bool have_ended = end_collectives(run);
    for (size_t i = 0; i < run->plan->n_windows; i++) {
        while (run->binding->n_held[i] > 0 && release(run, (uint32_t)i) == SHOAL_OK) {
        }
        have_ended = have_ended && run->binding->n_held[i] == 0;
    }
    if (run->binding->has_eager && plan_end_fences(run->plan) != SHOAL_OK) {
        have_ended = false;
    }
    if (!have_ended) {
        break_plan(run, text);
    }
    return error_set(status, "%s", text);
}

/* Counts writes of inputs in the versions of the caller's tensors, also after a failure. */
static void count_writes(const struct run *run)
{
    for (size_t i = 0; i < run->n_inputs; i++) {
        const struct bound_input *bound = &run->binding->inputs[i];
        const struct storage *storage = run->plan->buffers[run->plan->inputs[i]].storage;
        /* Relaxed: versions are compared by the thread that owns the tensor. */
        if (bound->is_written ||
            atomic_load_explicit(&storage->version, memory_order_relaxed) != bound->version) {
            storage_bump_version(run->inputs[i]->storage);
        }
    }
}

/* Makes the outputs that are views of inputs. */
static shoal_status make_views(const struct run *run)
{
    for (size_t i = 0; i < run->n_outputs; i++) {
        const struct bound_output *output = &run->binding->outputs[i];
        if (output->kind == OUTPUT_INPUT_VIEW) {
            shoal_tensor *input = run->inputs[output->index];
            struct layout layout = output->layout;
            shoal_dtype dtype = run->plan->outputs[i].tensor->dtype;
            layout.offset +=
                (int64_t)((size_t)input->layout.offset * dtype_bytes(input->dtype) / dtype_bytes(dtype));
            TRY(tensor_create_view_as(input, dtype, &layout, &run->binding->outputs[i].tensor));
            run->binding->outputs[i].tensor->is_detached = true;
        }
    }
    return SHOAL_OK;
}

static void drop_views(const struct run *run)
{
    for (size_t i = 0; i < run->n_outputs; i++) {
        struct bound_output *output = &run->binding->outputs[i];
        if (output->kind == OUTPUT_INPUT_VIEW) {
            shoal_tensor_unref(output->tensor);
            output->tensor = NULL;
        }
    }
}

static shoal_status run_plan(struct run *run)
{
    TRY(check(run));
    TRY(wait_for_works(run));
    TRY(plan_renew_outputs(run->plan));
    shoal_status status = make_views(run);
    if (status == SHOAL_OK) {
        status = take_inputs(run);
    }
    if (status != SHOAL_OK) {
        drop_views(run);
        return status;
    }
    run->has_begun = true;
    status = run_steps(run);
    if (status == SHOAL_OK && run->binding->has_eager) {
        status = plan_end_fences(run->plan);
    }
    count_writes(run);
    if (status != SHOAL_OK) {
        drop_views(run);
        return clean_up(run, status);
    }
    plan_give_outputs(run->plan, run->inputs, run->outputs);
    return SHOAL_OK;
}

shoal_status plan_run(struct shoal_plan *plan, shoal_tensor *const *inputs, size_t n_inputs,
                      shoal_tensor **outputs, size_t n_outputs, bool *has_begun_out)
{
    struct run run = {.plan = plan,
                      .binding = plan->binding,
                      .inputs = inputs,
                      .outputs = outputs,
                      .n_inputs = n_inputs,
                      .n_outputs = n_outputs};
    if (plan->binding && atomic_exchange(&plan->binding->is_running, true)) {
        return error_set(SHOAL_ERR_STATE,
                         "plan_run: the plan is running already, in another thread or around this call");
    }
    shoal_status status = run_plan(&run);
    if (plan->binding) {
        atomic_store(&plan->binding->is_running, false);
    }
    *has_begun_out = run.has_begun;
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "plan_run");
}

shoal_status shoal_plan_run(shoal_plan *plan, shoal_tensor *const *inputs, size_t n_inputs,
                            shoal_tensor **outputs, size_t n_outputs)
{
    bool has_begun;
    error_clear();
    if (!plan) {
        return error_set(SHOAL_ERR_INVALID, "plan_run: plan is NULL");
    }
    return plan_run(plan, inputs, n_inputs, outputs, n_outputs, &has_begun);
}
