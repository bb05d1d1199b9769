/* SPDX-License-Identifier: MIT */
/* Rows that join and cut by copying: cat stack, and what sharding packs and unpacks. */
#include <inttypes.h>
#include <stdio.h>
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
    to.data = address_add(to.data, start * dst->layout.strides[dim] * (int64_t)dtype_bytes(dst->dtype));
    to.strides = dst_strides;
    op_kernels(dst)->copy_nd(dst->dtype, to, src->dtype, from, src->layout.n_dims, src->layout.shape);
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

/* Into given tensors ----------------------------------------------------------------------------------- */

/* Checks that `out` can be written as a result of that shape, and shares no memory with `source`. */
static shoal_status check_out(const char *argument, const shoal_tensor *out, const shoal_tensor *source,
                              int n_dims, const int64_t *shape)
{
    TRY(op_check_writable(argument, out));
    if (!layout_is_same_shape(out->layout.n_dims, out->layout.shape, n_dims, shape)) {
        char is[LAYOUT_TEXT_BYTES];
        char needed[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "%s: shape %s is not that of the result, %s", argument,
                         layout_format(is, out->layout.n_dims, out->layout.shape),
                         layout_format(needed, n_dims, shape));
    }
    if (tensor_may_overlap(source, out)) {
        return error_set(SHOAL_ERR_INVALID, "%s: it shares memory with an input", argument);
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

static shoal_status check_piece(const shoal_value *outs, size_t index, const shoal_tensor *self,
                                const struct layout *layout)
{
    char name[40];
    const shoal_tensor *out = outs->as.tensors[index];
    (void)snprintf(name, sizeof name, "outs: tensor %zu", index);
    if (out->dtype != self->dtype) {
        return error_set(SHOAL_ERR_INVALID, "%s is %s, self is %s", name, shoal_dtype_name(out->dtype),
                         shoal_dtype_name(self->dtype));
    }
    TRY(check_out(name, out, self, layout->n_dims, layout->shape));
    for (size_t i = 0; i < index; i++) {
        if (tensor_may_overlap(out, outs->as.tensors[i])) {
            return error_set(SHOAL_ERR_INVALID, "%s shares memory with tensor %zu", name, i);
        }
    }
    return SHOAL_OK;
}

shoal_status meta_split_with_sizes_copy_out(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_value *outs = &arguments[0];
    shoal_tensor *self = arguments[1].as.tensor;
    struct layout layout = self->layout;
    int dim;
    TRY(layout_normalise_dim("dim", arguments[3].as.integer, layout.n_dims, &dim));
    TRY(op_check_sizes(self, &arguments[2], dim));
    if (outs->count != arguments[2].count) {
        return error_set(SHOAL_ERR_INVALID, "outs: %zu tensors for %zu sizes", outs->count,
                         arguments[2].count);
    }
    for (size_t i = 0; i < outs->count; i++) {
        layout.shape[dim] = arguments[2].as.integers[i];
        TRY(check_piece(outs, i, self, &layout));
        TRY(shoal_op_output_alias(call, outs->as.tensors[i]));
    }
    return SHOAL_OK;
}

/* A contiguous [rows, columns] that is cut along the columns: FSDP unpacks gathered parameters this way. */
static bool is_columns(const shoal_tensor *self, int dim, shoal_tensor *const *outputs, size_t n_outputs)
{
    bool is = n_outputs > 0 && self->layout.n_dims == 2 && dim == 1 && self->is_contiguous && self->count > 0;
    for (size_t i = 0; is && i < n_outputs; i++) {
        is = outputs[i]->is_contiguous;
    }
    return is;
}

static shoal_status unpack_columns(shoal_op_call_context *call, shoal_tensor *self,
                                   shoal_tensor *const *outputs, size_t n_outputs)
{
    struct address source;
    TRY(tensor_address(self, &source));
    struct kernel_unpack_item *items = shoal_op_workspace(call, n_outputs * sizeof(*items));
    if (!items) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_outputs; i++) {
        items[i].elems = outputs[i]->layout.shape[1];
        TRY(tensor_address(outputs[i], &items[i].data));
    }
    op_kernels(self)->unpack(self->dtype, items, n_outputs, self->dtype, source, self->layout.shape[0]);
    return SHOAL_OK;
}

static size_t measure_split(const shoal_tensor *self, int64_t dim, shoal_tensor *const *outputs,
                            size_t n_outputs)
{
    return is_columns(self, dim == 1 || dim == -1 ? 1 : 0, outputs, n_outputs)
               ? op_round_workspace(n_outputs * sizeof(struct kernel_unpack_item))
               : 0;
}

size_t workspace_split_with_sizes_copy(const shoal_op_call_context *call, const shoal_value *arguments,
                                       shoal_tensor *const *outputs, size_t n_outputs)
{
    return measure_split(arguments[0].as.tensor, arguments[2].as.integer, outputs, n_outputs);
}

size_t workspace_split_with_sizes_copy_out(const shoal_op_call_context *call, const shoal_value *arguments,
                                           shoal_tensor *const *outputs, size_t n_outputs)
{
    return measure_split(arguments[1].as.tensor, arguments[3].as.integer, outputs, n_outputs);
}

static shoal_status split_copy(shoal_op_call_context *call, shoal_tensor *self, int64_t given_dim,
                               shoal_tensor *const *outputs, size_t n_outputs)
{
    struct kernel_operand from;
    int dim;
    TRY(layout_normalise_dim("dim", given_dim, self->layout.n_dims, &dim));
    if (is_columns(self, dim, outputs, n_outputs)) {
        return unpack_columns(call, self, outputs, n_outputs);
    }
    TRY(op_operand(self, &from));
    for (size_t i = 0; i < n_outputs && self->count > 0; i++) {
        shoal_tensor *out = outputs[i];
        struct kernel_operand to;
        TRY(op_operand(out, &to));
        op_kernels(out)->copy_nd(out->dtype, to, self->dtype, from, out->layout.n_dims, out->layout.shape);
        from.data = address_add(from.data, out->layout.shape[dim] * self->layout.strides[dim] *
                                               (int64_t)dtype_bytes(self->dtype));
    }
    return SHOAL_OK;
}

shoal_status run_split_with_sizes_copy(shoal_op_call_context *call, const shoal_value *arguments,
                                       shoal_tensor *const *outputs, size_t n_outputs)
{
    return split_copy(call, arguments[0].as.tensor, arguments[2].as.integer, outputs, n_outputs);
}

shoal_status run_split_with_sizes_copy_out(shoal_op_call_context *call, const shoal_value *arguments,
                                           shoal_tensor *const *outputs, size_t n_outputs)
{
    return split_copy(call, arguments[1].as.tensor, arguments[3].as.integer, outputs, n_outputs);
}

/* chunk_cat -------------------------------------------------------------------------------------------- */

/* What is cut: dimension `dim` of all tensors, whose dimensions before it are equal. */
struct chunks {
    int dim;
    int64_t n_chunks;
    int64_t n_blocks;  /* all indices of the dimensions before dim: a packed matrix for each */
    int64_t row_elems; /* of these matrices */
};

/* A tensor as rows of the dimension that is cut. */
static struct kernel_pack_item item_of(const shoal_tensor *tensor, const struct chunks *chunks)
{
    int64_t n_rows = tensor->layout.shape[chunks->dim];
    return (struct kernel_pack_item){.rows = n_rows, .row_elems = tensor->count / chunks->n_blocks / n_rows};
}

static shoal_status check_chunked(const shoal_value *list, size_t index, int dim)
{
    const struct layout *first = &list->as.tensors[0]->layout;
    const shoal_tensor *tensor = list->as.tensors[index];
    char shape[LAYOUT_TEXT_BYTES];
    (void)layout_format(shape, tensor->layout.n_dims, tensor->layout.shape);
    if (tensor->layout.n_dims <= dim || tensor->count == 0) {
        return error_set(SHOAL_ERR_INVALID, "tensors: tensor %zu of shape %s has no rows to chunk", index,
                         shape);
    }
    if (!layout_is_same_shape(dim, tensor->layout.shape, dim, first->shape)) {
        char other[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID,
                         "tensors: tensor %zu of shape %s differs from the first, %s, before dimension %d",
                         index, shape, layout_format(other, first->n_dims, first->shape), dim);
    }
    return SHOAL_OK;
}

static shoal_status measure_chunks(const shoal_value *list, int64_t n_chunks, int64_t dim,
                                   struct chunks *chunks_out)
{
    struct chunks chunks = {.n_chunks = n_chunks, .n_blocks = 1};
    TRY(check_list(list));
    if (n_chunks < 1) {
        return error_set(SHOAL_ERR_INVALID, "n_chunks: %" PRId64 " is not positive", n_chunks);
    }
    const struct layout *first = &list->as.tensors[0]->layout;
    if (first->n_dims > 0) { /* without dimensions there are no rows, which is said below */
        TRY(layout_normalise_dim("dim", dim, first->n_dims, &chunks.dim));
    }
    for (int i = 0; i < chunks.dim; i++) {
        chunks.n_blocks *= first->shape[i];
    }
    for (size_t i = 0; i < list->count; i++) {
        TRY(check_chunked(list, i, chunks.dim));
        struct kernel_pack_item item = item_of(list->as.tensors[i], &chunks);
        int64_t elems;
        int64_t chunk_rows = item.rows / n_chunks + (item.rows % n_chunks != 0);
        if (__builtin_mul_overflow(chunk_rows, item.row_elems, &elems) ||
            __builtin_add_overflow(chunks.row_elems, elems, &chunks.row_elems)) {
            return error_set(SHOAL_ERR_INVALID,
                             "tensors: a row of the result would have more than 2^63 elements");
        }
    }
    *chunks_out = chunks;
    return SHOAL_OK;
}

/* The dimensions before the one that is cut, chunks, and what a chunk has of all tensors. Returns how many they are. */
static int chunks_shape(const struct chunks *chunks, const shoal_value *list, int64_t *shape)
{
    memcpy(shape, list->as.tensors[0]->layout.shape, (size_t)chunks->dim * sizeof(shape[0]));
    shape[chunks->dim] = chunks->n_chunks;
    shape[chunks->dim + 1] = chunks->row_elems;
    return chunks->dim + 2;
}

/* A result has one dimension more than the first `dim` of its tensors. */
static shoal_status check_dims(const struct chunks *chunks)
{
    return chunks->dim + 2 <= SHOAL_MAX_DIMS
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "dim: the result would have more than %d dimensions",
                           SHOAL_MAX_DIMS);
}

