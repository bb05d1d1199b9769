/* SPDX-License-Identifier: MIT */
/* Handles of modules: their units, parameters and context, and how calls on such a context differ from explicit
   ones. */
#include "parallel/fsdp/module/handles.h"

#include <stdio.h>
#include <string.h>

#include "autograd/backward.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "base/try.h"
#include "parallel/fsdp/engine/agree/compare.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/reduce/grads.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/reduce/reduction.h"
#include "parallel/fsdp/engine/step/step.h"
#include "parallel/fsdp/engine/state/way.h"
#include "parallel/fsdp/module/root.h"
#include "parallel/fsdp/module/wrapper.h"
#include "shoal/autograd.h"
#include "shoal/fully_shard.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

/* Units -------------------------------------------------------------------------------------------------- */

/* Functions here whose names begin with find_ do not put the name of a call before the error text. */
static shoal_status find_wrapper(const shoal_module *module, struct fsdp_wrapper **wrapper_out)
{
    *wrapper_out = module ? fsdp_wrapper_of(module) : NULL;
    if (!module) {
        (void)error_null("module");
        return SHOAL_ERR_INVALID;
    }
    error_clear();
    return *wrapper_out && (*wrapper_out)->unit
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "module %s is not fully sharded", shoal_module_type(module));
}

shoal_status fsdp_find_wrapper(const char *call, const shoal_module *module,
                               struct fsdp_wrapper **wrapper_out)
{
    shoal_status status = find_wrapper(module, wrapper_out);
    if (status == SHOAL_OK) {
        status = fsdp_wrapper_check(*wrapper_out);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call);
}

shoal_fsdp_unit *shoal_fully_shard_unit(shoal_module *module, bool is_deep)
{
    struct fsdp_wrapper *wrapper;
    if (find_wrapper(module, &wrapper) != SHOAL_OK) {
        fsdp_handle_not_found("fully_shard_unit");
        return NULL;
    }
    return is_deep ? fsdp_seat_of(module)->deep : wrapper->unit->handle;
}

/* Parameters --------------------------------------------------------------------------------------------- */

struct path_search {
    const shoal_tensor *wanted;
    shoal_fsdp_param *found;
};

/* Looks for the wanted tensor among those of the entry's unit. */
static shoal_status search_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct path_search *search = context;
    const struct fsdp_wrapper *wrapper = fsdp_wrapper_of(entry->module);
    for (size_t i = 0; wrapper && wrapper->unit && i < wrapper->n_tensors; i++) {
        if (wrapper->tensors[i].sharded == search->wanted || wrapper->tensors[i].full == search->wanted) {
            search->found = wrapper->unit->param_handles[i];
            *next = SHOAL_WALK_STOP;
        }
    }
    return SHOAL_OK;
}

shoal_status fsdp_find_tensor(shoal_module *module, const shoal_tensor *tensor, shoal_fsdp_param **param_out)
{
    struct path_search search = {.wanted = tensor};
    TRY(shoal_module_walk(module, SHOAL_WALK_MODULES, search_entry, &search));
    *param_out = search.found;
    return SHOAL_OK;
}

/* Collects paths that are similar to the wanted one. */
static shoal_status add_names(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    (void)next;
    nearest_add(context, entry->path);
    return SHOAL_OK;
}

static shoal_status report_missing(shoal_module *root, const char *path)
{
    struct nearest nearest;
    char words[NEAREST_BYTES];
    nearest_begin(&nearest, path);
    if (!shoal_module_find_parameter(root, path)) {
        TRY(shoal_module_walk(root, SHOAL_WALK_PARAMETERS, add_names, &nearest));
    }
    nearest_describe(&nearest, "parameters", words);
    return error_set(SHOAL_ERR_INVALID, "there is no parameter \"%.128s\" that is sharded%s%s", path,
                     nearest.n_names > 0 ? "; " : "", nearest.n_names > 0 ? words : "");
}

static shoal_status find_param(shoal_module *module, const char *path, shoal_fsdp_param **param_out)
{
    if (!module) {
        return error_null("module");
    }
    error_clear();
    if (!path) {
        return error_set(SHOAL_ERR_INVALID, "path is NULL");
    }
    const shoal_tensor *tensor = shoal_module_find_parameter(module, path);
    *param_out = NULL;
    if (tensor) {
        TRY(fsdp_find_tensor(module, tensor, param_out));
    }
    return *param_out ? SHOAL_OK : report_missing(module, path);
}

shoal_fsdp_param *shoal_fully_shard_param(shoal_module *module, const char *path)
{
    shoal_fsdp_param *param = NULL;
    if (find_param(module, path, &param) != SHOAL_OK) {
        fsdp_handle_not_found("fully_shard_param");
    }
    return param;
}

