/* SPDX-License-Identifier: MIT */
#ifndef CUDA_PROGRAMS_H
#define CUDA_PROGRAMS_H

#include "device/row.h"

/* For the row: kernels of the program (shoal/cuda.h). */
extern const struct device_programs cuda_programs;

#endif
