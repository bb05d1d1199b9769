/* SPDX-License-Identifier: MIT */
/* The first forward pass: finds out which wrappers belong to which root. */
#include "parallel/fsdp/module/root.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/group/owned.h"
#include "op/dependence.h"
#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/agree/meshes.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/step/prepare.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/step/step.h"
#include "parallel/fsdp/engine/step/transfer.h"
#include "parallel/fsdp/module/names.h"
#include "parallel/fsdp/module/tensors.h"
#include "parallel/fsdp/module/tree.h"
#include "parallel/fsdp/module/wrapper.h"
#include "shoal/autograd.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

/* Frees the root, which may be only partly made. Units go back to their wrappers. */
static void undo_root(struct fsdp_root *root)
{
    for (size_t i = 0; i < root->n_wrappers; i++) {
        struct fsdp_wrapper *wrapper = root->wrappers[i];
        wrapper->root = NULL;
        wrapper->is_root = false;
        wrapper->is_named = false;
        wrapper->unit->context = NULL;
        wrapper->unit->domain = NULL;
        wrapper->unit->mesh = &wrapper->mesh;
        wrapper->unit->is_prepared = false;
        for (size_t k = 0; k < wrapper->n_tensors; k++) {
            shoal_tensor_unref(wrapper->tensors[k].full);
            wrapper->tensors[k].full = NULL;
        }
    }
    if (root->context) {
        root->context->n_units = 0;
    }
    op_dependence_leave(root->dependence, 0); /* of graphs that were captured under it */
    fsdp_handle_free(root->handle);
    fsdp_context_free(root->context);
    mem_free(root->wrappers);
    mem_free(root);
}

/* Whether a module under the root was called, or is being captured. If not, the root was made for another reason: because
   something was gathered by hand, for example. */
static bool was_called(const struct fsdp_root *root)
{
    const struct fsdp_passes *passes = &root->context->passes;
    return root->capture || passes->forwards.capacity > 0 || passes->last_forwards.capacity > 0;
}

/* The module of this root turned out to be inside another sharded module, so it is not a root. */
static shoal_status give_up_root(struct fsdp_root *root)
{
    TRY(fsdp_context_check(root->context));
    TRY(fsdp_reset(root->context)); /* gives up what was gathered */
    undo_root(root);
    return SHOAL_OK;
}

static shoal_status add_wrapper(struct fsdp_root *root, struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; i < root->n_wrappers; i++) {
        if (root->wrappers[i] == wrapper) {
            return SHOAL_OK;
        }
    }
    if (wrapper->root && !was_called(wrapper->root)) {
        TRY(give_up_root(wrapper->root));
    }
    if (wrapper->root) {
        return error_set(SHOAL_ERR_STATE,
                         "%s was called by itself before: the outermost module that is fully sharded must be "
                         "called first",
                         fsdp_wrapper_name(wrapper));
    }
    TRY(mem_grow((void **)&root->wrappers, &root->capacity, root->n_wrappers + 1, sizeof root->wrappers[0]));
    root->wrappers[root->n_wrappers++] = wrapper;
    return SHOAL_OK;
}

static shoal_status find_wrapper(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    (void)next;
    struct fsdp_wrapper *wrapper = fsdp_wrapper_of(entry->module);
    return wrapper ? add_wrapper(context, wrapper) : SHOAL_OK;
}

/* Refuses a parameter that two units share: it would be trained twice. */
static shoal_status check_tied(const struct fsdp_root *root, const struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        const shoal_tensor *original = wrapper->tensors[i].original;
        for (size_t k = 0; original && k < root->n_wrappers && root->wrappers[k] != wrapper; k++) {
            if (fsdp_find_tensors(root->wrappers[k], original)) {
                return error_set(SHOAL_ERR_INVALID,
                                 "parameter %s is in two units, %s and %s: shard the modules that share it "
                                 "together",
                                 wrapper->unit->params[i].name, fsdp_wrapper_name(root->wrappers[k]),
                                 fsdp_wrapper_name(wrapper));
            }
        }
    }
    return SHOAL_OK;
}

