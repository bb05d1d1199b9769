/* SPDX-License-Identifier: MIT */
/* Arithmetic on shapes and strides. Every product and sum that comes from a caller's numbers is checked. */
#include "tensor/layout.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "base/try.h"

const char *layout_format(char text[LAYOUT_TEXT_BYTES], int n_dims, const int64_t *numbers)
{
    struct text list = text_begin(text, LAYOUT_TEXT_BYTES);
    text_add(&list, "[");
    for (int i = 0; i < n_dims && i < SHOAL_MAX_DIMS; i++) {
        text_add(&list, "%s%" PRId64, i == 0 ? "" : ", ", numbers[i]);
    }
    text_add(&list, "]");
    return text;
}

shoal_status layout_count(int n_dims, const int64_t *shape, int64_t *count_out)
{
    if (n_dims < 0 || n_dims > SHOAL_MAX_DIMS) {
        return error_set(SHOAL_ERR_INVALID, "n_dims: %d is not within 0..%d", n_dims, SHOAL_MAX_DIMS);
    }
    if (n_dims > 0 && !shape) {
        return error_set(SHOAL_ERR_INVALID, "shape is NULL with %d dimensions", n_dims);
    }
    bool is_empty = false;
    for (int i = 0; i < n_dims; i++) {
        if (shape[i] < 0) {
            return error_set(SHOAL_ERR_INVALID, "shape: size %" PRId64 " of dimension %d is negative",
                             shape[i], i);
        }
        is_empty |= shape[i] == 0;
    }
    int64_t count = 1;
    for (int i = 0; i < n_dims && !is_empty; i++) {
        if (__builtin_mul_overflow(count, shape[i], &count)) {
            char text[LAYOUT_TEXT_BYTES];
            return error_set(SHOAL_ERR_INVALID, "shape: %s has more elements than fit in 63 bits",
                             layout_format(text, n_dims, shape));
        }
    }
    *count_out = is_empty ? 0 : count;
    return SHOAL_OK;
}

void layout_fill_strides(int n_dims, const int64_t *shape, int64_t *strides_out)
{
    int64_t stride = 1;
    for (int i = n_dims - 1; i >= 0; i--) {
        strides_out[i] = stride;
        int64_t next;
        /* Only a shape with a zero elsewhere can overflow here, and its strides are never used. */
        if (__builtin_mul_overflow(stride, shape[i] > 1 ? shape[i] : 1, &next)) {
            next = stride;
        }
        stride = next;
    }
}

bool layout_is_contiguous(int n_dims, const int64_t *shape, const int64_t *strides)
{
    int64_t expected = 1;
    bool is_contiguous = true;
    for (int i = n_dims - 1; i >= 0; i--) {
        if (shape[i] == 0) {
            return true;
        }
        if (shape[i] != 1) {
            is_contiguous &= strides[i] == expected;
            /* Cannot overflow if the strides are those of a contiguous tensor; otherwise the answer is false
               already. */
            (void)__builtin_mul_overflow(expected, shape[i], &expected);
        }
    }
    return is_contiguous;
}

static int64_t absolute(int64_t value)
{
    return value < 0 ? -value : value;
}

