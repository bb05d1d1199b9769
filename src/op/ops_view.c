/* SPDX-License-Identifier: MIT */
/* Rows that give views of a tensor. The meta function makes the view; there is nothing to run. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "op/operand.h"
#include "op/rows.h"
#include "tensor/dtype.h"

/* A mistyped number must not make a list that fills the memory. */
#define MAX_PIECES (1 << 24)

shoal_status run_view(shoal_op_call_context *call, const shoal_value *arguments, shoal_tensor *const *outputs,
                      size_t n_outputs)
{
    return SHOAL_OK;
}

static shoal_status declare_view(shoal_op_call_context *call, shoal_tensor *self, const struct layout *layout)
{
    return shoal_op_output_view(call, self, layout->shape, layout->strides, layout->n_dims, layout->offset);
}

/* Moves the beginning of the view by `index` steps along a dimension. A tensor without elements is left alone: its
   strides are never used. One step past the last element may overflow; then the view is empty and is left alone. */
static void move_start(const shoal_tensor *self, struct layout *layout, int dim, int64_t index)
{
    int64_t offset;
    if (self->count > 0 && !__builtin_mul_overflow(index, self->layout.strides[dim], &offset) &&
        !__builtin_add_overflow(layout->offset, offset, &offset)) {
        layout->offset = offset;
    }
}

/* The number of entries of a shape or list of dimensions, as dimensions. */
static shoal_status get_n_dims(const char *argument, const shoal_value *value, int *n_dims)
{
    if (value->count > SHOAL_MAX_DIMS) {
        return error_set(SHOAL_ERR_INVALID, "%s: %td dimensions are not within 0..%d", argument,
                         (ptrdiff_t)value->count, SHOAL_MAX_DIMS);
    }
    *n_dims = (int)value->count;
    return SHOAL_OK;
}

/* Shapes ----------------------------------------------------------------------------------------------- */

/* A view of `self` in `shape` if its strides allow one; says so in *is_view. */
static shoal_status try_view(shoal_op_call_context *call, shoal_tensor *self, int n_dims,
                             const int64_t *shape, bool *is_view)
{
    struct layout layout = {.n_dims = n_dims, .offset = self->layout.offset};
    memcpy(layout.shape, shape, (size_t)n_dims * sizeof(shape[0]));
    *is_view = layout_view_strides(&self->layout, n_dims, shape, layout.strides);
    return *is_view ? declare_view(call, self, &layout) : SHOAL_OK;
}

shoal_status meta_view(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    int n_dims = 0;
    int64_t shape[SHOAL_MAX_DIMS];
    bool is_view;
    TRY(get_n_dims("shape", &arguments[1], &n_dims));
    TRY(layout_infer_shape(self->count, n_dims, arguments[1].as.integers, shape));
    TRY(try_view(call, self, n_dims, shape, &is_view));
    if (!is_view) {
        char from[LAYOUT_TEXT_BYTES];
        char strides[LAYOUT_TEXT_BYTES];
        char to[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "shape: %s cannot be a view of %s with strides %s; use reshape",
                         layout_format(to, n_dims, shape),
                         layout_format(from, self->layout.n_dims, self->layout.shape),
                         layout_format(strides, self->layout.n_dims, self->layout.strides));
    }
    return SHOAL_OK;
}

/* Other dtypes ----------------------------------------------------------------------------------------- */

/* Two dtypes of different sizes, for the error texts of a view. */
struct dtype_change {
    shoal_dtype from;
    shoal_dtype to;
    int64_t ratio; /* of the larger element to the smaller */
};

static shoal_status fail_change(const struct dtype_change *change, const char *what, int64_t number)
{
    return error_set(SHOAL_ERR_INVALID,
                     "dtype: %s %" PRId64 " is not a multiple of the %" PRId64 " elements of %s in one of %s",
                     what, number, change->ratio, shoal_dtype_name(change->from),
                     shoal_dtype_name(change->to));
}