static shoal_status check_values(const struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        const struct fsdp_tensors *tensors = &wrapper->tensors[i];
        if (fsdp_needs_values(tensors)) {
            return error_set(SHOAL_ERR_STATE,
                             "parameter %s was on the meta device and has no values yet: write its shard, or "
                             "load it",
                             wrapper->unit->params[i].name);
        }
    }
    return SHOAL_OK;
}

/* Collective: a rank whose shard is empty has nothing to write, and does not know whether others have. */
static shoal_status check_all_values(const struct fsdp_root *root)
{
    shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < root->n_wrappers && status == SHOAL_OK; i++) {
        status = check_values(root->wrappers[i]);
    }
    bool is_mine = status != SHOAL_OK;
    status = fsdp_context_confirm(root->context, status);
    return is_mine || status != SHOAL_ERR_STATE
               ? status
               : error_set(status,
                           "on another rank there are parameters that were on the meta device and have "
                           "no values yet");
}

/* Makes the full tensor. It has no memory until the unit is gathered. */
static shoal_status make_full(struct fsdp_tensors *tensors, const struct fsdp_param *param)
{
    struct storage *storage;
    struct layout layout = {.n_dims = param->n_dims};
    memcpy(layout.shape, param->shape, sizeof layout.shape);
    layout_fill_strides(layout.n_dims, layout.shape, layout.strides);
    TRY(storage_create_borrowed(param->device, param->count * dtype_bytes(param->compute), param->shard, NULL,
                                NULL, &storage));
    TRY(tensor_create(storage, param->compute, &layout, &tensors->full));
    TRY(shoal_tensor_set_name(tensors->full, param->name));
    storage_set_read_only(tensors->full->storage,
                          "it is a parameter gathered from shards; write its shard, which is what lists of "
                          "parameters show between calls");
    tensors->counted = shoal_tensor_version(tensors->sharded);
    return storage_release(tensors->full->storage);
}

static shoal_status prepare_wrapper(struct fsdp_root *root, struct fsdp_wrapper *wrapper)
{
    TRY(check_tied(root, wrapper));
    wrapper->unit->config.reshard = wrapper->unit->config.wanted_reshard;
    if (wrapper->unit->config.wanted_reshard == SHOAL_RESHARD_DEFAULT && wrapper->is_root) {
        wrapper->unit->config.reshard = SHOAL_RESHARD_NEVER;
    }
    struct fsdp_domain *domain;
    TRY(fsdp_context_need_domain(root->context, &wrapper->mesh, wrapper->number, &domain));
    return fsdp_context_adopt(root->context, domain, wrapper->unit);
}

static shoal_status finish_wrapper(struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        TRY(make_full(&wrapper->tensors[i], &wrapper->unit->params[i]));
    }
    return SHOAL_OK;
}

void fsdp_root_drop_originals(struct fsdp_root *root)
{
    for (size_t i = 0; i < root->n_wrappers; i++) {
        struct fsdp_wrapper *wrapper = root->wrappers[i];
        for (size_t k = 0; k < wrapper->n_tensors; k++) {
            shoal_tensor_unref(wrapper->tensors[k].original);
            wrapper->tensors[k].original = NULL;
        }
    }
    root->has_originals = false;
}

static shoal_status create_context(struct fsdp_root *root)
{
    const struct fsdp_wrapper *first = root->wrappers[0];
    shoal_fsdp_options options = {.struct_size = sizeof options, .forward_prefetch = first->forward_prefetch};
    for (size_t i = 0; i < root->n_wrappers; i++) {
        int n = root->wrappers[i]->max_reduces;
        options.max_reduces = n > options.max_reduces ? n : options.max_reduces;
    }
    TRY(fsdp_context_create(&first->mesh, &options, first->number, &root->context));
    root->context->all_ranks = first->all_ranks;
    return SHOAL_OK;
}

