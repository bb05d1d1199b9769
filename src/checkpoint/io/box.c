/* SPDX-License-Identifier: MIT */
/* Cutting boxes into pieces: see box.h. */
#include "checkpoint/io/box.h"

#include <inttypes.h>

#include "base/error.h"
#include "base/try.h"
#include "tensor/dtype.h"
#include "tensor/layout.h"

/* Pieces that are contiguous on both sides and at least this long are not merged with their neighbours. */
#define DIRECT_BYTES ((size_t)64 << 10)

/* Making ----------------------------------------------------------------------------------------------- */

/* Begin and length of one dimension, checked. */
static shoal_status get_range(const struct box_arguments *arguments, int dim, int64_t *begin_out,
                              int64_t *length_out)
{
    int64_t size = arguments->shape[dim];
    int64_t begin = arguments->begin ? arguments->begin[dim] : 0;
    if (begin < 0 || begin > size) {
        return error_set(SHOAL_ERR_INVALID, "begin[%d]: %" PRId64 " is not within 0..%" PRId64, dim, begin,
                         size);
    }
    int64_t length = arguments->length ? arguments->length[dim] : size - begin;
    if (length < 0 || length > size - begin) {
        return error_set(SHOAL_ERR_INVALID,
                         "length[%d]: %" PRId64 " is not within 0..%" PRId64 ", what is left from %" PRId64,
                         dim, length, size - begin, begin);
    }
    *begin_out = begin;
    *length_out = length;
    return SHOAL_OK;
}

static shoal_status check_extent(int n_dims, const int64_t *length, const int64_t *strides,
                                 size_t element_bytes)
{
    int64_t first;
    int64_t end;
    TRY(layout_extent(n_dims, length, strides, 0, &first, &end));
    int64_t most = INT64_MAX / (int64_t)element_bytes;
    if (end > most || first < -most) {
        return error_set(SHOAL_ERR_INVALID, "strides: elements %" PRId64 " to %" PRId64 " are too far apart",
                         first, end);
    }
    return SHOAL_OK;
}

shoal_status box_make(const struct box_arguments *arguments, struct box *box_out)
{
    struct box box = {.element_bytes = dtype_bytes(arguments->dtype)};
    int64_t length[SHOAL_MAX_DIMS] = {0};
    int64_t file_strides[SHOAL_MAX_DIMS] = {0};
    int64_t memory_strides[SHOAL_MAX_DIMS] = {0};
    int n_dims = arguments->n_dims;
    layout_fill_strides(n_dims, arguments->shape, file_strides);
    for (int i = 0; i < n_dims; i++) {
        int64_t begin = 0;
        TRY(get_range(arguments, i, &begin, &length[i]));
        box.is_empty = box.is_empty || length[i] == 0;
        /* For a tensor without elements the product may overflow, but is not used. */
        box.file_offset += (uint64_t)begin * (uint64_t)file_strides[i] * box.element_bytes;
    }
    layout_fill_strides(n_dims, length, memory_strides);
    for (int i = 0; i < n_dims && arguments->strides; i++) {
        memory_strides[i] = arguments->strides[i];
    }
    TRY(check_extent(n_dims, length, memory_strides, box.element_bytes));
    for (int i = 0; i < n_dims; i++) {
        if (length[i] == 1) {
            continue;
        }
        box.length[box.n_dims] = length[i];
        box.file_strides[box.n_dims] = file_strides[i];
        box.memory_strides[box.n_dims] = memory_strides[i];
        box.n_dims++;
    }
    *box_out = box;
    return SHOAL_OK;
}

/* Planning --------------------------------------------------------------------------------------------- */

/* Bytes of the file from the first to the last element with fixed indices of the dimensions before `dim`. */
static void measure_spans(const struct box *box, size_t spans[SHOAL_MAX_DIMS + 1])
{
    spans[box->n_dims] = box->element_bytes;
    for (int i = box->n_dims - 1; i >= 0; i--) {
        spans[i] =
            (size_t)(box->length[i] - 1) * (size_t)box->file_strides[i] * box->element_bytes + spans[i + 1];
    }
}

/* The first dimension from which on no gap between neighbours is larger than max_gap_bytes. */
static int find_outermost(const struct box *box, const size_t *spans, size_t max_gap_bytes)
{
    int dim = box->n_dims;
    while (dim > 0 && (size_t)box->file_strides[dim - 1] * box->element_bytes - spans[dim] <= max_gap_bytes) {
        dim--;
    }
    return dim;
}

