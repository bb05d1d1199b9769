/* SPDX-License-Identifier: MIT */
/* Makes wrappers: takes the parameters of a unit from the module tree. */
#include "parallel/fsdp/module/sharding.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "module/module.h"
#include "parallel/claim.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/module/lifetime.h"
#include "parallel/fsdp/module/select.h"
#include "parallel/fsdp/module/tensors.h"
#include "parallel/fsdp/module/watch.h"
#include "parallel/fsdp/module/wrapper.h"
#include "shoal/autograd.h"
#include "tensor/tensor.h"

/* The record of a forward pass keeps the root. */
static void keep_root(void *owner)
{
    const struct fsdp_wrapper *wrapper = owner;
    fsdp_root_keep(wrapper->root);
}

static void let_go_of_root(void *owner)
{
    const struct fsdp_wrapper *wrapper = owner;
    fsdp_root_let_go(wrapper->root);
}

static void leave_seat(void *value)
{
    fsdp_wrapper_leave(value);
}

/* A visit of the units of a module and of all modules inside it. */
struct deep_visit {
    fsdp_unit_visitor visit;
    void *context;
};

static shoal_status visit_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    const struct deep_visit *deep = context;
    const struct fsdp_wrapper *wrapper = fsdp_wrapper_of(entry->module);
    (void)next;
    return wrapper && wrapper->unit ? deep->visit(wrapper->unit, deep->context) : SHOAL_OK;
}

static shoal_status visit_inside(void *owner, fsdp_unit_visitor visit, void *context)
{
    const struct fsdp_seat *seat = owner;
    struct deep_visit deep = {.visit = visit, .context = context};
    if (!seat->wrapper->unit) {
        return error_set(SHOAL_ERR_STATE, "the root module that this module was sharded under was freed");
    }
    return shoal_module_walk(seat->module, SHOAL_WALK_MODULES, visit_entry, &deep);
}

/* Gives the wrapper to one of its modules, which holds it from now on. */
static shoal_status take_seat(struct fsdp_wrapper *wrapper, size_t index)
{
    struct fsdp_seat *seat = &wrapper->seats[index];
    shoal_fsdp_unit *deep = mem_alloc_zeroed(1, sizeof *deep);
    if (!deep) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *deep = (shoal_fsdp_unit){.each = visit_inside, .owner = seat};
    *seat = (struct fsdp_seat){.wrapper = wrapper, .module = wrapper->modules[index], .deep = deep};
    shoal_status status = claim_take(seat->module, CLAIMANT_FSDP, seat, leave_seat);
    if (status != SHOAL_OK) {
        fsdp_unit_handle_free(deep);
        seat->deep = NULL;
    }
    return status;
}

struct collector {
    struct fsdp_wrapper *wrapper;
    const shoal_fully_shard_options *options;
};

static bool is_ignored(const shoal_fully_shard_options *options, const shoal_tensor *tensor)
{
    for (size_t i = 0; i < options->n_ignored; i++) {
        if (options->ignored[i] == tensor) {
            return true;
        }
    }
    return false;
}

static shoal_status add_place(struct fsdp_tensors *tensors, const shoal_module_entry *entry)
{
    for (size_t i = 0; i < tensors->n_places; i++) {
        if (tensors->places[i].module == entry->module && strcmp(tensors->places[i].name, entry->name) == 0) {
            return SHOAL_OK; /* a module that is shared is walked more than once */
        }
    }
    TRY(mem_grow((void **)&tensors->places, &tensors->capacity, tensors->n_places + 1,
                 sizeof tensors->places[0]));
    char *name = mem_copy_string(entry->name);
    if (!name) {
        return SHOAL_ERR_NO_MEMORY;
    }
    tensors->places[tensors->n_places++] = (struct fsdp_place){
        .module = entry->module, .name = name, .index = module_parameter_index(entry->module, name)};
    return SHOAL_OK;
}

static shoal_status check_parameter(const shoal_module_entry *entry)
{
    const shoal_tensor *tensor = entry->tensor;
    if (!tensor->is_contiguous) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "parameter %s is not contiguous", entry->path);
    }
    if (fsdp_is_of_unit(tensor)) {
        return error_set(SHOAL_ERR_STATE,
                         "parameter %s belongs to a unit already: call shoal_fully_shard on inner modules "
                         "before the modules around them",
                         entry->path);
    }
    return SHOAL_OK;
}

static shoal_status cut_parameter(struct collector *collector, const shoal_module_entry *entry,
                                  struct fsdp_tensors *tensors)
{
    const shoal_fully_shard_options *options = collector->options;
    struct fsdp_wrapper *wrapper = collector->wrapper;
    const struct layout *layout = &entry->tensor->layout;
    struct fsdp_param param = {.name = NULL};
    int dim =
        options->placement ? options->placement(options->placement_context, entry->path, entry->tensor) : 0;
    shoal_status status = fsdp_param_init(&param, entry->path, entry->tensor->dtype, layout->n_dims,
                                          layout->shape, dim, wrapper->mesh.shard, wrapper->mesh.n_shards);
    if (status == SHOAL_OK) {
        status = fsdp_take_values(tensors, &param, options->device);
    }
    if (status == SHOAL_OK) {
        status = fsdp_make_sharded(tensors, &param, entry->path, wrapper->mesh.n_shards);
    }
    if (status == SHOAL_OK) {
        param.requires_grad = shoal_requires_grad(entry->tensor);
        tensors->version = shoal_tensor_version(tensors->sharded);
        status = fsdp_unit_add_param(wrapper->unit, &param);
    }
    if (status != SHOAL_OK) {
        fsdp_param_free(&param);
    }
    return status;
}

