/* SPDX-License-Identifier: MIT */
/* The expansion of devices.def. */
#include "device/device.h"

#include <string.h>

#include "base/error.h"

const struct device_row device_rows[DEVICE_COUNT] = {
#define DEVICE(NAME, name_, has_data_, allocate_, release_, doc_) \
    [SHOAL_##NAME] = {                                            \
        .name = #name_, .has_data = has_data_, .doc = doc_, .allocate = allocate_, .release = release_},
#include "device/devices.def"
#undef DEVICE
};

/* A public value without a row is a -Wswitch-enum warning here. */
static bool device_is_valid(shoal_device device)
{
    switch (device) {
#define DEVICE(NAME, name, has_data, allocate, release, doc) case SHOAL_##NAME:
#include "device/devices.def"
#undef DEVICE
        return true;
    }
    return false;
}

shoal_status device_check(shoal_device device, const char *argument)
{
    if (device_is_valid(device)) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_INVALID, "%s: %d is not a device", argument, (int)device);
}

shoal_status device_find(const char *name, shoal_device *device_out)
{
    for (int i = 0; i < DEVICE_COUNT; i++) {
        if (strcmp(device_rows[i].name, name) == 0) {
            *device_out = (shoal_device)i;
            return SHOAL_OK;
        }
    }
    return error_set(SHOAL_ERR_INVALID, "there is no device \"%.32s\"", name);
}
