/* SPDX-License-Identifier: MIT */
/*
 * Regions: a range of indices in every dimension of a tensor. What a rank has of a tensor, what it writes, and what a
 * file contains are regions of the whole. Dimensions beyond those of the tensor are ignored.
 */
#ifndef CHECKPOINT_IO_REGION_H
#define CHECKPOINT_IO_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/tensor.h"

struct region {
    int64_t begin[SHOAL_MAX_DIMS];
    int64_t length[SHOAL_MAX_DIMS];
};

/* The number of elements; 1 without dimensions. */
int64_t region_count(const struct region *region, int n_dims);

bool region_equals(const struct region *a, const struct region *b, int n_dims);

/* For sorting: by begin, then by length, the first dimension first. */
int region_compare(const struct region *a, const struct region *b, int n_dims);

/* Gives the intersection. Returns false if it is empty; *both_out is then not set. */
bool region_intersect(const struct region *a, const struct region *b, int n_dims, struct region *both_out);

/* Makes the region of `length` indices from `offset` on along `dim`, or of the whole tensor if `dim` is -1. */
void region_make(struct region *region_out, int n_dims, const int64_t *shape, int dim, int64_t offset,
                 int64_t length);

#endif
