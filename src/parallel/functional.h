/* SPDX-License-Identifier: MIT */
/* Collectives as ops, for modules in a capture (op/tracer.h): each call is a start and its wait in the graph.
   Results belong to the innermost scope. On failure a call returns NULL, and that scope has the error. */
#ifndef PARALLEL_FUNCTIONAL_H
#define PARALLEL_FUNCTIONAL_H

#include <stdint.h>

#include "shoal/dtype.h"
#include "shoal/group.h"
#include "shoal/tensor.h"

/* A reduction, with the factor of SHOAL_PREMUL_SUM. Other operators ignore the factor. */
struct functional_reduce {
    shoal_reduce_op op;
    double factor;
};

/* `what` says what the collective is for ("gradient of 0.weight"): ranks that capture a step compare it. */
shoal_tensor *functional_all_reduce(shoal_tensor *tensor, struct functional_reduce reduce, shoal_group *group,
                                    const char *what);
shoal_tensor *functional_reduce_scatter(shoal_tensor *tensor, struct functional_reduce reduce, int64_t dim,
                                        shoal_group *group, const char *what);
shoal_tensor *functional_all_gather(shoal_tensor *tensor, int64_t dim, shoal_group *group, const char *what);
shoal_tensor *functional_broadcast(shoal_tensor *tensor, int root, shoal_group *group, const char *what);
/* shoal_to_dtype, but without a call if the tensor has that dtype. */
shoal_tensor *functional_cast(shoal_tensor *tensor, shoal_dtype dtype);

#endif
