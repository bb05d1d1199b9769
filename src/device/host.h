/* SPDX-License-Identifier: MIT */
/* Memory of the host: the CPU's row of devices.def. */
#ifndef DEVICE_HOST_H
#define DEVICE_HOST_H

#include <stddef.h>

/* As in struct device_row: header and bytes lie in one allocation. */
void *host_allocate(size_t header_bytes, size_t bytes, void **data_out);
void host_release(void *header, void *data);

#endif
