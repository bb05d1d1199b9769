/* SPDX-License-Identifier: MIT */
/* The devices of this process: the rows that are always there, and those of modules. */
#include "device/device.h"

#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "device/stream.h"

const struct device_row device_host_row = {
    DEVICE_ROW_INIT, .name = "cpu", .doc = "host memory", .has_data = true, .is_host = true, .dlpack = 1,
};

const struct device_row device_meta_row = {
    DEVICE_ROW_INIT,
    .name = "meta",
    .doc = "shapes without data, for planning and tracing",
};

const struct device_row *const device_rows[DEVICE_COUNT] = {
#define DEVICE(NAME, row) [SHOAL_##NAME] = &(row),
#include "device/devices.def"
#undef DEVICE
};

struct device_slot device_slots[DEVICE_MODULES_MOST];

static _Atomic int n_loaded;

int device_count_loaded(void)
{
    /* Acquire: pairs with the release in device_add. Whoever sees the number sees the slots. */
    return atomic_load_explicit(&n_loaded, memory_order_acquire);
}

shoal_device device_add(struct device_slot slot)
{
    int n = device_count_loaded();
    device_slots[n] = slot;
    /* Release: pairs with the acquire in device_count_loaded. */
    atomic_store_explicit(&n_loaded, n + 1, memory_order_release);
    return (shoal_device)(DEVICE_FIRST_MODULE + n);
}

/* A public value without a row is a -Wswitch-enum warning here. */
static bool device_is_valid(shoal_device device)
{
    switch (device) {
#define DEVICE(NAME, row) case SHOAL_##NAME:
#include "device/devices.def"
#undef DEVICE
        return true;
    }
    return (int)device >= DEVICE_FIRST_MODULE && (int)device < DEVICE_FIRST_MODULE + device_count_loaded();
}

shoal_status device_check(shoal_device device, const char *argument)
{
    if (device_is_valid(device)) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_INVALID, "%s: %d is not a device", argument, (int)device);
}

/* Finding ---------------------------------------------------------------------------------------------- */

bool device_find_known(const char *name, shoal_device *device_out)
{
    for (int i = 0; i < DEVICE_COUNT; i++) {
        if (strcmp(device_rows[i]->name, name) == 0) {
            *device_out = (shoal_device)i;
            return true;
        }
    }
    for (int i = 0; i < device_count_loaded(); i++) {
        if (strcmp(device_slots[i].row->name, name) == 0) {
            *device_out = (shoal_device)(DEVICE_FIRST_MODULE + i);
            return true;
        }
    }
    return false;
}

/* Memory ----------------------------------------------------------------------------------------------- */

static shoal_status allocate(shoal_device device, size_t bytes, void **data_out)
{
    const struct device_row *row = device_row(device);
    TRY(row->failure());
    *data_out = row->allocate(bytes, stream_compute(device));
    if (!*data_out) {
        shoal_status status = row->failure();
        return status == SHOAL_OK ? SHOAL_ERR_NO_MEMORY : status;
    }
    return SHOAL_OK;
}

shoal_status device_memory_allocate(shoal_device device, size_t bytes, struct address *memory_out)
{
    void *data = NULL;
    if (device == SHOAL_CPU) {
        data = mem_alloc_aligned(bytes > 0 ? bytes : 1, MEM_DATA_ALIGNMENT);
    } else {
        TRY(allocate(device, bytes, &data));
    }
    *memory_out = address_of(data);
    return data ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

void device_memory_free(shoal_device device, struct address memory)
{
    if (device == SHOAL_CPU) {
        mem_free(address_pointer(memory));
    } else if (!address_is_none(memory)) {
        device_row(device)->release(address_pointer(memory), stream_compute(device));
    }
}

shoal_status device_allocate_apart(shoal_device device, size_t header_bytes, size_t bytes, void **header_out,
                                   void **data_out)
{
    void *header = mem_alloc(header_bytes);
    if (!header) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = allocate(device, bytes, data_out);
    if (status != SHOAL_OK) {
        mem_free(header);
        return status;
    }
    *header_out = header;
    return SHOAL_OK;
}

void device_release_apart(shoal_device device, void *header, void *data)
{
    device_row(device)->release(data, stream_compute(device));
    mem_free(header);
}

const char *shoal_device_name(shoal_device device)
{
    return device_is_valid(device) ? device_name(device) : "";
}