/* Looks for the parameter in a place, which is an entry of a walk. */
struct place_search {
    const shoal_module_entry *wanted;
    shoal_fsdp_param *found;
};

static bool has_place(const struct fsdp_tensors *tensors, const shoal_module_entry *entry)
{
    for (size_t i = 0; i < tensors->n_places; i++) {
        if (tensors->places[i].module == entry->module && strcmp(tensors->places[i].name, entry->name) == 0) {
            return true;
        }
    }
    return false;
}

static shoal_fsdp_param *find_place(const shoal_module *module, const shoal_module_entry *wanted)
{
    const struct fsdp_wrapper *wrapper = fsdp_wrapper_of(module);
    for (size_t i = 0; wrapper && wrapper->unit && i < wrapper->n_tensors; i++) {
        if (has_place(&wrapper->tensors[i], wanted)) {
            return wrapper->unit->param_handles[i];
        }
    }
    return NULL;
}

static shoal_status search_place(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct place_search *search = context;
    search->found = find_place(entry->module, search->wanted);
    *next = search->found ? SHOAL_WALK_STOP : SHOAL_WALK_ON;
    return SHOAL_OK;
}

/*
 * Most parameters belong to a unit of a module on their path, so this looks there first: a program that asks for every
 * parameter does not walk the whole tree for each. A tied parameter may belong to a unit elsewhere.
 */
static shoal_fsdp_param *search_path(shoal_module *module, const shoal_module_entry *wanted)
{
    char name[SHOAL_MAX_MODULE_NAME + 1];
    const char *path = wanted->path;
    while (module) {
        shoal_fsdp_param *found = find_place(module, wanted);
        const char *dot = path ? strchr(path, '.') : NULL;
        if (found || !dot || dot - path > SHOAL_MAX_MODULE_NAME) {
            return found;
        }
        memcpy(name, path, (size_t)(dot - path));
        name[dot - path] = '\0';
        module = shoal_module_find_child(module, name);
        path = dot + 1;
    }
    return NULL;
}

shoal_status shoal_fully_shard_find_param(shoal_module *module, const shoal_module_entry *entry,
                                          shoal_fsdp_param **param_out)
{
    struct place_search search = {.wanted = entry};
    if (!module) {
        return error_prefix(error_null("module"), "fully_shard_find_param");
    }
    error_clear();
    if (!entry || !param_out) {
        return error_set(SHOAL_ERR_INVALID, "fully_shard_find_param: %s is NULL",
                         entry ? "param_out" : "entry");
    }
    if (entry->kind != SHOAL_WALK_PARAMETERS || !entry->module || !entry->name) {
        return error_set(SHOAL_ERR_INVALID, "fully_shard_find_param: entry: kind is %u, a parameter expected",
                         (unsigned)entry->kind);
    }
    search.found = search_path(module, entry);
    if (!search.found) {
        TRY(shoal_module_walk(module, SHOAL_WALK_MODULES, search_place, &search));
    }
    *param_out = search.found;
    return SHOAL_OK;
}

/* The context -------------------------------------------------------------------------------------------- */

/* After a failed backward pass it is not known where gradients are. */
static shoal_status check_ended(const shoal_fsdp *fsdp, const char *call)
{
    const struct fsdp_root *root = fsdp->owner;
    return root->calls.is_end_awaited
               ? error_set(SHOAL_ERR_STATE,
                           "%s: a backward pass is running, or has failed (shoal_fsdp_reset)", call)
               : SHOAL_OK;
}

/* Visits the tensor that is the gradient now, whether the library or the program has put it there. */
static shoal_status visit_gradient(const char *name, const shoal_tensor *parameter, bool is_written,
                                   clip_visitor visit, void *context)
{
    shoal_tensor *gradient = shoal_grad(parameter);
    struct address data;
    if (!gradient) {
        return SHOAL_OK;
    }
    if (!gradient->is_contiguous) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the gradient of parameter %s is not contiguous", name);
    }
    TRY(is_written ? tensor_wait_writable(gradient, /*overwrites=*/false) : tensor_wait_readable(gradient));
    TRY(tensor_address(gradient, &data));
    if (is_written) {
        storage_bump_version(gradient->storage);
    }
    return visit(context, gradient->dtype, data, (size_t)gradient->count);
}

