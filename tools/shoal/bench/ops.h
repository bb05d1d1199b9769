/* SPDX-License-Identifier: MIT */
/* What a call through the op layer costs beyond its kernel. */
#ifndef BENCH_OPS_H
#define BENCH_OPS_H

/* Nanoseconds of shoal_add of 4 floats, with making and releasing its result, minus those of the bare kernel;
   NaN when a call failed. */
double bench_op_overhead_ns(void);

#endif
