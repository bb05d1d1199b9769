/* SPDX-License-Identifier: MIT */
/* Rows of arithmetic: add sub mul div with a tensor or a number, neg, in place or not. */
#include "op/arith.h"

#include "base/error.h"
#include "base/fp_mode.h"
#include "base/try.h"
#include "op/operand.h"
#include "op/rows.h"
#include "tensor/dtype.h"

shoal_status arith_check_same_dtype(const shoal_tensor *self, const shoal_tensor *other)
{
    if (self->dtype == other->dtype) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_INVALID, "other: dtype %s does not fit self's %s; cast one with to_dtype",
                     shoal_dtype_name(other->dtype), shoal_dtype_name(self->dtype));
}

shoal_status arith_check_dtype(const shoal_tensor *self)
{
    if (dtype_kind(self->dtype) != DTYPE_KIND_FLOAT8) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_UNSUPPORTED, "self: %s has no arithmetic; cast with to_dtype first",
                     shoal_dtype_name(self->dtype));
}

shoal_status arith_check_number(const shoal_tensor *self)
{
    TRY(arith_check_dtype(self));
    if (self->dtype != SHOAL_BOOL) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_UNSUPPORTED, "self: not supported for bool; cast to an integer first");
}

/* Two tensors ------------------------------------------------------------------------------------------ */

shoal_status meta_binary(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    const shoal_tensor *other = arguments[1].as.tensor;
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    TRY(arith_check_dtype(self));
    TRY(arith_check_same_dtype(self, other));
    TRY(layout_broadcast(self->layout.n_dims, self->layout.shape, other->layout.n_dims, other->layout.shape,
                         &n_dims, shape));
    return shoal_op_output(call, shape, n_dims, self->dtype);
}

shoal_status meta_binary_number(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(arith_check_number(arguments[0].as.tensor));
    return meta_binary(call, arguments);
}

shoal_status arith_run(enum kernel_binary op, shoal_tensor *dst, shoal_tensor *self, shoal_tensor *other)
{
    struct kernel_operand to;
    struct kernel_operand a;
    struct kernel_operand b;
    int64_t a_strides[SHOAL_MAX_DIMS];
    int64_t b_strides[SHOAL_MAX_DIMS];
    const struct layout *layout = &dst->layout;
    TRY(op_operand(dst, &to));
    TRY(op_operand_over(self, layout->n_dims, layout->shape, a_strides, &a));
    TRY(op_operand_over(other, layout->n_dims, layout->shape, b_strides, &b));
    return op_kernels(dst)->binary_nd(op, dst->dtype, to, a, b, layout->n_dims, layout->shape);
}

shoal_status meta_binary_(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(arith_check_dtype(arguments[0].as.tensor));
    TRY(arith_check_same_dtype(arguments[0].as.tensor, arguments[1].as.tensor));
    TRY(op_check_in_place(arguments[0].as.tensor, arguments[1].as.tensor));
    return shoal_op_output_alias(call, arguments[0].as.tensor);
}

shoal_status meta_binary_number_(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(arith_check_number(arguments[0].as.tensor));
    return meta_binary_(call, arguments);
}

static shoal_status run_binary_in_place(enum kernel_binary op, shoal_tensor *self, shoal_tensor *other)
{
    shoal_tensor *safe;
    shoal_tensor *copy;
    TRY(op_separate(other, self, &safe, &copy));
    shoal_status status = arith_run(op, self, self, safe);
    shoal_tensor_unref(copy);
    return status;
}

/* A tensor and a number -------------------------------------------------------------------------------- */

static shoal_status declare_itself(shoal_op_call_context *call, shoal_tensor *self)
{
    TRY(op_check_writable("self", self));
    return shoal_op_output_alias(call, self);
}

static bool is_integer(shoal_dtype dtype)
{
    enum dtype_kind kind = dtype_kind(dtype);
    return kind == DTYPE_KIND_SIGNED || kind == DTYPE_KIND_UNSIGNED;
}

