/* SPDX-License-Identifier: MIT */
/* Wrappers: which parameters a unit takes from the module tree, and who belongs to which root. */
#include "parallel/fsdp/wrapper.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/world.h"
#include "kernel/kernel.h"
#include "parallel/fsdp/watch.h"
#include "parallel/fsdp/whole.h"
#include "shoal/autograd.h"
#include "shoal/ddp.h"
#include "tensor/device.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

static const char wrapper_key; /* its address finds the wrapper of a module */

struct fsdp_wrapper *fsdp_wrapper_of(const shoal_module *module)
{
    return shoal_module_extra(module, &wrapper_key);
}

const char *fsdp_wrapper_name(const struct fsdp_wrapper *wrapper)
{
    return wrapper->unit ? wrapper->unit->name : "a unit whose root is gone";
}

shoal_status fsdp_wrapper_check(const struct fsdp_wrapper *wrapper)
{
    return wrapper->is_closed ? error_set(SHOAL_ERR_STATE, "the world was closed") : SHOAL_OK;
}

/* Ending ------------------------------------------------------------------------------------------------- */

static void free_tensors(struct fsdp_tensors *tensors)
{
    for (size_t i = 0; i < tensors->n_places; i++) {
        mem_free(tensors->places[i].name);
    }
    mem_free(tensors->places);
    shoal_tensor_unref(tensors->original);
    shoal_tensor_unref(tensors->sharded);
    shoal_tensor_unref(tensors->full);
    shoal_tensor_unref(tensors->shard_grad);
}

/* Its modules are as before the forward, if they are all there: whoever still has them sees shards. */
static void show_sharded(const struct fsdp_wrapper *wrapper)
{
    struct fsdp_unit *unit = wrapper->unit;
    bool are_all_there = wrapper->n_owners == wrapper->n_modules || wrapper->n_modules == 1;
    if (unit->state == FSDP_UNSHARDED && unit->watch && are_all_there) {
        unit->watch->resharding(unit);
    }
}

/* The unit stays with the context; nothing of it is used again. */
static void leave_root(struct fsdp_wrapper *wrapper)
{
    struct fsdp_root *root = wrapper->root;
    show_sharded(wrapper);
    wrapper->unit->watch = NULL;
    for (size_t i = 0; i < wrapper->unit->n_params; i++) {
        wrapper->unit->params[i].has_grad = false;
    }
    for (size_t i = 0; i < root->n_wrappers; i++) {
        if (root->wrappers[i] == wrapper) {
            root->wrappers[i] = root->wrappers[--root->n_wrappers];
        }
    }
}

static void free_root(struct fsdp_root *root)
{
    for (size_t i = 0; i < root->n_wrappers; i++) {
        show_sharded(root->wrappers[i]);
        root->wrappers[i]->root = NULL;
        root->wrappers[i]->unit->watch = NULL;
        root->wrappers[i]->unit = NULL;
    }
    fsdp_context_free(root->context);
    mem_free(root->wrappers);
    mem_free(root);
}

static void world_ends(struct owned *owned)
{
    struct fsdp_wrapper *wrapper = (struct fsdp_wrapper *)owned;
    wrapper->is_closed = true;
}

static void free_wrapper(struct fsdp_wrapper *wrapper)
{
    if (!wrapper->is_closed) {
        owned_list_remove(&wrapper->mesh.world->owned, &wrapper->owned);
    }
    for (size_t i = 0; wrapper->hooks && i < wrapper->n_modules; i++) {
        shoal_module_hook_remove(wrapper->hooks[i]);
    }
    mem_free(wrapper->hooks);
    if (wrapper->is_root && wrapper->root) {
        free_root(wrapper->root);
    } else if (wrapper->root) {
        leave_root(wrapper);
    } else {
        fsdp_unit_free(wrapper->unit);
    }
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        free_tensors(&wrapper->tensors[i]);
    }
    mem_free(wrapper->tensors);
    mem_free(wrapper->modules);
    mem_free(wrapper->has_run);
    mem_free(wrapper);
}

