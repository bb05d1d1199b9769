/* SPDX-License-Identifier: MIT */
/* Checks whether regions tile a tensor: see tiling.h. */
#include "checkpoint/io/tiling.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"

/* A corner, in the dimensions that are cut. Corners of one tensor have the same number of them. */
struct corner {
    int32_t difference;
    int32_t n_dims;
    int64_t at[];
};

static int compare_corners(const void *a, const void *b)
{
    const struct corner *first = a;
    const struct corner *second = b;
    for (int32_t i = 0; i < first->n_dims; i++) {
        if (first->at[i] != second->at[i]) {
            return first->at[i] < second->at[i] ? -1 : 1;
        }
    }
    return 0;
}

static const struct region *get(const struct region *regions, size_t stride_bytes, size_t index)
{
    return (const struct region *)(const void *)((const char *)regions + index * stride_bytes);
}

struct corners {
    int dims[SHOAL_MAX_DIMS]; /* which are cut */
    int n_dims;
    char *memory;
    size_t n_corners;
    size_t corner_bytes;
};

static struct corner *get_corner(const struct corners *corners, size_t index)
{
    return (struct corner *)(void *)(corners->memory + index * corners->corner_bytes);
}

/* Adds all corners of a region; with `sign` -1 it is subtracted. */
static void add_region(struct corners *corners, const struct region *region, int sign)
{
    for (unsigned which = 0; which < 1u << corners->n_dims; which++) {
        struct corner *corner = get_corner(corners, corners->n_corners++);
        corner->n_dims = corners->n_dims;
        corner->difference = sign;
        for (int i = 0; i < corners->n_dims; i++) {
            int dim = corners->dims[i];
            bool is_end = (which >> i & 1) != 0;
            corner->at[i] = region->begin[dim] + (is_end ? region->length[dim] : 0);
            corner->difference *= is_end ? -1 : 1;
        }
    }
}

static void find_cut_dims(struct corners *corners, int n_dims, const int64_t *shape,
                          const struct region *regions, size_t stride_bytes, size_t n_regions)
{
    for (int dim = 0; dim < n_dims; dim++) {
        size_t i = 0;
        while (i < n_regions && get(regions, stride_bytes, i)->length[dim] == shape[dim]) {
            i++;
        }
        if (i < n_regions) {
            corners->dims[corners->n_dims++] = dim;
        }
    }
}

/* Adds up the differences of equal corners, in order, until a sum is not 0. */
static void find_fault(const struct corners *corners, struct tiling_fault *fault_out)
{
    *fault_out = (struct tiling_fault){.n_regions = 1};
    size_t i = 0;
    while (i < corners->n_corners) {
        const struct corner *first = get_corner(corners, i);
        int64_t difference = 0;
        while (i < corners->n_corners && compare_corners(first, get_corner(corners, i)) == 0) {
            difference += get_corner(corners, i++)->difference;
        }
        if (difference != 0) {
            /* All sums before it are 0, so this is the difference at the element itself. */
            fault_out->n_regions = 1 + difference;
            for (int k = 0; k < corners->n_dims; k++) {
                fault_out->element[corners->dims[k]] = first->at[k];
            }
            return;
        }
    }
}

shoal_status tiling_check(int n_dims, const int64_t *shape, const struct region *regions, size_t stride_bytes,
                          size_t n_regions, struct tiling_fault *fault_out)
{
    struct corners corners = {0};
    size_t n_corners;
    size_t bytes;
    find_cut_dims(&corners, n_dims, shape, regions, stride_bytes, n_regions);
    if (corners.n_dims == 0) {
        *fault_out = (struct tiling_fault){.n_regions = (int64_t)n_regions};
        return SHOAL_OK;
    }
    corners.corner_bytes = sizeof(struct corner) + (size_t)corners.n_dims * sizeof(int64_t);
    if (!mem_multiply(n_regions + 1, (size_t)1 << corners.n_dims, &n_corners) ||
        !mem_multiply(n_corners, corners.corner_bytes, &bytes)) {
        return error_set(SHOAL_ERR_NO_MEMORY, "no memory for the corners of %zu regions", n_regions);
    }
    corners.memory = mem_alloc(bytes);
    if (!corners.memory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct region whole;
    region_make(&whole, n_dims, shape, -1, 0, 0);
    add_region(&corners, &whole, -1);
    for (size_t i = 0; i < n_regions; i++) {
        add_region(&corners, get(regions, stride_bytes, i), 1);
    }
    qsort(corners.memory, corners.n_corners, corners.corner_bytes, compare_corners);
    find_fault(&corners, fault_out);
    mem_free(corners.memory);
    return SHOAL_OK;
}

size_t tiling_find(int n_dims, const int64_t *element, const struct region *regions, size_t stride_bytes,
                   size_t n_regions, size_t from)
{
    for (size_t i = from; i < n_regions; i++) {
        const struct region *region = get(regions, stride_bytes, i);
        int dim = 0;
        while (dim < n_dims && element[dim] >= region->begin[dim] &&
               element[dim] - region->begin[dim] < region->length[dim]) {
            dim++;
        }
        if (dim == n_dims) {
            return i;
        }
    }
    return n_regions;
}
