/* SPDX-License-Identifier: MIT */
/*
 * shoal_fully_shard: the hooks that drive a unit in the forward and backward passes of its modules.
 *
 *     pre-forward    before all other hooks: gathers, casts inputs, and passes the inputs through an identity op; when
 *                    that op gets its gradients, the module's backward pass is over
 *     post-forward   after all other hooks: gives up whole parameters, and adds a hook to each output; when an output
 *                    gets its gradient, the module's backward pass begins
 *     end            of each backward pass: ends units whose inputs needed no gradient, and waits for reductions
 *
 * In a capture the hooks and the order of things are the same. The context's backend emits ops (captured.h), and the
 * state of the calls is the capture's own (capture.h).
 */
#include <math.h>
#include <string.h>

#include "autograd/backward.h"
#include "autograd/identity.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "device/device.h"
#include "op/tracer.h"
#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/agree/compare.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/step/step.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "parallel/fsdp/module/capture.h"
#include "parallel/fsdp/module/captured.h"
#include "parallel/fsdp/module/lifetime.h"
#include "parallel/fsdp/module/root.h"
#include "parallel/fsdp/module/select.h"
#include "parallel/fsdp/module/sharding.h"
#include "parallel/fsdp/module/tensors.h"
#include "parallel/fsdp/module/watch.h"
#include "parallel/fsdp/module/wrapper.h"
#include "shoal/autograd.h"
#include "shoal/fully_shard.h"
#include "shoal/ops.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

/* Backward ----------------------------------------------------------------------------------------------- */

/* Between calls, lists of parameters show shards, even of units that stay gathered. Units that the program has gathered
   by hand show whole parameters, except in a capture. */
static void show_shards(struct fsdp_root *root)
{
    for (size_t i = 0; i < root->n_wrappers; i++) {
        if (!root->wrappers[i]->unit->gather.is_held || root->capture) {
            fsdp_wrapper_show_shards(root->wrappers[i]);
        }
    }
}

/* An eager pass has failed on this rank: others, which wait for it, are told. The text stays. */
static shoal_status tell_failure(const struct fsdp_root *root, shoal_status status)
{
    bool has_lanes = !root->capture && !root->context->is_closed;
    return has_lanes ? fsdp_mark_failure(root->context->units[0], status) : status;
}

static shoal_status end_backward(void *context)
{
    struct fsdp_root *root = context;
    root->calls.is_walking = false;
    fsdp_root_forget_calls(root);
    shoal_status status = fsdp_context_check(root->context); /* a hook may have closed the world */
    status = status == SHOAL_OK ? fsdp_end_backward(root->context) : status;
    show_shards(root);
    if (root->capture) {
        fsdp_capture_forget_gradient(root->capture);
    }
    if (status != SHOAL_OK) {
        return tell_failure(root, status);
    }
    root->calls.is_end_awaited = false; /* after a failure it stays true until a reset */
    return SHOAL_OK;
}

/* The end of a backward pass has run, or will not run because the pass failed: then ranks that wait are told. */
static void let_go_of_root(void *context)
{
    struct fsdp_root *root = context;
    if (root->calls.is_walking) {
        (void)tell_failure(root, SHOAL_OK);
        show_shards(root);
    }
    root->calls.is_walking = false;
    root->context->backward.n_newer = 0;
    fsdp_root_let_go(root);
}

static void let_go_of_wrapper(void *context)
{
    const struct fsdp_wrapper *wrapper = context;
    fsdp_root_let_go(wrapper->root);
}

/* Writes to shards since the forward pass count as changes of whole parameters, so that a backward pass refuses values
   that are out of date. A graph computes with the values that it finds. */
static void count_changes(const struct fsdp_root *root)
{
    for (size_t i = 0; !root->capture && i < root->n_wrappers; i++) {
        fsdp_wrapper_count_changes(root->wrappers[i]);
    }
}

/* After a backward pass that failed. A captured step cannot be reset; its end does that. */
static const char *what_to_do(const struct fsdp_root *root)
{
    return root->capture ? "" : "; call shoal_fsdp_reset first";
}

