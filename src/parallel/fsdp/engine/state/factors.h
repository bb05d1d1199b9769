/* SPDX-License-Identifier: MIT */
/* What gradients are divided by, and when: while they are added up if that is safe; partly before and partly
   after if the dtype could overflow or underflow. The result is always (the sum over all ranks) / factor. */
#ifndef PARALLEL_FSDP_ENGINE_STATE_FACTORS_H
#define PARALLEL_FSDP_ENGINE_STATE_FACTORS_H

#include <stdbool.h>

#include "shoal/dtype.h"

struct fsdp_factors {
    double before; /* divides what is sent; 1 leaves it as it is */
    double after;  /* divides what comes out; 1 leaves it as it is */
    shoal_reduce_op scatter;
    double premul; /* the factor of `scatter`, if that is SHOAL_PREMUL_SUM */
    shoal_reduce_op all_reduce;
};

/* `factor` is what the sum is divided by; 0 means the number of ranks. */
struct fsdp_factors fsdp_factors_choose(int n_shards, int n_replicas, shoal_dtype reduce_dtype, double factor,
                                        bool forces_sum);

/* What to divide by before the sum: a power of two near the square root of `factor`. It is doubled while it divides
   `factor` and is less than factor / it. */
double fsdp_factors_before(double factor);

#endif