static FP_MODE_APART bool convert_to_integer(shoal_dtype dtype, double real, int64_t *integer_out)
{
    double end = dtype_kind(dtype) == DTYPE_KIND_UNSIGNED ? 0x1p64 : 0x1p63;
    if (!(real >= -0x1p63 && real < end)) {
        return false;
    }
    bool is_negative = real < 0;
    uint64_t bits = is_negative ? (uint64_t)(int64_t)real : (uint64_t)real;
    *integer_out = (int64_t)bits;
    return (is_negative ? (double)(int64_t)bits : (double)bits) == real;
}

/* Converts a float argument for a tensor of an integer dtype. Numbers from 2^63 on, which only unsigned dtypes
   take, wrap to negative ones. False for fractions, NaN and numbers that need more than 64 bits. */
static bool find_integer(shoal_dtype dtype, double real, int64_t *integer_out)
{
    uint64_t mode = fp_mode_enter();
    bool is_found = convert_to_integer(dtype, real, integer_out);
    fp_mode_leave(mode);
    return is_found;
}

shoal_status arith_check_fits(const shoal_tensor *self, const char *name, const shoal_value *number)
{
    int64_t integer;
    if (number->kind == SHOAL_VALUE_INT || !is_integer(self->dtype) ||
        find_integer(self->dtype, number->as.real, &integer)) {
        return SHOAL_OK;
    }
    double size = number->as.real < 0 ? -number->as.real : number->as.real;
    return error_set(SHOAL_ERR_INVALID, "%s: %.15g is no %sinteger, but self is %s; cast with to_dtype first",
                     name, number->as.real, size >= 0x1p63 ? "64-bit " : "", shoal_dtype_name(self->dtype));
}

shoal_status meta_scalar(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(arith_check_dtype(arguments[0].as.tensor));
    TRY(arith_check_fits(arguments[0].as.tensor, "other", &arguments[1]));
    return op_declare_like(call, arguments[0].as.tensor, arguments[0].as.tensor->dtype);
}

shoal_status meta_scalar_(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(arith_check_dtype(arguments[0].as.tensor));
    TRY(arith_check_fits(arguments[0].as.tensor, "other", &arguments[1]));
    return declare_itself(call, arguments[0].as.tensor);
}

shoal_status meta_scalar_number(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(arith_check_number(arguments[0].as.tensor));
    return meta_scalar(call, arguments);
}

shoal_status meta_scalar_number_(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(arith_check_number(arguments[0].as.tensor));
    return meta_scalar_(call, arguments);
}

shoal_status arith_run_with_number(enum kernel_binary op, shoal_tensor *dst, shoal_tensor *self,
                                   const shoal_value *number)
{
    struct kernel_operand to;
    struct kernel_operand a;
    TRY(op_operand(dst, &to));
    TRY(op_operand(self, &a));
    struct kernel_scalar value = op_scalar(number);
    if (!value.is_integer && is_integer(self->dtype)) {
        value.is_integer = find_integer(self->dtype, value.real, &value.integer);
    }
    return op_kernels(dst)->number_nd(op, dst->dtype, to, a, value, dst->layout.n_dims, dst->layout.shape);
}