/* Called when a backward pass reaches a unit; the first call adds the hook for its end. */
static shoal_status await_end(struct fsdp_root *root, size_t n_newer)
{
    TRY(fsdp_context_check(root->context));
    if (root->calls.is_walking) {
        return SHOAL_OK;
    }
    if (root->calls.is_end_awaited) {
        return error_set(SHOAL_ERR_STATE, "the last backward pass failed%s", what_to_do(root));
    }
    TRY(backward_on_end(end_backward, root, let_go_of_root));
    fsdp_root_keep(root);
    root->calls.is_end_awaited = true;
    root->calls.is_walking = true;
    root->context->backward.n_newer = n_newer;
    count_changes(root);
    return SHOAL_OK;
}

static shoal_status show_gathered(struct fsdp_wrapper *wrapper)
{
    if (wrapper->captured) {
        return wrapper->captured->is_gathered ? fsdp_wrapper_show_full(wrapper) : SHOAL_OK;
    }
    fsdp_wrapper_count_changes(wrapper);
    return wrapper->unit->state == FSDP_UNSHARDED ? fsdp_wrapper_show_full(wrapper) : SHOAL_OK;
}

static shoal_status reach(struct fsdp_wrapper *wrapper, size_t n_newer)
{
    TRY(await_end(wrapper->root, n_newer));
    TRY(fsdp_unit_pre_backward(wrapper->unit));
    return show_gathered(wrapper); /* for functions that are recomputed */
}

static shoal_status reach_forward(struct forward *forward)
{
    size_t n_newer;
    struct fsdp_wrapper *wrapper = forward_owner(forward);
    if (op_capture_running()) {
        return error_set(
            SHOAL_ERR_STATE,
            "%s: the forward pass ran before the capture, so its backward pass cannot be captured",
            fsdp_wrapper_name(wrapper));
    }
    (void)forward_reached(forward, &n_newer);
    return reach(wrapper, n_newer);
}

/* The gradient of an output has arrived. */
static shoal_tensor *begin_backward(void *context, shoal_tensor *gradient)
{
    (void)gradient;
    shoal_status status = reach_forward(context);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    return NULL;
}

/* The gradient of an output has arrived, in a capture. */
static shoal_tensor *begin_captured_backward(void *context, shoal_tensor *gradient)
{
    struct fsdp_captured *captured = context;
    shoal_status status = fsdp_captured_reach(captured, gradient);
    if (status == SHOAL_OK) {
        status = reach(captured->wrapper, 0);
    }
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    return NULL;
}

/* All input gradients have arrived: the module's backward pass is over. */
static shoal_status finish_backward(void *context, shoal_tensor **gradients, size_t n_gradients)
{
    struct fsdp_wrapper *wrapper = context;
    (void)gradients;
    (void)n_gradients;
    TRY(fsdp_context_check(wrapper->root->context));
    return fsdp_unit_finish_backward(wrapper->unit);
}

/* All input gradients have arrived, in a capture. */
static shoal_status finish_captured_backward(void *context, shoal_tensor **gradients, size_t n_gradients)
{
    const struct fsdp_captured *captured = context;
    return fsdp_captured_is_over(captured) ? SHOAL_OK
                                           : finish_backward(captured->wrapper, gradients, n_gradients);
}

/* Forward ------------------------------------------------------------------------------------------------ */

static bool is_gathered(const struct fsdp_unit *unit)
{
    return unit->watch && (unit->gather.is_pending || unit->state != FSDP_SHARDED);
}

static bool has_gathered(const struct fsdp_context *context)
{
    bool has_any = false;
    for (size_t i = 0; i < context->n_units; i++) {
        has_any = has_any || is_gathered(context->units[i]);
    }
    return has_any;
}

