/* SPDX-License-Identifier: MIT */
#include "parallel/fsdp/module/capture.h"

#include "autograd/backward.h"
#include "autograd/identity.h"
#include "base/callback.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/group/calls.h"
#include "op/dependence.h"
#include "parallel/fsdp/module/captured.h"
#include "parallel/fsdp/module/lifetime.h"
#include "parallel/fsdp/module/root.h"
#include "parallel/fsdp/module/tensors.h"
#include "parallel/fsdp/module/tree.h"
#include "parallel/fsdp/module/watch.h"
#include "shoal/autograd.h"
#include "shoal/scope.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

/* The state of a capture for all units under a root. Hooks in the record may outlive the capture, and keep it. */
struct fsdp_capture {
    struct op_tracer *tracer;
    struct fsdp_root *root;
    size_t n_references;               /* one for the capture, and one for each hook in the record */
    bool is_over;                      /* the root may be gone */
    struct fsdp_wrapper *forward_root; /* this and the next two: as in struct fsdp_root */
    size_t forward_depth;
    bool is_end_awaited;
    bool is_backward;    /* a backward pass has begun and has not ended */
    shoal_tensor *begun; /* the gradient that began the last unit's backward pass; one reference, or NULL */
    struct fsdp_captured *units;
    size_t n_units;
};

/* How long it lives -------------------------------------------------------------------------------------- */

static void free_unit(struct fsdp_captured *unit)
{
    for (size_t i = 0; unit->params && i < unit->wrapper->n_tensors; i++) {
        shoal_tensor_unref(unit->params[i].padded);
        shoal_tensor_unref(unit->params[i].aside);
    }
    mem_free(unit->params);
    mem_free(unit->has_run);
    unit->params = NULL;
    unit->has_run = NULL;
}

static void let_go(struct fsdp_capture *capture)
{
    if (--capture->n_references == 0) {
        mem_free(capture->units);
        mem_free(capture);
    }
}

/* The release function of hooks of a unit. */
static void let_go_of_unit(void *context)
{
    const struct fsdp_captured *unit = context;
    let_go(unit->capture);
}

static void put_back_places(const struct fsdp_captured *unit)
{
    if (unit->shows_full) {
        (void)!fsdp_wrapper_show_full(unit->wrapper); /* cannot fail: the shards are in their places */
    } else {
        fsdp_wrapper_show_shards(unit->wrapper);
    }
}

static void set_begun(struct fsdp_capture *capture, shoal_tensor *gradient)
{
    shoal_tensor_unref(capture->begun);
    capture->begun = gradient ? shoal_tensor_ref(gradient) : NULL;
}

static void end_capture(void *context)
{
    struct fsdp_capture *capture = context;
    struct fsdp_root *root = capture->root;
    set_begun(capture, NULL);
    for (size_t i = 0; i < capture->n_units; i++) {
        put_back_places(&capture->units[i]);
        capture->units[i].wrapper->captured = NULL;
        free_unit(&capture->units[i]);
    }
    root->capture = NULL;
    fsdp_root_drop_originals(root); /* no eager call would, if the model is only compiled */
    capture->is_over = true;
    let_go(capture);
    fsdp_root_let_go(root);
}

static shoal_status make_unit(struct fsdp_capture *capture, struct fsdp_wrapper *wrapper)
{
    struct fsdp_captured *unit = &capture->units[capture->n_units++];
    *unit = (struct fsdp_captured){.capture = capture,
                                   .wrapper = wrapper,
                                   .tracer = capture->tracer,
                                   .shows_full = wrapper->shows_full,
                                   .has_run = mem_alloc_zeroed(wrapper->n_modules, sizeof unit->has_run[0]),
                                   .params = mem_alloc_zeroed(wrapper->n_tensors, sizeof unit->params[0])};
    return unit->has_run && unit->params ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static shoal_status fill(struct fsdp_capture *capture, const struct fsdp_root *root)
{
    capture->units = mem_alloc_zeroed(root->n_wrappers, sizeof capture->units[0]);
    if (!capture->units) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < root->n_wrappers; i++) {
        TRY(make_unit(capture, root->wrappers[i]));
    }
    return capture->tracer->capture->at_end(capture->tracer, end_capture, capture);
}

