/* SPDX-License-Identifier: MIT */
/* Rows that join and cut by copying: cat stack, and what sharding packs and unpacks. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "op/operand.h"
#include "op/rows.h"
#include "tensor/dtype.h"

/* cat and stack ---------------------------------------------------------------------------------------- */

static shoal_status check_list(const shoal_value *list)
{
    if (list->count == 0) {
        return error_set(SHOAL_ERR_INVALID, "tensors: the list is empty");
    }
    shoal_dtype dtype = list->as.tensors[0]->dtype;
    for (size_t i = 1; i < list->count; i++) {
        if (list->as.tensors[i]->dtype != dtype) {
            return error_set(SHOAL_ERR_INVALID, "tensors: tensor %zu is %s, the first is %s", i,
                             shoal_dtype_name(list->as.tensors[i]->dtype), shoal_dtype_name(dtype));
        }
    }
    return SHOAL_OK;
}

/* Checks that tensor `index` of the list has the shape of the first, except in dimension `dim` (-1 for no
   exception). */
static shoal_status check_same_shape(const shoal_value *list, size_t index, int dim)
{
    const struct layout *first = &list->as.tensors[0]->layout;
    const struct layout *layout = &list->as.tensors[index]->layout;
    bool is_same = layout->n_dims == first->n_dims;
    for (int i = 0; is_same && i < first->n_dims; i++) {
        is_same = i == dim || layout->shape[i] == first->shape[i];
    }
    if (is_same) {
        return SHOAL_OK;
    }
    char a[LAYOUT_TEXT_BYTES];
    char b[LAYOUT_TEXT_BYTES];
    return error_set(SHOAL_ERR_INVALID, "tensors: tensor %zu has shape %s, which does not fit the first's %s",
                     index, layout_format(a, layout->n_dims, layout->shape),
                     layout_format(b, first->n_dims, first->shape));
}

shoal_status meta_cat(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_value *list = &arguments[0];
    int dim;
    TRY(check_list(list));
    struct layout layout = list->as.tensors[0]->layout;
    TRY(layout_normalise_dim("dim", arguments[1].as.integer, layout.n_dims, &dim));
    for (size_t i = 1; i < list->count; i++) {
        TRY(check_same_shape(list, i, dim));
        if (__builtin_add_overflow(layout.shape[dim], list->as.tensors[i]->layout.shape[dim],
                                   &layout.shape[dim])) {
            return error_set(SHOAL_ERR_INVALID,
                             "tensors: their sizes in dimension %d add up to more than 63 bits", dim);
        }
    }
    return shoal_op_output(call, layout.shape, layout.n_dims, list->as.tensors[0]->dtype);
}

/* Copies `src` to where it belongs in `dst`: `start` steps along `dim`; dst_strides are those of src's dimensions. */
static shoal_status place(shoal_tensor *dst, int dim, int64_t start, const int64_t *dst_strides,
                          shoal_tensor *src)
{
    struct kernel_operand to;
    struct kernel_operand from;
    if (src->count == 0) {
        return SHOAL_OK;
    }
    TRY(op_operand(dst, &to));
    TRY(op_operand(src, &from));
    to.data = (char *)to.data + start * dst->layout.strides[dim] * (int64_t)dtype_bytes(dst->dtype);
    to.strides = dst_strides;
    kernel_copy_nd(dst->dtype, to, src->dtype, from, src->layout.n_dims, src->layout.shape);
    return SHOAL_OK;
}

shoal_status run_cat(shoal_op_call_context *call, const shoal_value *arguments, shoal_tensor *const *outputs,
                     size_t n_outputs)
{
    const shoal_value *list = &arguments[0];
    shoal_tensor *out = outputs[0];
    int dim;
    int64_t start = 0;
    TRY(layout_normalise_dim("dim", arguments[1].as.integer, out->layout.n_dims, &dim));
    for (size_t i = 0; i < list->count; i++) {
        shoal_tensor *tensor = list->as.tensors[i];
        TRY(place(out, dim, start, out->layout.strides, tensor));
        start += tensor->layout.shape[dim];
    }
    return SHOAL_OK;
}

shoal_status meta_stack(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_value *list = &arguments[0];
    int dim;
    TRY(check_list(list));
    const struct layout *first = &list->as.tensors[0]->layout;
    if (first->n_dims == SHOAL_MAX_DIMS) {
        return error_set(SHOAL_ERR_INVALID,
                         "tensors: they have %d dimensions already, which is the most that a tensor can have",
                         first->n_dims);
    }
    TRY(layout_normalise_dim("dim", arguments[1].as.integer, first->n_dims + 1, &dim));
    for (size_t i = 1; i < list->count; i++) {
        TRY(check_same_shape(list, i, -1));
    }
    int64_t shape[SHOAL_MAX_DIMS];
    for (int i = 0; i <= first->n_dims; i++) {
        shape[i] = i == dim ? (int64_t)list->count : first->shape[i < dim ? i : i - 1];
    }
    return shoal_op_output(call, shape, first->n_dims + 1, list->as.tensors[0]->dtype);
}