static shoal_status collect_parameter(struct collector *collector, const shoal_module_entry *entry)
{
    struct fsdp_wrapper *wrapper = collector->wrapper;
    if (is_ignored(collector->options, entry->tensor)) {
        return SHOAL_OK;
    }
    struct fsdp_tensors *tensors = fsdp_find_tensors(wrapper, entry->tensor);
    if (tensors) {
        return add_place(tensors, entry);
    }
    TRY(check_parameter(entry));
    TRY(mem_grow((void **)&wrapper->tensors, &wrapper->tensors_capacity, wrapper->n_tensors + 1,
                 sizeof wrapper->tensors[0]));
    tensors = &wrapper->tensors[wrapper->n_tensors];
    *tensors = (struct fsdp_tensors){.original = shoal_tensor_ref(entry->tensor)};
    shoal_status status = add_place(tensors, entry);
    if (status == SHOAL_OK) {
        status = cut_parameter(collector, entry, tensors);
    }
    if (status != SHOAL_OK) {
        fsdp_tensors_free(tensors);
        return status;
    }
    wrapper->n_tensors++;
    return SHOAL_OK;
}

static shoal_status visit(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct collector *collector = context;
    if (entry->kind == SHOAL_WALK_PARAMETERS) {
        return collect_parameter(collector, entry);
    }
    if (claim_is_taken(entry->module)) {
        *next = SHOAL_WALK_SKIP; /* its parameters have been taken by FSDP or DDP */
    }
    return SHOAL_OK;
}

/* Making ------------------------------------------------------------------------------------------------- */

static shoal_status find_mesh(const shoal_fully_shard_options *options, struct fsdp_mesh *mesh_out)
{
    if (!options->group == !options->mesh) {
        return error_set(SHOAL_ERR_INVALID, options->group ? "both a group and a mesh are given"
                                                           : "neither a group nor a mesh is given");
    }
    if (options->mesh) {
        return options->is_replicated
                   ? error_set(SHOAL_ERR_INVALID, "is_replicated needs a group, not a mesh")
                   : fsdp_mesh_from_mesh(options->mesh, mesh_out);
    }
    return options->is_replicated ? fsdp_mesh_from_replicas(options->group, mesh_out)
                                  : fsdp_mesh_from_group(options->group, mesh_out);
}

static shoal_status keep_ignored(struct fsdp_wrapper *wrapper, const shoal_fully_shard_options *options)
{
    wrapper->ignored = mem_alloc_zeroed(options->n_ignored, sizeof wrapper->ignored[0]);
    if (!wrapper->ignored && options->n_ignored > 0) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < options->n_ignored; i++) {
        wrapper->ignored[wrapper->n_ignored++] = shoal_tensor_ref(options->ignored[i]);
    }
    return SHOAL_OK;
}

static shoal_status fill_wrapper(struct fsdp_wrapper *wrapper, shoal_module *const *modules, size_t n_modules,
                                 const shoal_fully_shard_options *options)
{
    struct collector collector = {.wrapper = wrapper, .options = options};
    wrapper->modules = mem_alloc(n_modules * sizeof modules[0]);
    wrapper->has_run = mem_alloc_zeroed(n_modules, sizeof wrapper->has_run[0]);
    wrapper->hooks = mem_alloc_zeroed(n_modules, sizeof wrapper->hooks[0]);
    wrapper->seats = mem_alloc_zeroed(n_modules, sizeof wrapper->seats[0]);
    if (!wrapper->modules || !wrapper->has_run || !wrapper->hooks || !wrapper->seats) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(keep_ignored(wrapper, options));
    TRY(fsdp_keep_outermost(modules, n_modules, wrapper->modules, &wrapper->n_modules));
    TRY(fsdp_unit_create_alone(shoal_module_type(wrapper->modules[0]), &wrapper->unit));
    wrapper->unit->watch = &fsdp_module_watch;
    wrapper->unit->owner = wrapper;
    wrapper->unit->mesh = &wrapper->mesh;
    wrapper->unit->config.param_dtype = options->param_dtype;
    wrapper->unit->config.reduce_dtype = options->reduce_dtype;
    wrapper->unit->config.reshard_ranks = options->reshard_ranks;
    wrapper->unit->config.wanted_reshard = options->reshard;
    fsdp_unit_set_sharded(wrapper->unit, options->sharded);
    wrapper->output_dtype = options->output_dtype;
    wrapper->casts_inputs = !options->keeps_inputs;
    wrapper->forward_prefetch = options->forward_prefetch;
    wrapper->max_reduces = options->max_reduces;
    wrapper->all_ranks = options->all_ranks;
    if (wrapper->all_ranks) {
        group_hold(wrapper->all_ranks);
    }
    for (size_t i = 0; i < wrapper->n_modules; i++) {
        TRY(shoal_module_walk(wrapper->modules[i],
                              SHOAL_WALK_PARAMETERS | SHOAL_WALK_MODULES | SHOAL_WALK_DUPLICATES, visit,
                              &collector));
    }
    return SHOAL_OK;
}

