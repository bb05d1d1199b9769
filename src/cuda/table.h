/* SPDX-License-Identifier: MIT */
/* The kernels of the device, cuda_<name> for each row of kernel/tables.def. */
#ifndef CUDA_TABLE_H
#define CUDA_TABLE_H

#include "kernel/table.h"

extern const struct kernel_table cuda_kernels;

#define KERNEL(type, name, parameters) type cuda_##name parameters;
#include "kernel/tables.def"
#undef KERNEL

#endif
