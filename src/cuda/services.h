/* SPDX-License-Identifier: MIT */
/* What libshoal does for this module (device/module.h), and the row that it has been given. */
#ifndef CUDA_SERVICES_H
#define CUDA_SERVICES_H

#include "device/module.h"

extern const struct device_services *cuda_services;
extern const struct device_row *cuda_row;

struct CUstream_st;

/* Where work of this thread goes. */
static inline struct CUstream_st *cuda_stream(void)
{
    return (struct CUstream_st *)cuda_services->stream(cuda_row);
}

#endif
