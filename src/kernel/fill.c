/* SPDX-License-Identifier: MIT */
/* Fills with one value: it is converted to an element once, and the element is copied with strides of 0. */
#include "kernel/element.h"
#include "kernel/iterate.h"
#include "kernel/kernel.h"

#include <string.h>

void kernel_scalar_store(shoal_dtype dtype, void *element, struct kernel_scalar value)
{
    if (value.is_integer) {
        kernel_cast(dtype, element, SHOAL_I64, &value.integer, 1);
    } else {
        kernel_cast(dtype, element, SHOAL_F64, &value.real, 1);
    }
}

static bool are_bytes_equal(const unsigned char *bytes, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (bytes[i] != bytes[0]) {
            return false;
        }
    }
    return true;
}

void kernel_fill_nd(shoal_dtype dtype, struct kernel_operand dst, int n_dims, const int64_t *shape,
                    struct kernel_scalar value)
{
    static const int64_t zeros[SHOAL_MAX_DIMS];
    unsigned char element[sizeof(struct dtype_c128)];
    size_t bytes = dtype_bytes(dtype);
    if (iterate_is_empty(n_dims, shape)) {
        return;
    }
    kernel_scalar_store(dtype, element, value);
    if (are_bytes_equal(element, bytes) && iterate_is_dense(n_dims, shape, dst.strides)) {
        memset(address_pointer(dst.data), element[0], bytes * (size_t)iterate_count(n_dims, shape));
        return;
    }
    /* The element is 0 or 1 already: bool needs no normalizing, and moves as bytes. */
    shoal_dtype moved = dtype == SHOAL_BOOL ? SHOAL_U8 : dtype;
    struct kernel_operand src = {.data = address_of(element), .strides = zeros};
    kernel_copy_nd(moved, dst, moved, src, n_dims, shape);
}
