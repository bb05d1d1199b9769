/* SPDX-License-Identifier: MIT */
/* Finds numbers of tensors by address. Nothing is ordered by address. Holds no references. */
#ifndef CHECKPOINT_ITEMS_TENSORS_H
#define CHECKPOINT_ITEMS_TENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"
#include "shoal/tensor.h"

struct items_tensors {
    struct items_tensor {
        const shoal_tensor *tensor; /* NULL: the slot is free */
        size_t number;
    } * slots;
    size_t n_slots; /* a power of two, or 0 */
    size_t n_tensors;
};

/* -1: it is not there. */
int64_t items_tensors_find(const struct items_tensors *tensors, const shoal_tensor *tensor);

/* A tensor that is there already keeps its number. */
shoal_status items_tensors_add(struct items_tensors *tensors, const shoal_tensor *tensor, size_t number);

/* Frees the table and makes it empty. */
void items_tensors_clear(struct items_tensors *tensors);

#endif