void fsdp_wrapper_release(struct fsdp_wrapper *wrapper)
{
    if (--wrapper->n_owners == 0) {
        free_wrapper(wrapper);
    }
}

static void release_extra(void *value)
{
    fsdp_wrapper_release(value);
}

/* Collecting --------------------------------------------------------------------------------------------- */

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

static struct fsdp_tensors *find_tensors(const struct fsdp_wrapper *wrapper, const shoal_tensor *original)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        if (wrapper->tensors[i].original == original) {
            return &wrapper->tensors[i];
        }
    }
    return NULL;
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
    tensors->places[tensors->n_places++] = (struct fsdp_place){.module = entry->module, .name = name};
    return SHOAL_OK;
}

static void free_shard(void *context, void *data)
{
    (void)context;
    mem_free(data);
}

void fsdp_keep_gathered(void *context, void *data)
{
    (void)context;
    (void)data;
}

/* Shards, or what was gathered of them. Nobody else's memory is freed so. */
static bool is_of_unit(const shoal_tensor *tensor)
{
    const struct memory *memory = tensor->storage->memory;
    return memory && (memory->deleter == free_shard || memory->deleter == fsdp_keep_gathered);
}

static shoal_status check_parameter(const shoal_module_entry *entry)
{
    const shoal_tensor *tensor = entry->tensor;
    if (!tensor->is_contiguous) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "parameter %s is not contiguous", entry->path);
    }
    if (is_of_unit(tensor)) {
        return error_set(SHOAL_ERR_STATE,
                         "parameter %s belongs to a unit already: inner modules are sharded before what is "
                         "around them",
                         entry->path);
    }
    return SHOAL_OK;
}

/* A tensor over the shard, which it owns from now on: when making it fails, the shard is gone. */
static shoal_status wrap_shard(struct fsdp_param *param, const struct layout *layout,
                               shoal_tensor **tensor_out)
{
    struct storage *storage;
    TRY(storage_create_borrowed(param->shard_count * dtype_bytes(param->dtype), param->shard, free_shard,
                                NULL, &storage));
    param->is_lent = true;
    return tensor_create(storage, param->dtype, layout, tensor_out);
}

static void shard_layout(const struct fsdp_param *param, struct layout *layout_out)
{
    *layout_out = (struct layout){.n_dims = param->n_dims};
    memcpy(layout_out->shape, param->shape, sizeof layout_out->shape);
    layout_out->shape[param->dim] = param->length;
    layout_fill_strides(layout_out->n_dims, layout_out->shape, layout_out->strides);
}

/* The shard as a tensor, in the name and with the wish for a gradient of the whole. */
static shoal_status make_sharded(struct fsdp_tensors *tensors, struct fsdp_param *param, const char *path)
{
    struct layout layout;
    shard_layout(param, &layout);
    TRY(wrap_shard(param, &layout, &tensors->sharded));
    TRY(shoal_tensor_set_name(tensors->sharded, path));
    return shoal_requires_grad(tensors->original) ? shoal_set_requires_grad(tensors->sharded, true)
                                                  : SHOAL_OK;
}

/* Without data, zeros that somebody must overwrite. */
static shoal_status take_values(struct fsdp_tensors *tensors, struct fsdp_param *param)
{
    shoal_tensor *original = tensors->original;
    void *data;
    TRY(fsdp_param_allocate(param));
    if (!device_rows[original->storage->device].has_data) {
        tensors->needs_values = param->shard_count > 0;
        return SHOAL_OK;
    }
    TRY(tensor_wait_readable(original));
    TRY(tensor_address(original, &data));
    fsdp_param_load(param, data);
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
        status = take_values(tensors, &param);
    }
    if (status == SHOAL_OK) {
        status = make_sharded(tensors, &param, entry->path);
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
    struct fsdp_tensors *tensors = find_tensors(wrapper, entry->tensor);
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
        free_tensors(tensors);
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
    if (fsdp_wrapper_of(entry->module) || shoal_ddp_is_wrapped(entry->module)) {
        *next = SHOAL_WALK_SKIP; /* it has taken its own */
    }
    return SHOAL_OK;
}

