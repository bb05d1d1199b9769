/* SPDX-License-Identifier: MIT */
/* Memory of devices of modules, and memory that its owner frees. */
#include "base/mem.h"
#include "base/try.h"
#include "device/ending.h"
#include "device/stream.h"

static shoal_status allocate(shoal_device device, size_t bytes, enum device_cause cause, void **data_out)
{
    const struct device_row *row = device_row(device);
    TRY(device_check_process(device));
    TRY(row->failure());
    ending_poll();
    *data_out = row->allocate(bytes, cause, stream_compute(device));
    if (!*data_out) {
        shoal_status status = row->failure();
        return status == SHOAL_OK ? SHOAL_ERR_NO_MEMORY : status;
    }
    return SHOAL_OK;
}

static void release(shoal_device device, void *data)
{
    if (!device_is_inherited(device)) {
        device_row(device)->release(data, stream_compute(device));
        ending_poll();
    }
}

shoal_status device_memory_allocate(shoal_device device, size_t bytes, struct address *memory_out)
{
    void *data = NULL;
    if (device == SHOAL_CPU) {
        data = mem_alloc_aligned(bytes > 0 ? bytes : 1, MEM_DATA_ALIGNMENT);
    } else {
        TRY(allocate(device, bytes, DEVICE_BUFFERS, &data));
    }
    *memory_out = address_of(data);
    return data ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

void device_memory_free(shoal_device device, struct address memory)
{
    if (device == SHOAL_CPU) {
        mem_free(address_pointer(memory));
    } else if (!address_is_none(memory)) {
        release(device, address_pointer(memory));
    }
}

shoal_status device_allocate_apart(shoal_device device, size_t header_bytes, size_t bytes, void **header_out,
                                   void **data_out)
{
    void *header = mem_alloc(header_bytes);
    if (!header) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = allocate(device, bytes, DEVICE_TENSORS, data_out);
    if (status != SHOAL_OK) {
        mem_free(header);
        return status;
    }
    *header_out = header;
    return SHOAL_OK;
}

void device_release_apart(shoal_device device, void *header, void *data)
{
    release(device, data);
    mem_free(header);
}
