/* SPDX-License-Identifier: MIT */
/* shoal_fully_shard_broadcast_all: sends the values of a whole module from one rank to all. */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "device/device.h"
#include "device/stream.h"
#include "op/operand.h"
#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/agree/compare.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/step/transfer.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "parallel/fsdp/module/handles.h"
#include "parallel/fsdp/module/wrapper.h"
#include "shoal/fully_shard.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

/* The state of a broadcast. One walk over the module checks all entries, a second one sends them. */
struct sender {
    const char *call;
    shoal_module *module;
    const struct fsdp_mesh *mesh;
    const shoal_module *whole; /* used on the root only */
    int root;
    bool is_root;
    size_t blocks_bytes; /* fsdp_array_blocks_bytes of the largest parameter */
    char *blocks;
    size_t staged_bytes; /* of the largest parameter that is on another mesh than the module */
    char *staged;        /* such a parameter as a whole, on all ranks */
    size_t read_bytes;   /* of the largest tensor of `whole` that has to be copied to be sent */
    char *read;
};

static shoal_tensor *find_whole(const struct sender *sender, const shoal_module_entry *entry)
{
    return entry->kind == SHOAL_WALK_PARAMETERS ? shoal_module_find_parameter(sender->whole, entry->path)
                                                : shoal_module_find_buffer(sender->whole, entry->path);
}

/* Finds the sharded parameter in a place; NULL if the entry is a buffer, or a parameter that is not sharded. */
static shoal_status find_entry(const struct sender *sender, const shoal_module_entry *entry,
                               shoal_fsdp_param **found_out)
{
    *found_out = NULL;
    return entry->kind == SHOAL_WALK_PARAMETERS ? fsdp_find_tensor(sender->module, entry->tensor, found_out)
                                                : SHOAL_OK;
}

static struct fsdp_param *param_of(const shoal_fsdp_param *found)
{
    return found ? &found->unit->params[found->index] : NULL;
}

/* Whether the elements of a tensor lie in memory of the host as they are sent. */
static bool is_sent_in_place(const shoal_tensor *whole)
{
    return whole->is_contiguous && device_is_host(whole->storage->device);
}

/* Checks that the root's whole module has a tensor of the same dtype and shape under the entry's path. */
static shoal_status check_whole(struct sender *sender, const shoal_module_entry *entry,
                                const struct fsdp_param *param)
{
    const struct layout *layout = &entry->tensor->layout;
    int n_dims = param ? param->n_dims : layout->n_dims;
    const int64_t *shape = param ? param->shape : layout->shape;
    /* The tensor in the place may be the gathered one, which can have another dtype. */
    shoal_dtype dtype = param ? param->dtype : entry->tensor->dtype;
    const shoal_tensor *whole = find_whole(sender, entry);
    if (!whole) {
        return error_set(SHOAL_ERR_INVALID, "%s: the whole module has no %s", sender->call, entry->path);
    }
    if (whole->dtype != dtype ||
        !layout_is_same_shape(whole->layout.n_dims, whole->layout.shape, n_dims, shape)) {
        char here[FSDP_SHAPE_BYTES];
        char there[FSDP_SHAPE_BYTES];
        fsdp_write_shape(n_dims, shape, here);
        fsdp_write_shape(whole->layout.n_dims, whole->layout.shape, there);
        return error_set(SHOAL_ERR_INVALID, "%s: %s is %s %s, but %s %s in the whole module", sender->call,
                         entry->path, shoal_dtype_name(dtype), here, shoal_dtype_name(whole->dtype), there);
    }
    if (!device_has_data(whole->storage->device)) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s: %s of the whole module has no data", sender->call,
                         entry->path);
    }
    if (!is_sent_in_place(whole) && tensor_bytes(whole) > sender->read_bytes) {
        sender->read_bytes = tensor_bytes(whole);
    }
    return tensor_wait_readable(whole);
}

static size_t whole_bytes(const struct fsdp_param *param)
{
    return param->count * dtype_bytes(param->dtype);
}

static bool is_elsewhere(const struct sender *sender, const shoal_fsdp_param *found)
{
    return !fsdp_mesh_is_same(found->unit->mesh, sender->mesh);
}

static void need_staged(struct sender *sender, size_t bytes)
{
    sender->staged_bytes = bytes + 1 > sender->staged_bytes ? bytes + 1 : sender->staged_bytes;
}

static void note_bytes(struct sender *sender, const shoal_fsdp_param *found)
{
    const struct fsdp_array array = fsdp_param_values(param_of(found));
    size_t bytes = fsdp_array_blocks_bytes(&array, found->unit->mesh);
    sender->blocks_bytes = bytes > sender->blocks_bytes ? bytes : sender->blocks_bytes;
    if (is_elsewhere(sender, found)) {
        need_staged(sender, whole_bytes(param_of(found)));
    } else if (!device_is_host(array.device)) {
        need_staged(sender, array.param->padded_count * dtype_bytes(array.dtype));
    }
}

