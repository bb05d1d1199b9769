/* SPDX-License-Identifier: MIT */
/*
 * DLPack in and out, without copying. An imported struct is owned by the storage made around it; an exported
 * one owns a reference on the storage and pins its memory (storage->exports), because the consumer has the
 * address.
 */
#include "shoal/dlpack.h"

#include <dlpack/dlpack.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "tensor/dtype.h"
#include "tensor/handle.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

/* kDLBool of DLPack 0.8, kDLFloat8_e4m3fn and kDLFloat8_e5m2 of DLPack 1.1; older headers lack them. */
#define DTYPE_DLPACK_BOOL 6
#define DTYPE_DLPACK_F8_E4M3FN 10
#define DTYPE_DLPACK_F8_E5M2 12

struct dlpack_row {
    uint8_t code;
    uint8_t bits;
};

static const struct dlpack_row dlpack_rows[DTYPE_COUNT] = {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) \
    [SHOAL_##NAME] = {.code = dl_code, .bits = dl_bits},
#include "tensor/dtypes.def"
#undef DTYPE
};

/* Import ----------------------------------------------------------------------------------------------- */

static shoal_status find_dtype(DLDataType type, shoal_dtype *dtype_out)
{
    for (int i = 1; i < DTYPE_COUNT && type.lanes == 1; i++) {
        if (dlpack_rows[i].code == type.code && dlpack_rows[i].bits == type.bits) {
            *dtype_out = (shoal_dtype)i;
            return SHOAL_OK;
        }
    }
    return error_set(SHOAL_ERR_UNSUPPORTED, "from_dlpack: no dtype for type code %d, %d bits, %d lanes",
                     type.code, type.bits, type.lanes);
}

static void end_import(void *context, void *data)
{
    struct DLManagedTensor *managed = context;
    if (managed->deleter) {
        managed->deleter(managed);
    }
}

static shoal_status check_import(const struct DLManagedTensor *managed, shoal_dtype *dtype_out)
{
    if (!managed) {
        return error_set(SHOAL_ERR_INVALID, "from_dlpack: managed is NULL");
    }
    const DLTensor *tensor = &managed->dl_tensor;
    if (tensor->device.device_type != kDLCPU && tensor->device.device_type != kDLCUDAHost) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "from_dlpack: device type %d is not host memory",
                         (int)tensor->device.device_type);
    }
    return find_dtype(tensor->dtype, dtype_out);
}

shoal_tensor *shoal_from_dlpack(struct DLManagedTensor *managed)
{
    shoal_dtype dtype = SHOAL_F32;
    if (scope_enter() != SHOAL_OK) {
        return NULL;
    }
    shoal_status status = check_import(managed, &dtype);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
        return NULL;
    }
    const DLTensor *tensor = &managed->dl_tensor;
    void *data = tensor->data ? (char *)tensor->data + tensor->byte_offset : NULL;
    return tensor_from_memory("from_dlpack", data, tensor->shape, tensor->ndim, dtype, tensor->strides,
                              end_import, managed);
}

/* Export ----------------------------------------------------------------------------------------------- */

struct export
{
    struct DLManagedTensor managed; /* first: its address is the export's */
    struct storage *storage;
    struct layout layout; /* shape and strides that `managed` points into */
};

static void end_export(struct DLManagedTensor *managed)
{
    struct export *export = (struct export *)managed;
    atomic_fetch_sub(&export->storage->exports, 1);
    storage_unref(export->storage);
    mem_free(export);
}

shoal_status shoal_to_dlpack(shoal_tensor *tensor, struct DLManagedTensor **managed_out)
{
    void *address;
    if (!tensor) {
        return scope_fail_null("to_dlpack", "tensor");
    }
    error_clear();
    if (!managed_out) {
        return error_set(SHOAL_ERR_INVALID, "to_dlpack: managed_out is NULL");
    }
    if (handle_is_dead(tensor)) {
        return error_prefix(handle_fail(tensor), "to_dlpack");
    }
    /* This form of DLPack cannot say that the consumer must not write. */
    shoal_status status = storage_check_writable(tensor->storage);
    if (status != SHOAL_OK) {
        return error_prefix(status, "to_dlpack");
    }
    TRY(tensor_wait_readable(tensor));
    TRY(storage_own_memory(tensor->storage));
    TRY(tensor_host_address(tensor, &address));
    struct export *export = mem_alloc(sizeof(*export));
    if (!export) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *export = (struct export){.storage = storage_ref(tensor->storage), .layout = tensor->layout};
    atomic_fetch_add(&tensor->storage->exports, 1);
    export->managed = (struct DLManagedTensor){
        .dl_tensor =
            {
                .data = address,
                .device = {.device_type = kDLCPU},
                .ndim = tensor->layout.n_dims,
                .dtype = {.code = dlpack_rows[tensor->dtype].code,
                          .bits = dlpack_rows[tensor->dtype].bits,
                          .lanes = 1},
                .shape = export->layout.shape,
                .strides = export->layout.strides,
            },
        .deleter = end_export,
    };
    *managed_out = &export->managed;
    return SHOAL_OK;
}
