/* SPDX-License-Identifier: MIT */
/*
 * shoal_fully_shard: the hooks that drive a unit while modules are called and walked back.
 *
 *   pre-forward    first of all hooks: gather, cast inputs, an identity around the inputs whose gradients mean that the
 *                  module's backward is over
 *   post-forward   last: give up, and a hook on each output whose gradient means that it begins
 *   end            of each backward: units whose inputs needed no gradient, and all that is still on its way
 */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/struct_size.h"
#include "base/try.h"
#include "parallel/fsdp/wrapper.h"
#include "parallel/fsdp/watch.h"
#include "shoal/autograd.h"
#include "shoal/fully_shard.h"
#include "shoal/ops.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

/* No module is being called. */
static void forget_calls(struct fsdp_root *root)
{
    root->forward_root = NULL;
    for (size_t i = 0; i < root->n_wrappers; i++) {
        fsdp_wrapper_clear_run(root->wrappers[i]);
    }
}

/* Backward ----------------------------------------------------------------------------------------------- */

static shoal_status end_backward(void *context)
{
    struct fsdp_root *root = context;
    forget_calls(root);
    TRY(fsdp_end_backward(root->context));
    root->is_end_awaited = false; /* after a failure it stays, and asks for a reset */
    return SHOAL_OK;
}

static shoal_status await_end(struct fsdp_root *root)
{
    if (root->is_end_awaited) {
        return SHOAL_OK;
    }
    TRY(fsdp_context_check(root->context));
    TRY(shoal_on_backward_end(end_backward, root));
    root->is_end_awaited = true;
    return SHOAL_OK;
}

/* The gradient of an output has come. */
static shoal_tensor *begin_backward(void *context, shoal_tensor *gradient)
{
    struct fsdp_wrapper *wrapper = context;
    (void)gradient;
    shoal_status status = await_end(wrapper->root);
    if (status == SHOAL_OK) {
        status = fsdp_unit_pre_backward(wrapper->unit);
    }
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    return NULL;
}

/* Those of the inputs have. */
static shoal_status finish_backward(void *context, shoal_tensor **gradients, size_t n_gradients)
{
    struct fsdp_wrapper *wrapper = context;
    (void)gradients;
    (void)n_gradients;
    return wrapper->unit->phase == FSDP_PRE_BACKWARD ? fsdp_unit_post_backward(wrapper->unit) : SHOAL_OK;
}

/* Forward ------------------------------------------------------------------------------------------------ */

static void cast_all(shoal_tensor **tensors, size_t n_tensors, shoal_dtype dtype)
{
    for (size_t i = 0; dtype != 0 && i < n_tensors; i++) {
        if (tensors[i] && shoal_dtype_is_floating(tensors[i]->dtype)) {
            tensors[i] = shoal_to_dtype(tensors[i], dtype);
        }
    }
}

static bool needs_gradient(shoal_tensor *const *tensors, size_t n_tensors)
{
    for (size_t i = 0; i < n_tensors; i++) {
        if (shoal_requires_grad(tensors[i])) {
            return true;
        }
    }
    return false;
}

/*
 * The outermost call of a forward, from here to the end of its last hook. A call that failed has no such hook: it is over
 * when the next one is not inside its scope. What it had gathered may be old by now.
 */
static shoal_status begin_root(struct fsdp_wrapper *wrapper)
{
    struct fsdp_root *root = wrapper->root;
    size_t depth = scope_depth();
    if (root->forward_root && depth <= root->forward_depth) {
        forget_calls(root);
        TRY(fsdp_end_forwards(root->context, root->n_order));
    }
    if (!root->forward_root || wrapper->is_root) {
        root->forward_root = wrapper;
        root->forward_depth = depth;
        root->n_order = root->context->n_order;
    }
    return SHOAL_OK;
}

