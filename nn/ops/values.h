/* SPDX-License-Identifier: MIT */
/*
 * Tensors as arrays of the type in which they are computed: double for f64, float for f32, bf16 and f16. A tensor whose
 * memory already is such an array is used in place; all others (other strides, 16-bit floats) go through scratch
 * memory.
 *
 * Kernels do not call ops for this, because a tracer or the tape of the caller's scope would see them.
 */
#ifndef NN_OPS_VALUES_H
#define NN_OPS_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/dtype.h"
#include "shoal/op.h"
#include "shoal/tensor.h"

/* Sizes and strides, in elements. */
struct nn_layout {
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    int64_t strides[SHOAL_MAX_DIMS];
};

struct nn_values {
    void *data;    /* contiguous floats or doubles */
    void *scratch; /* NULL if data is the tensor's own memory */
    void *target;  /* of nn_open with scratch: the tensor's memory */
    size_t count;
};

/* The dtype that is computed in: SHOAL_F64 or SHOAL_F32. */
shoal_dtype nn_real(shoal_dtype dtype);

struct nn_layout nn_layout_of(const shoal_tensor *tensor);

/*
 * Allocates scratch memory for `count` elements from the workspace of the call; it is released when the call ends. With
 * call NULL (optimizers) it must be freed with free. SHOAL_ERR_NO_MEMORY names the size that was requested.
 */
shoal_status nn_scratch(shoal_op_call_context *call, size_t count, size_t element_bytes, void **scratch_out);
/* What that takes of the workspace. */
size_t nn_scratch_bytes(size_t count, size_t element_bytes);

/* What nn_load and nn_open of the tensor take of the workspace; nothing if it is NULL. */
size_t nn_values_bytes(const shoal_tensor *tensor);

/* Copies `data`, laid out so, in row-major order into floats or doubles, whichever nn_real(dtype) says. */
void nn_gather(const void *data, shoal_dtype dtype, const struct nn_layout *layout, void *to);

/* `count` elements of a tensor, `stride` apart, as contiguous floats, doubles or int64_t, and back. */
void nn_read_row(const void *row, shoal_dtype dtype, int64_t count, int64_t stride, void *to);
void nn_write_row(void *row, shoal_dtype dtype, int64_t count, int64_t stride, const void *from_values);

/* The way back: floats or doubles into `data`, which is laid out so. */
void nn_scatter(void *data, shoal_dtype dtype, const struct nn_layout *layout, const void *from);

/* Contiguous elements from one floating dtype to another, with one rounding. One of the two is f32 or f64. */
void nn_convert(size_t count, const void *from, shoal_dtype from_dtype, void *to, shoal_dtype to_dtype);

/* What the tensors among the first n arguments, and the result, take. */
size_t nn_values_of_call(const shoal_value *arguments, size_t n_arguments, const shoal_tensor *result);

/* A floating tensor to read. call as for nn_scratch, here and below. */
shoal_status nn_load(shoal_op_call_context *call, const shoal_tensor *tensor, struct nn_values *values_out);

/* A floating tensor to write, with its present values or without; nn_store ends it. */
shoal_status nn_open(shoal_op_call_context *call, shoal_tensor *tensor, bool keeps_values,
                     struct nn_values *values_out);
void nn_store(const shoal_tensor *tensor, const struct nn_values *values);

/* An integer tensor to read; data are int64_t. */
shoal_status nn_load_integers(shoal_op_call_context *call, const shoal_tensor *tensor,
                              struct nn_values *values_out);

/* Of values that were loaded without a call. */
void nn_values_free(struct nn_values *values);

#endif
