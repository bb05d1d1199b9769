/* SPDX-License-Identifier: MIT */
/*
 * Whether regions are a tensor exactly: whether each of its elements lies in one of them.
 *
 * How many regions an element lies in is a function of its indices. It is known by its differences in all dimensions,
 * which are not 0 only at the corners of the regions: +1 or -1 at each of them. The regions are the tensor if and only
 * if these differences are those of the tensor itself. That takes n log n for n regions, however they lie, times two
 * for each dimension in which they are cut. The first corner where the differences are not equal is the first element
 * that no region or more than one holds.
 */
#ifndef CHECKPOINT_TILING_H
#define CHECKPOINT_TILING_H

#include <stddef.h>
#include <stdint.h>

#include "checkpoint/region.h"

/* The first element, row-major, that is not in one region. */
struct tiling_fault {
    int64_t element[SHOAL_MAX_DIMS];
    int64_t n_regions; /* that hold it; 1: there is no such element */
};

/*
 * `regions` lie `stride_bytes` apart. They are not empty and within the shape, which has elements. Fails only for
 * memory; a fault is not a failure.
 */
shoal_status tiling_check(int n_dims, const int64_t *shape, const struct region *regions, size_t stride_bytes,
                          size_t n_regions, struct tiling_fault *fault_out);

/* The first region from number `from` on that holds the element; n_regions: none. */
size_t tiling_find(int n_dims, const int64_t *element, const struct region *regions, size_t stride_bytes,
                   size_t n_regions, size_t from);

#endif