/* The stride of a dimension of size 1, and all strides of a tensor without elements, are never used: they need not
   fit. */
static bool is_walked(const shoal_tensor *self, int dim)
{
    return self->count > 0 && self->layout.shape[dim] > 1;
}

/* Each element becomes several. Only strides that are never used can overflow: the rest is inside the storage. */
static shoal_status shrink_elements(const shoal_tensor *self, const struct dtype_change *change,
                                    struct layout *layout)
{
    int last = layout->n_dims - 1;
    if (__builtin_mul_overflow(layout->shape[last], change->ratio, &layout->shape[last]) ||
        __builtin_mul_overflow(layout->offset, change->ratio, &layout->offset)) {
        return error_set(SHOAL_ERR_INVALID, "dtype: as %s, dimension %d would be larger than 63 bits",
                         shoal_dtype_name(change->to), last);
    }
    for (int i = 0; i < last; i++) {
        layout->strides[i] = is_walked(self, i) ? layout->strides[i] * change->ratio : layout->shape[last];
    }
    return SHOAL_OK;
}

/* Several elements become one. */
static shoal_status grow_elements(const shoal_tensor *self, const struct dtype_change *change,
                                  struct layout *layout)
{
    int last = layout->n_dims - 1;
    if (layout->shape[last] % change->ratio != 0) {
        return fail_change(change, "the last dimension's size", layout->shape[last]);
    }
    if (self->count > 0 && layout->offset % change->ratio != 0) {
        return fail_change(change, "the offset", layout->offset);
    }
    layout->shape[last] /= change->ratio;
    layout->offset /= change->ratio;
    for (int i = 0; i < last; i++) {
        if (is_walked(self, i) && layout->strides[i] % change->ratio != 0) {
            return fail_change(change, "the stride", layout->strides[i]);
        }
        layout->strides[i] = is_walked(self, i) ? layout->strides[i] / change->ratio : layout->shape[last];
    }
    return SHOAL_OK;
}

static shoal_status scale_last_dim(const shoal_tensor *self, shoal_dtype to, struct layout *layout)
{
    int64_t from_bytes = (int64_t)dtype_bytes(self->dtype);
    int64_t to_bytes = (int64_t)dtype_bytes(to);
    struct dtype_change change = {.from = self->dtype, .to = to};
    int last = layout->n_dims - 1;
    if (last < 0) {
        return error_set(SHOAL_ERR_INVALID,
                         "dtype: a 0-d tensor of %s has no dimension to scale for %s, of another size",
                         shoal_dtype_name(change.from), shoal_dtype_name(to));
    }
    if (is_walked(self, last) && layout->strides[last] != 1) {
        return error_set(
            SHOAL_ERR_INVALID,
            "dtype: %s seen as %s, of another size, needs a last dimension of stride 1, not %" PRId64,
            shoal_dtype_name(change.from), shoal_dtype_name(to), layout->strides[last]);
    }
    layout->strides[last] = 1;
    change.ratio = from_bytes > to_bytes ? from_bytes / to_bytes : to_bytes / from_bytes;
    TRY(from_bytes > to_bytes ? shrink_elements(self, &change, layout)
                              : grow_elements(self, &change, layout));
    if (self->count == 0) {
        layout_fill_strides(layout->n_dims, layout->shape, layout->strides);
    }
    return SHOAL_OK;
}

shoal_status meta_view_dtype(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    shoal_dtype dtype = arguments[1].as.dtype;
    struct layout layout = self->layout;
    if (dtype == self->dtype) {
        return shoal_op_output_alias(call, self);
    }
    if (dtype_bytes(dtype) != dtype_bytes(self->dtype)) {
        TRY(scale_last_dim(self, dtype, &layout));
    }
    shoal_status status = op_output_view_as(call, self, dtype, &layout);
    return status == SHOAL_ERR_INVALID ? error_prefix(status, "dtype: %s", shoal_dtype_name(dtype)) : status;
}

/* Shapes that may need a copy -------------------------------------------------------------------------- */