static uint64_t state_of(const void *owner)
{
    const struct fsdp_root *root = owner;
    uint64_t state = root->n_wrappers;
    for (size_t i = 0; i < root->n_wrappers; i++) {
        uint64_t word = fsdp_captured_state(root->wrappers[i]->unit);
        state = hash_bytes(state, &word, sizeof word);
    }
    return state;
}

static shoal_status depend(struct fsdp_root *root, struct op_tracer *tracer)
{
    static const struct op_dependence_kind kind = {.state = state_of};
    if (!root->dependence) {
        TRY(op_dependence_create(&kind, root, &root->dependence));
    }
    return tracer->capture->depend(tracer, root->dependence);
}

static shoal_status begin_capture(struct fsdp_root *root, struct op_tracer *tracer)
{
    if (shoal_in_backward()) { /* the hook for the end of that pass would outlive the capture */
        return error_set(SHOAL_ERR_STATE,
                         "a backward pass is running, and the module is called in a capture inside of it");
    }
    TRY(depend(root, tracer));
    struct fsdp_capture *capture = mem_alloc_zeroed(1, sizeof *capture);
    if (!capture) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *capture = (struct fsdp_capture){.tracer = tracer, .root = root, .n_references = 1};
    shoal_status status = fill(capture, root);
    if (status != SHOAL_OK) {
        for (size_t i = 0; i < capture->n_units; i++) {
            free_unit(&capture->units[i]);
        }
        let_go(capture);
        return status;
    }
    fsdp_root_keep(root);
    root->capture = capture;
    for (size_t i = 0; i < root->n_wrappers; i++) {
        root->wrappers[i]->captured = &capture->units[i];
    }
    return SHOAL_OK;
}

/* An eager call looks at the tree of a unit when it gathers it. In a capture, whole parameters are other tensors, so all
   trees are looked at before it begins. */
static shoal_status check_trees(const struct fsdp_root *root)
{
    for (size_t i = 0; i < root->n_wrappers; i++) {
        TRY(fsdp_check_tree(root->wrappers[i]));
    }
    return SHOAL_OK;
}

/* Preparing waits for the other ranks. If one of them gives up the step, this fails instead. */
static shoal_status meet_and_prepare(struct fsdp_wrapper *wrapper)
{
    const struct fsdp_mesh *mesh = &wrapper->mesh;
    shoal_group *const lanes[] = {mesh->gather, mesh->reduce, mesh->replicate, mesh->calls};
    shoal_status status = wrapper->root ? SHOAL_OK : world_call_meet(lanes, sizeof lanes / sizeof lanes[0]);
    if (status == SHOAL_OK) {
        status = fsdp_wrapper_prepare(wrapper);
    }
    if (status == SHOAL_OK) {
        status = check_trees(wrapper->root);
    }
    world_call_part(status == SHOAL_OK);
    return status;
}

/* Prepares the wrapper as an eager call would. This is collective, and not part of the graph. */
static shoal_status prepare(struct fsdp_wrapper *wrapper)
{
    TRY(shoal_scope_begin());
    shoal_status status = op_set_tracer(NULL);
    if (status == SHOAL_OK) {
        uint32_t depth = callback_pause_capture();
        status = meet_and_prepare(wrapper);
        callback_resume_capture(depth);
    }
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    return shoal_scope_end();
}

/* Refuses a capture while a backward pass runs or reductions are in flight: these would land in the middle of it. */
static shoal_status check_root(const struct fsdp_wrapper *wrapper)
{
    const struct fsdp_root *root = wrapper->root;
    if (root->is_end_awaited) {
        return error_set(SHOAL_ERR_STATE,
                         "%s: a backward pass is running, or has failed; call shoal_fsdp_reset first",
                         fsdp_wrapper_name(wrapper));
    }
    if (root->context->reductions.n > 0) {
        return error_set(SHOAL_ERR_STATE,
                         "%s: gradients are still being reduced (shoal_fsdp_set_is_last_backward); call "
                         "shoal_fsdp_synchronize first",
                         fsdp_wrapper_name(wrapper));
    }
    return SHOAL_OK;
}

