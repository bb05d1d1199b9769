/* SPDX-License-Identifier: MIT */
/*
 * Checks whether regions tile a tensor: whether each element lies in exactly one of them.
 *
 * The number of regions that contain an element is a function of its indices. The function is determined by its
 * differences along all dimensions, which are nonzero only at corners of regions: +1 or -1 at each corner. The regions
 * tile the tensor if and only if these differences are those of the tensor itself. For n regions this takes n log n,
 * however they lie, times two for each dimension in which they are cut. The first corner at which the differences are
 * not equal is the first element that is in no region or in more than one.
 */
#ifndef CHECKPOINT_IO_TILING_H
#define CHECKPOINT_IO_TILING_H

#include <stddef.h>
#include <stdint.h>

#include "checkpoint/io/region.h"

/* The first element, in row-major order, that is not in exactly one region. */
struct tiling_fault {
    int64_t element[SHOAL_MAX_DIMS];
    int64_t n_regions; /* how many contain it; 1 if there is no such element */
};

/*
 * `regions` lie `stride_bytes` apart. They are not empty and within the shape, which has elements. Fails only for
 * memory; a fault is not a failure.
 */
shoal_status tiling_check(int n_dims, const int64_t *shape, const struct region *regions, size_t stride_bytes,
                          size_t n_regions, struct tiling_fault *fault_out);

/* The first region from number `from` on that contains the element; n_regions: none. */
size_t tiling_find(int n_dims, const int64_t *element, const struct region *regions, size_t stride_bytes,
                   size_t n_regions, size_t from);

#endif
