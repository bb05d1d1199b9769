/* SPDX-License-Identifier: MIT */
/* The calls of shoal/fully_shard.h about parameters as a whole: where their shards lie, from whole values and to them. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "parallel/fsdp/whole.h"
#include "parallel/fsdp/wrapper.h"
#include "shoal/fully_shard.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

struct path_search {
    const shoal_tensor *wanted;
    struct fsdp_unit *unit;
    struct fsdp_param *param;
    struct fsdp_tensors *tensors;
};

/* The tensor in the place that the path names is one of a unit's. */
static shoal_status search_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct path_search *search = context;
    struct fsdp_wrapper *wrapper = fsdp_wrapper_of(entry->module);
    for (size_t i = 0; wrapper && wrapper->unit && i < wrapper->n_tensors; i++) {
        if (wrapper->tensors[i].sharded == search->wanted || wrapper->tensors[i].full == search->wanted) {
            search->unit = wrapper->unit;
            search->param = &wrapper->unit->params[i];
            search->tensors = &wrapper->tensors[i];
            *next = SHOAL_WALK_STOP;
        }
    }
    return SHOAL_OK;
}

static shoal_status find_shard(const char *call, shoal_module *root, const char *path,
                               struct path_search *search)
{
    error_clear();
    if (!root || !path) {
        return error_set(SHOAL_ERR_INVALID, "%s: %s is NULL", call, root ? "path" : "module");
    }
    const shoal_tensor *tensor = shoal_module_parameter(root, path);
    *search = (struct path_search){.wanted = tensor};
    if (tensor) {
        TRY(shoal_module_walk(root, SHOAL_WALK_MODULES, search_entry, search));
    }
    return search->param ? SHOAL_OK
                         : error_set(SHOAL_ERR_INVALID,
                                     "%s: there is no parameter \"%.128s\" that is sharded", call, path);
}

/* For more than to read it: the world must be open. */
static shoal_status find_param(const char *call, shoal_module *root, const char *path,
                               struct path_search *search)
{
    TRY(find_shard(call, root, path, search));
    shoal_status status = fsdp_wrapper_check(search->unit->owner);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call);
}