shoal_status run_stack(shoal_op_call_context *call, const shoal_value *arguments,
                       shoal_tensor *const *outputs, size_t n_outputs)
{
    const shoal_value *list = &arguments[0];
    shoal_tensor *out = outputs[0];
    int dim;
    int64_t strides[SHOAL_MAX_DIMS];
    TRY(layout_normalise_dim("dim", arguments[1].as.integer, out->layout.n_dims, &dim));
    for (int i = 0; i + 1 < out->layout.n_dims; i++) {
        strides[i] = out->layout.strides[i < dim ? i : i + 1];
    }
    for (size_t i = 0; i < list->count; i++) {
        TRY(place(out, dim, (int64_t)i, strides, list->as.tensors[i]));
    }
    return SHOAL_OK;
}

/* split_with_sizes_copy -------------------------------------------------------------------------------- */

shoal_status meta_split_with_sizes_copy(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    struct layout layout = self->layout;
    int dim;
    TRY(layout_normalise_dim("dim", arguments[2].as.integer, layout.n_dims, &dim));
    TRY(op_check_sizes(self, &arguments[1], dim));
    for (size_t i = 0; i < arguments[1].count; i++) {
        layout.shape[dim] = arguments[1].as.integers[i];
        TRY(shoal_op_output(call, layout.shape, layout.n_dims, self->dtype));
    }
    return SHOAL_OK;
}

/* A contiguous [rows, columns] that is cut along the columns: FSDP unpacks gathered parameters this way. */
static bool is_columns(const shoal_tensor *self, int dim, size_t n_outputs)
{
    return n_outputs > 0 && self->layout.n_dims == 2 && dim == 1 && self->is_contiguous && self->count > 0;
}

static shoal_status unpack_columns(shoal_op_call_context *call, shoal_tensor *self,
                                   shoal_tensor *const *outputs, size_t n_outputs)
{
    void *source;
    TRY(tensor_address(self, &source));
    struct kernel_unpack_item *items = shoal_op_workspace(call, n_outputs * sizeof(*items));
    if (!items) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_outputs; i++) {
        items[i].elems = outputs[i]->layout.shape[1];
        TRY(tensor_address(outputs[i], &items[i].data));
    }
    kernel_unpack(self->dtype, items, n_outputs, self->dtype, source, self->layout.shape[0]);
    return SHOAL_OK;
}

size_t workspace_split_with_sizes_copy(const shoal_op_call_context *call, const shoal_value *arguments,
                                       shoal_tensor *const *outputs, size_t n_outputs)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    int64_t dim = arguments[2].as.integer;
    return is_columns(self, dim == 1 || dim == -1 ? 1 : 0, n_outputs)
               ? op_round_workspace(n_outputs * sizeof(struct kernel_unpack_item))
               : 0;
}

shoal_status run_split_with_sizes_copy(shoal_op_call_context *call, const shoal_value *arguments,
                                       shoal_tensor *const *outputs, size_t n_outputs)
{
    shoal_tensor *self = arguments[0].as.tensor;
    struct kernel_operand from;
    int dim;
    TRY(layout_normalise_dim("dim", arguments[2].as.integer, self->layout.n_dims, &dim));
    if (is_columns(self, dim, n_outputs)) {
        return unpack_columns(call, self, outputs, n_outputs);
    }
    TRY(op_operand(self, &from));
    for (size_t i = 0; i < n_outputs && self->count > 0; i++) {
        shoal_tensor *out = outputs[i];
        struct kernel_operand to;
        TRY(op_operand(out, &to));
        kernel_copy_nd(out->dtype, to, self->dtype, from, out->layout.n_dims, out->layout.shape);
        from.data = (char *)from.data +
                    out->layout.shape[dim] * self->layout.strides[dim] * (int64_t)dtype_bytes(self->dtype);
    }
    return SHOAL_OK;
}

/* chunk_cat -------------------------------------------------------------------------------------------- */

/* A tensor as rows of its first dimension. */
static shoal_status measure(const shoal_tensor *tensor, size_t index, struct kernel_pack_item *item)
{
    if (tensor->layout.n_dims == 0 || tensor->count == 0) {
        char shape[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "tensors: tensor %zu of shape %s has no rows to chunk", index,
                         layout_format(shape, tensor->layout.n_dims, tensor->layout.shape));
    }
    *item = (struct kernel_pack_item){.rows = tensor->layout.shape[0],
                                      .row_elems = tensor->count / tensor->layout.shape[0]};
    return SHOAL_OK;
}

