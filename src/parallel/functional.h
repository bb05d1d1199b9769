/* SPDX-License-Identifier: MIT */
/*
 * Collectives as ops, for modules in a capture (op/tracer.h): each call is a start and its wait in the graph. Results belong to
 * the innermost scope; NULL, with the error in that scope.
 */
#ifndef PARALLEL_FUNCTIONAL_H
#define PARALLEL_FUNCTIONAL_H

#include <stdint.h>

#include "shoal/dtype.h"
#include "shoal/group.h"
#include "shoal/tensor.h"

/* A reduction with the factor of SHOAL_PREMUL_SUM, which the others do not look at. */
struct functional_reduce {
    shoal_reduce_op op;
    double factor;
};

shoal_tensor *functional_all_reduce(shoal_tensor *tensor, struct functional_reduce reduce,
                                    shoal_group *group);
shoal_tensor *functional_reduce_scatter(shoal_tensor *tensor, struct functional_reduce reduce, int64_t dim,
                                        shoal_group *group);
shoal_tensor *functional_all_gather(shoal_tensor *tensor, int64_t dim, shoal_group *group);
shoal_tensor *functional_broadcast(shoal_tensor *tensor, int root, shoal_group *group);
/* shoal_to_dtype, and no call where there is nothing to convert. */
shoal_tensor *functional_cast(shoal_tensor *tensor, shoal_dtype dtype);

#endif