static shoal_status declare_reshaped(shoal_op_call_context *call, shoal_tensor *self, int n_dims,
                                     const int64_t *shape)
{
    bool is_view;
    TRY(try_view(call, self, n_dims, shape, &is_view));
    return is_view ? SHOAL_OK : shoal_op_output(call, shape, n_dims, self->dtype);
}

shoal_status meta_reshape(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    int n_dims = 0;
    int64_t shape[SHOAL_MAX_DIMS];
    TRY(get_n_dims("shape", &arguments[1], &n_dims));
    TRY(layout_infer_shape(self->count, n_dims, arguments[1].as.integers, shape));
    return declare_reshaped(call, self, n_dims, shape);
}

shoal_status meta_flatten(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    const struct layout *from = &self->layout;
    int first = 0;
    int last = 0;
    int64_t shape[SHOAL_MAX_DIMS] = {1};
    int n_dims = 1;
    /* A 0-d tensor is taken as 1-d, so -1 and 0 are its dimensions. */
    int known = from->n_dims == 0 ? 1 : from->n_dims;
    TRY(layout_normalise_dim("first_dim", arguments[1].as.integer, known, &first));
    TRY(layout_normalise_dim("last_dim", arguments[2].as.integer, known, &last));
    if (first > last) {
        return error_set(SHOAL_ERR_INVALID, "first_dim: %d is after last_dim %d", first, last);
    }
    if (from->n_dims > 0) {
        n_dims = 0;
        for (int i = 0; i < from->n_dims; i++) {
            if (i <= first || i > last) {
                shape[n_dims++] = from->shape[i];
            } else if (__builtin_mul_overflow(shape[n_dims - 1], from->shape[i], &shape[n_dims - 1])) {
                return error_set(SHOAL_ERR_INVALID, "dimensions %d..%d together are larger than 63 bits",
                                 first, last);
            }
        }
    }
    return declare_reshaped(call, self, n_dims, shape);
}

/* Row-major copy into another shape of as many elements. */
shoal_status run_copy_flat(shoal_op_call_context *call, const shoal_value *arguments,
                           shoal_tensor *const *outputs, size_t n_outputs)
{
    shoal_tensor *self = arguments[0].as.tensor;
    struct kernel_operand from;
    struct kernel_operand to;
    int64_t strides[SHOAL_MAX_DIMS];
    TRY(op_operand(self, &from));
    TRY(op_operand(outputs[0], &to));
    layout_fill_strides(self->layout.n_dims, self->layout.shape, strides);
    to.strides = strides;
    op_kernels(self)->copy_nd(self->dtype, to, self->dtype, from, self->layout.n_dims, self->layout.shape);
    return SHOAL_OK;
}

shoal_status meta_expand(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    const struct layout *from = &self->layout;
    struct layout layout = {.offset = from->offset};
    TRY(get_n_dims("shape", &arguments[1], &layout.n_dims));
    int missing = layout.n_dims - from->n_dims;
    if (missing < 0) {
        return error_set(SHOAL_ERR_INVALID, "shape: %d dimensions are fewer than the tensor's %d",
                         layout.n_dims, from->n_dims);
    }
    for (int i = 0; i < layout.n_dims; i++) {
        int64_t wanted = arguments[1].as.integers[i];
        int64_t there = i < missing ? 1 : from->shape[i - missing];
        layout.shape[i] = wanted == -1 && i >= missing ? there : wanted;
        if (layout.shape[i] != there && there != 1) {
            return error_set(SHOAL_ERR_INVALID,
                             "shape: size %" PRId64 " of dimension %d does not fit the tensor's %" PRId64,
                             wanted, i, there);
        }
    }
    layout_broadcast_strides(from->n_dims, from->shape, from->strides, layout.n_dims, layout.shape,
                             layout.strides);
    return declare_view(call, self, &layout);
}