static shoal_status give_up_changed(struct fsdp_context *context, uint8_t *has_changed)
{
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[i];
        has_changed[i] = is_gathered(unit) && fsdp_wrapper_has_changed(unit->owner);
    }
    shoal_group *lane = context->common ? context->common : context->domains[0]->mesh.gather;
    if (lane) {
        struct purpose purpose = fsdp_context_purpose(context, PURPOSE_FSDP_CHANGED);
        struct collective call = {
            .kind = COLLECTIVE_ALL_REDUCE,
            .dtype = SHOAL_U8,
            .reduce = SHOAL_MAX,
            .single = {.send = has_changed, .recv = has_changed, .count = context->n_units},
            .purpose = &purpose};
        TRY(fsdp_common_meet(context, &purpose));
        purpose = context->common ? fsdp_common_purpose(context, purpose) : purpose;
        TRY(collectives_run(lane, &call));
    }
    for (size_t i = 0; i < context->n_units; i++) {
        TRY(has_changed[i] ? fsdp_unit_give_up(context->units[i]) : SHOAL_OK);
    }
    return SHOAL_OK;
}

/*
 * A unit may still be gathered when a forward pass begins: its backward pass was skipped or is still to come, it stays
 * gathered after backward passes, or the program gathered it by hand. If any rank has written its shard since, the unit
 * is given up, to be gathered again. Only the rank that wrote knows, so ranks ask each other. Which units are gathered
 * depends on the calls alone, so all ranks ask or none does. In a capture the writes are ops, which all ranks record.
 */
static shoal_status refresh(struct fsdp_root *root)
{
    struct fsdp_context *context = root->context;
    if (root->capture) {
        fsdp_capture_refresh(root->capture);
        return SHOAL_OK;
    }
    if (!has_gathered(context)) {
        return SHOAL_OK;
    }
    uint8_t *has_changed = mem_alloc_zeroed(context->n_units, sizeof has_changed[0]);
    if (!has_changed) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = give_up_changed(context, has_changed);
    mem_free(has_changed);
    return status == SHOAL_OK
               ? SHOAL_OK
               : error_prefix(fsdp_tell_all(context, status), "looking for parameters that have changed");
}

/*
 * Finds out whether this is the outermost call of a forward pass. Such a call lasts until its last hook has run. A call
 * that failed never runs it: it is over when the next call is not inside its scope, and what it gathered is given up.
 */
static shoal_status begin_root(struct fsdp_wrapper *wrapper)
{
    struct fsdp_root *root = wrapper->root;
    size_t depth = scope_depth();
    if (root->calls.forward_root && depth <= root->calls.forward_depth) {
        fsdp_root_forget_calls(root);
        TRY(fsdp_end_forwards(root->context, root->calls.n_order));
    }
    if (!root->calls.forward_root) {
        TRY(refresh(root));
    }
    if (!root->calls.forward_root || wrapper->is_root) {
        root->calls.forward_root = wrapper;
        root->calls.forward_depth = depth;
        root->calls.n_order = root->context->passes.order.n;
    }
    return SHOAL_OK;
}

/* A forward pass inside a backward pass is part of that pass: nothing is given up, and its order is not recorded. */
static shoal_status begin_call(struct fsdp_wrapper *wrapper, bool is_in_backward)
{
    struct fsdp_root *root = wrapper->root;
    if (is_in_backward) {
        TRY(await_end(root, 0));
        root->context->passes.is_backward = true;
    } else if (root->calls.is_end_awaited) {
        return error_set(SHOAL_ERR_STATE, "%s: the last backward pass failed%s", fsdp_wrapper_name(wrapper),
                         what_to_do(root));
    } else {
        TRY(begin_root(wrapper));
    }
    return SHOAL_OK;
}

/* If a unit has several modules, the first one that is called begins its forward pass. */
static shoal_status gather(struct fsdp_wrapper *wrapper, bool is_first)
{
    if (is_first) {
        return fsdp_unit_pre_forward(wrapper->unit);
    }
    return wrapper->unit->context->backend->gather(wrapper->unit);
}

static void note_run(struct fsdp_wrapper *wrapper, const shoal_module *module)
{
    for (size_t i = 0; i < wrapper->n_modules; i++) {
        if (wrapper->modules[i] == module && !wrapper->has_run[i]) {
            wrapper->has_run[i] = true;
            wrapper->n_run++;
        }
    }
}

/* Adds the hook for the end of the module's backward pass. The record keeps what the hook needs while it can still
   run. */
