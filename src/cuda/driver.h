/* SPDX-License-Identifier: MIT */
/*
 * The CUDA driver, which is opened at run time: a machine without it, or without a GPU, runs the rest of Shoal. The functions
 * are those of version 12.0 of its interface, whatever version the driver has: newer ones keep them under their old names.
 */
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

#include "cuda/driver_types.h"
#include "shoal/status.h"

struct cuda_driver {
#define CUDA_CALL(name, parameters) cuda_result(*name) parameters;
#include "cuda/driver.def"
#undef CUDA_CALL
};

extern struct cuda_driver cuda;

/* Opens the driver. The error text says what is missing: SHOAL_ERR_UNSUPPORTED. */
shoal_status cuda_driver_open(void);
/* Of the file, for texts. */
const char *cuda_driver_path(void);

#endif