bool layout_may_self_overlap(int n_dims, const int64_t *shape, const int64_t *strides)
{
    int order[SHOAL_MAX_DIMS];
    int n_used = 0;
    for (int i = 0; i < n_dims; i++) {
        if (shape[i] == 0) {
            return false;
        }
        if (shape[i] == 1) {
            continue;
        }
        int at = n_used++;
        while (at > 0 && absolute(strides[order[at - 1]]) > absolute(strides[i])) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
    /* From the smallest stride up, each must step over all elements that the smaller ones can reach. */
    int64_t reach = 0;
    for (int k = 0; k < n_used; k++) {
        int64_t stride = absolute(strides[order[k]]);
        if (stride <= reach) {
            return true;
        }
        reach += stride * (shape[order[k]] - 1);
    }
    return false;
}

shoal_status layout_extent(int n_dims, const int64_t *shape, const int64_t *strides, int64_t offset,
                           int64_t *first_out, int64_t *end_out)
{
    int64_t first = offset;
    int64_t last = offset;
    for (int i = 0; i < n_dims; i++) {
        if (shape[i] == 0) {
            *first_out = *end_out = offset;
            return SHOAL_OK;
        }
    }
    for (int i = 0; i < n_dims; i++) {
        int64_t reach;
        bool overflows = __builtin_mul_overflow(shape[i] - 1, strides[i], &reach);
        int64_t *edge = reach < 0 ? &first : &last;
        overflows = overflows || __builtin_add_overflow(*edge, reach, edge);
        if (overflows || last == INT64_MAX) {
            return error_set(SHOAL_ERR_INVALID,
                             "strides: stride %" PRId64 " of dimension %d with size %" PRId64 " overflows",
                             strides[i], i, shape[i]);
        }
    }
    if (last == INT64_MAX) {
        return error_set(SHOAL_ERR_INVALID, "offset: %" PRId64 " overflows", offset);
    }
    *first_out = first;
    *end_out = last + 1;
    return SHOAL_OK;
}

shoal_status layout_normalise_dim(const char *argument, int64_t dim, int n_dims, int *dim_out)
{
    if (n_dims == 0) {
        return error_set(SHOAL_ERR_INVALID, "%s: %" PRId64 " given, but the tensor has no dimensions",
                         argument, dim);
    }
    if (dim < -n_dims || dim >= n_dims) {
        return error_set(SHOAL_ERR_INVALID, "%s: %" PRId64 " is not within %d..%d", argument, dim, -n_dims,
                         n_dims - 1);
    }
    *dim_out = (int)(dim < 0 ? dim + n_dims : dim);
    return SHOAL_OK;
}

shoal_status layout_infer_shape(int64_t count, int n_dims, const int64_t *shape, int64_t *shape_out)
{
    char text[LAYOUT_TEXT_BYTES];
    int inferred = -1;
    int64_t sizes[SHOAL_MAX_DIMS] = {0};
    if (n_dims < 0 || n_dims > SHOAL_MAX_DIMS) {
        return error_set(SHOAL_ERR_INVALID, "n_dims: %d is not within 0..%d", n_dims, SHOAL_MAX_DIMS);
    }
    for (int i = 0; i < n_dims; i++) {
        sizes[i] = shape[i];
        if (shape[i] == -1 && inferred >= 0) {
            return error_set(SHOAL_ERR_INVALID, "shape: %s has more than one -1",
                             layout_format(text, n_dims, shape));
        }
        if (shape[i] == -1) {
            inferred = i;
            sizes[i] = 1;
        }
    }
    int64_t known;
    TRY(layout_count(n_dims, sizes, &known));
    if (inferred >= 0 && (known == 0 || count % known != 0)) {
        return error_set(SHOAL_ERR_INVALID, "shape: no size for the -1 in %s gives %" PRId64 " elements",
                         layout_format(text, n_dims, shape), count);
    }
    if (inferred >= 0) {
        sizes[inferred] = count / known;
    } else if (known != count) {
        return error_set(SHOAL_ERR_INVALID, "shape: %s has %" PRId64 " elements, the tensor has %" PRId64,
                         layout_format(text, n_dims, shape), known, count);
    }
    memcpy(shape_out, sizes, (size_t)n_dims * sizeof(sizes[0]));
    return SHOAL_OK;
}

/* True when `outer` steps over a run of `size` elements exactly. */
static bool continues_run(int64_t outer, int64_t size, int64_t stride)
{
    int64_t step;
    return !__builtin_mul_overflow(size, stride, &step) && outer == step;
}

bool layout_view_strides(const struct layout *layout, int n_dims, const int64_t *new_shape,
                         int64_t *strides_out)
{
    int64_t count = 1;
    for (int i = 0; i < n_dims; i++) {
        count *= new_shape[i] == 0 ? 0 : 1;
    }
    if (count == 0) {
        layout_fill_strides(n_dims, new_shape, strides_out);
        return true;
    }
    /* Walk both shapes from the last dimension: a run of old dimensions that is contiguous in itself can be
       cut into new dimensions in any way that uses it up exactly. */
    int to = n_dims - 1;
    int from = layout->n_dims - 1;
    while (from >= 0) {
        int64_t run_stride = layout->strides[from];
        int64_t run_size = layout->shape[from];
        while (from > 0 && (layout->shape[from - 1] == 1 || run_size == 1 ||
                            continues_run(layout->strides[from - 1], run_size, run_stride))) {
            run_stride = run_size == 1 ? layout->strides[from - 1] : run_stride;
            run_size *= layout->shape[from - 1];
            from--;
        }
        from--;
        int64_t used = 1;
        while (to >= 0 && (used < run_size || new_shape[to] == 1)) {
            /* Overflows only past the whole run, for a size of 1, whose stride is never used. */
            if (__builtin_mul_overflow(used, run_stride, &strides_out[to])) {
                strides_out[to] = run_stride;
            }
            used *= new_shape[to];
            to--;
        }
        if (used != run_size) {
            return false;
        }
    }
    while (to >= 0) {
        strides_out[to--] = 1;
    }
    return true;
}

void layout_remove_dim(struct layout *layout, int dim)
{
    layout->n_dims--;
    for (int i = dim; i < layout->n_dims; i++) {
        layout->shape[i] = layout->shape[i + 1];
        layout->strides[i] = layout->strides[i + 1];
    }
}

bool layout_is_same_shape(int a_dims, const int64_t *a_shape, int b_dims, const int64_t *b_shape)
{
    bool is_same = a_dims == b_dims;
    for (int i = 0; is_same && i < a_dims; i++) {
        is_same = a_shape[i] == b_shape[i];
    }
    return is_same;
}

shoal_status layout_broadcast(int a_dims, const int64_t *a_shape, int b_dims, const int64_t *b_shape,
                              int *n_dims_out, int64_t *shape_out)
{
    int n_dims = a_dims > b_dims ? a_dims : b_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    if (layout_is_same_shape(a_dims, a_shape, b_dims, b_shape)) {
        memcpy(shape_out, a_shape, (size_t)n_dims * sizeof(shape[0]));
        *n_dims_out = n_dims;
        return SHOAL_OK;
    }
    for (int i = 1; i <= n_dims; i++) {
        int64_t a = i <= a_dims ? a_shape[a_dims - i] : 1;
        int64_t b = i <= b_dims ? b_shape[b_dims - i] : 1;
        if (a != b && a != 1 && b != 1) {
            char a_text[LAYOUT_TEXT_BYTES];
            char b_text[LAYOUT_TEXT_BYTES];
            return error_set(
                SHOAL_ERR_INVALID, "shapes %s and %s do not broadcast: %" PRId64 " against %" PRId64,
                layout_format(a_text, a_dims, a_shape), layout_format(b_text, b_dims, b_shape), a, b);
        }
        shape[n_dims - i] = a == 1 ? b : a;
    }
    int64_t count;
    TRY(layout_count(n_dims, shape, &count));
    memcpy(shape_out, shape, (size_t)n_dims * sizeof(shape[0]));
    *n_dims_out = n_dims;
    return SHOAL_OK;
}

void layout_broadcast_strides(int n_dims, const int64_t *shape, const int64_t *strides, int target_dims,
                              const int64_t *target_shape, int64_t *strides_out)
{
    int missing = target_dims - n_dims;
    for (int i = 0; i < target_dims; i++) {
        bool is_stretched = i < missing || (shape[i - missing] == 1 && target_shape[i] != 1);
        strides_out[i] = is_stretched ? 0 : strides[i - missing];
    }
}