shoal_status meta_as_strided(shoal_op_call_context *call, const shoal_value *arguments)
{
    int n_dims = 0;
    TRY(get_n_dims("shape", &arguments[1], &n_dims));
    if (arguments[2].count != arguments[1].count) {
        return error_set(SHOAL_ERR_INVALID, "strides: %zu strides for %zu dimensions", arguments[2].count,
                         arguments[1].count);
    }
    int64_t count;
    int64_t strides[SHOAL_MAX_DIMS];
    TRY(layout_count(n_dims, arguments[1].as.integers, &count));
    layout_fill_strides(n_dims, arguments[1].as.integers, strides);
    for (int i = 0; i < n_dims && count > 0; i++) {
        strides[i] = arguments[2].as.integers[i];
    }
    return shoal_op_output_view(call, arguments[0].as.tensor, arguments[1].as.integers, strides, n_dims,
                                count > 0 ? arguments[3].as.integer : arguments[0].as.tensor->layout.offset);
}

/* Parts of a dimension --------------------------------------------------------------------------------- */

shoal_status meta_narrow(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    struct layout layout = self->layout;
    int64_t start = arguments[2].as.integer;
    int64_t length = arguments[3].as.integer;
    int dim;
    TRY(layout_normalise_dim("dim", arguments[1].as.integer, layout.n_dims, &dim));
    int64_t size = layout.shape[dim];
    if (start < -size || start > size) {
        return error_set(SHOAL_ERR_INVALID, "start: %" PRId64 " is not within %" PRId64 "..%" PRId64, start,
                         -size, size);
    }
    start = start < 0 ? start + size : start;
    if (length < 0 || length > size - start) {
        return error_set(SHOAL_ERR_INVALID,
                         "length: %" PRId64 " from %" PRId64
                         " on is not within dimension %d of size %" PRId64,
                         length, start, dim, size);
    }
    move_start(self, &layout, dim, start);
    layout.shape[dim] = length;
    return declare_view(call, self, &layout);
}

static int64_t clamp_index(int64_t index, int64_t size)
{
    index = index < 0 ? index + size : index;
    return index < 0 ? 0 : (index > size ? size : index);
}

shoal_status meta_slice(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    struct layout layout = self->layout;
    int64_t step = arguments[4].as.integer;
    int dim;
    TRY(layout_normalise_dim("dim", arguments[1].as.integer, layout.n_dims, &dim));
    if (step <= 0) {
        return error_set(SHOAL_ERR_INVALID, "step: %" PRId64 " is not positive", step);
    }
    int64_t size = layout.shape[dim];
    int64_t start = clamp_index(arguments[2].as.integer, size);
    int64_t stop = clamp_index(arguments[3].as.integer, size);
    int64_t length = stop > start ? (stop - start - 1) / step + 1 : 0;
    move_start(self, &layout, dim, start);
    layout.shape[dim] = length;
    /* With one element or none the stride is never used; a large step must not overflow it. */
    if (length > 1 && self->count > 0) {
        layout.strides[dim] *= step;
    }
    return declare_view(call, self, &layout);
}

shoal_status meta_select(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    struct layout layout = self->layout;
    int64_t index = arguments[2].as.integer;
    int dim;
    TRY(layout_normalise_dim("dim", arguments[1].as.integer, layout.n_dims, &dim));
    int64_t size = layout.shape[dim];
    if (index < -size || index >= size) {
        return error_set(SHOAL_ERR_INVALID, "index: %" PRId64 " is not within dimension %d of size %" PRId64,
                         index, dim, size);
    }
    move_start(self, &layout, dim, index < 0 ? index + size : index);
    layout_remove_dim(&layout, dim);
    return declare_view(call, self, &layout);
}

/* Order and number of dimensions ----------------------------------------------------------------------- */

