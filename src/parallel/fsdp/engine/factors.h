/* SPDX-License-Identifier: MIT */
/*
 * By what gradients are divided, and when: while they are added up where that is safe, before and after where the dtype
 * might overflow or run out of digits. The net effect is always (the sum over all ranks) / factor.
 */
#ifndef PARALLEL_FSDP_ENGINE_FACTORS_H
#define PARALLEL_FSDP_ENGINE_FACTORS_H

#include <stdbool.h>

#include "shoal/dtype.h"

struct fsdp_factors {
    double before; /* divides what is sent; 1: nothing is done */
    double after;  /* divides what comes out; 1: nothing is done */
    shoal_reduce_op scatter;
    double premul; /* of scatter, when that is SHOAL_PREMUL_SUM */
    shoal_reduce_op all_reduce;
};

/* `factor` 0: the number of ranks. */
struct fsdp_factors fsdp_factors_choose(int n_shards, int n_replicas, shoal_dtype reduce_dtype, double factor,
                                        bool forces_sum);

/* The power of two that goes before: the largest so far that divides the factor and is less than what is left. */
double fsdp_factors_before(double factor);

#endif
