/* SPDX-License-Identifier: MIT */
#ifndef CUDA_STREAM_H
#define CUDA_STREAM_H

#include "device/row.h"

/* For the row: streams of the driver, or those of the program, and events, which are kept and used again. */
extern const struct device_streams cuda_streams;

#endif
