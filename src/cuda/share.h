/* SPDX-License-Identifier: MIT */
/* Memory of the GPU that processes of one machine share. */
#ifndef CUDA_SHARE_H
#define CUDA_SHARE_H

#include <stddef.h>

#include "device/row.h"
#include "shoal/status.h"

/* For the row. New memory is not cleared. */
shoal_status cuda_share_create(size_t bytes, char descriptor[DEVICE_SHARE_BYTES], void **data_out);
/* The maker must not have dropped the memory yet. Once mapped, the memory stays until every process has dropped it. */
shoal_status cuda_share_map(const char descriptor[DEVICE_SHARE_BYTES], size_t bytes, void **data_out);
/* No work uses the memory any more, in this process. */
void cuda_share_drop(void *data);

#endif
