/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/gradient.h"

#include <string.h>

#include "autograd/leaf.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "device/device.h"
#include "kernel/table.h"
#include "op/operand.h"
#include "parallel/ddp/ddp.h"
#include "tensor/tensor.h"

/* The place ---------------------------------------------------------------------------------------------- */

bool ddp_is_ours(const struct ddp_param *param)
{
    const shoal_tensor *kept = shoal_grad(param->tensor);
    return kept && param->gradient && tensor_is_same_view(kept, param->gradient) &&
           kept->dtype == param->gradient->dtype;
}

static void note_written(struct ddp_param *param)
{
    storage_bump_version(param->gradient->storage);
    param->version = shoal_tensor_version(param->gradient);
}

static const struct kernel_table *kernels_of(const struct ddp_param *param)
{
    return kernel_of(param->gradient->storage->device);
}

static void fill_with_nothing(struct ddp_param *param, struct address place)
{
    const int64_t stride = 1;
    struct kernel_operand operand = {.data = place, .strides = &stride};
    kernels_of(param)->fill_nd(param->gradient->dtype, operand, 1, &param->gradient->count,
                               (struct kernel_scalar){.real = -0.0});
    note_written(param);
}

static void copy(const struct ddp_param *param, struct address to, struct address from)
{
    const shoal_dtype dtype = param->gradient->dtype;
    const struct kernel_move move = {.dst = to,
                                     .src = from,
                                     .count = (size_t)param->gradient->count,
                                     .dst_dtype = dtype,
                                     .src_dtype = dtype};
    kernels_of(param)->move(&move, 1);
}

static bool is_all_zero(const unsigned char *bytes, size_t n_bytes)
{
    return n_bytes == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, n_bytes - 1) == 0);
}

/* Whether the gradient's bytes are zero, which the host waits for if they are on a device. */
static shoal_status ask_zero(const struct ddp_param *param, bool *is_zero_out)
{
    size_t bytes = tensor_bytes(param->gradient);
    void *data;
    if (device_is_host(param->gradient->storage->device)) {
        TRY(tensor_host_address(param->gradient, &data));
        *is_zero_out = is_all_zero(data, bytes);
        return SHOAL_OK;
    }
    data = mem_alloc(bytes + 1);
    shoal_status status =
        data ? op_read_tensor(param->gradient, data, bytes, shoal_group_timeout(param->ddp->group))
             : SHOAL_ERR_NO_MEMORY;
    *is_zero_out = status == SHOAL_OK && is_all_zero(data, bytes);
    mem_free(data);
    return status;
}

/* Waits until nothing reads or writes the gradient, and drops the errors of earlier writes. */
static shoal_status claim(struct ddp_param *param, struct address *place_out)
{
    TRY(tensor_wait_writable(param->gradient, /*overwrites=*/true));
    storage_forget_fences(param->gradient->storage);
    return tensor_address(param->gradient, place_out);
}

shoal_status ddp_take_in(struct ddp_param *param, shoal_tensor *kept)
{
    struct address place;
    TRY(tensor_wait_readable(kept));
    TRY(claim(param, &place));
    TRY(op_copy_overlapping(param->gradient, kept));
    note_written(param);
    return shoal_set_grad(param->tensor, param->gradient);
}

/* Setting aside ------------------------------------------------------------------------------------------ */

static shoal_status set_aside(struct ddp_param *param, struct address place)
{
    if (address_is_none(param->aside)) {
        TRY(device_memory_allocate(param->gradient->storage->device, tensor_bytes(param->gradient),
                                   &param->aside));
    }
    copy(param, param->aside, place);
    param->has_aside = true;
    fill_with_nothing(param, place);
    return SHOAL_OK;
}

/*
 * A reduced gradient of zeros need not be set aside; on a device it is, because to find out would be to wait. A local
 * gradient of zeros drops what was set aside before only if the program wrote them, which the version tells: a local
 * gradient may also be zero by itself.
 */