/* A forward inside a backward belongs to that: nothing is given up or written down. */
static shoal_status begin_call(struct fsdp_wrapper *wrapper, bool is_in_backward)
{
    struct fsdp_root *root = wrapper->root;
    if (is_in_backward) {
        TRY(await_end(root));
        root->context->is_in_backward = true;
    } else if (root->is_end_awaited) {
        return error_set(SHOAL_ERR_STATE, "%s: the last backward failed; shoal_fully_shard_reset comes first",
                         fsdp_wrapper_name(wrapper));
    } else {
        TRY(begin_root(wrapper));
    }
    return SHOAL_OK;
}

/* Of a unit of several modules the first one called begins the forward. */
static shoal_status gather(struct fsdp_wrapper *wrapper, bool is_first)
{
    if (is_first) {
        return fsdp_unit_pre_forward(wrapper->unit);
    }
    TRY(fsdp_unit_unshard(wrapper->unit));
    return fsdp_unit_wait(wrapper->unit);
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

static shoal_status before_forward(void *context, const shoal_forward_call *call)
{
    struct fsdp_wrapper *wrapper = context;
    TRY(fsdp_wrapper_prepare(wrapper));
    TRY(begin_call(wrapper, call->is_recompute));
    bool is_again = wrapper->unit->phase == FSDP_PRE_BACKWARD;
    bool is_first = wrapper->unit->phase != FSDP_FORWARD || wrapper->n_modules == 1;
    TRY(gather(wrapper, is_first));
    if (wrapper->casts_inputs) {
        cast_all(call->inputs, call->n_inputs, wrapper->unit->param_dtype);
    }
    if (is_again) {
        return SHOAL_OK;
    }
    note_run(wrapper, call->module);
    if (!is_first || !shoal_scope_has_grad() || !needs_gradient(call->inputs, call->n_inputs)) {
        return SHOAL_OK;
    }
    return shoal_identity(call->inputs, call->n_inputs, finish_backward, wrapper, call->inputs);
}

static shoal_status end_forward(struct fsdp_wrapper *wrapper)
{
    fsdp_wrapper_clear_run(wrapper);
    return fsdp_unit_post_forward(wrapper->unit);
}

/* Units of which not all modules were called end with the outermost call. */
static shoal_status end_root(struct fsdp_root *root)
{
    struct fsdp_context *context = root->context;
    struct fsdp_wrapper *outermost = root->forward_root;
    root->forward_root = NULL;
    for (size_t i = 0; i < root->n_wrappers; i++) {
        if (root->wrappers[i] != outermost && root->wrappers[i]->n_run > 0) {
            TRY(end_forward(root->wrappers[i]));
        }
    }
    TRY(end_forward(outermost));
    bool has_backward = shoal_scope_has_grad() || context->is_in_backward;
    return has_backward ? SHOAL_OK : fsdp_end_forwards(context, root->n_order);
}

static shoal_status after_forward(void *context, const shoal_forward_call *call)
{
    struct fsdp_wrapper *wrapper = context;
    bool is_root = wrapper->root->forward_root == wrapper;
    if (wrapper->n_run == wrapper->n_modules && !is_root) {
        TRY(end_forward(wrapper));
    }
    if (is_root) {
        TRY(end_root(wrapper->root));
    }
    for (size_t i = 0; i < call->n_outputs && shoal_scope_has_grad(); i++) {
        if (shoal_requires_grad(call->outputs[i])) {
            TRY(shoal_on_gradient(call->outputs[i], begin_backward, wrapper, NULL));
        }
    }
    cast_all(call->outputs, call->n_outputs, wrapper->output_dtype);
    return SHOAL_OK;
}

/* Sharding ----------------------------------------------------------------------------------------------- */

static shoal_status add_hooks(struct fsdp_wrapper *wrapper)
{
    const shoal_module_hook_definition definition = {.struct_size = sizeof definition,
                                                     .pre_forward = before_forward,
                                                     .pre_place = SHOAL_HOOK_FIRST,
                                                     .post_forward = after_forward,
                                                     .post_place = SHOAL_HOOK_LAST,
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
    error_clear();
    TRY(struct_size_read("shoal_fully_shard_options", given, sizeof(size_t), &options, sizeof options));
    shoal_status status = fsdp_wrapper_create(modules, n_modules, &options, &wrapper);
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
    return shoal_fully_shard_list(&module, 1, options);
}

bool shoal_is_fully_sharded(const shoal_module *module)
{
    return module && fsdp_wrapper_of(module);
}

/* Settings ----------------------------------------------------------------------------------------------- */

shoal_status fsdp_find_wrapper(const char *call, const shoal_module *module,
                               struct fsdp_wrapper **wrapper_out)
{
    error_clear();
    if (!module) {
        return error_set(SHOAL_ERR_INVALID, "%s: module is NULL", call);
    }
    *wrapper_out = fsdp_wrapper_of(module);
    if (!*wrapper_out || !(*wrapper_out)->unit) {
        return error_set(SHOAL_ERR_INVALID, "%s: module %s is not fully sharded", call,
                         shoal_module_type(module));
    }
    shoal_status status = fsdp_wrapper_check(*wrapper_out);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call);
}

/* What a setter does to each unit. */
typedef void (*unit_setter)(struct fsdp_unit *unit, bool is_on);

struct deep_setting {
    unit_setter set;
    bool is_on;
};

static shoal_status set_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    const struct deep_setting *setting = context;
    struct fsdp_wrapper *wrapper = fsdp_wrapper_of(entry->module);
    (void)next;
    if (wrapper && wrapper->unit) {
        setting->set(wrapper->unit, setting->is_on);
    }
    return SHOAL_OK;
}