static shoal_status need_capture(struct fsdp_wrapper *wrapper, struct op_tracer *tracer)
{
    if (!wrapper->captured) {
        TRY(prepare(wrapper));
    }
    if (!wrapper->root->capture) {
        TRY(check_root(wrapper));
        TRY(begin_capture(wrapper->root, tracer));
    }
    if (!wrapper->captured || wrapper->captured->tracer != tracer) {
        return error_set(SHOAL_ERR_STATE, "%s: another capture of the model is running",
                         fsdp_wrapper_name(wrapper));
    }
    return fsdp_captured_check(wrapper->captured);
}

/* Units -------------------------------------------------------------------------------------------------- */

static void clear_run(struct fsdp_captured *unit)
{
    for (size_t i = 0; i < unit->wrapper->n_modules; i++) {
        unit->has_run[i] = false;
    }
    unit->n_run = 0;
}

static void note_run(struct fsdp_captured *unit, const shoal_module *module)
{
    for (size_t i = 0; i < unit->wrapper->n_modules; i++) {
        if (unit->wrapper->modules[i] == module && !unit->has_run[i]) {
            unit->has_run[i] = true;
            unit->n_run++;
        }
    }
}

static void give_up(struct fsdp_captured *unit)
{
    unit->is_gathered = false;
    fsdp_wrapper_show_shards(unit->wrapper);
}

static void end_forward(struct fsdp_captured *unit)
{
    clear_run(unit);
    if (unit->phase == FSDP_PRE_BACKWARD) {
        return;
    }
    unit->phase = FSDP_IDLE;
    if (unit->capture->is_backward) {
        return;
    }
    if (unit->wrapper->unit->config.reshard != SHOAL_RESHARD_NEVER) {
        give_up(unit);
    }
    unit->n_forwards += shoal_scope_has_grad();
}

/* Gives up whole parameters, unless they stay from step to step: those are gathered once in a captured step. */
static void give_up_if_sharded(struct fsdp_captured *unit)
{
    if (!fsdp_unit_stays(unit->wrapper->unit)) {
        give_up(unit);
    }
}

static shoal_status end_unit_backward(struct fsdp_captured *unit)
{
    unit->phase = FSDP_POST_BACKWARD;
    give_up_if_sharded(unit);
    return fsdp_captured_reduce(unit);
}

static void show_shards(const struct fsdp_capture *capture)
{
    for (size_t i = 0; i < capture->n_units; i++) {
        fsdp_wrapper_show_shards(capture->units[i].wrapper);
    }
}

static void forget_calls(struct fsdp_capture *capture)
{
    capture->forward_root = NULL;
    for (size_t i = 0; i < capture->n_units; i++) {
        clear_run(&capture->units[i]);
    }
}

/* Backward ----------------------------------------------------------------------------------------------- */

static void settle_unit(struct fsdp_captured *unit)
{
    unit->phase = FSDP_IDLE;
    unit->n_forwards = 0;
    give_up_if_sharded(unit);
}

static shoal_status end_backward(void *context)
{
    struct fsdp_capture *capture = context;
    bool is_last = !capture->root->context->backward.is_not_last;
    forget_calls(capture);
    for (size_t i = 0; i < capture->n_units; i++) {
        struct fsdp_captured *unit = &capture->units[i];
        bool is_left_over = unit->phase != FSDP_POST_BACKWARD && unit->wrapper->unit->config.sync &&
                            unit->wrapper->unit->is_prepared && fsdp_captured_has_gradients(unit);
        if (unit->phase == FSDP_PRE_BACKWARD || is_left_over) {
            TRY(end_unit_backward(unit));
        }
    }
    for (size_t i = 0; i < capture->n_units; i++) {
        if (is_last) {
            settle_unit(&capture->units[i]);
        }
        capture->units[i].phase = FSDP_IDLE;
    }
    show_shards(capture);
    set_begun(capture, NULL);
    capture->is_backward = false;
    capture->is_end_awaited = false;
    return SHOAL_OK;
}

