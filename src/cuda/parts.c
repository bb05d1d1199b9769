/* SPDX-License-Identifier: MIT */
/* Parts of spaces, and addresses that begin alike: see parts.h. */
#include "cuda/parts.h"

#define VECTOR_BYTES 16

/* The part of `space` from `begin` on in its first dimension. */
static struct iterate_space take(const struct iterate_space *space, int64_t begin, int64_t size)
{
    struct iterate_space part = *space;
    part.shape[0] = size;
    for (int k = 0; k < part.n_operands; k++) {
        part.operands[k].data += begin * part.operands[k].strides[0];
    }
    return part;
}

/* A first dimension of size 1 is left out. */
static struct iterate_space drop_first(const struct iterate_space *space)
{
    struct iterate_space part = *space;
    part.n_dims = space->n_dims - 1;
    for (int i = 0; i < part.n_dims; i++) {
        part.shape[i] = space->shape[i + 1];
        for (int k = 0; k < part.n_operands; k++) {
            part.operands[k].strides[i] = space->operands[k].strides[i + 1];
        }
    }
    return part;
}

void parts_split(const struct iterate_space *space, uint64_t most,
                 void (*launch)(void *context, const struct iterate_space *part), void *context)
{
    const uint64_t count = (uint64_t)iterate_count(space->n_dims, space->shape);
    if (count <= most) {
        launch(context, space);
        return;
    }
    const uint64_t inner = count / (uint64_t)space->shape[0];
    int64_t step = 1;
    while ((uint64_t)step * 2 * inner <= most) {
        step *= 2;
    }
    for (int64_t begin = 0; begin < space->shape[0]; begin += step) {
        int64_t left = space->shape[0] - begin;
        struct iterate_space part = take(space, begin, left < step ? left : step);
        if (inner > most) {
            part = drop_first(&part);
        }
        parts_split(&part, most, launch, context);
    }
}

bool parts_are_aligned(const uint64_t *addresses, size_t n_addresses, uint64_t bytes)
{
    for (size_t i = 0; i < n_addresses; i++) {
        if (addresses[i] % bytes != 0) {
            return false;
        }
    }
    return true;
}

bool parts_find_shift(const uint64_t *addresses, size_t n_addresses, uint64_t element_bytes,
                      uint32_t *shift_out)
{
    const uint64_t begin = addresses[0] % VECTOR_BYTES;
    for (size_t i = 1; i < n_addresses; i++) {
        if (addresses[i] % VECTOR_BYTES != begin) {
            return false;
        }
    }
    *shift_out = (uint32_t)(begin / element_bytes);
    return begin % element_bytes == 0;
}