static shoal_status set_units(const char *call, shoal_module *module, bool is_deep, unit_setter set,
                              bool is_on)
{
    struct deep_setting setting = {.set = set, .is_on = is_on};
    struct fsdp_wrapper *wrapper;
    TRY(fsdp_find_wrapper(call, module, &wrapper));
    if (!is_deep) {
        set(wrapper->unit, is_on);
        return SHOAL_OK;
    }
    return shoal_module_walk(module, SHOAL_WALK_MODULES, set_entry, &setting);
}

static void set_sync(struct fsdp_unit *unit, bool is_on)
{
    unit->reduces = is_on;
    unit->all_reduces = is_on;
}

static void set_all_reduce(struct fsdp_unit *unit, bool is_on)
{
    unit->all_reduces = is_on;
}

static void set_reshard(struct fsdp_unit *unit, bool is_on)
{
    struct fsdp_wrapper *wrapper = unit->owner;
    wrapper->reshard = is_on ? SHOAL_RESHARD_ALWAYS : SHOAL_RESHARD_NEVER;
    unit->reshard = wrapper->reshard;
}

static void set_reshard_after_backward(struct fsdp_unit *unit, bool is_on)
{
    unit->reshards_after_backward = is_on;
}

static void set_unshard_in_backward(struct fsdp_unit *unit, bool is_on)
{
    unit->unshards_in_backward = is_on;
}

static void set_force_sum(struct fsdp_unit *unit, bool is_on)
{
    unit->forces_sum = is_on;
}

shoal_status shoal_fully_shard_set_sync(shoal_module *module, bool is_on, bool is_deep)
{
    return set_units("fully_shard_set_sync", module, is_deep, set_sync, is_on);
}

shoal_status shoal_fully_shard_set_all_reduce(shoal_module *module, bool is_on, bool is_deep)
{
    return set_units("fully_shard_set_all_reduce", module, is_deep, set_all_reduce, is_on);
}

shoal_status shoal_fully_shard_set_reshard(shoal_module *module, bool after_forward, bool is_deep)
{
    return set_units("fully_shard_set_reshard", module, is_deep, set_reshard, after_forward);
}

