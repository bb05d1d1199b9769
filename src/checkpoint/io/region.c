/* SPDX-License-Identifier: MIT */
/* Ranges of indices in every dimension: see region.h. */
#include "checkpoint/io/region.h"

#include <string.h>

int64_t region_count(const struct region *region, int n_dims)
{
    int64_t count = 1;
    for (int i = 0; i < n_dims; i++) {
        /* In a region without elements, the product of the other lengths may overflow. */
        if (region->length[i] == 0) {
            return 0;
        }
    }
    for (int i = 0; i < n_dims; i++) {
        count *= region->length[i];
    }
    return count;
}

bool region_equals(const struct region *a, const struct region *b, int n_dims)
{
    return region_compare(a, b, n_dims) == 0;
}

int region_compare(const struct region *a, const struct region *b, int n_dims)
{
    for (int i = 0; i < n_dims; i++) {
        if (a->begin[i] != b->begin[i]) {
            return a->begin[i] < b->begin[i] ? -1 : 1;
        }
    }
    for (int i = 0; i < n_dims; i++) {
        if (a->length[i] != b->length[i]) {
            return a->length[i] < b->length[i] ? -1 : 1;
        }
    }
    return 0;
}

bool region_intersect(const struct region *a, const struct region *b, int n_dims, struct region *both_out)
{
    struct region both = {{0}, {0}};
    for (int i = 0; i < n_dims; i++) {
        int64_t a_end = a->begin[i] + a->length[i];
        int64_t b_end = b->begin[i] + b->length[i];
        int64_t begin = a->begin[i] > b->begin[i] ? a->begin[i] : b->begin[i];
        int64_t end = a_end < b_end ? a_end : b_end;
        if (begin >= end) {
            return false;
        }
        both.begin[i] = begin;
        both.length[i] = end - begin;
    }
    *both_out = both;
    return true;
}

void region_make(struct region *region_out, int n_dims, const int64_t *shape, int dim, int64_t offset,
                 int64_t length)
{
    *region_out = (struct region){{0}, {0}};
    if (n_dims > 0) {
        memcpy(region_out->length, shape, (size_t)n_dims * sizeof(shape[0]));
    }
    if (dim >= 0) {
        region_out->begin[dim] = offset;
        region_out->length[dim] = length;
    }
}