void box_plan(struct box *box, size_t max_gap_bytes, bool must_buffer)
{
    size_t spans[SHOAL_MAX_DIMS + 1] = {0};
    if (box->is_empty) {
        return;
    }
    if (box->n_dims == 0) {
        box->length[0] = 1;
        box->file_strides[0] = 1;
        box->memory_strides[0] = 1;
        box->n_dims = 1;
    }
    measure_spans(box, spans);
    int dense = find_outermost(box, spans, 0);
    int joined = find_outermost(box, spans, max_gap_bytes);
    bool is_dense_in_memory =
        layout_is_contiguous(box->n_dims - dense, box->length + dense, box->memory_strides + dense);
    box->is_direct = !must_buffer && is_dense_in_memory && (joined == dense || spans[dense] >= DIRECT_BYTES);
    box->cut = dense;
    box->chunk = 1;
    box->buffer_bytes = 0;
    if (box->is_direct) {
        return;
    }
    box->cut = joined < box->n_dims ? joined : box->n_dims - 1;
    while (box->cut < box->n_dims - 1 && spans[box->cut + 1] > BOX_BUFFER_BYTES) {
        box->cut++;
    }
    size_t step = (size_t)box->file_strides[box->cut] * box->element_bytes;
    int64_t most = joined == box->n_dims ? 1 : (int64_t)((BOX_BUFFER_BYTES - spans[box->cut + 1]) / step) + 1;
    box->chunk = most < box->length[box->cut] ? most : box->length[box->cut];
    box->buffer_bytes = (size_t)(box->chunk - 1) * step + spans[box->cut + 1];
}

shoal_dtype box_bits(const struct box *box)
{
    switch (box->element_bytes) {
    case 1:
        return SHOAL_U8;
    case 2:
        return SHOAL_U16;
    case 4:
        return SHOAL_U32;
    default:
        return SHOAL_U64;
    }
}

/* Walking ---------------------------------------------------------------------------------------------- */

/* The piece at these indices, of which that of `cut` is the first of its chunk. */
static struct box_piece make_piece(const struct box *box, const int64_t *indices)
{
    struct box_piece piece = {.file_offset = box->file_offset};
    int n_walked = box->is_direct ? box->cut : box->cut + 1;
    for (int i = 0; i < n_walked; i++) {
        piece.file_offset += (uint64_t)indices[i] * (uint64_t)box->file_strides[i] * box->element_bytes;
        piece.memory_offset += indices[i] * box->memory_strides[i] * (int64_t)box->element_bytes;
    }
    piece.n_dims = box->n_dims - box->cut;
    piece.file_strides = box->file_strides + box->cut;
    piece.memory_strides = box->memory_strides + box->cut;
    piece.file_bytes = box->element_bytes;
    for (int i = 0; i < piece.n_dims; i++) {
        piece.shape[i] = box->length[box->cut + i];
        if (i == 0 && !box->is_direct) {
            int64_t left = box->length[box->cut] - indices[box->cut];
            piece.shape[i] = left < box->chunk ? left : box->chunk;
        }
        piece.file_bytes += (size_t)(piece.shape[i] - 1) * (size_t)piece.file_strides[i] * box->element_bytes;
    }
    return piece;
}

/* Returns false if there are no more. */
static bool advance(const struct box *box, int64_t *indices)
{
    if (!box->is_direct) {
        indices[box->cut] += box->chunk;
        if (indices[box->cut] < box->length[box->cut]) {
            return true;
        }
        indices[box->cut] = 0;
    }
    for (int i = box->cut - 1; i >= 0; i--) {
        if (++indices[i] < box->length[i]) {
            return true;
        }
        indices[i] = 0;
    }
    return false;
}

shoal_status box_walk(const struct box *box,
                      shoal_status (*visit)(void *context, const struct box_piece *piece), void *context)
{
    int64_t indices[SHOAL_MAX_DIMS] = {0};
    if (box->is_empty) {
        return SHOAL_OK;
    }
    do {
        struct box_piece piece = make_piece(box, indices);
        TRY(visit(context, &piece));
    } while (advance(box, indices));
    return SHOAL_OK;
}
