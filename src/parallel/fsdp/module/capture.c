/* SPDX-License-Identifier: MIT */
/* When a capture of a root begins and ends, and what it exchanges meanwhile. captured.c has the ops. */
#include "parallel/fsdp/module/capture.h"

#include <string.h>

#include "base/callback.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/group/calls.h"
#include "op/dependence.h"
#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/step/same_units.h"
#include "parallel/fsdp/module/captured.h"
#include "parallel/fsdp/module/lifetime.h"
#include "parallel/fsdp/module/partial.h"
#include "parallel/fsdp/module/root.h"
#include "parallel/fsdp/module/tree.h"
#include "parallel/fsdp/module/watch.h"
#include "shoal/autograd.h"
#include "shoal/scope.h"
#include "tensor/scope.h"

/* How long it lives -------------------------------------------------------------------------------------- */

static void free_unit(struct fsdp_captured *unit)
{
    for (size_t i = 0; unit->params && i < unit->wrapper->n_tensors; i++) {
        shoal_tensor_unref(unit->params[i].padded);
        shoal_tensor_unref(unit->params[i].aside);
        shoal_tensor_unref(unit->params[i].kept);
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

void fsdp_captured_keep(struct fsdp_captured *unit)
{
    unit->capture->n_references++;
}

void fsdp_captured_let_go(void *context)
{
    const struct fsdp_captured *unit = context;
    let_go(unit->capture);
}

bool fsdp_captured_is_over(const struct fsdp_captured *unit)
{
    return unit->capture->is_over;
}

static void exchange_runs(struct fsdp_captured *unit)
{
    struct fsdp_wrapper *wrapper = unit->wrapper;
    bool *has_run = wrapper->has_run;
    size_t n_run = wrapper->n_run;
    wrapper->has_run = unit->has_run;
    wrapper->n_run = unit->n_run;
    unit->has_run = has_run;
    unit->n_run = n_run;
}

/* Puts the state of the capture in the place of the eager one, or the eager one back. */
static void exchange_state(struct fsdp_capture *capture)
{
    struct fsdp_root *root = capture->root;
    struct fsdp_calls calls = root->calls;
    root->calls = capture->calls;
    capture->calls = calls;
    fsdp_steps_exchange(root->context, &capture->steps);
    for (size_t i = 0; i < capture->n_units; i++) {
        exchange_runs(&capture->units[i]);
    }
}

static void put_back_places(const struct fsdp_captured *unit)
{
    if (unit->shows_full) {
        (void)!fsdp_wrapper_show_full(unit->wrapper); /* cannot fail: the shards are in their places */
    } else {
        fsdp_wrapper_show_shards(unit->wrapper);
    }
}

void fsdp_capture_forget_gradient(struct fsdp_capture *capture)
{
    shoal_tensor_unref(capture->begun);
    capture->begun = NULL;
}

static void free_capture(struct fsdp_capture *capture)
{
    for (size_t i = 0; i < capture->n_units; i++) {
        free_unit(&capture->units[i]);
    }
    fsdp_steps_free(capture->root->context, &capture->steps);
    fsdp_capture_forget_gradient(capture);
    capture->is_over = true;
    let_go(capture);
}

static void end_capture(void *context)
{
    struct fsdp_capture *capture = context;
    struct fsdp_root *root = capture->root;
    for (size_t i = 0; i < capture->n_units; i++) {
        put_back_places(&capture->units[i]);
        capture->units[i].wrapper->unit->grads.is_owed = capture->units[i].was_owed;
        capture->units[i].wrapper->captured = NULL;
    }
    exchange_state(capture);
    root->capture = NULL;
    fsdp_root_drop_originals(root); /* no eager call would, if the model is only compiled */
    free_capture(capture);
    fsdp_root_let_go(root);
}

static shoal_status make_unit(struct fsdp_capture *capture, struct fsdp_wrapper *wrapper)
{
    struct fsdp_captured *unit = &capture->units[capture->n_units++];
    *unit = (struct fsdp_captured){.capture = capture,
                                   .wrapper = wrapper,
                                   .tracer = capture->tracer,
                                   .shows_full = wrapper->shows_full,
                                   .was_owed = wrapper->unit->grads.is_owed,
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
    TRY(fsdp_steps_create(root->context, &fsdp_capture_backend, &capture->steps));
    return capture->tracer->capture->at_end(capture->tracer, end_capture, capture);
}

static uint64_t state_of(const void *owner)
{
    const struct fsdp_root *root = owner;
    uint64_t state = root->n_wrappers;
    for (size_t i = 0; i < root->n_wrappers; i++) {
        uint64_t word = fsdp_captured_state(root->wrappers[i]);
        state = hash_bytes(state, &word, sizeof word);
    }
    return state;
}

/* Settings decide which groups the step uses. A rank that uses another one would be waited for there, so settings are
   compared before plans are. */
static shoal_status agree(const void *owner)
{
    const struct fsdp_root *root = owner;
    const struct fsdp_mesh *mesh = &root->wrappers[0]->mesh;
    shoal_group *const lanes[] = {mesh->gather, mesh->reduce, mesh->replicate, mesh->calls,
                                  root->context->common};
    TRY(world_call_meet(lanes, sizeof lanes / sizeof lanes[0]));
    shoal_status status = fsdp_agree_on_settings(root->context);
    world_call_part(status == SHOAL_OK);
    return status;
}

/* With several meshes, ranks that do something else may wait on the common lane, which is not in the plan. They find
   this mark there. */
static shoal_status begin_run(const void *owner)
{
    const struct fsdp_root *root = owner;
    struct purpose purpose = fsdp_context_purpose(root->context, PURPOSE_FSDP_COMPILED);
    return fsdp_common_mark(root->context, &purpose);
}

static shoal_status depend(struct fsdp_root *root, struct op_tracer *tracer)
{
    static const struct op_dependence_kind kind = {.state = state_of, .agree = agree, .begin_run = begin_run};
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
    shoal_status status = SHOAL_OK;
    *capture = (struct fsdp_capture){.tracer = tracer, .root = root, .n_references = 1};
    for (size_t i = 0; i < root->n_wrappers; i++) {
        status = status == SHOAL_OK ? fsdp_wrapper_take_partial(root->wrappers[i]) : status;
    }
    status = status == SHOAL_OK ? fill(capture, root) : status;
    if (status != SHOAL_OK) {
        free_capture(capture);
        return status;
    }
    fsdp_root_keep(root);
    root->capture = capture;
    exchange_state(capture);
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

/* The lanes of the units of a module and of the modules inside it. */
struct lanes {
    shoal_group **lanes; /* entries may be NULL */
    size_t n;
    size_t capacity;
};

static shoal_status add_lanes(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct lanes *lanes = context;
    const struct fsdp_wrapper *wrapper = fsdp_wrapper_of(entry->module);
    (void)next;
    if (!wrapper) {
        return SHOAL_OK;
    }
    const struct fsdp_mesh *mesh = &wrapper->mesh;
    shoal_group *const more[] = {mesh->gather, mesh->reduce, mesh->replicate, mesh->calls};
    const size_t n_more = sizeof more / sizeof more[0];
    TRY(mem_grow((void **)&lanes->lanes, &lanes->capacity, lanes->n + n_more, sizeof lanes->lanes[0]));
    memcpy(&lanes->lanes[lanes->n], more, sizeof more);
    lanes->n += n_more;
    return SHOAL_OK;
}

/* Preparing waits for the other ranks. If one of them gives up the step, this fails instead. */
static shoal_status meet_and_prepare(struct fsdp_wrapper *wrapper)
{
    struct lanes lanes = {.lanes = NULL};
    shoal_status status = SHOAL_OK;
    if (!wrapper->root) {
        status = shoal_module_walk(wrapper->modules[0], SHOAL_WALK_MODULES, add_lanes, &lanes);
        status = status == SHOAL_OK ? world_call_meet(lanes.lanes, lanes.n) : status;
    }
    if (status == SHOAL_OK) {
        status = fsdp_wrapper_prepare_captured(wrapper);
    }
    if (status == SHOAL_OK) {
        status = check_trees(wrapper->root);
    }
    world_call_part(status == SHOAL_OK);
    mem_free(lanes.lanes);
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
    if (root->calls.is_end_awaited) {
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

/* Calls -------------------------------------------------------------------------------------------------- */

shoal_status fsdp_capture_prepare(struct fsdp_wrapper *wrapper, struct op_tracer *tracer,
                                  const shoal_forward_call *call)
{
    TRY(need_capture(wrapper, tracer));
    struct fsdp_captured *unit = wrapper->captured;
    unit->after = call->inputs;
    unit->n_after = 0;
    while (call->is_recompute && unit->n_after < call->n_inputs && call->inputs[unit->n_after]) {
        unit->n_after++;
    }
    return SHOAL_OK;
}

shoal_status fsdp_captured_reach(struct fsdp_captured *unit, shoal_tensor *gradient)
{
    if (unit->capture->is_over) {
        return error_set(SHOAL_ERR_STATE, "the capture in which the forward pass was recorded is over");
    }
    unit->gradient = gradient;
    return SHOAL_OK;
}

void fsdp_capture_refresh(const struct fsdp_capture *capture)
{
    for (size_t i = 0; i < capture->n_units; i++) {
        struct fsdp_captured *unit = &capture->units[i];
        if ((unit->is_gathered || unit->is_kept) && fsdp_captured_has_changed(unit)) {
            fsdp_captured_give_up(unit);
        }
    }
}