static shoal_status look_at_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct sender *sender = context;
    shoal_fsdp_param *found;
    (void)next;
    TRY(find_entry(sender, entry, &found));
    if (found) {
        note_bytes(sender, found);
        TRY(fsdp_unit_give_up(found->unit));
        TRY(found->unit->watch->writing(found->unit, found->index));
    } else if (!entry->tensor->is_contiguous || !device_has_data(entry->tensor->storage->device)) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s: %s is not contiguous, or has no data", sender->call,
                         entry->path);
    } else {
        TRY(tensor_wait_writable(entry->tensor, /*overwrites=*/true));
        need_staged(sender, device_is_host(entry->tensor->storage->device) ? 0 : tensor_bytes(entry->tensor));
    }
    return sender->is_root ? check_whole(sender, entry, param_of(found)) : SHOAL_OK;
}

/* Broadcasts a buffer, or a parameter that is not sharded. */
static shoal_status send_bytes(const struct sender *sender, shoal_tensor *tensor, const void *values)
{
    shoal_device device = tensor->storage->device;
    struct address target;
    TRY(tensor_address(tensor, &target));
    void *data = device_is_host(device) ? address_pointer(target) : sender->staged;
    if (values && tensor_bytes(tensor) > 0) {
        memmove(data, values, tensor_bytes(tensor));
    }
    TRY(fsdp_mesh_broadcast(sender->mesh, data, tensor_bytes(tensor), sender->root));
    return stream_write(device, target, data, tensor_bytes(tensor));
}

/* Sends a parameter of a unit on another mesh, of which the root need not be a rank: as a whole, over the ranks of the
   module, each of which takes its shard of it. */
static shoal_status send_whole(const struct sender *sender, const struct fsdp_param *param,
                               const void *values)
{
    if (values && whole_bytes(param) > 0) {
        memcpy(sender->staged, values, whole_bytes(param));
    }
    TRY(fsdp_mesh_broadcast(sender->mesh, sender->staged, whole_bytes(param), sender->root));
    const struct fsdp_array shard = fsdp_param_values(param);
    return fsdp_array_load(&shard, sender->staged);
}

/* Gives the values of an entry, which `read` holds until the next one. */
static shoal_status read_whole(const struct sender *sender, const shoal_module_entry *entry,
                               void **values_out)
{
    const shoal_tensor *whole = find_whole(sender, entry);
    if (is_sent_in_place(whole)) {
        return tensor_host_address(whole, values_out);
    }
    *values_out = sender->read;
    return op_read_tensor(whole, sender->read, tensor_bytes(whole), fsdp_mesh_timeout(sender->mesh));
}

static shoal_status send_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct sender *sender = context;
    shoal_fsdp_param *found;
    void *values = NULL;
    (void)next;
    TRY(find_entry(sender, entry, &found));
    if (sender->is_root) {
        TRY(read_whole(sender, entry, &values));
    }
    if (found && is_elsewhere(sender, found)) {
        TRY(send_whole(sender, param_of(found), values));
    } else if (found) {
        TRY(fsdp_param_broadcast(param_of(found), found->unit->mesh, values, sender->blocks, sender->staged,
                                 sender->root));
    } else {
        TRY(send_bytes(sender, entry->tensor, values));
    }
    tensor_forget_fences(entry->tensor);
    storage_bump_version(entry->tensor->storage);
    return SHOAL_OK;
}

/* Does everything that can fail on one rank alone, before anything is sent. */
static shoal_status prepare_sender(struct sender *sender)
{
    if (sender->is_root && !sender->whole) {
        return error_set(SHOAL_ERR_INVALID, "%s: whole is NULL on the root", sender->call);
    }
    TRY(shoal_module_walk(sender->module, SHOAL_WALK_PARAMETERS | SHOAL_WALK_BUFFERS, look_at_entry, sender));
    if (sender->staged_bytes > 0) {
        sender->staged = mem_alloc(sender->staged_bytes);
        TRY(sender->staged ? SHOAL_OK : SHOAL_ERR_NO_MEMORY);
    }
    if (sender->is_root) {
        sender->blocks = mem_alloc(sender->blocks_bytes + 1);
        sender->read = mem_alloc(sender->read_bytes + 1);
        return sender->blocks && sender->read ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    }
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_broadcast_all(shoal_module *module, const shoal_module *whole, int root)
{
    struct fsdp_wrapper *wrapper;
    struct sender sender = {
        .call = "fully_shard_broadcast_all", .module = module, .whole = whole, .root = root};
    TRY(fsdp_find_wrapper(sender.call, module, &wrapper));
    shoal_status status = fsdp_check_rank(&wrapper->mesh, "root", root);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s", sender.call);
    }
    sender.mesh = &wrapper->mesh;
    sender.is_root = fsdp_mesh_is_rank(sender.mesh, root);
    const int64_t details[] = {DETAIL_NUMBER, root};
    struct purpose purpose = {.id = PURPOSE_MODULE_BROADCAST,
                              .root = wrapper->number,
                              .details = details,
                              .n_details = 2,
                              .words = fsdp_wrapper_name(wrapper)};
    TRY(fsdp_compare_of(wrapper->unit, &purpose));
    status = fsdp_mesh_confirm(sender.mesh, prepare_sender(&sender));
    if (status == SHOAL_OK) {
        status = shoal_module_walk(module, SHOAL_WALK_PARAMETERS | SHOAL_WALK_BUFFERS, send_entry, &sender);
        /* A rank whose device fails leaves the others in a broadcast. */
        status = status == SHOAL_OK ? SHOAL_OK : fsdp_tell_mesh(sender.mesh, status);
    }
    mem_free(sender.read);
    mem_free(sender.staged);
    mem_free(sender.blocks);
    return status;
}
