/* SPDX-License-Identifier: MIT */
/* What devices.def says of each place where a tensor's bytes can be. */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "device/host.h"
#include "shoal/tensor.h"

enum {
#define DEVICE(NAME, name, has_data, allocate, release, doc) DEVICE_INDEX_##NAME,
#include "device/devices.def"
#undef DEVICE
    DEVICE_COUNT
};

struct device_row {
    const char *name;
    bool has_data; /* that the host can address */
    const char *doc;
    /*
     * header_bytes of host memory, for what the caller keeps about the data, and `bytes` of the device's memory. They
     * are one allocation where the device's memory is the host's. The data begins at a multiple of MEM_DATA_ALIGNMENT
     * unless it is shorter. Returns the header; NULL, with the error text set, when there is no memory.
     */
    void *(*allocate)(size_t header_bytes, size_t bytes, void **data_out);
    void (*release)(void *header, void *data);
};

extern const struct device_row device_rows[DEVICE_COUNT];

/* By the row, of a device that has bytes. The CPU's functions are called directly: results of every op are
   allocated. */
static inline void *device_allocate(shoal_device device, size_t header_bytes, size_t bytes, void **data_out)
{
    return device == SHOAL_CPU ? host_allocate(header_bytes, bytes, data_out)
                               : device_rows[device].allocate(header_bytes, bytes, data_out);
}

static inline void device_release(shoal_device device, void *header, void *data)
{
    if (device == SHOAL_CPU) {
        host_release(header, data);
    } else {
        device_rows[device].release(header, data);
    }
}

/* SHOAL_ERR_INVALID, naming the argument, for a number that is no device. */
shoal_status device_check(shoal_device device, const char *argument);

shoal_status device_find(const char *name, shoal_device *device_out);

#endif