static shoal_status watch_inputs(struct fsdp_wrapper *wrapper, const shoal_forward_call *call)
{
    static const struct identity_hook eager = {.function = finish_backward, .release = let_go_of_wrapper};
    static const struct identity_hook captured = {.function = finish_captured_backward,
                                                  .release = fsdp_captured_let_go};
    struct identity_hook hook = wrapper->captured ? captured : eager;
    hook.context = wrapper->captured ? (void *)wrapper->captured : wrapper;
    bool is_recorded;
    TRY(identity_over(call->inputs, call->n_inputs, &hook, call->inputs, &is_recorded));
    if (is_recorded && wrapper->captured) {
        fsdp_captured_keep(wrapper->captured);
    } else if (is_recorded) {
        fsdp_root_keep(wrapper->root);
    }
    return SHOAL_OK;
}

static shoal_status before_forward(void *context, const shoal_forward_call *call)
{
    struct fsdp_wrapper *wrapper = context;
    struct op_tracer *tracer = op_capture_running();
    TRY(tracer ? fsdp_capture_prepare(wrapper, tracer, call) : fsdp_wrapper_prepare(wrapper));
    TRY(begin_call(wrapper, call->is_recompute));
    bool is_again = wrapper->unit->step.phase == FSDP_PRE_BACKWARD;
    bool is_first = wrapper->unit->step.phase != FSDP_FORWARD || wrapper->n_modules == 1;
    TRY(gather(wrapper, is_first));
    if (!wrapper->unit->config.reshard_after_backward && !call->is_recompute &&
        !tracer) { /* it may have stayed */
        TRY(fsdp_wrapper_follow_freezing(wrapper));
    }
    TRY(show_gathered(wrapper));
    if (wrapper->casts_inputs) {
        fsdp_cast_all(call->inputs, call->n_inputs, wrapper->unit->config.param_dtype);
    }
    if (is_again) {
        return SHOAL_OK;
    }
    note_run(wrapper, call->module);
    if (!is_first || !shoal_scope_has_grad() || !fsdp_needs_gradient(call->inputs, call->n_inputs)) {
        return SHOAL_OK;
    }
    return watch_inputs(wrapper, call);
}

static shoal_status end_forward(struct fsdp_wrapper *wrapper)
{
    fsdp_wrapper_clear_run(wrapper);
    wrapper->unit->gather.is_held = wrapper->unit->gather.is_held && wrapper->captured;
    return fsdp_unit_post_forward(wrapper->unit);
}

/* Units of which not all modules were called end with the outermost call. */
static shoal_status end_root(struct fsdp_root *root)
{
    struct fsdp_context *context = root->context;
    struct fsdp_wrapper *outermost = root->calls.forward_root;
    root->calls.forward_root = NULL;
    for (size_t i = 0; i < root->n_wrappers; i++) {
        if (root->wrappers[i] != outermost && root->wrappers[i]->n_run > 0) {
            TRY(end_forward(root->wrappers[i]));
        }
    }
    TRY(end_forward(outermost));
    show_shards(root);
    bool has_backward = shoal_scope_has_grad() || context->passes.is_backward;
    return has_backward ? SHOAL_OK : fsdp_end_forwards(context, root->calls.n_order);
}

/* Adds the hooks for the beginning of the module's backward pass. In a capture there is no order of forward passes to
   compare with other ranks. */
static shoal_status watch_outputs(struct fsdp_wrapper *wrapper, const shoal_forward_call *call)
{
    if (!wrapper->captured) {
        return forwards_record(&wrapper->forwards, call, begin_backward);
    }
    for (size_t i = 0; shoal_scope_has_grad() && i < call->n_outputs; i++) {
        if (shoal_requires_grad(call->outputs[i])) {
            TRY(identity_hook_output(&call->outputs[i], begin_captured_backward, wrapper->captured,
                                     fsdp_captured_let_go));
            fsdp_captured_keep(wrapper->captured);
        }
    }
    return SHOAL_OK;
}