static shoal_status put_sharded(struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        struct fsdp_tensors *tensors = &wrapper->tensors[i];
        for (size_t k = 0; k < tensors->n_places; k++) {
            TRY(shoal_module_set_parameter(tensors->places[k].module, tensors->places[k].name,
                                           tensors->sharded));
        }
    }
    return SHOAL_OK;
}

static void put_back(struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        struct fsdp_tensors *tensors = &wrapper->tensors[i];
        for (size_t k = 0; k < tensors->n_places; k++) {
            /* A place that has been found takes a tensor without needing memory. */
            (void)!shoal_module_set_parameter(tensors->places[k].module, tensors->places[k].name,
                                              tensors->original);
        }
    }
    if (wrapper->n_owners == 0) {
        fsdp_wrapper_free(wrapper);
        return;
    }
    for (size_t n = wrapper->n_owners; n > 0; n--) { /* the last one frees the wrapper and its list */
        claim_drop(wrapper->modules[n - 1], CLAIMANT_FSDP);
    }
}

/* Keeps the text of the error that is the reason for this, because public calls clear it. */
void fsdp_wrapper_undo(struct fsdp_wrapper *wrapper)
{
    char reason[ERROR_TEXT_BYTES];
    (void)snprintf(reason, sizeof reason, "%s", shoal_error_text());
    put_back(wrapper);
    (void)error_set(SHOAL_OK, "%s", reason);
}

/* Frees originals that nobody else holds. The others are kept until the first forward pass has checked for parameters
   that two units share (root.c). */
void fsdp_wrapper_settle(struct fsdp_wrapper *wrapper)
{
    wrapper->number = fsdp_mesh_next_root(&wrapper->mesh);
    wrapper->unit->root = wrapper->number;
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        shoal_tensor *original = wrapper->tensors[i].original;
        original->is_replaced = true;
        if (atomic_load(&original->references) == 1) {
            wrapper->tensors[i].original = NULL;
            shoal_tensor_unref(original);
        }
    }
}

shoal_status fsdp_wrapper_create(shoal_module *const *modules, size_t n_modules,
                                 const shoal_fully_shard_options *options, struct fsdp_wrapper **wrapper_out)
{
    struct fsdp_mesh mesh;
    TRY(fsdp_check_modules(modules, n_modules));
    if (!options->ignored && options->n_ignored > 0) {
        return error_set(SHOAL_ERR_INVALID, "ignored is NULL, but n_ignored is %zu", options->n_ignored);
    }
    TRY(find_mesh(options, &mesh));
    if (options->is_replicated) {
        TRY(fsdp_check_not_sharded("is_replicated is true", options->sharded));
    }
    shoal_fsdp_options checked = {.struct_size = sizeof checked,
                                  .param_dtype = options->param_dtype,
                                  .reduce_dtype = options->reduce_dtype,
                                  .reshard = options->reshard,
                                  .reshard_ranks = options->reshard_ranks,
                                  .forward_prefetch = options->forward_prefetch,
                                  .max_reduces = options->max_reduces,
                                  .sharded = options->sharded,
                                  .device = options->device};
    TRY(fsdp_check_options(&mesh, &checked));
    if (options->all_ranks && shoal_group_world(options->all_ranks) != mesh.world) {
        return error_set(SHOAL_ERR_INVALID, "all_ranks is a group of another world than the mesh");
    }
    struct fsdp_wrapper *wrapper = mem_alloc_zeroed(1, sizeof *wrapper);
    if (!wrapper) {
        return SHOAL_ERR_NO_MEMORY;
    }
    wrapper->mesh = mesh;
    wrapper->forwards = (struct forward_list){.owner = wrapper, .keep = keep_root, .let_go = let_go_of_root};
    wrapper->owned.destroy = fsdp_wrapper_world_ends;
    owned_list_add(world_owned(mesh.world), &wrapper->owned);
    fsdp_mesh_hold(&mesh);
    shoal_status status = fill_wrapper(wrapper, modules, n_modules, options);
    for (size_t i = 0; i < wrapper->n_modules && status == SHOAL_OK; i++) {
        status = take_seat(wrapper, i);
        wrapper->n_owners += status == SHOAL_OK;
    }
    if (status == SHOAL_OK) {
        status = put_sharded(wrapper);
    }
    if (status != SHOAL_OK) {
        fsdp_wrapper_undo(wrapper);
        return status;
    }
    *wrapper_out = wrapper;
    return SHOAL_OK;
}
