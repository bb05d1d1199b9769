/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/buffers.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "op/operand.h"
#include "parallel/ddp/order.h"
#include "parallel/ddp/purpose.h"
#include "device/device.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

/* A walk over the buffers, which counts their bytes, reads them, or writes them. */
struct bundle {
    char *data; /* the values of all buffers, one after the other; NULL if the walk only counts bytes */
    size_t bytes;
    bool is_written;
};

/* Makes a contiguous tensor over a part of the bundle, with the shape and dtype of the buffer. */
static shoal_status view_part(const shoal_tensor *buffer, char *part, shoal_tensor **view_out)
{
    struct storage *storage;
    struct layout layout = {.n_dims = buffer->layout.n_dims};
    memcpy(layout.shape, buffer->layout.shape, sizeof layout.shape);
    layout_fill_strides(layout.n_dims, layout.shape, layout.strides);
    TRY(storage_create_borrowed(SHOAL_CPU, tensor_bytes(buffer), address_of(part), NULL, NULL, &storage));
    return tensor_create(storage, buffer->dtype, &layout, view_out);
}

/* Copies a buffer that is not contiguous, by the op that copies tensors. */
static shoal_status copy_strided(shoal_tensor *buffer, char *part, bool is_written)
{
    shoal_tensor *view;
    TRY(view_part(buffer, part, &view));
    shoal_status status = is_written ? op_copy_into(buffer, view) : op_copy_into(view, buffer);
    shoal_tensor_unref(view);
    return status;
}

static shoal_status write_buffer(shoal_tensor *buffer, char *part)
{
    void *data;
    if (!buffer->is_contiguous) {
        TRY(copy_strided(buffer, part, true));
        storage_bump_version(buffer->storage);
        return SHOAL_OK;
    }
    TRY(tensor_host_address(buffer, &data));
    if (memcmp(data, part, tensor_bytes(buffer)) != 0) {
        memcpy(data, part, tensor_bytes(buffer));
        storage_bump_version(buffer->storage);
    }
    return SHOAL_OK;
}

static shoal_status read_buffer(shoal_tensor *buffer, char *part)
{
    void *data;
    if (!buffer->is_contiguous) {
        return copy_strided(buffer, part, false);
    }
    TRY(tensor_host_address(buffer, &data));
    memcpy(part, data, tensor_bytes(buffer));
    return SHOAL_OK;
}

static shoal_status visit(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct bundle *bundle = context;
    shoal_tensor *buffer = entry->tensor;
    size_t bytes = tensor_bytes(buffer);
    char *part = bundle->data + bundle->bytes;
    (void)next;
    if (!device_has_data(buffer->storage->device)) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "buffer %s is on device %s, which has no data", entry->path,
                         device_name(buffer->storage->device));
    }
    bundle->bytes += bytes;
    if (bytes == 0 || !bundle->data) {
        return SHOAL_OK;
    }
    TRY(bundle->is_written ? tensor_wait_writable(buffer, /*overwrites=*/false)
                           : tensor_wait_readable(buffer));
    return bundle->is_written ? write_buffer(buffer, part) : read_buffer(buffer, part);
}

/* All ranks read their buffers, because a buffer that cannot be read could not be written either. */
static shoal_status pack(struct ddp *ddp, struct bundle *bundle)
{
    TRY(shoal_module_walk(ddp->module, SHOAL_WALK_BUFFERS, visit, bundle));
    if (bundle->bytes > ddp->buffers.scratch_bytes) {
        mem_free(ddp->buffers.scratch);
        ddp->buffers.scratch_bytes = 0;
        ddp->buffers.scratch = mem_alloc(bundle->bytes);
        if (!ddp->buffers.scratch) {
            return SHOAL_ERR_NO_MEMORY;
        }
        ddp->buffers.scratch_bytes = bundle->bytes;
    }
    size_t bytes = bundle->bytes;
    *bundle = (struct bundle){.data = ddp->buffers.scratch};
    return bytes > 0 ? shoal_module_walk(ddp->module, SHOAL_WALK_BUFFERS, visit, bundle) : SHOAL_OK;
}

/* Aborts the lane, because the other ranks would wait for this one. */
static shoal_status give_up(struct ddp *ddp, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    char reason[64];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    (void)snprintf(reason, sizeof reason, "aborted by rank %d: its buffers cannot be sent",
                   shoal_world_rank(shoal_group_world(ddp->group)));
    ddp_order_poison(ddp->order.shared, ddp->order.generation, SHOAL_ERR_CANCELLED, reason);
    group_poison(ddp->buffers.lane, SHOAL_ERR_CANCELLED, reason);
    return error_set(status, "ddp: %s", text);
}

shoal_status ddp_send_buffers(struct ddp *ddp)
{
    struct bundle bundle = {.bytes = 0};
    shoal_status status = pack(ddp, &bundle);
    if (status != SHOAL_OK) {
        return give_up(ddp, status);
    }
    if (bundle.bytes == 0) {
        return SHOAL_OK;
    }
    struct purpose purpose = ddp_purpose(ddp, PURPOSE_DDP_BUFFERS);
    struct collective call = {
        .kind = COLLECTIVE_BROADCAST,
        .dtype = SHOAL_U8,
        .single = {.send = ddp->buffers.scratch, .recv = ddp->buffers.scratch, .count = bundle.bytes},
        .purpose = &purpose};
    TRY(ddp_compare(ddp, &purpose));
    TRY(collectives_run(ddp->buffers.lane, &call));
    if (shoal_group_rank(ddp->buffers.lane) == 0) {
        return SHOAL_OK;
    }
    bundle = (struct bundle){.data = ddp->buffers.scratch, .is_written = true};
    return shoal_module_walk(ddp->module, SHOAL_WALK_BUFFERS, visit, &bundle);
}