static shoal_status fill_root(struct fsdp_root *root, struct fsdp_wrapper *wrapper)
{
    TRY(add_wrapper(root, wrapper));
    TRY(shoal_module_walk(wrapper->modules[0], SHOAL_WALK_MODULES, find_wrapper, root));
    for (size_t i = 0; i < root->n_wrappers; i++) {
        TRY(fsdp_wrapper_check(root->wrappers[i]));
        TRY(fsdp_adopt_replacements(root->wrappers[i]));
    }
    TRY(fsdp_name_units(root, wrapper->modules[0]));
    TRY(create_context(root));
    for (size_t i = 0; i < root->n_wrappers; i++) {
        TRY(prepare_wrapper(root, root->wrappers[i]));
        root->wrappers[i]->root = root;
    }
    struct purpose purpose = fsdp_context_purpose(root->context, PURPOSE_FSDP_AGREE);
    TRY(fsdp_agree_on_meshes(root->context));
    TRY(fsdp_compare_all(root->context, &purpose));
    TRY(check_all_values(root));
    TRY(fsdp_prepare(root->context));
    for (size_t i = 0; i < root->n_wrappers; i++) {
        TRY(finish_wrapper(root->wrappers[i]));
    }
    root->has_originals = true;
    return SHOAL_OK;
}

/* This rank could not make the root, or even begin it. Ranks that wait for it in a comparison are told why. If the call
   failed on all ranks, all leave the same marks, and the next call tries again. The error text stays. */
static shoal_status tell_failure(const struct fsdp_wrapper *wrapper, const struct fsdp_root *root,
                                 shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    if (root && root->context) {
        return fsdp_mark_unmade(root->context, status);
    }
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    fsdp_mark_failed_mesh(&wrapper->mesh, wrapper->number, text);
    return error_set(status, "%s", text);
}

static shoal_status prepare(struct fsdp_wrapper *wrapper, bool is_captured)
{
    TRY(fsdp_wrapper_check(wrapper));
    if (!wrapper->unit || (wrapper->root && wrapper->root->is_gone)) {
        return error_set(SHOAL_ERR_STATE, "the root module that this module was sharded under was freed");
    }
    if (wrapper->root) {
        if (wrapper->root->has_originals && was_called(wrapper->root)) {
            fsdp_root_drop_originals(wrapper->root);
        }
        return fsdp_check_tree(wrapper);
    }
    if (wrapper->n_modules != 1) {
        return error_set(SHOAL_ERR_STATE,
                         "%s is a unit of %zu modules, which cannot be the root: shard what is around them",
                         fsdp_wrapper_name(wrapper), wrapper->n_modules);
    }
    struct fsdp_root *root = mem_alloc_zeroed(1, sizeof *root);
    if (!root) {
        return is_captured ? SHOAL_ERR_NO_MEMORY : tell_failure(wrapper, NULL, SHOAL_ERR_NO_MEMORY);
    }
    wrapper->is_root = true;
    shoal_status status = fill_root(root, wrapper);
    if (status != SHOAL_OK) {
        status = is_captured ? status : tell_failure(wrapper, root, status);
        undo_root(root);
        return status;
    }
    return fsdp_check_tree(wrapper); /* not before: now ranks whose tree is right can be told */
}

shoal_status fsdp_wrapper_prepare(struct fsdp_wrapper *wrapper)
{
    return prepare(wrapper, /*is_captured=*/false);
}

shoal_status fsdp_wrapper_prepare_captured(struct fsdp_wrapper *wrapper)
{
    return prepare(wrapper, /*is_captured=*/true);
}

void fsdp_root_forget_calls(struct fsdp_root *root)
{
    root->calls.forward_root = NULL;
    for (size_t i = 0; i < root->n_wrappers; i++) {
        fsdp_wrapper_clear_run(root->wrappers[i]);
    }
}
