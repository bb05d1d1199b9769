/* SPDX-License-Identifier: MIT */
/* The devices of this process: the rows that are always there, and those of modules. */
#include "device/device.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/try.h"

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

shoal_status device_fail_inherited(shoal_device device)
{
    return error_set(
        SHOAL_ERR_STATE,
        "process %d is a fork of the process that uses device %s, and cannot use it; find the device "
        "after the fork only",
        (int)getpid(), device_name(device));
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

shoal_status device_find_dlpack(int type, int id, shoal_device *device_out)
{
    const struct device_row *other = NULL;
    for (int i = 0; i < device_count_loaded(); i++) {
        const struct device_row *row = device_slots[i].row;
        if (row->dlpack == type && row->dlpack_id == id && type != 0) {
            *device_out = (shoal_device)(DEVICE_FIRST_MODULE + i);
            return device_check_process(*device_out);
        }
        other = row->dlpack == type && type != 0 ? row : other;
    }
    if (other) {
        return error_set(
            SHOAL_ERR_UNSUPPORTED,
            "memory of DLPack's device type %d, number %d: device %s of this process is number %d", type, id,
            other->name, other->dlpack_id);
    }
    return error_set(SHOAL_ERR_UNSUPPORTED,
                     "memory of DLPack's device type %d, number %d: this process has no such device "
                     "(shoal_device_find loads devices)",
                     type, id);
}

const char *shoal_device_name(shoal_device device)
{
    return device_is_valid(device) ? device_name(device) : "";
}
