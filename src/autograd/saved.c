/* SPDX-License-Identifier: MIT */
#include "autograd/saved.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "device/device.h"
#include "tensor/scope.h"

static uint64_t load_version(const struct storage *storage)
{
    /* Relaxed: versions are compared by the thread that owns the tensor. */
    return atomic_load_explicit(&storage->version, memory_order_relaxed);
}

void saved_note(struct saved_tensor *saved, const shoal_tensor *tensor)
{
    *saved = (struct saved_tensor){.storage_bytes = tensor->storage->bytes,
                                   .layout = tensor->layout,
                                   .device = tensor->storage->device,
                                   .dtype = tensor->dtype};
}

void saved_keep_data(struct saved_tensor *saved, struct storage *storage)
{
    saved->storage = storage_ref(storage);
    saved->version = load_version(storage);
}

void saved_release(struct saved_tensor *saved)
{
    if (saved->storage) {
        storage_unref(saved->storage);
        saved->storage = NULL;
    }
}

static shoal_status restore_data(const struct saved_tensor *saved, shoal_tensor **tensor_out)
{
    uint64_t version = load_version(saved->storage);
    if (version != saved->version) {
        char shape[LAYOUT_TEXT_BYTES];
        const char *name = saved->storage->name;
        return error_set(SHOAL_ERR_STATE,
                         "%s%s%s %s was saved for backward in version %" PRIu64
                         " and changed in place since: it is in version %" PRIu64,
                         name ? name : "", name ? ": " : "", shoal_dtype_name(saved->dtype),
                         layout_format(shape, saved->layout.n_dims, saved->layout.shape), saved->version,
                         version);
    }
    return tensor_create(storage_ref(saved->storage), saved->dtype, &saved->layout, tensor_out);
}

/* A tensor without data. It also has the strides and offset of the saved one, which gradients of views need. */
static shoal_status make_stand_in(const struct saved_tensor *saved, shoal_tensor **tensor_out)
{
    const struct layout *layout = &saved->layout;
    if (layout->offset == 0 && layout_is_contiguous(layout->n_dims, layout->shape, layout->strides)) {
        /* The usual case, and the cheaper one. */
        return tensor_create_empty(SHOAL_META, saved->dtype, layout->n_dims, layout->shape, tensor_out);
    }
    struct storage *storage;
    TRY(storage_create(SHOAL_META, saved->storage_bytes, &storage));
    return tensor_create(storage, saved->dtype, &saved->layout, tensor_out);
}

shoal_status saved_restore(const struct saved_tensor *saved, shoal_tensor **tensor_out)
{
    shoal_tensor *tensor;
    if (saved->storage) {
        TRY(restore_data(saved, &tensor));
        tensor->is_view = true;
    } else {
        TRY(make_stand_in(saved, &tensor));
        tensor->storage->stands_for = saved->device;
    }
    tensor->is_detached = true;
    if (!scope_adopt(tensor)) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *tensor_out = tensor;
    return SHOAL_OK;
}

shoal_status saved_check_like(const struct saved_tensor *saved, const shoal_tensor *tensor)
{
    const struct layout *expected = &saved->layout;
    const struct layout *actual = &tensor->layout;
    bool is_same_shape =
        actual->n_dims == expected->n_dims &&
        memcmp(actual->shape, expected->shape, (size_t)actual->n_dims * sizeof(actual->shape[0])) == 0;
    if (is_same_shape && tensor->dtype == saved->dtype && tensor->storage->device == saved->device) {
        return SHOAL_OK;
    }
    char text[TENSOR_TEXT_BYTES];
    char shape[LAYOUT_TEXT_BYTES];
    return error_set(SHOAL_ERR_INVALID, "%s on %s does not fit its tensor, %s %s on %s",
                     tensor_format(text, tensor), device_name(tensor->storage->device),
                     shoal_dtype_name(saved->dtype), layout_format(shape, expected->n_dims, expected->shape),
                     device_name(saved->device));
}
