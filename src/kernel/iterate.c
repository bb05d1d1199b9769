/* SPDX-License-Identifier: MIT */
/* Spaces of the n-dimensional kernels: see iterate.h. */
#include "kernel/iterate.h"

void iterate_begin(struct iterate_space *space, int n_dims, const int64_t *shape)
{
    space->n_dims = n_dims;
    space->n_operands = 0;
    for (int i = 0; i < n_dims; i++) {
        space->shape[i] = shape[i];
        space->index[i] = 0;
    }
}

void iterate_add(struct iterate_space *space, struct kernel_operand operand, size_t element_bytes)
{
    struct iterate_operand *added = &space->operands[space->n_operands++];
    added->data = address_pointer(operand.data);
    for (int i = 0; i < space->n_dims; i++) {
        /* Over a single element, the stride means nothing and may be any number. */
        added->strides[i] = space->shape[i] == 1 ? 0 : operand.strides[i] * (int64_t)element_bytes;
    }
}

static void move_dim(struct iterate_space *space, int to, int from)
{
    space->shape[to] = space->shape[from];
    for (int k = 0; k < space->n_operands; k++) {
        space->operands[k].strides[to] = space->operands[k].strides[from];
    }
}

static void swap_dims(struct iterate_space *space, int i, int j)
{
    int64_t size = space->shape[i];
    space->shape[i] = space->shape[j];
    space->shape[j] = size;
    for (int k = 0; k < space->n_operands; k++) {
        int64_t *strides = space->operands[k].strides;
        int64_t stride = strides[i];
        strides[i] = strides[j];
        strides[j] = stride;
    }
}

static void drop_single_dims(struct iterate_space *space)
{
    int kept = 0;
    for (int i = 0; i < space->n_dims; i++) {
        if (space->shape[i] != 1) {
            move_dim(space, kept++, i);
        }
    }
    space->n_dims = kept;
}

static void turn_negative_dims(struct iterate_space *space)
{
    for (int i = 0; i < space->n_dims; i++) {
        if (space->operands[0].strides[i] >= 0) {
            continue;
        }
        for (int k = 0; k < space->n_operands; k++) {
            struct iterate_operand *operand = &space->operands[k];
            operand->data += operand->strides[i] * (space->shape[i] - 1);
            operand->strides[i] = -operand->strides[i];
        }
    }
}

/* True when dimension i should lie outside dimension j: the first operand that tells them apart decides. */
static bool is_outer(const struct iterate_space *space, int i, int j)
{
    for (int k = 0; k < space->n_operands; k++) {
        int64_t a = space->operands[k].strides[i];
        int64_t b = space->operands[k].strides[j];
        a = a < 0 ? -a : a;
        b = b < 0 ? -b : b;
        if (a != b) {
            return a > b;
        }
    }
    return false;
}

static void sort_dims(struct iterate_space *space)
{
    for (int i = 1; i < space->n_dims; i++) {
        for (int j = i; j > 0 && is_outer(space, j, j - 1); j--) {
            swap_dims(space, j, j - 1);
        }
    }
}

static bool can_join(const struct iterate_space *space, int outer, int inner)
{
    for (int k = 0; k < space->n_operands; k++) {
        const int64_t *strides = space->operands[k].strides;
        if (strides[outer] != strides[inner] * space->shape[inner]) {
            return false;
        }
    }
    return true;
}

/* Strides of dimensions that no longer exist never matter; the one dimension of a scalar is made up here. */
static void join_dims(struct iterate_space *space)
{
    int last = 0;
    for (int i = 1; i < space->n_dims; i++) {
        if (can_join(space, last, i)) {
            int64_t size = space->shape[last] * space->shape[i];
            move_dim(space, last, i);
            space->shape[last] = size;
        } else {
            move_dim(space, ++last, i);
        }
    }
    if (space->n_dims == 0) {
        space->shape[0] = 1;
        space->index[0] = 0;
        for (int k = 0; k < space->n_operands; k++) {
            space->operands[k].strides[0] = 0;
        }
    }
    space->n_dims = last + 1;
}

void iterate_merge(struct iterate_space *space)
{
    drop_single_dims(space);
    join_dims(space);
}

void iterate_arrange(struct iterate_space *space)
{
    drop_single_dims(space);
    turn_negative_dims(space);
    sort_dims(space);
    join_dims(space);
}

bool iterate_next(struct iterate_space *space, int n_inner)
{
    for (int i = space->n_dims - n_inner - 1; i >= 0; i--) {
        bool is_at_end = ++space->index[i] == space->shape[i];
        int64_t steps = is_at_end ? 1 - space->shape[i] : 1;
        for (int k = 0; k < space->n_operands; k++) {
            space->operands[k].data += space->operands[k].strides[i] * steps;
        }
        if (!is_at_end) {
            return true;
        }
        space->index[i] = 0;
    }
    return false;
}
