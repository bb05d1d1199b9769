/* SPDX-License-Identifier: MIT */
/* The expansion of tables.def for the CPU. */
#include "kernel/table.h"

const struct kernel_table kernel_host_table = {
#define KERNEL(type, name, parameters) .name = kernel_##name,
#include "kernel/tables.def"
#undef KERNEL
};
