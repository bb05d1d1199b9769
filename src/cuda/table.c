/* SPDX-License-Identifier: MIT */
#include "cuda/table.h"

const struct kernel_table cuda_kernels = {
#define KERNEL(type, name, parameters) .name = cuda_##name,
#include "kernel/tables.def"
#undef KERNEL
};