/* Replacing ---------------------------------------------------------------------------------------------- */

/* The tensor that somebody put in all places of a shard, if it can be one: of the same shape, with memory of its own. */
static shoal_tensor *find_replacement(const struct fsdp_tensors *tensors, const struct fsdp_param *param)
{
    struct layout layout;
    shoal_tensor *now = NULL;
    shard_layout(param, &layout);
    for (size_t i = 0; i < tensors->n_places; i++) {
        shoal_tensor *tensor = shoal_module_parameter(tensors->places[i].module, tensors->places[i].name);
        if (!tensor || tensor == tensors->sharded || (now && tensor != now)) {
            return NULL;
        }
        now = tensor;
    }
    bool fits =
        now && now->is_contiguous && now->layout.n_dims == layout.n_dims &&
        memcmp(now->layout.shape, layout.shape, (size_t)layout.n_dims * sizeof layout.shape[0]) == 0 &&
        now->storage->bytes == param->shard_count * dtype_bytes(now->dtype);
    return fits && device_rows[now->storage->device].has_data ? now : NULL;
}

/* It stays the tensor it is, an optimizer may have it, but over memory that is padded as shards are. */
static shoal_status adopt_replacement(struct fsdp_tensors *tensors, struct fsdp_param *param,
                                      shoal_tensor *now)
{
    struct fsdp_param replaced = *param;
    void *data;
    TRY(tensor_wait_readable(now));
    TRY(tensor_address(now, &data));
    replaced.dtype = replaced.compute = now->dtype;
    replaced.requires_grad = shoal_requires_grad(now);
    TRY(fsdp_param_allocate(&replaced));
    kernel_copy(replaced.shard, data, param->shard_count * dtype_bytes(now->dtype));
    shoal_status status = storage_rebind(now->storage, replaced.shard, free_shard, NULL);
    if (status != SHOAL_OK) {
        mem_free(replaced.shard);
        return error_prefix(status, "parameter %s", param->name);
    }
    *param = replaced;
    shoal_tensor_unref(tensors->sharded);
    tensors->sharded = shoal_tensor_ref(now);
    tensors->version = shoal_tensor_version(now);
    tensors->needs_values = false;
    return SHOAL_OK;
}

/* Before the first forward: of another dtype, say, or made after the module was sharded without values. */
static shoal_status adopt_replacements(struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        shoal_tensor *now = find_replacement(&wrapper->tensors[i], &wrapper->unit->params[i]);
        if (now) {
            TRY(adopt_replacement(&wrapper->tensors[i], &wrapper->unit->params[i], now));
        }
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

static shoal_status fill_wrapper(struct fsdp_wrapper *wrapper, shoal_module *const *modules, size_t n_modules,
                                 const shoal_fully_shard_options *options)
{
    struct collector collector = {.wrapper = wrapper, .options = options};
    wrapper->modules = mem_alloc(n_modules * sizeof modules[0]);
    wrapper->has_run = mem_alloc_zeroed(n_modules, sizeof wrapper->has_run[0]);
    wrapper->hooks = mem_alloc_zeroed(n_modules, sizeof wrapper->hooks[0]);
    if (!wrapper->modules || !wrapper->has_run || !wrapper->hooks) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(fsdp_keep_outermost(modules, n_modules, wrapper->modules, &wrapper->n_modules));
    TRY(fsdp_unit_create_alone(shoal_module_type(wrapper->modules[0]), &wrapper->unit));
    wrapper->unit->watch = &fsdp_module_watch;
    wrapper->unit->owner = wrapper;
    wrapper->unit->param_dtype = options->param_dtype;
    wrapper->unit->wanted_reduce = options->reduce_dtype;
    wrapper->unit->reshard_ranks = options->reshard_ranks;
    wrapper->reshard = options->reshard;
    wrapper->output_dtype = options->output_dtype;
    wrapper->casts_inputs = !options->keeps_inputs;
    wrapper->forward_prefetch = options->forward_prefetch;
    wrapper->max_reduces = options->max_reduces;
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

void fsdp_wrapper_undo(struct fsdp_wrapper *wrapper)
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
        free_wrapper(wrapper);
        return;
    }
    for (size_t n = wrapper->n_owners; n > 0; n--) { /* the last one frees it, with the list */
        (void)!shoal_module_set_extra(wrapper->modules[n - 1], &wrapper_key, NULL, NULL);
    }
}

