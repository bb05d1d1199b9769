/* SPDX-License-Identifier: MIT */
/*
 * DLPack in and out, without copying. An imported struct is owned by the storage made around it; an exported
 * one owns a reference on the storage and pins its memory (storage->exports), because the consumer has the
 * address. On a device the consumer's work comes behind that of the compute stream so far: the host waits, or a stream
 * of the consumer does.
 */
#include "shoal/dlpack.h"

#include <dlpack/dlpack.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "device/stream.h"
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

static shoal_status find_device(DLDevice device, shoal_device *device_out)
{
    if (device.device_type == kDLCPU || device.device_type == kDLCUDAHost) {
        *device_out = SHOAL_CPU;
        return SHOAL_OK;
    }
    shoal_status status = device_find_dlpack((int)device.device_type, device.device_id, device_out);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "from_dlpack");
}

static shoal_status check_import(const struct DLManagedTensor *managed, shoal_dtype *dtype_out,
                                 shoal_device *device_out)
{
    if (!managed) {
        return error_set(SHOAL_ERR_INVALID, "from_dlpack: managed is NULL");
    }
    const DLTensor *tensor = &managed->dl_tensor;
    TRY(find_device(tensor->device, device_out));
    return find_dtype(tensor->dtype, dtype_out);
}

shoal_tensor *shoal_from_dlpack(struct DLManagedTensor *managed)
{
    shoal_dtype dtype = SHOAL_F32;
    shoal_device device = SHOAL_CPU;
    if (scope_enter() != SHOAL_OK) {
        return NULL;
    }
    shoal_status status = check_import(managed, &dtype, &device);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
        return NULL;
    }
    const DLTensor *tensor = &managed->dl_tensor;
    void *data = tensor->data ? (char *)tensor->data + tensor->byte_offset : NULL;
    return tensor_from_memory("from_dlpack", device, data, tensor->shape, tensor->ndim, dtype,
                              tensor->strides, end_import, managed);
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

/* No stream of the consumer is known: the host waits. */
#define NO_STREAM 0
/* The consumer orders its work itself. */
#define NO_ORDER (-1)

static shoal_status order(shoal_device device, int64_t stream)
{
    if (stream == NO_ORDER) {
        return device_check_process(device);
    }
    return stream == NO_STREAM ? device_synchronize(device) : device_lead(device, stream);
}

static shoal_status check_exchanged(const struct device_row *row)
{
    return row->dlpack != 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_UNSUPPORTED,
                           "the tensor is on device %s, for which DLPack has no number", row->name);
}

static shoal_status export_tensor(shoal_tensor *tensor, int64_t stream, struct DLManagedTensor **managed_out)
{
    struct address address;
    shoal_device device = tensor->storage->device;
    const struct device_row *row = device_row(device);
    /* This form of DLPack cannot say that the consumer must not write. */
    TRY(storage_check_writable(tensor->storage));
    TRY(tensor_wait_readable(tensor));
    TRY(storage_own_memory(tensor->storage));
    TRY(tensor_address(tensor, &address));
    TRY(check_exchanged(row));
    TRY(order(device, stream));
    struct export *export = mem_alloc(sizeof(*export));
    if (!export) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *export = (struct export){.storage = storage_ref(tensor->storage), .layout = tensor->layout};
    atomic_fetch_add(&tensor->storage->exports, 1);
    export->managed = (struct DLManagedTensor){
        .dl_tensor =
            {
                .data = address_pointer(address),
                .device = {.device_type = (DLDeviceType)row->dlpack, .device_id = row->dlpack_id},
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

static shoal_status check_export(const char *call, const shoal_tensor *tensor,
                                 struct DLManagedTensor *const *managed_out)
{
    if (!tensor) {
        return scope_fail_null(call, "tensor");
    }
    error_clear();
    if (!managed_out) {
        return error_set(SHOAL_ERR_INVALID, "%s: managed_out is NULL", call);
    }
    return handle_is_dead(tensor) ? error_prefix(handle_fail(tensor), "%s", call) : SHOAL_OK;
}

shoal_status shoal_to_dlpack(shoal_tensor *tensor, struct DLManagedTensor **managed_out)
{
    TRY(check_export("to_dlpack", tensor, managed_out));
    shoal_status status = export_tensor(tensor, NO_STREAM, managed_out);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "to_dlpack");
}

shoal_status shoal_to_dlpack_on(shoal_tensor *tensor, int64_t stream, struct DLManagedTensor **managed_out)
{
    TRY(check_export("to_dlpack_on", tensor, managed_out));
    if (stream == NO_STREAM) {
        return error_set(SHOAL_ERR_INVALID, "to_dlpack_on: stream: 0 is no stream");
    }
    shoal_status status = export_tensor(tensor, stream, managed_out);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "to_dlpack_on");
}