shoal_status meta_chunk_cat(shoal_op_call_context *call, const shoal_value *arguments)
{
    struct chunks chunks;
    int64_t shape[SHOAL_MAX_DIMS];
    TRY(measure_chunks(&arguments[0], arguments[1].as.integer, arguments[3].as.integer, &chunks));
    TRY(check_dims(&chunks));
    int n_dims = chunks_shape(&chunks, &arguments[0], shape);
    return shoal_op_output(call, shape, n_dims, arguments[2].as.dtype);
}

shoal_status meta_chunk_cat_out(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *out = arguments[0].as.tensor;
    struct chunks chunks;
    int64_t shape[SHOAL_MAX_DIMS];
    TRY(measure_chunks(&arguments[1], arguments[2].as.integer, arguments[3].as.integer, &chunks));
    TRY(check_dims(&chunks));
    int n_dims = chunks_shape(&chunks, &arguments[1], shape);
    for (size_t i = 0; i < arguments[1].count; i++) {
        TRY(check_out("out", out, arguments[1].as.tensors[i], n_dims, shape));
    }
    if (!out->is_contiguous) {
        return error_set(SHOAL_ERR_INVALID, "out: it is not contiguous");
    }
    return shoal_op_output_alias(call, out);
}

static size_t measure_items(const shoal_value *list)
{
    size_t bytes = op_round_workspace(list->count * sizeof(struct kernel_pack_item));
    for (size_t i = 0; i < list->count; i++) {
        bytes += op_contiguous_bytes(list->as.tensors[i]);
    }
    return bytes;
}