static shoal_status after_forward(void *context, const shoal_forward_call *call)
{
    struct fsdp_wrapper *wrapper = context;
    if (op_capture_running() && !wrapper->captured) {
        return error_set(SHOAL_ERR_STATE, "%s: the call began before the capture",
                         fsdp_wrapper_name(wrapper));
    }
    TRY(fsdp_context_check(wrapper->root->context));
    bool is_root = wrapper->root->calls.forward_root == wrapper;
    if (wrapper->n_run == wrapper->n_modules && !is_root) {
        TRY(end_forward(wrapper));
    }
    if (is_root) {
        TRY(end_root(wrapper->root));
    }
    TRY(watch_outputs(wrapper, call));
    fsdp_cast_all(call->outputs, call->n_outputs, wrapper->output_dtype);
    return SHOAL_OK;
}

/* On a device, a gather that was issued ahead still reads the shards, on the thread of its lane. A fence makes whoever
   writes them wait for it. If there is no memory for the fence, the gather may see a shard that is half written. Its
   result is not used: the write is noticed, and the unit is gathered again. */
static void note_reads(const struct fsdp_wrapper *wrapper)
{
    const struct fsdp_unit *unit = wrapper->unit;
    if (!unit->gather.is_pending || !unit->gather.work || device_is_host(unit->device)) {
        return;
    }
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        (void)!storage_add_read(wrapper->tensors[i].sharded->storage, work_completion(unit->gather.work));
    }
}

/* Between calls, parameters must be shards, which can be written. What was gathered stays until the next call. Ranks on
   which the call goes on wait for this one, and are told; inside a backward pass, or in a capture, others tell them. */
static void after_failure(void *context, const shoal_forward_call *call)
{
    const struct fsdp_wrapper *wrapper = context;
    struct fsdp_root *root = wrapper->root;
    bool is_captured = op_capture_running() != NULL;
    bool has_begun = !is_captured || wrapper->captured; /* else an eager call may go on around it */
    if (!has_begun || !root || root->calls.forward_root != wrapper) {
        return;
    }
    show_shards(root);
    for (size_t i = 0; i < root->n_wrappers && !is_captured; i++) {
        note_reads(root->wrappers[i]);
    }
    if (!is_captured && !call->is_recompute) {
        (void)tell_failure(root, shoal_scope_error()); /* which has the text */
    }
}

/* Sharding ----------------------------------------------------------------------------------------------- */

static shoal_status add_hooks(struct fsdp_wrapper *wrapper)
{
    const shoal_module_hook_definition definition = {.struct_size = sizeof definition,
                                                     .pre_forward = before_forward,
                                                     .pre_place = SHOAL_HOOK_FIRST,
                                                     .post_forward = after_forward,
                                                     .post_place = SHOAL_HOOK_LAST,
                                                     .failed_forward = after_failure,
                                                     .context = wrapper};
    for (size_t i = 0; i < wrapper->n_modules; i++) {
        TRY(shoal_module_add_hook(wrapper->modules[i], &definition, &wrapper->hooks[i]));
    }
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_list(shoal_module *const *modules, size_t n_modules,
                                    const shoal_fully_shard_options *given)
{
    shoal_fully_shard_options options = {.struct_size = sizeof options};
    struct fsdp_wrapper *wrapper;
    shoal_status status = fsdp_check_given(modules, n_modules);
    if (status != SHOAL_OK) {
        return error_prefix(status, "fully_shard");
    }
    error_clear();
    TRY(struct_size_read("shoal_fully_shard_options", given, sizeof(size_t), &options, sizeof options));
    status = fsdp_wrapper_create(modules, n_modules, &options, &wrapper);
    if (status == SHOAL_OK) {
        status = add_hooks(wrapper);
        if (status == SHOAL_OK) {
            fsdp_wrapper_settle(wrapper);
        } else {
            fsdp_wrapper_undo(wrapper);
        }
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "fully_shard");
}

shoal_status shoal_fully_shard(shoal_module *module, const shoal_fully_shard_options *options)
{
    return module ? shoal_fully_shard_list(&module, 1, options)
                  : error_prefix(error_null("module"), "fully_shard");
}

bool shoal_is_fully_sharded(const shoal_module *module)
{
    return module && fsdp_wrapper_of(module);
}
