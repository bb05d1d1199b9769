/* SPDX-License-Identifier: MIT */
/* Rows that reduce over dimensions: sum mean. */
#include <math.h>

#include "base/error.h"
#include "base/try.h"
#include "op/arith.h"
#include "op/operand.h"
#include "op/rows.h"
#include "tensor/dtype.h"

static shoal_status find_reduced(const shoal_tensor *self, const shoal_value *dims,
                                 bool is_reduced[SHOAL_MAX_DIMS])
{
    if (dims->count > SHOAL_MAX_DIMS) {
        return error_set(SHOAL_ERR_INVALID, "dims: %td dimensions are not within 0..%d",
                         (ptrdiff_t)dims->count, SHOAL_MAX_DIMS);
    }
    for (int i = 0; i < SHOAL_MAX_DIMS; i++) {
        is_reduced[i] = dims->count == 0;
    }
    for (size_t i = 0; i < dims->count; i++) {
        int dim;
        TRY(layout_normalise_dim("dims", dims->as.integers[i], self->layout.n_dims, &dim));
        if (is_reduced[dim]) {
            return error_set(SHOAL_ERR_INVALID, "dims: dimension %d is given twice", dim);
        }
        is_reduced[dim] = true;
    }
    return SHOAL_OK;
}

static shoal_status declare_sum(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    bool keeps_dims = arguments[2].as.boolean;
    bool is_reduced[SHOAL_MAX_DIMS];
    int64_t shape[SHOAL_MAX_DIMS];
    int n_dims = 0;
    TRY(find_reduced(self, &arguments[1], is_reduced));
    for (int i = 0; i < self->layout.n_dims; i++) {
        if (!is_reduced[i]) {
            shape[n_dims++] = self->layout.shape[i];
        } else if (keeps_dims) {
            shape[n_dims++] = 1;
        }
    }
    return shoal_op_output(call, shape, n_dims, self->dtype);
}

shoal_status meta_sum(shoal_op_call_context *call, const shoal_value *arguments)
{
    if (arguments[0].as.tensor->dtype == SHOAL_BOOL) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "self: bool has no sum; cast to an integer first");
    }
    TRY(arith_check_dtype(arguments[0].as.tensor));
    return declare_sum(call, arguments);
}

shoal_status meta_mean(shoal_op_call_context *call, const shoal_value *arguments)
{
    enum dtype_kind kind = dtype_kind(arguments[0].as.tensor->dtype);
    if (kind != DTYPE_KIND_FLOAT && kind != DTYPE_KIND_COMPLEX) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "self: %s has no mean; cast to a floating dtype first",
                         shoal_dtype_name(arguments[0].as.tensor->dtype));
    }
    return declare_sum(call, arguments);
}

/* Strides of the result as if every reduced dimension were still there. */
static void spread_strides(const shoal_tensor *self, const shoal_tensor *out, const bool *is_reduced,
                           int64_t *strides)
{
    bool keeps_dims = out->layout.n_dims == self->layout.n_dims;
    int at = 0;
    for (int i = 0; i < self->layout.n_dims; i++) {
        strides[i] = is_reduced[i] ? 0 : out->layout.strides[keeps_dims ? i : at];
        at += is_reduced[i] ? 0 : 1;
    }
}

/* As in NumPy, the mean of nothing is not a number, in both parts of a complex one. `out` is contiguous. */
static void fill_nan(const shoal_tensor *out, struct kernel_operand to)
{
    bool is_complex = dtype_kind(out->dtype) == DTYPE_KIND_COMPLEX;
    shoal_dtype part = out->dtype == SHOAL_C64 ? SHOAL_F32 : SHOAL_F64;
    int64_t count = is_complex ? 2 * out->count : out->count;
    to.strides = (int64_t[]){1};
    op_kernels(out)->fill_nd(is_complex ? part : out->dtype, to, 1, &count,
                             (struct kernel_scalar){.real = (double)NAN});
}

static shoal_status run_reduction(const shoal_value *arguments, shoal_tensor *out, bool is_mean)
{
    shoal_tensor *self = arguments[0].as.tensor;
    bool is_reduced[SHOAL_MAX_DIMS];
    int64_t strides[SHOAL_MAX_DIMS];
    struct kernel_operand to;
    struct kernel_operand from;
    TRY(find_reduced(self, &arguments[1], is_reduced));
    TRY(op_operand(out, &to));
    TRY(op_operand(self, &from));
    if (is_mean && self->count == 0) {
        fill_nan(out, to);
        return SHOAL_OK;
    }
    spread_strides(self, out, is_reduced, strides);
    to.strides = strides;
    int64_t divisor = is_mean ? self->count / out->count : 0;
    return op_kernels(self)->sum_nd(self->dtype, to, from, self->layout.n_dims, self->layout.shape,
                                    is_reduced, divisor);
}

shoal_status run_sum(shoal_op_call_context *call, const shoal_value *arguments, shoal_tensor *const *outputs,
                     size_t n_outputs)
{
    return run_reduction(arguments, outputs[0], /*is_mean=*/false);
}

shoal_status run_mean(shoal_op_call_context *call, const shoal_value *arguments, shoal_tensor *const *outputs,
                      size_t n_outputs)
{
    return run_reduction(arguments, outputs[0], /*is_mean=*/true);
}