shoal_status meta_permute(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    const struct layout *from = &self->layout;
    struct layout layout = {.n_dims = from->n_dims, .offset = from->offset};
    bool is_used[SHOAL_MAX_DIMS] = {false};
    if (arguments[1].count != (size_t)from->n_dims) {
        return error_set(SHOAL_ERR_INVALID, "dims: %zu dimensions are given, but the tensor has %d",
                         arguments[1].count, from->n_dims);
    }
    for (int i = 0; i < from->n_dims; i++) {
        int dim;
        TRY(layout_normalise_dim("dims", arguments[1].as.integers[i], from->n_dims, &dim));
        if (is_used[dim]) {
            return error_set(SHOAL_ERR_INVALID, "dims: dimension %d is given twice", dim);
        }
        is_used[dim] = true;
        layout.shape[i] = from->shape[dim];
        layout.strides[i] = from->strides[dim];
    }
    return declare_view(call, self, &layout);
}

shoal_status meta_transpose(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    struct layout layout = self->layout;
    int a;
    int b;
    TRY(layout_normalise_dim("dim_a", arguments[1].as.integer, layout.n_dims, &a));
    TRY(layout_normalise_dim("dim_b", arguments[2].as.integer, layout.n_dims, &b));
    layout.shape[a] = self->layout.shape[b];
    layout.strides[a] = self->layout.strides[b];
    layout.shape[b] = self->layout.shape[a];
    layout.strides[b] = self->layout.strides[a];
    return declare_view(call, self, &layout);
}

shoal_status meta_squeeze(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    struct layout layout = self->layout;
    int dim;
    TRY(layout_normalise_dim("dim", arguments[1].as.integer, layout.n_dims, &dim));
    if (layout.shape[dim] != 1) {
        return error_set(SHOAL_ERR_INVALID, "dim: dimension %d has size %" PRId64 ", not 1", dim,
                         layout.shape[dim]);
    }
    layout_remove_dim(&layout, dim);
    return declare_view(call, self, &layout);
}

shoal_status meta_squeeze_all(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    struct layout layout = self->layout;
    for (int i = layout.n_dims - 1; i >= 0; i--) {
        if (layout.shape[i] == 1) {
            layout_remove_dim(&layout, i);
        }
    }
    return declare_view(call, self, &layout);
}

shoal_status meta_unsqueeze(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    struct layout layout = self->layout;
    int dim;
    if (layout.n_dims == SHOAL_MAX_DIMS) {
        return error_set(SHOAL_ERR_INVALID,
                         "self has %d dimensions already, which is the most that a tensor can have",
                         layout.n_dims);
    }
    layout.n_dims++;
    TRY(layout_normalise_dim("dim", arguments[1].as.integer, layout.n_dims, &dim));
    for (int i = layout.n_dims - 1; i > dim; i--) {
        layout.shape[i] = layout.shape[i - 1];
        layout.strides[i] = layout.strides[i - 1];
    }
    /* As if the new dimension had been there: the stride that keeps a contiguous tensor contiguous. */
    if (dim + 1 == layout.n_dims || self->count == 0 ||
        __builtin_mul_overflow(layout.shape[dim + 1], layout.strides[dim + 1], &layout.strides[dim])) {
        layout.strides[dim] = 1;
    }
    layout.shape[dim] = 1;
    return declare_view(call, self, &layout);
}

/* Splitting -------------------------------------------------------------------------------------------- */

/* One piece of `length` from *start on; moves *start. */
static shoal_status declare_piece(shoal_op_call_context *call, shoal_tensor *self, int dim, int64_t *start,
                                  int64_t length)
{
    struct layout layout = self->layout;
    move_start(self, &layout, dim, *start);
    layout.shape[dim] = length;
    *start += length;
    return declare_view(call, self, &layout);
}