/* What nobody else has goes at once; the rest is kept to find out, at the first forward, whether it is tied. */
void fsdp_wrapper_settle(struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        shoal_tensor *original = wrapper->tensors[i].original;
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
        return error_set(SHOAL_ERR_INVALID, "ignored is NULL with %zu of them", options->n_ignored);
    }
    TRY(find_mesh(options, &mesh));
    shoal_fsdp_options checked = {.struct_size = sizeof checked,
                                  .param_dtype = options->param_dtype,
                                  .reduce_dtype = options->reduce_dtype,
                                  .reshard = options->reshard,
                                  .reshard_ranks = options->reshard_ranks,
                                  .forward_prefetch = options->forward_prefetch,
                                  .max_reduces = options->max_reduces};
    TRY(fsdp_check_options(&mesh, &checked));
    struct fsdp_wrapper *wrapper = mem_alloc_zeroed(1, sizeof *wrapper);
    if (!wrapper) {
        return SHOAL_ERR_NO_MEMORY;
    }
    wrapper->mesh = mesh;
    wrapper->owned.destroy = world_ends;
    owned_list_add(&mesh.world->owned, &wrapper->owned);
    shoal_status status = fill_wrapper(wrapper, modules, n_modules, options);
    for (size_t i = 0; i < wrapper->n_modules && status == SHOAL_OK; i++) {
        status = shoal_module_set_extra(wrapper->modules[i], &wrapper_key, wrapper, release_extra);
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

void fsdp_wrapper_clear_run(struct fsdp_wrapper *wrapper)
{
    memset(wrapper->has_run, 0, wrapper->n_modules * sizeof wrapper->has_run[0]);
    wrapper->n_run = 0;
}

/* The first forward -------------------------------------------------------------------------------------- */

/* What was begun is undone: units go back to their wrappers. */
static void undo_root(struct fsdp_root *root)
{
    for (size_t i = 0; i < root->n_wrappers; i++) {
        struct fsdp_wrapper *wrapper = root->wrappers[i];
        wrapper->root = NULL;
        wrapper->is_root = false;
        wrapper->is_named = false;
        wrapper->unit->context = NULL;
        wrapper->unit->is_prepared = false;
        for (size_t k = 0; k < wrapper->n_tensors; k++) {
            shoal_tensor_unref(wrapper->tensors[k].full);
            wrapper->tensors[k].full = NULL;
        }
    }
    if (root->context) {
        root->context->n_units = 0;
    }
    fsdp_context_free(root->context);
    mem_free(root->wrappers);
    mem_free(root);
}

/* Or was something in it only gathered by hand? */
static bool was_called(const struct fsdp_root *root)
{
    return root->context->forwards_capacity > 0 || root->context->last_forwards_capacity > 0;
}

/* It turns out to be inside of another one. */
static shoal_status give_up_root(struct fsdp_root *root)
{
    TRY(fsdp_context_check(root->context));
    TRY(fsdp_reset(root->context)); /* what was gathered */
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

static bool is_same_mesh(const struct fsdp_mesh *a, const struct fsdp_mesh *b)
{
    return a->gather == b->gather && a->replicate == b->replicate && a->n_shards == b->n_shards;
}

/* One parameter in two units would be trained twice. */
static shoal_status check_tied(const struct fsdp_root *root, const struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        const shoal_tensor *original = wrapper->tensors[i].original;
        for (size_t k = 0; original && k < root->n_wrappers && root->wrappers[k] != wrapper; k++) {
            if (find_tensors(root->wrappers[k], original)) {
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
        if (tensors->needs_values && shoal_tensor_version(tensors->sharded) == tensors->version) {
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
    status = fsdp_mesh_confirm(&root->context->mesh, status);
    return is_mine || status != SHOAL_ERR_STATE
               ? status
               : error_set(status,
                           "on another rank there are parameters that were on the meta device and have "
                           "no values yet");
}

/* Without memory until something is gathered. */
static shoal_status make_full(struct fsdp_tensors *tensors, const struct fsdp_param *param)
{
    struct storage *storage;
    struct layout layout = {.n_dims = param->n_dims};
    memcpy(layout.shape, param->shape, sizeof layout.shape);
    layout_fill_strides(layout.n_dims, layout.shape, layout.strides);
    TRY(storage_create_borrowed(param->count * dtype_bytes(param->compute), param->shard, NULL, NULL,
                                &storage));
    TRY(tensor_create(storage, param->compute, &layout, &tensors->full));
    TRY(shoal_tensor_set_name(tensors->full, param->name));
    return storage_release(tensors->full->storage);
}

static shoal_status prepare_wrapper(struct fsdp_root *root, struct fsdp_wrapper *wrapper)
{
    TRY(check_tied(root, wrapper));
    if (!is_same_mesh(&wrapper->mesh, &root->wrappers[0]->mesh)) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s is sharded over other ranks than the root",
                         fsdp_wrapper_name(wrapper));
    }
    wrapper->unit->reshard = wrapper->reshard;
    if (wrapper->reshard == SHOAL_RESHARD_DEFAULT && wrapper->is_root) {
        wrapper->unit->reshard = SHOAL_RESHARD_NEVER;
    }
    return fsdp_context_adopt(root->context, wrapper->unit);
}

static shoal_status finish_wrapper(struct fsdp_wrapper *wrapper)
{
    for (size_t i = 0; i < wrapper->n_tensors; i++) {
        TRY(make_full(&wrapper->tensors[i], &wrapper->unit->params[i]));
    }
    return SHOAL_OK;
}

/* Nothing can be tied to them any more. */
static void drop_originals(struct fsdp_root *root)
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
    return fsdp_context_create(&first->mesh, &options, &root->context);
}

static shoal_status fill_root(struct fsdp_root *root, struct fsdp_wrapper *wrapper)
{
    TRY(add_wrapper(root, wrapper));
    TRY(shoal_module_walk(wrapper->modules[0], SHOAL_WALK_MODULES, find_wrapper, root));
    for (size_t i = 0; i < root->n_wrappers; i++) {
        TRY(fsdp_wrapper_check(root->wrappers[i]));
        TRY(adopt_replacements(root->wrappers[i]));
    }
    TRY(fsdp_name_units(root, wrapper->modules[0]));
    TRY(create_context(root));
    for (size_t i = 0; i < root->n_wrappers; i++) {
        TRY(prepare_wrapper(root, root->wrappers[i]));
        root->wrappers[i]->root = root;
    }
    TRY(check_all_values(root));
    TRY(fsdp_prepare(root->context));
    for (size_t i = 0; i < root->n_wrappers; i++) {
        TRY(finish_wrapper(root->wrappers[i]));
    }
    root->has_originals = true;
    return SHOAL_OK;
}

shoal_status fsdp_wrapper_prepare(struct fsdp_wrapper *wrapper)
{
    TRY(fsdp_wrapper_check(wrapper));
    if (wrapper->root) {
        if (wrapper->root->has_originals && was_called(wrapper->root)) {
            drop_originals(wrapper->root);
        }
        return SHOAL_OK;
    }
    if (!wrapper->unit) {
        return error_set(SHOAL_ERR_STATE, "the root that this module was sharded under is gone");
    }
    if (wrapper->n_modules != 1) {
        return error_set(SHOAL_ERR_STATE,
                         "%s is a unit of %zu modules, which can not be the root: shard what is around them",
                         fsdp_wrapper_name(wrapper), wrapper->n_modules);
    }
    struct fsdp_root *root = mem_alloc_zeroed(1, sizeof *root);
    if (!root) {
        return SHOAL_ERR_NO_MEMORY;
    }
    wrapper->is_root = true;
    shoal_status status = fill_root(root, wrapper);
    if (status != SHOAL_OK) {
        undo_root(root);
    }
    return status;
}
