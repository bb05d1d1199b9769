/* SPDX-License-Identifier: MIT */
/* Which bytes of its storage a tensor touches. */
#include <string.h>

#include "tensor/tensor.h"

struct span tensor_strided_span(const shoal_tensor *tensor)
{
    int64_t first;
    int64_t end;
    const struct layout *layout = &tensor->layout;
    size_t element_bytes = dtype_bytes(tensor->dtype);
    if (tensor->count == 0) {
        return span_of(0, 0, /*is_dense=*/true);
    }
    if (layout_extent(layout->n_dims, layout->shape, layout->strides, layout->offset, &first, &end) !=
        SHOAL_OK) {
        return span_of(0, tensor->storage->bytes, /*is_dense=*/false); /* never: it was checked when made */
    }
    bool is_dense = end - first == tensor->count &&
                    !layout_may_self_overlap(layout->n_dims, layout->shape, layout->strides);
    return span_of((size_t)first * element_bytes, (size_t)end * element_bytes, is_dense);
}

/* The address of a storage's bytes. Storages without memory never overlap others. */
static bool find_base(const shoal_tensor *tensor, const shoal_tensor *other, uintptr_t *base_out)
{
    bool is_shared = tensor->storage == other->storage;
    *base_out = is_shared || !tensor->storage->memory ? 0 : address_number(tensor->storage->memory->base);
    return is_shared || tensor->storage->memory;
}

bool tensor_may_overlap(const shoal_tensor *a, const shoal_tensor *b)
{
    uintptr_t a_base;
    uintptr_t b_base;
    if (a->count == 0 || b->count == 0 || !find_base(a, b, &a_base) || !find_base(b, a, &b_base)) {
        return false;
    }
    struct span x = tensor_span(a);
    struct span y = tensor_span(b);
    return a_base + x.first < b_base + y.end && b_base + y.first < a_base + x.end;
}

bool tensor_is_same_view(const shoal_tensor *a, const shoal_tensor *b)
{
    const struct layout *x = &a->layout;
    const struct layout *y = &b->layout;
    size_t bytes = (size_t)x->n_dims * sizeof(x->shape[0]);
    return a->storage == b->storage && a->dtype == b->dtype && x->n_dims == y->n_dims &&
           x->offset == y->offset && memcmp(x->shape, y->shape, bytes) == 0 &&
           memcmp(x->strides, y->strides, bytes) == 0;
}