/* Pieces of `size`, as many as `count` or as there are. */
static shoal_status declare_pieces(shoal_op_call_context *call, shoal_tensor *self, int dim, int64_t size,
                                   int64_t count)
{
    int64_t total = self->layout.shape[dim];
    int64_t start = 0;
    if (count > MAX_PIECES) {
        return error_set(SHOAL_ERR_INVALID, "%" PRId64 " pieces are too many: at most %d expected", count,
                         MAX_PIECES);
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t left = total - start;
        TRY(declare_piece(call, self, dim, &start, left < size ? left : size));
    }
    return SHOAL_OK;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

shoal_status meta_split(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    int64_t size = arguments[1].as.integer;
    int dim;
    TRY(layout_normalise_dim("dim", arguments[2].as.integer, self->layout.n_dims, &dim));
    int64_t total = self->layout.shape[dim];
    if (size < 0 || (size == 0 && total != 0)) {
        return error_set(SHOAL_ERR_INVALID,
                         "size: pieces of %" PRId64 " cannot make up dimension %d of size %" PRId64, size,
                         dim, total);
    }
    /* An empty dimension still gives one, empty, piece. */
    return declare_pieces(call, self, dim, size, total == 0 ? 1 : divide_up(total, size));
}

shoal_status op_check_sizes(const shoal_tensor *self, const shoal_value *sizes, int dim)
{
    int64_t sum = 0;
    for (size_t i = 0; i < sizes->count; i++) {
        int64_t size = sizes->as.integers[i];
        if (size < 0 || __builtin_add_overflow(sum, size, &sum)) {
            return error_set(SHOAL_ERR_INVALID, "sizes: size %" PRId64 " of piece %zu is %s", size, i,
                             size < 0 ? "negative" : "too large");
        }
    }
    if (sum != self->layout.shape[dim]) {
        return error_set(SHOAL_ERR_INVALID,
                         "sizes: they add up to %" PRId64 ", dimension %d has size %" PRId64, sum, dim,
                         self->layout.shape[dim]);
    }
    return SHOAL_OK;
}

shoal_status meta_split_with_sizes(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    int64_t start = 0;
    int dim;
    TRY(layout_normalise_dim("dim", arguments[2].as.integer, self->layout.n_dims, &dim));
    TRY(op_check_sizes(self, &arguments[1], dim));
    for (size_t i = 0; i < arguments[1].count; i++) {
        TRY(declare_piece(call, self, dim, &start, arguments[1].as.integers[i]));
    }
    return SHOAL_OK;
}

static shoal_status check_chunks(const shoal_value *arguments, int *dim)
{
    TRY(layout_normalise_dim("dim", arguments[2].as.integer, arguments[0].as.tensor->layout.n_dims, dim));
    if (arguments[1].as.integer < 1) {
        return error_set(SHOAL_ERR_INVALID, "chunks: %" PRId64 " is not positive", arguments[1].as.integer);
    }
    return SHOAL_OK;
}

shoal_status meta_chunk(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    int dim;
    TRY(check_chunks(arguments, &dim));
    int64_t total = self->layout.shape[dim];
    int64_t size = divide_up(total, arguments[1].as.integer);
    /* Like PyTorch, an empty dimension gives all the chunks that were asked for. */
    int64_t count = total == 0 ? arguments[1].as.integer : divide_up(total, size);
    return declare_pieces(call, self, dim, size, count);
}

shoal_status meta_chunk_with_empty(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    int dim;
    TRY(check_chunks(arguments, &dim));
    int64_t size = divide_up(self->layout.shape[dim], arguments[1].as.integer);
    return declare_pieces(call, self, dim, size, arguments[1].as.integer);
}

shoal_status meta_getitem(shoal_op_call_context *call, const shoal_value *arguments)
{
    int64_t count = (int64_t)arguments[0].count;
    int64_t index = arguments[1].as.integer;
    if (index < -count || index >= count) {
        return error_set(SHOAL_ERR_INVALID, "index: %" PRId64 " is not within a list of %" PRId64, index,
                         count);
    }
    return shoal_op_output_alias(call, arguments[0].as.tensors[index < 0 ? index + count : index]);
}

shoal_status meta_control_deps(shoal_op_call_context *call, const shoal_value *arguments)
{
    return declare_view(call, arguments[0].as.tensor, &arguments[0].as.tensor->layout);
}