size_t workspace_chunk_cat(const shoal_op_call_context *call, const shoal_value *arguments,
                           shoal_tensor *const *outputs, size_t n_outputs)
{
    return measure_items(&arguments[0]);
}

size_t workspace_chunk_cat_out(const shoal_op_call_context *call, const shoal_value *arguments,
                               shoal_tensor *const *outputs, size_t n_outputs)
{
    return measure_items(&arguments[1]);
}

static shoal_status pack_chunks(shoal_op_call_context *call, const shoal_value *list, int64_t n_chunks,
                                int64_t dim, shoal_tensor *out)
{
    struct chunks chunks;
    struct address destination;
    TRY(measure_chunks(list, n_chunks, dim, &chunks));
    TRY(tensor_address(out, &destination));
    struct kernel_pack_item *items = shoal_op_workspace(call, list->count * sizeof(*items));
    if (!items) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_dtype dtype = list->as.tensors[0]->dtype;
    for (size_t i = 0; i < list->count; i++) {
        items[i] = item_of(list->as.tensors[i], &chunks);
        TRY(op_contiguous(call, list->as.tensors[i], &items[i].data));
    }
    int64_t block_bytes = n_chunks * chunks.row_elems * (int64_t)dtype_bytes(out->dtype);
    for (int64_t block = 0; block < chunks.n_blocks; block++) {
        op_kernels(out)->pack(out->dtype, address_add(destination, block * block_bytes), dtype, items,
                              list->count, n_chunks, 0, n_chunks);
        for (size_t i = 0; i < list->count; i++) {
            int64_t bytes = items[i].rows * items[i].row_elems * (int64_t)dtype_bytes(dtype);
            items[i].data = address_add(items[i].data, bytes);
        }
    }
    return SHOAL_OK;
}

shoal_status run_chunk_cat(shoal_op_call_context *call, const shoal_value *arguments,
                           shoal_tensor *const *outputs, size_t n_outputs)
{
    return pack_chunks(call, &arguments[0], arguments[1].as.integer, arguments[3].as.integer, outputs[0]);
}

shoal_status run_chunk_cat_out(shoal_op_call_context *call, const shoal_value *arguments,
                               shoal_tensor *const *outputs, size_t n_outputs)
{
    return pack_chunks(call, &arguments[1], arguments[2].as.integer, arguments[3].as.integer, outputs[0]);
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
    struct address destination;
    TRY(tensor_address(row, &destination));
    for (size_t i = 0; i < arguments[1].count; i++) {
        shoal_tensor *input = arguments[1].as.tensors[i];
        struct kernel_operand from;
        int64_t strides[SHOAL_MAX_DIMS];
        TRY(op_operand(input, &from));
        layout_fill_strides(input->layout.n_dims, input->layout.shape, strides);
        op_kernels(row)->copy_nd(row->dtype, (struct kernel_operand){.data = destination, .strides = strides},
                                 input->dtype, from, input->layout.n_dims, input->layout.shape);
        destination = address_add(destination, input->count * (int64_t)dtype_bytes(row->dtype));
    }
    return SHOAL_OK;
}