static shoal_status walk_gradients(void *owner, bool is_written, clip_visitor visit, void *context)
{
    const shoal_fsdp *fsdp = owner;
    const struct fsdp_root *root = fsdp->owner;
    for (size_t i = 0; i < root->n_wrappers; i++) {
        const struct fsdp_wrapper *wrapper = root->wrappers[i];
        bool is_visited = is_written || fsdp_unit_counts(wrapper->unit);
        for (size_t k = 0; k < wrapper->n_tensors && is_visited; k++) {
            TRY(visit_gradient(wrapper->unit->params[k].name, wrapper->tensors[k].sharded, is_written, visit,
                               context));
        }
    }
    return SHOAL_OK;
}

static shoal_status drop_gradient(shoal_tensor *tensor)
{
    return shoal_grad(tensor) ? shoal_set_grad(tensor, NULL) : SHOAL_OK;
}

/* Drops gradients of whole parameters, which backward passes leave that do not reduce, or fail, and those that compiled
   steps have reduced over the shards only. */
static shoal_status drop_full_gradients(const struct fsdp_wrapper *wrapper)
{
    for (size_t k = 0; k < wrapper->n_tensors; k++) {
        TRY(drop_gradient(wrapper->tensors[k].full));
        TRY(wrapper->tensors[k].partial ? drop_gradient(wrapper->tensors[k].partial) : SHOAL_OK);
    }
    return SHOAL_OK;
}

static shoal_status zero_grad(shoal_fsdp *fsdp)
{
    struct fsdp_root *root = fsdp->owner;
    TRY(fsdp_handle_check("zero_grad", fsdp));
    if (root->calls.is_end_awaited || shoal_in_backward()) {
        return error_set(SHOAL_ERR_STATE,
                         "zero_grad: a backward pass is running, or has failed (shoal_fsdp_reset)");
    }
    TRY(fsdp_drain(root->context, 0)); /* otherwise gradients in flight would land afterwards */
    for (size_t i = 0; i < root->n_wrappers; i++) {
        for (size_t k = 0; k < root->wrappers[i]->n_tensors; k++) {
            TRY(drop_gradient(root->wrappers[i]->tensors[k].sharded));
        }
        TRY(drop_full_gradients(root->wrappers[i]));
        fsdp_unit_drop_grads(root->wrappers[i]->unit);
    }
    return SHOAL_OK;
}

static shoal_status reset(shoal_fsdp *fsdp)
{
    struct fsdp_root *root = fsdp->owner;
    if (root->capture) {
        return error_set(SHOAL_ERR_STATE, "reset: a capture of the model is running");
    }
    fsdp_root_forget_calls(root);
    for (size_t i = 0; i < root->n_wrappers; i++) {
        TRY(drop_full_gradients(root->wrappers[i]));
    }
    root->calls.is_end_awaited = false;
    TRY(fsdp_reset(root->context));
    return fsdp_check_lanes(root->context); /* every further step would fail on a lane that has failed */
}

static shoal_status end_call(shoal_fsdp *fsdp, const char *call, shoal_status status)
{
    (void)fsdp;
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call);
}

static const struct fsdp_way module_way = {.check_ended = check_ended,
                                           .walk_gradients = walk_gradients,
                                           .zero_grad = zero_grad,
                                           .reset = reset,
                                           .end_call = end_call};

static shoal_status visit_all(void *owner, fsdp_unit_visitor visit, void *context)
{
    const struct fsdp_root *root = owner;
    for (size_t i = 0; i < root->n_wrappers; i++) {
        TRY(visit(root->wrappers[i]->unit, context));
    }
    return SHOAL_OK;
}

static shoal_status make_handle(struct fsdp_root *root)
{
    shoal_fsdp *fsdp = mem_alloc_zeroed(1, sizeof *fsdp);
    if (!fsdp) {
        return SHOAL_ERR_NO_MEMORY;
    }
    fsdp->context = root->context;
    fsdp->way = &module_way;
    fsdp->owner = root;
    fsdp->all = (struct shoal_fsdp_unit){.each = visit_all, .owner = root};
    root->handle = fsdp;
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_context(shoal_module *module, shoal_fsdp **fsdp_out)
{
    struct fsdp_wrapper *wrapper;
    shoal_status status = find_wrapper(module, &wrapper);
    if (status == SHOAL_OK && !fsdp_out) {
        status = error_set(SHOAL_ERR_INVALID, "fsdp_out is NULL");
    }
    if (status == SHOAL_OK && !wrapper->root) {
        status = fsdp_wrapper_prepare(wrapper);
    }
    if (status == SHOAL_OK && !wrapper->root->handle) {
        status = make_handle(wrapper->root);
    }
    if (status != SHOAL_OK) {
        return error_prefix(status, "fully_shard_context");
    }
    *fsdp_out = wrapper->root->handle;
    return SHOAL_OK;
}