static shoal_status await_end(struct fsdp_capture *capture)
{
    if (capture->is_end_awaited) {
        return SHOAL_OK;
    }
    TRY(backward_on_end(end_backward, capture, NULL)); /* the backward pass ends inside the capture */
    capture->is_end_awaited = true;
    capture->is_backward = true;
    return SHOAL_OK;
}

/* The gather depends on the gradient with which the previous unit began its backward pass. Graph passes can move it up
   to there, which is as far ahead as the engine prefetches. */
static shoal_status gather_again(struct fsdp_captured *unit, shoal_tensor *gradient)
{
    shoal_tensor *after = unit->capture->begun ? unit->capture->begun : gradient;
    TRY(fsdp_captured_gather(unit, &after, 1));
    set_begun(unit->capture, gradient);
    return SHOAL_OK;
}

static shoal_status begin_unit_backward(struct fsdp_captured *unit, shoal_tensor *gradient)
{
    if (unit->capture->is_over) {
        return error_set(SHOAL_ERR_STATE, "the capture in which the forward pass was recorded is over");
    }
    TRY(await_end(unit->capture));
    if (unit->phase == FSDP_PRE_BACKWARD) {
        return SHOAL_OK;
    }
    unit->phase = FSDP_PRE_BACKWARD;
    TRY(fsdp_captured_set_aside(unit));
    TRY(gather_again(unit, gradient));
    return fsdp_wrapper_show_full(unit->wrapper); /* for functions that are recomputed */
}

/* The gradient of an output has arrived. */
static shoal_tensor *begin_backward(void *context, shoal_tensor *gradient)
{
    shoal_status status = begin_unit_backward(context, gradient);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    return NULL;
}

/* All input gradients have arrived. */
static shoal_status finish_backward(void *context, shoal_tensor **gradients, size_t n_gradients)
{
    struct fsdp_captured *unit = context;
    (void)gradients;
    (void)n_gradients;
    return unit->phase == FSDP_PRE_BACKWARD && !unit->capture->is_over ? end_unit_backward(unit) : SHOAL_OK;
}

/* Forward ------------------------------------------------------------------------------------------------ */

static void give_up_changed(struct fsdp_capture *capture)
{
    for (size_t i = 0; i < capture->n_units; i++) {
        if (capture->units[i].is_gathered && fsdp_captured_has_changed(&capture->units[i])) {
            give_up(&capture->units[i]);
        }
    }
}

/* Finds out whether this is the outermost call of a forward pass, as begin_root in calls.c does. */
static void begin_root(struct fsdp_captured *unit)
{
    struct fsdp_capture *capture = unit->capture;
    size_t depth = scope_depth();
    if (capture->forward_root && depth <= capture->forward_depth) {
        forget_calls(capture);
    }
    if (!capture->forward_root) {
        give_up_changed(capture);
    }
    if (!capture->forward_root || unit->wrapper->is_root) {
        capture->forward_root = unit->wrapper;
        capture->forward_depth = depth;
    }
}

static shoal_status begin_call(struct fsdp_captured *unit, bool is_in_backward)
{
    if (is_in_backward) {
        return await_end(unit->capture);
    }
    if (unit->capture->is_end_awaited) {
        return error_set(SHOAL_ERR_STATE, "%s: the last backward pass failed",
                         fsdp_wrapper_name(unit->wrapper));
    }
    begin_root(unit);
    return SHOAL_OK;
}

/* The gather for a recomputed module comes after the module's inputs, which come after the gradient. */
static shoal_status gather(struct fsdp_captured *unit, const shoal_forward_call *call)
{
    shoal_tensor *const *after = call->inputs;
    size_t n_after = 0;
    while (call->is_recompute && n_after < call->n_inputs && after[n_after]) {
        n_after++;
    }
    TRY(fsdp_captured_gather(unit, after, n_after));
    return fsdp_wrapper_show_full(unit->wrapper);
}

