/* SPDX-License-Identifier: MIT */
/* Finding devices by their names, and loading those of modules. */
#include <pthread.h>

#include "base/error.h"
#include "base/try.h"
#include "device/device.h"
#include "device/module.h"
#include "device/stream.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held while a module is loaded */

/* Under the lock. */
static shoal_status load(const char *name, shoal_device *device_out)
{
    struct device_slot slot = {0};
    if (device_find_known(name, device_out)) {
        return SHOAL_OK;
    }
    if (device_count_loaded() == DEVICE_MODULES_MOST) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "device \"%s\" is one too many: a process can have %d of modules", name,
                         DEVICE_MODULES_MOST);
    }
    TRY(device_module_load(name, &slot.row));
    TRY(stream_create_compute(&slot));
    *device_out = device_add(slot);
    return SHOAL_OK;
}

shoal_status device_find(const char *name, shoal_device *device_out)
{
    if (device_find_known(name, device_out)) {
        return SHOAL_OK;
    }
    TRY(device_module_check_name(name));
    (void)pthread_mutex_lock(&lock);
    shoal_status status = load(name, device_out);
    (void)pthread_mutex_unlock(&lock);
    return status;
}

shoal_status shoal_device_find(const char *name, shoal_device *device_out)
{
    error_clear();
    if (!name || !device_out) {
        return error_set(SHOAL_ERR_INVALID, "device_find: %s is NULL", name ? "device_out" : "name");
    }
    shoal_status status = device_find(name, device_out);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "device_find");
}