/* The rows of one operator: with a tensor, with a number, and both in place. */
#define BINARY_ROWS(name, op)                                                                            \
    shoal_status run_##name(shoal_op_call_context *call, const shoal_value *arguments,                   \
                            shoal_tensor *const *outputs, size_t n_outputs)                              \
    {                                                                                                    \
        return arith_run(op, outputs[0], arguments[0].as.tensor, arguments[1].as.tensor);                \
    }                                                                                                    \
    shoal_status run_##name##_(shoal_op_call_context *call, const shoal_value *arguments,                \
                               shoal_tensor *const *outputs, size_t n_outputs)                           \
    {                                                                                                    \
        return run_binary_in_place(op, arguments[0].as.tensor, arguments[1].as.tensor);                  \
    }                                                                                                    \
    shoal_status run_##name##_scalar(shoal_op_call_context *call, const shoal_value *arguments,          \
                                     shoal_tensor *const *outputs, size_t n_outputs)                     \
    {                                                                                                    \
        return arith_run_with_number(op, outputs[0], arguments[0].as.tensor, &arguments[1]);             \
    }                                                                                                    \
    shoal_status run_##name##_scalar_(shoal_op_call_context *call, const shoal_value *arguments,         \
                                      shoal_tensor *const *outputs, size_t n_outputs)                    \
    {                                                                                                    \
        return arith_run_with_number(op, arguments[0].as.tensor, arguments[0].as.tensor, &arguments[1]); \
    }

BINARY_ROWS(add, KERNEL_ADD)
BINARY_ROWS(sub, KERNEL_SUB)
BINARY_ROWS(mul, KERNEL_MUL)
BINARY_ROWS(div, KERNEL_DIV)

shoal_status meta_neg(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(arith_check_number(arguments[0].as.tensor));
    return op_declare_like(call, arguments[0].as.tensor, arguments[0].as.tensor->dtype);
}

shoal_status meta_neg_(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(arith_check_number(arguments[0].as.tensor));
    return declare_itself(call, arguments[0].as.tensor);
}

static shoal_status negate(shoal_tensor *dst, shoal_tensor *self)
{
    struct kernel_operand to;
    struct kernel_operand from;
    TRY(op_operand(dst, &to));
    TRY(op_operand(self, &from));
    return op_kernels(self)->negate_nd(self->dtype, to, from, self->layout.n_dims, self->layout.shape);
}

shoal_status run_neg(shoal_op_call_context *call, const shoal_value *arguments, shoal_tensor *const *outputs,
                     size_t n_outputs)
{
    return negate(outputs[0], arguments[0].as.tensor);
}

shoal_status run_neg_(shoal_op_call_context *call, const shoal_value *arguments, shoal_tensor *const *outputs,
                      size_t n_outputs)
{
    return negate(arguments[0].as.tensor, arguments[0].as.tensor);
}

/* where_equal ------------------------------------------------------------------------------------------ */

shoal_status meta_where_equal(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    for (size_t i = 1; i < 3; i++) {
        const shoal_tensor *other = arguments[i].as.tensor;
        if (other->dtype != self->dtype || !layout_is_same_shape(other->layout.n_dims, other->layout.shape,
                                                                 self->layout.n_dims, self->layout.shape)) {
            char a[TENSOR_TEXT_BYTES];
            char b[TENSOR_TEXT_BYTES];
            return error_set(SHOAL_ERR_INVALID, "%s: %s, but self is %s", call->op->params[i].name,
                             tensor_format(a, other), tensor_format(b, self));
        }
    }
    return op_declare_like(call, self, self->dtype);
}

size_t workspace_where_equal(const shoal_op_call_context *call, const shoal_value *arguments,
                             shoal_tensor *const *outputs, size_t n_outputs)
{
    size_t bytes = 0;
    for (size_t i = 0; i < 3; i++) {
        bytes += op_contiguous_bytes(arguments[i].as.tensor);
    }
    return bytes;
}

shoal_status run_where_equal(shoal_op_call_context *call, const shoal_value *arguments,
                             shoal_tensor *const *outputs, size_t n_outputs)
{
    struct address data[3];
    struct address dst;
    TRY(tensor_address(outputs[0], &dst));
    for (size_t i = 0; i < 3; i++) {
        TRY(op_contiguous(call, arguments[i].as.tensor, &data[i]));
    }
    op_kernels(outputs[0])
        ->where_equal(outputs[0]->dtype, dst, data[0], data[1], data[2], (size_t)outputs[0]->count);
    return SHOAL_OK;
}
