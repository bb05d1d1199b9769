/* SPDX-License-Identifier: MIT */
/* What devices.def says of each place where a tensor's bytes can be. */
#ifndef TENSOR_DEVICE_H
#define TENSOR_DEVICE_H

#include <stdbool.h>

#include "shoal/tensor.h"

enum {
#define DEVICE(NAME, name, has_data, doc) DEVICE_INDEX_##NAME,
#include "tensor/devices.def"
#undef DEVICE
    DEVICE_COUNT
};

struct device_row {
    const char *name;
    bool has_data;
    const char *doc;
};

extern const struct device_row device_rows[DEVICE_COUNT];

/* SHOAL_ERR_INVALID, naming the argument, for a number that is no device. */
shoal_status device_check(shoal_device device, const char *argument);

shoal_status device_find(const char *name, shoal_device *device_out);

#endif