shoal_status shoal_fully_shard_set_reshard_after_backward(shoal_module *module, bool is_on, bool is_deep)
{
    return set_units("fully_shard_set_reshard_after_backward", module, is_deep, set_reshard_after_backward,
                     is_on);
}

shoal_status shoal_fully_shard_set_unshard_in_backward(shoal_module *module, bool is_on)
{
    return set_units("fully_shard_set_unshard_in_backward", module, false, set_unshard_in_backward, is_on);
}

shoal_status shoal_fully_shard_set_force_sum(shoal_module *module, bool is_on)
{
    return set_units("fully_shard_set_force_sum", module, false, set_force_sum, is_on);
}

shoal_status shoal_fully_shard_set_divide_factor(shoal_module *module, double factor)
{
    struct fsdp_wrapper *wrapper;
    TRY(fsdp_find_wrapper("fully_shard_set_divide_factor", module, &wrapper));
    if (!(factor >= 0.0) || isinf(factor)) {
        return error_set(SHOAL_ERR_INVALID, "fully_shard_set_divide_factor: factor is %g", factor);
    }
    wrapper->unit->divide_factor = factor;
    return SHOAL_OK;
}

shoal_status fsdp_find_root(const char *call, shoal_module *module, struct fsdp_wrapper **wrapper_out)
{
    TRY(fsdp_find_wrapper(call, module, wrapper_out));
    if (!(*wrapper_out)->root) {
        TRY(fsdp_wrapper_prepare(*wrapper_out));
    }
    return (*wrapper_out)->is_root ? SHOAL_OK
                                   : error_set(SHOAL_ERR_INVALID, "%s: %s is not the root", call,
                                               fsdp_wrapper_name(*wrapper_out));
}

shoal_status shoal_fully_shard_set_is_last_backward(shoal_module *module, bool is_last)
{
    struct fsdp_wrapper *wrapper;
    TRY(fsdp_find_root("fully_shard_set_is_last_backward", module, &wrapper));
    wrapper->root->context->is_not_last = !is_last;
    return SHOAL_OK;
}

/* Before the first call it is not known who has which root; that looks again. */
static shoal_status find_listed(const char *call, const struct fsdp_wrapper *wrapper,
                                const shoal_module *module, struct fsdp_unit **unit_out)
{
    struct fsdp_wrapper *listed;
    TRY(fsdp_find_wrapper(call, module, &listed));
    *unit_out = listed->unit;
    return !wrapper->root || listed->root == wrapper->root
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s: %s has not the root of %s", call,
                           fsdp_wrapper_name(listed), fsdp_wrapper_name(wrapper));
}