shoal_status fsdp_find_path(const char *call, shoal_module *root, const char *path,
                            struct fsdp_unit **unit_out, size_t *index_out)
{
    struct path_search search;
    TRY(find_param(call, root, path, &search));
    *unit_out = search.unit;
    *index_out = (size_t)(search.param - search.unit->params);
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_place(shoal_module *root, const char *path, int *dim_out, int64_t *offset_out,
                                     int64_t *length_out)
{
    struct path_search search;
    TRY(find_shard("fully_shard_place", root, path, &search));
    if (dim_out) {
        *dim_out = search.param->dim;
    }
    if (offset_out) {
        *offset_out = search.param->begin;
    }
    if (length_out) {
        *length_out = search.param->length;
    }
    return SHOAL_OK;
}

/* What was gathered is not what is loaded. */
static shoal_status begin_load(const struct path_search *search)
{
    TRY(fsdp_unit_give_up(search->unit));
    return tensor_wait_writable(search->tensors->sharded, /*overwrites=*/true);
}

shoal_status shoal_fully_shard_load(shoal_module *root, const char *path, const void *full)
{
    struct path_search search;
    TRY(find_param("fully_shard_load", root, path, &search));
    if (!full && search.param->count > 0) {
        return error_set(SHOAL_ERR_INVALID, "fully_shard_load: full is NULL");
    }
    TRY(begin_load(&search));
    fsdp_param_load(search.param, full);
    tensor_forget_fences(search.tensors->sharded);
    storage_bump_version(search.tensors->sharded->storage);
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_gather(shoal_module *root, const char *path, void *full)
{
    struct path_search search;
    TRY(find_param("fully_shard_gather", root, path, &search));
    if (!full && search.param->count > 0) {
        return error_set(SHOAL_ERR_INVALID, "fully_shard_gather: full is NULL");
    }
    TRY(tensor_wait_readable(search.tensors->sharded));
    struct fsdp_wrapper *wrapper = search.unit->owner;
    return fsdp_param_gather(search.param, &wrapper->mesh, full);
}

shoal_status shoal_fully_shard_load_slice(shoal_module *root, const char *path, int64_t offset,
                                          int64_t length, const void *slice)
{
    struct path_search search;
    TRY(find_param("fully_shard_load_slice", root, path, &search));
    TRY(fsdp_check_slice(search.param, "fully_shard_load_slice", offset, length, slice));
    TRY(begin_load(&search));
    if (fsdp_param_load_slice(search.param, offset, length, slice)) {
        storage_bump_version(search.tensors->sharded->storage);
    }
    return SHOAL_OK;
}

static const struct fsdp_mesh *mesh_of(const struct path_search *search)
{
    const struct fsdp_wrapper *wrapper = search->unit->owner;
    return &wrapper->mesh;
}

shoal_status shoal_fully_shard_gather_to(shoal_module *root, const char *path, void *full, int rank)
{
    struct path_search search;
    TRY(find_param("fully_shard_gather_to", root, path, &search));
    const struct fsdp_mesh *mesh = mesh_of(&search);
    TRY(fsdp_check_rank(mesh, "fully_shard_gather_to", "rank", rank));
    if (!full && search.param->count > 0 && fsdp_mesh_is_rank(mesh, rank)) {
        return error_set(SHOAL_ERR_INVALID, "fully_shard_gather_to: full is NULL on rank %d", rank);
    }
    TRY(tensor_wait_readable(search.tensors->sharded));
    return fsdp_param_gather_to(search.param, mesh, full, rank);
}

shoal_status shoal_fully_shard_broadcast(shoal_module *root, const char *path, const void *full, int source)
{
    struct path_search search;
    TRY(find_param("fully_shard_broadcast", root, path, &search));
    const struct fsdp_mesh *mesh = mesh_of(&search);
    TRY(fsdp_check_rank(mesh, "fully_shard_broadcast", "source", source));
    if (!full && search.param->count > 0 && fsdp_mesh_is_rank(mesh, source)) {
        return error_set(SHOAL_ERR_INVALID, "fully_shard_broadcast: full is NULL on the source");
    }
    TRY(begin_load(&search));
    TRY(fsdp_param_broadcast_alone(search.param, mesh, full, source));
    storage_bump_version(search.tensors->sharded->storage);
    return SHOAL_OK;
}

/* Whole modules ------------------------------------------------------------------------------------------ */

/* A broadcast of everything, and the walks that look before and then do it. */
struct sender {
    const char *call;
    shoal_module *root;
    const struct fsdp_mesh *mesh;
    const shoal_module *whole; /* on the source */
    int source;
    bool is_source;
    size_t blocks_bytes; /* of the largest parameter */
    char *blocks;
};

static shoal_tensor *find_whole(const struct sender *sender, const shoal_module_entry *entry)
{
    return entry->kind == SHOAL_WALK_PARAMETERS ? shoal_module_parameter(sender->whole, entry->path)
                                                : shoal_module_buffer(sender->whole, entry->path);
}

/* The sharded parameter in the place, or NULL in search->param. */
static shoal_status find_entry(const struct sender *sender, const shoal_module_entry *entry,
                               struct path_search *search)
{
    *search = (struct path_search){.wanted = entry->tensor};
    return entry->kind == SHOAL_WALK_PARAMETERS
               ? shoal_module_walk(sender->root, SHOAL_WALK_MODULES, search_entry, search)
               : SHOAL_OK;
}

/* Of texts of shapes. */
enum {
    SHAPE_BYTES = 8 + SHOAL_MAX_DIMS * 21
};

static void write_shape(int n_dims, const int64_t *shape, char *text)
{
    size_t at = (size_t)snprintf(text, SHAPE_BYTES, "[");
    for (int i = 0; i < n_dims; i++) {
        at += (size_t)snprintf(text + at, SHAPE_BYTES - at, "%s%lld", i > 0 ? "," : "", (long long)shape[i]);
    }
    (void)snprintf(text + at, SHAPE_BYTES - at, "]");
}

/* What the source has under the same path fits. */
static shoal_status check_whole(const struct sender *sender, const shoal_module_entry *entry,
                                const struct path_search *search)
{
    const struct layout *layout = &entry->tensor->layout;
    int n_dims = search->param ? search->param->n_dims : layout->n_dims;
    const int64_t *shape = search->param ? search->param->shape : layout->shape;
    /* In the place may be what was gathered, of another dtype. */
    shoal_dtype dtype = search->param ? search->param->dtype : entry->tensor->dtype;
    const shoal_tensor *whole = find_whole(sender, entry);
    if (!whole) {
        return error_set(SHOAL_ERR_INVALID, "%s: the whole module has no %s", sender->call, entry->path);
    }
    if (whole->dtype != dtype ||
        !layout_is_same_shape(whole->layout.n_dims, whole->layout.shape, n_dims, shape)) {
        char here[SHAPE_BYTES];
        char there[SHAPE_BYTES];
        write_shape(n_dims, shape, here);
        write_shape(whole->layout.n_dims, whole->layout.shape, there);
        return error_set(SHOAL_ERR_INVALID, "%s: %s is %s %s, but %s %s in the whole module", sender->call,
                         entry->path, shoal_dtype_name(dtype), here, shoal_dtype_name(whole->dtype), there);
    }
    if (!whole->is_contiguous || !device_rows[whole->storage->device].has_data) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "%s: %s of the whole module is not contiguous, or has no data", sender->call,
                         entry->path);
    }
    return tensor_wait_readable(whole);
}