static shoal_status watch_inputs(struct fsdp_captured *unit, const shoal_forward_call *call)
{
    const struct identity_hook hook = {
        .function = finish_backward, .context = unit, .release = let_go_of_unit};
    bool is_recorded;
    TRY(identity_over(call->inputs, call->n_inputs, &hook, call->inputs, &is_recorded));
    unit->capture->n_references += is_recorded;
    return SHOAL_OK;
}

shoal_status fsdp_capture_before_forward(struct fsdp_wrapper *wrapper, struct op_tracer *tracer,
                                         const shoal_forward_call *call)
{
    TRY(need_capture(wrapper, tracer));
    struct fsdp_captured *unit = wrapper->captured;
    TRY(begin_call(unit, call->is_recompute));
    bool is_again = unit->phase == FSDP_PRE_BACKWARD;
    bool is_first = unit->phase != FSDP_FORWARD || wrapper->n_modules == 1;
    TRY(gather(unit, call));
    if (wrapper->casts_inputs) {
        fsdp_cast_all(call->inputs, call->n_inputs, wrapper->unit->config.param_dtype);
    }
    if (is_again) {
        return SHOAL_OK;
    }
    unit->phase = FSDP_FORWARD;
    note_run(unit, call->module);
    if (!is_first || !shoal_scope_has_grad() || !fsdp_needs_gradient(call->inputs, call->n_inputs)) {
        return SHOAL_OK;
    }
    return watch_inputs(unit, call);
}

/* No backward pass follows an evaluation: gives up what no recorded forward pass needs. */
static void end_evaluation(struct fsdp_capture *capture)
{
    for (size_t i = 0; i < capture->n_units; i++) {
        if (capture->units[i].n_forwards == 0) {
            give_up_if_sharded(&capture->units[i]);
        }
    }
}

/* Units of which not all modules were called end with the outermost call. */
static void end_root(struct fsdp_capture *capture)
{
    struct fsdp_wrapper *outermost = capture->forward_root;
    capture->forward_root = NULL;
    for (size_t i = 0; i < capture->n_units; i++) {
        if (capture->units[i].wrapper != outermost && capture->units[i].n_run > 0) {
            end_forward(&capture->units[i]);
        }
    }
    end_forward(outermost->captured);
    show_shards(capture);
    if (!shoal_scope_has_grad() && !capture->is_backward) {
        end_evaluation(capture);
    }
}

/* Replaces forwards_record (parallel/forwards.h): in a capture there is no order to compare with other ranks. */
static shoal_status watch_outputs(struct fsdp_captured *unit, const shoal_forward_call *call)
{
    for (size_t i = 0; shoal_scope_has_grad() && i < call->n_outputs; i++) {
        if (shoal_requires_grad(call->outputs[i])) {
            TRY(identity_hook_output(&call->outputs[i], begin_backward, unit, let_go_of_unit));
            unit->capture->n_references++;
        }
    }
    return SHOAL_OK;
}

shoal_status fsdp_capture_after_forward(struct fsdp_wrapper *wrapper, const shoal_forward_call *call)
{
    struct fsdp_captured *unit = wrapper->captured;
    if (!unit) {
        return error_set(SHOAL_ERR_STATE, "%s: the call began before the capture",
                         fsdp_wrapper_name(wrapper));
    }
    bool is_root = unit->capture->forward_root == wrapper;
    if (unit->n_run == wrapper->n_modules && !is_root) {
        end_forward(unit);
    }
    if (is_root) {
        end_root(unit->capture);
    }
    TRY(watch_outputs(unit, call));
    fsdp_cast_all(call->outputs, call->n_outputs, wrapper->output_dtype);
    return SHOAL_OK;
}

void fsdp_capture_after_failure(const struct fsdp_wrapper *wrapper)
{
    if (wrapper->captured && wrapper->captured->capture->forward_root == wrapper) {
        show_shards(wrapper->captured->capture);
    }
}