static shoal_status copy_units(const char *call, const struct fsdp_wrapper *wrapper,
                               shoal_module *const *modules, size_t n_modules, struct fsdp_unit ***list_out)
{
    *list_out = NULL;
    if (n_modules == 0) {
        return SHOAL_OK;
    }
    if (!modules) {
        return error_set(SHOAL_ERR_INVALID, "%s: modules is NULL with %zu of them", call, n_modules);
    }
    struct fsdp_unit **list = mem_alloc(n_modules * sizeof list[0]);
    if (!list) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_modules; i++) {
        shoal_status status = find_listed(call, wrapper, modules[i], &list[i]);
        if (status != SHOAL_OK) {
            mem_free(list);
            return status;
        }
    }
    *list_out = list;
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_set_forward_prefetch(shoal_module *module, shoal_module *const *modules,
                                                    size_t n_modules)
{
    struct fsdp_wrapper *wrapper;
    struct fsdp_unit **list;
    TRY(fsdp_find_wrapper("fully_shard_set_forward_prefetch", module, &wrapper));
    TRY(copy_units("fully_shard_set_forward_prefetch", wrapper, modules, n_modules, &list));
    fsdp_list_set(&wrapper->unit->forward_list, &wrapper->unit->n_forward_list, list, n_modules);
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_set_backward_prefetch(shoal_module *module, shoal_module *const *modules,
                                                     size_t n_modules)
{
    struct fsdp_wrapper *wrapper;
    struct fsdp_unit **list;
    TRY(fsdp_find_wrapper("fully_shard_set_backward_prefetch", module, &wrapper));
    TRY(copy_units("fully_shard_set_backward_prefetch", wrapper, modules, n_modules, &list));
    fsdp_list_set(&wrapper->unit->backward_list, &wrapper->unit->n_backward_list, list, n_modules);
    return SHOAL_OK;
}

/* By hand ------------------------------------------------------------------------------------------------ */

shoal_status shoal_fully_shard_unshard(shoal_module *module)
{
    struct fsdp_wrapper *wrapper;
    TRY(fsdp_find_wrapper("fully_shard_unshard", module, &wrapper));
    TRY(fsdp_wrapper_prepare(wrapper));
    return fsdp_unit_unshard(wrapper->unit);
}

shoal_status shoal_fully_shard_wait(shoal_module *module)
{
    struct fsdp_wrapper *wrapper;
    TRY(fsdp_find_wrapper("fully_shard_wait", module, &wrapper));
    return fsdp_unit_wait(wrapper->unit);
}

shoal_status shoal_fully_shard_reshard(shoal_module *module)
{
    struct fsdp_wrapper *wrapper;
    TRY(fsdp_find_wrapper("fully_shard_reshard", module, &wrapper));
    return fsdp_unit_give_up(wrapper->unit);
}

static shoal_status drop_gradient(shoal_tensor *tensor)
{
    return shoal_grad(tensor) ? shoal_set_grad(tensor, NULL) : SHOAL_OK;
}

/* Of whole parameters, from backwards that did not reduce or did not end. */
static shoal_status drop_full_gradients(const struct fsdp_wrapper *wrapper)
{
    for (size_t k = 0; k < wrapper->n_tensors; k++) {
        TRY(drop_gradient(wrapper->tensors[k].full));
    }
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_zero_grad(shoal_module *module)
{
    struct fsdp_wrapper *wrapper;
    TRY(fsdp_find_root("fully_shard_zero_grad", module, &wrapper));
    struct fsdp_root *root = wrapper->root;
    if (root->is_end_awaited || shoal_in_backward()) {
        return error_set(SHOAL_ERR_STATE,
                         "fully_shard_zero_grad: inside a backward, or after one that failed");
    }
    TRY(fsdp_drain(root->context, 0)); /* or they would land afterwards */
    for (size_t i = 0; i < root->n_wrappers; i++) {
        for (size_t k = 0; k < root->wrappers[i]->n_tensors; k++) {
            TRY(drop_gradient(root->wrappers[i]->tensors[k].sharded));
        }
        TRY(drop_full_gradients(root->wrappers[i]));
        fsdp_unit_drop_grads(root->wrappers[i]->unit);
    }
    return SHOAL_OK;
}

/* Another step could only fail again. */
static shoal_status check_lanes(const struct fsdp_mesh *mesh)
{
    shoal_group *const lanes[] = {mesh->gather, mesh->reduce, mesh->replicate};
    for (size_t i = 0; i < sizeof lanes / sizeof lanes[0]; i++) {
        TRY(lanes[i] ? shoal_group_error(lanes[i]) : SHOAL_OK);
    }
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_reset(shoal_module *module)
{
    struct fsdp_wrapper *wrapper;
    TRY(fsdp_find_root("fully_shard_reset", module, &wrapper));
    struct fsdp_root *root = wrapper->root;
    forget_calls(root);
    for (size_t i = 0; i < root->n_wrappers; i++) {
        TRY(drop_full_gradients(root->wrappers[i]));
    }
    root->is_end_awaited = false;
    TRY(fsdp_reset(root->context));
    return check_lanes(&root->context->mesh);
}
