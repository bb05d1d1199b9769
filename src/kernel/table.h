/* SPDX-License-Identifier: MIT */
/*
 * The kernels of a device: `kernel_of(device)->binary_nd(...)`. On the CPU the work is done when the call returns. On
 * another device it has been put behind earlier work of the thread's current stream (device/stream.h); arrays and lists
 * among the arguments were copied. What a kernel refuses, it refuses at once on every device.
 */
#ifndef KERNEL_TABLE_H
#define KERNEL_TABLE_H

#include "device/device.h"
#include "kernel/kernel.h"

struct kernel_table {
#define KERNEL(type, name, parameters) type(*name) parameters;
#include "kernel/tables.def"
#undef KERNEL
};

/* Of the CPU: the functions of kernel/kernel.h. */
extern const struct kernel_table kernel_host_table;

/* The device has data. */
static inline const struct kernel_table *kernel_of(shoal_device device)
{
    return device == SHOAL_CPU ? &kernel_host_table : device_row(device)->kernels;
}

#endif