shoal_status ddp_make_room(struct ddp_param *param)
{
    struct address place;
    shoal_tensor *kept = shoal_grad(param->tensor);
    if (!ddp_is_ours(param)) {
        param->has_aside = false;
        param->is_reduced = kept && kept->is_averaged;
        param->is_local = false;
        if (!param->is_reduced) {
            return SHOAL_OK;
        }
        TRY(ddp_take_in(param, kept)); /* a compiled step has averaged it */
    }
    if (!param->is_reduced && !param->has_aside) {
        return SHOAL_OK;
    }
    TRY(tensor_wait_readable(param->gradient));
    TRY(tensor_address(param->gradient, &place));
    bool is_host = device_is_host(param->gradient->storage->device);
    bool was_written = shoal_tensor_version(param->gradient) != param->version;
    bool is_zero = false;
    if (param->is_reduced ? is_host : was_written) {
        TRY(ask_zero(param, &is_zero));
    }
    if (param->is_reduced) {
        param->is_reduced = false;
        param->has_aside = false;
        return is_zero ? SHOAL_OK : set_aside(param, place);
    }
    param->has_aside = param->has_aside && !is_zero;
    return SHOAL_OK;
}

shoal_status ddp_fill_in(struct ddp_param *param)
{
    struct address place;
    TRY(ddp_make_room(param));
    shoal_tensor *kept = shoal_grad(param->tensor);
    param->has_part = true;
    if (kept && !ddp_is_ours(param)) {
        return ddp_take_in(param, kept);
    }
    if (kept && param->is_local) {
        return SHOAL_OK; /* backward passes without synchronization have left it */
    }
    param->has_part = false;
    if (!kept) {
        TRY(claim(param, &place));
        fill_with_nothing(param, place);
    }
    return SHOAL_OK;
}

/* Landing ------------------------------------------------------------------------------------------------ */

static shoal_status add_aside(struct ddp_param *param, struct address place)
{
    const int64_t stride = 1;
    struct kernel_operand operand = {.data = place, .strides = &stride};
    struct kernel_operand aside = {.data = param->aside, .strides = &stride};
    return kernels_of(param)->binary_nd(KERNEL_ADD, param->gradient->dtype, operand, aside, operand, 1,
                                        &param->gradient->count);
}

shoal_status ddp_add_aside(struct ddp_param *param)
{
    struct address place;
    if (!param->has_aside || !ddp_is_ours(param)) {
        return SHOAL_OK;
    }
    TRY(ddp_make_room(param)); /* drops it if the program has zeroed the gradient */
    if (!param->has_aside) {
        return SHOAL_OK;
    }
    TRY(claim(param, &place));
    TRY(add_aside(param, place));
    param->has_aside = false;
    note_written(param);
    return SHOAL_OK;
}

shoal_status ddp_land(struct ddp_param *param, bool is_used)
{
    struct address place;
    TRY(claim(param, &place));
    if (param->has_aside && is_used) {
        TRY(add_aside(param, place));
    } else if (param->has_aside) {
        copy(param, place, param->aside);
    }
    param->has_aside = false;
    param->is_local = false;
    param->is_reduced = true;
    note_written(param);
    if (is_used && shoal_requires_grad(param->tensor) && !shoal_grad(param->tensor)) {
        return shoal_set_grad(param->tensor, param->gradient);
    }
    return SHOAL_OK;
}

/* The end ------------------------------------------------------------------------------------------------ */

void ddp_remove_hooks(struct ddp_param *param)
{
    shoal_hook_remove(param->on_gradient);
    shoal_hook_remove(param->on_accumulated);
    param->on_gradient = NULL;
    param->on_accumulated = NULL;
    param->leaf = 0;
}

void ddp_param_free(struct ddp_param *param)
{
    ddp_remove_hooks(param);
    if (param->gradient) {
        device_memory_free(param->gradient->storage->device, param->aside);
    }
    shoal_tensor_unref(param->gradient);
    shoal_tensor_unref(param->tensor);
    mem_free(param->path);
}

shoal_status ddp_check_left(struct ddp *ddp)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        struct ddp_param *param = &ddp->params[i];
        if (param->is_left && ddp_is_ours(param) && shoal_tensor_version(param->gradient) == param->version) {
            return error_set(SHOAL_ERR_STATE,
                             "parameter %s has the gradient that a failed backward pass left: remove it, or "
                             "write zeros",
                             param->path);
        }
        if (param->is_left) {
            param->is_left = false;
            param->is_reduced = false;
            param->is_local = false;
            param->has_aside = false;
        }
    }
    return SHOAL_OK;
}