shoal_status meta_chunk_cat(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_value *list = &arguments[0];
    int64_t n_chunks = arguments[1].as.integer;
    int64_t row_elems = 0;
    TRY(check_list(list));
    if (n_chunks < 1) {
        return error_set(SHOAL_ERR_INVALID, "n_chunks: %" PRId64 " is not positive", n_chunks);
    }
    for (size_t i = 0; i < list->count; i++) {
        struct kernel_pack_item item = {.data = NULL};
        TRY(measure(list->as.tensors[i], i, &item));
        int64_t elems;
        int64_t chunk_rows = item.rows / n_chunks + (item.rows % n_chunks != 0);
        if (__builtin_mul_overflow(chunk_rows, item.row_elems, &elems) ||
            __builtin_add_overflow(row_elems, elems, &row_elems)) {
            return error_set(SHOAL_ERR_INVALID,
                             "tensors: a row of the result would have more than 2^63 elements");
        }
    }
    return shoal_op_output(call, (int64_t[]){n_chunks, row_elems}, 2, arguments[2].as.dtype);
}

size_t workspace_chunk_cat(const shoal_op_call_context *call, const shoal_value *arguments,
                           shoal_tensor *const *outputs, size_t n_outputs)
{
    size_t bytes = op_round_workspace(arguments[0].count * sizeof(struct kernel_pack_item));
    for (size_t i = 0; i < arguments[0].count; i++) {
        bytes += op_contiguous_bytes(arguments[0].as.tensors[i]);
    }
    return bytes;
}

shoal_status run_chunk_cat(shoal_op_call_context *call, const shoal_value *arguments,
                           shoal_tensor *const *outputs, size_t n_outputs)
{
    const shoal_value *list = &arguments[0];
    int64_t n_chunks = arguments[1].as.integer;
    void *destination;
    TRY(tensor_address(outputs[0], &destination));
    struct kernel_pack_item *items = shoal_op_workspace(call, list->count * sizeof(*items));
    if (!items) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < list->count; i++) {
        void *data;
        TRY(measure(list->as.tensors[i], i, &items[i]));
        TRY(op_contiguous(call, list->as.tensors[i], &data));
        items[i].data = data;
    }
    kernel_pack(outputs[0]->dtype, destination, list->as.tensors[0]->dtype, items, list->count, n_chunks, 0,
                n_chunks);
    return SHOAL_OK;
}

/* all_gather_copy_in ----------------------------------------------------------------------------------- */

shoal_status meta_all_gather_copy_in(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *output = arguments[0].as.tensor;
    int64_t n_ranks = arguments[2].as.integer;
    int64_t rank = arguments[3].as.integer;
    int64_t row_elems = 0;
    if (n_ranks < 1) {
        return error_set(SHOAL_ERR_INVALID, "n_ranks: %" PRId64 " is not positive", n_ranks);
    }
    if (rank < 0 || rank >= n_ranks) {
        return error_set(SHOAL_ERR_INVALID, "rank: %" PRId64 " is not one of %" PRId64 " ranks", rank,
                         n_ranks);
    }
    for (size_t i = 0; i < arguments[1].count; i++) {
        const shoal_tensor *input = arguments[1].as.tensors[i];
        if (tensor_may_overlap(input, output)) {
            return error_set(SHOAL_ERR_INVALID, "inputs: tensor %zu shares memory with the output", i);
        }
        if (__builtin_add_overflow(row_elems, input->count, &row_elems)) {
            return error_set(SHOAL_ERR_INVALID, "inputs: together they have more than 2^63 elements");
        }
    }
    if (output->layout.n_dims != 1 || !output->is_contiguous || output->count / n_ranks != row_elems ||
        output->count % n_ranks != 0) {
        char text[TENSOR_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID,
                         "output: %s is not a flat buffer of %" PRId64 " rows of %" PRId64 " elements",
                         tensor_format(text, output), n_ranks, row_elems);
    }
    TRY(shoal_op_output_view(call, output, &row_elems, (int64_t[]){1}, 1,
                             output->layout.offset + rank * row_elems));
    return shoal_op_output_alias(call, output);
}

shoal_status run_all_gather_copy_in(shoal_op_call_context *call, const shoal_value *arguments,
                                    shoal_tensor *const *outputs, size_t n_outputs)
{
    shoal_tensor *row = outputs[0];
    void *address;
    TRY(tensor_address(row, &address));
    char *destination = address;
    for (size_t i = 0; i < arguments[1].count; i++) {
        shoal_tensor *input = arguments[1].as.tensors[i];
        struct kernel_operand from;
        int64_t strides[SHOAL_MAX_DIMS];
        TRY(op_operand(input, &from));
        layout_fill_strides(input->layout.n_dims, input->layout.shape, strides);
        kernel_copy_nd(row->dtype, (struct kernel_operand){.data = destination, .strides = strides},
                       input->dtype, from, input->layout.n_dims, input->layout.shape);
        destination += (size_t)input->count * dtype_bytes(row->dtype);
    }
    return SHOAL_OK;
}