static shoal_status look_at_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct sender *sender = context;
    struct path_search search;
    (void)next;
    TRY(find_entry(sender, entry, &search));
    if (search.param) {
        size_t bytes = fsdp_param_blocks_bytes(search.param, mesh_of(&search));
        sender->blocks_bytes = bytes > sender->blocks_bytes ? bytes : sender->blocks_bytes;
        TRY(begin_load(&search));
    } else if (!entry->tensor->is_contiguous || !device_rows[entry->tensor->storage->device].has_data) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s: %s is not contiguous, or has no data", sender->call,
                         entry->path);
    } else {
        TRY(tensor_wait_writable(entry->tensor, /*overwrites=*/true));
    }
    return sender->is_source ? check_whole(sender, entry, &search) : SHOAL_OK;
}

/* Parameters that are not sharded, and buffers. */
static shoal_status send_bytes(const struct sender *sender, shoal_tensor *tensor, const void *values)
{
    void *data;
    TRY(tensor_address(tensor, &data));
    if (values && tensor_bytes(tensor) > 0) {
        memmove(data, values, tensor_bytes(tensor));
    }
    return fsdp_mesh_broadcast(sender->mesh, data, tensor_bytes(tensor), sender->source);
}

static shoal_status send_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct sender *sender = context;
    struct path_search search;
    void *values = NULL;
    (void)next;
    TRY(find_entry(sender, entry, &search));
    if (sender->is_source) {
        TRY(tensor_address(find_whole(sender, entry), &values));
    }
    TRY(search.param
            ? fsdp_param_broadcast(search.param, mesh_of(&search), values, sender->blocks, sender->source)
            : send_bytes(sender, entry->tensor, values));
    tensor_forget_fences(entry->tensor);
    storage_bump_version(entry->tensor->storage);
    return SHOAL_OK;
}

/* All that can fail on one rank alone comes before anything is sent. */
static shoal_status prepare_sender(struct sender *sender)
{
    if (sender->is_source && !sender->whole) {
        return error_set(SHOAL_ERR_INVALID, "%s: whole is NULL on the source", sender->call);
    }
    TRY(shoal_module_walk(sender->root, SHOAL_WALK_PARAMETERS | SHOAL_WALK_BUFFERS, look_at_entry, sender));
    if (sender->is_source) {
        sender->blocks = mem_alloc(sender->blocks_bytes + 1);
        return sender->blocks ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    }
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_broadcast_all(shoal_module *root, const shoal_module *whole, int source)
{
    struct fsdp_wrapper *wrapper;
    struct sender sender = {
        .call = "fully_shard_broadcast_all", .root = root, .whole = whole, .source = source};
    TRY(fsdp_find_wrapper(sender.call, root, &wrapper));
    TRY(fsdp_check_rank(&wrapper->mesh, sender.call, "source", source));
    sender.mesh = &wrapper->mesh;
    sender.is_source = fsdp_mesh_is_rank(sender.mesh, source);
    shoal_status status = fsdp_mesh_confirm(sender.mesh, prepare_sender(&sender));
    if (status == SHOAL_OK) {
        status = shoal_module_walk(root, SHOAL_WALK_PARAMETERS | SHOAL_WALK_BUFFERS, send_entry, &sender);
    }
    mem_free(sender.blocks);
    return status;
}
